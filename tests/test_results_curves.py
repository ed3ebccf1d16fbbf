"""Gains at the steps between, on the results page."""

from __future__ import annotations

import numpy as np
import pytest
from results_curves import average_accuracies, estimate_gains_by_step

from harness.store.learning_curves import HELD_OUT, MEAN, LearningCurves
from harness.store.statistic import to_bounds

# Accuracies after 0, 10 and 20 updates; the regime has a seed that the baseline lacks
BASELINE = {1: {0.0: 0.40, 10.0: 0.50, 20.0: 0.80}, 2: {0.0: 0.42, 10.0: 0.54, 20.0: 0.78}}
SHARING = {
    1: {0.0: 0.40, 10.0: 0.60, 20.0: 0.80},
    2: {0.0: 0.42, 10.0: 0.66, 20.0: 0.79},
    3: {0.0: 0.0, 10.0: 0.0, 20.0: 0.0},
}


def test_a_gain_at_a_step_is_paired_over_the_seeds_that_both_have() -> None:
    curves = LearningCurves(HELD_OUT, {("pair", MEAN, "alone"): BASELINE, ("pair", MEAN, "sharing"): SHARING})
    early, late = estimate_gains_by_step(curves, "pair", "sharing", "alone", [10, 20])
    assert (float(early.mean), float(late.mean)) == pytest.approx((0.11, 0.005))
    # Differences .10 and .12: their mean's standard error is .01, and t of one degree of freedom is 12.706 at 97.5 %
    assert to_bounds(early) == pytest.approx((0.11 - 0.12706, 0.11 + 0.12706), abs=1e-4)


def test_a_step_that_is_no_point_of_the_curves_is_refused() -> None:
    curves = LearningCurves(HELD_OUT, {("pair", MEAN, "alone"): BASELINE, ("pair", MEAN, "sharing"): SHARING})
    with pytest.raises(KeyError):
        estimate_gains_by_step(curves, "pair", "sharing", "alone", [15])


def test_the_baselines_accuracies_are_means_over_all_its_seeds() -> None:
    assert np.allclose(average_accuracies(BASELINE, [0, 20]), [0.41, 0.79])
