"""The papers' gains over independent training with as many rollouts."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import streamlit as st

from harness.published import Publication, PublishedRow, load, names
from leaderboard import charts
from leaderboard.data import Store
from leaderboard.page import Page, downloads, draw_figure, draw_table, number

# Independent training at the regimes' rollouts: the one with the regime's own objective before the other
_BASELINES = ("gspo", "grpo")
_MORE_ROLLOUTS = {"gspo2": "independent-2x", "grpo16": "independent-2x", "grpo32": "independent-4x"}
_COLUMNS = {
    "regime": "Regime",
    "gain": number("Gain, points", "%+.1f"),
    "accuracy": number("Accuracy, %", "%.1f"),
    "against": "Compared with",
    "baseline": number("its accuracy, %", "%.1f"),
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
        figures.append(charts.dots(marks.loc[part.index].sort_values("row", kind="stable"), title, _GAIN))
        draw_figure(figures[-1], f"published-{len(figures)}")
    st.caption(
        "A mark: one model of a paper over independent training with the same rollouts. Each paper has its own models, data, "
        "metrics and baselines, and prints no intervals; so compare signs and order, not heights. `harness show --against PAPER` "
        "sets our runs of the same models beside them."
    )
    draw_table(rows, "papers", "Published accuracies and gains", _COLUMNS)
    downloads("published", lambda: rows, figures)


def published() -> pd.DataFrame:
    """Every row with a baseline in its table: percent, points, our name of the regime."""
    return pd.DataFrame([row for name in names() for row in _gains(load(name))], columns=list(_COLUMNS))


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


PAGE = Page(
    "published",
    "Published",
    ":material/menu_book:",
    "What the papers report, each in its own setting.",
    draw,
    order=80,
    needs_results=False,
)
