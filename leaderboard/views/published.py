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
    rows = published()
    marks = pd.DataFrame(
        {"row": rows["regime"], "value": rows["gain"], "label": rows["model"] + ", over " + rows["against"]}
    )
    figures = []
    for paper, part in rows.groupby("paper", sort=False):
        title = f"{paper}: {'; '.join(dict.fromkeys(part['setting']))}"
        figures.append(charts.draw_dots(marks.loc[part.index].sort_values("row", kind="stable"), title, _GAIN))
        draw_figure(figures[-1], f"published-{len(figures)}")
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


def published() -> pd.DataFrame:
    """Rows with a baseline in their table: percent, points, our regime's name."""
    return pd.DataFrame(
        [row for name in publication_names() for row in _gains(load_publication(name))], columns=list(_COLUMNS)
    )


def _gains(paper: Publication) -> Iterator[tuple[object, ...]]:
    for row in paper.rows:
        same = [
            r for r in paper.rows if (r.source, r.policy) == (row.source, row.policy) and r.group in (row.group, "")
        ]
        baseline = next((r for method in _BASELINES for r in same if r.method == method), None)
        if baseline is None or row.method in ("base", *_BASELINES):
            continue
        value, reference = _percent(paper, row), _percent(paper, baseline)
        tasks = {task for other in paper.rows if other.source == row.source for task in other.values}
        yield (
            _MORE_ROLLOUTS.get(row.method, row.method),
            value - reference,
            value,
            baseline.method.upper(),
            reference,
            f"{row.policy} with {row.peer}" if row.peer else row.policy,
            f"{row.source}, {_setting(paper, sorted(tasks))}",
            f"{paper.short} (arXiv {paper.arxiv})",
        )


def _setting(paper: Publication, tasks: list[str]) -> str:
    if len(tasks) == 1:
        return f"{tasks[0]} ({paper.metric(tasks[0])})"
    usual = paper.metrics["default"]
    other = [f"{task} as {paper.metric(task)}" for task in tasks if paper.metric(task) != usual]
    return f"mean of {len(tasks)} benchmarks, {usual}" + (f" ({', '.join(other)})" if other else "")


def _percent(paper: Publication, row: PublishedRow) -> float:
    value = row.average if row.average is not None else sum(row.values.values()) / len(row.values)
    return 100 * paper.share(value)


def _draw_ours(store: Store, suite: str) -> None:
    models = store.query_frame("SELECT DISTINCT unnest(models) AS model FROM current_cells WHERE suite = ?", suite)[
        "model"
    ]
    if any(model.startswith("micro/") for model in models):
        st.caption(
            f"The suite {escape_markdown(suite)} trains micro models on arithmetic, from checkpoints made to be helped or not: a "
            "control of the regimes, which says nothing about the papers' models. Its gains are on the page One suite."
        )
        return
    table = store.show_table(suite)
    table = table[(table["policy"] == MEAN) & table["gain"].notna()]
    if table.empty:
        st.caption(f"No regime of the suite {escape_markdown(suite)} has finished beside its baseline.")
        return
    rows = table[table["metric"] == table["metric"].iloc[0]]
    marks = {"row": rows["regime"], "value": 100 * rows["gain"], "label": rows["group"] + ", " + rows["task"]}
    draw_figure(charts.draw_dots(pd.DataFrame(marks), f"{suite}, {rows['metric'].iloc[0]}", _GAIN), "ours")
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
