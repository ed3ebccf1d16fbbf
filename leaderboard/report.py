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
from leaderboard.data import Store, open_store
from leaderboard.frames import (
    BEST,
    INTERVALS,
    KEY,
    ShownChoice,
    choose_opening,
    list_telling,
    make_overview,
    make_panels,
    make_readable,
)
from leaderboard.looks import COLOURS, LEGEND, SIGNS
from leaderboard.templating import fill_template

_PROVENANCE = """
SELECT count(*) AS cells, min(started) AS first, max(finished) AS last, list(DISTINCT code_version ORDER BY code_version) AS code,
    list(DISTINCT commit_hash ORDER BY commit_hash) AS commits, bool_or(dirty) AS dirty,
    list(DISTINCT engine ORDER BY engine) AS engines, list(DISTINCT origin ORDER BY origin) AS origins
FROM current_cells WHERE suite = ? AND kind = 'cell' AND state = 'done'
"""


def export_report(results: Path, target: Path, only: str | None = None) -> int:
    """Write the report of all suites, or of one, into a file; return the number of suites written.

    Raises StoreError (no results, unknown suite), DiskFullError.
    """
    store = open_store(results)
    names = list_suites(store.snapshot)
    if only is not None:
        if only not in names:
            raise StoreError(f"{results}: no results of a suite {only!r}")
        names = [only]
    sections = [_describe_suite(store, name) for name in names]
    anchors = {section["name"]: f"#{section['anchor']}" for section in sections}
    every = make_overview(names, store.answer_opening, store.describe_states) if len(names) > 1 else None
    words = {"BEST": BEST, "INTERVALS": INTERVALS, "KEY": KEY, "LEGEND": LEGEND, "explained": explain_verdicts(MARGIN)}
    columns = {statistic.full_title: statistic for statistic in select_columns("page")}
    page = fill_template(
        "report.html.tmpl",
        suites=sections,
        everything=every,
        anchors=anchors,
        columns=columns,
        COLOURS=COLOURS,
        SIGNS=SIGNS,
        **words,
    )
    write_atomic(target, page.encode())
    return len(names)


def _describe_suite(store: Store, suite: str) -> dict[str, Any]:
    """Return what the template says of a suite: its cells, its origin, and a part for each metric."""
    table = store.show_table(suite)
    parts = []
    for metric in dict.fromkeys(table["metric"]):
        parts += [_describe_choice(store, suite, choice) for choice in _list_choices(table, metric)]
    titles = store.list_suites().set_index("name")["title"]
    found = store.snapshot.query(_PROVENANCE, [suite])
    return {
        "name": suite,
        "anchor": "suite-" + suite.encode().hex(),
        "title": titles.get(suite, ""),
        "missing": describe_gaps(store.find_missing(suite)),
        "processors": store.describe_processors(suite),
        "states": store.describe_states(suite),
        "metrics": parts,
        "provenance": found.to_pylist()[0],
    }


def _describe_choice(store: Store, suite: str, choice: ShownChoice) -> dict[str, Any]:
    """Return what the template says of one policy and metric: sentences, figures and the table of numbers."""
    table = store.show_table(suite)
    said = store.answer_choice(suite, choice)
    rows = choice.select_rows(table)
    measure = "gain" if rows["gain"].notna().any() else "accuracy"
    # regimes that are in no mean come after those that are ranked
    ranked = [rank.regime for rank in said.ranking.ranks]
    order = list(dict.fromkeys([*ranked, *rows["regime"]]))
    numbers = make_readable(rows, order, MARGIN)
    of_policy = "" if choice.policy == MEAN else f", {choice.policy}"
    return {
        "metric": choice.metric + of_policy,
        "summary": write_summary(said.ranking, store.find_rate(suite)),
        "sentence": write_sentence(said.ranking),
        "lines": said.lines,
        "doubt": write_doubt(said.ranking),
        "forests": make_panels(choice, table, said, measure, order, "mean of all panels"),
        "numbers": _write_numbers(numbers),
        "best": list(numbers["best"]),
    }


def _list_choices(table: pd.DataFrame, metric: str) -> Iterator[ShownChoice]:
    """Yield the opening choice, then groups without a mean: those of one policy."""
    choice = choose_opening(table, metric)
    left = table[table["metric"] == metric]
    while len(left):
        own = left[left["policy"] == choice.policy]
        if len(own):
            groups = tuple(dict.fromkeys(own["group"]))
            yield replace(choice, groups=groups)
            told = left["group"].isin(groups)
            left = left[~told]
        next_policy = next(iter(left["policy"]), "")
        choice = replace(choice, policy=next_policy)


def _write_numbers(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers as text, under the columns' full titles."""
    columns = {statistic.head: statistic for statistic in select_columns("page")}
    titles = {"regime": "Regime", "group": "Group", "task": "Benchmark"}
    titles |= {head: statistic.full_title for head, statistic in columns.items()}
    written = {}
    for name in list_telling(rows):
        column = columns.get(name)
        written[titles[name]] = [_write_number(column, value) for value in rows[name]]
    return pd.DataFrame(written)


def _write_number(column: Statistic | None, value: Any) -> str:
    """Write a cell of the table; a number is in its column's unit already."""
    if column is not None and column.numeric:
        in_unit = replace(column.unit, factor=1.0)
        return in_unit.text(value, mark=False)
    return value if isinstance(value, str) else "–"
