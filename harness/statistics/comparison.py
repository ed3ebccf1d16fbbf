"""One rule of significance for gains, verdicts, tie groups, p-values and their intervals.

A family is all that is compared for one policy and metric: every group and benchmark (a panel each), their mean, and
whether the panels differ. `docs/statistics.md` explains the choice of the tests.

Axes of arrays: `draws` are families that are tested at once (none in a table, many in a simulation), then panels, then
regimes, then seeds. A missing score is NaN.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from string import ascii_letters

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import ArrayLike

from harness.statistics.intervals import Array, Estimate, mean_interval

# The probability of any false finding in a family
ALPHA = 0.05
MOST_SEEDS = 1000
# Of fewer seeds tie groups join what nobody would believe equal: their tests find next to nothing
MIN_TIE_SEEDS = 5
MARGIN = 0.02
"""Accuracy below which an effect is of no interest, where the user names none."""
GAINS, LOSES, EQUIVALENT, INCONCLUSIVE = "gains", "loses", "no effect beyond the margin", "cannot tell"
DIFFERS = "differs between groups"
DIFFERS_POLICIES = "differs between policies"
FLOOR, CEILING = "withheld: no answer was right", "withheld: every answer was right"
IDLE = "withheld: the baseline learnt nothing"
WITHHELD = (FLOOR, CEILING, IDLE)
BASELINE, ALONE = "baseline", "not compared"

Matrix = Float[np.ndarray, "*panels regimes regimes"]
Panels = Float[np.ndarray, "*draws panels regimes seeds"]
Pairs = Float[np.ndarray, "*draws panels pairs"]
Places = Int[np.ndarray, "compared"]
ByRegime = Float[np.ndarray, "regimes"]


def estimate_paired_difference(
    ours: ArrayLike, theirs: ArrayLike, level: float = 0.95, noise: ArrayLike | None = None
) -> Estimate:
    """Estimate the mean of ours minus theirs by a paired t test over the last axis.

    ours, theirs: accuracies of the same seeds, shape (..., seeds); a pair with a NaN is missing. noise: the variance of
    each difference, which is the sum of both `sampling_variance`. The estimate has the shape (...).
    """
    our_scores = np.asarray(ours, dtype=np.float64)
    their_scores = np.asarray(theirs, dtype=np.float64)
    return mean_interval(our_scores - their_scores, level, noise)


def correct_by_holm(
    p_values: Float[np.ndarray, "... k"], weights: ArrayLike = 1.0, alpha: float = ALPHA
) -> tuple[Float[np.ndarray, "... k"], Float[np.ndarray, "... k"]]:
    """Correct each row of p-values by Holm's weighted step-down method (Scand. J. Statist. 6, 1979, section 4).

    weights: of each test, broadcast to `p_values`. NaN p-values do not count, and stay NaN. The tests of a row are
    sorted by p / weight; the adjusted p-value of the i-th is the largest of p_j / w_j * (w_j + w_(j+1) + ...) for j <= i.

    Returns the adjusted p-values, and the confidence level of each test: the interval of that level leaves out 0 exactly
    where the adjusted p-value is at most `alpha`.
    """
    p = np.asarray(p_values, dtype=np.float64)
    known = ~np.isnan(p)
    given = np.asarray(weights, dtype=np.float64)
    weight = np.where(known, np.broadcast_to(given, p.shape), 0.0)
    # a test without weight divides by 0; `where` puts 1 in the place of what comes out
    with np.errstate(invalid="ignore", divide="ignore"):
        ranks = np.where(known, p / weight, np.inf)
        order = np.argsort(ranks, axis=-1, kind="stable")
        ranked = np.take_along_axis(p, order, axis=-1)
        share = np.take_along_axis(weight, order, axis=-1)
        # the weights of this test and of all after it
        from_last = np.cumsum(share[..., ::-1], axis=-1)
        remaining = from_last[..., ::-1]
        steps = np.where(share > 0, ranked / share * remaining, 1.0)
        largest = np.maximum.accumulate(steps, axis=-1)
        corrected = np.minimum(largest, 1.0)
        levels = _levels_of_steps(corrected <= alpha, share, remaining, alpha)
    adjusted = _put_in_order(corrected, order)
    level = _put_in_order(levels, order)
    return np.where(known, adjusted, np.nan), np.where(known, level, np.nan)


def _levels_of_steps(
    rejected: Bool[np.ndarray, "... k"],
    share: Float[np.ndarray, "... k"],
    remaining: Float[np.ndarray, "... k"],
    alpha: float,
) -> Float[np.ndarray, "... k"]:
    """Return the confidence level of each test of `correct_by_holm`; all arrays are in the order of its steps.

    share: the test's own weight. remaining: that and the weights of all later tests. Tests that are not rejected share the level of
    the step at which the method stopped.
    """
    not_rejected = np.where(rejected, 0.0, remaining)
    stopped = not_rejected.max(axis=-1, keepdims=True, initial=0.0)  # (..., 1)
    tested = np.where(rejected, remaining, stopped)
    return np.asarray(1 - alpha * share / tested)


def _put_in_order(values: Float[np.ndarray, "... k"], order: Int[np.ndarray, "... k"]) -> Float[np.ndarray, "... k"]:
    """Return the values at the places that they had before they were sorted. order: of each step the place of its test."""
    placed = np.full(values.shape, np.nan)
    np.put_along_axis(placed, order, values, axis=-1)
    return placed


def minimum_detectable(error: ArrayLike, n: ArrayLike, power: float = 0.8, level: ArrayLike = 0.95) -> Array:
    """Return the smallest true difference that a paired t test over n seeds finds with the probability `power`.

    error: standard error of the mean difference; the result has its unit and shape, and is NaN where n < 2. level: of
    the test's interval. The test statistic has a noncentral t distribution with n - 1 degrees of freedom; the noncentrality
    at which it exceeds the critical value with that power is the result over `error`. The chance of a significant result
    of the wrong sign is left out.
    """
    from scipy.special import nctdtrinc, stdtrit

    # The inverse is slow, and most counts and levels of a table are alike: each pair is computed once
    alike = np.broadcast_arrays(n, level)
    each = np.stack(alike).reshape(2, -1)
    (counts, levels), place = np.unique(each, axis=1, return_inverse=True)
    freedom = np.maximum(counts - 1, 1)
    critical = stdtrit(freedom, 0.5 + levels / 2)
    noncentrality = nctdtrinc(freedom, 1 - power, critical)
    of_pair = np.where(counts > 1, noncentrality, np.nan)
    errors = np.asarray(error, dtype=np.float64)
    in_errors = of_pair[place].reshape(np.shape(error))
    return np.asarray(in_errors * errors)


@lru_cache(maxsize=4 * MOST_SEEDS)
def _errors_to_detect(seeds: int, power: float, level: float) -> float:
    """Return `minimum_detectable` in units of the standard error."""
    return float(minimum_detectable(1.0, seeds, power, level))


def seeds_to_detect(spread: float, effect: float, power: float = 0.8, level: float = 0.95) -> int | None:
    """Return the fewest seeds (from 2) with which a paired t test finds `effect` with that power.

    spread: standard deviation of the seeds' differences, in the unit of `effect`. None stands for more than MOST_SEEDS.
    """

    def is_enough(seeds: int) -> bool:
        """Say whether so many seeds find the effect."""
        error = spread / np.sqrt(seeds)
        detectable = _errors_to_detect(seeds, power, level) * error
        return bool(detectable <= effect)

    fewest = bisect_left(range(MOST_SEEDS + 1), True, lo=2, key=is_enough)
    return fewest if fewest <= MOST_SEEDS else None


@dataclass(frozen=True, slots=True, eq=False)
class FamilyTests:
    """The tests of one family, or of several along the first axes: of each panel, then of the panels' mean.

    own: each regime's accuracy. difference, p, level, planned: of each pair of regimes, row minus column; p is the
    adjusted p-value, level that of its interval, planned the level before any test is rejected. spread, spread_p: p-value
    of "the gain of this regime is the same on all panels", raw and adjusted. inside: the panels that the mean is of.
    With a single panel in the mean there is no row for it, and spread is NaN.
    """

    own: Estimate
    difference: Estimate
    p: Matrix
    level: Matrix
    planned: Matrix
    spread: Float[np.ndarray, "*draws regimes"]
    spread_p: Float[np.ndarray, "*draws regimes"]
    inside: Bool[np.ndarray, "panels"]


def compute_family_tests(
    scores: Panels,
    noise: Panels,
    references: Sequence[int | None],
    counted: Bool[np.ndarray, "panels regimes"] | None = None,
    chosen: Bool[np.ndarray, "panels"] | None = None,
) -> FamilyTests:
    """Test all pairs of regimes on all panels and on their mean, and whether panels differ, as one family.

    noise: `sampling_variance` of each score. references: the regime that each regime is compared with, by its place.
    counted: what is judged; the other tests are computed, but are not part of the family. chosen: the panels of the mean,
    which has the seeds that all of them have.

    The tests are paired t tests over seeds, corrected by Holm's method with weights (our reading): a regime's comparison
    with its reference has the weight 1 on the mean and 1 on all panels together, and so has the test of whether panels
    differ; all other pairs together have 1 on the mean and 1 on the panels.

    For example, of panels A, B and C, regimes r (the baseline) and s, and a verdict withheld for s on C, `references` is
    [None, 0], as s alone is compared with another, and `counted` is [[T, T], [T, T], [T, F]]. So A and B have a verdict, and the
    mean is of these two. The comparison of s has the weights 1/2, 1/2 and 0 on the panels (its test on C is not counted), and 1 on
    the mean.
    """
    ours, theirs = place_comparisons(references)
    if counted is None:
        counted = np.ones(scores.shape[-3:-1], dtype=bool)
    if chosen is None:
        chosen = np.ones(len(counted), dtype=bool)
    has_verdict = counted[:, ours].any(axis=-1)  # (panels,)
    # A panel without a verdict is not in the mean, unless no chosen panel has one
    inside = chosen & has_verdict
    if not inside.any():
        inside = chosen

    weight_of_each = 1 / max(has_verdict.sum(), 1)
    panel_weight = np.full(len(inside), weight_of_each)
    spread = np.full((*scores.shape[:-3], len(references)), np.nan)
    if inside.sum() <= 1:  # the mean of one panel is that panel, and would count its tests twice
        own = mean_interval(scores, noise=noise)
        difference = _estimate_all_pairs(scores, noise)
        family = _Family(counted, panel_weight, ours, theirs)
    else:
        scores_inside = scores[..., inside, :, :]
        noise_inside = noise[..., inside, :, :]
        # A regime is counted on the mean where it is counted on all panels of it
        counted_on_mean = np.asarray(counted[inside].all(axis=0))  # (regimes,)
        spread[..., ours] = compute_spread_p(scores_inside, noise_inside, ours, theirs)
        spread[..., ~counted_on_mean] = np.nan
        scores_with_mean, noise_with_mean = _append_mean(scores, noise, inside)
        own = mean_interval(scores_with_mean, noise=noise_with_mean)
        difference = _estimate_all_pairs(scores_with_mean, noise_with_mean)
        counted_with_mean = np.vstack([counted, counted_on_mean])
        family = _Family(counted_with_mean, np.append(panel_weight, 1.0), ours, theirs)

    p, level, planned, spread_p = _correct_family(family, difference, spread)
    return FamilyTests(own, difference, p, level, planned, spread, spread_p, inside)


def place_comparisons(references: Sequence[int | None]) -> tuple[Places, Places]:
    """Return the places of the regimes that are compared with another one, and of those that they are compared with.

    references: of each regime the place of its reference, None without one.
    """
    ours, theirs = [], []
    for place, reference in enumerate(references):
        if reference is not None:
            ours.append(place)
            theirs.append(reference)
    return np.array(ours, dtype=np.intp), np.array(theirs, dtype=np.intp)


def _estimate_all_pairs(scores: Panels, noise: Panels) -> Estimate:
    """Estimate the difference of each pair of regimes, row minus column: arrays of (*draws, panels, regimes, regimes)."""
    rows, columns = scores[..., None, :], scores[..., None, :, :]
    pair_noise = noise[..., None, :] + noise[..., None, :, :]
    return estimate_paired_difference(rows, columns, noise=pair_noise)


def _append_mean(scores: Panels, noise: Panels, inside: Bool[np.ndarray, "panels"]) -> tuple[Panels, Panels]:
    """Return scores and noise with one panel more: the mean over the panels `inside`, of seeds that all of these have."""
    panels = int(inside.sum())
    mean = scores[..., inside, :, :].mean(axis=-3, keepdims=True)  # (*draws, 1, regimes, seeds)
    sum_of_noise = noise[..., inside, :, :].sum(axis=-3, keepdims=True)
    # the variance of a mean of independent values is their sum over the square of their number
    mean_noise = sum_of_noise / panels**2
    with_mean = np.concatenate([scores, mean], axis=-3)
    noise_with_mean = np.concatenate([noise, mean_noise], axis=-3)
    return with_mean, noise_with_mean


def compute_spread_p(
    scores: Panels, noise: Panels, ours: Places, theirs: Places
) -> Float[np.ndarray, "*draws compared"]:
    """Return the p-value of "the gain of ours over theirs is the same on all panels" (our reading).

    On each panel a paired t test compares the gain there with the mean gain; the smallest p-value is multiplied by the
    number of panels (Bonferroni). Of two panels both tests are the same one, which needs no correction.
    """
    panels = scores.shape[-3]
    gains = scores[..., ours, :] - scores[..., theirs, :]
    gain_noise = noise[..., ours, :] + noise[..., theirs, :]
    mean_gain = gains.mean(axis=-3, keepdims=True)
    deviations = gains - mean_gain
    # The variance of x_i - mean(x) for independent x is v_i (1 - 2/k) + sum(v) / k^2
    sum_of_noise = gain_noise.sum(axis=-3, keepdims=True)
    deviation_noise = gain_noise * (1 - 2 / panels) + sum_of_noise / panels**2
    tested = mean_interval(deviations, noise=deviation_noise)
    smallest = tested.p.min(axis=-2)
    tests = panels if panels > 2 else 1
    return np.asarray(np.minimum(smallest * tests, 1.0))


@dataclass(frozen=True, slots=True, eq=False)
class _Family:
    """What is tested together. The fields are those of `compute_family_tests`; with several panels the last one is their mean."""

    counted: Bool[np.ndarray, "panels regimes"]
    panel_weight: Float[np.ndarray, "panels"]
    ours: Places
    theirs: Places

    @property
    def regimes(self) -> int:
        """Count the regimes."""
        return int(self.counted.shape[-1])

    def index_pairs(self) -> tuple[Int[np.ndarray, "pairs"], Int[np.ndarray, "pairs"]]:
        """Return both places of each pair: the upper triangle, since each pair is tested once."""
        first, second = np.triu_indices(self.regimes, 1)
        return first, second

    def mark_references(self) -> Bool[np.ndarray, "regimes regimes"]:
        """Mark, in the upper triangle, the pairs of a regime and its reference.

        Of three regimes, of which 1 and 2 are compared with 0, the places (0, 1) and (0, 2) are marked.
        """
        lower = np.minimum(self.ours, self.theirs)
        upper = np.maximum(self.ours, self.theirs)
        marked = np.zeros((self.regimes, self.regimes), dtype=bool)
        marked[lower, upper] = True
        return marked

    def select_pairs(self, values: Matrix) -> Pairs:
        """Return the values of the pairs whose regimes are both counted, NaN for the others."""
        first, second = self.index_pairs()
        both_counted = self.counted[..., first] & self.counted[..., second]  # (panels, pairs)
        return np.where(both_counted, values[..., first, second], np.nan)

    def fill_matrix(self, of_pairs: Pairs, diagonal: float) -> Matrix:
        """Put the values of the pairs into both triangles of (*draws, panels, regimes, regimes)."""
        first, second = self.index_pairs()
        matrix = np.full((*of_pairs.shape[:-1], self.regimes, self.regimes), diagonal)
        matrix[..., first, second] = of_pairs
        matrix[..., second, first] = of_pairs
        return matrix


def _correct_family(
    family: _Family, difference: Estimate, spread: Float[np.ndarray, "*draws regimes"]
) -> tuple[Matrix, Matrix, Matrix, Float[np.ndarray, "*draws regimes"]]:
    """Correct the tests of all pairs and of `spread`, which is that of `FamilyTests`, together.

    Returns, as in `FamilyTests`, p, level and planned of shape (*draws, panels, regimes, regimes), and spread_p.
    """
    with_reference = family.mark_references()
    pairs = family.select_pairs(difference.p)
    pair_weight = _weigh_pairs(pairs, with_reference[family.index_pairs()])
    pair_weight = pair_weight * family.panel_weight[:, None]

    # One row of tests: the pairs of all panels, then the regimes' spreads, each of weight 1
    in_a_row = (*pairs.shape[:-2], -1)
    tests = np.concatenate([pairs.reshape(in_a_row), spread], axis=-1)
    weight = np.concatenate([pair_weight.reshape(in_a_row), np.ones_like(spread)], axis=-1)
    adjusted, levels = correct_by_holm(tests, weight)
    known_weight = np.where(np.isnan(tests), 0.0, weight)
    total = known_weight.sum(axis=-1, keepdims=True)
    planned_levels = 1 - ALPHA * weight / np.where(total, total, 1)

    def as_matrix(values: Float[np.ndarray, "*draws tests"], diagonal: float) -> Matrix:
        """Return the pairs' part of a row of tests as a matrix."""
        of_pairs = values[..., : -family.regimes].reshape(pairs.shape)
        return family.fill_matrix(of_pairs, diagonal)

    p = as_matrix(adjusted, 1.0)
    p = np.where(np.isnan(p), 1.0, p)
    # a comparison with a reference keeps its own p-value, which its interval belongs to
    fixed = with_reference | with_reference.T
    p = _close_by_transitivity(p, difference, fixed)
    level = as_matrix(levels, np.nan)
    planned = as_matrix(planned_levels, np.nan)
    return p, level, planned, adjusted[..., -family.regimes :]


def _weigh_pairs(p_values: Pairs, with_reference: Bool[np.ndarray, "pairs"]) -> Pairs:
    """Return the weight 1 for a comparison with a reference; all others of a panel have 1 together. NaN p-values do not count."""
    others = ~with_reference & ~np.isnan(p_values)
    count = others.sum(axis=-1, keepdims=True)  # (*draws, panels, 1)
    share = 1 / np.maximum(count, 1)
    return np.where(others, share, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """What is known of the regimes on one panel, or on the mean of all.

    difference, p: as in `FamilyTests`. gains, gain_p: over each regime's reference, NaN without one. corrected: lower and
    upper end of the interval that leaves out 0 exactly where `gain_p` <= ALPHA. planned_level: of that interval before any
    test is rejected. detectable: the smallest gain found at that level with 80 % power. groups: letters of tie groups. best:
    whether a regime cannot be told from the best mean. uneven: whether the gain's mean over panels would mislead. Means,
    gains and intervals are fractions.
    """

    own: Estimate
    difference: Estimate
    p: Matrix
    gains: Estimate
    gain_p: ByRegime
    corrected: Float[np.ndarray, "2 regimes"]
    planned_level: ByRegime
    margin: float
    detectable: Array
    groups: tuple[str, ...]
    best: tuple[bool, ...]
    uneven: Bool[np.ndarray, "regimes"]
    verdicts: tuple[str, ...]


def compare_regimes(
    scores: Float[np.ndarray, "panels regimes seeds"],
    noise: Float[np.ndarray, "panels regimes seeds"],
    references: Sequence[int | None],
    margin: float = MARGIN,
    withheld: Shaped[np.ndarray, "panels regimes"] | None = None,
    chosen: Bool[np.ndarray, "panels"] | None = None,
) -> list[Comparison]:
    """Compare the regimes on each panel, then on the mean of the chosen panels (or on the only one of them).

    withheld: why a regime gets no verdict on a panel, one of WITHHELD, or empty. The other arguments are those of
    `compute_family_tests`. The list has one more element than there are panels.
    """
    if withheld is None:
        withheld = np.full(scores.shape[:2], "", dtype=object)
    # A regime that is absent from a panel has no reason in `withheld`, and looks free. Where the verdict on another regime is
    # withheld, the absent one does not count as free: the panel would have a verdict that no regime there has. Elsewhere it counts,
    # so that its absence does not take the panel's mean out of the family.
    present = ~np.isnan(scores).all(axis=-1)  # (panels, regimes)
    free = withheld == ""
    known = present | free.all(axis=-1, keepdims=True)
    tests = compute_family_tests(scores, noise, references, free & known, chosen)
    # Any of the reasons on the panels of the mean: the empty text is the smallest
    reason_on_mean = withheld[tests.inside].max(axis=0, initial="")  # (regimes,)
    reasons = np.vstack([withheld, reason_on_mean])
    # An uncorrected test of the panels' spread is enough to doubt a mean, so that no EQUIVALENT stands over gains that cancel out;
    # that the panels differ is said only where the corrected one (`spread_p`) tells it
    told_apart = np.asarray(tests.spread <= ALPHA)
    differs = _gains_beyond_margin(tests, references, margin) & told_apart
    comparisons = []
    for panel in range(tests.p.shape[0]):
        uneven = differs & (panel == len(scores))
        comparisons.append(_compare_on_panel(tests, panel, references, margin, reasons[panel], uneven))
    if len(comparisons) > len(scores):
        return comparisons
    # The mean of one panel is that panel
    only = int(tests.inside.argmax())
    return [*comparisons, comparisons[only]]


def _reference_places(references: Sequence[int | None]) -> Int[np.ndarray, "regimes"]:
    """Return the place of each regime's reference, its own where it has none."""
    places = [own if reference is None else reference for own, reference in enumerate(references)]
    return np.array(places, dtype=np.intp)


def _gains_beyond_margin(
    tests: FamilyTests, references: Sequence[int | None], margin: float
) -> Bool[np.ndarray, "regimes"]:
    """Say of which regimes the largest and the smallest gain on a panel of the mean are further apart than the margin."""
    # The place (row, column) of each regime's gain: with the references [None, 0, 0] these are (0, 0), (1, 0) and (2, 0)
    rows = np.arange(len(references))
    columns = _reference_places(references)
    # without the mean's own row, which is the last one
    of_panels = tests.difference.mean[: len(tests.inside)]
    of_mean = of_panels[tests.inside]  # (panels of the mean, regimes, regimes)
    gains = of_mean[:, rows, columns]
    largest = gains.max(axis=0, initial=-np.inf)
    smallest = gains.min(axis=0, initial=np.inf)
    return np.asarray(largest - smallest > margin)


def _compare_on_panel(
    tests: FamilyTests,
    panel: int,
    references: Sequence[int | None],
    margin: float,
    reasons: Shaped[np.ndarray, "regimes"],
    uneven: Bool[np.ndarray, "regimes"],
) -> Comparison:
    """Gather what the tests say of one panel, or of the mean; reasons: why verdicts are withheld, or empty."""
    rows = np.arange(len(references))
    columns = _reference_places(references)
    own = tests.own[panel]
    p = tests.p[panel]  # (regimes, regimes)
    gains = tests.difference[panel, rows, columns]  # of (regimes,)
    without_reference = np.array([reference is None for reference in references], dtype=bool)
    blank = without_reference | (gains.n == 0)
    gains = _blank_out(gains, blank)
    interval_level = np.where(blank, np.nan, tests.level[panel, rows, columns])
    untested = np.isnan(interval_level)
    planned = np.where(untested, np.nan, tests.planned[panel][rows, columns])
    gain_p = np.where(untested, np.nan, p[rows, columns])
    detectable = minimum_detectable(gains.error, gains.n, level=planned)

    def judge_regime(i: int) -> str:
        """Return the verdict on one regime."""
        if blank[i]:
            return BASELINE if i in references else ALONE
        if uneven[i] and tests.spread_p[i] <= ALPHA:
            return DIFFERS
        if untested[i] and reasons[i]:
            return str(reasons[i])
        judged = judge_gain(gains[i], float(gain_p[i]), margin)
        # Gains that cancel out in the mean are not "no effect"
        return INCONCLUSIVE if judged == EQUIVALENT and uneven[i] else judged

    groups = _letter_groups(own.mean, p <= ALPHA)
    verdicts = [judge_regime(i) for i in range(len(references))]
    return Comparison(
        own=own,
        difference=tests.difference[panel],
        p=p,
        gains=gains,
        gain_p=gain_p,
        corrected=_interval_at_level(gains, interval_level),
        planned_level=planned,
        margin=margin,
        detectable=detectable,
        groups=groups,
        best=_mark_best(own.mean, groups),
        uneven=uneven,
        verdicts=tuple(verdicts),
    )


def _interval_at_level(gains: Estimate, level: ByRegime) -> Float[np.ndarray, "2 regimes"]:
    """Return the lower and the upper end of each gain's Student t interval at a level of its own."""
    from scipy.special import stdtrit

    freedom = np.maximum(gains.n - 1, 1)
    half = stdtrit(freedom, 0.5 + level / 2) * gains.error
    low, high = gains.mean - half, gains.mean + half
    return np.stack([low, high])


def _mark_best(means: ByRegime, groups: Sequence[str]) -> tuple[bool, ...]:
    """Say of each regime whether it shares a letter with the one of the best mean. groups: letters of each regime."""
    if not any(groups):
        return tuple(False for _ in groups)
    leader = int(np.nanargmax(means))
    letters = set(groups[leader])
    return tuple(not letters.isdisjoint(group) for group in groups)


def _blank_out(estimate: Estimate, blank: Bool[np.ndarray, "regimes"]) -> Estimate:
    """Return the estimate with NaN, and no seeds, where `blank` holds.

    A regime without a reference stands in its own reference's place, so that its gain over itself came out as 0. NaN is shown as no
    number and judged as nothing; a gain of 0 with an interval of no width would be "no effect beyond the margin".
    """
    mean = np.where(blank, np.nan, estimate.mean)
    low = np.where(blank, np.nan, estimate.low)
    high = np.where(blank, np.nan, estimate.high)
    error = np.where(blank, np.nan, estimate.error)
    p = np.where(blank, np.nan, estimate.p)
    n = np.where(blank, 0, estimate.n)
    return Estimate(mean, low, high, error, p, n)


def judge_gain(difference: Estimate, adjusted: float, margin: float) -> str:
    """Judge one gain: an effect where the corrected test finds one, none where the 95 % interval lies inside the margin.

    difference: of a single gain. adjusted: its p-value, corrected. margin: in the unit of the gain.
    """
    if adjusted <= ALPHA:
        return GAINS if difference.mean > 0 else LOSES
    if -margin <= difference.low and difference.high <= margin:
        return EQUIVALENT
    return INCONCLUSIVE


def _close_by_transitivity(p: Matrix, difference: Estimate, fixed: Bool[np.ndarray, "regimes regimes"]) -> Matrix:
    """Lower the p-value of a pair to that of a chain: if A gains over B and B over C, A gains over C (our reading).

    The chain's p-value is the largest of its links', found for all pairs by the algorithm of Floyd and Warshall. This adds
    no error: where A does not gain over C, one of the links is a false finding already. fixed: pairs that stay as they are.
    """
    ahead = (difference.mean > 0) & (difference.p <= ALPHA)
    chain = np.where(ahead, p, 1.0)
    for middle in range(p.shape[-1]):
        to_middle = chain[..., :, middle, None]  # (*panels, regimes, 1)
        from_middle = chain[..., None, middle, :]  # (*panels, 1, regimes)
        through = np.maximum(to_middle, from_middle)
        chain = np.minimum(chain, np.where(ahead, through, 1.0))
    # a pair's p-value is the same from either side
    backward = np.swapaxes(chain, -1, -2)
    shortest = np.minimum(chain, backward)
    return np.where(fixed, p, np.minimum(p, shortest))


def _letter_groups(means: ByRegime, apart: Bool[np.ndarray, "regimes regimes"]) -> tuple[str, ...]:
    """Give letters to regimes, so that two share one exactly where they are not `apart`; a is of the best mean.

    This is a compact letter display by the method "insert and absorb" (Piepho, J. Comput. Graph. Statist. 13, 2004). A regime
    without a mean has no letter.
    """
    order = np.argsort(-means, kind="stable")
    ranked = [int(i) for i in order if not np.isnan(means[i])]
    groups = [frozenset(ranked)] if ranked else []
    for i, j in combinations(ranked, 2):
        if apart[i, j]:
            groups = _split_groups(groups, i, j)
    groups = _drop_superfluous(groups)
    place = {regime: i for i, regime in enumerate(ranked)}
    groups.sort(key=lambda group: sorted(place[i] for i in group))
    # letters of other alphabets follow where the Latin ones do not suffice
    more_letters = map(chr, range(0x100, 0x100 + len(groups)))
    letters = [*ascii_letters, *more_letters]
    of_regime = [""] * len(means)
    for letter, group in zip(letters, groups, strict=False):
        for regime in group:
            of_regime[regime] += letter
    return tuple(of_regime)


def _drop_superfluous(groups: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Drop each group of which every pair is together in another one; small groups go first."""
    kept = list(groups)
    for group in sorted(groups, key=lambda group: (len(group), sorted(group))):
        others = [other for other in kept if other != group]
        pairs = product(group, repeat=2)
        if all(any({i, j} <= other for other in others) for i, j in pairs):
            kept = others
    return kept


def _split_groups(groups: Sequence[frozenset[int]], i: int, j: int) -> list[frozenset[int]]:
    """Split each group that holds both i and j into one without each, and drop those that lie inside another."""
    split: set[frozenset[int]] = set()
    for group in groups:
        if {i, j} <= group:
            split.add(group - {i})
            split.add(group - {j})
        else:
            split.add(group)
    return [part for part in split if not any(part < other for other in split)]
