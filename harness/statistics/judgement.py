"""One rule for everything that a screen says about significance: gains, verdicts, tie groups, p-values and their intervals.

A family is all that is compared under one choice of policy and metric: every group and benchmark (a panel each), their mean, and
whether they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from string import ascii_letters

import numpy as np
from jaxtyping import Bool, Float, Shaped

from harness.statistics.compare import ALPHA, holm, minimum_detectable, paired
from harness.statistics.intervals import Array, Estimate, mean_interval

GAINS, LOSES, WITHIN, UNTOLD = "gains", "loses", "no effect beyond the margin", "cannot tell"
DIFFERS = "differs between groups"
FLOOR, CEILING = "withheld: no answer was right", "withheld: every answer was right"
IDLE = "withheld: the baseline learnt nothing"
WITHHELD = (FLOOR, CEILING, IDLE)
BASELINE, ALONE = "baseline", "not compared"
VERDICTS = (GAINS, LOSES, DIFFERS, WITHIN, UNTOLD, *WITHHELD, BASELINE, ALONE)
MARGIN = 0.02
"""Accuracy below which an effect is of no interest, where the user names none."""

Matrix = Float[np.ndarray, "regimes regimes"]
Panels = Float[np.ndarray, "*draws panels regimes seeds"]


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """What the seeds say of several regimes on one panel, or on the mean of all.

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
    corrected
        (2, regimes) ends of the interval of the gain that belongs to the verdict: it leaves out 0 exactly where `gain_p` is at most
        ALPHA.
    level, margin
        That to which the correction brings a single comparison before anything is found, and the accuracy below which an
        effect is of no interest.
    detectable
        The smallest gain that would have been found with 80 % power, at that level.
    groups
        Letters of each regime's tie groups; two regimes are told apart exactly where they share no letter (compact letter
        display: Piepho, J. Comput. Graph. Statist. 13, 2004).
    best
        Those that cannot be told from the best mean.
    uneven
        Of the mean: where one number would mislead, because panels differ by a test of its own that is not corrected.
    verdicts
        One of VERDICTS each.
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


@dataclass(frozen=True, slots=True, eq=False)
class Tests:
    """All tests of one family, or of several at once along the first axes. Panels, and behind them their mean if they are several.

    Attributes
    ----------
    own, difference
        (..., panels, regimes) and (..., panels, regimes, regimes).
    p, level, planned
        (..., panels, regimes, regimes) adjusted, of the interval that belongs to each pair, and before anything is found.
    spread, spread_p
        (..., regimes) p-values of "the gain is the same on all panels", raw and adjusted; NaN for a single panel.
    inside
        Panels that the mean is over.
    """

    own: Estimate
    difference: Estimate
    p: Float[np.ndarray, "*draws panels regimes regimes"]
    level: Float[np.ndarray, "*draws panels regimes regimes"]
    planned: Float[np.ndarray, "*draws panels regimes regimes"]
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
    """Paired t tests of all pairs on all panels and on their mean, and whether panels differ, as one family by Holm's method.

    Weights: a regime's comparison with its reference on the mean counts one, on all panels together one, and the test whether
    panels differ one; all other pairs count together as one comparison. The panels differ where the gain on one is not the mean
    gain over all, by a paired t test for each, the smallest p-value times the number of panels (Bonferroni): an analysis of
    variance supposes equal errors, and finds four times too much without them on five seeds.

    Each pair is tested with its own error. One error pooled over all regimes would have more degrees of freedom, and
    would be wrong where one regime escapes a local optimum on some seeds only: its error is ten times that of the others.

    Parameters
    ----------
    scores
        (..., panels, regimes, seeds) accuracies; NaN ones are missing. The mean has the seeds that are there on all panels.
    noise
        `sampling_variance` of each.
    references
        The row that each regime is compared with; None for none.
    counted
        What is judged; nothing is tested of the rest, and a panel of which nothing is judged is no part of the mean.
    chosen
        Panels that the mean is over; all without it.
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
    raw = np.where(
        (counted[..., :, None] & counted[..., None, :])[:, first, second], difference.p[..., first, second], np.nan
    )
    other = ~asked[first, second] & ~np.isnan(raw)
    weight = np.where(other, 1 / np.maximum(other.sum(axis=-1, keepdims=True), 1), 1.0) * shares[:, None]
    lead = raw.shape[:-2]
    whole = np.concatenate([raw.reshape(*lead, -1), spread], axis=-1)
    weight = np.concatenate([weight.reshape(*lead, -1), np.ones_like(spread)], axis=-1)
    adjusted, levels = holm(whole, weight)
    left = np.where(np.isnan(whole), 0.0, weight).sum(axis=-1, keepdims=True)
    p, level, planned = (np.full(difference.p.shape, empty) for empty in (1.0, np.nan, np.nan))
    for matrix, values in ((p, adjusted), (level, levels), (planned, 1 - ALPHA * weight / np.maximum(left, 1.0))):
        matrix[..., first, second] = matrix[..., second, first] = values[..., :-size].reshape(raw.shape)
    p = _closed(np.where(np.isnan(p), 1.0, p), difference, asked | asked.T)
    own = mean_interval(scores, noise=noise)
    return Tests(own, difference, p, level, planned, spread, adjusted[..., -size:], inside)


def judge(
    scores: Float[np.ndarray, "panels regimes seeds"],
    noise: Float[np.ndarray, "panels regimes seeds"],
    references: Sequence[int | None],
    margin: float = MARGIN,
    withheld: Shaped[np.ndarray, "panels regimes"] | None = None,
    chosen: Bool[np.ndarray, "panels"] | None = None,
) -> list[Judgement]:
    """`family`, and what follows from it: of each panel, and last of their mean, which is the panel where there is but one.

    Parameters
    ----------
    scores
        (panels, regimes, seeds) accuracies; NaN ones are missing.
    noise
        `sampling_variance` of each.
    references
        The row that each regime is compared with; None for none.
    margin
        Accuracy below which an effect is of no interest.
    withheld
        Why nothing is said of a regime on a panel (of WITHHELD), or an empty text.
    chosen
        Panels that the mean is over; all without it.
    """
    from scipy.special import stdtrit

    withheld = np.full(scores.shape[:2], "", dtype=object) if withheld is None else withheld
    tests = family(scores, noise, references, withheld == "", chosen)
    rows = np.arange(scores.shape[1])
    columns = np.array([i if r is None else r for i, r in enumerate(references)], dtype=np.intp)
    used = {r for r in references if r is not None}
    reasons = np.vstack([withheld, withheld[tests.inside].max(axis=0, initial="")])
    inside = tests.difference.mean[: len(scores)][tests.inside][:, rows, columns]
    wide = inside.max(axis=0, initial=-np.inf) - inside.min(axis=0, initial=np.inf) > margin
    found = []
    for k in range(tests.p.shape[0]):
        on_mean, p = k == len(scores), tests.p[k]
        gains = tests.difference[k, rows, columns]
        blank = np.array([r is None for r in references], dtype=bool) | (gains.n == 0)
        mean, low, high, error, raw = (
            np.where(blank, np.nan, v) for v in (gains.mean, gains.low, gains.high, gains.error, gains.p)
        )
        gains = Estimate(mean, low, high, error, raw, np.where(blank, 0, gains.n))
        level = np.where(blank, np.nan, tests.level[k, rows, columns])
        half = stdtrit(np.maximum(gains.n - 1, 1), 0.5 + level / 2) * error
        planned = np.where(np.isnan(level), np.nan, tests.planned[k, rows, columns])
        gain_p = np.where(np.isnan(level), np.nan, p[rows, columns])
        uneven = np.asarray(tests.spread <= ALPHA) & wide & on_mean
        verdicts = []
        for i in rows:
            if blank[i]:
                verdicts.append(BASELINE if i in used else ALONE)
            elif uneven[i] and tests.spread_p[i] <= ALPHA:
                verdicts.append(DIFFERS)
            elif reason := reasons[k, i] if np.isnan(level[i]) else "":
                verdicts.append(reason)
            else:
                said = verdict(gains[i], float(gain_p[i]), margin)
                verdicts.append(UNTOLD if said == WITHIN and uneven[i] else said)
        own = tests.own[k]
        groups = _letters(own.mean, p <= ALPHA)
        leader = groups[int(np.nanargmax(own.mean))] if any(groups) else ""
        best = tuple(not set(leader).isdisjoint(group) for group in groups)
        found.append(
            Judgement(
                own, tests.difference[k], p, gains, gain_p, np.stack([mean - half, mean + half]), planned, margin,
                minimum_detectable(error, gains.n, level=planned), groups, best, uneven, tuple(verdicts),
            )
        )  # fmt: skip
    return found if len(found) > len(scores) else [*found, found[int(tests.inside.argmax())]]


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


def _closed(
    p: Float[np.ndarray, "*panels regimes regimes"], difference: Estimate, asked: Bool[np.ndarray, "regimes regimes"]
) -> Float[np.ndarray, "*panels regimes regimes"]:
    """Whoever gains over a regime that gains over a third one gains over the third as well: that follows from the two and adds no
    error. Comparisons that were asked for stay what their own tests give."""
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
    for group in sorted(groups, key=lambda g: (len(g), sorted(g))):  # small ones that the others make superfluous
        others = [g for g in groups if g != group]
        if all(any({i, j} <= g for g in others) for i in group for j in group):
            groups = others
    place = {regime: i for i, regime in enumerate(ranked)}
    groups.sort(key=lambda group: sorted(place[i] for i in group))
    letters = [*ascii_letters, *map(chr, range(0x100, 0x100 + len(groups)))]
    return tuple("".join(letters[k] for k, group in enumerate(groups) if i in group) for i in range(len(means)))
