"""Prompts of the ladder: training prompts by step seed, one fixed evaluation set, and worked examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from random import Random

from harness.errors import DataError, PluginError
from harness.experience.answers import Prompt
from harness.tasks.ladder.levels import LEVELS, Problem

NAME = "ladder"
_EVALUATION_SEED, _WORKED_SEED = 20_261, 20_262
_DRAWS_PER_PROBLEM = 400


def is_ladder(task: str) -> bool:
    """Whether a task's name means the ladder or some of its levels."""
    return task.partition(".")[0] == NAME


def levels_of(task: str) -> tuple[str, ...]:
    """``ladder`` is all levels, ``ladder.add2+chain3`` these two. Raises PluginError for an unknown or repeated one."""
    _, dot, chosen = task.partition(".")
    if not dot:
        return tuple(LEVELS)
    names = tuple(chosen.split("+"))
    unknown = [name for name in names if name not in LEVELS]
    if unknown or len(set(names)) < len(names):
        fault = f"unknown level {unknown[0]!r}" if unknown else "a level stands twice"
        raise PluginError(f"task {task!r}: {fault}; there are {', '.join(LEVELS)} (e.g. ladder.add2+chain3)")
    return names


def as_prompt(problem: Problem, *, hinted: bool = False) -> Prompt:
    """The prompt of a problem; `hinted` asks for steps (to measure accuracy given chain of thought; never in RL)."""
    return Prompt(
        id=f"{problem.skill}{'-hinted' if hinted else ''}:{problem.content}",
        text=problem.hinted_prompt if hinted else problem.prompt,
        gold=problem.answer,
        labels={"skill": problem.skill, "group": problem.group},
    )


def training_prompts(step_seed: int, count: int, levels: Sequence[str] = tuple(LEVELS)) -> list[Prompt]:
    """`count` distinct training prompts, the same for the same `step_seed`; levels as even as `count` allows.

    Raises DataError where the levels do not hold so many.
    """
    if count < 1:
        raise DataError(f"{NAME}: {count} training prompts a step asked for; at least 1 is needed")
    rng = Random(step_seed)
    order: list[str] = []
    while len(order) < count:
        order += rng.sample(levels, len(levels))
    found: dict[tuple[str, str], Problem] = {}
    for name in order[:count]:
        problem = next(_unseen(name, rng, found, held_out=False), None)
        if problem is None:
            raise DataError(f"{NAME}: {count} distinct prompts a step asked for; level {name} does not hold its share")
        found[name, problem.content] = problem
    return [as_prompt(problem) for problem in found.values()]


@lru_cache(maxsize=64)
def evaluation_problems(levels: tuple[str, ...] = tuple(LEVELS), per_level: int = 40) -> tuple[Problem, ...]:
    """The first `per_level` held-out problems of each level, a fixed set; all of them where a level has fewer."""
    every: dict[tuple[str, str], Problem] = {}
    for name in levels:
        rng = Random(_EVALUATION_SEED)
        for _ in range(per_level):
            for problem in _unseen(name, rng, every, held_out=True):
                every[name, problem.content] = problem
                break
    return tuple(every.values())


def evaluation_prompts(
    levels: tuple[str, ...] = tuple(LEVELS), per_level: int = 40, *, hinted: bool = False
) -> list[Prompt]:
    """`evaluation_problems` as prompts; `hinted` ones ask for steps."""
    return [as_prompt(problem, hinted=hinted) for problem in evaluation_problems(levels, per_level)]


def worked(level: str, count: int) -> str:
    """`count` solved problems of the level's training side, to stand before a prompt: the same ones every time."""
    rng, found = Random(_WORKED_SEED), dict[tuple[str, str], Problem]()
    while len(found) < count:
        problem = next(_unseen(level, rng, found, held_out=False), None)
        if problem is None:
            raise DataError(f"{NAME}: {count} worked examples asked for; level {level} holds {len(found)}")
        found[level, problem.content] = problem
    return "".join(f"{problem.prompt}{problem.chain_of_thought}\n\n" for problem in found.values())


def _unseen(name: str, rng: Random, seen: dict[tuple[str, str], Problem], *, held_out: bool) -> Iterator[Problem]:
    """Problems of a level that are not in `seen`; ends where many draws in a row find none."""
    for _ in range(_DRAWS_PER_PROBLEM):
        problem = LEVELS[name].draw(rng, held_out=held_out)
        if (name, problem.content) not in seen:
            yield problem
