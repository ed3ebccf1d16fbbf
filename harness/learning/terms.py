"""Terms: what a regime asks an engine to learn. Plain arrays, no torch, serialisable.

A step's loss is minus the sum, over the terms of a mini-batch, of  weight x objective, divided by a normaliser that all
terms with the same aggregation share. `learning.surrogate` is the one place that computes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float32, Int32

__all__ = ["OLD", "Aggregation", "Denominator", "Form", "Objective", "OldLogprobs", "Ratio", "Term", "TermAnswer"]

Ratio = Literal["token", "sequence", "cross"]
"""Of what to what: `Objective.ratio`."""
Form = Literal["ppo", "hard", "truncated", "nll", "kl"]
"""How ratio and advantage meet: `Objective.form`."""
Aggregation = Literal["token", "answer", "prompt", "constant"]
"""What the loss is divided by: `Objective.aggregation`."""
OldLogprobs = Literal["sampler", "trainer"]
"""Whose log-probabilities OLD stands for. Sampler and trainer are one policy, but may be two programs in half precision, whose
log-probabilities differ by more than GSPO's window is wide. The published algorithms take the ratio between two states of the
trained policy (code: verl and OpenRLHF score own answers again with the trainer before the first update)."""


class Denominator(Enum):
    """A denominator that is filled in when the step is learnt (`learning.minibatches.settle`)."""

    OLD = "old"
    """The learner's own old log-probabilities, of its sampler or of its trainer as the suite's `old_logprobs` says."""


OLD = Denominator.OLD
"""Short for `Denominator.OLD`."""


@dataclass(frozen=True, slots=True)
class Objective:
    """How log-probabilities become a number per token or per answer (docs/experience.md has each value in a table).

    Attributes
    ----------
    ratio
        `token`: exp(lp - denominator) per token; `sequence`: exp(mean lp - mean denominator) per answer (GSPO, arXiv
        2507.18071); `cross`: exp(mean lp - source mean) per answer, each side normalised by its own tokens (HACPO, arXiv
        2603.02604).
    form
        `ppo`: min(r A, clip(r) A); `hard`: c stopgrad(c)^exponent A with c = clamp(r, low, high); `truncated`: min(r, high) A
        whose gradient beyond `high` is that of high A log r (the truncated weight stays, as a constant); `nll`: the
        log-likelihood per token, without ratio or advantage; `kl`: minus the k3 estimate of KL(policy || denominator) per
        token.
    low, high
        Bounds of r (not of r - 1).
    low_step
        Added to `low` at each further update of the step, up to 1.
    exponent
        Of `hard`.
    log_bound
        |log r| is clamped to it before exp.
    aggregation
        The normaliser. `token`: sum over tokens / tokens of the mini-batch's answers; `answer`: sum of the answers' means over
        their tokens / number of answers; `prompt`: the same / number of the mini-batch's prompts; `constant`: sum over tokens
        / (answers x the maximal answer length) (Dr. GRPO, arXiv 2503.20783).
    """

    ratio: Ratio = "token"
    form: Form = "ppo"
    low: float = 0.8
    high: float = 1.28
    low_step: float = 0.0
    exponent: float = 0.0
    log_bound: float = 20.0
    aggregation: Aggregation = "token"

    def bounds(self, update: int) -> tuple[float, float]:
        """Clip bounds (low, high) at the `update`-th optimiser update of the step (0, 1, ...)."""
        low = self.low if not self.low_step else min(1.0, self.low + update * self.low_step)
        return low, self.high


@dataclass(frozen=True, slots=True, eq=False)
class TermAnswer:
    """One answer of a term, in the learner's tokens.

    Attributes
    ----------
    prompt_id
        Of a prompt of the step.
    tokens
        (T,) ids.
    advantage
        A; idle in `nll` and `kl`.
    denominator
        (T,) log-probabilities (nats) the ratio is taken to; a float for `cross` ratios (the source's mean); None for `nll`, or for
        the current policy without gradient (ratio exactly 1: the plain score function); OLD for an own answer.
    weight
        Factor on the answer's objective, not negative.
    mask
        (T,) which tokens take part; None means all.
    scale
        Factor on the log-ratio (HACPO's normalisation by bytes: tokens / bytes).
    origin
        (author, index) of a peer's answer, for the exchange ledger.
    sampled
        (T,) log-probabilities (nats) that an own answer was sampled with; needed where the denominator is OLD.
    """

    prompt_id: str
    tokens: Int32[np.ndarray, "T"]
    advantage: float
    denominator: Float32[np.ndarray, "T"] | float | Denominator | None = None
    weight: float = 1.0
    mask: Bool[np.ndarray, "T"] | None = None
    scale: float = 1.0
    origin: tuple[str, int] | None = None
    sampled: Float32[np.ndarray, "T"] | None = None

    @property
    def counted(self) -> int:
        """Tokens that take part."""
        return int(self.tokens.size if self.mask is None else self.mask.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """Answers that share one objective.

    Attributes
    ----------
    name
        In tables and messages.
    source
        `own` or `peer`, for bookkeeping (share of peer data used, gradient norms), never for the mathematics.
    objective
        Of all answers.
    answers
        May be empty.
    weight
        Factor on the term, not negative.
    order
        Terms of lower order are learnt in earlier mini-batches.
    """

    name: str
    source: Literal["own", "peer"]
    objective: Objective
    answers: tuple[TermAnswer, ...]
    weight: float = 1.0
    order: int = 0
