"""The papers' numbers beside ours."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from harness.store.table import MEAN
from leaderboard import charts
from leaderboard.data import Store
from leaderboard.papers import published
from leaderboard.parts import downloads, draw_figure
from leaderboard.view import Page, View

HERE = "measured here"


def draw(store: Store | None, suite: str, view: View) -> None:
    """Gains per regime, from the papers and from the chosen suite; works without results too."""
    rows_of_papers = published()
    papers = pd.DataFrame(
        {
            "regime": [p.regime for p in rows_of_papers],
            "gain": [p.gain for p in rows_of_papers],
            "accuracy": [p.value for p in rows_of_papers],
            "against": [p.against for p in rows_of_papers],
            "baseline": [p.baseline for p in rows_of_papers],
            "model": [p.model for p in rows_of_papers],
            "setting": [p.setting for p in rows_of_papers],
            "paper": [p.paper for p in rows_of_papers],
        }
    )
    points = [(p.regime, p.gain, f"{p.model}, over {p.against}", p.paper) for p in rows_of_papers]
    points += _ours(store, suite) if store is not None else []
    rows = pd.DataFrame(points, columns=["row", "value", "label", "source"]).sort_values(
        ["row", "source"], kind="stable"
    )
    figure = charts.dots(rows, "Gains, published and measured here", "gain, points")
    draw_figure(figure, "published")
    st.caption(
        "Each paper has its own models, data, budgets and baselines, and prints no intervals; so compare signs and order, "
        "not heights. "
        f"“{HERE}” is the mean of each group of the suite chosen in the sidebar."
    )
    st.dataframe(
        papers,
        hide_index=True,
        key="papers",
        alt="Published accuracies and gains",
        column_config={
            "accuracy": st.column_config.NumberColumn("Accuracy, %", format="%.1f"),
            "against": "Compared with",
            "baseline": st.column_config.NumberColumn("its accuracy, %", format="%.1f"),
            "gain": st.column_config.NumberColumn("Gain, points", format="%+.1f"),
        },
    )
    downloads("published", papers, [figure])


def _ours(store: Store, suite: str) -> list[tuple[str, float, str, str]]:
    table = store.show(suite)
    kinds = dict(
        store.frame(
            "SELECT DISTINCT regime, regime_type || CASE budget WHEN '1x' THEN '' ELSE '-' || budget END "
            "FROM current_cells WHERE suite = ? AND kind = 'cell'",
            suite,
        ).itertuples(index=False, name=None)
    )
    rows = table[(table["policy"] == MEAN) & table["gain"].notna()]
    return [
        (kinds.get(r.regime, r.regime), 100 * r.gain, f"{r.regime} on {r.group}, {r.task}, {r.metric}", HERE)
        for r in rows.itertuples()
    ]


PAGE = Page(
    "published",
    "Published",
    ":material/menu_book:",
    "What the papers report, beside what was measured here.",
    draw,
    order=80,
    needs_results=False,
)
