"""The papers' numbers beside ours."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from harness.store.table import MEAN
from leaderboard import charts
from leaderboard.data import Store
from leaderboard.papers import published
from leaderboard.parts import downloads, draw_figure, escaped
from leaderboard.view import Page, View


def draw(store: Store | None, suite: str, view: View) -> None:
    """Gains by regime, a figure per paper; the chosen suite's own in one of theirs, where it trains models of such a kind."""
    rows = published()
    figures = [
        charts.dots(
            pd.DataFrame(
                [(p.regime, p.gain, f"{p.model}, over {p.against}") for p in part], columns=["row", "value", "label"]
            ).sort_values("row", kind="stable"),
            f"{paper}: {'; '.join(dict.fromkeys(p.setting for p in part))}",
            "gain, points",
        )
        for paper, part in (
            (name, [p for p in rows if p.paper == name]) for name in dict.fromkeys(p.paper for p in rows)
        )
    ]
    for i, figure in enumerate(figures):
        draw_figure(figure, f"published-{i}")
    st.caption(
        "A mark: one model of a paper over independent training with the same rollouts. Each paper has its own models, data, "
        "metrics and baselines, and prints no intervals; so compare signs and order, not heights."
    )
    papers = pd.DataFrame(
        [(p.regime, p.gain, p.value, p.against, p.baseline, p.model, p.setting, p.paper) for p in rows],
        columns=list(COLUMNS),
    )
    st.dataframe(papers, hide_index=True, key="papers", alt="Published accuracies and gains", column_config=COLUMNS)
    if store is not None:
        st.header("Measured here")
        _draw_ours(store, suite)
    downloads("published", papers, figures)


COLUMNS = {
    "regime": st.column_config.TextColumn("Regime"),
    "gain": st.column_config.NumberColumn("Gain, points", format="%+.1f"),
    "accuracy": st.column_config.NumberColumn("Accuracy, %", format="%.1f"),
    "against": st.column_config.TextColumn("Compared with"),
    "baseline": st.column_config.NumberColumn("its accuracy, %", format="%.1f"),
    "model": st.column_config.TextColumn("Model"),
    "setting": st.column_config.TextColumn("Setting"),
    "paper": st.column_config.TextColumn("Paper"),
}


def _draw_ours(store: Store, suite: str) -> None:
    models = store.frame("SELECT DISTINCT unnest(models) AS model FROM current_cells WHERE suite = ?", suite)["model"]
    if any(model.startswith("micro/") for model in models):
        st.caption(
            f"The suite {escaped(suite)} trains micro models on arithmetic, from checkpoints made to be helped or not: a control "
            "of the regimes, which says nothing about the papers' models. Its gains are on the page Ranking."
        )
        return
    table = store.show(suite)
    table = table[(table["policy"] == MEAN) & table["gain"].notna()]
    if table.empty:
        st.caption(f"No regime of the suite {escaped(suite)} has finished beside its baseline.")
        return
    rows = table[table["metric"] == table["metric"].iloc[0]]
    points = [(r.regime, 100 * r.gain, f"{r.group}, {r.task}") for r in rows.itertuples()]
    figure = charts.dots(
        pd.DataFrame(points, columns=["row", "value", "label"]), f"{suite}, {rows['metric'].iloc[0]}", "gain, points"
    )
    draw_figure(figure, "ours")
    st.caption(
        "A mark: the mean of one group on one benchmark. `harness show --against PAPER` sets the same models side by side, by "
        "the paper's own metrics."
    )


PAGE = Page(
    "published",
    "Published",
    ":material/menu_book:",
    "What the papers report, each in its own setting.",
    draw,
    order=80,
    needs_results=False,
)
