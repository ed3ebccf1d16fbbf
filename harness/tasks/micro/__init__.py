"""The micro task: procedural arithmetic with a held-out split. Imports without torch."""

from harness.tasks.micro.problems import GROUPS, LEVELS, SKILLS, Problem, Skill, draw_fact
from harness.tasks.micro.prompts import (
    as_prompt,
    dev_prompts,
    evaluation_problems,
    evaluation_prompts,
    training_prompts,
    worked_examples,
)

__all__ = [
    "GROUPS",
    "LEVELS",
    "SKILLS",
    "Problem",
    "Skill",
    "as_prompt",
    "dev_prompts",
    "draw_fact",
    "evaluation_problems",
    "evaluation_prompts",
    "training_prompts",
    "worked_examples",
]
