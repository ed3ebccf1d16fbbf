"""What a micro base checkpoint is trained on: the mixture, its presets, and the examples drawn from it.

A base policy can execute chain of thought in every skill (hinted examples teach that) but, asked plainly, chooses it only
as often as the mixture says. That gap between competence and habit is what RL can close, alone or with a peer's help.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from harness.errors import UsageError
from harness.tasks.micro import GROUPS, LEVELS, SKILLS, draw_fact


@dataclass(frozen=True, slots=True)
class Mixture:
    """Shares, each in [0, 1].

    drill: of all examples, one-step facts. hinted: of the skill examples, those whose prompt asks for steps (always chain of
    thought, all skills alike). strong_cot, weak_cot: of the plain examples of the policy's strong and weak group, those
    answered by chain of thought; the others are answered directly.
    """

    weak_cot: float
    strong_cot: float = 0.7
    hinted: float = 0.4
    drill: float = 0.2

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UsageError(f"mixture: {name} is {getattr(self, name)}, not a share between 0 and 1")


PRESETS: Mapping[str, Mixture] = MappingProxyType(
    {
        # A little plain chain of thought in the weak group: RL finds it alone, sharing can only be faster.
        "elicit": Mixture(weak_cot=0.03),
        # None at all: independent RL is caught in direct answers. The positive control for regime comparisons.
        "trap": Mixture(weak_cot=0.0),
    }
)


@dataclass(frozen=True, slots=True)
class Example:
    """One supervised pair; the loss is taken on the response and the EOS after it."""

    prompt: str
    response: str


def draw_examples(mixture: Mixture, strong: str, rng: Random) -> Iterator[Example]:
    """Endless examples from the training side of the split, for a policy whose strong group is `strong`."""
    if strong not in GROUPS:
        raise UsageError(f"unknown skill group {strong!r}; there are {', '.join(GROUPS)}")
    skills = list(SKILLS.values())
    while True:
        if rng.random() < mixture.drill:
            fact = draw_fact(rng)
            yield Example(fact.prompt, fact.chain_of_thought)
            continue
        problem = rng.choice(skills).draw(rng, rng.choice(LEVELS), held_out=False)
        if rng.random() < mixture.hinted:
            yield Example(problem.hinted_prompt, problem.chain_of_thought)
            continue
        share = mixture.strong_cot if problem.group == strong else mixture.weak_cot
        yield Example(problem.prompt, problem.chain_of_thought if rng.random() < share else problem.direct)
