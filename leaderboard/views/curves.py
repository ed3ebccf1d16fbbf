"""Accuracy over training, against steps, rollouts, tokens or seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
import streamlit as st

from harness.statistics import area_under_curve, mean_interval
from harness.store.statistic import PERCENT, to_bounds
from leaderboard import charts
from leaderboard.data import Store
from leaderboard.frames import SPREAD, over_seeds
from leaderboard.page import (
    Page,
    choose_key,
    choose_one,
    choose_some,
    draw_figures,
    draw_regime_links,
    draw_table,
    number_column,
    offer_downloads,
    show_unfinished,
)
from leaderboard.specification import Figure

AXES = {
    "steps": "step",
    "rollouts": "rollouts per policy",
    "tokens": "generated tokens per policy",
    "seconds": "CPU-seconds per policy",
}
HELD_OUT, REWARD = "held-out accuracy", "training reward"
# Of the address; held-out curves have the name of their metric
_OF_REWARD = "reward"

_SPENT = """
SELECT suite, cell, policy, step, reward_mean, answers,
    sum(rollouts) OVER w AS rollouts, sum(generated_tokens) OVER w AS tokens,
    sum(coalesce(generate_seconds, 0) + coalesce(verify_seconds, 0) + coalesce(exchange_seconds, 0) + coalesce(score_seconds, 0)
        + coalesce(train_seconds, 0)) OVER w AS seconds
FROM steps WHERE suite = $1 WINDOW w AS (PARTITION BY suite, cell, policy ORDER BY step)
"""
_HELD_OUT = f"""
WITH spent AS ({_SPENT})
SELECT c.group_name AS "group", c.regime, c.seed,
    c.state = 'done' AS done, v.policy, v.step AS steps, coalesce(s.rollouts, 0) AS rollouts,
    coalesce(s.tokens, 0) AS tokens, coalesce(s.seconds, 0) AS seconds, v.accuracy AS y
FROM current_cells c JOIN curves v USING (suite, cell)
LEFT JOIN spent s ON s.suite = v.suite AND s.cell = v.cell AND s.policy = v.policy AND s.step = v.step
WHERE c.suite = $1 AND c.kind = 'cell' AND v.metric = $2
"""
_REWARD = f"""
WITH spent AS ({_SPENT}), last AS (SELECT greatest(1, max(step) // 24) AS width FROM spent)
SELECT c.group_name AS "group", c.regime, c.seed,
    c.state = 'done' AS done, s.policy, max(s.step) AS steps, max(s.rollouts) AS rollouts,
    max(s.tokens) AS tokens,
    max(s.seconds) AS seconds, avg(s.reward_mean) AS y
FROM current_cells c JOIN spent s USING (suite, cell), last WHERE c.suite = $1 AND c.kind = 'cell' AND $2 <> ''
GROUP BY c.group_name, c.regime, c.seed, c.state, s.policy, (s.step - 1) // last.width
"""
# Of mixed training, one task's points alone; what was spent by then is that of all tasks
_HELD_OUT_OF_TASK = _HELD_OUT.replace("JOIN curves v", "JOIN task_curves v").replace("v.metric = $2", "v.task = $2")
_REWARD_OF_TASK = f"""
WITH spent AS ({_SPENT}), last AS (SELECT greatest(1, max(step) // 24) AS width FROM spent)
SELECT c.group_name AS "group", c.regime, c.seed,
    c.state = 'done' AS done, s.policy, max(s.step) AS steps, max(s.rollouts) AS rollouts,
    max(s.tokens) AS tokens,
    max(s.seconds) AS seconds, sum(t."right") / nullif(sum(t."right" + t.wrong), 0) AS y
FROM current_cells c JOIN spent s USING (suite, cell) JOIN task_steps t USING (suite, cell, policy, step), last
WHERE c.suite = $1 AND c.kind = 'cell' AND t.task = $2
GROUP BY c.group_name, c.regime, c.seed, c.state, s.policy, (s.step - 1) // last.width
"""
_EVERY_TASK = "all"


class _Shown(NamedTuple):
    """What the reader chose to see. everyone: all regimes that have points, in the suite's order."""

    groups: Sequence[str]
    policies: Sequence[str]
    regimes: Sequence[str]
    everyone: Sequence[str]

    def select_rows(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the points of what was chosen."""
        here = rows["group"].isin(self.groups) & rows["policy"].isin(self.policies)
        chosen = here & rows["regime"].isin(self.regimes)
        return rows[chosen]


def draw(store: Store, suite: str) -> None:
    """Draw the page: learning curves of the chosen regimes, and the area under each."""
    measured = store.query_frame("SELECT DISTINCT metric FROM curves WHERE suite = ? ORDER BY metric DESC", suite)
    kinds = {metric: f"{HELD_OUT}, {metric}" for metric in measured["metric"]}
    kinds[_OF_REWARD] = REWARD
    with st.container(horizontal=True, gap="small"):
        curve = choose_key("Curve", kinds, "curve", width=260)
        axis = choose_one("Against", list(AXES), "against", width=140)
        mixed = store.query_frame("SELECT DISTINCT task FROM task_steps WHERE suite = ? ORDER BY task", suite)["task"]
        task = choose_one("Task", [_EVERY_TASK, *mixed], "task", width=220) if len(mixed) else _EVERY_TASK
    rows = _read_points(store, suite, curve, task)
    if rows["done"].any():
        rows = rows[rows["done"]]  # a mean over seeds of unequal progress would mislead
    if rows.empty:
        words = "No learning curve yet: `evaluation.curve_every` in the suite says how often one point is measured."
        show_unfinished(store, suite, words)
        return
    shown = _choose_shown(store, suite, rows)
    rows = shown.select_rows(rows)
    points = over_seeds(rows.assign(y=100 * rows["y"]), ["group"], axis, most=100.0)
    y_title = "accuracy, %" if curve != _OF_REWARD else "share of right answers, %"
    figures = _chart_curves(points, shown, kinds[curve], AXES[axis], y_title)
    draw_figures(figures, "curve")
    st.caption(
        "Lines: mean over seeds (and over the chosen policies), named below the first figure. Bands of one or two regimes, or bars "
        f"at the right of more: {SPREAD}. None with a single seed."
    )
    draw_regime_links(store, shown.regimes)
    st.header("Area under the curve")
    draw_table(_measure_areas(rows), "areas", "Area under the learning curve by regime", _AREA_TITLES)
    offer_downloads(f"curves-{suite}-{axis}", lambda: points, figures)


_AREA_TITLES = {
    "group": "Group",
    "regime": "Regime",
    "seeds": "Seeds",
    "area": number_column("Mean accuracy over training, %", "%.1f"),
    "interval": "95 % interval",
}


def _choose_shown(store: Store, suite: str, rows: pd.DataFrame) -> _Shown:
    """Draw the choices of groups, policies and regimes. rows: the points that there are."""
    with_points, of_rows = set(rows["group"]), set(rows["regime"])
    everyone = [regime for regime in store.list_regimes(suite) if regime in of_rows]
    groups = [group for group in store.list_groups(suite) if group in with_points]
    with st.container(horizontal=True, gap="small"):
        chosen_groups = choose_some("Groups", groups, "group")
        policies = choose_some("Policies", list(dict.fromkeys(rows["policy"])), "policy")
        two = store.choose_two(suite, everyone)
        regimes = choose_some("Regimes (none: all)", everyone, "regime", two)
    return _Shown(chosen_groups, policies, regimes, everyone)


def _chart_curves(points: pd.DataFrame, shown: _Shown, title: str, x_title: str, y_title: str) -> list[Figure]:
    """Return a figure of each group. points: means over seeds. title: what the curves are of."""
    figures = list[Figure]()
    for group in shown.groups:
        of_group = points[points["group"] == group]
        named = () if figures else shown.regimes  # the first figure has the legend of all
        figure = charts.draw_lines(of_group, f"{group}: {title}", x_title, y_title, shown.everyone, shown=named)
        figures.append(figure)
    return figures


def _read_points(store: Store, suite: str, curve: str, task: str) -> pd.DataFrame:
    """Return the points of a kind of curve, of all tasks or, of mixed training, of one: a row for each group, regime, seed, policy
    and step; y: a share."""
    if task == _EVERY_TASK:
        sql, of = (_REWARD if curve == _OF_REWARD else _HELD_OUT), curve
    else:
        sql, of = (_REWARD_OF_TASK if curve == _OF_REWARD else _HELD_OUT_OF_TASK), task
    return store.query_frame(sql, suite, of).dropna(subset=["y"])


def _measure_areas(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each regime's mean height of its curves over training, in percent, with its interval over seeds."""
    curves = rows.groupby(["group", "regime", "seed", "steps"], as_index=False, sort=False)["y"].mean()
    lines = []
    for (group, regime), part in curves.groupby(["group", "regime"], sort=False):
        areas = []
        for _, of_seed in part.groupby("seed"):
            steps, heights = of_seed["steps"].to_numpy(), of_seed["y"].to_numpy()
            areas.append(float(area_under_curve(steps, heights)))
        mean = mean_interval(areas)
        bounds = to_bounds(mean, within=(0.0, 1.0))
        interval = PERCENT.interval(bounds, "{} to {}")
        lines.append((group, regime, 100 * float(mean.mean), interval, len(areas)))
    frame = pd.DataFrame(lines, columns=["group", "regime", "area", "interval", "seeds"])
    return frame.sort_values(["group", "area"], ascending=[True, False])


PAGE = Page(
    "curves",
    "Training",
    ":material/show_chart:",
    "How fast each regime learns, and what it has spent by then.",
    draw,
    order=50,
)
