"""`harness export`: one HTML file, without server and script."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import StoreError
from harness.files import write_atomic
from harness.statistics import MARGIN
from harness.store.remarks import describe_gaps
from harness.store.sentences import explain_verdicts, write_doubt, write_sentence, write_summary
from harness.store.statistic import Statistic, select_columns
from harness.store.table import MEAN, list_suites
from leaderboard.charts import COLOURS, LEGEND, SIGNS, fill_template
from leaderboard.data import Store, open_store
from leaderboard.frames import BEST, INTERVALS, KEY, ShownChoice, opening, overview, panels, readable, telling

_PROVENANCE = """
SELECT count(*) AS cells, min(started) AS first, max(finished) AS last, list(DISTINCT code_version ORDER BY code_version) AS code,
    list(DISTINCT commit_hash ORDER BY commit_hash) AS commits, bool_or(dirty) AS dirty,
    list(DISTINCT engine ORDER BY engine) AS engines, list(DISTINCT origin ORDER BY origin) AS origins
FROM current_cells WHERE suite = ? AND kind = 'cell' AND state = 'done'
"""


def export_report(results: Path, target: Path, only: str | None = None) -> int:
    """Returns the number of suites written. Raises StoreError (no results, unknown suite), DiskFullError."""
    store = open_store(results)
    names = list_suites(store.snapshot)
    if only is not None:
        if only not in names:
            raise StoreError(f"{results}: no results of a suite {only!r}")
        names = [only]
    sections = [_suite(store, name) for name in names]
    every = overview(names, store.headline, store.states) if len(names) > 1 else None
    words = {"BEST": BEST, "INTERVALS": INTERVALS, "KEY": KEY, "LEGEND": LEGEND, "explained": explain_verdicts(MARGIN)}
    columns = {s.full_title: s for s in select_columns("page")}
    page = fill_template(
        "report.html.tmpl",
        suites=sections,
        everything=every,
        anchors={s["name"]: f"#{s['anchor']}" for s in sections},
        columns=columns,
        COLOURS=COLOURS,
        SIGNS=SIGNS,
        **words,
    )
    write_atomic(target, page.encode())
    return len(names)


def _suite(store: Store, suite: str) -> dict[str, Any]:
    table = store.show(suite)
    metrics = []
    for choice in (c for metric in dict.fromkeys(table["metric"]) for c in _choices(table, metric)):
        said = store.answer(suite, choice)
        rows = choice.table(table)
        measure = "gain" if rows["gain"].notna().any() else "accuracy"
        order = list(dict.fromkeys([*(r.regime for r in said.ranking.ranks), *rows["regime"]]))
        numbers = readable(rows, order, MARGIN)
        metrics.append(
            {
                "metric": choice.metric + ("" if choice.policy == MEAN else f", {choice.policy}"),
                "summary": write_summary(said.ranking, store.rate(suite)), "sentence": write_sentence(said.ranking),
                "lines": said.lines, "doubt": write_doubt(said.ranking),
                "forests": panels(choice, table, said, measure, order, "mean of all panels"),
                "numbers": _numbers(numbers), "best": list(numbers["best"]),
            }
        )  # fmt: skip
    return {
        "name": suite, "anchor": "suite-" + suite.encode().hex(), "title": store.suites().set_index("name")["title"].get(suite, ""),
        "missing": describe_gaps(store.missing(suite)), "processors": store.processors(suite), "states": store.states(suite),
        "metrics": metrics, "provenance": store.snapshot.query(_PROVENANCE, [suite]).to_pylist()[0],
    }  # fmt: skip


def _choices(table: pd.DataFrame, metric: str) -> Iterator[ShownChoice]:
    """The opening one, then groups without a mean: those of one policy."""
    left, choice = table[table["metric"] == metric], opening(table, metric)
    while len(left):
        if len(own := left[left["policy"] == choice.policy]):
            yield replace(choice, groups=tuple(dict.fromkeys(own["group"])))
            left = left[~left["group"].isin(own["group"])]
        choice = replace(choice, policy=next(iter(left["policy"]), ""))


def _numbers(rows: pd.DataFrame) -> pd.DataFrame:
    columns = {s.head: s for s in select_columns("page")}
    titles = {"regime": "Regime", "group": "Group", "task": "Benchmark"} | {h: s.full_title for h, s in columns.items()}
    return pd.DataFrame({titles[c]: [_cell(columns.get(c), v) for v in rows[c]] for c in telling(rows)})


def _cell(column: Statistic | None, value: Any) -> str:
    if column is not None and column.numeric:
        return replace(column.unit, factor=1.0).text(value, mark=False)
    return value if isinstance(value, str) else "–"
