"""Examples for stage 0, drawn from the training side of the split as a `Mixture` says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from harness.engines.embedded.presets import Mixture
from harness.errors import UsageError
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
        if rng.random() < mixture.hinted:
            yield Example(problem.hinted_prompt, problem.chain_of_thought)
            continue
        strong_group = problem.group == strong
        if rng.random() >= (mixture.strong_cot if strong_group else mixture.weak_cot):
            yield Example(problem.prompt, problem.direct)
            continue
        slip = mixture.strong_slip if strong_group else mixture.weak_slip
        if problem.skill in mixture.hard:
            problem = _stopped_short(problem) if rng.random() < mixture.short else problem
        elif slip and rng.random() < slip:
            problem = _slipped(problem, rng)
        yield Example(problem.prompt, problem.chain_of_thought)


def _stopped_short(problem: Problem) -> Problem:
    """The same question without its last step; the result of the one before is taken for the answer."""
    steps = problem.steps[:-1]
    return replace(problem, steps=steps, answer=int(steps[-1].partition("=")[2]))


def _slipped(problem: Problem, rng: Random) -> Problem:
    """The same question with a wrong last step and the answer that follows from it, at least 1."""
    wrong = rng.choice([problem.answer + slip for slip in _SLIPS if problem.answer + slip >= 1])
    task, _, _ = problem.steps[-1].partition("=")
    return replace(problem, steps=(*problem.steps[:-1], f"{task}={wrong}"), answer=wrong)
