"""Which regime should I use, and is the difference real?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pandas as pd
import streamlit as st

from harness.statistics import MARGIN
from harness.store.finished import ShowRow
from harness.store.pace_table import HEADS, choose_rows, make_pace_line, write_pace_notes
from harness.store.ranking import MIN_RUNS, Aggregate
from harness.store.remarks import STRICT, TrainingMoment
from harness.store.sentences import explain_verdicts, write_doubt, write_sentence, write_summary
from harness.store.statistic import PERCENT, Statistic, select_columns
from harness.store.table import MEAN
from leaderboard.charts import LEGEND, Forest, fill_template
from leaderboard.data import Store
from leaderboard.frames import INTERVALS, KEY, Outcome, ShownChoice, list_telling, make_readable
from leaderboard.page import (
    Page,
    choose_key,
    choose_margin,
    choose_one,
    choose_segment,
    choose_some,
    draw_forests,
    draw_regime_links,
    draw_table,
    draw_tabs,
    escape_markdown,
    link_regimes,
    number_column,
    offer_downloads,
    show_empty,
    show_unfinished,
    write_linked,
)

BEST, IN_SUITE, BY_NAME, CHEAPEST = "best", "suite", "name", "cost"
_SORTS = {BEST: "best first", IN_SUITE: "suite order", BY_NAME: "name", CHEAPEST: "cheapest first"}
"""Orders of the page by their key in the address, the default first."""
_SHOWS = {"gain": "gain", "accuracy": "accuracy"}
# Figures before "show all"
_SHOWN = 2


def draw(store: Store, suite: str) -> None:
    st.header(escape_markdown(suite), anchor="suite")
    table = store.show_table(suite, MARGIN)
    if table.empty:
        show_unfinished(store, suite, "No cell of this suite has finished.")
        return
    top = st.container()
    metrics, policies, groups, tasks = (list(dict.fromkeys(table[c])) for c in ("metric", "policy", "group", "task"))
    with st.container(horizontal=True, gap="small"):
        measure = choose_segment("Show", _SHOWS, "show")
        metric = choose_one("Metric", metrics, "metric", width=120)
        policies.sort(key=lambda p: p != MEAN)
        called = {name: "mean of the group" if name == MEAN else name for name in policies}
        policy = choose_key("Policy", called, "policy", width=175)
        sort = choose_key("Sort", _SORTS, "sort", width=150)
        margin = choose_margin()
    with st.container(horizontal=True, gap="small"):
        groups, tasks = choose_some("Groups", groups, "group"), choose_some("Benchmarks", tasks, "task")

    choice = ShownChoice(metric, policy, tuple(groups), tuple(tasks))
    table = store.show_table(suite, margin)
    rows = choice.select_rows(table)
    said = None if rows.empty else store.answer_choice(suite, choice, margin)
    if said is None:
        show_empty("Nothing has finished for this choice. A group of one policy has no mean: choose its policy.")
        return
    with top:
        links = link_regimes(store, store.list_regimes(suite))
        _draw_answer(said, store.find_rate(suite), links)
    order = _sorted(sort, said, rows, measure)
    panels = store.make_panels(suite, choice, margin, measure, tuple(order))
    forests = [replace(panel, links=links) for panel in panels]
    starts = [m for m in store.list_moments(suite) if m.metric == metric and m.group in groups and m.task in tasks]
    parts: dict[str, tuple[str, Callable[[], None]]] = {
        "figures": ("Figures", lambda: _draw_forests(forests)),
        "table": ("Table", lambda: _draw_table(make_readable(rows, order, margin))),
    }
    paced = [row for row in choose_rows(store.list_rows(suite, margin)) if row.group in groups and row.task in tasks]
    if any(row.pace_curve or row.equal_cost_baseline for row in paced):
        parts["pace"] = ("Pace and end", lambda: _draw_pace(paced))
    if len(forests) > 1:
        parts["across"] = ("Across all panels", lambda: _draw_across(store.summarise_panels(suite, choice)))
    if starts:
        parts["starts"] = ("Before and after the start", lambda: _draw_starts(starts))
    draw_tabs(parts)
    _draw_legend(margin)
    draw_regime_links(store, order)
    offer_downloads(f"ranking-{suite}", lambda: rows, forests)


def _draw_forests(forests: Sequence[Forest]) -> None:
    if not forests:
        show_empty(
            "Nothing to draw: no finished regime has a finished baseline here. The lines above say what is missing."
        )
        return
    several = len(forests) > _SHOWN
    every = several and st.toggle("Show all panels", key="all", bind="query-params")
    draw_forests(forests if every else forests[:_SHOWN])


def _draw_legend(margin: float) -> None:
    """Draw the page's one legend: marks in a line, how verdicts are made a click away."""
    st.caption(f"Marks: means over seeds. {LEGEND} {KEY}")
    with st.expander("How intervals and verdicts are made"):
        st.markdown(f"{INTERVALS} {escape_markdown(explain_verdicts(margin), 2000)}")


def _draw_table(full: pd.DataFrame) -> None:
    draw_table(full, "ranking-table", "The ranking as a table", _COLUMNS, column_order=list_telling(full))


def _draw_answer(said: Outcome, rate: float | None, links: Mapping[str, str]) -> None:
    st.info(write_linked(write_summary(said.ranking, rate), links, 2000), icon=":material/gavel:")
    lines = said.lines
    if not lines.empty:
        name = "Every regime: whom it helps, at what cost"
        st.html(fill_template("answers_table.html.tmpl", rows=lines, name=name, links=links))
    with st.expander("The same in full, regime by regime"):
        st.markdown(write_linked(" ".join([write_sentence(said.ranking), write_doubt(said.ranking)]), links, 3000))


def _draw_pace(rows: Sequence[ShowRow]) -> None:
    lines = []
    for row in rows:
        if row.pace_curve or row.equal_cost_baseline:
            line = dict(zip(HEADS, make_pace_line(row), strict=True))
            lines.append({"group": row.group, **line, "found": row.found})
    draw_table(pd.DataFrame(lines), "pace", "Pace, end and gain at equal cost")
    for note in write_pace_notes(rows):
        st.caption(escape_markdown(note, 2000))


def _draw_across(aggregates: Sequence[Aggregate]) -> None:
    if not aggregates:
        show_empty("A regime must have finished on several panels.")
        return
    few = not any(a.iqm_interval for a in aggregates)
    frame = pd.DataFrame([msgspec.structs.asdict(a) for a in aggregates]).dropna(axis="columns", how="all")
    shown = frame.drop(columns="tasks").assign(
        **{c: 100 * frame[c] for c in frame if c in ("iqm", "better")},
        **{c: frame[c].map(PERCENT.interval) for c in frame if c.endswith("interval")},
    )
    draw_table(shown, "across", "Regimes across all panels", _ACROSS)
    of_intervals = (
        "Bootstrap intervals are shown from {} seeds on." if few else "Intervals: 95 % stratified bootstrap over seeds."
    )
    st.caption(
        f"All seeds of all {aggregates[0].tasks} panels together. IQM: mean of the middle half of the runs. Better: how often a "
        "run beats one of the baseline on the same panel, ties half. They describe; whether a difference is real is for the tests "
        f"above to say. {of_intervals.format(MIN_RUNS)}"
    )


def _draw_starts(stages: Sequence[TrainingMoment]) -> None:
    frame = pd.DataFrame([msgspec.structs.asdict(m) for m in stages]).drop(columns="metric")
    frame[["strict", "lenient"]] *= 100
    draw_table(frame, "starts", "Accuracy before the supervised start, after it, and after RL", _MOMENTS)
    st.caption(escape_markdown(STRICT, 2000))


def _sorted(sort: str, said: Outcome, rows: pd.DataFrame, measure: str) -> list[str]:
    """Return the regimes in the page's one order. measure: best first goes by it; a baseline gains nothing."""
    means = rows.groupby("regime", sort=False)[["accuracy", "cpu_seconds", "gpu_seconds"]].mean()
    gains = {rank.regime: rank.gain or 0.0 for rank in said.ranking.ranks}
    accuracies = {**means["accuracy"].to_dict(), **{rank.regime: rank.accuracy for rank in said.ranking.ranks}}
    if measure == "gain":
        best = sorted(means.index, key=lambda regime: (regime not in gains, -gains.get(regime, 0.0)))
    else:
        best = sorted(means.index, key=lambda regime: -accuracies[regime])
    orders = {
        BY_NAME: sorted(means.index),
        IN_SUITE: means.index,
        CHEAPEST: (means["cpu_seconds"] + means["gpu_seconds"]).sort_values().index,
        BEST: best,
    }
    return list(orders[sort])


def _column(s: Statistic) -> Any:
    help = f"{s.help} {s.better.capitalize()} is better." if s.better else s.help
    if not s.numeric:
        return st.column_config.TextColumn(s.full_title, help=help)
    grouped = s.unit.factor == 1 and not s.unit.digits
    return number_column(s.full_title, "localized" if grouped else f"%{'+' * s.unit.signed}.{s.unit.digits}f", help)


_COLUMNS = {
    "regime": "Regime",
    "group": "Group",
    "task": "Benchmark",
    **{s.head: _column(s) for s in select_columns("page")},
}
_MOMENTS = {
    "moment": "when",
    "strict": number_column("strict %", "%.1f"),
    "lenient": number_column("lenient %", "%.1f"),
}
_ACROSS = {
    "regime": "Regime",
    "iqm": number_column("IQM, %", "%.1f"),
    "iqm_interval": "95 % interval of IQM",
    "better": number_column("Better than baseline, %", "%.0f"),
    "better_interval": "95 % interval of better",
    "baseline": "Compared with",
    "seeds": st.column_config.NumberColumn("Seeds", width="small"),
}

PAGE = Page(
    "ranking",
    "One suite",
    ":material/table_chart:",
    "Does sharing experience help, whom, at what cost, and is the difference real?",
    draw,
    order=10,
)
