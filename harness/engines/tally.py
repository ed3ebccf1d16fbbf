"""Per-term bookkeeping of a step's updates, from the surrogate's statistics to `TermReport`. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING

import numpy as np

from harness.engines.protocol import TermReport
from harness.learning.packing import Packed
from harness.learning.terms import Term

if TYPE_CHECKING:
    from harness.learning.surrogate import AnswerStatistics


class Tally:
    """Adds up what happened to the answers of each term over all updates of a step.

    Answers that need no forward pass count in `answers` and `tokens` only; ratios are over those that had one.
    """

    def __init__(self, terms: Sequence[Term], updates: int) -> None:
        self._terms, self._updates = terms, updates
        self._sums = np.zeros((len(terms), 6))

    def add(self, packed: Packed, statistics: AnswerStatistics) -> None:
        """Take in one pack; each answer of the step at most once."""
        s = statistics
        rows = np.stack(
            [s.active_tokens > 0, s.active_tokens, s.loss, s.ratio_sum, s.ratio_square, s.ratio_count], axis=1
        )
        np.add.at(self._sums, packed.term, rows)

    @property
    def loss(self) -> float:
        """Mean over the updates of the mini-batches' losses."""
        return float(self._sums[:, 2].sum()) / self._updates

    def reports(self, own_norm: float = nan, peer_norm: float = nan) -> tuple[TermReport, ...]:
        """One report per term; their losses add up to `loss`. The gradient norm of all own (peer) terms is also that of a
        term which is the only one of its source."""
        norms = {"own": own_norm, "peer": peer_norm}
        sources = [term.source for term in self._terms]
        reports = []
        for term, sums in zip(self._terms, self._sums, strict=True):
            active, active_tokens, loss, ratio, square, count = sums.tolist()
            reports.append(
                TermReport(
                    name=term.name,
                    source=term.source,
                    answers=len(term.answers),
                    active=int(active),
                    tokens=sum(answer.counted for answer in term.answers),
                    active_tokens=int(active_tokens),
                    loss=loss / self._updates,
                    ratio_mean=ratio / count if count else nan,
                    ratio_second=square / count if count else nan,
                    gradient_norm=norms[term.source] if sources.count(term.source) == 1 else nan,
                )
            )
        return tuple(reports)
