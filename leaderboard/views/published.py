"""The papers' gains over independent training with as many rollouts, beside ours."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import streamlit as st

from harness.published import Publication, PublishedRow, load_publication, publication_names
from harness.store.table import MEAN
from leaderboard import charts
from leaderboard.data import Store
from leaderboard.page import (
    Page,
    draw_figure,
    draw_regime_links,
    draw_table,
    escape_markdown,
    number_column,
    offer_downloads,
)

# Independent training at the regimes' rollouts, the regime's own objective first
_BASELINES = ("gspo", "grpo")
_MORE_ROLLOUTS = {"gspo2": "independent-2x", "grpo16": "independent-2x", "grpo32": "independent-4x"}
_COLUMNS = {
    "regime": "Regime",
    "gain": number_column("Gain, points", "%+.1f"),
    "accuracy": number_column("Accuracy, %", "%.1f"),
    "against": "Compared with",
    "baseline": number_column("its accuracy, %", "%.1f"),
    "model": "Model",
    "setting": "Setting",
    "paper": "Paper",
}
_GAIN = "gain, points"


def draw(store: Store | None, suite: str) -> None:
    """Draw the page: a figure and the table of what papers report, then the suite's own gains."""
    rows = list_published()
    labels = rows["model"] + ", over " + rows["against"]
    marks = pd.DataFrame({"row": rows["regime"], "value": rows["gain"], "label": labels})
    figures = []
    for paper, part in rows.groupby("paper", sort=False):
        settings = "; ".join(dict.fromkeys(part["setting"]))
        of_paper = marks.loc[part.index].sort_values("row", kind="stable")
        figure = charts.draw_dots(of_paper, f"{paper}: {settings}", _GAIN)
        figures.append(figure)
        draw_figure(figure, f"published-{len(figures)}")
    st.caption(
        "A mark: one model of a paper over independent training with the same rollouts. Each paper has its own models, data, "
        "metrics and baselines, and prints no intervals; so compare signs and order, not heights."
    )
    draw_regime_links(store, rows["regime"])
    draw_table(rows, "papers", "Published accuracies and gains", _COLUMNS)
    if store is not None:
        st.header("Measured here")
        _draw_ours(store, suite)
    offer_downloads("published", lambda: rows, figures)


def list_published() -> pd.DataFrame:
    """Return the rows with a baseline in their table: percent, points, our regime's name."""
    rows: list[tuple[object, ...]] = []
    for name in publication_names():
        rows += _list_gains(load_publication(name))
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _list_gains(paper: Publication) -> Iterator[tuple[object, ...]]:
    """Yield a line of the table, in the order of its columns, for each row of a paper that can be compared."""
    for row in paper.rows:
        baseline = _find_baseline(paper, row)
        if baseline is None or row.method in ("base", *_BASELINES):
            continue
        value = _measure_percent(paper, row)
        reference = _measure_percent(paper, baseline)
        tasks = set[str]()
        for other in paper.rows:
            if other.source == row.source:
                tasks.update(other.values)
        yield (
            _MORE_ROLLOUTS.get(row.method, row.method),
            value - reference,
            value,
            baseline.method.upper(),
            reference,
            f"{row.policy} with {row.peer}" if row.peer else row.policy,
            f"{row.source}, {_describe_setting(paper, sorted(tasks))}",
            f"{paper.short} (arXiv {paper.arxiv})",
        )


def _find_baseline(paper: Publication, row: PublishedRow) -> PublishedRow | None:
    """Return the row of independent training that a row is compared with, of the same table and policy; None without one."""
    for method in _BASELINES:
        for other in paper.rows:
            same = (other.source, other.policy) == (row.source, row.policy) and other.group in (row.group, "")
            if same and other.method == method:
                return other
    return None


def _describe_setting(paper: Publication, tasks: list[str]) -> str:
    """Say what a table's numbers are: of one benchmark, or the mean of several, and by which metric."""
    if len(tasks) == 1:
        task = tasks[0]
        return f"{task} ({paper.metric(task)})"
    usual = paper.metrics["default"]
    other = [f"{task} as {paper.metric(task)}" for task in tasks if paper.metric(task) != usual]
    exceptions = f" ({', '.join(other)})" if other else ""
    return f"mean of {len(tasks)} benchmarks, {usual}{exceptions}"


def _measure_percent(paper: Publication, row: PublishedRow) -> float:
    """Return a row's mean accuracy, the paper's own where it prints one."""
    of_tasks = row.values.values()
    value = row.average if row.average is not None else sum(of_tasks) / len(of_tasks)
    return 100 * paper.share(value)


def _draw_ours(store: Store, suite: str) -> None:
    """Draw the suite's own gains on each group, as the papers' are drawn."""
    trained = store.query_frame("SELECT DISTINCT unnest(models) AS model FROM current_cells WHERE suite = ?", suite)
    if any(model.startswith("micro/") for model in trained["model"]):
        st.caption(
            f"The suite {escape_markdown(suite)} trains micro models on arithmetic, from checkpoints made to be helped or not: a "
            "control of the regimes, which says nothing about the papers' models. Its gains are on the page One suite."
        )
        return
    table = store.show_table(suite)
    with_gain = (table["policy"] == MEAN) & table["gain"].notna()
    table = table[with_gain]
    if table.empty:
        st.caption(f"No regime of the suite {escape_markdown(suite)} has finished beside its baseline.")
        return
    metric = table["metric"].iloc[0]
    rows = table[table["metric"] == metric]
    labels = rows["group"] + ", " + rows["task"]
    marks = pd.DataFrame({"row": rows["regime"], "value": 100 * rows["gain"], "label": labels})
    draw_figure(charts.draw_dots(marks, f"{suite}, {metric}", _GAIN), "ours")
    st.caption(
        "A mark: the mean of one group on one benchmark. `harness show --against PAPER` sets the same models side by side, by "
        "the paper's own metrics."
    )


PAGE = Page(
    "published",
    "Published figures",
    ":material/menu_book:",
    "What the papers report, each in its own setting.",
    draw,
    order=80,
    needs_results=False,
    part_of="regimes",
)
