"""Interquartile means and stratified bootstrap intervals (Agarwal et al., arXiv 2108.13264), without a Python loop.

Runs (seeds) are resampled with replacement inside each task, tasks are kept: the stratified bootstrap of that paper.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float, Int64, UInt

from harness.statistics.resampling import Resampling

Scores = Float[np.ndarray, "runs tasks"]
Counts = UInt[np.ndarray, "n"]
_CHUNK = 1 << 21
"""Resampled values held at a time."""
_PAIRS = 1 << 18
"""Resampled pairs held at a time."""
_ROWS = 16
"""Scores whose counts are turned into floats at a time."""


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
    """IQM with its stratified bootstrap interval: `iqm_intervals` of one.

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
    return iqm_intervals([scores], level, resamples, seed)[0]


def iqm_intervals(
    several: Sequence[Scores], level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> list[BootstrapInterval]:
    """The IQM of each of several with its stratified bootstrap interval (Agarwal et al., arXiv 2108.13264).

    Those with as many runs and tasks have their resamples in common: what is drawn depends on nothing else. No resample is
    sorted: how often each score was drawn, added up in the order of the scores, says how much of it lies in the middle half.
    Arrays have the resamples last, so that every step is one vector instruction over all of them.

    Parameters
    ----------
    several
        (runs, tasks) each.
    level
        Of the intervals, in (0, 1).
    resamples
        Of the runs inside each task.
    seed
        Of the resampling.
    """
    scores = [np.asarray(x, dtype=np.float64) for x in several]
    found = dict[int, Float[np.ndarray, "resamples"]]()
    for shape, alike in _alike(x.shape for x in scores).items():
        values = _over_chunks(partial(_iqms, [_Ordered(scores[i]) for i in alike]), shape, resamples, seed)
        found |= zip(alike, values, strict=True)
    return [_percentiles(iqm(x), found[i], level) for i, x in enumerate(scores)]


def _alike(shapes: Iterable[Hashable]) -> dict[Any, list[int]]:
    """By shape, the places at which it stands."""
    found = dict[Any, list[int]]()
    for i, shape in enumerate(shapes):
        found.setdefault(shape, []).append(i)
    return found


def _iqms(
    several: Sequence[_Ordered], resampling: Resampling, bits: np.random.BitGenerator, n: int
) -> Float[np.ndarray, "several n"]:
    drawn = [*resampling.counts(bits, n).reshape(-1, n)]
    return np.stack([scores.iqms(drawn) for scores in several])


class _Ordered:
    """Scores by size. The sum of the middle half of a resample is one of values times differences, by parts: of equal scores
    only the last has a difference to the next."""

    def __init__(self, x: Scores) -> None:
        ranked = np.argsort(x, axis=None, kind="stable")
        values = x.ravel()[ranked]
        self._cut, self._lowest = x.size // 4, values[0]
        self._steps = np.empty(x.size)
        self._steps[ranked] = np.append(-np.diff(values), values[-1])
        self._ranked = ranked.tolist()

    def iqms(self, drawn: Sequence[Counts]) -> Float[np.ndarray, "n"]:
        """Of n resamples. drawn: how often each score is in each."""
        cut, rest, n = self._cut, len(drawn) - self._cut, len(drawn[0])
        below, total = np.zeros_like(drawn[0]), np.full(n, 0.0 - self._cut * self._lowest)
        parts = np.empty((len(drawn), n), below.dtype)
        for score in self._ranked:
            below = np.add(below, drawn[score], out=parts[score])
        floats = np.empty((_ROWS, n))
        for start in range(0, len(drawn), _ROWS):
            steps, part = self._steps[start : start + _ROWS], parts[start : start + _ROWS]
            if steps.any():
                floats[: len(part)] = np.clip(part, cut, rest, out=part)
                total += steps @ floats[: len(part)]
        return total / (rest - cut)


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
    """`improvement` with its interval: `probabilities_of_improvement` of one pair.

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
    return probabilities_of_improvement([(ours, theirs)], level, resamples, seed)[0]


def probabilities_of_improvement(
    several: Sequence[tuple[Scores, Float[np.ndarray, "others tasks"]]],
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> list[BootstrapInterval]:
    """The `improvement` of each of several pairs with its stratified bootstrap interval (Agarwal et al., arXiv 2108.13264).

    Pairs with as many runs and tasks have their resamples in common.

    Parameters
    ----------
    several
        Ours, (runs, tasks), and theirs, (others, tasks), each.
    level
        Of the intervals, in (0, 1).
    resamples
        Of the runs inside each task, on both sides.
    seed
        Of the resampling.
    """
    pairs = [(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)) for x, y in several]
    found = dict[int, Float[np.ndarray, "resamples"]]()
    for (runs, others, tasks), alike in _alike((len(x), *y.shape) for x, y in pairs).items():
        drawn = _both_drawn(runs, others, tasks, resamples, seed)
        parts = [[_wins(*pairs[i], mine, other) for i in alike] for mine, other in drawn]
        found |= zip(alike, np.concatenate(parts, axis=-1), strict=True)
    return [_percentiles(improvement(x, y), found[i] / (len(x) * y.size), level) for i, (x, y) in enumerate(pairs)]


def improvement(ours: Scores, theirs: Float[np.ndarray, "others tasks"]) -> float:
    """Probability that a run of ours beats a run of theirs on a task, ties half, mean over tasks (Mann-Whitney U / nm).

    Parameters
    ----------
    ours
        (runs, tasks).
    theirs
        (others, tasks).
    """
    once = (np.ones((*each.T.shape, 1)) for each in (ours, theirs))
    return float(_wins(ours, theirs, *once)[0] / (len(ours) * theirs.size))


def _wins(
    x: Scores, y: Scores, mine: Float[np.ndarray, "tasks runs n"], other: Float[np.ndarray, "tasks others n"]
) -> Float[np.ndarray, "n"]:
    """In how many meetings x beats y, ties half, in each of n resamples. mine, other: how often each run is in each.

    A score beats so many as lie below it: with theirs in order, the sum up to there.
    """
    twice = np.zeros(mine.shape[-1])
    for ours, theirs, drawn, against in zip(x.T, y.T, mine, other, strict=True):
        ranked = np.argsort(theirs)
        values, places = np.unique(ours, return_inverse=True)
        equal = np.zeros((len(values), len(twice)))
        for place, row in zip(places.tolist(), drawn, strict=True):
            equal[place] += row
        below = np.zeros((len(theirs) + 1, len(twice)))
        for i, run in enumerate(ranked.tolist()):
            np.add(below[i], against[run], out=below[i + 1])
        first, last = (np.searchsorted(theirs[ranked], values, side) for side in ("left", "right"))
        twice += np.einsum("vn,vn->n", equal, below[first] + below[last])
    return twice / 2


def _both_drawn(
    runs: int, others: int, tasks: int, resamples: int, seed: int
) -> Iterator[list[Float[np.ndarray, "tasks either n"]]]:
    """Some resamples after the other: how often each run of either side is in each."""
    generator = np.random.default_rng(seed)
    chunk = max(1, _PAIRS // (runs * others * tasks))
    drawn = [
        [generator.integers(0, either, (min(chunk, resamples - start), either, tasks)) for either in (runs, others)]
        for start in range(0, resamples, chunk)
    ]
    together = max(1, _CHUNK // (runs * tasks * chunk))
    for start in range(0, len(drawn), together):
        yield [_times_drawn(np.concatenate(part)) for part in zip(*drawn[start : start + together], strict=True)]


def _times_drawn(drawn: Int64[np.ndarray, "n runs tasks"]) -> Float[np.ndarray, "tasks runs n"]:
    n, runs, tasks = drawn.shape
    place = drawn + runs * (np.arange(n)[:, None, None] + n * np.arange(tasks))
    counts = np.bincount(place.ravel(), minlength=tasks * n * runs).reshape(tasks, n, runs)
    return np.ascontiguousarray(counts.transpose(0, 2, 1), dtype=np.float64)


def _over_chunks(
    value: Callable[[Resampling, np.random.BitGenerator, int], Float[np.ndarray, "... n"]],
    shape: tuple[int, ...],
    resamples: int,
    seed: int,
) -> Float[np.ndarray, "... resamples"]:
    """`value` of each chunk of resamples; the same for the same seed."""
    resampling, bits = Resampling(*shape), np.random.SFC64(seed)
    chunk = max(64, _CHUNK // int(np.prod(shape)))
    sizes = (min(chunk, resamples - start) for start in range(0, resamples, chunk))
    return np.concatenate([value(resampling, bits, size) for size in sizes], axis=-1)


def _percentiles(value: float, values: Float[np.ndarray, "resamples"], level: float) -> BootstrapInterval:
    ends = np.array([0.5 - level / 2, 0.5 + level / 2]) * (values.size - 1)
    low, high = np.interp(ends, np.arange(values.size), np.sort(values))
    return BootstrapInterval(value, float(low), float(high))
