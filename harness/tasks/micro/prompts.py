"""Prompts of the micro task: training prompts by step seed, and one fixed evaluation set."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from harness.errors import DataError
from harness.experience.answers import Prompt
from harness.tasks.micro.problems import LEVELS, PARTS, SKILLS, Problem

_EVALUATION_SEED = 20_260
_DRAWS_PER_PROMPT = 400


def as_prompt(problem: Problem, *, hinted: bool = False) -> Prompt:
    """The prompt of a problem; `hinted` asks for steps (to measure accuracy given chain of thought; never in RL)."""
    return Prompt(
        id=f"{problem.skill}{'-hinted' if hinted else ''}:{problem.question}",
        text=problem.hinted_prompt if hinted else problem.prompt,
        gold=str(problem.answer),
        labels={"skill": problem.skill, "level": str(problem.level), "group": problem.group},
    )


def training_prompts(
    step_seed: int, count: int, skills: Sequence[str] = tuple(SKILLS), part: str = "all"
) -> list[Prompt]:
    """`count` distinct training prompts, the same for the same `step_seed`; skills as even as `count` allows.

    part: of the questions (`problems.PARTS`).

    Raises
    ------
    DataError
        An unknown skill, a count below one, or more prompts than the skills have.
    """
    if count < 1:
        raise DataError(f"micro: {count} training prompts a step asked for; at least 1 is needed")
    rng = Random(step_seed)
    order: list[str] = []
    while len(order) < count:
        order += rng.sample(skills, len(skills))
    return [as_prompt(problem) for problem in _distinct(rng, order[:count], part)]


def evaluation_problems(per_skill: int = 40, skills: Sequence[str] = tuple(SKILLS)) -> list[Problem]:
    """The first `per_skill` held-out problems of each skill: a fixed set, levels alternating. Raises DataError."""
    return [
        problem for skill in skills for problem in _distinct(Random(_EVALUATION_SEED), [skill] * per_skill, "held out")
    ]


def dev_prompts(per_skill: int = 20) -> list[Prompt]:
    """`per_skill` problems of each skill for the comparison of settings: neither held out nor in any part that tuning trains on."""
    return [
        as_prompt(problem)
        for skill in SKILLS
        for problem in _distinct(Random(_EVALUATION_SEED), [skill] * per_skill, "dev")
    ]


def evaluation_prompts(per_skill: int = 40, *, hinted: bool = False) -> list[Prompt]:
    """`evaluation_problems` as prompts; `hinted` ones ask for steps."""
    return [as_prompt(problem, hinted=hinted) for problem in evaluation_problems(per_skill)]


def worked_examples() -> list[Problem]:
    """One training problem of each skill, always the same, to stand before a base model's question."""
    return _distinct(Random(_EVALUATION_SEED), list(SKILLS), "all")


def _distinct(rng: Random, order: Sequence[str], part: str) -> list[Problem]:
    """One problem per entry of `order`, no question twice. A small prompt space ends in an error, not a short set."""
    unknown = [name for name in order if name not in SKILLS]
    if unknown:
        raise DataError(f"micro: unknown skill {unknown[0]!r}; there are {', '.join(SKILLS)}")
    problems: dict[str, Problem] = {}
    for draws in range(_DRAWS_PER_PROMPT * len(order)):
        if len(problems) == len(order):
            break
        skill, level = SKILLS[order[len(problems)]], LEVELS[draws % len(LEVELS)]
        problem = skill.draw(rng, level, held_out=part == "held out")
        if problem.part in PARTS[part]:
            problems.setdefault(problem.question, problem)
    if len(problems) < len(order):
        side = {"held out": "held-out", "all": "training"}.get(part, part)
        raise DataError(f"micro: {len(order)} distinct {side} questions asked for, only {len(problems)} found")
    return list(problems.values())
