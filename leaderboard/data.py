"""One state of the store, each question asked once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from harness.engines.embedded.presets import shares_by_steps
from harness.errors import StoreError
from harness.learning.registry import RegimeInfo, list_regimes
from harness.statistics import MARGIN
from harness.store.claims import ClaimAnswer, answer_suite_claims
from harness.store.database import store_path
from harness.store.finished import SeedRow, ShowRow, read_finished
from harness.store.kind_answers import KindAnswers, answer_by_kind
from harness.store.ranking import Aggregate, aggregate_panels, find_single_rate
from harness.store.read import Snapshot
from harness.store.remarks import Missing, TrainingMoment, count_states, mixed_in, read_moments
from harness.store.sentences import write_points
from harness.store.standing import Board, Settings, make_board
from harness.store.table import seed_rows, show_rows
from harness.store.tuning import Tuning, read_tuning, without_trials
from leaderboard.charts import Forest
from leaderboard.frames import Outcome, ShownChoice, answer_choice, choose_opening, make_panels, show_frame

# A suite's finished cells `c`, or all where none is finished
COUNTED = (
    "c.kind = 'cell' AND (c.state = 'done' OR c.suite NOT IN "
    "(SELECT suite FROM current_cells WHERE kind = 'cell' AND state = 'done'))"
)
Stamp = tuple[int, int, int]
_MOST = 256
_KEPT = (
    "answer_choice",
    "answer_claims",
    "describe_processors",
    "describe_states",
    "find_missing",
    "find_rate",
    "kinds_by_variant",
    "list_answers",
    "list_moments",
    "list_rows",
    "list_seeds",
    "make_panels",
    "query_frame",
    "regimes_by_name",
    "show_board",
    "show_table",
    "statuses_by_regime",
    "summaries_by_regime",
    "summarise_panels",
    "told_suites",
    "tuned_suites",
)


class Store:
    """The store of a results folder as it was at one moment. stamp: of that moment (`open_store`). What is asked is asked once."""

    def __init__(self, results: Path, stamp: Stamp) -> None:
        """Open the results as they are now. stamp: of the store's file, by which another state is another object."""
        self.results = results
        self.stamp = stamp
        self.snapshot = Snapshot(results)
        # answers are kept by this object, not by its class, so that they go with it; whoever gets one must not change it
        for name in _KEPT:
            ask = getattr(self, name)
            setattr(self, name, lru_cache(_MOST)(ask))

    def query_frame(self, sql: str, *parameters: Any) -> pd.DataFrame:
        """Return the rows that a query gives. parameters: of its placeholders."""
        table = self.snapshot.query(sql, parameters)
        for place, column in enumerate(table.schema):
            if pa.types.is_decimal(column.type):  # sums of integers
                numbers = table.column(place).cast(pa.float64())
                table = table.set_column(place, column.name, numbers)
        return table.to_pandas()

    def list_suites(self) -> pd.DataFrame:
        """Return name, title and engine of each suite with cells, one's own before reference results."""
        return self.query_frame(_SUITES)

    def list_regimes(self, suite: str) -> list[str]:
        """Return the regimes of a suite's cells, in the suite's order."""
        query = _IN_ORDER.format(what="regime", order="variants")
        return list(self.query_frame(query, suite)["name"])

    def list_groups(self, suite: str) -> list[str]:
        """Return the groups of a suite's cells, in the suite's order."""
        query = _IN_ORDER.format(what="group_name", order="groups")
        return list(self.query_frame(query, suite)["name"])

    def show_table(self, suite: str, margin: float = MARGIN) -> pd.DataFrame:
        """Return the table of a suite as `harness show` has it. margin: a fraction."""
        return show_frame(self.list_rows(suite, margin))

    def show_board(self, which: Settings = "defaults", margin: float = MARGIN) -> Board:
        """Return every suite that compares regimes, side by side."""
        return make_board(self.snapshot, which, margin, shares_by_steps)

    def list_answers(self, margin: float = MARGIN) -> list[KindAnswers]:
        """Return the answers by kind of pair, of regimes with their defaults."""
        board = self.show_board("defaults", margin)
        return answer_by_kind(board, write_points(margin))

    def regimes_by_name(self) -> dict[str, RegimeInfo]:
        """Return the installed regimes by name."""
        return {info.name: info for info in list_regimes()}

    def summaries_by_regime(self) -> dict[str, str]:
        """Return what each installed regime does, in a line."""
        return {name: info.summary for name, info in self.regimes_by_name().items()}

    def statuses_by_regime(self) -> dict[str, str]:
        """Return by regime `published` or `with defaults of ours`."""
        statuses = {}
        for name, info in self.regimes_by_name().items():
            if info.status:
                statuses[name] = info.status.partition(":")[0]
        return statuses

    def kinds_by_variant(self) -> dict[str, str]:
        """Return by variant of any suite the regime that it is."""
        rows = self.query_frame(
            "SELECT DISTINCT regime, regime_type FROM current_cells WHERE kind = 'cell' ORDER BY ALL"
        )
        return dict(zip(rows["regime"], rows["regime_type"], strict=True))

    def told_suites(self) -> list[str]:
        """Return the suites whose answers were kept as text, in the order of the choice of suites."""
        with_text = self.query_frame("SELECT DISTINCT suite FROM samples WHERE text <> ''")
        kept = set(with_text["suite"])
        return [name for name in self.list_suites()["name"] if name in kept]

    def tuned_suites(self) -> list[str]:
        """Return the suites whose settings were searched, in the order of the choice of suites."""
        names = list(dict.fromkeys(self.list_suites()["name"]))
        return [name for name in without_trials(names) if read_tuning(self.results, name) is not None]

    def list_rows(self, suite: str, margin: float = MARGIN) -> list[ShowRow]:
        """Return the rows of a suite's table."""
        return show_rows(self.snapshot, suite, margin)

    def list_seeds(self, suite: str) -> list[SeedRow]:
        """Return a row for each finished seed of a suite."""
        return seed_rows(self.snapshot, suite)

    def answer_choice(self, suite: str, choice: ShownChoice, margin: float = MARGIN) -> Outcome:
        """Return what a suite says of a choice of panels, one of which has finished."""
        table = self.show_table(suite, margin)
        return answer_choice(choice, table, self.list_seeds(suite), margin)

    def answer_claims(self, suite: str, margin: float = MARGIN) -> list[ClaimAnswer]:
        """Return what a suite claimed before it ran, with the answers; empty where it claimed nothing."""
        return answer_suite_claims(self.snapshot, suite, margin)

    def make_panels(
        self, suite: str, choice: ShownChoice, margin: float, measure: str, order: tuple[str, ...]
    ) -> Sequence[Forest]:
        """Return the figures of a choice of panels, their mean first. The arguments are those of the function of this name."""
        said = self.answer_choice(suite, choice, margin)
        table = self.show_table(suite, margin)
        return make_panels(choice, table, said, measure, order, "Mean of the {} panels below")

    def find_rate(self, suite: str) -> float | None:
        """Return the one learning rate of independent training; None where it ran at several."""
        return find_single_rate(read_finished(self.snapshot, suite))

    def answer_opening(self, suite: str) -> Outcome | None:
        """Return what a suite says of what it opens with; None before a cell has finished."""
        table = self.show_table(suite)
        if table.empty:
            return None
        return self.answer_choice(suite, choose_opening(table))

    def order_regimes(self, suite: str, regimes: Sequence[str], baseline: str) -> list[str]:
        """Order the regimes as the page of the suite does, by their gain; those without one and training without sharing come
        last.

        The first is never the baseline, nor a variant of it where anything else has finished.
        """
        told = self.answer_opening(suite)
        ranks = told.ranking.ranks if told else ()
        gains = {rank.regime: rank.gain for rank in ranks if rank.gain is not None}
        kinds = self.kinds_by_variant()
        kind_of_baseline = kinds.get(baseline, baseline)

        def place_regime(regime: str) -> tuple[bool, bool, bool, float]:
            """Return what a regime is sorted by: the baseline last, before it training without sharing, then by the gain."""
            variant = regime.partition(", ")[0]
            alone = kinds.get(variant, regime) == kind_of_baseline
            return regime == baseline, alone, regime not in gains, -gains.get(regime, 0.0)

        return sorted(regimes, key=place_regime)

    def choose_two(self, suite: str, regimes: Sequence[str]) -> list[str]:
        """Return the regime that gains most and the baseline, or the next one where that is absent."""
        known = self.query_frame("SELECT baseline FROM suites WHERE suite = ?", suite)["baseline"]
        baseline = str(known.iloc[0]) if len(known) else ""
        ranked = [name for name in self.order_regimes(suite, regimes, baseline) if name != baseline]
        present_baseline = [name for name in regimes if name == baseline]
        others = present_baseline + ranked[1:]
        return [*ranked[:1], *others[:1]]

    def summarise_panels(self, suite: str, choice: ShownChoice) -> list[Aggregate]:
        """Return how each regime does over all panels of a choice together."""
        seeds = choice.select_seeds(self.list_seeds(suite))
        return aggregate_panels([row for row in seeds if row.policy == choice.policy])

    def find_tuning(self, suite: str) -> Tuning | None:
        """Return the search for a suite's settings, of its trials and of its check too; None where there was none."""
        for name in dict.fromkeys([suite, suite.removesuffix("-tuning"), suite.removesuffix("-check")]):
            tuning = read_tuning(self.results, name)
            if tuning is not None:
                return tuning
        return None

    def find_missing(self, suite: str) -> list[Missing]:
        """Return the cells that a suite lacks, each with its state and the reason."""
        from harness.session.suite.gaps import find_gaps  # takes long to import

        missing, *_ = find_gaps(self.snapshot, self.results, suite)
        return missing

    def describe_processors(self, suite: str) -> str:
        """Say where a suite's cells ran on processors of several kinds; empty where on one."""
        return mixed_in(self.snapshot, suite)

    def describe_states(self, suite: str) -> str:
        """Say how many of a suite's cells are in which state."""
        return count_states(self.snapshot, suite, self.find_missing(suite))

    def list_moments(self, suite: str) -> list[TrainingMoment]:
        """Return the accuracies before a supervised start, after it, and after training."""
        return read_moments(self.snapshot, suite)


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


def open_store(results: Path) -> Store:
    """Open the store of a folder, or return it as it is open where the file has not changed.

    Its stamp is the file's number, time of change in nanoseconds and size in bytes. Raises StoreError where there are no results.
    """
    try:
        status = os.stat(store_path(results))
    except OSError:
        raise StoreError(f"{results}: no results yet") from None
    stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
    known = _OPEN.get(results)
    if known is None or known.stamp != stamp:
        known = _OPEN[results] = Store(results, stamp)
    return known
