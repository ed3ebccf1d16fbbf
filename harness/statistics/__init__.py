"""Intervals, paired comparisons, tie groups and power. Vectorised numpy; deterministic by seed; no torch.

Everywhere: the last axis runs over seeds (or questions, as named), NaN means missing, accuracies are in [0, 1].
"""

from harness.statistics.accuracy import Accuracy, accuracy
from harness.statistics.bootstrap import bootstrap_interval, iqm, iqm_interval, probability_of_improvement
from harness.statistics.compare import QuestionComparison, holm, minimum_detectable, paired, paired_by_question
from harness.statistics.curves import area_under_curve, per_unit
from harness.statistics.intervals import Estimate, mean_interval
from harness.statistics.ties import tie_groups

__all__ = [
    "Accuracy",
    "Estimate",
    "QuestionComparison",
    "accuracy",
    "area_under_curve",
    "bootstrap_interval",
    "holm",
    "iqm",
    "iqm_interval",
    "mean_interval",
    "minimum_detectable",
    "paired",
    "paired_by_question",
    "per_unit",
    "probability_of_improvement",
    "tie_groups",
]
