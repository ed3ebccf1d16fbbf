"""Intervals, paired comparisons, verdicts, tie groups and power; no torch.

The last axis runs over seeds (or questions, as named), NaN means missing, accuracies are in [0, 1].
"""

from harness.statistics.comparison import (
    MARGIN,
    Comparison,
    Tests,
    compare,
    family,
    holm,
    minimum_detectable,
    paired,
    seeds_to_detect,
    verdict,
)
from harness.statistics.intervals import (
    Estimate,
    area_under_curve,
    improvement_interval,
    iqm_interval,
    mean_interval,
    sampling_variance,
)

__all__ = [
    "MARGIN",
    "Comparison",
    "Estimate",
    "Tests",
    "area_under_curve",
    "compare",
    "family",
    "holm",
    "improvement_interval",
    "iqm_interval",
    "mean_interval",
    "minimum_detectable",
    "paired",
    "sampling_variance",
    "seeds_to_detect",
    "verdict",
]
