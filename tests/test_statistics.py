"""harness.statistics against scipy, by simulation, and against rliable's stored answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from harness.statistics import (
    accuracy,
    area_under_curve,
    bootstrap_interval,
    holm,
    iqm,
    iqm_interval,
    mean_interval,
    minimum_detectable,
    paired,
    paired_by_question,
    per_unit,
    probability_of_improvement,
    resampling,
    tie_groups,
)
from harness.statistics.ties import pairwise

REFERENCE = json.loads((Path(__file__).parent / "rliable_reference.json").read_text())
REPETITIONS = 10_000


def simulated(regimes: int, seeds: int, rng: np.random.Generator, questions: int = 100) -> tuple[np.ndarray, float]:
    """Accuracies (repetitions, regimes, seeds) on one binary question set, and their expectation.

    A seed moves every regime alike, and each regime in its own way, on the logit scale; every question is then a coin.
    """
    difficulty = rng.normal(0, 1, questions)
    shape = (REPETITIONS, regimes, seeds)
    effect = rng.normal(0, 0.2, (REPETITIONS, 1, seeds)) + rng.normal(0, 0.2, shape)
    right = np.zeros(shape)
    for hard in difficulty:
        right += rng.random(shape, dtype=np.float32) < 1 / (1 + np.exp(hard - effect))
    nodes, weights = np.polynomial.hermite_e.hermegauss(41)
    spread = np.sqrt(0.2**2 + 0.2**2)
    chance = 1 / (1 + np.exp(difficulty[:, None] - spread * nodes))
    return right / questions, float(chance.mean(axis=0) @ weights / weights.sum())


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_intervals_cover_the_truth_and_the_paired_test_keeps_its_level(seeds: int) -> None:
    scores, truth = simulated(2, seeds, np.random.default_rng(seeds))
    estimate = mean_interval(scores[:, 0])
    assert 0.93 <= np.mean((estimate.low <= truth) & (truth <= estimate.high)) <= 0.97
    assert np.mean(paired(scores[:, 0], scores[:, 1]).p <= 0.05) <= 0.055


def test_holm_keeps_the_family_level_over_eight_regimes() -> None:
    scores, _ = simulated(9, 5, np.random.default_rng(7), questions=40)
    p = paired(scores[:, 1:], scores[:, :1]).p
    family = np.mean([(holm(row) <= 0.05).any() for row in p])
    assert family <= 0.055
    assert np.mean((p <= 0.05).any(axis=1)) > 0.15, "without the correction the level is far exceeded"


def test_mean_interval_is_scipys() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(0.1, 1, (4, 6))
    ours = mean_interval(x)
    theirs = stats.ttest_1samp(x, 0, axis=1)
    bounds = theirs.confidence_interval(0.95)
    np.testing.assert_allclose(ours.p, theirs.pvalue, rtol=1e-9)
    np.testing.assert_allclose([ours.low, ours.high], [bounds.low, bounds.high], rtol=1e-9)
    y = rng.normal(0, 1, (4, 6))
    np.testing.assert_allclose(paired(x, y).p, stats.ttest_rel(x, y, axis=1).pvalue, rtol=1e-9)


def test_missing_and_equal_values() -> None:
    estimate = mean_interval([[0.1, np.nan, 0.3], [0.7, 0.7, 0.7], [np.nan, 0.5, np.nan], [np.nan] * 3])
    np.testing.assert_array_equal(estimate.n, [2, 3, 1, 0])
    np.testing.assert_allclose(estimate.mean, [0.2, 0.7, 0.5, np.nan])
    assert estimate.low[1] == estimate.high[1] == pytest.approx(0.7)
    assert estimate.p[1] == 0
    assert np.isnan([estimate.low[2], estimate.p[2], estimate.low[3]]).all()
    assert mean_interval([0.0, 0.0]).p == 1
    np.testing.assert_array_equal(estimate.separate, [False, True, False, False])


def test_accuracy_clusters_repeats_by_question() -> None:
    verdicts = np.array([[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, np.nan, np.nan], [np.nan] * 4])
    found = accuracy(verdicts)
    assert (found.mean, found.questions, found.answers) == (0.5, 3, 10)
    assert found.error == pytest.approx(np.std([1, 0, 0.5], ddof=1) / np.sqrt(3))
    copied = accuracy(np.repeat(verdicts, 5, axis=1))
    assert copied.error == pytest.approx(found.error), "asking the same question again is no new evidence"


def test_holm_by_hand() -> None:
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm(np.array([0.01, np.nan, 0.9])), [0.02, np.nan, 0.9])


def test_paired_by_question() -> None:
    ours = np.array([[1, 1, 0, 0.5, np.nan], [1, 0, 0, 0.5, 1]])
    theirs = np.array([[0, 1, 1, 0.5, 0], [0, 0, 0, 0.5, 0]])
    found = paired_by_question(ours, theirs)
    assert (found.wins, found.losses, found.draws) == (2, 1, 2)
    assert found.difference.mean == pytest.approx((1 + 0 - 0.5 + 0 + 1) / 5)
    assert found.sign_p == pytest.approx(stats.binomtest(1, 3).pvalue)
    rng = np.random.default_rng(1)
    many = paired_by_question(rng.random((1, 200)) + 0.1, rng.random((1, 200)))
    assert many.sign_p == pytest.approx(stats.binomtest(many.wins, 200).pvalue, rel=1e-6)


def test_minimum_detectable_has_the_power_it_states() -> None:
    rng = np.random.default_rng(3)
    for seeds in (3, 5, 10):
        effect = float(minimum_detectable(2.0 / np.sqrt(seeds), seeds))
        found = mean_interval(rng.normal(effect, 2.0, (20_000, seeds))).p <= 0.05
        assert 0.78 < found.mean() < 0.82
    assert np.isnan(minimum_detectable(0.1, 1))


def test_tie_groups() -> None:
    rng = np.random.default_rng(5)
    shared = rng.normal(0, 0.03, 5)
    scores = np.array([level + shared + rng.normal(0, 0.002, 5) for level in (0.4, 0.7, 0.701, 0.55)] + [[np.nan] * 5])
    np.testing.assert_array_equal(tie_groups(scores), [3, 1, 1, 2, 0])
    np.testing.assert_array_equal(tie_groups(scores[:, :1]), [1, 1, 1, 1, 0])
    scores[1, 3:] = np.nan
    np.testing.assert_array_equal(tie_groups(scores), [3, 1, 1, 2, 0], "missing seeds are allowed for")
    assert tie_groups(np.empty((0, 3))).size == 0


def test_pairwise_is_the_paired_t_test_for_two_and_the_analysis_of_variance_for_more() -> None:
    rng = np.random.default_rng(8)
    scores = rng.normal(0, 1, (2, 6))
    assert pairwise(scores)[1][0, 1] == pytest.approx(stats.ttest_rel(scores[0], scores[1]).pvalue)
    scores = rng.normal(0, 1, (4, 6))
    centred = scores - scores.mean(1, keepdims=True) - scores.mean(0) + scores.mean()
    error = np.sqrt(2 * (centred**2).sum() / (3 * 5) / 6)
    t = abs(scores[0].mean() - scores[3].mean()) / error
    assert pairwise(scores)[1][0, 3] == pytest.approx(2 * stats.t.sf(t, 15))


@pytest.mark.parametrize(("noise", "limit"), [([1] * 9, 0.055), ([1, 1, 2, 2, 1.5, 1.5, 1, 2, 1], 0.09)])
def test_equal_regimes_are_rarely_split(noise: list[float], limit: float) -> None:
    """One family in twenty at most; somewhat more where the regimes are unequally noisy, as the docstring says."""
    rng = np.random.default_rng(11)
    split = 0
    for _ in range(2000):
        scores = rng.normal(0, 5, (1, 5)) + rng.normal(0, 1, (9, 5)) * np.array(noise)[:, None]
        split += tie_groups(scores).max() > 1
    assert split / 2000 <= limit


def test_area_and_cost() -> None:
    assert area_under_curve(np.array([0, 10, 30]), np.array([0.2, 0.4, 0.4])) == pytest.approx(
        (0.3 * 10 + 0.4 * 20) / 30
    )
    assert area_under_curve(np.array([10, 0]), np.array([[1.0, 0.0]])) == pytest.approx(0.5)
    assert area_under_curve(np.array([5]), np.array([0.3])) == 0.3
    np.testing.assert_allclose(per_unit([0.1, 0.1], [2000, 0], 1000), [0.05, np.nan])


@pytest.mark.parametrize("case", REFERENCE["cases"], ids=lambda c: f"{len(c['x'])}x{len(c['x'][0])}")
def test_agreement_with_rliable(case: dict) -> None:  # type: ignore[type-arg]
    """Point values to 1e-6, bootstrap bounds to Monte-Carlo error (both sides resample 50,000 times)."""
    x, y = np.array(case["x"]), np.array(case["y"])
    width = case["iqm_high"] - case["iqm_low"]
    ours = iqm_interval(x, resamples=50_000)
    assert ours.value == pytest.approx(case["iqm"], abs=1e-6)
    assert ours.low == pytest.approx(case["iqm_low"], abs=0.03 * width)
    assert ours.high == pytest.approx(case["iqm_high"], abs=0.03 * width)
    better = probability_of_improvement(x, y, resamples=20_000)
    assert better.value == pytest.approx(case["better"], abs=1e-6)
    assert better.low == pytest.approx(case["better_low"], abs=0.02)
    assert better.high == pytest.approx(case["better_high"], abs=0.02)


def test_bootstrap_is_deterministic_by_seed_and_agrees_with_the_general_form() -> None:
    x = np.random.default_rng(2).random((5, 6))
    assert iqm_interval(x, seed=4) == iqm_interval(x, seed=4)
    assert iqm_interval(x, seed=4) != iqm_interval(x, seed=5)
    fast = iqm_interval(x, resamples=2000, seed=4)
    slow = bootstrap_interval(x, lambda drawn: np.array([iqm(one) for one in drawn]), resamples=2000, seed=4)
    assert (fast.low, fast.high) == pytest.approx((slow.low, slow.high))
    assert iqm(x) == pytest.approx(stats.trim_mean(x, 0.25, axis=None))


@pytest.mark.parametrize(
    ("runs", "tasks"), [(1, 3), (2, 5), (7, 9), (10, 26), (15, 4), (16, 4), (40, 3), (300, 2), (10, 7000)]
)
def test_counts_are_those_of_the_draws(runs: int, tasks: int) -> None:
    stratified = resampling.Resampling(runs, tasks)
    counts, drawn = stratified.counts(np.random.SFC64(3), 50), stratified.drawn(np.random.SFC64(3), 50)
    np.testing.assert_array_equal(counts, [(drawn == run).sum(axis=0) for run in range(runs)])
    assert (counts.sum(axis=0) == runs).all()


@pytest.mark.parametrize("runs", [2, 3, 5, 6])
def test_every_sequence_of_draws_has_one_number(runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uniform numbers are then uniform draws: all sequences enumerated, each once, with the counts it should have."""
    monkeypatch.setattr(resampling, "uniform", lambda bits, below, size: np.arange(size, dtype=np.uint32))
    everything, bits = runs**runs, np.random.SFC64(0)
    stratified = resampling.Resampling(runs, 1)
    drawn = stratified.drawn(bits, everything)[:, 0]
    assert len({tuple(one) for one in drawn.T}) == everything
    assert set(drawn.ravel()) == set(range(runs))
    np.testing.assert_array_equal(
        stratified.counts(bits, everything)[:, 0], [(drawn == run).sum(0) for run in range(runs)]
    )


@pytest.mark.parametrize("below", [10**5, 3 << 30, 7])
def test_numbers_are_uniform_also_where_much_is_drawn_again(below: int) -> None:
    found = resampling.uniform(np.random.SFC64(1), below, 200_001)
    assert found.size == 200_001
    assert found.max() < below
    cells = np.bincount((found.astype(np.float64) * min(below, 1000) / below).astype(int), minlength=min(below, 1000))
    assert stats.chisquare(cells).pvalue > 1e-4


@pytest.mark.parametrize("runs", [3, 10, 16])
def test_draws_are_uniform_and_independent(runs: int) -> None:
    drawn = resampling.Resampling(runs, 20).drawn(np.random.SFC64(2), 20_000)
    assert stats.chisquare(np.bincount(drawn.ravel())).pvalue > 1e-4
    for other in (1, runs // 2):
        pairs = np.bincount((drawn[:-other] * runs + drawn[other:])[::2].ravel(), minlength=runs * runs)
        assert stats.chisquare(pairs).pvalue > 1e-4
