"""Per-term bookkeeping of a step's updates, from the surrogate's statistics to `TermReport`. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING

import numpy as np

from harness.engines.drift import DriftMeter
from harness.engines.protocol import Drift, TermReport
from harness.learning.minibatches import Packed
from harness.learning.terms import Term, TermAnswer

if TYPE_CHECKING:
    from harness.learning.surrogate import AnswerStatistics


class Tally:
    """Adds up what happened to the answers of each term over all updates of a step.

    Answers that need no forward pass count in `answers` and `tokens` only; the other numbers are over those that had one.
    """

    def __init__(self, terms: Sequence[Term], updates: int) -> None:
        self._terms, self._updates = terms, updates
        self._sums = np.zeros((len(terms), 5))
        self._moved: dict[tuple[int, int], int] = {}
        """Tokens with a gradient by (term, id of the answer's tokens), which outlive the settling of its denominator."""
        self._drift = DriftMeter()

    def add(self, answers: Sequence[tuple[int, TermAnswer]], packed: Packed, statistics: AnswerStatistics) -> None:
        """Take in the answers of one pack, each with its term's index; each answer of the step at most once."""
        s = statistics
        rows = np.stack([s.clipped_tokens, s.loss, s.ratio_count, s.ratio_sum, s.ratio_square], axis=1)
        np.add.at(self._sums, [term for term, _ in answers], rows)
        for (term, answer), tokens in zip(answers, s.active_tokens.tolist(), strict=True):
            self._moved[term, id(answer.tokens)] = tokens
        self._drift.add(packed, statistics)

    @property
    def loss(self) -> float:
        """Mean over the updates of the mini-batches' losses."""
        return float(self._sums[:, 1].sum()) / self._updates

    @property
    def drift(self) -> Drift:
        """Of the sampler from the trainer."""
        return self._drift.drift()

    def reports(self, own_norm: float = nan, peer_norm: float = nan) -> tuple[TermReport, ...]:
        """One report per term; their losses add up to `loss`. The gradient norm of all own (peer) terms is also that of a
        term which is the only one of its source."""
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
