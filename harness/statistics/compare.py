"""Paired comparisons of two regimes, corrected for how many are shown, and what they could have seen."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from harness.statistics.intervals import Array, Estimate, mean_interval

ALPHA = 0.05
"""The probability of any false finding in a family."""
MOST_SEEDS = 1000
"""Nobody is told to run more."""


def paired(ours: ArrayLike, theirs: ArrayLike, level: float = 0.95, noise: ArrayLike | None = None) -> Estimate:
    """Differences by seed with Student t interval and p-value; a pair with a NaN is missing.

    Regimes of one seed see the same prompts and start from the same samples, so the pairs cancel what seeds share.
    The question set is taken as given: the interval speaks of other seeds, not of other questions.

    Parameters
    ----------
    ours, theirs
        (..., seeds) accuracies, seeds in equal order.
    level
        Of the interval, in (0, 1).
    noise
        (..., seeds) variance of each difference: given the questions both sides answer for themselves, so it is the sum of their
        `sampling_variance`.
    """
    return mean_interval(np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64), level, noise)


@dataclass(frozen=True, slots=True, eq=False)
class QuestionComparison:
    """Two regimes question by question.

    Attributes
    ----------
    difference
        Over questions, each the mean over seeds.
    wins, losses, draws
        Questions on which ours did better, worse, equally well.
    sign_p
        Exact two-sided sign test on wins and losses.
    """

    difference: Estimate
    wins: int
    losses: int
    draws: int
    sign_p: float


def paired_by_question(
    ours: Float[np.ndarray, "seeds questions"], theirs: Float[np.ndarray, "seeds questions"], level: float = 0.95
) -> QuestionComparison:
    """Finer than by seed, and narrower in meaning: it takes the trained checkpoints as given and speaks of questions.

    Parameters
    ----------
    ours, theirs
        (seeds, questions) accuracies per question (means over repeats); NaN is missing.
    level
        Of the interval, in (0, 1).
    """
    from scipy.special import bdtr

    gaps = np.atleast_2d(np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64))
    present = ~np.isnan(gaps)
    counts = present.sum(axis=0)
    means = np.where(present, gaps, 0.0).sum(axis=0)[counts > 0] / counts[counts > 0]
    wins, losses = int((means > 1e-12).sum()), int((means < -1e-12).sum())
    decided = wins + losses
    sign = min(1.0, 2.0 * float(bdtr(min(wins, losses), decided, 0.5))) if decided else 1.0
    return QuestionComparison(mean_interval(means, level), wins, losses, means.size - decided, sign)


def holm(p_values: Float[np.ndarray, "... k"], weights: ArrayLike = 1.0, alpha: float = ALPHA) -> tuple[Array, Array]:
    """Holm's step-down correction of one family of p-values (Scand. J. Statist. 6, 1979), or of several at once.

    Parameters
    ----------
    p_values
        (..., k), a family in each row; NaN ones do not count.
    weights
        How much of the family's error each may use up (his section 4); all alike without them.
    alpha
        The family's error.

    Returns
    -------
    :
        (..., k) adjusted p-values, and the level of the interval that belongs to each: that of the step at which it was tested, so
        that the interval leaves out 0 exactly where the adjusted p-value is at most alpha.
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
        found = ranked <= alpha
        stopped = np.where(found, 0.0, left).max(axis=-1, keepdims=True, initial=0.0)
        levels = 1 - alpha * share / np.where(found, left, stopped)
    adjusted, level = np.full(p.shape, np.nan), np.full(p.shape, np.nan)
    np.put_along_axis(adjusted, order, ranked, axis=-1)
    np.put_along_axis(level, order, levels, axis=-1)
    return np.where(known, adjusted, np.nan), np.where(known, level, np.nan)


def minimum_detectable(error: ArrayLike, n: ArrayLike, power: float = 0.8, level: ArrayLike = 0.95) -> Array:
    """The smallest true difference that a paired t test finds with the given power.

    Exact by the noncentral t distribution, the far tail left out.

    Parameters
    ----------
    error
        Standard error of the mean difference (`Estimate.error`).
    n
        Seeds.
    power
        In (0, 1).
    level
        Of the test, in (0, 1).

    Returns
    -------
    :
        In the unit of `error`; NaN where n < 2.
    """
    from scipy.special import nctdtrinc, stdtrit

    # the inverse function is slow, and most are alike
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
    """The fewest seeds with which a paired t test finds a true difference of `effect` with the given power.

    Parameters
    ----------
    spread
        Standard deviation of the differences between seeds.
    effect
        In the unit of `spread`.
    power
        In (0, 1).
    level
        Of the test, in (0, 1).

    Returns
    -------
    :
        At least 2; None where it takes more than MOST_SEEDS.
    """

    def enough(seeds: int) -> bool:
        return bool(_errors_to_detect(seeds, power, level) * (spread / np.sqrt(seeds)) <= effect)

    found = bisect_left(range(MOST_SEEDS + 1), True, lo=2, key=enough)
    return found if found <= MOST_SEEDS else None
