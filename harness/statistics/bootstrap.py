"""Interquartile means and stratified bootstrap intervals (Agarwal et al., arXiv 2108.13264), without a Python loop.

Runs (seeds) are resampled with replacement inside each task, tasks are kept: the stratified bootstrap of that paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int

Scores = Float[np.ndarray, "runs tasks"]
Draws = Int[np.ndarray, "runs tasks n"]
_CHUNK = 1 << 18
"""Resampled values held at a time: what stays in the cache."""
_ROWS = 32
"""Scores whose counts are turned into floats at a time."""


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
    ranked = np.argsort(x, axis=None, kind="stable")
    value = partial(_resampled_iqms, x, ranked)
    return _percentiles(iqm(x), _over_chunks(value, x.shape, resamples, seed), level)


def _resampled_iqms(x: Scores, ranked: Int[np.ndarray, "size"], drawn: Draws, width: int) -> Float[np.ndarray, "n"]:
    below = _counts(drawn, width).reshape(x.size, -1)[ranked].astype(np.uint32 if x.size > 0xFFFF else np.uint16)
    for before, after in pairwise(below):
        np.add(before, after, out=after)
    cut, ordered = x.size // 4, x.ravel()[ranked]
    np.clip(below, cut, x.size - cut, out=below)
    steps = np.append(-np.diff(ordered), ordered[-1])  # sum of values times differences, by parts
    total = np.full(drawn.shape[-1], -cut * steps.sum())
    for start in range(0, x.size, _ROWS):
        part = slice(start, start + _ROWS)
        total += steps[part] @ below[part].astype(np.float64)
    return total / (x.size - 2 * cut)


def _counts(drawn: Draws, width: int) -> Int[np.ndarray, "runs tasks n"]:
    """How often each run was drawn: draws below its upper edge less those below its lower one."""
    counts = np.empty_like(drawn, dtype=np.uint8 if len(drawn) < 256 else np.uint16)
    hit = np.empty(drawn.shape, dtype=bool)
    for run in range(len(drawn) - 1):
        np.less(drawn, drawn.dtype.type(width * (run + 1)), out=hit)
        np.add.reduce(hit.view(np.uint8), axis=0, dtype=counts.dtype, out=counts[run])
    counts[-1] = len(drawn)
    for run in range(len(drawn) - 1, 0, -1):
        counts[run] -= counts[run - 1]
    return counts


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

    def value(drawn: Draws, width: int) -> Float[np.ndarray, "n"]:
        return statistic(x[drawn.transpose(2, 0, 1) // width, tasks])

    return _percentiles(float(statistic(x[None])[0]), _over_chunks(value, x.shape, resamples, seed), level)


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


def _over_chunks(
    value: Callable[[Draws, int], Float[np.ndarray, "n"]], shape: tuple[int, ...], resamples: int, seed: int
) -> Float[np.ndarray, "resamples"]:
    """`value` of each chunk of resamples; the same for the same seed."""
    generator = np.random.Generator(np.random.SFC64(seed))
    chunk = max(64, _CHUNK // int(np.prod(shape)))
    sizes = (min(chunk, resamples - start) for start in range(0, resamples, chunk))
    return np.concatenate([value(*_draws(generator, shape[0], (*shape, size))) for size in sizes])


def _draws(generator: np.random.Generator, runs: int, shape: tuple[int, ...]) -> tuple[Draws, int]:
    """Uniform draws and a width: a draw of run i lies in [i * width, (i + 1) * width).

    One random byte each for up to 16 runs. What lies beyond the last run is rejected by whole words of eight bytes, which
    leaves the draws independent and uniform.
    """
    kind = np.dtype(np.uint8 if runs <= 16 else np.uint16 if runs <= 256 else np.uint32)
    each, size = 8 // kind.itemsize, int(np.prod(shape))
    values = 1 << 8 * kind.itemsize
    words = generator.integers(0, 1 << 64, -(-size // each), dtype=np.uint64)
    limit = values - values % runs
    bad = _beyond(words, kind, limit)
    while bad.size:
        words[bad] = fresh = generator.integers(0, 1 << 64, bad.size, dtype=np.uint64)
        bad = bad[_beyond(fresh, kind, limit)]
    return words.view(kind)[:size].reshape(shape), values // runs


def _beyond(words: Int[np.ndarray, "words"], kind: np.dtype, limit: int) -> Int[np.ndarray, "bad"]:
    """Which words hold a number of `limit` or more."""
    return np.flatnonzero((words.view(kind) >= limit).view(f"u{8 // kind.itemsize}") != 0)


def _percentiles(value: float, values: Float[np.ndarray, "resamples"], level: float) -> BootstrapInterval:
    low, high = np.quantile(values, [0.5 - level / 2, 0.5 + level / 2])
    return BootstrapInterval(value, float(low), float(high))
