"""One rule of significance for gains, verdicts, tie groups, p-values and their intervals.

A family is all that is compared for one policy and metric: every group and benchmark (a panel each), their mean, and
whether they differ.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from string import ascii_letters

import numpy as np
from jaxtyping import Bool, Float, Shaped
from numpy.typing import ArrayLike

from harness.statistics.intervals import Array, Estimate, mean_interval

# The probability of any false finding in a family
ALPHA = 0.05
MOST_SEEDS = 1000
MARGIN = 0.02
"""Accuracy below which an effect is of no interest, where the user names none."""
GAINS, LOSES, EQUIVALENT, INCONCLUSIVE = "gains", "loses", "no effect beyond the margin", "cannot tell"
DIFFERS = "differs between groups"
FLOOR, CEILING = "withheld: no answer was right", "withheld: every answer was right"
IDLE = "withheld: the baseline learnt nothing"
WITHHELD = (FLOOR, CEILING, IDLE)
BASELINE, ALONE = "baseline", "not compared"

Matrix = Float[np.ndarray, "*panels regimes regimes"]
Panels = Float[np.ndarray, "*draws panels regimes seeds"]


def paired(ours: ArrayLike, theirs: ArrayLike, level: float = 0.95, noise: ArrayLike | None = None) -> Estimate:
    """Differences by seed along the last axis; a pair with a NaN is missing. noise: each difference's variance, the sum
    of both `sampling_variance`."""
    return mean_interval(np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64), level, noise)


def holm(p_values: Float[np.ndarray, "... k"], weights: ArrayLike = 1.0, alpha: float = ALPHA) -> tuple[Array, Array]:
    """Holm's step-down correction of a family in each row (Scand. J. Statist. 6, 1979); weights: of each test (section
    4). NaN p-values do not count.

    Returns adjusted p-values, and each one's level: its interval leaves out 0 exactly where the adjusted p-value is at
    most alpha.
    """
    p = np.asarray(p_values, dtype=np.float64)
    known = ~np.isnan(p)
    weight = np.where(known, np.broadcast_to(np.asarray(weights, dtype=np.float64), p.shape), 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        order = np.argsort(np.where(known, p / weight, np.inf), axis=-1, kind="stable")
        ranked, share = (np.take_along_axis(v, order, axis=-1) for v in (p, weight))
        left = np.cumsum(share[..., ::-1], axis=-1)[..., ::-1]
        steps = np.where(share > 0, ranked / share * left, 1.0)
        ranked = np.minimum(np.maximum.accumulate(steps, axis=-1), 1.0)
        rejected = ranked <= alpha
        stopped = np.where(rejected, 0.0, left).max(axis=-1, keepdims=True, initial=0.0)
        levels = 1 - alpha * share / np.where(rejected, left, stopped)
    adjusted, level = np.full(p.shape, np.nan), np.full(p.shape, np.nan)
    np.put_along_axis(adjusted, order, ranked, axis=-1)
    np.put_along_axis(level, order, levels, axis=-1)
    return np.where(known, adjusted, np.nan), np.where(known, level, np.nan)


def minimum_detectable(error: ArrayLike, n: ArrayLike, power: float = 0.8, level: ArrayLike = 0.95) -> Array:
    """The smallest true difference that a paired t test over n seeds finds with that power, in the unit of `error` (of
    the mean difference); NaN where n < 2. By the noncentral t distribution, without the far tail."""
    from scipy.special import nctdtrinc, stdtrit

    # the inverse is slow, and most are alike
    each = np.stack(np.broadcast_arrays(n, level)).reshape(2, -1)
    (counts, levels), place = np.unique(each, axis=1, return_inverse=True)
    freedom = np.maximum(counts - 1, 1)
    shift = nctdtrinc(freedom, 1 - power, stdtrit(freedom, 0.5 + levels / 2))
    wide = np.where(counts > 1, shift, np.nan)[place]
    return np.asarray(wide.reshape(np.shape(error)) * np.asarray(error, dtype=np.float64))


@lru_cache(maxsize=4 * MOST_SEEDS)
def _errors_to_detect(seeds: int, power: float, level: float) -> float:
    return float(minimum_detectable(1.0, seeds, power, level))


def seeds_to_detect(spread: float, effect: float, power: float = 0.8, level: float = 0.95) -> int | None:
    """The fewest seeds (from 2) with which a paired t test finds `effect` with that power; None beyond MOST_SEEDS.
    spread: standard deviation of the seeds' differences."""

    def enough(seeds: int) -> bool:
        return bool(_errors_to_detect(seeds, power, level) * (spread / np.sqrt(seeds)) <= effect)

    fewest = bisect_left(range(MOST_SEEDS + 1), True, lo=2, key=enough)
    return fewest if fewest <= MOST_SEEDS else None


@dataclass(frozen=True, slots=True, eq=False)
class Tests:
    """Tests of one family (or several along the first axes): panels, then their mean. difference, p, level, planned: of
    each pair, row minus column; adjusted p-value, its interval's level, and that before anything is found. spread,
    spread_p: p-values of "the gain is the same on all panels", raw and adjusted. inside: panels of the mean."""

    own: Estimate
    difference: Estimate
    p: Matrix
    level: Matrix
    planned: Matrix
    spread: Float[np.ndarray, "*draws regimes"]
    spread_p: Float[np.ndarray, "*draws regimes"]
    inside: Bool[np.ndarray, "panels"]


def family(
    scores: Panels,
    noise: Panels,
    references: Sequence[int | None],
    counted: Bool[np.ndarray, "panels regimes"] | None = None,
    chosen: Bool[np.ndarray, "panels"] | None = None,
) -> Tests:
    """Paired t tests of all pairs on all panels and on their mean, and whether panels differ, as one family by Holm's
    method.

    noise: `sampling_variance` of each score. references: the row that each regime is compared with. counted: what is
    judged. chosen: panels of the mean, which has the seeds that all have.

    Weights: one each for a regime's comparison with its reference on the mean, for those on all panels together, and
    for whether panels differ; all other pairs together one on the mean and one on the panels. Panels differ where the
    gain on one is not the mean gain: a paired t test each, smallest p-value times their number (Bonferroni).
    """
    size = scores.shape[-2]
    ours = np.array([i for i, r in enumerate(references) if r is not None], dtype=np.intp)
    theirs = np.array([r for r in references if r is not None], dtype=np.intp)
    counted = np.ones(scores.shape[-3:-1], dtype=bool) if counted is None else counted
    chosen = np.ones(len(counted), dtype=bool) if chosen is None else chosen
    judged = counted[:, ours].any(axis=-1)
    inside = chosen & judged if (chosen & judged).any() else chosen
    panels = int(inside.sum())
    shares = np.full(len(inside), 1 / max(judged.sum(), 1))
    spread = np.full((*scores.shape[:-3], size), np.nan)
    if panels > 1:
        parts, errors = scores[..., inside, :, :], noise[..., inside, :, :]
        gaps = parts[..., ours, :] - parts[..., theirs, :]
        each = errors[..., ours, :] + errors[..., theirs, :]
        apart = gaps - gaps.mean(axis=-3, keepdims=True)
        known = each * (1 - 2 / panels) + each.sum(axis=-3, keepdims=True) / panels**2
        least = mean_interval(apart, noise=known).p.min(axis=-2)
        spread[..., ours] = np.minimum(least * (panels if panels > 2 else 1), 1.0)
        scores = np.concatenate([scores, parts.mean(axis=-3, keepdims=True)], axis=-3)
        noise = np.concatenate([noise, errors.sum(axis=-3, keepdims=True) / panels**2], axis=-3)
        counted = np.concatenate([counted, counted[inside].all(axis=0, keepdims=True)])
        shares = np.append(shares, 1.0)
        spread[..., ~counted[-1]] = np.nan
    difference = paired(
        scores[..., None, :], scores[..., None, :, :], noise=noise[..., None, :] + noise[..., None, :, :]
    )
    first, second = np.triu_indices(size, 1)
    asked = np.zeros((size, size), dtype=bool)
    asked[np.minimum(ours, theirs), np.maximum(ours, theirs)] = True
    both = (counted[..., :, None] & counted[..., None, :])[:, first, second]
    raw = np.where(both, difference.p[..., first, second], np.nan)
    other = ~asked[first, second] & ~np.isnan(raw)
    weight = np.where(other, 1 / np.maximum(other.sum(axis=-1, keepdims=True), 1), 1.0) * shares[:, None]
    lead = raw.shape[:-2]
    whole = np.concatenate([raw.reshape(*lead, -1), spread], axis=-1)
    weight = np.concatenate([weight.reshape(*lead, -1), np.ones_like(spread)], axis=-1)
    adjusted, levels = holm(whole, weight)
    left = np.where(np.isnan(whole), 0.0, weight).sum(axis=-1, keepdims=True)
    p, level, planned = (np.full(difference.p.shape, empty) for empty in (1.0, np.nan, np.nan))
    for matrix, values in ((p, adjusted), (level, levels), (planned, 1 - ALPHA * weight / np.where(left, left, 1))):
        matrix[..., first, second] = matrix[..., second, first] = values[..., :-size].reshape(raw.shape)
    p = _closed(np.where(np.isnan(p), 1.0, p), difference, asked | asked.T)
    own = mean_interval(scores, noise=noise)
    return Tests(own, difference, p, level, planned, spread, adjusted[..., -size:], inside)


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """One panel, or the mean of all. difference, p: as in `Tests`. gains, gain_p: over each regime's reference, NaN
    without one. corrected: the interval that leaves out 0 exactly where `gain_p` <= ALPHA. level: before anything is
    found. detectable: at that level with 80 % power. groups: tie letters. uneven: where the mean would mislead."""

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


def compare(
    scores: Float[np.ndarray, "panels regimes seeds"],
    noise: Float[np.ndarray, "panels regimes seeds"],
    references: Sequence[int | None],
    margin: float = MARGIN,
    withheld: Shaped[np.ndarray, "panels regimes"] | None = None,
    chosen: Bool[np.ndarray, "panels"] | None = None,
) -> list[Comparison]:
    """Of each panel, then of their mean (or the only panel). withheld: of WITHHELD, or empty."""
    from scipy.special import stdtrit

    withheld = np.full(scores.shape[:2], "", dtype=object) if withheld is None else withheld
    known = ~np.isnan(scores).all(axis=-1) | (withheld == "").all(axis=-1, keepdims=True)
    tests = family(scores, noise, references, (withheld == "") & known, chosen)
    rows = np.arange(scores.shape[1])
    columns = np.array([i if r is None else r for i, r in enumerate(references)], dtype=np.intp)
    without = np.array([r is None for r in references], dtype=bool)
    reasons = np.vstack([withheld, withheld[tests.inside].max(axis=0, initial="")])
    inside = tests.difference.mean[: len(scores)][tests.inside][:, rows, columns]
    wide = inside.max(axis=0, initial=-np.inf) - inside.min(axis=0, initial=np.inf) > margin
    comparisons = []
    for k in range(tests.p.shape[0]):
        p, gains = tests.p[k], tests.difference[k, rows, columns]
        blank = without | (gains.n == 0)
        mean, low, high, error, raw, level = (
            np.where(blank, np.nan, v)
            for v in (gains.mean, gains.low, gains.high, gains.error, gains.p, tests.level[k, rows, columns])
        )
        gains = Estimate(mean, low, high, error, raw, np.where(blank, 0, gains.n))
        half = stdtrit(np.maximum(gains.n - 1, 1), 0.5 + level / 2) * error
        planned, gain_p = (np.where(np.isnan(level), np.nan, v[rows, columns]) for v in (tests.planned[k], p))
        uneven = np.asarray(tests.spread <= ALPHA) & wide & (k == len(scores))
        verdicts = []
        for i in rows:
            if blank[i]:
                verdicts.append(BASELINE if i in references else ALONE)
            elif uneven[i] and tests.spread_p[i] <= ALPHA:
                verdicts.append(DIFFERS)
            elif np.isnan(level[i]) and reasons[k, i]:
                verdicts.append(reasons[k, i])
            else:
                said = verdict(gains[i], float(gain_p[i]), margin)
                verdicts.append(INCONCLUSIVE if said == EQUIVALENT and uneven[i] else said)
        own = tests.own[k]
        groups = _letters(own.mean, p <= ALPHA)
        leader = groups[int(np.nanargmax(own.mean))] if any(groups) else ""
        best = tuple(not set(leader).isdisjoint(group) for group in groups)
        comparisons.append(
            Comparison(
                own, tests.difference[k], p, gains, gain_p, np.stack([mean - half, mean + half]), planned, margin,
                minimum_detectable(error, gains.n, level=planned), groups, best, uneven, tuple(verdicts),
            )
        )  # fmt: skip
    return comparisons if len(comparisons) > len(scores) else [*comparisons, comparisons[int(tests.inside.argmax())]]


def verdict(difference: Estimate, adjusted: float, margin: float) -> str:
    """Of a gain: an effect where the corrected test finds one, none where the interval lies inside the margin.
    adjusted: p-value."""
    if adjusted <= ALPHA:
        return GAINS if difference.mean > 0 else LOSES
    return EQUIVALENT if -margin <= difference.low and difference.high <= margin else INCONCLUSIVE


def _closed(p: Matrix, difference: Estimate, asked: Bool[np.ndarray, "regimes regimes"]) -> Matrix:
    """If A gains over B and B over C, A gains over C; this adds no error. Those `asked` stay."""
    ahead = (difference.mean > 0) & (difference.p <= ALPHA)
    chain = np.where(ahead, p, 1.0)
    for i in range(p.shape[-1]):
        chain = np.minimum(chain, np.where(ahead, np.maximum(chain[..., :, i, None], chain[..., None, i, :]), 1.0))
    return np.where(asked, p, np.minimum(p, np.minimum(chain, np.swapaxes(chain, -1, -2))))


def _letters(means: Float[np.ndarray, "regimes"], apart: Bool[np.ndarray, "regimes regimes"]) -> tuple[str, ...]:
    """A compact letter display: insert and absorb (Piepho, J. Comput. Graph. Statist. 13, 2004), a for the best mean."""
    ranked = [int(i) for i in np.argsort(-means, kind="stable") if not np.isnan(means[i])]
    groups = [frozenset(ranked)] if ranked else []
    for i, j in combinations(ranked, 2):
        if apart[i, j]:
            split = {part for group in groups for part in ((group - {i}, group - {j}) if {i, j} <= group else (group,))}
            groups = [part for part in split if not any(part < other for other in split)]
    for group in sorted(groups, key=lambda g: (len(g), sorted(g))):  # small ones that others make superfluous
        others = [g for g in groups if g != group]
        if all(any({i, j} <= g for g in others) for i in group for j in group):
            groups = others
    place = {regime: i for i, regime in enumerate(ranked)}
    groups.sort(key=lambda group: sorted(place[i] for i in group))
    letters = [*ascii_letters, *map(chr, range(0x100, 0x100 + len(groups)))]
    return tuple("".join(letters[k] for k, group in enumerate(groups) if i in group) for i in range(len(means)))
