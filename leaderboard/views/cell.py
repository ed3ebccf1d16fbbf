"""Everything of one cell: where it came from, what it did, what it cost, and what was said."""

from __future__ import annotations

import html
import json
from typing import Any

import pandas as pd
import streamlit as st

from harness.store.text import visible
from leaderboard import charts
from leaderboard.data import Store
from leaderboard.parts import choose, downloads, draw_figures, empty, escaped
from leaderboard.tokens import TOKEN_STYLE, token_view
from leaderboard.view import Page, View

_LIMIT = 20_000
"""Characters of one text that are fetched."""
_PER_PAGE = 6
_SAMPLES = """
SELECT policy, task, metric, doc_id, repeat, substr(prompt, 1, {limit}) AS prompt, length(prompt) AS prompt_size,
    substr(text, 1, {limit}) AS text, length(text) AS text_size,
    substr(extracted, 1, 200) AS extracted, substr(gold, 1, 200) AS gold, verdict, reason, tokens, finished
FROM samples WHERE suite = ? AND cell = ? AND (? = 'all' OR policy = ?) AND (? = 'all' OR metric = ?) AND (? = 'all' OR verdict = ?)
ORDER BY task, metric, doc_id, policy, repeat LIMIT ? OFFSET ?
"""
_TRACES = """
SELECT {columns} FROM traces WHERE suite = ? AND cell = ?
ORDER BY step, receiver, author, prompt_id, "index" LIMIT {count} OFFSET ?
"""
_TRACE = ", ".join(
    [
        "author, receiver, own_verdict, peer_verdict, used, substr(gold, 1, 200) AS gold",
        *(f"substr({c}, 1, {_LIMIT}) AS {c}, length({c}) AS {c}_size" for c in ("prompt", "own_text", "peer_text")),
        *(
            f"{c}[1:{_LIMIT}] AS {c}"
            for c in ("source_pieces", "source_logprobs", "receiver_pieces", "aligned", "receiver_logprobs")
        ),
    ]
)


def draw(store: Store, suite: str, view: View) -> None:
    """Selectors by group, regime and seed, then the cell."""
    cells = store.frame(
        "SELECT cell, group_name AS 'group', regime, seed FROM current_cells WHERE suite = ? AND kind = 'cell' ORDER BY seed",
        suite,
    )
    with st.container(horizontal=True, gap="small"):
        group = choose("Group", store.groups(suite), "group", width=220)
        cells = cells[cells["group"] == group]
        regime = choose("Regime", [r for r in store.regimes(suite) if r in set(cells["regime"])], "regime", width=220)
        cells = cells[cells["regime"] == regime]
        seed = choose("Seed", [str(s) for s in dict.fromkeys(cells["seed"])], "seed", width=120)
    key = cells.loc[cells["seed"].astype(str) == seed, "cell"].iloc[0]
    about = store.frame("SELECT * FROM current_cells WHERE suite = ? AND cell = ?", suite, key).iloc[0]
    _state(store, suite, key, about)
    tabs = st.tabs(
        ["Training", "Peers' answers", "Answers", "Provenance"], key="part", on_change="rerun", bind="query-params"
    )
    for tab, part in zip(tabs, (_training, _traces, _answers, _provenance), strict=True):
        if tab.open:
            with tab:
                part(store, suite, key, about)


def _state(store: Store, suite: str, key: str, about: pd.Series[Any]) -> None:
    scores = store.frame(
        "SELECT policy, task, metric, repeats, accuracy, error FROM scores WHERE suite = ? AND cell = ? ORDER BY ALL",
        suite,
        key,
    )
    with st.container(horizontal=True):
        st.metric("State", about["state"], help=visible(about["reason"], 500) or None)
        for row in scores.itertuples():
            metric = f"avg@{row.repeats}" if row.metric == "sampled" else row.metric
            error = f"± {100 * row.error:.1f} (standard error over questions)" if row.error == row.error else None
            st.metric(
                f"{escaped(row.policy)}, {escaped(row.task)}, {metric}", f"{100 * row.accuracy:.1f} %", help=error
            )
    if about["reason"]:
        st.warning(escaped(about["reason"], 2000), icon=":material/error:")


def _training(store: Store, suite: str, key: str, about: pd.Series[Any]) -> None:
    steps = store.frame(
        "SELECT * EXCLUDE (suite, cell) FROM steps WHERE suite = ? AND cell = ? ORDER BY policy, step", suite, key
    )
    if steps.empty:
        empty("This cell has not finished a step yet.", "harness status")
        return
    policies = list(dict.fromkeys(steps["policy"]))
    figures = []
    for title, unit, values in (
        ("Share of right answers", "share", steps["right"] / (steps["right"] + steps["wrong"])),
        ("Length of the answers", "tokens", steps["answer_tokens_mean"]),
        ("Entropy", "nats per token", steps["entropy"]),
        ("Gradient norm", "norm", steps["gradient_norm"]),
    ):
        rows = pd.DataFrame({"regime": steps["policy"], "x": steps["step"], "y": values}).dropna()
        if len(rows):
            rows = rows.assign(low=rows["y"], high=rows["y"])
            figures.append(charts.lines(rows, title, "step", unit, policies, panel=265, named=False))
    costs = store.frame(
        "SELECT CASE policy WHEN '' THEN 'shared' ELSE policy END AS policy, phase, sum(cpu_seconds) AS value FROM spent "
        "WHERE suite = ? AND cell = ? GROUP BY ALL HAVING sum(cpu_seconds) > 0 ORDER BY 1, 3 DESC",
        suite,
        key,
    )
    if len(costs):
        figures.append(charts.bars(costs, "Cost by phase", "CPU-seconds, repeated work included", "policy", "phase"))
    draw_figures(figures, "training")
    downloads(f"cell-{key}", steps, figures)


def _traces(store: Store, suite: str, key: str, about: pd.Series[Any]) -> None:
    columns = "step, author, receiver, prompt_id"
    traces = store.frame(_TRACES.format(columns=columns, count=200), suite, key, 0)
    if traces.empty:
        empty("No exchanged answer was kept in full for this cell: its regime exchanges no text, or nothing arrived.")
        return
    labels = [f"step {r.step}: {r.author} → {r.receiver}, {r.prompt_id}" for r in traces.itertuples()]
    chosen = st.selectbox(
        "Exchanged answer", range(len(labels)), format_func=lambda i: visible(labels[i], 120), key="trace", width=420
    )
    row = store.frame(_TRACES.format(columns=_TRACE, count=1), suite, key, chosen).iloc[0]
    st.caption("Prompt")
    _plain(row["prompt"], row["prompt_size"])
    left, right = st.columns(2)
    with left:
        st.caption(f"Own answer of {escaped(row['receiver'])}: {row['own_verdict']}")
        _plain(row["own_text"], row["own_text_size"])
    with right:
        used = "used" if row["used"] else "without a gradient"
        st.caption(f"Answer of {escaped(row['author'])}: {row['peer_verdict']}, {used}")
        _plain(row["peer_text"], row["peer_text_size"])
    st.caption(f"Reference answer: {escaped(row['gold'], 200)}")
    st.markdown("**The peer's answer in both tokenizers**")
    st.html(TOKEN_STYLE + token_view(row.to_dict()))
    own = ", and the receiver's own in brackets" if len(row["receiver_logprobs"]) else ""
    st.caption(
        "Upper line: the author's tokens with its log-probabilities. Lower line: the receiver's tokens with the author's "
        f"log-probabilities carried over{own}. The darker, the less likely. Bars: chunk edges, where both tokenizers cut."
    )


def _answers(store: Store, suite: str, key: str, about: pd.Series[Any]) -> None:
    with st.container(horizontal=True, gap="small"):
        policy = choose("Policy", ["all", *about["policies"]], "policy", width=150)
        metric = choose("Decoding", ["all", "greedy", "sampled"], "decoding", width=130)
        verdict = choose("Verdict", ["all", "right", "wrong", "invalid"], "verdict", width=130)
        page = int(st.number_input("Page", 1, 100_000, key="page", bind="query-params", width=120))
    parameters = (policy, policy, metric, metric, verdict, verdict)
    rows = store.frame(_SAMPLES.format(limit=_LIMIT), suite, key, *parameters, _PER_PAGE, _PER_PAGE * (page - 1))
    if rows.empty:
        empty("No answers for this choice.")
        return
    for start in range(0, len(rows), 2):
        for column, row in zip(st.columns(2), rows.iloc[start : start + 2].to_dict("records"), strict=False):
            with column.container(border=True):
                _answer(row)
    downloads(f"answers-{key}", lambda: store.frame(_SAMPLES.format(limit=_LIMIT), suite, key, *parameters, 5000, 0))


_MARKS = {"right": ("right", "green", ":material/check:"), "wrong": ("wrong", "red", ":material/close:")}


def _answer(row: dict[str, Any]) -> None:
    label, colour, icon = _MARKS.get(row["verdict"], (row["verdict"] or "no verdict", "orange", ":material/help:"))
    st.badge(escaped(label), color=colour, icon=icon)
    decoding = "greedy" if row["metric"] == "greedy" else f"sample {row['repeat'] + 1}"
    st.caption(
        f"{escaped(row['policy'])}, {escaped(row['task'])} {escaped(row['doc_id'])}, {decoding}, {row['tokens']} tokens"
        + ("" if row["finished"] else ", cut off")
    )
    _plain(row["prompt"], row["prompt_size"])
    _plain(row["text"], row["text_size"])
    reason = f", {escaped(row['reason'], 200)}" if row["reason"] else ""
    st.caption(f"Extracted: {escaped(row['extracted'], 200) or '–'}. Reference: {escaped(row['gold'], 200)}{reason}")


def _provenance(store: Store, suite: str, key: str, about: pd.Series[Any]) -> None:
    machine, packages = json.loads(about["machine"]), json.loads(about["packages"])
    facts = {
        "cell": key,
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
        **{f"machine: {k}": v for k, v in machine.items()},
        **{f"package {k}": v for k, v in packages.items()},
    }
    rows = pd.DataFrame({"what": list(facts), "value": [visible(str(v), 300) for v in facts.values()]})
    st.dataframe(rows, hide_index=True, key="provenance", alt="Provenance of the cell", height="content")
    st.caption("Resolved configuration")
    st.json(json.loads(about["config"]), expanded=1)
    downloads(f"provenance-{key}", rows)


def _plain(text: str, size: int) -> None:
    """Text as text: no Markdown, no HTML, no control characters. `size`: characters before it was cut."""
    more = f"\n… ({size:,} characters in all)" if size > len(text) else ""
    st.html(f'<pre class="answer">{html.escape(visible(text) + more)}</pre>{_PRE}')


_PRE = """<style>pre.answer {white-space: pre-wrap; overflow-wrap: anywhere; margin: 0 0 .25rem; max-height: 22rem; overflow: auto;
font-size: .85rem; background: rgba(128,128,128,.09); padding: .5rem .7rem; border-radius: .4rem}</style>"""

PAGE = Page(
    "cell",
    "Cell",
    ":material/grid_view:",
    "One regime on one group with one seed: everything that is known of it.",
    draw,
    order=70,
)
