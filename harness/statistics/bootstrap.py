"""Interquartile means and stratified bootstrap intervals (Agarwal et al., arXiv 2108.13264), without a Python loop.

Runs (seeds) are resampled with replacement inside each task, tasks are kept: the stratified bootstrap of that paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int64

from harness.statistics.resampling import Resampling

Scores = Float[np.ndarray, "runs tasks"]
_CHUNK = 1 << 21
"""Resampled values held at a time."""
_PAIRS = 1 << 18
"""Resampled pairs held at a time."""
_ROWS = 16
"""Scores whose counts are clipped and turned into floats at a time."""


@dataclass(frozen=True, slots=True)
class BootstrapInterval:
    """A statistic of the scores with its percentile bootstrap interval.

    Attributes
    ----------
    value
        Of the scores as they are.
    low, high
        Ends of the interval.
    """

    value: float
    low: float
    high: float


def iqm(scores: Scores) -> float:
    """Interquartile mean: the mean of what is left of all runs on all tasks after a quarter is cut off at each end.

    As many as `int(size / 4)` scores are cut off at each end, none for fewer than four scores (Agarwal et al., arXiv 2108.13264).

    Parameters
    ----------
    scores
        (runs, tasks).
    """
    flat = np.sort(np.asarray(scores, dtype=np.float64), axis=None)
    cut = flat.size // 4
    return float(flat[cut : flat.size - cut].mean())


def iqm_interval(scores: Scores, level: float = 0.95, resamples: int = 10_000, seed: int = 0) -> BootstrapInterval:
    """IQM with its stratified bootstrap interval (Agarwal et al., arXiv 2108.13264).

    No resample is sorted: how often each score was drawn, added up in the order of the scores, says how much of it lies in
    the middle half. Arrays have the resamples last, so that every step is one vector instruction over all of them.

    Parameters
    ----------
    scores
        (runs, tasks).
    level
        Of the interval, in (0, 1).
    resamples
        Of the runs inside each task.
    seed
        Of the resampling.
    """
    x = np.asarray(scores, dtype=np.float64)
    value = partial(_resampled_iqms, x)
    return _percentiles(iqm(x), _over_chunks(value, x.shape, resamples, seed), level)


def _resampled_iqms(x: Scores, resampling: Resampling, bits: np.random.BitGenerator, n: int) -> Float[np.ndarray, "n"]:
    ranked = np.argsort(x, axis=None, kind="stable")
    below = resampling.counts(bits, n).reshape(x.size, n)
    for before, after in pairwise([below[score] for score in ranked.tolist()]):
        np.add(before, after, out=after)
    cut, ordered = x.size // 4, x.ravel()[ranked]
    steps = np.empty(x.size)
    steps[ranked] = np.append(-np.diff(ordered), ordered[-1])  # sum of values times differences, by parts
    total = np.full(n, -cut * ordered[0])
    floats = np.empty((_ROWS, n))
    for start in range(0, x.size, _ROWS):
        part = below[start : start + _ROWS]
        floats[: len(part)] = np.clip(part, cut, x.size - cut, out=part)
        total += steps[start : start + _ROWS] @ floats[: len(part)]
    return total / (x.size - 2 * cut)


def bootstrap_interval(
    scores: Scores,
    statistic: Callable[[Float[np.ndarray, "resamples runs tasks"]], Float[np.ndarray, "resamples"]],
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> BootstrapInterval:
    """Any statistic with its stratified bootstrap interval (Agarwal et al., arXiv 2108.13264).

    Parameters
    ----------
    scores
        (runs, tasks).
    statistic
        Of (resamples, runs, tasks): one number per resample.
    level
        Of the interval, in (0, 1).
    resamples
        Of the runs inside each task.
    seed
        Of the resampling.
    """
    x = np.asarray(scores, dtype=np.float64)
    tasks = np.arange(x.shape[1])

    def value(resampling: Resampling, bits: np.random.BitGenerator, n: int) -> Float[np.ndarray, "n"]:
        return statistic(x[resampling.drawn(bits, n).transpose(2, 0, 1), tasks])

    return _percentiles(float(statistic(x[None])[0]), _over_chunks(value, x.shape, resamples, seed), level)


def probability_of_improvement(
    ours: Scores, theirs: Float[np.ndarray, "others tasks"], level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> BootstrapInterval:
    """Probability that a run of ours beats a run of theirs on a task, ties half, mean over tasks (Mann-Whitney U / nm).

    Parameters
    ----------
    ours
        (runs, tasks).
    theirs
        (others, tasks).
    level
        Of the interval, in (0, 1).
    resamples
        Of the runs inside each task, on both sides.
    seed
        Of the resampling.
    """
    x, y = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    beats = (x[:, None] > y[None]) + 0.5 * (x[:, None] == y[None])
    chunk = max(1, _PAIRS // beats.size)
    generator = np.random.default_rng(seed)
    drawn = [
        [generator.integers(0, runs, (min(chunk, resamples - start), runs, x.shape[1])) for runs in (len(x), len(y))]
        for start in range(0, resamples, chunk)
    ]
    wins, values = beats.transpose(2, 0, 1), []
    together = max(1, _CHUNK // (x.size * chunk))
    for start in range(0, len(drawn), together):
        mine, other = (
            _times_drawn(np.concatenate(part)) for part in zip(*drawn[start : start + together], strict=True)
        )
        pairs = np.matmul(mine, wins) * other  # multiples of a half, so that their sums are exact
        values.append(pairs.sum(axis=(0, 2)) / beats.size)
    return _percentiles(float(beats.mean()), np.concatenate(values), level)


def _times_drawn(drawn: Int64[np.ndarray, "n runs tasks"]) -> Float[np.ndarray, "tasks n runs"]:
    """How often each run was drawn in each of n resamples."""
    n, runs, tasks = drawn.shape
    place = drawn + runs * (np.arange(n)[:, None, None] + n * np.arange(tasks))
    return np.bincount(place.ravel(), minlength=tasks * n * runs).reshape(tasks, n, runs).astype(np.float64)


def _over_chunks(
    value: Callable[[Resampling, np.random.BitGenerator, int], Float[np.ndarray, "n"]],
    shape: tuple[int, ...],
    resamples: int,
    seed: int,
) -> Float[np.ndarray, "resamples"]:
    """`value` of each chunk of resamples; the same for the same seed."""
    resampling, bits = Resampling(*shape), np.random.SFC64(seed)
    chunk = max(64, _CHUNK // int(np.prod(shape)))
    sizes = (min(chunk, resamples - start) for start in range(0, resamples, chunk))
    return np.concatenate([value(resampling, bits, size) for size in sizes])


def _percentiles(value: float, values: Float[np.ndarray, "resamples"], level: float) -> BootstrapInterval:
    ends = np.array([0.5 - level / 2, 0.5 + level / 2]) * (values.size - 1)
    low, high = np.interp(ends, np.arange(values.size), np.sort(values))
    return BootstrapInterval(value, float(low), float(high))
