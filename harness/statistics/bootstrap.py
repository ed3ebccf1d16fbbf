"""Interquartile means and stratified bootstrap intervals (Agarwal et al., arXiv 2108.13264).

Runs (seeds) are resampled with replacement inside each task, tasks are kept. A resample is how often each score was drawn.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int, UInt

Scores = Float[np.ndarray, "runs tasks"]
Others = Float[np.ndarray, "others tasks"]
_CHUNK = 1 << 21
_PAIRS = 1 << 18
_ROWS = 1 << 15
"""These three decide in which order numbers are drawn, and so every stored interval."""
_FLOATS = 16
"""Scores whose counts are turned into floats at a time."""


class BootstrapInterval(NamedTuple):
    """A statistic of the scores, and the ends of its percentile bootstrap interval."""

    value: float
    low: float
    high: float


def iqm(scores: Scores) -> float:
    """Interquartile mean: of all runs on all tasks, `int(size / 4)` scores are cut off at each end."""
    flat = np.sort(scores, axis=None)
    cut = flat.size // 4
    return float(flat[cut : flat.size - cut].mean())


def iqm_interval(scores: Scores, level: float = 0.95, resamples: int = 10_000, seed: int = 0) -> BootstrapInterval:
    """IQM with its interval. No resample is sorted: counts, added up in the order of the scores, say how much of each score lies
    in the middle half."""
    x = np.asarray(scores, dtype=np.float64)
    order = np.argsort(x, axis=None, kind="stable")
    values, cut = x.ravel()[order], x.size // 4
    below = _counts(*x.shape, resamples, seed)[order]
    for row in range(1, x.size):
        below[row] += below[row - 1]
    np.clip(below, cut, x.size - cut, out=below)
    steps = np.append(-np.diff(values), values[-1])  # summation by parts
    parts = (slice(start, start + _FLOATS) for start in range(0, x.size, _FLOATS))
    total = sum((steps[part] @ below[part].astype(np.float64) for part in parts), -cut * values[0])
    return _interval(iqm(x), total / (x.size - 2 * cut), level)


def improvement(ours: Scores, theirs: Others) -> float:
    """Probability that a run of ours beats a run of theirs on a task, ties half, mean over tasks (Mann-Whitney U / nm)."""
    return float(_beats(ours, theirs).sum(dtype=np.float64) / (len(ours) * theirs.size))


def improvement_interval(
    ours: Scores, theirs: Others, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> BootstrapInterval:
    """`improvement` with its interval; the runs of both sides are resampled."""
    mine, other = _both_counts(len(ours), *theirs.shape, resamples, seed)
    meetings = zip(mine, _beats(ours, theirs), other, strict=True)
    wins = sum(((m @ beats) * o).sum(axis=1, dtype=np.float64) for m, beats, o in meetings)
    return _interval(improvement(ours, theirs), wins / (len(ours) * theirs.size), level)


def _beats(ours: Scores, theirs: Others) -> Float32[np.ndarray, "tasks runs others"]:
    gaps = np.asarray(ours).T[:, :, None] - np.asarray(theirs).T[:, None]
    return np.asarray((np.sign(gaps) + 1) / 2, dtype=np.float32)  # exact: halves


@lru_cache(maxsize=1)
def _counts(runs: int, tasks: int, resamples: int, seed: int) -> UInt[np.ndarray, "scores resamples"]:
    """How often each score (in the order of `ravel`) is in each resample; regimes of one table have them in common.

    A number below runs ** k is k independent draws, its digits to the base `runs`.
    """
    bits, digits = np.random.SFC64(seed), _digits(runs)
    found = np.empty((runs, tasks, resamples), dtype="u2" if runs * tasks <= 0xFFFF else "u4")
    chunk = max(64, _CHUNK // (runs * tasks))
    for start in range(0, resamples, chunk):
        n = min(chunk, resamples - start)
        together = max(1, _ROWS // n)
        for first in range(0, tasks, together):
            size = min(together, tasks - first) * n
            numbers = [(_uniform(bits, runs**k, size), k) for k in digits]
            drawn = np.stack([number // runs**place % runs for number, k in numbers for place in range(k)], axis=-1)
            found[:, first : first + together, start : start + n] = _tallied(drawn, runs).T.reshape(runs, -1, n)
    return found.reshape(-1, resamples)


@lru_cache(maxsize=1)
def _both_counts(
    runs: int, others: int, tasks: int, resamples: int, seed: int
) -> list[Float32[np.ndarray, "tasks resamples either"]]:
    generator, chunk = np.random.default_rng(seed), max(1, _PAIRS // (runs * others * tasks))
    drawn: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for start in range(0, resamples, chunk):
        for part, either in zip(drawn, (runs, others), strict=True):
            part.append(generator.integers(0, either, (min(chunk, resamples - start), either, tasks)))
    return [
        np.stack([_tallied(draws, either).astype(np.float32) for draws in np.concatenate(part).transpose(2, 0, 1)])
        for part, either in zip(drawn, (runs, others), strict=True)
    ]


def _tallied(drawn: Int[np.ndarray, "n draws"], runs: int) -> Int[np.ndarray, "n runs"]:
    places = drawn + runs * np.arange(len(drawn))[:, None]
    return np.bincount(places.ravel(), minlength=runs * len(drawn)).reshape(-1, runs)


def _uniform(bits: np.random.BitGenerator, below: int, size: int) -> UInt[np.ndarray, "size"]:
    """Exactly uniform: what equal parts leave over of 32 bits is drawn again."""
    found = bits.random_raw(-(-size // 2)).view(np.uint32)[:size] // np.uint32(0xFFFF_FFFF // below)
    if found.max() >= below:
        over = np.flatnonzero(found >= below)
        found[over] = _uniform(bits, below, over.size)
    return found


def _digits(runs: int) -> list[int]:
    """The draws of one resample, divided evenly among as few numbers as a table of 2**17 words would hold."""
    words, most = -(-runs // (16 // runs.bit_length() * 4)), 1
    while most < runs and words * runs ** (most + 1) <= 1 << 17:
        most += 1
    return [len(part) for part in np.array_split(range(runs), -(-runs // most))]


def _interval(value: float, values: Float[np.ndarray, "resamples"], level: float) -> BootstrapInterval:
    low, high = np.quantile(values, [0.5 - level / 2, 0.5 + level / 2])
    return BootstrapInterval(value, float(low), float(high))
