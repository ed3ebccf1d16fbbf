"""Examples for stage 0, drawn from the training side of the split as a `Mixture` says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar

from harness.engines.embedded.presets import Mixture
from harness.errors import UsageError
from harness.tasks import ladder
from harness.tasks.micro import GROUPS, LEVELS, SKILLS, Problem, draw_fact

_DRAWN = [skill for skill in SKILLS.values() for _ in range(2 if skill.name in ("mul", "muladd") else 1)]
"""`mul` and `muladd` twice: their sums are the largest and the last to be learnt."""
_SLIPS = (-10, -1, 1, 10)
"""What a wrong last step is off by."""


@dataclass(frozen=True, slots=True)
class Example:
    """One supervised pair; the loss is taken on the response and the EOS after it."""

    prompt: str
    response: str


def draw_examples(mixture: Mixture, strong: str, rng: Random) -> Iterator[Example]:
    """Endless examples from the training side of the split, for a policy whose strong group is `strong`."""
    if strong not in GROUPS:
        raise UsageError(f"unknown skill group {strong!r}; there are {', '.join(GROUPS)}")
    while True:
        skill = rng.choice(_DRAWN)
        if rng.random() < mixture.drill:
            fact = draw_fact(rng, skill)
            yield Example(fact.hinted_prompt, fact.chain_of_thought)
            continue
        problem = skill.draw(rng, rng.choice(LEVELS), held_out=False)
        yield _example(problem, mixture, problem.group == strong, rng)


def draw_ladder_examples(mixture: Mixture, strong: str, levels: Sequence[str], rng: Random) -> Iterator[Example]:
    """The same from the ladder's levels, of which most are a single step: a drill is one of them, asked for by steps. What is in
    neither group that a policy may be strong in goes as the strong one does."""
    while True:
        level = ladder.LEVELS[rng.choice(levels)]
        drill = rng.random() < mixture.drill
        problem = level.draw(rng, held_out=False)
        if drill:
            yield Example(problem.hinted_prompt, problem.chain_of_thought)
        else:
            yield _example(problem, mixture, problem.group == strong or problem.group not in GROUPS, rng)


AnyProblem = TypeVar("AnyProblem", Problem, ladder.Problem)


def _example(problem: AnyProblem, mixture: Mixture, strong_group: bool, rng: Random) -> Example:
    """A problem as the mixture has it answered."""
    if rng.random() < mixture.hinted:
        return Example(problem.hinted_prompt, problem.chain_of_thought)
    if rng.random() >= (mixture.strong_cot if strong_group else mixture.weak_cot):
        return Example(problem.prompt, problem.direct)
    slip = mixture.strong_slip if strong_group else mixture.weak_slip
    if problem.skill in mixture.hard:
        problem = _stopped_short(problem) if rng.random() < mixture.short else problem
    elif slip and rng.random() < slip:
        problem = _slipped(problem, rng)
    return Example(problem.prompt, problem.chain_of_thought)


def _stopped_short(problem: AnyProblem) -> AnyProblem:
    """The same question without its last step; the result of the one before is taken for the answer."""
    steps = problem.steps[:-1]
    return _answered(problem, steps, int(steps[-1].partition("=")[2]))


def _slipped(problem: AnyProblem, rng: Random) -> AnyProblem:
    """The same question with a wrong last step and the answer that follows from it, at least 1. What ends in no number stays."""
    last, right = problem.steps[-1], str(problem.answer)
    if not (right.isdigit() and last.endswith(right)):
        return problem
    wrong = rng.choice([int(right) + slip for slip in _SLIPS if int(right) + slip >= 1])
    return _answered(problem, (*problem.steps[:-1], f"{last.removesuffix(right)}{wrong}"), wrong)


def _answered(problem: AnyProblem, steps: tuple[str, ...], answer: int) -> AnyProblem:
    return replace(problem, steps=steps, answer=type(problem.answer)(answer))
