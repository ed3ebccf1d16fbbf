"""Training, costs and provenance of one cell."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import streamlit as st

from harness.store.statistic import PERCENT
from harness.store.text import visible
from leaderboard import charts
from leaderboard.data import Store
from leaderboard.page import (
    Page,
    choose_one,
    draw_figures,
    draw_regime_links,
    draw_table,
    draw_tabs,
    escape_markdown,
    offer_downloads,
    show_empty,
)

# Of the address: the cell's key. Of the session: the key that was opened last
_KEY, _OPENED = "cell", "opened cell"


def draw(store: Store, suite: str) -> None:
    cells = store.frame("SELECT * FROM current_cells WHERE suite = ? AND kind = 'cell' ORDER BY seed", suite)
    cells = cells.assign(seed=cells["seed"].astype("Int64").map(str))  # whole numbers beside one that is missing
    _open_asked(cells)
    with st.container(horizontal=True, gap="small"):
        group = choose_one("Group", store.groups(suite), "group", width=220)
        cells = cells[cells["group_name"] == group]
        regime = choose_one(
            "Regime", [r for r in store.regimes(suite) if r in set(cells["regime"])], "regime", width=220
        )
        cells = cells[cells["regime"] == regime]
        seed = choose_one("Seed", list(dict.fromkeys(cells["seed"])), "seed", width=120)
    about = cells[cells["seed"] == seed].iloc[0]
    st.query_params[_KEY] = st.session_state[_OPENED] = about["cell"]
    _draw_state(store, about)
    draw_regime_links(store, [regime])
    draw_tabs(
        {
            "training": ("Training", lambda: _training(store, about)),
            "provenance": ("Provenance", lambda: _provenance(about)),
        }
    )


def _open_asked(cells: pd.DataFrame) -> None:
    """Choose the cell whose key the address has, once."""
    asked = st.query_params.get(_KEY)
    if not asked or st.session_state.get(_OPENED) == asked:
        return
    st.session_state[_OPENED] = asked
    found = cells[cells["cell"] == asked]
    if len(found):
        for choice, column in (("group", "group_name"), ("regime", "regime"), ("seed", "seed")):
            st.session_state[choice] = found[column].iloc[0]


def _draw_state(store: Store, about: pd.Series[Any]) -> None:
    scores = store.frame(
        "SELECT policy, task, metric, repeats, accuracy, error FROM scores WHERE suite = ? AND cell = ? ORDER BY ALL",
        about["suite"],
        about["cell"],
    )
    with st.container(horizontal=True):
        st.metric("State", about["state"], help=escape_markdown(about["reason"]) or None)
        for row in scores.itertuples():
            metric = f"avg@{row.repeats}" if row.metric == "sampled" else row.metric
            error = f"± {100 * row.error:.1f} (standard error over questions)" if row.error == row.error else None
            label = f"{escape_markdown(row.policy)}, {escape_markdown(row.task)}, {metric}"
            st.metric(label, f"{PERCENT.text(row.accuracy)} %", help=error)
    if about["reason"]:
        st.warning(escape_markdown(about["reason"], 2000), icon=":material/error:")


def _training(store: Store, about: pd.Series[Any]) -> None:
    steps = store.frame(
        "SELECT * EXCLUDE (suite, cell) FROM steps WHERE suite = ? AND cell = ? ORDER BY policy, step",
        about["suite"],
        about["cell"],
    )
    if steps.empty:
        show_empty("This cell has not finished a step yet.", "harness status")
        return
    figures = list[charts.Figure]()
    for title, unit, values in (
        ("Share of right answers", "share", steps["right"] / (steps["right"] + steps["wrong"])),
        ("Length of the answers", "tokens", steps["answer_tokens_mean"]),
        ("Entropy", "nats per token", steps["entropy"]),
        ("Gradient norm", "norm", steps["gradient_norm"]),
    ):
        rows = pd.DataFrame({"regime": steps["policy"], "x": steps["step"], "y": values, "low": values, "high": values})
        if len(known := rows.dropna()):
            order = list(dict.fromkeys(steps["policy"]))
            shown = () if figures else order
            figures.append(charts.draw_lines(known, title, "step", unit, order, panel=265, shown=shown, named=False))
    costs = store.frame(
        "SELECT CASE policy WHEN '' THEN 'shared' ELSE policy END AS policy, phase, sum(cpu_seconds) AS value FROM spent "
        "WHERE suite = ? AND cell = ? GROUP BY ALL HAVING sum(cpu_seconds) > 0 ORDER BY 1, 3 DESC",
        about["suite"],
        about["cell"],
    )
    if len(costs):
        figures.append(
            charts.draw_bars(costs, "Cost by phase", "CPU-seconds, repeated work included", "policy", "phase")
        )
    draw_figures(figures, "training")
    offer_downloads(f"cell-{about['cell']}", lambda: steps, figures)


def _provenance(about: pd.Series[Any]) -> None:
    facts = {
        "cell": about["cell"],
        "origin": about["origin"] or "this results folder",
        "engine": about["engine"],
        "regime": about["regime_type"],
        "rollout budget": about["budget"],
        "models": ", ".join(about["models"]),
        "attempts": about["attempts"],
        "started": about["started"],
        "finished": about["finished"],
        "code": about["code_version"],
        "commit": f"{about['commit_hash']}{' with local changes' if about['dirty'] else ''}",
        "python": about["python"],
        **{f"machine: {k}": v for k, v in json.loads(about["machine"]).items()},
        **{f"package {k}": v for k, v in json.loads(about["packages"]).items()},
    }
    rows = pd.DataFrame({"what": list(facts), "value": [visible(str(v), 300) for v in facts.values()]})
    draw_table(rows, "provenance", "Provenance of the cell", height="content")
    st.caption("Resolved configuration")
    st.json(json.loads(about["config"]), expanded=1)
    offer_downloads(f"provenance-{about['cell']}", lambda: rows)


PAGE = Page(
    "cell",
    "One run",
    ":material/grid_view:",
    "One regime on one group with one seed: its training, costs and provenance.",
    draw,
    order=70,
    part_of="ranking",
)
