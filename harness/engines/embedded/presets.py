"""Presets of stage 0: which habits a micro base checkpoint is given. Data only.

A base policy can execute chain of thought in every skill (hinted examples teach that) but, asked plainly, chooses it only
as often as the mixture says. That gap between competence and habit is what RL can close, alone or with a peer's help.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from harness.errors import UsageError
from harness.tasks.micro import SKILLS

START_STEPS, START_EXAMPLES = 20, 16
"""Of a pretrained model's supervised start where a suite does not say: optimiser steps, and examples of each."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Shares, each in [0, 1].

    drill: of all examples, one-step facts (asked for by steps).
    hinted: of the skill examples, those whose prompt asks for steps: always chain of thought, all skills alike.
    strong_cot, weak_cot: of the plain examples of the policy's strong and weak group, those answered by chain of
    thought; the others are answered directly.
    hard, short: skills in which, of the plain chains of thought, this share stops a step short.
    strong_slip, weak_slip: of the plain chains of thought of the other skills, by group, those whose last step goes wrong (by
    one or by ten, carried into the answer). Prompts that ask for steps meet neither mistake: both are habits, no lack of
    competence.
    """

    weak_cot: float
    strong_cot: float = 0.7
    hinted: float = 0.6
    drill: float = 0.2
    strong_slip: float = 0.0
    weak_slip: float = 0.0
    short: float = 0.0
    hard: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in set(self.__slots__) - {"hard"}:
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UsageError(f"mixture: {name} is {getattr(self, name)}, not a share between 0 and 1")
        if unknown := set(self.hard) - set(SKILLS):
            raise UsageError(f"mixture: unknown skill {min(unknown)!r}; there are {', '.join(SKILLS)}")


def between(first: Mixture, second: Mixture, share: float) -> Mixture:
    """Each number so far on the way from the first to the second, share in [0, 1]; the hard skills are the second's."""
    numbers = {
        name: getattr(first, name) + share * (getattr(second, name) - getattr(first, name))
        for name in set(Mixture.__slots__) - {"hard"}
    }
    return replace(second, **{name: round(number, 6) for name, number in numbers.items()})


_ENDS: Mapping[str, Mixture] = MappingProxyType(
    {
        # A little plain chain of thought in the weak group: RL finds it alone, sharing can only be faster.
        "elicit": Mixture(weak_cot=0.03),
        # None at all: independent RL is caught in direct answers. The positive control for regime comparisons.
        "trap": Mixture(weak_cot=0.0),
        # What a pretrained model lacks is the form: everything is answered by short steps and a box, all right, both groups alike.
        "format": Mixture(weak_cot=1.0, strong_cot=1.0, hinted=0.25, drill=0.0),
        # Both reason everywhere, each more careless in its weak group, and both hardly ever finish two hard skills.
        "matched": Mixture(
            weak_cot=1.0,
            strong_cot=1.0,
            hinted=0.4,
            strong_slip=0.05,
            weak_slip=0.5,
            short=0.94,
            hard=("word", "muladd"),
        ),
    }
)

PRESETS: Mapping[str, Mixture] = MappingProxyType(
    {
        **_ENDS,
        # The dial of suites/disagreement.yaml: a quarter, half and three quarters of the way from one to the other.
        **{f"between-{n}": between(_ENDS["trap"], _ENDS["matched"], n / 100) for n in (25, 50, 75)},
    }
)
