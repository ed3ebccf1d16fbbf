"""The ladder: procedural tasks of one short answer each, for pretrained models of 0.1 to 1.5 B. Imports without torch."""

from harness.tasks.ladder.levels import GROUPS, LEVELS, Level, Problem
from harness.tasks.ladder.prompts import (
    NAME,
    as_prompt,
    evaluation_problems,
    evaluation_prompts,
    is_ladder,
    levels_of,
    training_prompts,
    worked,
)

__all__ = [
    "GROUPS",
    "LEVELS",
    "NAME",
    "Level",
    "Problem",
    "as_prompt",
    "evaluation_problems",
    "evaluation_prompts",
    "is_ladder",
    "levels_of",
    "training_prompts",
    "worked",
]
