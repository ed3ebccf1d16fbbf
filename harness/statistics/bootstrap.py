"""Interquartile means and stratified bootstrap intervals (Agarwal et al., arXiv 2108.13264), without a Python loop.

Runs (seeds) are resampled with replacement inside each task, tasks are kept: the stratified bootstrap of that paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

Scores = Float[np.ndarray, "runs tasks"]
_CHUNK = 1 << 17
"""Resampled values held at a time."""


@dataclass(frozen=True, slots=True)
class BootstrapInterval:
    """A statistic of the scores with its percentile bootstrap interval."""

    value: float
    low: float
    high: float


def iqm(scores: Scores) -> float:
    """Interquartile mean: the mean of what is left of all runs on all tasks after a quarter is cut off at each end.

    As many as `int(size / 4)` scores are cut off at each end, none for fewer than four scores.
    """
    flat = np.sort(np.asarray(scores, dtype=np.float64), axis=None)
    cut = flat.size // 4
    return float(flat[cut : flat.size - cut].mean())


def iqm_interval(scores: Scores, level: float = 0.95, resamples: int = 10_000, seed: int = 0) -> BootstrapInterval:
    """IQM with its stratified bootstrap interval. Sorts small integer ranks instead of the scores: several times faster."""
    x = np.asarray(scores, dtype=np.float64)
    kind = np.uint16 if x.size < 1 << 16 else np.uint32
    order = np.argsort(x, axis=None, kind="stable")
    rank = np.empty(x.size, dtype=kind)
    rank[order] = np.arange(x.size, dtype=kind)
    ranked, ordered = rank.reshape(x.shape), x.ravel()[order]
    cut, tasks = x.size // 4, np.arange(x.shape[1])
    values = []
    for drawn in _draws(x.shape, resamples, seed):
        ranks = ranked[drawn, tasks].reshape(len(drawn), x.size)
        ranks.sort(axis=1)
        values.append(ordered.take(ranks[:, cut : x.size - cut]).mean(axis=1))
    return _percentiles(iqm(x), np.concatenate(values), level)


def bootstrap_interval(
    scores: Scores,
    statistic: Callable[[Float[np.ndarray, "resamples runs tasks"]], Float[np.ndarray, "resamples"]],
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> BootstrapInterval:
    """Any statistic, vectorised over its first axis."""
    x = np.asarray(scores, dtype=np.float64)
    tasks = np.arange(x.shape[1])
    values = [statistic(x[drawn, tasks]) for drawn in _draws(x.shape, resamples, seed)]
    return _percentiles(float(statistic(x[None])[0]), np.concatenate(values), level)


def probability_of_improvement(
    ours: Scores, theirs: Float[np.ndarray, "others tasks"], level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> BootstrapInterval:
    """Probability that a run of ours beats a run of theirs on a task, ties half, mean over tasks (Mann-Whitney U / nm)."""
    x, y = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    beats = (x[:, None] > y[None]) + 0.5 * (x[:, None] == y[None])
    values = []
    chunk = max(1, _CHUNK // beats.size)
    generator = np.random.default_rng(seed)
    tasks = np.arange(x.shape[1])
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        mine = generator.integers(0, len(x), (size, len(x), 1, len(tasks)))
        other = generator.integers(0, len(y), (size, 1, len(y), len(tasks)))
        values.append(beats[mine, other, tasks].mean(axis=(1, 2, 3)))
    return _percentiles(float(beats.mean()), np.concatenate(values), level)


def _draws(shape: tuple[int, ...], resamples: int, seed: int) -> Iterator[Int[np.ndarray, "resamples runs tasks"]]:
    """Indices of the drawn runs, in chunks that stay in the cache; the same for the same seed."""
    generator = np.random.default_rng(seed)
    runs, tasks = shape
    chunk = max(1, _CHUNK // (runs * tasks))
    for start in range(0, resamples, chunk):
        yield generator.integers(0, runs, (min(chunk, resamples - start), runs, tasks), dtype=np.uint16)


def _percentiles(value: float, values: Float[np.ndarray, "resamples"], level: float) -> BootstrapInterval:
    low, high = np.quantile(values, [0.5 - level / 2, 0.5 + level / 2])
    return BootstrapInterval(value, float(low), float(high))
