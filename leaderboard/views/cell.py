"""Everything of one cell."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import pandas as pd
import streamlit as st

from harness.store.text import visible
from leaderboard import charts
from leaderboard.data import Store
from leaderboard.page import Page, choose, downloads, draw_figures, draw_table, empty, escaped

_LIMIT = 20_000
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
_TOKENS = 400
_STYLE = """<style>.tokens {font-family: ui-monospace, monospace; font-size: .82rem; line-height: 1.3; overflow-wrap: anywhere;
margin: .2rem 0 .6rem}
.tokens span {display: inline-block; text-align: center; padding: .1rem .18rem; margin: .06rem; border-radius: .2rem;
white-space: pre}
.tokens span.edge {border-right: 3px solid rgba(11,110,105,.9)}
.tokens small {display: block; font-size: .66rem; opacity: .85}
pre.answer {white-space: pre-wrap; overflow-wrap: anywhere; margin: 0 0 .25rem; max-height: 22rem; overflow: auto;
font-size: .85rem; background: rgba(128,128,128,.09); padding: .5rem .7rem; border-radius: .4rem}</style>"""
_MARKS = {"right": ("right", "green", ":material/check:"), "wrong": ("wrong", "red", ":material/close:")}


def draw(store: Store, suite: str) -> None:
    cells = store.frame("SELECT * FROM current_cells WHERE suite = ? AND kind = 'cell' ORDER BY seed", suite)
    with st.container(horizontal=True, gap="small"):
        group = choose("Group", store.groups(suite), "group", width=220)
        cells = cells[cells["group_name"] == group]
        regime = choose("Regime", [r for r in store.regimes(suite) if r in set(cells["regime"])], "regime", width=220)
        cells = cells[cells["regime"] == regime]
        seed = choose("Seed", [str(s) for s in dict.fromkeys(cells["seed"])], "seed", width=120)
    about = cells[cells["seed"].astype(str) == seed].iloc[0]
    _draw_state(store, about)
    parts = {"Training": _training, "Peers' answers": _traces, "Answers": _answers, "Provenance": _provenance}
    tabs = st.tabs([*parts], key="part", on_change="rerun", bind="query-params")
    for tab, part in zip(tabs, parts.values(), strict=True):
        if tab.open:
            with tab:
                part(store, about)


def _draw_state(store: Store, about: pd.Series[Any]) -> None:
    scores = store.frame(
        "SELECT policy, task, metric, repeats, accuracy, error FROM scores WHERE suite = ? AND cell = ? ORDER BY ALL",
        about["suite"],
        about["cell"],
    )
    with st.container(horizontal=True):
        st.metric("State", about["state"], help=visible(about["reason"], 500) or None)
        for row in scores.itertuples():
            metric = f"avg@{row.repeats}" if row.metric == "sampled" else row.metric
            error = f"± {100 * row.error:.1f} (standard error over questions)" if row.error == row.error else None
            label = f"{escaped(row.policy)}, {escaped(row.task)}, {metric}"
            st.metric(label, f"{100 * row.accuracy:.1f} %", help=error)
    if about["reason"]:
        st.warning(escaped(about["reason"], 2000), icon=":material/error:")


def _training(store: Store, about: pd.Series[Any]) -> None:
    steps = store.frame(
        "SELECT * EXCLUDE (suite, cell) FROM steps WHERE suite = ? AND cell = ? ORDER BY policy, step",
        about["suite"],
        about["cell"],
    )
    if steps.empty:
        empty("This cell has not finished a step yet.", "harness status")
        return
    figures = []
    for title, unit, values in (
        ("Share of right answers", "share", steps["right"] / (steps["right"] + steps["wrong"])),
        ("Length of the answers", "tokens", steps["answer_tokens_mean"]),
        ("Entropy", "nats per token", steps["entropy"]),
        ("Gradient norm", "norm", steps["gradient_norm"]),
    ):
        rows = pd.DataFrame({"regime": steps["policy"], "x": steps["step"], "y": values, "low": values, "high": values})
        if len(known := rows.dropna()):
            order = list(dict.fromkeys(steps["policy"]))
            figures.append(charts.lines(known, title, "step", unit, order, panel=265, named=False))
    costs = store.frame(
        "SELECT CASE policy WHEN '' THEN 'shared' ELSE policy END AS policy, phase, sum(cpu_seconds) AS value FROM spent "
        "WHERE suite = ? AND cell = ? GROUP BY ALL HAVING sum(cpu_seconds) > 0 ORDER BY 1, 3 DESC",
        about["suite"],
        about["cell"],
    )
    if len(costs):
        figures.append(charts.bars(costs, "Cost by phase", "CPU-seconds, repeated work included", "policy", "phase"))
    draw_figures(figures, "training")
    downloads(f"cell-{about['cell']}", lambda: steps, figures)


def _traces(store: Store, about: pd.Series[Any]) -> None:
    traces = store.frame(
        _TRACES.format(columns="step, author, receiver, prompt_id", count=200), about["suite"], about["cell"], 0
    )
    if traces.empty:
        empty("No exchanged answer was kept in full for this cell: its regime exchanges no text, or nothing arrived.")
        return
    labels = [visible(f"step {r.step}: {r.author} → {r.receiver}, {r.prompt_id}", 120) for r in traces.itertuples()]
    chosen = st.selectbox(
        "Exchanged answer", range(len(labels)), format_func=labels.__getitem__, key="trace", width=420
    )
    row = store.frame(_TRACES.format(columns=_TRACE, count=1), about["suite"], about["cell"], chosen).iloc[0].to_dict()
    used = "used" if row["used"] else "without a gradient"
    _draw_text("Prompt", row, "prompt")
    left, right = st.columns(2)
    with left:
        _draw_text(f"Own answer of {escaped(row['receiver'])}: {row['own_verdict']}", row, "own_text")
    with right:
        _draw_text(f"Answer of {escaped(row['author'])}: {row['peer_verdict']}, {used}", row, "peer_text")
    st.caption(f"Reference answer: {escaped(row['gold'], 200)}")
    st.markdown("**The peer's answer in both tokenizers**")
    st.html(_STYLE + token_view(row))
    own = ", and the receiver's own in brackets" if len(row["receiver_logprobs"]) else ""
    st.caption(
        "Upper line: the author's tokens with its log-probabilities. Lower line: the receiver's tokens with the author's "
        f"log-probabilities carried over{own}. The darker, the less likely. Bars: chunk edges, where both tokenizers cut."
    )


def token_view(trace: Mapping[str, Any]) -> str:
    """HTML of both segmentations of `peer_text`, escaped. `*_pieces` are byte lengths; edges end a token in both."""
    cuts = [list(accumulate(map(int, trace[f"{side}_pieces"]))) for side in ("source", "receiver")]
    values = [[trace["source_logprobs"]], [trace["aligned"], trace["receiver_logprobs"]]]
    content, edges = str(trace["peer_text"]).encode(), set(cuts[0]) & set(cuts[1])
    lines = []
    for ends, told, side in zip(cuts, values, ("author", "receiver"), strict=True):
        starts = zip([0, *ends], ends[:_TOKENS], strict=False)
        spans = (
            _token(content[a:b], b in edges, [float(v[i]) for v in told if i < len(v)])
            for i, (a, b) in enumerate(starts)
        )
        more = f" … {len(ends) - _TOKENS} more tokens" if len(ends) > _TOKENS else ""
        lines.append(f'<div class="tokens" role="group" aria-label="Tokens of the {side}">{"".join(spans)}{more}</div>')
    return "".join(lines)


def _token(piece: bytes, edge: bool, logprobs: Sequence[float]) -> str:
    text = html.escape(visible(piece.decode(errors="replace")).replace("\n", "⏎")) or "∅"
    told = " ".join(f"({v:z.2f})" if k else f"{v:z.2f}" for k, v in enumerate(logprobs)) or "&nbsp;"
    likely = math.exp(min(logprobs[0], 0.0)) if logprobs and not math.isnan(logprobs[0]) else 1.0
    style = f"background: rgba(59,111,212,{0.08 + 0.5 * (1 - likely):.2f})"
    kind = ' class="edge"' if edge else ""
    return f'<span{kind} style="{style}">{text}<small>{told}</small></span>'


def _answers(store: Store, about: pd.Series[Any]) -> None:
    with st.container(horizontal=True, gap="small"):
        policy = choose("Policy", ["all", *about["policies"]], "policy", width=150)
        metric = choose("Decoding", ["all", "greedy", "sampled"], "decoding", width=130)
        verdict = choose("Verdict", ["all", "right", "wrong", "invalid"], "verdict", width=130)
        page = int(st.number_input("Page", 1, 100_000, key="page", bind="query-params", width=120))
    chosen = (about["suite"], about["cell"], policy, policy, metric, metric, verdict, verdict)
    rows = store.frame(_SAMPLES.format(limit=_LIMIT), *chosen, _PER_PAGE, _PER_PAGE * (page - 1))
    if rows.empty:
        empty("No answers for this choice.")
        return
    for start in range(0, len(rows), 2):
        for column, row in zip(st.columns(2), rows.iloc[start : start + 2].to_dict("records"), strict=False):
            with column.container(border=True):
                _draw_answer(row)
    downloads(f"answers-{about['cell']}", lambda: store.frame(_SAMPLES.format(limit=_LIMIT), *chosen, 5000, 0))


def _draw_answer(row: dict[str, Any]) -> None:
    label, colour, icon = _MARKS.get(row["verdict"], (row["verdict"] or "no verdict", "orange", ":material/help:"))
    st.badge(escaped(label), color=colour, icon=icon)
    decoding = "greedy" if row["metric"] == "greedy" else f"sample {row['repeat'] + 1}"
    whose = f"{escaped(row['policy'])}, {escaped(row['task'])} {escaped(row['doc_id'])}"
    _draw_text(
        f"{whose}, {decoding}, {row['tokens']} tokens{'' if row['finished'] else ', cut off'}", row, "prompt", "text"
    )
    reason = f", {escaped(row['reason'], 200)}" if row["reason"] else ""
    st.caption(f"Extracted: {escaped(row['extracted'], 200) or '–'}. Reference: {escaped(row['gold'], 200)}{reason}")


def _draw_text(caption: str, row: Mapping[str, Any], *columns: str) -> None:
    st.caption(caption)
    for column in columns:
        text, size = row[column], row[f"{column}_size"]
        more = f"\n… ({size:,} characters in all)" if size > len(text) else ""
        st.html(f'{_STYLE}<pre class="answer">{html.escape(visible(text) + more)}</pre>')


def _provenance(store: Store, about: pd.Series[Any]) -> None:
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
    downloads(f"provenance-{about['cell']}", lambda: rows)


PAGE = Page(
    "cell",
    "Cell",
    ":material/grid_view:",
    "One regime on one group with one seed: everything that is known of it.",
    draw,
    order=70,
)
