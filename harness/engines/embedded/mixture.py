"""Examples for stage 0, drawn from the training side of the split as a `Mixture` says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from harness.engines.embedded.presets import Mixture
from harness.errors import UsageError
from harness.tasks.micro import GROUPS, LEVELS, SKILLS, draw_fact

_DRAWN = [skill for skill in SKILLS.values() for _ in range(2 if skill.name in ("mul", "muladd") else 1)]
"""`mul` and `muladd` twice: their sums are the largest and the last to be learnt."""


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
        share = mixture.strong_cot if problem.group == strong else mixture.weak_cot
        yield Example(problem.prompt, problem.chain_of_thought if rng.random() < share else problem.direct)
