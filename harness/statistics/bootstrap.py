"""Interquartile means and stratified bootstrap intervals (Agarwal et al., arXiv 2108.13264): runs (seeds) are resampled with
replacement inside each task, tasks are kept."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Scores = Float[np.ndarray, "runs tasks"]
Others = Float[np.ndarray, "others tasks"]


class BootstrapInterval(NamedTuple):
    """A statistic of the scores, and the ends of its percentile bootstrap interval."""

    value: float
    low: float
    high: float


def iqm_interval(scores: Scores, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> BootstrapInterval:
    """Interquartile mean: of all runs on all tasks, `int(size / 4)` scores are cut off at each end. Counts, added up in the order
    of the scores, say how much of each score lies in the middle half of a resample."""
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
    """Probability that a run of ours beats a run of theirs on a task, ties half, mean over tasks (Mann-Whitney U / nm); the runs
    of both sides are resampled."""
    gaps = np.asarray(ours).T[:, :, None] - np.asarray(theirs).T[:, None]
    beats = np.asarray((np.sign(gaps) + 1) / 2, dtype=np.float32)  # exact: halves
    mine, other = (_counts(*side.shape, resamples, seed + i) for i, side in enumerate((ours, theirs)))
    wins = (mine @ beats * other).sum(axis=(0, 2), dtype=np.float64)
    return _interval(float(beats.mean(dtype=np.float64)), wins / (len(ours) * theirs.size), level)


@lru_cache(maxsize=4)
def _counts(runs: int, tasks: int, resamples: int, seed: int) -> Float[np.ndarray, "tasks resamples runs"]:
    """How often each score is in each resample; regimes of one table have them in common."""
    drawn = np.random.default_rng(seed).integers(0, runs, (tasks * resamples, runs))
    places = drawn + runs * np.arange(len(drawn))[:, None]
    return np.bincount(places.ravel(), minlength=places.size).astype(np.float32).reshape(tasks, resamples, runs)


def _interval(value: float, values: Float[np.ndarray, "resamples"], level: float) -> BootstrapInterval:
    low, high = np.quantile(values, [0.5 - level / 2, 0.5 + level / 2])
    return BootstrapInterval(value, float(low), float(high))
