"""Habits that a warm-up gives a policy: hinted, it reasons in every skill; asked plainly, as often as the mixture says.
Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, TypeVar

from harness.tasks import ladder
from harness.tasks.micro import GROUPS, LEVELS, SKILLS, MicroProblem, draw_fact

SHIPPED = Path(__file__).with_name("bases")  # the quickstart's, by their keys
# A pretrained model's: optimiser steps, and examples of each.
START_STEPS, START_EXAMPLES = 20, 16
# `mul` and `muladd` twice: they are the last to be learnt.
_DRAWN = [skill for skill in SKILLS.values() for _ in range(2 if skill.name in ("mul", "muladd") else 1)]
_SLIPS = (-10, -1, 1, 10)  # what a wrong last step is off by
AnyProblem = TypeVar("AnyProblem", MicroProblem, ladder.LadderProblem)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Shares. drill: of all examples, one-step facts. hinted: of the others, those asked for by steps.
    strong_cot, weak_cot: of plain examples of the policy's strong and weak group, those answered by steps. short: of these in
    `hard` skills, those that stop a step short. strong_slip, weak_slip: in the others, those whose last step goes wrong."""

    weak_cot: float
    strong_cot: float = 0.7
    hinted: float = 0.6
    drill: float = 0.2
    strong_slip: float = 0.0
    weak_slip: float = 0.0
    short: float = 0.0
    hard: tuple[str, ...] = ()


def mix_between(first: Mixture, second: Mixture, share: float) -> Mixture:
    """Mix two mixtures: go `share` of the way to the second, whose hard skills it has."""
    numbers = {
        name: getattr(first, name) + share * (getattr(second, name) - getattr(first, name))
        for name in set(Mixture.__slots__) - {"hard"}
    }
    return replace(second, **{name: round(number, 6) for name, number in numbers.items()})


# The positive control: independent RL is caught in the weak group's direct answers.
_TRAP = Mixture(weak_cot=0.0)
# Both reason everywhere, more carelessly in their weak group
_MATCHED = Mixture(
    weak_cot=1.0, strong_cot=1.0, hinted=0.4, strong_slip=0.05, weak_slip=0.5, short=0.94, hard=("word", "muladd")
)

PRESETS: Mapping[str, Mixture] = MappingProxyType(
    {
        # RL finds the weak group's few chains of thought alone; sharing can only be faster.
        "elicit": Mixture(weak_cot=0.03),
        "trap": _TRAP,
        # A pretrained model lacks the form only: short steps and a box, both groups alike.
        "format": Mixture(weak_cot=1.0, strong_cot=1.0, hinted=0.25, drill=0.0),
        "matched": _MATCHED,
        # The dial between the two (docs/micro.md).
        **{f"between-{n}": mix_between(_TRAP, _MATCHED, n / 100) for n in (25, 50, 75)},
    }
)


def mixture_of(preset: str, weak_cot: float | None) -> Mixture:
    """Return the preset's mixture, with another share of chains of thought in the weak group where one is stated."""
    mixture = PRESETS[preset]
    return mixture if weak_cot is None else replace(mixture, weak_cot=weak_cot)


def shares_by_steps(start: Mapping[str, Any]) -> dict[str, float] | None:
    """Return by skill group the share of plain examples that a start (as in a suite) answers by steps; None for a preset that
    this version does not know."""
    preset = start.get("preset", "trap")
    if preset not in PRESETS:
        return None
    mixture = mixture_of(preset, start.get("weak_cot"))
    strong = start.get("strong", "add")
    return {group: mixture.strong_cot if group == strong else mixture.weak_cot for group in GROUPS}


@dataclass(frozen=True, slots=True)
class WarmupExample:
    """The loss is taken on the response and the EOS after it."""

    prompt: str
    response: str


def draw_examples(mixture: Mixture, strong: str, rng: Random) -> Iterator[WarmupExample]:
    while True:
        skill = rng.choice(_DRAWN)
        drill = rng.random() < mixture.drill
        problem = draw_fact(rng, skill) if drill else skill.draw(rng, rng.choice(LEVELS), held_out=False)
        yield _make_example(problem, mixture, drill, problem.group == strong, rng)


def draw_ladder_examples(mixture: Mixture, strong: str, levels: Sequence[str], rng: Random) -> Iterator[WarmupExample]:
    """Draw worked examples of the ladder. A skill outside both groups is treated like the strong group's."""
    while True:
        level = ladder.LEVELS[rng.choice(levels)]
        drill = rng.random() < mixture.drill
        problem = level.draw(rng, held_out=False)
        yield _make_example(problem, mixture, drill, problem.group == strong or problem.group not in GROUPS, rng)


def _make_example(problem: AnyProblem, mixture: Mixture, drill: bool, strong_group: bool, rng: Random) -> WarmupExample:
    """Make a worked example of a problem: drilled, with a chain of thought, or with the answer alone, as the mixture says."""
    if drill or rng.random() < mixture.hinted:
        return WarmupExample(problem.hinted_prompt, problem.chain_of_thought)
    if rng.random() >= (mixture.strong_cot if strong_group else mixture.weak_cot):
        return WarmupExample(problem.prompt, problem.direct)
    slip = mixture.strong_slip if strong_group else mixture.weak_slip
    if problem.skill in mixture.hard:
        problem = _stopped_short(problem) if rng.random() < mixture.short else problem
    elif slip and rng.random() < slip:
        problem = _with_slip(problem, rng)
    return WarmupExample(problem.prompt, problem.chain_of_thought)


def _stopped_short(problem: AnyProblem) -> AnyProblem:
    steps = problem.steps[:-1]
    return _with_answer(problem, steps, int(steps[-1].partition("=")[2]))


def _with_slip(problem: AnyProblem, rng: Random) -> AnyProblem:
    """Give a solution a wrong last step and the answer that follows."""
    last = problem.steps[-1]
    right = str(problem.answer)
    if not (right.isdigit() and last.endswith(right)):
        return problem
    wrong = rng.choice([int(right) + slip for slip in _SLIPS if int(right) + slip >= 1])
    return _with_answer(problem, (*problem.steps[:-1], f"{last.removesuffix(right)}{wrong}"), wrong)


def _with_answer(problem: AnyProblem, steps: tuple[str, ...], answer: int) -> AnyProblem:
    """Return the problem with these steps and this answer."""
    return replace(problem, steps=steps, answer=type(problem.answer)(answer))
