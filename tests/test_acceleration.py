"""kappa and delta are recovered from curves whose pace and end are known, and refused where they cannot be told."""

from __future__ import annotations

import numpy as np
import pytest

from harness.statistics.acceleration import fit_acceleration, fit_baseline, jackknife_error

STEPS = np.linspace(0, 100, 11)
RATE, MIDDLE = 0.09, 30.0
LOW, HIGH = np.array([0.33, 0.35, 0.38, 0.36, 0.31]), np.array([0.74, 0.76, 0.73, 0.78, 0.75])


def learnt(steps):
    """Share of all that is learnt, from the definition of the logistic."""
    at, begun = (1 / (1 + np.exp(-RATE * (s - MIDDLE))) for s in (steps, 0.0))
    return (at - begun) / (1 - begun)


def curve(steps):
    return LOW[:, None] + (HIGH - LOW)[:, None] / (1 + np.exp(-RATE * (steps - MIDDLE)))


@pytest.mark.parametrize("delta", [-0.06, 0.0, 0.03])
@pytest.mark.parametrize("kappa", [0.7, 1.0, 1.25])
def test_both_are_recovered_from_exact_curves(kappa, delta):
    regime = curve(kappa * STEPS) + delta * learnt(kappa * STEPS)
    fitted = fit_acceleration(STEPS, curve(STEPS), regime)
    assert fitted.problem == ""
    assert fitted.kappa == pytest.approx(kappa, abs=0.005)
    assert fitted.delta == pytest.approx(delta, abs=0.002)
    assert fitted.kappa_low <= fitted.kappa <= fitted.kappa_high


def test_a_regime_that_is_the_baseline_has_pace_one_and_no_gain():
    noise = 0.01 * np.random.default_rng(3).standard_normal((2, 5, 11))
    fitted = fit_acceleration(STEPS, curve(STEPS) + noise[0], curve(STEPS) + noise[1])
    assert fitted.kappa_low < 1 < fitted.kappa_high
    assert fitted.delta_low < 0 < fitted.delta_high
    assert abs(fitted.kappa - 1) < 0.08


def test_a_higher_end_is_not_taken_for_a_faster_clock():
    fitted = fit_acceleration(STEPS, curve(STEPS), curve(STEPS) + 0.06 * learnt(STEPS))
    assert fitted.kappa == pytest.approx(1.0, abs=0.01)


def test_runs_that_end_on_the_slope_are_refused():
    """Where the baseline still rises, a faster clock and a higher end look alike."""
    steps = np.linspace(0, 30, 11)
    noise = 0.012 * np.random.default_rng(5).standard_normal((2, 5, 11))
    fitted = fit_acceleration(steps, curve(steps) + noise[0], curve(steps) + noise[1])
    assert "must flatten inside the run" in fitted.problem


def test_a_baseline_that_learns_nothing_is_refused():
    noise = 0.012 * np.random.default_rng(6).standard_normal((2, 5, 11))
    fitted = fit_acceleration(STEPS, 0.5 + noise[0], 0.5 + noise[1])
    assert "no logistic" in fitted.problem


def test_few_seeds_or_points_are_refused_and_wrong_shapes_raise():
    assert "2 seeds" in fit_acceleration(STEPS, curve(STEPS)[:2], curve(STEPS)[:2]).problem
    assert "4 points" in fit_acceleration(STEPS[:4], curve(STEPS)[:, :4], curve(STEPS)[:, :4]).problem
    with pytest.raises(ValueError, match="seeds, steps"):
        fit_acceleration(STEPS, curve(STEPS), curve(STEPS)[:, 1:])
    with pytest.raises(ValueError, match="rise from 0"):
        fit_acceleration(STEPS[::-1], curve(STEPS), curve(STEPS))
    with pytest.raises(ValueError, match="gaps"):
        fit_acceleration(STEPS, curve(STEPS), np.where(STEPS == 10, np.nan, curve(STEPS)))


def test_the_baselines_curve_is_the_one_that_made_it():
    fitted = fit_baseline(STEPS, curve(STEPS))
    assert fitted.rate == pytest.approx(RATE, rel=0.01)
    assert fitted.middle == pytest.approx(MIDDLE, abs=0.5)
    np.testing.assert_allclose(fitted.predict_accuracy(STEPS), curve(STEPS), atol=1e-3)
    np.testing.assert_allclose(fitted.share_learnt(STEPS), learnt(STEPS), atol=3e-3)


def test_errors_are_never_below_those_of_least_squares():
    """Seeds that agree by chance: their jackknife says nothing, but their points are as noisy as ever."""
    noise = 0.01 * np.random.default_rng(8).standard_normal((2, 1, 11)).repeat(5, axis=1)
    one = curve(STEPS)[:1].repeat(5, axis=0)
    fitted = fit_acceleration(STEPS, one + noise[0], one + noise[1])
    assert fitted.kappa_error == fitted.least_kappa_error > 0.005
    assert fitted.delta_error == fitted.least_delta_error > 0.001
    assert np.log(fitted.kappa_high / fitted.kappa) == pytest.approx(2.776 * fitted.kappa_error, rel=1e-3)


def test_the_jackknife_of_a_mean_is_its_standard_error():
    values = np.array([0.31, 0.35, 0.29, 0.44, 0.38])
    without_each = np.array([np.delete(values, i).mean() for i in range(5)])
    assert jackknife_error(without_each) == pytest.approx(values.std(ddof=1) / np.sqrt(5), rel=1e-12)


def test_the_interval_is_as_wide_as_seeds_differ():
    """Paces of their own by seed: what the interval is made of is the jackknife's error."""
    paces = np.array([1.0, 1.1, 1.2, 1.3, 1.4])
    regime = np.stack([curve(pace * STEPS)[seed] for seed, pace in enumerate(paces)])
    fitted = fit_acceleration(STEPS, curve(STEPS), regime)
    assert fitted.kappa_error == jackknife_error(np.log(fitted.paces))
    assert fitted.kappa_error > fitted.least_kappa_error
