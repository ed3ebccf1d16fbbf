"""Interquartile means and stratified bootstrap intervals (Agarwal et al., arXiv 2108.13264), without a Python loop.

Runs (seeds) are resampled with replacement inside each task, tasks are kept: the stratified bootstrap of that paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

Scores = Float[np.ndarray, "runs tasks"]
_CHUNK = 1 << 18
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
    """IQM with its stratified bootstrap interval.

    No resample is sorted: how often each score was drawn, added up in the order of the scores, says how much of it lies in
    the middle half. Arrays have the resamples last, so that every step is one vector instruction over all of them.
    """
    x = np.asarray(scores, dtype=np.float64)
    order = np.argsort(x, axis=None, kind="stable")
    run, task = np.unravel_index(order, x.shape)
    ordered, cut = x.ravel()[order], x.size // 4
    steps = np.append(-np.diff(ordered), ordered[-1])  # sum of values times differences, by parts
    values = []
    for drawn in _draws(x.shape, resamples, seed):
        counts = np.stack([(drawn == i).sum(axis=1, dtype=drawn.dtype) for i in range(len(x))])
        below = counts[run, task].astype(np.uint32 if x.size > 0xFFFF else np.uint16)
        for place in range(1, x.size):
            np.add(below[place - 1], below[place], out=below[place])
        np.clip(below, cut, x.size - cut, out=below)
        values.append((steps @ below.astype(np.float64) - cut * steps.sum()) / (x.size - 2 * cut))
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
    values = [statistic(x[drawn.transpose(2, 1, 0), tasks]) for drawn in _draws(x.shape, resamples, seed)]
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


def _draws(shape: tuple[int, ...], resamples: int, seed: int) -> Iterator[Int[np.ndarray, "tasks runs resamples"]]:
    """Indices of the drawn runs, in chunks that stay in the cache; the same for the same seed."""
    generator = np.random.Generator(np.random.SFC64(seed))
    runs, tasks = shape
    chunk = max(64, _CHUNK // (runs * tasks))
    for start in range(0, resamples, chunk):
        yield _integers(generator, runs, (tasks, runs, min(chunk, resamples - start)))


def _integers(generator: np.random.Generator, below: int, shape: tuple[int, ...]) -> Int[np.ndarray, "..."]:
    """Uniform integers by multiplication and rejection (Lemire, arXiv 1805.10941), from one random byte each."""
    if below > 255:
        return generator.integers(0, below, shape, dtype=np.uint16)
    size = int(np.prod(shape))
    bits = generator.integers(0, 1 << 64, size // 8 + 1, dtype=np.uint64).view(np.uint8)[:size]
    product = bits.astype(np.uint16) * np.uint16(below)
    drawn = (product >> 8).astype(np.uint8)
    rejected = np.flatnonzero(product.astype(np.uint8) < 256 % below)
    drawn[rejected] = generator.integers(0, below, rejected.size)
    return drawn.reshape(shape)


def _percentiles(value: float, values: Float[np.ndarray, "resamples"], level: float) -> BootstrapInterval:
    low, high = np.quantile(values, [0.5 - level / 2, 0.5 + level / 2])
    return BootstrapInterval(value, float(low), float(high))
