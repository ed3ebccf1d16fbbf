"""What a regime asks an engine to learn, in plain arrays, without torch. `learning.surrogate` alone computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import ceil, cos, isnan, pi
from typing import Literal, TypeVar, cast, get_args

import numpy as np
from jaxtyping import Bool, Float32, Int32

from harness.experience.answers import AnswerId

__all__ = ["OLD", "Denominator", "Objective", "Phase", "Schedule", "Term", "TermAnswer", "with_step_weights"]

Ratio = Literal["token", "sequence", "cross"]
Form = Literal["ppo", "hard", "truncated", "nll", "kl"]
Aggregation = Literal["token", "answer", "prompt", "constant"]
TokenWeight = Literal["one", "shaped", "slope", "unsure"]
# Whose log-probabilities OLD stands for. In half precision they may differ by more than GSPO's window.
OldLogprobs = Literal["sampler", "trainer"]


class Denominator(Enum):
    """Filled in when the step is learnt. OLD: the learner's old log-probabilities, of its sampler or trainer."""

    OLD = "old"


OLD = Denominator.OLD
"""Short for `Denominator.OLD`."""


@dataclass(frozen=True, slots=True)
class Objective:
    """How log-probabilities become a number (formulas: docs/experience.md). ratio: `sequence` is GSPO's (arXiv
    2507.18071), `cross` HACPO's (2603.02604). low, high: bounds of r. low_step: added to `low` at each further update.
    log_bound: of |log r|. aggregation: `constant` is Dr. GRPO's (2503.20783). token_weight: by the token's probability
    now, without gradient; LUFFY's (2504.14945) use `gamma`, CHORD's (2508.11408) is `unsure`."""

    ratio: Ratio = "token"
    form: Form = "ppo"
    low: float = 0.8
    high: float = 1.28
    low_step: float = 0.0
    exponent: float = 0.0
    log_bound: float = 20.0
    aggregation: Aggregation = "token"
    token_weight: TokenWeight = "one"
    gamma: float = 0.1

    def __post_init__(self) -> None:
        words = (
            (self.ratio, Ratio),
            (self.form, Form),
            (self.aggregation, Aggregation),
            (self.token_weight, TokenWeight),
        )
        for word, kind in words:
            if word not in get_args(kind):
                raise ValueError(f"objective: {word!r} is none of {', '.join(get_args(kind))}")
        numbers = self.low_step, self.exponent, self.log_bound, self.gamma
        if not self.low <= self.high or any(map(isnan, numbers)):
            raise ValueError("objective: a number is NaN, or low is above high")

    def bounds(self, update: int) -> tuple[float, float]:
        """Return (low, high) at the step's `update`-th optimiser update, from 0."""
        if not self.low_step:
            return self.low, self.high
        risen = self.low + update * self.low_step
        return min(1.0, risen), self.high


@dataclass(frozen=True, slots=True, eq=False)
class TermAnswer:
    """One answer, in the learner's tokens. advantage: of all its tokens, or of each (T,). denominator: (T,) nats; a float for
    `cross`; None for `nll` or a ratio of exactly 1; OLD for an own answer, which then needs `sampled`. weight: not negative.
    mask: tokens that take part. scale: of the log-ratio. origin: which of the step's answers it is. place: in its term, from
    `learning.minibatches`."""

    prompt_id: str
    tokens: Int32[np.ndarray, "T"]
    advantage: float | Float32[np.ndarray, "T"]
    denominator: Float32[np.ndarray, "T"] | float | Denominator | None = None
    weight: float = 1.0
    mask: Bool[np.ndarray, "T"] | None = None
    scale: float = 1.0
    origin: AnswerId | None = None
    sampled: Float32[np.ndarray, "T"] | None = None
    place: int = -1

    @property
    def counted(self) -> int:
        """Tokens that take part."""
        return int(self.tokens.size if self.mask is None else self.mask.sum())

    def read_behind(self, lead: Sequence[int]) -> TermAnswer:
        """Return the same answer with ids in front that the policy reads and does not learn. They have no part in any mean or
        ratio."""
        size = len(lead)
        lead_ids = np.array(lead, dtype=np.int32)  # (L,)
        taking_part = np.ones(self.tokens.size, dtype=bool) if self.mask is None else self.mask  # (T,)
        return replace(
            self,
            tokens=np.concatenate([lead_ids, self.tokens]),
            advantage=_behind_zeros(self.advantage, size),
            denominator=_behind_zeros(self.denominator, size),
            mask=_behind_zeros(taking_part, size),
            sampled=_behind_zeros(self.sampled, size),
        )


V = TypeVar("V")


def _behind_zeros(values: V, count: int) -> V:
    """Return an array of values by token, with so many zeros in front; what is no array as it is."""
    if not isinstance(values, np.ndarray):
        return values
    return cast(V, np.concatenate([np.zeros(count, values.dtype), values]))


@dataclass(frozen=True, slots=True)
class Schedule:
    """From `first` to `last` over a run, along half a cosine."""

    first: float
    last: float

    def at(self, step: int, steps: int) -> float:
        """Return its value at `step`, from 1."""
        way = (step - 1) / max(1, steps - 1)  # 0 at the first step, 1 at the last
        return self.last + (self.first - self.last) * (1 + cos(pi * way)) / 2


@dataclass(frozen=True, slots=True)
class Phase:
    """1 in a part of a run, 0 outside. begin, end: shares of its steps. Phases that adjoin share no step and leave none out; one
    that begins at 0 and does not end there has at least the first step."""

    begin: float
    end: float

    def __post_init__(self) -> None:
        if not 0 <= self.begin <= self.end <= 1:
            raise ValueError(f"phase: shares of the steps from 0 to 1, in order, not {self.begin} to {self.end}")

    def at(self, step: int, steps: int) -> float:
        """Return its value at `step`, from 1, of `steps`."""
        before, last = (ceil(share * steps - 1e-9) for share in (self.begin, self.end))  # 0.55 * 100 is above 55
        return float(before < step <= last)


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """Answers that share one objective. source: for bookkeeping only. order: lower ones are learnt first. schedule: multiplies
    the weight. prompts: the step's prompt ids in the order in which those of equal `order` are cut into mini-batches; empty:
    in the order in which they first appear in the terms."""

    name: str
    source: Literal["own", "peer"]
    objective: Objective
    answers: tuple[TermAnswer, ...]
    weight: float = 1.0
    order: int = 0
    schedule: Schedule | Phase | None = None
    prompts: tuple[str, ...] = ()


def with_step_weights(terms: Sequence[Term], step: int, steps: int) -> list[Term]:
    """Give terms this step's weights; a term whose schedule is at 0 has no answers."""

    weighted: list[Term] = []
    for term in terms:
        if term.schedule is not None:
            now = term.schedule.at(step, steps)
            answers = term.answers if now else ()
            term = replace(term, answers=answers, weight=term.weight * now, schedule=None)
        weighted.append(term)
    return weighted


# Earlier names, which packages of others may import
scheduled = with_step_weights
