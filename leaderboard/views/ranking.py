"""Which regime should I use, and is the difference real?"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec
import pandas as pd
import streamlit as st

from harness.store.ranking import MIN_RUNS, Aggregate, Ranking
from harness.store.remarks import STRICT, Stage
from harness.store.sentences import doubt, explained, sentence
from harness.store.statistic import Statistic, shown
from harness.store.table import MEAN
from leaderboard.charts import LEGEND, Figure
from leaderboard.data import Choice, Store
from leaderboard.frames import panel, ranking_frame, readable, telling
from leaderboard.overview import BEST, KEY, Outcome, overview
from leaderboard.parts import (
    choose,
    choose_margin,
    choose_some,
    downloads,
    draw_figures,
    empty,
    escaped,
    percent_interval,
    unfinished,
)
from leaderboard.view import Page, View

SORTS = ("best first", "suite order", "name", "cheapest first")
SHOWN = 6
"""Panels before "show all"."""


def draw(store: Store, suite: str, view: View) -> None:
    """All suites, then this one: its answer, overall ranking, one panel per group and benchmark, table."""
    draw_suites(store)
    st.header(escaped(suite), anchor="suite")
    table = store.show(suite)
    if table.empty:
        unfinished(store, suite, "No cell of this suite has finished.")
        return
    top = st.container()
    with st.container(horizontal=True, gap="small"):
        measure = st.segmented_control(
            "Show", ["gain", "accuracy"], default="gain", required=True, key="show", bind="query-params"
        )
        metric = choose("Metric", list(dict.fromkeys(table["metric"])), "metric", width=120)
        policy = choose(
            "Policy",
            sorted(dict.fromkeys(table["policy"]), key=lambda p: p != MEAN),
            "policy",
            format_func=lambda p: "mean of the group" if p == MEAN else p,
            width=175,
        )
        sort = choose("Sort", SORTS, "sort", width=150)
        margin = choose_margin()
    with st.container(horizontal=True, gap="small"):
        groups = choose_some("Groups", list(dict.fromkeys(table["group"])), "group")
        tasks = choose_some("Benchmarks", list(dict.fromkeys(table["task"])), "task")

    choice = Choice(metric, policy, tuple(groups), tuple(tasks))
    table = choice.table(store.show(suite, margin))
    if table.empty:
        empty("Nothing has finished for this choice.")
        return
    order = list(dict.fromkeys(table["regime"]))
    said = store.outcome(suite, choice, margin)
    found = said.found
    with top:
        st.info(escaped(sentence(found), 2000), icon=":material/gavel:")
        draw_answer(said)
    order = sorted_regimes(sort, order, found, table)
    figures = [
        panel(rows, f"{group}: {task}, {metric}", measure, order, margin)
        for (group, task), rows in table.groupby(["group", "task"], sort=False)
    ]
    if len(figures) > 1:
        title = f"Mean of the {len(figures)} panels below, {metric}"
        figures.insert(0, panel(ranking_frame(found, table), title, measure, order, margin))
    draw_panels(figures)
    st.caption(f"Marks: mean over seeds with its 95 % interval. {LEGEND} {KEY} {escaped(explained(margin), 2000)}")
    full = readable(table, order, margin).drop(columns="best")
    st.dataframe(
        full,
        hide_index=True,
        column_config=COLUMNS,
        column_order=telling(full),
        key="ranking-table",
        placeholder="–",
        alt="The ranking as a table",
    )
    draw_across(store.across(suite, choice))
    draw_starts([m for m in store.stages(suite) if m.metric == metric and m.group in groups and m.task in tasks])
    downloads(f"ranking-{suite}", table, figures)


def draw_suites(store: Store) -> None:
    """The answer of every suite, each a link to it; of a single one nothing that does not follow below."""

    def linked(name: str) -> str:
        return f"[{escaped(name)}](?suite={quote(name)}#suite)"

    names = [s.name for s in store.suites()]
    if len(names) < 2:
        return
    rows = overview(names, store.answer, linked, store.states)
    st.header("All suites", anchor="all-suites")
    st.table(marked(rows, but="Suite"), hide_index=True, border="horizontal", alt="The answer of every suite")
    st.caption(BEST)


def draw_answer(said: Outcome) -> None:
    """A line per regime, and how many seeds would settle what is open."""
    lines = said.lines()
    if lines.empty:
        return
    st.table(marked(lines), hide_index=True, border="horizontal", alt="Every regime: whom it helps, at what cost")
    if unsettled := doubt(said.found):
        st.markdown(f"**What would change my mind:** {escaped(unsettled, 2000)}")


def marked(rows: pd.DataFrame, but: str = "") -> pd.DataFrame:
    """For `st.table`, which takes texts for Markdown; those of the column `but` are."""
    return rows.assign(**{c: [escaped(v) for v in rows[c]] for c in rows if c != but})


def draw_across(found: list[Aggregate]) -> None:
    """IQM and probability of improvement, where there is more than one panel."""
    if not found:
        return
    st.header("Across all panels")
    rows = [
        {
            "regime": a.regime,
            "iqm": 100 * a.iqm,
            "iqm interval": percent_interval(*(a.iqm_interval or (float("nan"),) * 2)),
            "better": None if a.better is None else 100 * a.better,
            "better interval": percent_interval(*(a.better_interval or (float("nan"),) * 2)),
            "baseline": a.baseline,
            "seeds": a.seeds,
        }
        for a in found
    ]
    frame = pd.DataFrame(rows).dropna(axis="columns", how="all")
    few = not any(a.iqm_interval for a in found)
    if few:
        frame = frame.drop(columns=["iqm interval", "better interval"])
    st.dataframe(
        frame, hide_index=True, column_config=ACROSS, key="across", placeholder="–", alt="Regimes across all panels"
    )
    st.caption(
        f"All seeds of all {found[0].tasks} panels together. IQM: mean of the middle half of the runs. Better: how often a run "
        "beats one of the baseline on the same panel, ties half. They describe; whether a difference is real is for the tests "
        "above to say. "
        + (
            f"Bootstrap intervals are shown from {MIN_RUNS} seeds on."
            if few
            else "Intervals: 95 % stratified bootstrap over seeds."
        )
    )


def draw_starts(found: list[Stage]) -> None:
    """What a supervised start and RL after it have changed; nothing where no policy had one."""
    if not found:
        return
    st.header("Before the supervised start, after it, and after RL")
    frame = pd.DataFrame([msgspec.structs.asdict(m) for m in found]).drop(columns="metric")
    frame[["strict", "lenient"]] *= 100
    st.dataframe(frame, hide_index=True, column_config=MOMENTS, key="starts", alt="Accuracy before and after the start")
    st.caption(escaped(STRICT, 2000))


def sorted_regimes(sort: str, order: list[str], found: Ranking, table: pd.DataFrame) -> list[str]:
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
    known = [r.regime for r in found.ranks]
    return [*known, *(r for r in means.index if r not in known)]


def draw_panels(figures: list[Figure]) -> None:
    """Beyond a few on request."""
    shown = figures
    if len(figures) > SHOWN + 1 and not st.toggle(
        f"Show all {len(figures) - 1} panels", key="all", bind="query-params"
    ):
        shown = figures[: SHOWN + 1]
    draw_figures(shown, "panel")


def _column(s: Statistic) -> Any:
    help = f"{s.help} {s.better.capitalize()} is better." if s.better else s.help
    if not s.numeric:
        return st.column_config.TextColumn(s.full_title, help=help)
    grouped = s.unit.factor == 1 and not s.unit.digits
    sign = "+" if s.unit.signed else ""
    return st.column_config.NumberColumn(
        s.full_title, help=help, format="localized" if grouped else f"%{sign}.{s.unit.digits}f"
    )


COLUMNS = {
    "regime": st.column_config.TextColumn("Regime"),
    "group": st.column_config.TextColumn("Group"),
    "task": st.column_config.TextColumn("Benchmark"),
    **{s.head: _column(s) for s in shown("page")},
}

MOMENTS = {
    "moment": st.column_config.TextColumn("when"),
    "strict": st.column_config.NumberColumn("strict %", format="%.1f"),
    "lenient": st.column_config.NumberColumn("lenient %", format="%.1f"),
}
ACROSS = {
    "regime": st.column_config.TextColumn("Regime"),
    "iqm": st.column_config.NumberColumn("IQM, %", format="%.1f"),
    "iqm interval": st.column_config.TextColumn("95 % interval"),
    "better": st.column_config.NumberColumn("Better than baseline, %", format="%.0f"),
    "better interval": st.column_config.TextColumn("95 % interval of that"),
    "baseline": st.column_config.TextColumn("Compared with"),
    "seeds": st.column_config.NumberColumn("Seeds", width="small"),
}


PAGE = Page(
    "ranking",
    "Ranking",
    ":material/leaderboard:",
    "Does sharing experience help, whom, at what cost, and is the difference real?",
    draw,
    order=10,
)
