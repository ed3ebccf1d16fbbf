"""What the pages read: cached queries over one snapshot of the store. Frames are shared; nobody may change them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
import streamlit as st

from harness.errors import StoreError
from harness.statistics import MARGIN
from harness.store.database import store_path
from harness.store.ranking import Aggregate, aggregates, in_pairs
from harness.store.read import Snapshot
from harness.store.remarks import Missing, Stage, counted, stages
from harness.store.statistic import POINTS
from harness.store.table import SeedRow, seed_rows, show_rows
from harness.store.tuning import Tuning, read_tuning
from harness.store.tuning_table import apart, transfer_rows, tuning_rows
from leaderboard.frames import show_frame
from leaderboard.overview import Outcome, answer, first_metric

Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class SuiteInfo:
    """A suite as the sidebar lists it."""

    name: str
    title: str
    engine: str
    baseline: str
    cells: int


@dataclass(frozen=True, slots=True)
class Choice:
    """Panels of a suite, as the ranking page offers them."""

    metric: str
    policy: str
    groups: tuple[str, ...]
    tasks: tuple[str, ...]

    def rows(self, seeds: Sequence[SeedRow]) -> list[SeedRow]:
        """Its seeds, of all policies."""
        return [r for r in seeds if r.metric == self.metric and r.group in self.groups and r.task in self.tasks]

    def table(self, shown: pd.DataFrame) -> pd.DataFrame:
        """Its lines of `Store.show`."""
        here = shown["group"].isin(self.groups) & shown["task"].isin(self.tasks)
        return shown[here & (shown["metric"] == self.metric) & (shown["policy"] == self.policy)]


@dataclass(frozen=True, slots=True)
class Store:
    """One state of the store. `stamp` changes whenever a newer one takes its place, and is part of every cache key."""

    results: str
    stamp: Stamp

    def frame(self, sql: str, *parameters: Any) -> pd.DataFrame:
        """Rows of one of our own statements. Raises StoreError."""
        return _frame(self.results, self.stamp, sql, parameters)

    def suites(self) -> list[SuiteInfo]:
        """Suites with cells, the one with the latest finished cell first; reference results behind our own."""
        frame = self.frame(_SUITES)
        return [SuiteInfo(*row) for row in frame.itertuples(index=False, name=None)]

    def show(self, suite: str, margin: float = MARGIN) -> pd.DataFrame:
        """`harness show` as a frame: the columns of ShowRow, intervals split into `low`, `high`, `gain_low`, `gain_high`."""
        return _show(self.results, self.stamp, suite, margin)

    def regimes(self, suite: str) -> list[str]:
        """All regimes of the suite's cells, in suite order."""
        return list(self.frame(_REGIMES, suite)["regime"])

    def groups(self, suite: str) -> list[str]:
        """All groups of the suite's cells, in suite order."""
        return list(self.frame(_GROUPS, suite)["group_name"])

    def seeds(self, suite: str) -> list[SeedRow]:
        """The same seed by seed."""
        return _seeds(self.results, self.stamp, suite)

    def answer(self, suite: str) -> Outcome | None:
        """Whether sharing helps there, by its first metric; None where nothing has finished."""
        return _answer(self, suite)

    def outcome(self, suite: str, choice: Choice, margin: float) -> Outcome:
        """The answer of some panels, one of which has finished."""
        return _outcome(self, suite, choice, margin)

    def across(self, suite: str, choice: Choice) -> list[Aggregate]:
        """The regimes across some panels."""
        return _across(self, suite, choice)

    def tuning(self, suite: str) -> Tuning | None:
        """What a tuned suite's trials gave, asked by its own name or by that of its trials; None for any other suite."""
        names = dict.fromkeys([suite, suite.removesuffix("-tuning"), suite.removesuffix("-check")])
        return next((t for name in names if (t := read_tuning(Path(self.results), name)) is not None), None)

    def tuning_rows(self, tuning: Tuning) -> pd.DataFrame:
        """As published and tuned, in points and percent, gains with their intervals as texts; empty until the table's cells are
        finished."""
        rows = tuning_rows(_snapshot(self.results, self.stamp), tuning)
        frame = pd.DataFrame([msgspec.structs.asdict(r) for r in rows])
        texts = ["published_gain", "tuned_gain", "change"]
        pairs = ["published_interval", "tuned_interval", "change_interval"]
        shares = [
            "published",
            "tuned",
            "lowest",
            "highest",
            "promised",
            "kept",
        ]
        if not frame.empty:
            frame[shares] = frame[shares].astype(float) * 100
            for text, pair in zip(texts, pairs, strict=True):
                frame[text] = [
                    f"{POINTS.text(a)} {POINTS.interval(b)}".rstrip()
                    for a, b in zip(frame[text], frame[pair], strict=True)
                ]
            who = ["group", "variant", *(["on"] if frame["on"].any() else [])]
            frame = frame[[*who, *texts, *shares, "trials", "failed", "rollouts", "cpu_seconds"]]
        return frame

    def transfer_rows(self, tuning: Tuning) -> pd.DataFrame:
        """Settings of one tuning group beside those of another on the same group, in percent and points; empty where none moved.

        apart: the difference and its interval, in words."""
        rows = transfer_rows(_snapshot(self.results, self.stamp), tuning)
        frame = pd.DataFrame([msgspec.structs.asdict(r) for r in rows])
        if not frame.empty:
            shares = ["first", "second", "difference", "low", "high"]
            frame[["low", "high"]] = [r.interval or (None, None) for r in rows]
            frame["apart"] = [apart(r) for r in rows]
            frame[shares] = frame[shares].astype(float) * 100
            frame = frame[["group", "variant", "first_on", "first", "second_on", "second", "apart", *shares[2:]]]
        return frame

    def missing(self, suite: str) -> list[Missing]:
        """The cells that the suite's numbers lack, or have from other settings or code: what `harness status` says of them."""
        return _missing(self.results, self.stamp, suite)

    def states(self, suite: str) -> str:
        """How many of the suite's cells are in which state, e.g. `4 done, 2 failed`."""
        return counted(_snapshot(self.results, self.stamp), suite, self.missing(suite))

    def in_pairs(self, suite: str) -> bool:
        """Whether all groups of the suite have two policies."""
        return in_pairs(_snapshot(self.results, self.stamp), suite)

    def stages(self, suite: str) -> list[Stage]:
        """Pretrained policies before their supervised start, after it and after RL."""
        return stages(_snapshot(self.results, self.stamp), suite)


_SUITES = """
SELECT c.suite, coalesce(any_value(s.title), ''), coalesce(any_value(c.engine), ''), coalesce(any_value(c.baseline), ''), count(*)
FROM current_cells c LEFT JOIN suites s USING (suite) WHERE c.kind = 'cell'
GROUP BY c.suite
ORDER BY any_value(c.origin) = 'reference', if(any_value(c.origin) = 'reference', -count(*), 0), max(c.finished) DESC, c.suite
"""


_REGIMES = """
SELECT DISTINCT regime, coalesce(list_position(s.variants, regime), 1000) AS place
FROM current_cells c LEFT JOIN suites s USING (suite) WHERE c.suite = ? AND c.kind = 'cell' ORDER BY place, regime
"""
_GROUPS = """
SELECT DISTINCT group_name, coalesce(list_position(s.groups, group_name), 1000) AS place
FROM current_cells c LEFT JOIN suites s USING (suite) WHERE c.suite = ? AND c.kind = 'cell' ORDER BY place, group_name
"""


def open_store(results: Path) -> Store:
    """The newest state of the store. Raises StoreError where there is none."""
    try:
        found = os.stat(store_path(results))
    except OSError:
        raise StoreError(f"{results}: no results yet") from None
    store = Store(str(results), (found.st_ino, found.st_mtime_ns, found.st_size))
    _snapshot(store.results, store.stamp)
    return store


@st.cache_resource(max_entries=2, show_spinner=False)
def _snapshot(results: str, stamp: Stamp) -> Snapshot:
    return Snapshot(Path(results))


@st.cache_resource(max_entries=256, show_spinner=False)
def _frame(results: str, stamp: Stamp, sql: str, parameters: tuple[Any, ...]) -> pd.DataFrame:
    found = _snapshot(results, stamp).query(sql, parameters)
    for i, column in enumerate(found.schema):
        if pa.types.is_decimal(column.type):  # sums of integers
            found = found.set_column(i, column.name, found.column(i).cast(pa.float64()))
    return found.to_pandas()


@st.cache_resource(max_entries=256, show_spinner=False)
def _missing(results: str, stamp: Stamp, suite: str) -> list[Missing]:
    from harness.session.suite.lacking import lacking  # takes long to import

    return lacking(_snapshot(results, stamp), Path(results), suite)[0]


@st.cache_resource(max_entries=16, show_spinner=False)
def _show(results: str, stamp: Stamp, suite: str, margin: float) -> pd.DataFrame:
    return show_frame(show_rows(_snapshot(results, stamp), suite, margin))


@st.cache_resource(max_entries=16, show_spinner=False)
def _seeds(results: str, stamp: Stamp, suite: str) -> list[SeedRow]:
    return seed_rows(_snapshot(results, stamp), suite)


@st.cache_resource(max_entries=256, show_spinner=False)
def _answer(store: Store, suite: str) -> Outcome | None:
    return first_metric(store.show(suite), store.seeds(suite), store.in_pairs(suite), MARGIN)


@st.cache_resource(max_entries=256, show_spinner=False)
def _outcome(store: Store, suite: str, choice: Choice, margin: float) -> Outcome:
    table, seeds = choice.table(store.show(suite, margin)), store.seeds(suite)
    among = [r for r in seeds if r.metric == choice.metric]
    return answer(table, choice.rows(seeds), choice.policy, store.in_pairs(suite), margin, among)


@st.cache_resource(max_entries=256, show_spinner=False)
def _across(store: Store, suite: str, choice: Choice) -> list[Aggregate]:
    seeds = store.seeds(suite)
    return aggregates([r for r in choice.rows(seeds) if r.policy == choice.policy])
