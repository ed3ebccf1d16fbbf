"""Paired comparisons of two regimes, corrected for how many are shown, and what they could have seen."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from harness.statistics.intervals import Array, Estimate, mean_interval

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


def holm(p_values: Float[np.ndarray, "k"], weights: ArrayLike = 1.0) -> Float[np.ndarray, "k"]:
    """Holm's step-down adjustment of one family of p-values (Scand. J. Statist. 6, 1979).

    Parameters
    ----------
    p_values
        (k,); NaN ones do not count.
    weights
        How much of the family's error each may use up (his section 4); all alike without them.

    Returns
    -------
    :
        (k,) adjusted p-values.
    """
    p = np.asarray(p_values, dtype=np.float64)
    weight = np.broadcast_to(np.asarray(weights, dtype=np.float64), p.shape)
    adjusted = np.full(p.shape, np.nan)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known] / weight[known], kind="stable")]
    left = np.cumsum(weight[order][::-1])[::-1]
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] / weight[order] * left), 1.0)
    return adjusted


def minimum_detectable(error: ArrayLike, n: ArrayLike, power: float = 0.8, level: float = 0.95) -> Array:
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

    counts, place = np.unique(
        np.asarray(n), return_inverse=True
    )  # the inverse function is slow, and most have as many seeds
    freedom = np.maximum(counts - 1, 1).astype(np.float64)
    shift = nctdtrinc(freedom, 1 - power, stdtrit(freedom, 0.5 + level / 2))
    wide = np.where(counts > 1, shift, np.nan)[place].reshape(np.shape(n))
    return np.asarray(wide * np.asarray(error, dtype=np.float64))


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
