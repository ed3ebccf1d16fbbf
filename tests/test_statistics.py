"""harness.statistics against scipy, by simulation, and against rliable's stored answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from harness.statistics import (
    MARGIN,
    Comparison,
    area_under_curve,
    compare_regimes,
    correct_by_holm,
    estimate_paired_difference,
    improvement_interval,
    iqm_interval,
    mean_interval,
    minimum_detectable,
    sampling_variance,
    seeds_to_detect,
)
from harness.statistics.intervals import _draw_counts

REFERENCE = json.loads((Path(__file__).parent / "rliable_reference.json").read_text())


def test_mean_interval_is_scipys() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(0.1, 1, (4, 6))
    ours = mean_interval(x)
    theirs = stats.ttest_1samp(x, 0, axis=1)
    bounds = theirs.confidence_interval(0.95)
    np.testing.assert_allclose(ours.p, theirs.pvalue, rtol=1e-9)
    np.testing.assert_allclose([ours.low, ours.high], [bounds.low, bounds.high], rtol=1e-9)
    y = rng.normal(0, 1, (4, 6))
    np.testing.assert_allclose(estimate_paired_difference(x, y).p, stats.ttest_rel(x, y, axis=1).pvalue, rtol=1e-9)


def test_an_absent_regime_does_not_make_a_withheld_panel_count() -> None:
    """The tests on the mean left the family, and the other panels' intervals became too narrow."""
    scores = np.random.default_rng(0).normal([[[0.5]], [[0.6]], [[0.0]]], [[[0.01]], [[0.01]], [[0.0]]], (3, 3, 5))
    withheld = np.array([[""] * 3, [""] * 3, ["withheld: no answer was right"] * 3], dtype=object)
    scores[1, 2], withheld[1, 2] = np.nan, ""
    here = compare_regimes(scores, np.full(scores.shape, 1e-6), [None, 0, 0], MARGIN, withheld)
    scores[2, 2], withheld[2, 2] = np.nan, ""
    absent = compare_regimes(scores, np.full(scores.shape, 1e-6), [None, 0, 0], MARGIN, withheld)
    np.testing.assert_array_equal(here[0].corrected, absent[0].corrected)


def test_missing_and_equal_values() -> None:
    estimate = mean_interval([[0.1, np.nan, 0.3], [0.7, 0.7, 0.7], [np.nan, 0.5, np.nan], [np.nan] * 3])
    np.testing.assert_array_equal(estimate.n, [2, 3, 1, 0])
    np.testing.assert_allclose(estimate.mean, [0.2, 0.7, 0.5, np.nan])
    assert estimate.low[1] == estimate.high[1] == pytest.approx(0.7)
    assert estimate.p[1] == 0
    assert np.isnan([estimate.low[2], estimate.p[2], estimate.low[3]]).all()
    assert mean_interval([0.0, 0.0]).p == 1


def test_holm_by_hand() -> None:
    p, level = correct_by_holm(np.array([0.01, 0.04, 0.03, 0.005]))
    np.testing.assert_allclose(p, [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(
        1 - level, [0.05 / 3, 0.05 / 2, 0.05 / 2, 0.05 / 4], err_msg="of the step, or of the one where it stopped"
    )
    np.testing.assert_allclose(correct_by_holm(np.array([0.01, np.nan, 0.9]))[0], [0.02, np.nan, 0.9])
    np.testing.assert_allclose(correct_by_holm(np.array([0.01, 0.02, 0.001]), [1, 1, 0.5])[0], [0.02, 0.02, 0.005])


@pytest.mark.parametrize("spread", [0.01, 0.03, 0.1])
def test_seeds_to_detect_are_the_fewest_that_do(spread: float) -> None:
    seeds = seeds_to_detect(spread, 0.02, level=0.99)
    assert seeds is not None
    enough = [minimum_detectable(spread / np.sqrt(n), n, level=0.99) <= 0.02 for n in (seeds - 1, seeds)]
    assert enough == [False, True]
    assert seeds_to_detect(1.0, 0.02) is None, "nobody is told to run a thousand seeds"


def test_minimum_detectable_has_the_power_it_states() -> None:
    rng = np.random.default_rng(3)
    for seeds in (3, 5, 10):
        effect = float(minimum_detectable(2.0 / np.sqrt(seeds), seeds))
        significant = mean_interval(rng.normal(effect, 2.0, (20_000, seeds))).p <= 0.05
        assert 0.78 < significant.mean() < 0.82
    assert np.isnan(minimum_detectable(0.1, 1))


def test_a_detectable_gain_is_at_the_level_of_the_tests_that_there_are() -> None:
    """A panel without a second seed made it larger than what the test finds."""
    scores = np.full((2, 2, 3), np.nan)
    scores[0], scores[1, :, 0] = [[0.5, 0.6, 0.55], [0.51, 0.62, 0.54]], 0.4
    panel = compare_regimes(scores, np.full(scores.shape, 1e-6), [None, 0])[0]
    assert panel.corrected[1, 1] == pytest.approx(panel.gains.high[1]), "one test alone"
    assert panel.detectable[1] == minimum_detectable(panel.gains.error[1], 3)


def judged(scores: np.ndarray, noise: float = 1e-9, margin: float = MARGIN) -> Comparison:
    """The first regime is what the others are compared with."""
    return compare_regimes(scores[None], np.full((1, *scores.shape), noise), [None, *[0] * (len(scores) - 1)], margin)[
        0
    ]


def test_tie_groups_verdicts_and_p_values_by_hand() -> None:
    rng = np.random.default_rng(6)
    shared = rng.normal(0, 0.03, 5)
    levels = (0.55, 0.4, 0.7, 0.701, 0.5503)
    scores = np.array([level + shared + rng.normal(0, 0.002, 5) for level in levels] + [[np.nan] * 5])
    comparison = judged(scores)
    assert comparison.groups == ("b", "c", "a", "a", "b", "")
    assert comparison.best == (False, False, True, True, False, False)
    assert comparison.verdicts == ("baseline", "loses", "gains", "gains", "no effect beyond the margin", "not compared")
    assert judged(scores, margin=0.0001).verdicts[4] == "cannot tell"
    raw = [stats.ttest_rel(scores[i], scores[0]).pvalue for i in range(1, 5)]
    np.testing.assert_allclose(comparison.gains.p[1:5], raw)
    assert raw[3] < comparison.gain_p[4] < 2 * raw[3], "nearly alone at the end of the family"
    assert min(raw) * 5 == pytest.approx(min(comparison.gain_p[1:5])), (
        "four comparisons and one more for all the others"
    )
    between = judged(np.array([[0.5, 0.504, 0.496, 0.5], [0.6, 0.604, 0.596, 0.6], [0.4, 0.7, 0.5, 0.62]]))
    assert between.groups == ("b", "a", "ab"), "who cannot be told from either is in both"
    assert judged(scores[:, :1]).verdicts[1:5] == ("cannot tell",) * 4
    scores[1, 3:] = np.nan
    assert judged(scores).groups == ("b", "c", "a", "a", "b", ""), "missing seeds are allowed for"


def test_above_what_is_above_is_above() -> None:
    rng = np.random.default_rng(0)
    scores = np.array([level + rng.normal(0, 0.004, 4) for level in (0.5, 0.54, 0.46, 0.5, 0.5, 0.5, 0.5)])
    comparison = judged(scores)
    assert comparison.verdicts[1:3] == ("gains", "loses")
    assert comparison.p[1, 2] <= max(comparison.p[1, 0], comparison.p[0, 2])
    assert set(comparison.groups[1]).isdisjoint(comparison.groups[2])


def answered(
    right: np.ndarray, repeats: int, rng: np.random.Generator, drift: float, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Accuracies (repetitions, seeds) on the questions of these log-odds, and their `sampling_variance`."""
    shift = rng.normal(0, drift, shape) if drift else np.zeros(shape)
    total, squares = np.zeros(shape), np.zeros(shape)
    for logit in right:
        mean = rng.binomial(repeats, 1 / (1 + np.exp(-(logit + shift)))) / repeats
        total += mean
        squares += mean**2
    n = right.size
    accuracies = total / n
    error = np.sqrt(np.maximum(squares / n - accuracies**2, 0) / (n - 1))
    return accuracies, sampling_variance(accuracies, error, np.full(shape, n), np.full(shape, n * repeats))


@pytest.mark.parametrize("seeds", [3, 10])
@pytest.mark.parametrize(("questions", "repeats", "drift"), [(60, 4, 0.0), (60, 4, 0.1), (40, 1, 0.3)])
def test_coverage_with_the_floor_near_ties(seeds: int, questions: int, repeats: int, drift: float) -> None:
    rng = np.random.default_rng(seeds)
    right = rng.normal(0, 1.5 if repeats > 1 else 1, questions)
    (ours, a), (theirs, b) = (answered(right, repeats, rng, drift, (6000, seeds)) for _ in range(2))
    nodes, weights = np.polynomial.hermite_e.hermegauss(41)
    truth = (1 / (1 + np.exp(-(right[:, None] + drift * nodes)))).mean(axis=0) @ weights / weights.sum()
    one, gap = mean_interval(ours, noise=a), estimate_paired_difference(ours, theirs, noise=a + b)
    assert 0.93 <= np.mean((one.low <= truth) & (truth <= one.high)) <= 0.97
    assert 0.93 <= np.mean((gap.low <= 0) & (gap.high >= 0)) <= 0.97
    assert (gap.high > gap.low).all()
    assert np.mean(gap.p <= 0.05) <= 0.055


def test_the_floor_by_hand() -> None:
    rng = np.random.default_rng(4)
    chance = rng.random(50)
    answers = rng.random((4000, 50, 4)) < chance[:, None]
    means = answers.mean(axis=2)
    variance = sampling_variance(
        means.mean(axis=1), means.std(axis=1, ddof=1) / np.sqrt(50), np.full(4000, 50), np.full(4000, 200)
    )
    assert variance.mean() == pytest.approx((chance * (1 - chance)).mean() / 200, rel=0.01)
    assert variance.mean() == pytest.approx(means.mean(axis=1).var(), rel=0.06)
    assert sampling_variance(0.5, 0.05, 100, 100) == 0.05**2 / 2, "a single answer each: nothing to tell them apart by"
    assert sampling_variance(1.0, 0.0, 100, 400) == 1 / 400**2, "one answer, where all are right"
    assert sampling_variance(0.0, np.nan, 1, 1) == 1


def test_three_equal_differences_do_not_claim_to_know_everything() -> None:
    """240 questions, four answers to each: three times 7 of 960 answers fewer gave -0.7 [-0.7, -0.7], p = 8e-21, "loses"."""
    theirs = np.array([500, 490, 510]) / 960
    scores = np.array([theirs, theirs - 7 / 960])
    noise = sampling_variance(scores, 0.028, 240, 960)
    comparison = compare_regimes(scores[None], noise[None], [None, 0])[0]
    assert comparison.gains.high[1] - comparison.gains.low[1] > 0.01
    assert comparison.gain_p[1] > 0.05
    assert comparison.verdicts[1] == "no effect beyond the margin"
    far = compare_regimes(np.array([[theirs, theirs - 0.1]]), noise[None], [None, 0])[0]
    assert far.verdicts[1] == "loses", "a floor, not a wall"


def test_area_under_a_curve() -> None:
    assert area_under_curve(np.array([0, 10, 30]), np.array([0.2, 0.4, 0.4])) == pytest.approx(
        (0.3 * 10 + 0.4 * 20) / 30
    )
    assert area_under_curve(np.array([10, 0]), np.array([[1.0, 0.0]])) == pytest.approx(0.5)
    assert area_under_curve(np.array([5]), np.array([0.3])) == 0.3


@pytest.mark.parametrize("case", REFERENCE["cases"], ids=lambda c: f"{len(c['x'])}x{len(c['x'][0])}")
def test_agreement_with_rliable(case: dict) -> None:  # type: ignore[type-arg]
    x, y = np.array(case["x"]), np.array(case["y"])
    width = case["iqm_high"] - case["iqm_low"]
    ours = iqm_interval(x, resamples=50_000)
    assert ours.value == pytest.approx(case["iqm"], abs=1e-6)
    assert ours.low == pytest.approx(case["iqm_low"], abs=0.03 * width)
    assert ours.high == pytest.approx(case["iqm_high"], abs=0.03 * width)
    better = improvement_interval(x, y, resamples=20_000)
    assert better.value == pytest.approx(case["better"], abs=1e-6)
    assert better.low == pytest.approx(case["better_low"], abs=0.02)
    assert better.high == pytest.approx(case["better_high"], abs=0.02)


@pytest.mark.parametrize(("runs", "tasks"), [(1, 3), (5, 6), (70, 3)])
def test_an_iqm_interval_is_that_of_sorted_resamples(runs: int, tasks: int) -> None:
    x = np.random.default_rng(2).integers(0, 9, (runs, tasks)) / 9
    counts = _draw_counts(runs, tasks, 500, 4).transpose(2, 0, 1).astype(int)
    assert (counts.sum(axis=0) == runs).all(), "runs are drawn inside each task"
    drawn = [stats.trim_mean(np.repeat(x.ravel(), counts[..., i].ravel()), 0.25) for i in range(500)]
    interval = iqm_interval(x, resamples=500, seed=4)
    assert (interval.low, interval.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=1e-12)
    assert interval.value == pytest.approx(stats.trim_mean(x, 0.25, axis=None))


def test_a_probability_of_improvement_draw_counts_who_beats_whom() -> None:
    rng = np.random.default_rng(4)
    x, y = rng.integers(0, 4, (5, 3)) / 3, rng.integers(0, 4, (6, 3)) / 3
    counted = np.mean((x[:, None] > y[None]) + 0.5 * (x[:, None] == y[None]))
    assert improvement_interval(x, y).value == pytest.approx(counted)
