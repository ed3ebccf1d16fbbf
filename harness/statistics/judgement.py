"""One rule for everything that a screen says about significance: gains, verdicts, tie groups and p-values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from string import ascii_letters

import numpy as np
from jaxtyping import Bool, Float, Int

from harness.statistics.compare import holm, minimum_detectable, paired
from harness.statistics.intervals import Array, Estimate, mean_interval

GAINS, LOSES, WITHIN, UNTOLD = "gains", "loses", "no effect beyond the margin", "cannot tell"
BASELINE, ALONE = "baseline", "not compared"
VERDICTS = (GAINS, LOSES, WITHIN, UNTOLD, BASELINE, ALONE)
ALPHA = 0.05
"""The probability of any false finding on a screen."""
MARGIN = 0.02
"""Accuracy below which an effect is of no interest, where the user names none."""

Matrix = Float[np.ndarray, "regimes regimes"]


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """What the seeds say of several regimes.

    Attributes
    ----------
    own
        Each one's mean.
    difference
        Of each pair, row minus column, paired by seed.
    p
        (regimes, regimes) of each pair, adjusted for the whole family.
    gains, gain_p
        Those against each regime's reference, NaN where it has none.
    level, margin
        That to which the correction brings a single comparison, and the accuracy below which an effect is of no interest.
    detectable
        The smallest gain that would have been found with 80 % power, at that level.
    groups
        Letters of each regime's tie groups; two regimes are told apart exactly where they share no letter (compact letter
        display: Piepho, J. Comput. Graph. Statist. 13, 2004).
    best
        Those that cannot be told from the best mean.
    verdicts
        One of VERDICTS each.
    """

    own: Estimate
    difference: Estimate
    p: Matrix
    gains: Estimate
    gain_p: Float[np.ndarray, "regimes"]
    level: float
    margin: float
    detectable: Array
    groups: tuple[str, ...]
    best: tuple[bool, ...]
    verdicts: tuple[str, ...]


def judge(
    scores: Float[np.ndarray, "regimes seeds"],
    noise: Float[np.ndarray, "regimes seeds"],
    references: Sequence[int | None],
    margin: float = MARGIN,
) -> Judgement:
    """All pairs by a paired t test, corrected as one family by Holm's method, and what follows from that.

    Comparisons with the reference count one each in the correction and all the other pairs together one more: the question
    is what the reference is for, and the others would otherwise drown it. Whoever gains over a regime that gains over a
    third one gains over the third as well: that follows from the two and adds no error.

    Each pair is tested with its own error. One error pooled over all regimes would have more degrees of freedom, and
    would be wrong where one regime escapes a local optimum on some seeds only: its error is ten times that of the others.

    Parameters
    ----------
    scores
        (regimes, seeds) accuracies; NaN ones are missing.
    noise
        (regimes, seeds) `sampling_variance` of each.
    references
        The row that each regime is compared with; None for none.
    margin
        Accuracy below which an effect is of no interest.
    """
    difference = paired(scores[:, None], scores[None], noise=noise[:, None] + noise[None])
    compared = np.array([r is not None for r in references], dtype=bool)
    rows = np.arange(len(scores))
    columns = np.array([i if r is None else r for i, r in enumerate(references)], dtype=np.int64)
    p, total = _adjusted(difference, rows[compared], columns[compared])
    gains = difference[rows, columns]
    blank = ~compared | (gains.n == 0)
    mean, low, high, error, raw = (
        np.where(blank, np.nan, v) for v in (gains.mean, gains.low, gains.high, gains.error, gains.p)
    )
    gains = Estimate(mean, low, high, error, raw, np.where(blank, 0, gains.n))
    gain_p = np.where(blank, np.nan, p[rows, columns])
    used = {r for r in references if r is not None}
    verdicts = [
        (BASELINE if i in used else ALONE) if blank[i] else verdict(gains[i], float(gain_p[i]), margin) for i in rows
    ]
    own = mean_interval(scores, noise=noise)
    level = 1 - ALPHA / max(total, 1.0)
    detectable = minimum_detectable(gains.error, gains.n, level=level)
    groups = _letters(own.mean, p <= ALPHA)
    leader = groups[int(np.nanargmax(own.mean))] if any(groups) else ""
    best = tuple(not set(leader).isdisjoint(group) for group in groups)
    return Judgement(own, difference, p, gains, gain_p, level, margin, detectable, groups, best, tuple(verdicts))


def verdict(difference: Estimate, adjusted: float, margin: float) -> str:
    """The one rule of what a screen says of a gain.

    An effect where the corrected test finds one; none beyond the margin where the interval lies inside it; else one cannot tell.

    Parameters
    ----------
    difference
        To the reference.
    adjusted
        Its p-value, corrected.
    margin
        Accuracy below which an effect is of no interest.

    Returns
    -------
    :
        `gains`, `loses`, `no effect beyond the margin` or `cannot tell`.
    """
    if adjusted <= ALPHA:
        return GAINS if difference.mean > 0 else LOSES
    return WITHIN if -margin <= difference.low and difference.high <= margin else UNTOLD


def _adjusted(difference: Estimate, ours: Int[np.ndarray, "k"], theirs: Int[np.ndarray, "k"]) -> tuple[Matrix, float]:
    """Adjusted p-values of all pairs, and the weight of the whole family in comparisons with a reference."""
    size = len(difference.p)
    weights = np.zeros((size, size))
    weights[np.minimum(ours, theirs), np.maximum(ours, theirs)] = 1.0
    first, second = np.triu_indices(size, 1)
    raw, weight = difference.p[first, second], weights[first, second]
    other = (weight == 0) & ~np.isnan(raw)
    weight[weight == 0] = 1 / max(other.sum(), 1)
    p = np.ones((size, size))
    p[first, second] = p[second, first] = holm(raw, weight)
    ahead = (difference.mean > 0) & (difference.p <= ALPHA)
    chain = np.where(ahead, p, 1.0)
    for middle in range(size):
        chain = np.minimum(chain, np.where(ahead, np.maximum(chain[:, middle, None], chain[None, middle]), 1.0))
    return np.minimum(p, np.minimum(chain, chain.T)), float(weight[~np.isnan(raw)].sum())


def _letters(means: Float[np.ndarray, "regimes"], apart: Bool[np.ndarray, "regimes regimes"]) -> tuple[str, ...]:
    """A compact letter display: insert and absorb (Piepho, J. Comput. Graph. Statist. 13, 2004), a for the best mean."""
    ranked = [int(i) for i in np.argsort(-means, kind="stable") if not np.isnan(means[i])]
    groups = [frozenset(ranked)] if ranked else []
    for i, j in combinations(ranked, 2):
        if apart[i, j]:
            split = {part for group in groups for part in ((group - {i}, group - {j}) if {i, j} <= group else (group,))}
            groups = [part for part in split if not any(part < other for other in split)]
    for group in sorted(groups, key=lambda g: (len(g), sorted(g))):  # small ones that the others make superfluous
        others = [g for g in groups if g != group]
        if all(any({i, j} <= g for g in others) for i in group for j in group):
            groups = others
    place = {regime: i for i, regime in enumerate(ranked)}
    groups.sort(key=lambda group: sorted(place[i] for i in group))
    letters = [*ascii_letters, *map(chr, range(0x100, 0x100 + len(groups)))]
    return tuple("".join(letters[k] for k, group in enumerate(groups) if i in group) for i in range(len(means)))
