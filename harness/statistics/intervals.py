"""Intervals: Student t over seeds, and the stratified bootstrap of Agarwal et al. (arXiv 2108.13264, section 4.1).

The bootstrap resamples runs (seeds) inside each task and keeps the tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
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
        arrays = [getattr(self, field.name) for field in fields(self)]
        chosen = [array[index] for array in arrays]
        return Estimate(*chosen)


# A less probable spread is replaced by the one at this probability (`mean_interval`)
VARIANCE_FLOOR = 0.07


def mean_interval(values: ArrayLike, level: float = 0.95, noise: ArrayLike | None = None) -> Estimate:
    """Estimate means over the last axis with Student t intervals; NaN values are missing.

    values: shape (..., n), in any unit, which is that of mean, interval and error. level: of the interval. noise: the known
    variance of each value (`sampling_variance`), of the same shape. A few seeds may agree far closer by chance than their
    answers allow, so the variance is at least w chi2(0.07, n - 1) / (n - 1), where w is the mean noise. Intervals then cover
    at most 97 % (simulated; our reading).
    """
    from scipy.special import stdtr, stdtrit

    x = np.asarray(values, dtype=np.float64)
    present = ~np.isnan(x)
    n = present.sum(axis=-1)
    freedom = np.maximum(n - 1, 1).astype(np.float64)
    # where there are no values, or one alone, the divisions give NaN, which is the answer
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = _sum_present(x, present) / n
        shifted = _shift_to_first(x, present)
        variance = _variance_of_present(shifted, present)
        if noise is not None:
            variances = np.asarray(noise, dtype=np.float64)
            known = _sum_present(variances, present) / n
            variance = np.maximum(variance, _least_variance(known, freedom))
        error = np.where(n > 1, np.sqrt(variance / n), np.nan)
        half = stdtrit(freedom, 0.5 + level / 2) * error
        both_tails = 2 * stdtr(freedom, -np.abs(mean) / error)
        # without any spread the mean is known: it is 0, or it is not
        certain = np.where(mean == 0, 1.0, 0.0)
        p = np.where(error == 0, certain, both_tails)
    known_p = np.where(n > 1, p, np.nan)
    return Estimate(mean, mean - half, mean + half, error, known_p, n)


def _sum_present(x: Array, present: Bool[np.ndarray, "... n"]) -> Array:
    """Return the sums over the last axis of the values that are present."""
    filled = np.where(present, x, 0.0)
    return np.asarray(filled.sum(axis=-1))


def _shift_to_first(x: Array, present: Bool[np.ndarray, "... n"]) -> Array:
    """Return the values less the first one present of their row, 0 where missing.

    The variance stays the same. Equal values must give exactly 0, which their mean's rounding would spoil.
    """
    if not x.shape[-1]:
        return x
    place = present.argmax(axis=-1, keepdims=True)
    first = np.take_along_axis(x, place, axis=-1)
    return np.where(present, x - first, 0.0)


def _variance_of_present(shifted: Array, present: Bool[np.ndarray, "... n"]) -> Array:
    """Return the variances over the last axis of the values present; shifted: with 0 for the others."""
    n = present.sum(axis=-1)
    centre = shifted.sum(axis=-1) / n
    squares = (shifted - centre[..., None]) ** 2
    return np.asarray(_sum_present(squares, present) / (n - 1))


def _least_variance(known: Array, freedom: Array) -> Array:
    """Return the variance below which so few values are less spread than `known` explains, with probability VARIANCE_FLOOR."""
    from scipy.special import chdtri

    improbable = chdtri(freedom, 1 - VARIANCE_FLOOR)
    return np.asarray(known * improbable / freedom)


def sampling_variance(accuracy: ArrayLike, error: ArrayLike, questions: ArrayLike, answers: ArrayLike) -> Array:
    """Return the variance of an accuracy on given questions that comes from sampling the answers alone (our reading).

    accuracy: a, a fraction. error: its standard error over questions. questions, answers: their numbers, answers the valid
    ones. All are of one shape, which the result has.

    An answer to a question that is right with probability p_q has the variance p_q (1 - p_q). With k = answers / questions > 1
    answers to each, their mean variance over k questions is (a (1 - a) - (questions - 1) error^2) / ((k - 1) questions). With
    one answer to each the variances of answers and of questions cannot be told apart: half of error^2 is taken. The result is
    never less than 1 / answers^2.
    """
    a = np.asarray(accuracy, dtype=np.float64)
    e = np.asarray(error, dtype=np.float64)
    n = np.asarray(questions, dtype=np.float64)
    total = np.asarray(answers, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        repeats = total / n
        of_an_answer = a * (1 - a)
        over_questions = (n - 1) * e**2
        told_apart = (of_an_answer - over_questions) / ((repeats - 1) * n)
        half = e**2 / 2
        variance = np.where(repeats > 1, told_apart, half)
        # no standard error was stored: half of that of independent answers
        without_error = of_an_answer / (2 * total)
        variance = np.where(np.isnan(variance), without_error, variance)
        least = 1 / total**2
        return np.maximum(variance, least)


def area_under_curve(steps: Float[np.ndarray, "points"], accuracy: Float[np.ndarray, "... points"]) -> Array:
    """Return the mean height of the curves between their first and last step, by the trapezoidal rule.

    steps: in any order. The result has the unit of `accuracy`.
    """
    given_steps = np.asarray(steps, dtype=np.float64)
    heights = np.asarray(accuracy, dtype=np.float64)
    order = np.argsort(given_steps, kind="stable")
    x = given_steps[order]
    y = heights[..., order]
    if x.size == 1:
        return y[..., 0]
    area = np.trapezoid(y, x, axis=-1)
    return np.asarray(area / (x[-1] - x[0]))


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
    drawn = _draw_counts(*x.shape, resamples, seed)
    counts = drawn.transpose(2, 0, 1).reshape(x.size, resamples)
    below = counts[order].cumsum(axis=0)  # (scores, resamples), from the lowest score up
    kept_below = below.clip(cut, x.size - cut)
    # how often each score is among the draws that are not cut off
    inside = np.diff(kept_below, axis=0, prepend=np.float32(cut))
    ranked = x.ravel()[order]
    kept = ranked[cut : x.size - cut]
    of_resamples = ranked @ inside / (x.size - 2 * cut)  # (resamples,)
    return _quantile_interval(float(kept.mean()), of_resamples, level)


def improvement_interval(
    ours: Scores, theirs: Others, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> BootstrapInterval:
    """Return the probability that a run of ours beats one of theirs, mean over tasks, and its bootstrap interval.

    On each task it is the Mann-Whitney U over the number of pairs; ties count half (arXiv 2108.13264, section 4.3).
    """
    our_scores = np.asarray(ours).T  # (tasks, runs)
    their_scores = np.asarray(theirs).T  # (tasks, others)
    gaps = our_scores[:, :, None] - their_scores[:, None]  # (tasks, runs, others)
    outcomes = (np.sign(gaps) + 1) / 2
    beats = np.asarray(outcomes, dtype=np.float32)  # exact: halves
    our_counts = _draw_counts(*ours.shape, resamples, seed)
    their_counts = _draw_counts(*theirs.shape, resamples, seed + 1)
    wins_over_each = our_counts @ beats  # (tasks, resamples, others)
    wins = (wins_over_each * their_counts).sum(axis=(0, 2), dtype=np.float64)  # (resamples,)
    pairs = len(ours) * theirs.size
    value = float(beats.mean(dtype=np.float64))
    return _quantile_interval(value, wins / pairs, level)


@lru_cache(maxsize=4)
def _draw_counts(runs: int, tasks: int, resamples: int, seed: int) -> Float[np.ndarray, "tasks resamples runs"]:
    """Draw how often each run is in each resample of each task; regimes of one table have the draws in common."""
    generator = np.random.default_rng(seed)
    drawn = generator.integers(0, runs, (tasks * resamples, runs))  # which run, in a row for each resample
    # each row counts into places of its own, so that one call counts them all
    row_starts = runs * np.arange(len(drawn))
    places = drawn + row_starts[:, None]
    counts = np.bincount(places.ravel(), minlength=places.size)
    return counts.astype(np.float32).reshape(tasks, resamples, runs)


def _quantile_interval(value: float, values: Float[np.ndarray, "resamples"], level: float) -> BootstrapInterval:
    """Return the percentile interval of the resampled values around the statistic itself."""
    ends = [0.5 - level / 2, 0.5 + level / 2]
    low, high = np.quantile(values, ends)
    return BootstrapInterval(value, float(low), float(high))
