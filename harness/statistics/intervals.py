"""Intervals: Student t over seeds, and stratified bootstrap (Agarwal et al., arXiv 2108.13264): runs (seeds) are
resampled inside each task, tasks are kept."""

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
    """Means, Student t interval, standard error and two-sided p-value against 0; arrays of one batch shape.

    Of n < 2 values all but the mean are NaN.
    """

    mean: Array
    low: Array
    high: Array
    error: Array
    p: Array
    n: Int[np.ndarray, "..."]

    def __getitem__(self, index: Any) -> Estimate:
        """Some of the means, as numpy indexes them."""
        return Estimate(*(getattr(self, field.name)[index] for field in fields(self)))


# A less probable spread is replaced by the one at this probability (`mean_interval`)
VARIANCE_FLOOR = 0.07


def mean_interval(values: ArrayLike, level: float = 0.95, noise: ArrayLike | None = None) -> Estimate:
    """Mean and Student t interval over the last axis; NaN values are missing.

    noise: each value's known variance (`sampling_variance`). A few seeds may agree far closer by chance, so the
    variance is at least w chi2(0.07, n - 1) / (n - 1), w the mean noise. Intervals then cover at most 97 % (simulated;
    our reading).
    """
    from scipy.special import chdtri, stdtr, stdtrit

    x = np.asarray(values, dtype=np.float64)
    present = ~np.isnan(x)
    n = present.sum(axis=-1)
    freedom = np.maximum(n - 1, 1).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(present, x, 0.0).sum(axis=-1) / n
        # equal values must give exactly 0, which their mean's rounding would spoil
        first = np.take_along_axis(x, present.argmax(axis=-1, keepdims=True), axis=-1) if x.shape[-1] else x
        shifted = np.where(present, x - first, 0.0) if x.shape[-1] else x
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
    """Variance of an accuracy a on given questions that its answers alone make (our reading). error: the standard error
    over questions; answers: valid ones.

    With k = answers / questions > 1:  (a (1 - a) - (questions - 1) error^2) / ((k - 1) questions), for answers of
    probability p_q vary by p_q (1 - p_q). With one answer per question half of error^2. Never less than 1 / answers^2.
    """
    a, e, n, total = (np.asarray(v, dtype=np.float64) for v in (accuracy, error, questions, answers))
    with np.errstate(invalid="ignore", divide="ignore"):
        repeats = total / n
        apart = (a * (1 - a) - (n - 1) * e**2) / ((repeats - 1) * n)
        variance = np.where(repeats > 1, apart, e**2 / 2)
        variance = np.where(np.isnan(variance), a * (1 - a) / (2 * total), variance)
        return np.maximum(variance, 1 / total**2)


def area_under_curve(steps: Float[np.ndarray, "points"], accuracy: Float[np.ndarray, "... points"]) -> Array:
    """Mean height of the curves between first and last step (trapezoids), steps in any order."""
    x, y = np.asarray(steps, dtype=np.float64), np.asarray(accuracy, dtype=np.float64)
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[..., order]
    return y[..., 0] if x.size == 1 else np.asarray(np.trapezoid(y, x, axis=-1) / (x[-1] - x[0]))


Scores = Float[np.ndarray, "runs tasks"]
Others = Float[np.ndarray, "others tasks"]


class BootstrapInterval(NamedTuple):
    value: float
    low: float
    high: float


def iqm_interval(scores: Scores, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> BootstrapInterval:
    """Interquartile mean: of all runs on all tasks, `int(size / 4)` scores are cut off at each end."""
    x = np.asarray(scores, dtype=np.float64)
    order, cut = np.argsort(x, axis=None, kind="stable"), x.size // 4
    counts = _counts(*x.shape, resamples, seed).transpose(2, 0, 1).reshape(x.size, resamples)
    below = counts[order].cumsum(axis=0).clip(cut, x.size - cut)
    inside = np.diff(below, axis=0, prepend=np.float32(cut))
    ranked = x.ravel()[order]
    return _interval(float(ranked[cut : x.size - cut].mean()), ranked @ inside / (x.size - 2 * cut), level)


def improvement_interval(
    ours: Scores, theirs: Others, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> BootstrapInterval:
    """Probability that a run of ours beats one of theirs on a task, ties half, mean over tasks (Mann-Whitney U /
    nm)."""
    gaps = np.asarray(ours).T[:, :, None] - np.asarray(theirs).T[:, None]
    beats = np.asarray((np.sign(gaps) + 1) / 2, dtype=np.float32)  # exact: halves
    mine, other = (_counts(*side.shape, resamples, seed + i) for i, side in enumerate((ours, theirs)))
    wins = (mine @ beats * other).sum(axis=(0, 2), dtype=np.float64)
    return _interval(float(beats.mean(dtype=np.float64)), wins / (len(ours) * theirs.size), level)


@lru_cache(maxsize=4)
def _counts(runs: int, tasks: int, resamples: int, seed: int) -> Float[np.ndarray, "tasks resamples runs"]:
    """Regimes of one table have them in common."""
    drawn = np.random.default_rng(seed).integers(0, runs, (tasks * resamples, runs))
    places = drawn + runs * np.arange(len(drawn))[:, None]
    return np.bincount(places.ravel(), minlength=places.size).astype(np.float32).reshape(tasks, resamples, runs)


def _interval(value: float, values: Float[np.ndarray, "resamples"], level: float) -> BootstrapInterval:
    low, high = np.quantile(values, [0.5 - level / 2, 0.5 + level / 2])
    return BootstrapInterval(value, float(low), float(high))
