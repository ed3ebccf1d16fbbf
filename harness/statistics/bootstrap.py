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


def iqm(scores: Scores) -> float:
    """Interquartile mean: of all runs on all tasks, `int(size / 4)` scores are cut off at each end."""
    flat = np.sort(scores, axis=None)
    cut = flat.size // 4
    return float(flat[cut : flat.size - cut].mean())


def iqm_interval(scores: Scores, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> BootstrapInterval:
    """IQM with its interval. Counts, added up in the order of the scores, say how much of each score lies in the middle half."""
    x = np.asarray(scores, dtype=np.float64)
    order, cut = np.argsort(x, axis=None, kind="stable"), x.size // 4
    counts = _counts(*x.shape, resamples, seed).transpose(2, 0, 1).reshape(x.size, resamples)
    below = counts[order].cumsum(axis=0).clip(cut, x.size - cut)
    inside = np.diff(below, axis=0, prepend=np.float32(cut))
    return _interval(iqm(x), x.ravel()[order] @ inside / (x.size - 2 * cut), level)


def improvement(ours: Scores, theirs: Others) -> float:
    """Probability that a run of ours beats a run of theirs on a task, ties half, mean over tasks (Mann-Whitney U / nm)."""
    return float(_beats(ours, theirs).mean(dtype=np.float64))


def improvement_interval(
    ours: Scores, theirs: Others, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> BootstrapInterval:
    """`improvement` with its interval; the runs of both sides are resampled."""
    mine, other = (_counts(*side.shape, resamples, seed + i) for i, side in enumerate((ours, theirs)))
    wins = (mine @ _beats(ours, theirs) * other).sum(axis=(0, 2), dtype=np.float64)
    return _interval(improvement(ours, theirs), wins / (len(ours) * theirs.size), level)


def _beats(ours: Scores, theirs: Others) -> Float[np.ndarray, "tasks runs others"]:
    gaps = np.asarray(ours).T[:, :, None] - np.asarray(theirs).T[:, None]
    return np.asarray((np.sign(gaps) + 1) / 2, dtype=np.float32)  # exact: halves


@lru_cache(maxsize=4)
def _counts(runs: int, tasks: int, resamples: int, seed: int) -> Float[np.ndarray, "tasks resamples runs"]:
    """How often each score is in each resample; regimes of one table have them in common."""
    drawn = np.random.default_rng(seed).integers(0, runs, (tasks * resamples, runs))
    places = drawn + runs * np.arange(len(drawn))[:, None]
    return np.bincount(places.ravel(), minlength=places.size).astype(np.float32).reshape(tasks, resamples, runs)


def _interval(value: float, values: Float[np.ndarray, "resamples"], level: float) -> BootstrapInterval:
    low, high = np.quantile(values, [0.5 - level / 2, 0.5 + level / 2])
    return BootstrapInterval(value, float(low), float(high))
