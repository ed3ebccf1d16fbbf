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
from leaderboard.frames import Outcome, ShownChoice, answer, opening, panels, show_frame

# A suite's finished cells `c`, or all where none is finished
COUNTED = (
    "c.kind = 'cell' AND (c.state = 'done' OR c.suite NOT IN "
    "(SELECT suite FROM current_cells WHERE kind = 'cell' AND state = 'done'))"
)
Stamp = tuple[int, int, int]
_MOST = 256
_KEPT = (
    "answer",
    "answers",
    "across",
    "board",
    "frame",
    "infos",
    "kinds",
    "missing",
    "panels",
    "processors",
    "rate",
    "rows",
    "seeds",
    "show",
    "stages",
    "states",
    "statuses",
    "summaries",
    "told_suites",
    "tuned_suites",
)


class Store:
    def __init__(self, results: Path, stamp: Stamp) -> None:
        self.results, self.stamp = results, stamp
        self.snapshot = Snapshot(results)
        for name in _KEPT:  # not to be changed
            setattr(self, name, lru_cache(_MOST)(getattr(self, name)))

    def frame(self, sql: str, *parameters: Any) -> pd.DataFrame:
        table = self.snapshot.query(sql, parameters)
        for i, column in enumerate(table.schema):
            if pa.types.is_decimal(column.type):  # sums of integers
                table = table.set_column(i, column.name, table.column(i).cast(pa.float64()))
        return table.to_pandas()

    def suites(self) -> pd.DataFrame:
        return self.frame(_SUITES)

    def regimes(self, suite: str) -> list[str]:
        return list(self.frame(_IN_ORDER.format(what="regime", order="variants"), suite)["name"])

    def groups(self, suite: str) -> list[str]:
        return list(self.frame(_IN_ORDER.format(what="group_name", order="groups"), suite)["name"])

    def show(self, suite: str, margin: float = MARGIN) -> pd.DataFrame:
        return show_frame(self.rows(suite, margin))

    def board(self, which: Settings = "defaults", margin: float = MARGIN) -> Board:
        return make_board(self.snapshot, which, margin, shares_by_steps)

    def answers(self, margin: float = MARGIN) -> list[KindAnswers]:
        """By kind of pair, of regimes with their defaults."""
        return answer_by_kind(self.board("defaults", margin), write_points(margin))

    def infos(self) -> dict[str, RegimeInfo]:
        """By name, the installed regimes."""
        return {info.name: info for info in list_regimes()}

    def summaries(self) -> dict[str, str]:
        return {name: info.summary for name, info in self.infos().items()}

    def statuses(self) -> dict[str, str]:
        """By regime `published` or `with defaults of ours`."""
        return {name: info.status.partition(":")[0] for name, info in self.infos().items() if info.status}

    def kinds(self) -> dict[str, str]:
        """By variant of any suite the regime that it is."""
        rows = self.frame("SELECT DISTINCT regime, regime_type FROM current_cells WHERE kind = 'cell' ORDER BY ALL")
        return dict(zip(rows["regime"], rows["regime_type"], strict=True))

    def told_suites(self) -> list[str]:
        """Suites whose answers were kept as text, in the order of the choice of suites."""
        kept = set(self.frame("SELECT DISTINCT suite FROM samples WHERE text <> ''")["suite"])
        return [name for name in self.suites()["name"] if name in kept]

    def tuned_suites(self) -> list[str]:
        """Suites whose settings were searched, in the order of the choice of suites."""
        names = dict.fromkeys(self.suites()["name"])
        return [name for name in without_trials(list(names)) if read_tuning(self.results, name) is not None]

    def rows(self, suite: str, margin: float = MARGIN) -> list[ShowRow]:
        return show_rows(self.snapshot, suite, margin)

    def seeds(self, suite: str) -> list[SeedRow]:
        return seed_rows(self.snapshot, suite)

    def answer(self, suite: str, choice: ShownChoice, margin: float = MARGIN) -> Outcome:
        """Of panels, one of which has finished."""
        return answer(choice, self.show(suite, margin), self.seeds(suite), margin)

    def panels(
        self, suite: str, choice: ShownChoice, margin: float, measure: str, order: tuple[str, ...]
    ) -> Sequence[Forest]:
        said = self.answer(suite, choice, margin)
        return panels(choice, self.show(suite, margin), said, measure, order, "Mean of the {} panels below")

    def rate(self, suite: str) -> float | None:
        """The one learning rate of independent training; None where it ran at several."""
        return find_single_rate(read_finished(self.snapshot, suite))

    def headline(self, suite: str) -> Outcome | None:
        table = self.show(suite)
        return None if table.empty else self.answer(suite, opening(table))

    def order_regimes(self, suite: str, regimes: Sequence[str], baseline: str) -> list[str]:
        """Order the regimes as the page of the suite does, by their gain; those without one and training without sharing come
        last.

        The first is never the baseline, nor a variant of it where anything else has finished.
        """
        told = self.headline(suite)
        gains = {rank.regime: rank.gain for rank in told.ranking.ranks if rank.gain is not None} if told else {}
        kinds = self.kinds()

        def place(regime: str) -> tuple[bool, bool, bool, float]:
            alone = kinds.get(regime.partition(", ")[0], regime) == kinds.get(baseline, baseline)
            return regime == baseline, alone, regime not in gains, -gains.get(regime, 0.0)

        return sorted(regimes, key=place)

    def choose_two(self, suite: str, regimes: Sequence[str]) -> list[str]:
        """Return the regime that gains most and the baseline, or the next one where that is absent."""
        known = self.frame("SELECT baseline FROM suites WHERE suite = ?", suite)["baseline"]
        baseline = str(known.iloc[0]) if len(known) else ""
        ranked = [name for name in self.order_regimes(suite, regimes, baseline) if name != baseline]
        others = [name for name in regimes if name == baseline] + ranked[1:]
        return [*ranked[:1], *others[:1]]

    def across(self, suite: str, choice: ShownChoice) -> list[Aggregate]:
        return aggregate_panels([r for r in choice.seeds(self.seeds(suite)) if r.policy == choice.policy])

    def tuning(self, suite: str) -> Tuning | None:
        names = dict.fromkeys([suite, suite.removesuffix("-tuning"), suite.removesuffix("-check")])
        return next((t for name in names if (t := read_tuning(self.results, name)) is not None), None)

    def missing(self, suite: str) -> list[Missing]:
        from harness.session.suite.gaps import find_gaps  # takes long to import

        return find_gaps(self.snapshot, self.results, suite)[0]

    def processors(self, suite: str) -> str:
        return mixed_in(self.snapshot, suite)

    def states(self, suite: str) -> str:
        return count_states(self.snapshot, suite, self.missing(suite))

    def stages(self, suite: str) -> list[TrainingMoment]:
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
    try:
        status = os.stat(store_path(results))
    except OSError:
        raise StoreError(f"{results}: no results yet") from None
    stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
    if results not in _OPEN or _OPEN[results].stamp != stamp:
        _OPEN[results] = Store(results, stamp)
    return _OPEN[results]
