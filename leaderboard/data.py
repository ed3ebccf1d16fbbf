"""What pages and report read: one state of the store, each question asked once."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import pandas as pd
import pyarrow as pa

from harness.errors import StoreError
from harness.learning.registry import listing
from harness.statistics import MARGIN
from harness.store.database import store_path
from harness.store.ranking import Aggregate, aggregates, in_pairs
from harness.store.read import Snapshot
from harness.store.remarks import Missing, Stage, counted, mixed_in, stages
from harness.store.standing import Board, Settings, board
from harness.store.table import SeedRow, seed_rows, show_rows
from harness.store.tuning import Tuning, read_tuning
from leaderboard.frames import Choice, Outcome, answer, opening, show_frame

Stamp = tuple[int, int, int]
P = ParamSpec("P")
T = TypeVar("T")
_MOST = 256
"""Answers that are kept of one state of the store."""


def _once(ask: Callable[Concatenate[Store, P], T]) -> Callable[Concatenate[Store, P], T]:
    """Answers are kept as long as the store; nobody may change them."""

    @wraps(ask)
    def asked(self: Store, /, *given: P.args, **named: P.kwargs) -> T:
        key = ask.__name__, given, *named.items()
        if key in (kept := self.kept):
            return kept[key]  # type: ignore[no-any-return]
        found = ask(self, *given, **named)
        self.kept = {**dict(list(self.kept.items())[-_MOST:]), key: found}
        return found

    return asked


class Store:
    """One state; `stamp` is another for each."""

    def __init__(self, results: Path, stamp: Stamp) -> None:
        self.results, self.stamp = results, stamp
        self.snapshot = Snapshot(results)
        self.kept: dict[Any, Any] = {}

    @_once
    def frame(self, sql: str, *parameters: Any) -> pd.DataFrame:
        """Rows of one of our own statements. Raises StoreError."""
        found = self.snapshot.query(sql, parameters)
        for i, column in enumerate(found.schema):
            if pa.types.is_decimal(column.type):  # sums of integers
                found = found.set_column(i, column.name, found.column(i).cast(pa.float64()))
        return found.to_pandas()

    def suites(self) -> pd.DataFrame:
        """Name, title and engine, the latest first, reference results last."""
        return self.frame(_SUITES)

    def regimes(self, suite: str) -> list[str]:
        """In suite order."""
        return list(self.frame(_IN_ORDER.format(what="regime", order="variants"), suite)["name"])

    def groups(self, suite: str) -> list[str]:
        """In suite order."""
        return list(self.frame(_IN_ORDER.format(what="group_name", order="groups"), suite)["name"])

    @_once
    def show(self, suite: str, margin: float = MARGIN) -> pd.DataFrame:
        """`frames.show_frame` of the suite."""
        return show_frame(show_rows(self.snapshot, suite, margin))

    @_once
    def board(self, which: Settings = "published", margin: float = MARGIN) -> Board:
        """Every regime over all suites."""
        return board(self.snapshot, which, margin)

    @_once
    def summaries(self) -> dict[str, str]:
        """By regime, the first line of its docstring."""
        return {info.name: info.summary for info in listing()}

    @_once
    def seeds(self, suite: str) -> list[SeedRow]:
        """The same seed by seed."""
        return seed_rows(self.snapshot, suite)

    @_once
    def answer(self, suite: str, choice: Choice, margin: float = MARGIN) -> Outcome:
        """Of panels, one of which has finished."""
        return answer(choice, self.show(suite, margin), self.seeds(suite), in_pairs(self.snapshot, suite), margin)

    def headline(self, suite: str) -> Outcome | None:
        """Of what the suite opens with; None where nothing has finished."""
        table = self.show(suite)
        return None if table.empty else self.answer(suite, opening(table))

    @_once
    def across(self, suite: str, choice: Choice) -> list[Aggregate]:
        """Regimes across some panels."""
        return aggregates([r for r in choice.seeds(self.seeds(suite)) if r.policy == choice.policy])

    def tuning(self, suite: str) -> Tuning | None:
        """By the suite's own name or that of its trials; None where it is not tuned."""
        names = dict.fromkeys([suite, suite.removesuffix("-tuning"), suite.removesuffix("-check")])
        return next((t for name in names if (t := read_tuning(self.results, name)) is not None), None)

    @_once
    def missing(self, suite: str) -> list[Missing]:
        """Cells that the numbers lack, or have from other settings or code."""
        from harness.session.suite.prepare import lacking  # takes long to import

        return lacking(self.snapshot, self.results, suite)[0]

    @_once
    def processors(self, suite: str) -> str:
        """The remark on pairs that ran on unlike processors, or nothing."""
        return mixed_in(self.snapshot, suite)

    @_once
    def states(self, suite: str) -> str:
        """E.g. `4 done, 2 failed`."""
        return counted(self.snapshot, suite, self.missing(suite))

    @_once
    def stages(self, suite: str) -> list[Stage]:
        """Policies before their supervised start, after it and after RL."""
        return stages(self.snapshot, suite)


_SUITES = """
SELECT c.suite AS name, coalesce(any_value(s.title), '') AS title, coalesce(any_value(c.engine), '') AS engine
FROM current_cells c LEFT JOIN suites s USING (suite) WHERE c.kind = 'cell'
GROUP BY c.suite
ORDER BY any_value(c.origin) = 'reference', if(any_value(c.origin) = 'reference', -count(*), 0), max(c.finished) DESC, c.suite
"""
_IN_ORDER = """
SELECT DISTINCT {what} AS name, coalesce(list_position(s.{order}, {what}), 1000) AS place
FROM current_cells c LEFT JOIN suites s USING (suite) WHERE c.suite = ? AND c.kind = 'cell' ORDER BY place, name
"""
_OPEN: dict[Path, Store] = {}
"""The newest state of each results folder."""


def open_store(results: Path) -> Store:
    """The newest state. Raises StoreError where there is none."""
    try:
        found = os.stat(store_path(results))
    except OSError:
        raise StoreError(f"{results}: no results yet") from None
    stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
    if results not in _OPEN or _OPEN[results].stamp != stamp:
        _OPEN[results] = Store(results, stamp)
    return _OPEN[results]
