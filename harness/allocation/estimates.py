"""How long things take: a prior, corrected by what is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Estimates:
    """Seconds by kind of cell (or of step).

    The estimate is the mean of `prior_weight` pseudo-observations of the prior and of all measurements, so the first real
    figure already counts for most and no later one is forgotten. A kind never measured is scaled by what the measured
    kinds turned out to be against their own priors: a machine twice as slow is so for all of them.
    """

    prior: Mapping[str, float] = field(default_factory=dict)
    prior_weight: float = 0.25
    _sums: dict[str, float] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    _measured: float = 0.0
    _expected: float = 0.0

    def observe(self, kind: str, seconds: float) -> None:
        """One measured duration; others than finite positive ones are refused with ValueError."""
        if not 0 < seconds < float("inf"):
            raise ValueError(f"{kind}: a duration is positive and finite, got {seconds}")
        self._sums[kind] = self._sums.get(kind, 0.0) + seconds
        self._counts[kind] = self._counts.get(kind, 0) + 1
        if self.prior.get(kind):
            self._measured += seconds
            self._expected += self.prior[kind]

    @property
    def speed(self) -> float:
        """Measured over prior seconds, over all kinds that have both; 1 before the first."""
        return self._measured / self._expected if self._expected else 1.0

    def seconds(self, kind: str, default: float = 1.0) -> float:
        """The present estimate; `default` is the prior of a kind that has none."""
        prior = self.prior.get(kind, default)
        count = self._counts.get(kind, 0)
        if not count:
            return prior * self.speed
        return (self.prior_weight * prior + self._sums[kind]) / (self.prior_weight + count)
