"""Which regime should I use, and is the difference real?"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from harness.store.table import MEAN
from leaderboard.charts import Figure
from leaderboard.data import Store
from leaderboard.frames import baseline_of, overall_table, panel, readable
from leaderboard.parts import choose, choose_some, downloads, empty, escaped
from leaderboard.view import Page, View
from leaderboard.words import Overall, overall, sentence

SORTS = ("best first", "suite order", "name", "cheapest first")
SHOWN = 6
"""Panels before "show all"."""


def draw(store: Store, suite: str, view: View) -> None:
    """Sentence, overall ranking, one panel per group and benchmark, table."""
    table, seeds = store.show(suite), store.seeds(suite)
    if table.empty:
        empty("No cell of this suite has finished yet.", f"harness status {suite}")
        return
    top = st.container()
    with st.container(horizontal=True, gap="small"):
        measure = st.segmented_control(
            "Show", ["gain", "accuracy"], default="gain", required=True, key="show", bind="query-params"
        )
        metric = choose("Metric", list(dict.fromkeys(table["metric"])), "metric", width=130)
        policy = choose(
            "Policy",
            [MEAN, *dict.fromkeys(table.loc[table["policy"] != MEAN, "policy"])],
            "policy",
            format_func=lambda p: "mean of the group" if p == MEAN else p,
            width=190,
        )
        sort = choose("Sort", SORTS, "sort", width=160)
    with st.container(horizontal=True, gap="small"):
        groups = choose_some("Groups", list(dict.fromkeys(table["group"])), "group")
        tasks = choose_some("Benchmarks", list(dict.fromkeys(table["task"])), "task")

    def chosen(frame: pd.DataFrame) -> pd.DataFrame:
        return frame[
            (frame["metric"] == metric)
            & (frame["policy"] == policy)
            & frame["group"].isin(groups)
            & frame["task"].isin(tasks)
        ]

    table, seeds = chosen(table), chosen(seeds)
    if table.empty:
        empty("Nothing has finished for this choice.")
        return
    order = list(dict.fromkeys(table["regime"]))
    baseline = baseline_of(table, order[0])
    sizes = store.frame(
        "SELECT DISTINCT len(policies) AS n FROM current_cells WHERE suite = ? AND kind = 'cell'", suite
    )["n"]
    found = overall(seeds, order, list(sizes))
    top.info(escaped(sentence(found, baseline), 2000), icon=":material/gavel:")
    order = sorted_regimes(sort, order, found, table)
    figures = [
        panel(rows, f"{group}: {task}, {metric}", measure, order)
        for (group, task), rows in table.groupby(["group", "task"], sort=False)
    ]
    if len(figures) > 1:
        figures.insert(
            0, panel(overall_table(found, table), f"Mean of the {len(figures)} panels below, {metric}", measure, order)
        )
    draw_panels(figures)
    st.caption(
        "Marks: mean over seeds with its 95 % interval. ▲ gains, ▼ loses (Holm-corrected within the panel), ◆ unclear, ● no effect "
        "seen, ■ baseline. Gains are paired by seed with the baseline at the same rollout budget."
    )
    full = readable(table, order)
    st.dataframe(
        full, hide_index=True, column_config=COLUMNS, key="ranking-table", placeholder="–", alt="The ranking as a table"
    )
    downloads(f"ranking-{suite}", table, figures)


def sorted_regimes(sort: str, order: list[str], found: Overall, table: pd.DataFrame) -> list[str]:
    """Regimes in the chosen order."""
    if sort == "name":
        return sorted(order)
    if sort == "suite order":
        return order
    if sort == "cheapest first":
        return list(
            table.groupby("regime")["cpu_seconds"]
            .mean()
            .add(table.groupby("regime")["gpu_seconds"].mean())
            .sort_values()
            .index
        )
    means = table.groupby("regime")["accuracy"].mean().sort_values(ascending=False, kind="stable")
    known = list(found.rows["regime"]) if not found.rows.empty else []
    return [*known, *(r for r in means.index if r not in known)]


def draw_panels(figures: list[Figure]) -> None:
    """Two beside each other where there is room; beyond a few on request."""
    shown = figures
    if len(figures) > SHOWN + 1 and not st.toggle(
        f"Show all {len(figures) - 1} panels", key="all", bind="query-params"
    ):
        shown = figures[: SHOWN + 1]
    if len(shown) == 1:
        st.vega_lite_chart(spec=shown[0], key="panel-0")
        return
    for i in range(0, len(shown), 2):
        for j, column in enumerate(st.columns(2)[: len(shown) - i]):
            column.vega_lite_chart(spec=shown[i + j], key=f"panel-{i + j}")


COLUMNS = {
    "tie": st.column_config.NumberColumn(
        "Tie group", help="1: cannot be told from the best (paired tests, Holm-corrected)", width="small"
    ),
    "regime": st.column_config.TextColumn("Regime"),
    "group": st.column_config.TextColumn("Group"),
    "task": st.column_config.TextColumn("Benchmark"),
    "accuracy": st.column_config.NumberColumn("Accuracy, %", format="%.1f"),
    "interval": st.column_config.TextColumn("95 % interval"),
    "gain": st.column_config.NumberColumn("Gain, points", format="%+.1f"),
    "gain interval": st.column_config.TextColumn("95 % interval of the gain"),
    "base": st.column_config.NumberColumn("Before, %", format="%.1f", help="accuracy of the base checkpoint"),
    "seeds": st.column_config.NumberColumn("Seeds", width="small"),
    "used": st.column_config.NumberColumn(
        "Peer data used, %", format="%.0f", help="share of received peer answers that gave a nonzero gradient"
    ),
    "rollouts": st.column_config.NumberColumn("Rollouts", format="localized"),
    "cpu": st.column_config.NumberColumn("CPU-s", format="%.0f"),
    "gpu": st.column_config.NumberColumn("GPU-s", format="%.0f"),
    "per 1000": st.column_config.NumberColumn("Gain per 1,000 rollouts", format="%.2f"),
    "baseline": st.column_config.TextColumn("Compared with"),
}


PAGE = Page(
    "ranking",
    "Ranking",
    ":material/leaderboard:",
    "Does sharing experience help, whom, and is the difference real?",
    draw,
)
