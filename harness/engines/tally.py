"""A step's updates counted, from the surrogate's statistics to `TermReport` and `Drift`. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

import numpy as np
from jaxtyping import Bool, Float64

from harness.engines.protocol import Drift, TermReport
from harness.learning.minibatches import Packed
from harness.learning.surrogate import AnswerStatistics
from harness.learning.terms import Term, TermAnswer


class DriftMeter:
    """The drift of own answers in a step's first mini-batch."""

    def __init__(self) -> None:
        self._tokens: list[Float64[np.ndarray, "N"]] = []
        self._outside: list[Bool[np.ndarray, "A"]] = []

    def add(self, packed: Packed, statistics: AnswerStatistics) -> None:
        drift, counts = statistics.drift.astype(np.float64), packed.counts
        known = ~np.isnan(drift)
        if not known.any():
            return
        answer_of = np.repeat(np.arange(counts.size), counts)
        mean = np.bincount(answer_of, drift, counts.size) / counts
        log_ratio = np.where(packed.pooled[answer_of], mean[answer_of], drift) * packed.log_scale[answer_of]
        ratio = np.exp(log_ratio)
        out = (ratio < packed.low[answer_of]) | (ratio > packed.high[answer_of])
        measured = np.bincount(answer_of, known, counts.size) > 0
        self._tokens.append(drift[known])
        self._outside.append((np.bincount(answer_of, out, counts.size) > 0)[measured])

    def drift(self) -> Drift:
        if not self._tokens:
            return Drift()
        tokens = np.abs(np.concatenate(self._tokens))
        outside = np.concatenate(self._outside)
        return Drift(float(tokens.mean()), float(np.quantile(tokens, 0.99)), float(outside.mean()))


class Tally:
    """What happened to the answers of each term over all updates of a step. Answers without a forward pass count in `answers`
    and `tokens` only."""

    def __init__(self, terms: Sequence[Term], updates: int) -> None:
        self._terms, self._updates = terms, updates
        self._sums = np.zeros((len(terms), 5))
        self._moved: dict[tuple[int, int], int] = {}
        """Tokens with a gradient by (term, id of the answer's tokens), which outlive the settling of its denominator."""
        self._drift = DriftMeter()

    def add(self, answers: Sequence[tuple[int, TermAnswer]], packed: Packed, statistics: AnswerStatistics) -> None:
        """Take in the answers of one pack, each with its term's index."""
        s = statistics
        rows = np.stack([s.clipped_tokens, s.loss, s.ratio_count, s.ratio_sum, s.ratio_square], axis=1)
        np.add.at(self._sums, [term for term, _ in answers], rows)
        for (term, answer), tokens in zip(answers, s.active_tokens.tolist(), strict=True):
            self._moved[term, id(answer.tokens)] = tokens
        self._drift.add(packed, statistics)

    @property
    def loss(self) -> float:
        return float(self._sums[:, 1].sum()) / self._updates

    @property
    def drift(self) -> Drift:
        return self._drift.drift()

    def reports(self, own_norm: float = nan, peer_norm: float = nan) -> tuple[TermReport, ...]:
        """One per term; their losses add up to `loss`. The norm of all own (peer) terms is also that of the only term of its
        source."""
        norms = {"own": own_norm, "peer": peer_norm}
        sources = [term.source for term in self._terms]
        reports = []
        for index, (term, sums) in enumerate(zip(self._terms, self._sums, strict=True)):
            clipped, loss, count, ratio, square = sums.tolist()
            reports.append(
                TermReport(
                    name=term.name,
                    source=term.source,
                    moved=tuple(self._moved.get((index, id(answer.tokens)), 0) for answer in term.answers),
                    tokens=sum(answer.counted for answer in term.answers),
                    clipped_tokens=int(clipped),
                    loss=loss / self._updates,
                    ratios=int(count),
                    ratio_mean=ratio / count if count else nan,
                    ratio_second=square / count if count else nan,
                    gradient_norm=norms[term.source] if sources.count(term.source) == 1 else nan,
                )
            )
        return tuple(reports)
