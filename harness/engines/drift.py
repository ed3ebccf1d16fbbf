"""How far the sampler's log-probabilities are from the trainer's, from the surrogate's statistics. Needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float64

from harness.engines.protocol import Drift
from harness.learning.minibatches import Packed

if TYPE_CHECKING:
    from harness.learning.surrogate import AnswerStatistics


class DriftMeter:
    """Collects the drift of own answers in a step's first mini-batch, of all that had a forward pass there."""

    def __init__(self) -> None:
        self._tokens: list[Float64[np.ndarray, "N"]] = []
        self._outside: list[Bool[np.ndarray, "A"]] = []

    def add(self, packed: Packed, statistics: AnswerStatistics) -> None:
        """Take in one pack; each answer of the step at most once."""
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
        """NaN where nothing was measured."""
        if not self._tokens:
            return Drift()
        tokens = np.abs(np.concatenate(self._tokens))
        outside = np.concatenate(self._outside)
        return Drift(float(tokens.mean()), float(np.quantile(tokens, 0.99)), float(outside.mean()))
