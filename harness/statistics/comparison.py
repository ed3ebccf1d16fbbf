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
from itertools import combinations
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
Places = Int[np.ndarray, "compared"]


def estimate_paired_difference(
    ours: ArrayLike, theirs: ArrayLike, level: float = 0.95, noise: ArrayLike | None = None
) -> Estimate:
    """Estimate the mean of ours minus theirs by a paired t test over the last axis.

    ours, theirs: accuracies of the same seeds, shape (..., seeds); a pair with a NaN is missing. noise: the variance of
    each difference, which is the sum of both `sampling_variance`. The estimate has the shape (...).
    """
    differences = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    return mean_interval(differences, level, noise)


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
    weight = np.where(known, np.broadcast_to(np.asarray(weights, dtype=np.float64), p.shape), 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        order = np.argsort(np.where(known, p / weight, np.inf), axis=-1, kind="stable")
        ranked = np.take_along_axis(p, order, axis=-1)
        share = np.take_along_axis(weight, order, axis=-1)
        remaining = np.cumsum(share[..., ::-1], axis=-1)[..., ::-1]
        steps = np.where(share > 0, ranked / share * remaining, 1.0)
        ranked = np.minimum(np.maximum.accumulate(steps, axis=-1), 1.0)
        rejected = ranked <= alpha
        # Tests that are not rejected share the level of the step at which the method stopped
        stopped = np.where(rejected, 0.0, remaining).max(axis=-1, keepdims=True, initial=0.0)
        levels = 1 - alpha * share / np.where(rejected, remaining, stopped)
    adjusted = np.full(p.shape, np.nan)
    level = np.full(p.shape, np.nan)
    np.put_along_axis(adjusted, order, ranked, axis=-1)
    np.put_along_axis(level, order, levels, axis=-1)
    return np.where(known, adjusted, np.nan), np.where(known, level, np.nan)


def minimum_detectable(error: ArrayLike, n: ArrayLike, power: float = 0.8, level: ArrayLike = 0.95) -> Array:
    """Return the smallest true difference that a paired t test over n seeds finds with the probability `power`.

    error: standard error of the mean difference; the result has its unit and shape, and is NaN where n < 2. level: of
    the test's interval. The test statistic has a noncentral t distribution with n - 1 degrees of freedom; the noncentrality
    at which it exceeds the critical value with that power is the result over `error`. The chance of a significant result
    of the wrong sign is left out.
    """
    from scipy.special import nctdtrinc, stdtrit

    # The inverse is slow, and most counts and levels of a table are alike: each pair is computed once
    each = np.stack(np.broadcast_arrays(n, level)).reshape(2, -1)
    (counts, levels), place = np.unique(each, axis=1, return_inverse=True)
    freedom = np.maximum(counts - 1, 1)
    shift = nctdtrinc(freedom, 1 - power, stdtrit(freedom, 0.5 + levels / 2))
    wide = np.where(counts > 1, shift, np.nan)[place]
    return np.asarray(wide.reshape(np.shape(error)) * np.asarray(error, dtype=np.float64))


@lru_cache(maxsize=4 * MOST_SEEDS)
def _errors_to_detect(seeds: int, power: float, level: float) -> float:
    """Return `minimum_detectable` in units of the standard error."""
    return float(minimum_detectable(1.0, seeds, power, level))


def seeds_to_detect(spread: float, effect: float, power: float = 0.8, level: float = 0.95) -> int | None:
    """Return the fewest seeds (from 2) with which a paired t test finds `effect` with that power.

    spread: standard deviation of the seeds' differences, in the unit of `effect`. None stands for more than MOST_SEEDS.
    """

    def is_enough(seeds: int) -> bool:
        return bool(_errors_to_detect(seeds, power, level) * (spread / np.sqrt(seeds)) <= effect)

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
    """
    ours = np.array([place for place, reference in enumerate(references) if reference is not None], dtype=np.intp)
    theirs = np.array([reference for reference in references if reference is not None], dtype=np.intp)
    if counted is None:
        counted = np.ones(scores.shape[-3:-1], dtype=bool)
    if chosen is None:
        chosen = np.ones(len(counted), dtype=bool)
    judged = counted[:, ours].any(axis=-1)
    # A panel without a verdict is not in the mean, unless no chosen panel has one
    inside = chosen & judged
    if not inside.any():
        inside = chosen

    panel_weight = np.full(len(inside), 1 / max(judged.sum(), 1))
    spread = np.full((*scores.shape[:-3], len(references)), np.nan)
    if inside.sum() > 1:
        spread[..., ours] = compute_spread_p(scores[..., inside, :, :], noise[..., inside, :, :], ours, theirs)
        scores, noise = _append_mean(scores, noise, inside)
        counted = np.concatenate([counted, counted[inside].all(axis=0, keepdims=True)])
        panel_weight = np.append(panel_weight, 1.0)
        spread[..., ~counted[-1]] = np.nan

    own = mean_interval(scores, noise=noise)
    difference = estimate_paired_difference(
        scores[..., None, :], scores[..., None, :, :], noise=noise[..., None, :] + noise[..., None, :, :]
    )
    p, level, planned, spread_p = _correct_family(difference, counted, panel_weight, spread, ours, theirs)
    return FamilyTests(own, difference, p, level, planned, spread, spread_p, inside)


def _append_mean(scores: Panels, noise: Panels, inside: Bool[np.ndarray, "panels"]) -> tuple[Panels, Panels]:
    """Return scores and noise with one panel more: the mean over the panels `inside`, of seeds that all of these have."""
    mean = scores[..., inside, :, :].mean(axis=-3, keepdims=True)
    mean_noise = noise[..., inside, :, :].sum(axis=-3, keepdims=True) / int(inside.sum()) ** 2
    return np.concatenate([scores, mean], axis=-3), np.concatenate([noise, mean_noise], axis=-3)


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
    deviations = gains - gains.mean(axis=-3, keepdims=True)
    # The variance of x_i - mean(x) for independent x is v_i (1 - 2/k) + sum(v) / k^2
    deviation_noise = gain_noise * (1 - 2 / panels) + gain_noise.sum(axis=-3, keepdims=True) / panels**2
    smallest = mean_interval(deviations, noise=deviation_noise).p.min(axis=-2)
    tests = panels if panels > 2 else 1
    return np.asarray(np.minimum(smallest * tests, 1.0))


def _correct_family(
    difference: Estimate,
    counted: Bool[np.ndarray, "panels regimes"],
    panel_weight: Float[np.ndarray, "panels"],
    spread: Float[np.ndarray, "*draws regimes"],
    ours: Places,
    theirs: Places,
) -> tuple[Matrix, Matrix, Matrix, Float[np.ndarray, "*draws regimes"]]:
    """Correct the tests of all pairs and of `spread` together; the arguments are those of `compute_family_tests`.

    Returns, as in `FamilyTests`, p, level and planned of shape (*draws, panels, regimes, regimes), and spread_p.
    """
    regimes = counted.shape[-1]
    # Each pair is tested once: the upper triangle, in the order of `pairs`
    first, second = np.triu_indices(regimes, 1)
    with_reference = np.zeros((regimes, regimes), dtype=bool)
    with_reference[np.minimum(ours, theirs), np.maximum(ours, theirs)] = True
    both_counted = (counted[..., :, None] & counted[..., None, :])[:, first, second]
    pairs = np.where(both_counted, difference.p[..., first, second], np.nan)

    pair_weight = _weigh_pairs(pairs, with_reference[first, second]) * panel_weight[:, None]

    flat = (*pairs.shape[:-2], -1)
    family = np.concatenate([pairs.reshape(flat), spread], axis=-1)
    weight = np.concatenate([pair_weight.reshape(flat), np.ones_like(spread)], axis=-1)
    adjusted, levels = correct_by_holm(family, weight)
    total = np.where(np.isnan(family), 0.0, weight).sum(axis=-1, keepdims=True)
    planned_levels = 1 - ALPHA * weight / np.where(total, total, 1)

    def as_matrix(values: Float[np.ndarray, "*draws tests"], diagonal: float) -> Matrix:
        """Put the values of the pairs into both triangles."""
        matrix = np.full(difference.p.shape, diagonal)
        of_pairs = values[..., :-regimes].reshape(pairs.shape)
        matrix[..., first, second] = of_pairs
        matrix[..., second, first] = of_pairs
        return matrix

    p = as_matrix(adjusted, 1.0)
    p = _close_by_transitivity(np.where(np.isnan(p), 1.0, p), difference, with_reference | with_reference.T)
    return p, as_matrix(levels, np.nan), as_matrix(planned_levels, np.nan), adjusted[..., -regimes:]


def _weigh_pairs(
    p_values: Float[np.ndarray, "*draws panels pairs"], with_reference: Bool[np.ndarray, "pairs"]
) -> Float[np.ndarray, "*draws panels pairs"]:
    """Return the weight 1 for a comparison with a reference; all others of a panel have 1 together. NaN p-values do not count."""
    others = ~with_reference & ~np.isnan(p_values)
    share = 1 / np.maximum(others.sum(axis=-1, keepdims=True), 1)
    return np.where(others, share, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """What is known of the regimes on one panel, or on the mean of all.

    difference, p: as in `FamilyTests`. gains, gain_p: over each regime's reference, NaN without one. corrected: lower and
    upper end of the interval that leaves out 0 exactly where `gain_p` <= ALPHA. level: of that interval before any test
    is rejected. detectable: the smallest gain found at that level with 80 % power. groups: letters of tie groups. best:
    whether a regime cannot be told from the best mean. uneven: whether the gain's mean over panels would mislead. Means,
    gains and intervals are fractions.
    """

    own: Estimate
    difference: Estimate
    p: Matrix
    gains: Estimate
    gain_p: Float[np.ndarray, "regimes"]
    corrected: Float[np.ndarray, "2 regimes"]
    level: Float[np.ndarray, "regimes"]
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
    # A regime that is absent from a panel is no reason to take the panel's mean out of the family
    known = ~np.isnan(scores).all(axis=-1) | (withheld == "").all(axis=-1, keepdims=True)
    tests = compute_family_tests(scores, noise, references, (withheld == "") & known, chosen)
    reasons = np.vstack([withheld, withheld[tests.inside].max(axis=0, initial="")])
    differs = _gains_beyond_margin(tests, references, margin) & np.asarray(tests.spread <= ALPHA)
    comparisons = []
    for panel in range(tests.p.shape[0]):
        uneven = differs & (panel == len(scores))
        comparisons.append(_compare_on_panel(tests, panel, references, margin, reasons[panel], uneven))
    if len(comparisons) > len(scores):
        return comparisons
    # The mean of one panel is that panel
    return [*comparisons, comparisons[int(tests.inside.argmax())]]


def _reference_places(references: Sequence[int | None]) -> Int[np.ndarray, "regimes"]:
    """Return the place of each regime's reference, its own where it has none."""
    return np.array([i if reference is None else reference for i, reference in enumerate(references)], dtype=np.intp)


def _gains_beyond_margin(
    tests: FamilyTests, references: Sequence[int | None], margin: float
) -> Bool[np.ndarray, "regimes"]:
    """Say of which regimes the largest and the smallest gain on a panel of the mean are further apart than the margin."""
    rows = np.arange(len(references))
    of_panels = tests.difference.mean[: len(tests.inside)]
    gains = of_panels[tests.inside][:, rows, _reference_places(references)]
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
    from scipy.special import stdtrit

    rows = np.arange(len(references))
    columns = _reference_places(references)
    own = tests.own[panel]
    p = tests.p[panel]
    gains = tests.difference[panel, rows, columns]
    without_reference = np.array([reference is None for reference in references], dtype=bool)
    blank = without_reference | (gains.n == 0)
    gains = _blank_out(gains, blank)
    level = np.where(blank, np.nan, tests.level[panel, rows, columns])
    untested = np.isnan(level)
    planned = np.where(untested, np.nan, tests.planned[panel][rows, columns])
    gain_p = np.where(untested, np.nan, p[rows, columns])
    freedom = np.maximum(gains.n - 1, 1)
    half = stdtrit(freedom, 0.5 + level / 2) * gains.error

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
    leader = groups[int(np.nanargmax(own.mean))] if any(groups) else ""
    is_best = [not set(leader).isdisjoint(group) for group in groups]
    verdicts = [judge_regime(i) for i in range(len(references))]
    return Comparison(
        own=own,
        difference=tests.difference[panel],
        p=p,
        gains=gains,
        gain_p=gain_p,
        corrected=np.stack([gains.mean - half, gains.mean + half]),
        level=planned,
        margin=margin,
        detectable=minimum_detectable(gains.error, gains.n, level=planned),
        groups=groups,
        best=tuple(is_best),
        uneven=uneven,
        verdicts=tuple(verdicts),
    )


def _blank_out(estimate: Estimate, blank: Bool[np.ndarray, "regimes"]) -> Estimate:
    """Return the estimate with NaN, and no seeds, where `blank` holds."""
    return Estimate(
        mean=np.where(blank, np.nan, estimate.mean),
        low=np.where(blank, np.nan, estimate.low),
        high=np.where(blank, np.nan, estimate.high),
        error=np.where(blank, np.nan, estimate.error),
        p=np.where(blank, np.nan, estimate.p),
        n=np.where(blank, 0, estimate.n),
    )


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
        through = np.maximum(chain[..., :, middle, None], chain[..., None, middle, :])
        chain = np.minimum(chain, np.where(ahead, through, 1.0))
    shortest = np.minimum(chain, np.swapaxes(chain, -1, -2))
    return np.where(fixed, p, np.minimum(p, shortest))


def _letter_groups(means: Float[np.ndarray, "regimes"], apart: Bool[np.ndarray, "regimes regimes"]) -> tuple[str, ...]:
    """Give letters to regimes, so that two share one exactly where they are not `apart`; a is of the best mean.

    This is a compact letter display by the method "insert and absorb" (Piepho, J. Comput. Graph. Statist. 13, 2004). A regime
    without a mean has no letter.
    """
    ranked = [int(i) for i in np.argsort(-means, kind="stable") if not np.isnan(means[i])]
    groups = [frozenset(ranked)] if ranked else []
    for i, j in combinations(ranked, 2):
        if apart[i, j]:
            groups = _split_groups(groups, i, j)
    # A group is superfluous where each of its pairs is together in another one; small groups go first
    for group in sorted(groups, key=lambda group: (len(group), sorted(group))):
        others = [other for other in groups if other != group]
        if all(any({i, j} <= other for other in others) for i in group for j in group):
            groups = others
    place = {regime: i for i, regime in enumerate(ranked)}
    groups.sort(key=lambda group: sorted(place[i] for i in group))
    letters = [*ascii_letters, *map(chr, range(0x100, 0x100 + len(groups)))]
    return tuple("".join(letters[k] for k, group in enumerate(groups) if i in group) for i in range(len(means)))


def _split_groups(groups: Sequence[frozenset[int]], i: int, j: int) -> list[frozenset[int]]:
    """Split each group that holds both i and j into one without each, and drop those that lie inside another."""
    split: set[frozenset[int]] = set()
    for group in groups:
        if {i, j} <= group:
            split |= {group - {i}, group - {j}}
        else:
            split.add(group)
    return [part for part in split if not any(part < other for other in split)]
