"""Intervals, paired comparisons, verdicts, tie groups and power. Vectorised numpy; deterministic by seed; no torch.

Everywhere: the last axis runs over seeds (or questions, as named), NaN means missing, accuracies are in [0, 1].
"""

from harness.statistics.accuracy import Accuracy, accuracy
from harness.statistics.bootstrap import (
    bootstrap_interval,
    improvement,
    iqm,
    iqm_interval,
    iqm_intervals,
    probabilities_of_improvement,
    probability_of_improvement,
)
from harness.statistics.compare import (
    QuestionComparison,
    holm,
    minimum_detectable,
    paired,
    paired_by_question,
    seeds_to_detect,
)
from harness.statistics.curves import area_under_curve, per_unit
from harness.statistics.intervals import Estimate, mean_interval
from harness.statistics.judgement import MARGIN, Judgement, Tests, family, judge, verdict
from harness.statistics.noise import sampling_variance

__all__ = [
    "MARGIN",
    "Accuracy",
    "Estimate",
    "Judgement",
    "QuestionComparison",
    "Tests",
    "accuracy",
    "area_under_curve",
    "bootstrap_interval",
    "family",
    "holm",
    "improvement",
    "iqm",
    "iqm_interval",
    "iqm_intervals",
    "judge",
    "mean_interval",
    "minimum_detectable",
    "paired",
    "paired_by_question",
    "per_unit",
    "probabilities_of_improvement",
    "probability_of_improvement",
    "sampling_variance",
    "seeds_to_detect",
    "verdict",
]
