"""Runs drawn with replacement inside each task, and how often each was drawn, many draws at a time.

A number below `runs ** k` has k digits to the base `runs`: one uniform number is k independent draws, and a table says
how often each run is among them. Counts share words of 64 bits, so that the counts of several numbers add up in one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Int, UInt

Numbers = UInt[np.ndarray, "tasks n"]
Resamples = Int[np.ndarray, "runs tasks n"]
Kind = np.dtype[np.unsignedinteger]
Table = UInt[np.ndarray, "entries words"]
_TABLE = 1 << 17
"""Words of a table, unless a single draw has more: what stays in the cache."""
_NUMBERS = 1 << 15
"""Numbers drawn at a time."""
_MANY_RUNS = 64
"""From so many on a table's entry, of which each draw adds all words, costs more than counting draw by draw."""


@dataclass(frozen=True)
class Resampling:
    """Stratified resamples of so many runs on so many tasks; the same bits give the same ones."""

    runs: int
    tasks: int

    @property
    def kind(self) -> Kind:
        """Type of a count, wide enough for all scores together."""
        return np.dtype("u2" if self.runs * self.tasks <= 0xFFFF else "u4")

    def drawn(self, bits: np.random.BitGenerator, n: int) -> Resamples:
        """n resamples: which run each draw is."""
        found = np.empty((self.runs, self.tasks, n), dtype=np.intp)
        for part, numbers in self._numbers(bits, n):
            pairs = zip(numbers, _digits(self.runs, self.kind), strict=True)
            found[:, part] = [number // self.runs**place % self.runs for number, k in pairs for place in range(k)]
        return found

    def counts(self, bits: np.random.BitGenerator, n: int) -> Resamples:
        """The same n resamples: how often each run was drawn."""
        kind = self.kind
        found = np.empty((self.runs, self.tasks, n), dtype=kind)
        if self.runs >= _MANY_RUNS:
            return self._counted(bits, n, found)
        width, each = _fields(self.runs, kind)
        for part, numbers in self._numbers(bits, n):
            tables = (_table(self.runs, k, kind) for k in _digits(self.runs, kind))
            # each number looks up how often each run is among its draws; the sums are a task's whole resample
            packed, *rest = (t.take(i, axis=0, mode="clip") for t, i in zip(tables, numbers, strict=True))
            for several in rest:
                packed += several
            lanes = packed.view(kind)
            for run in range(self.runs):  # a lane of a word holds the counts of `each` runs; no sum overflows its field
                if run % each == 0:
                    plane = lanes[..., run // each].copy()
                np.right_shift(plane, kind.type(width * (run % each)), out=found[run, part])
            found[:, part] &= kind.type((1 << width) - 1)
        return found

    def _counted(self, bits: np.random.BitGenerator, n: int, found: Resamples) -> Resamples:
        """Counted one by one: a table's entry would be longer than what is drawn. A few resamples at a time stay in the cache."""
        block = max(1, _TABLE // self.runs)
        counted = np.arange(block)[:, None] * self.runs
        for part, numbers in self._numbers(bits, n):
            flat = np.empty((self.runs, numbers[0].size), dtype=self.kind)
            digits = self._digits_of(numbers)
            for start in range(0, flat.shape[1], block):
                some = digits[:, start : start + block].T
                places = np.add(some, counted[: len(some)], dtype=np.intp)
                counts = np.bincount(places.ravel(), minlength=some.shape[0] * self.runs)
                flat[:, start : start + block] = counts.reshape(-1, self.runs).T
            found[:, part] = flat.reshape(self.runs, -1, n)
        return found

    def _digits_of(self, numbers: list[Numbers]) -> UInt[np.ndarray, "runs resamples"]:
        """Each draw of each resample."""
        digits = _digits(self.runs, self.kind)
        if max(digits) == 1:
            return np.stack(numbers).reshape(self.runs, -1)
        runs = np.uint32(self.runs)
        each = (number // runs**place % runs for number, k in zip(numbers, digits, strict=True) for place in range(k))
        return np.stack(list(each)).reshape(self.runs, -1)

    def _numbers(self, bits: np.random.BitGenerator, n: int) -> Iterator[tuple[slice, list[Numbers]]]:
        """Some of the tasks after the other, with the numbers of their resamples."""
        rows = max(1, _NUMBERS // n)
        for start in range(0, self.tasks, rows):
            tasks = min(rows, self.tasks - start)
            found = [uniform(bits, self.runs**k, tasks * n) for k in _digits(self.runs, self.kind)]
            yield slice(start, start + tasks), [numbers.reshape(tasks, n) for numbers in found]


def uniform(bits: np.random.BitGenerator, below: int, size: int) -> UInt[np.ndarray, "size"]:
    """Exactly uniform numbers: what equal parts leave over of the range of 32 bits is drawn again."""
    found = bits.random_raw(-(-size // 2)).view(np.uint32)[:size]
    found //= np.uint32(0xFFFF_FFFF // below)
    if found.max() >= below:
        over = np.flatnonzero(found >= below)
        found[over] = uniform(bits, below, over.size)
    return found


@lru_cache(maxsize=16)
def _digits(runs: int, kind: Kind) -> list[int]:
    """The draws of one task's resample, divided evenly among as few numbers as the table allows."""
    words, most = _table(runs, 1, kind).shape[1], 1
    while most < runs and words * runs ** (most + 1) <= _TABLE:
        most += 1
    return [len(part) for part in np.array_split(range(runs), -(-runs // most))]


def _fields(runs: int, kind: Kind) -> tuple[int, int]:
    """Bits of a count of at most `runs`, and how many of them one lane of a word holds."""
    width = runs.bit_length()
    return width, 8 * kind.itemsize // width


@lru_cache(maxsize=16)
def _table(runs: int, digits: int, kind: Kind) -> Table:
    """Entry i: how often each run is among the digits of i, `_fields` to a lane, lanes from the lowest bits of a word up."""
    if digits > 1:
        entries: Table = _table(runs, digits - 1, kind)[:, None] + _table(runs, 1, kind)
        return entries.reshape(-1, entries.shape[-1])
    width, each = _fields(runs, kind)
    lanes = 8 // kind.itemsize
    one = np.zeros((runs, -(-runs // (each * lanes)) * lanes), dtype=kind)
    one[np.arange(runs), np.arange(runs) // each] = 1 << width * (np.arange(runs) % each)
    return one.view(np.uint64)
