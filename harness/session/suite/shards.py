"""Parts of a suite that may run at the same time, on any machines (`harness run --shard i/n`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from harness.errors import UsageError
from harness.session.suite.prepared import Prepared
from harness.suite.cells import Cell


@dataclass(frozen=True, slots=True)
class Shard:
    """Whole blocks of one group and seed, so that what is compared in pairs ran on one machine."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `i/n`. Raises UsageError."""
        if len(text) > 11 or not (match := re.fullmatch(r"([0-9]+)/([0-9]+)", text)):
            raise UsageError(f"--shard {text[:40]!r}: expected i/n, e.g. 1/4 for the first of four")
        shard = cls(int(match[1]), int(match[2]))
        if not 1 <= shard.number <= shard.count:
            raise UsageError(f"--shard {text}: i is from 1 to n")
        return shard

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def select_from(self, prepared: Prepared) -> Prepared:
        """Return this part of a suite. A base checkpoint is measured by the shard of the first cell that needs it."""
        parts: list[list[Cell]] = [[] for _ in range(self.count)]
        for block in sorted(paired_blocks(prepared.cells), key=len, reverse=True):
            min(parts, key=len).extend(block)
        mine = {cell.key for cell in parts[self.number - 1]}
        elsewhere = set[str]()
        for base in prepared.bases:
            first = next((cell.key for cell in prepared.cells if base.needed_by(cell)), "")
            if first not in mine:
                elsewhere.add(base.key)
        cells = tuple(cell for cell in prepared.cells if cell.key in mine)
        return replace(prepared, cells=cells, bases_of_other_shards=frozenset(elsewhere))


def paired_blocks(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Group cells by what is compared in pairs: group and seed."""
    return [list(block) for _, block in groupby(cells, key=lambda cell: (cell.group.name, cell.seed))]
