"""Intervals: Student t over seeds, and the stratified bootstrap of Agarwal et al. (arXiv 2108.13264, section 4.1).

The bootstrap resamples runs (seeds) inside each task and keeps the tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

Array = Float[np.ndarray, "..."]


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """Means with Student t intervals, standard errors and two-sided p-values against 0; arrays of one batch shape.

    n: the number of values. All but the mean are NaN where n < 2.
    """

    mean: Array
    low: Array
    high: Array
    error: Array
    p: Array
    n: Int[np.ndarray, "..."]

    def __getitem__(self, index: Any) -> Estimate:
        """Return some of the means, as numpy indexes them."""
        return Estimate(*(getattr(self, field.name)[index] for field in fields(self)))


# A less probable spread is replaced by the one at this probability (`mean_interval`)
VARIANCE_FLOOR = 0.07


def mean_interval(values: ArrayLike, level: float = 0.95, noise: ArrayLike | None = None) -> Estimate:
    """Estimate means over the last axis with Student t intervals; NaN values are missing.

    values: shape (..., n), in any unit, which is that of mean, interval and error. level: of the interval. noise: the known
    variance of each value (`sampling_variance`), of the same shape. A few seeds may agree far closer by chance than their
    answers allow, so the variance is at least w chi2(0.07, n - 1) / (n - 1), where w is the mean noise. Intervals then cover
    at most 97 % (simulated; our reading).
    """
    from scipy.special import chdtri, stdtr, stdtrit

    x = np.asarray(values, dtype=np.float64)
    present = ~np.isnan(x)
    n = present.sum(axis=-1)
    freedom = np.maximum(n - 1, 1).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(present, x, 0.0).sum(axis=-1) / n
        # equal values must give exactly 0, which their mean's rounding would spoil
        shifted = x
        if x.shape[-1]:
            first = np.take_along_axis(x, present.argmax(axis=-1, keepdims=True), axis=-1)
            shifted = np.where(present, x - first, 0.0)
        centre = shifted.sum(axis=-1) / n
        variance = np.where(present, (shifted - centre[..., None]) ** 2, 0.0).sum(axis=-1) / (n - 1)
        if noise is not None:
            known = np.where(present, np.asarray(noise, dtype=np.float64), 0.0).sum(axis=-1) / n
            variance = np.maximum(variance, known * chdtri(freedom, 1 - VARIANCE_FLOOR) / freedom)
        error = np.where(n > 1, np.sqrt(variance / n), np.nan)
        half = stdtrit(freedom, 0.5 + level / 2) * error
        p = np.where(error == 0, np.where(mean == 0, 1.0, 0.0), 2 * stdtr(freedom, -np.abs(mean) / error))
    return Estimate(mean, mean - half, mean + half, error, np.where(n > 1, p, np.nan), n)


def sampling_variance(accuracy: ArrayLike, error: ArrayLike, questions: ArrayLike, answers: ArrayLike) -> Array:
    """Return the variance of an accuracy on given questions that comes from sampling the answers alone (our reading).

    accuracy: a, a fraction. error: its standard error over questions. questions, answers: their numbers, answers the valid
    ones. All are of one shape, which the result has.

    An answer to a question that is right with probability p_q has the variance p_q (1 - p_q). With k = answers / questions > 1
    answers to each, their mean variance over k questions is (a (1 - a) - (questions - 1) error^2) / ((k - 1) questions). With
    one answer to each the variances of answers and of questions cannot be told apart: half of error^2 is taken. The result is
    never less than 1 / answers^2.
    """
    a, e, n, total = (np.asarray(v, dtype=np.float64) for v in (accuracy, error, questions, answers))
    with np.errstate(invalid="ignore", divide="ignore"):
        repeats = total / n
        apart = (a * (1 - a) - (n - 1) * e**2) / ((repeats - 1) * n)
        variance = np.where(repeats > 1, apart, e**2 / 2)
        variance = np.where(np.isnan(variance), a * (1 - a) / (2 * total), variance)
        return np.maximum(variance, 1 / total**2)


def area_under_curve(steps: Float[np.ndarray, "points"], accuracy: Float[np.ndarray, "... points"]) -> Array:
    """Return the mean height of the curves between their first and last step, by the trapezoidal rule.

    steps: in any order. The result has the unit of `accuracy`.
    """
    order = np.argsort(np.asarray(steps, dtype=np.float64), kind="stable")
    x = np.asarray(steps, dtype=np.float64)[order]
    y = np.asarray(accuracy, dtype=np.float64)[..., order]
    if x.size == 1:
        return y[..., 0]
    return np.asarray(np.trapezoid(y, x, axis=-1) / (x[-1] - x[0]))


Scores = Float[np.ndarray, "runs tasks"]
Others = Float[np.ndarray, "others tasks"]


class BootstrapInterval(NamedTuple):
    """A statistic of the scores, and the ends of its percentile interval."""

    value: float
    low: float
    high: float


def iqm_interval(scores: Scores, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> BootstrapInterval:
    """Return the interquartile mean of all runs on all tasks (arXiv 2108.13264, section 4.3) and its bootstrap interval.

    `int(size / 4)` scores are cut off at each end. level: of the interval. seed: of the resampling, which is the same for
    scores of the same shape.
    """
    x = np.asarray(scores, dtype=np.float64)
    order = np.argsort(x, axis=None, kind="stable")
    cut = x.size // 4
    # How often each score is drawn, and how many draws of a resample lie below it: sorting each resample would be slower
    counts = _draw_counts(*x.shape, resamples, seed).transpose(2, 0, 1).reshape(x.size, resamples)
    below = counts[order].cumsum(axis=0).clip(cut, x.size - cut)
    inside = np.diff(below, axis=0, prepend=np.float32(cut))
    ranked = x.ravel()[order]
    return _quantile_interval(float(ranked[cut : x.size - cut].mean()), ranked @ inside / (x.size - 2 * cut), level)


def improvement_interval(
    ours: Scores, theirs: Others, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> BootstrapInterval:
    """Return the probability that a run of ours beats one of theirs, mean over tasks, and its bootstrap interval.

    On each task it is the Mann-Whitney U over the number of pairs; ties count half (arXiv 2108.13264, section 4.3).
    """
    gaps = np.asarray(ours).T[:, :, None] - np.asarray(theirs).T[:, None]
    beats = np.asarray((np.sign(gaps) + 1) / 2, dtype=np.float32)  # exact: halves
    mine = _draw_counts(*ours.shape, resamples, seed)
    other = _draw_counts(*theirs.shape, resamples, seed + 1)
    wins = (mine @ beats * other).sum(axis=(0, 2), dtype=np.float64)
    return _quantile_interval(float(beats.mean(dtype=np.float64)), wins / (len(ours) * theirs.size), level)


@lru_cache(maxsize=4)
def _draw_counts(runs: int, tasks: int, resamples: int, seed: int) -> Float[np.ndarray, "tasks resamples runs"]:
    """Draw how often each run is in each resample of each task; regimes of one table have the draws in common."""
    drawn = np.random.default_rng(seed).integers(0, runs, (tasks * resamples, runs))
    places = drawn + runs * np.arange(len(drawn))[:, None]
    return np.bincount(places.ravel(), minlength=places.size).astype(np.float32).reshape(tasks, resamples, runs)


def _quantile_interval(value: float, values: Float[np.ndarray, "resamples"], level: float) -> BootstrapInterval:
    """Return the percentile interval of the resampled values around the statistic itself."""
    low, high = np.quantile(values, [0.5 - level / 2, 0.5 + level / 2])
    return BootstrapInterval(value, float(low), float(high))
