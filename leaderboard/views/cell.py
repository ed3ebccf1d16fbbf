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
from leaderboard.specification import Figure

# Of the address: the cell's key. Of the session: the key that was opened last
_KEY, _OPENED = "cell", "opened cell"
_COSTS = (
    "SELECT CASE policy WHEN '' THEN 'shared' ELSE policy END AS policy, phase, sum(cpu_seconds) AS value FROM spent "
    "WHERE suite = ? AND cell = ? GROUP BY ALL HAVING sum(cpu_seconds) > 0 ORDER BY 1, 3 DESC"
)


def draw(store: Store, suite: str) -> None:
    """Draw the page of the cell that the reader chooses by group, regime and seed, or that the address names."""
    cells = store.query_frame("SELECT * FROM current_cells WHERE suite = ? AND kind = 'cell' ORDER BY seed", suite)
    seeds = cells["seed"].astype("Int64")  # whole numbers beside one that is missing
    cells = cells.assign(seed=seeds.map(str))
    _open_asked(cells)
    with st.container(horizontal=True, gap="small"):
        group = choose_one("Group", store.list_groups(suite), "group", width=220)
        cells = cells[cells["group_name"] == group]
        present = set(cells["regime"])
        regimes = [regime for regime in store.list_regimes(suite) if regime in present]
        regime = choose_one("Regime", regimes, "regime", width=220)
        cells = cells[cells["regime"] == regime]
        seed = choose_one("Seed", list(dict.fromkeys(cells["seed"])), "seed", width=120)
    about = cells[cells["seed"] == seed].iloc[0]
    st.query_params[_KEY] = st.session_state[_OPENED] = about["cell"]
    _draw_state(store, about)
    draw_regime_links(store, [regime])
    draw_tabs(
        {
            "training": ("Training", lambda: _draw_training(store, about)),
            "provenance": ("Provenance", lambda: _draw_provenance(about)),
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
    """Draw how far the cell is, its policies' accuracies, and why it failed where it did."""
    scores = store.query_frame(
        "SELECT policy, task, metric, repeats, accuracy, error FROM scores WHERE suite = ? AND cell = ? ORDER BY ALL",
        about["suite"],
        about["cell"],
    )
    with st.container(horizontal=True):
        state_help = escape_markdown(about["reason"]) or None
        st.metric("State", about["state"], help=state_help)
        for row in scores.itertuples():
            metric = f"avg@{row.repeats}" if row.metric == "sampled" else row.metric
            known = row.error == row.error  # NaN is unequal to itself
            error = f"± {100 * row.error:.1f} (standard error over questions)" if known else None
            label = f"{escape_markdown(row.policy)}, {escape_markdown(row.task)}, {metric}"
            accuracy = PERCENT.text(row.accuracy)
            st.metric(label, f"{accuracy} %", help=error)
    if about["reason"]:
        st.warning(escape_markdown(about["reason"], 2000), icon=":material/error:")


def _draw_training(store: Store, about: pd.Series[Any]) -> None:
    """Draw what each step measured, policy by policy, and what the cell cost."""
    steps = store.query_frame(
        "SELECT * EXCLUDE (suite, cell) FROM steps WHERE suite = ? AND cell = ? ORDER BY policy, step",
        about["suite"],
        about["cell"],
    )
    if steps.empty:
        show_empty("This cell has not finished a step yet.", "harness status")
        return
    figures = _chart_steps(steps)
    costs = store.query_frame(_COSTS, about["suite"], about["cell"])
    if len(costs):
        unit = "CPU-seconds, repeated work included"
        figures.append(charts.draw_bars(costs, "Cost by phase", unit, "policy", "phase"))
    draw_figures(figures, "training")
    offer_downloads(f"cell-{about['cell']}", lambda: steps, figures)


def _chart_steps(steps: pd.DataFrame) -> list[Figure]:
    """Return a figure over steps of each measure that the cell has, a line for each policy."""
    order = list(dict.fromkeys(steps["policy"]))
    right_share = steps["right"] / (steps["right"] + steps["wrong"])
    measures = (
        ("Share of right answers", "share", right_share),
        ("Length of the answers", "tokens", steps["answer_tokens_mean"]),
        ("Entropy", "nats per token", steps["entropy"]),
        ("Gradient norm", "norm", steps["gradient_norm"]),
    )
    figures = list[Figure]()
    for title, unit, values in measures:
        # one cell is no sample: a line without intervals
        columns = {"regime": steps["policy"], "x": steps["step"], "y": values, "low": values, "high": values}
        rows = pd.DataFrame(columns)
        known = rows.dropna()
        if len(known):
            shown = () if figures else order
            figure = charts.draw_lines(known, title, "step", unit, order, panel=265, shown=shown, named=False)
            figures.append(figure)
    return figures


def _draw_provenance(about: pd.Series[Any]) -> None:
    """Draw where the cell comes from and what it ran on, and its configuration with all defaults."""
    facts = _list_provenance(about)
    values = [visible(str(value), 300) for value in facts.values()]
    rows = pd.DataFrame({"what": list(facts), "value": values})
    draw_table(rows, "provenance", "Provenance of the cell", height="content")
    st.caption("Resolved configuration")
    config = json.loads(about["config"])
    st.json(config, expanded=1)
    offer_downloads(f"provenance-{about['cell']}", lambda: rows)


def _list_provenance(about: pd.Series[Any]) -> dict[str, object]:
    """Return the lines of the table of provenance by their names. about: the cell's row."""
    changes = " with local changes" if about["dirty"] else ""
    machine = json.loads(about["machine"])
    packages = json.loads(about["packages"])
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
        "commit": f"{about['commit_hash']}{changes}",
        "python": about["python"],
    }
    facts |= {f"machine: {name}": value for name, value in machine.items()}
    facts |= {f"package {name}": version for name, version in packages.items()}
    return facts


PAGE = Page(
    "cell",
    "One run",
    ":material/grid_view:",
    "One regime on one group with one seed: its training, costs and provenance.",
    draw,
    order=70,
    part_of="ranking",
)
