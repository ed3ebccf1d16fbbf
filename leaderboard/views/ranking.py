"""Which regime should I use, and is the difference real?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import pandas as pd
import streamlit as st

from harness.statistics import MARGIN
from harness.store.claims import ClaimAnswer
from harness.store.finished import ShowRow
from harness.store.pace_table import HEADS, choose_rows, make_pace_line, write_pace_notes
from harness.store.ranking import MIN_RUNS, Aggregate
from harness.store.remarks import STRICT, TrainingMoment
from harness.store.sentences import explain_verdicts, write_doubt, write_sentence, write_summary
from harness.store.statistic import PERCENT, Statistic, select_columns
from harness.store.table import MEAN
from leaderboard.charts import Forest
from leaderboard.data import Store
from leaderboard.frames import INTERVALS, KEY, Outcome, ShownChoice, list_telling, make_readable
from leaderboard.looks import LEGEND
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
from leaderboard.templating import fill_template

BEST, IN_SUITE, BY_NAME, CHEAPEST = "best", "suite", "name", "cost"
_SORTS = {BEST: "best first", IN_SUITE: "suite order", BY_NAME: "name", CHEAPEST: "cheapest first"}
"""Orders of the page by their key in the address, the default first."""
_SHOWS = {"gain": "gain", "accuracy": "accuracy"}
# Figures before "show all"
_SHOWN = 2


class _Shown(NamedTuple):
    """What the reader chose to see. margin: a fraction."""

    measure: str
    choice: ShownChoice
    sort: str
    margin: float


def draw(store: Store, suite: str) -> None:
    """Draw the page: the answer first, then the choices, then figures and tables of what was chosen."""
    st.header(escape_markdown(suite), anchor="suite")
    table = store.show_table(suite, MARGIN)
    if table.empty:
        show_unfinished(store, suite, "No cell of this suite has finished.")
        return
    top = st.container()
    shown = _choose_shown(table)
    choice, margin = shown.choice, shown.margin
    rows = choice.select_rows(store.show_table(suite, margin))
    if rows.empty:
        show_empty("Nothing has finished for this choice. A group of one policy has no mean: choose its policy.")
        return
    said = store.answer_choice(suite, choice, margin)
    with top:
        links = link_regimes(store, store.list_regimes(suite))
        _draw_claims(store.answer_claims(suite, margin))
        _draw_answer(said, store.find_rate(suite), links)
    order = _order_regimes(shown.sort, said, rows, shown.measure)
    panels = store.make_panels(suite, choice, margin, shown.measure, tuple(order))
    forests = [replace(panel, links=links) for panel in panels]
    parts: dict[str, tuple[str, Callable[[], None]]] = {
        "figures": ("Figures", lambda: _draw_forests(forests)),
        "table": ("Table", lambda: _draw_table(make_readable(rows, order, margin))),
    }
    draw_tabs(parts | _list_more_parts(store, suite, shown, len(forests)))
    _draw_legend(margin)
    draw_regime_links(store, order)
    offer_downloads(f"ranking-{suite}", lambda: rows, forests)


def _choose_shown(table: pd.DataFrame) -> _Shown:
    """Draw the page's choices. table: of the suite."""
    metrics, policies = list(dict.fromkeys(table["metric"])), list(dict.fromkeys(table["policy"]))
    groups, tasks = list(dict.fromkeys(table["group"])), list(dict.fromkeys(table["task"]))
    policies.sort(key=lambda policy: policy != MEAN)
    called = {name: "mean of the group" if name == MEAN else name for name in policies}
    with st.container(horizontal=True, gap="small"):
        measure = choose_segment("Show", _SHOWS, "show")
        metric = choose_one("Metric", metrics, "metric", width=120)
        policy = choose_key("Policy", called, "policy", width=175)
        sort = choose_key("Sort", _SORTS, "sort", width=150)
        margin = choose_margin()
    with st.container(horizontal=True, gap="small"):
        groups = choose_some("Groups", groups, "group")
        tasks = choose_some("Benchmarks", tasks, "task")
    choice = ShownChoice(metric, policy, tuple(groups), tuple(tasks))
    return _Shown(measure, choice, sort, margin)


def _list_more_parts(store: Store, suite: str, shown: _Shown, panels: int) -> dict[str, tuple[str, Callable[[], None]]]:
    """Return the tabs that some suites have: pace, several panels together, a supervised start. panels: how many are drawn."""
    choice = shown.choice
    parts: dict[str, tuple[str, Callable[[], None]]] = {}
    every = choose_rows(store.list_rows(suite, shown.margin))
    paced = [row for row in every if row.group in choice.groups and row.task in choice.tasks]
    if any(row.pace_curve or row.equal_cost_baseline for row in paced):
        parts["pace"] = ("Pace and end", lambda: _draw_pace(paced))
    if panels > 1:
        parts["across"] = ("Across all panels", lambda: _draw_across(store.summarise_panels(suite, choice)))
    of_metric = [moment for moment in store.list_moments(suite) if moment.metric == choice.metric]
    starts = [moment for moment in of_metric if moment.group in choice.groups and moment.task in choice.tasks]
    if starts:
        parts["starts"] = ("Before and after the start", lambda: _draw_starts(starts))
    return parts


def _draw_forests(forests: Sequence[Forest]) -> None:
    """Draw the first figures, and the others where the reader asks for them."""
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
    """Draw the statistics of the chosen policy, without columns that say nothing."""
    draw_table(full, "ranking-table", "The ranking as a table", _COLUMNS, column_order=list_telling(full))


def _draw_answer(said: Outcome, rate: float | None, links: Mapping[str, str]) -> None:
    """Draw the suite's answer in a sentence, a line for each regime, and the full account a click away."""
    summary = write_summary(said.ranking, rate)
    st.info(write_linked(summary, links, 2000), icon=":material/gavel:")
    lines = said.lines
    if not lines.empty:
        name = "Every regime: whom it helps, at what cost"
        st.html(fill_template("answers_table.html.tmpl", rows=lines, name=name, links=links))
    in_full = " ".join([write_sentence(said.ranking), write_doubt(said.ranking)])
    with st.expander("The same in full, regime by regime"):
        st.markdown(write_linked(in_full, links, 3000))


def _draw_claims(answers: Sequence[ClaimAnswer]) -> None:
    """Draw what the suite claimed before it ran, with the answers; nothing where it claimed nothing."""
    if not answers:
        return
    lines = [
        {
            "Claimed before it ran": one.words,
            "Answer": one.answer,
            "Number": one.number if one.value is not None else "–",
            "Seeds": f"{one.done} of {one.planned}",
        }
        for one in answers
    ]
    st.html(fill_template("claims.html.tmpl", rows=pd.DataFrame(lines)))


def _draw_pace(rows: Sequence[ShowRow]) -> None:
    """Draw how fast each regime learns, where it ends, and what it gains at equal cost."""
    lines = []
    for row in rows:
        if row.pace_curve or row.equal_cost_baseline:
            cells = make_pace_line(row)
            line = dict(zip(HEADS, cells, strict=True))
            lines.append({"group": row.group, **line, "found": row.found})
    draw_table(pd.DataFrame(lines), "pace", "Pace, end and gain at equal cost")
    for note in write_pace_notes(rows):
        st.caption(escape_markdown(note, 2000))


def _draw_across(aggregates: Sequence[Aggregate]) -> None:
    """Draw how each regime does over all panels together."""
    if not aggregates:
        show_empty("A regime must have finished on several panels.")
        return
    few = not any(one.iqm_interval for one in aggregates)
    rows = [msgspec.structs.asdict(one) for one in aggregates]
    frame = pd.DataFrame(rows).dropna(axis="columns", how="all")
    shown = frame.drop(columns="tasks")
    for column in frame:
        if column in ("iqm", "better"):
            shown[column] = 100 * frame[column]
        elif column.endswith("interval"):
            shown[column] = frame[column].map(PERCENT.interval)
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
    """Draw the accuracies before a supervised start, after it, and after training."""
    rows = [msgspec.structs.asdict(moment) for moment in stages]
    frame = pd.DataFrame(rows).drop(columns="metric")
    frame[["strict", "lenient"]] *= 100
    draw_table(frame, "starts", "Accuracy before the supervised start, after it, and after RL", _MOMENTS)
    st.caption(escape_markdown(STRICT, 2000))


def _order_regimes(sort: str, said: Outcome, rows: pd.DataFrame, measure: str) -> list[str]:
    """Return the regimes in the page's one order. measure: best first goes by it; a baseline gains nothing."""
    means = rows.groupby("regime", sort=False)[["accuracy", "cpu_seconds", "gpu_seconds"]].mean()
    if sort == BY_NAME:
        return sorted(means.index)
    if sort == IN_SUITE:
        return list(means.index)
    if sort == CHEAPEST:
        seconds = means["cpu_seconds"] + means["gpu_seconds"]
        return list(seconds.sort_values().index)
    ranks = said.ranking.ranks
    if measure == "gain":
        gains = {rank.regime: rank.gain or 0.0 for rank in ranks}
        return sorted(means.index, key=lambda regime: (regime not in gains, -gains.get(regime, 0.0)))
    # on the mean of the panels, where a regime has one
    accuracies = means["accuracy"].to_dict()
    accuracies |= {rank.regime: rank.accuracy for rank in ranks}
    return sorted(means.index, key=lambda regime: -accuracies[regime])


def _declare_column(statistic: Statistic) -> Any:
    """Return the declaration of a statistic's column: its title, its help, how its numbers are written."""
    help = f"{statistic.help} {statistic.better.capitalize()} is better." if statistic.better else statistic.help
    if not statistic.numeric:
        return st.column_config.TextColumn(statistic.full_title, help=help)
    unit = statistic.unit
    grouped = unit.factor == 1 and not unit.digits
    sign = "+" * unit.signed
    form = "localized" if grouped else f"%{sign}.{unit.digits}f"
    return number_column(statistic.full_title, form, help)


_COLUMNS = {
    "regime": "Regime",
    "group": "Group",
    "task": "Benchmark",
    **{statistic.head: _declare_column(statistic) for statistic in select_columns("page")},
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
