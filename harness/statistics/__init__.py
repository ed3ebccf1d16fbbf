"""Intervals, paired comparisons, verdicts, tie groups and power; no torch is imported.

The last axis runs over seeds (or questions, as named), NaN means missing, accuracies are in [0, 1].
"""

from harness.statistics.comparison import (
    MARGIN,
    Comparison,
    FamilyTests,
    compare_regimes,
    compute_family_tests,
    correct_by_holm,
    estimate_paired_difference,
    judge_gain,
    minimum_detectable,
    seeds_to_detect,
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
    "FamilyTests",
    "area_under_curve",
    "compare_regimes",
    "compute_family_tests",
    "correct_by_holm",
    "estimate_paired_difference",
    "improvement_interval",
    "iqm_interval",
    "judge_gain",
    "mean_interval",
    "minimum_detectable",
    "sampling_variance",
    "seeds_to_detect",
]
