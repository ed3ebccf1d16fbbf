"""A question's answers under two regimes, and a peer's answer as sent and as the learner read it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any
from urllib.parse import quote

import pandas as pd
import streamlit as st

from harness.store.sentences import count_of
from harness.store.text import visible
from leaderboard.charts import fill_template
from leaderboard.data import Store
from leaderboard.page import (
    Page,
    choose_key,
    choose_one,
    draw_regime_links,
    draw_table,
    draw_tabs,
    escape_markdown,
    link_regimes,
    number_column,
    offer_downloads,
    show_empty,
)

_CELLS = """
SELECT c.regime, c.regime_type, c.seed, c.cell, avg(s.accuracy) AS accuracy, any_value(u.baseline) AS baseline
FROM current_cells c JOIN scores s USING (suite, cell) LEFT JOIN suites u USING (suite)
WHERE c.suite = ? AND c.kind = 'cell' AND c.seed IS NOT NULL AND c.group_name = ? GROUP BY ALL ORDER BY c.seed
"""
_LAST = """
samples SEMI JOIN (
    SELECT suite, cell, policy, task, metric, max(checkpoint_step) AS checkpoint_step FROM samples
    WHERE suite = $1 AND cell IN ($2, $3) AND metric = $4 GROUP BY ALL
) USING (suite, cell, policy, task, metric, checkpoint_step)
"""
_SOLVED = f"""
SELECT task, doc_id, policy, coalesce(bool_or(verdict = 'right') FILTER (cell = $2), false) AS ours,
    coalesce(bool_or(verdict = 'right') FILTER (cell = $3), false) AS theirs, bool_or(verdict = 'invalid') AS invalid,
    coalesce(bool_or(text <> ''), false) AS readable
FROM {_LAST} GROUP BY ALL ORDER BY ALL
"""
# Decodings of a cell, first one of which texts were kept
_METRICS = """
SELECT metric FROM samples WHERE suite = ? AND cell = ? GROUP BY metric ORDER BY bool_or(text <> '') DESC, metric
"""
_LIMIT = 20_000
_ANSWERS = f"""
SELECT task, doc_id, cell, policy, repeat, substr(prompt, 1, {_LIMIT}) AS prompt, length(prompt) AS prompt_size,
    substr(text, 1, {_LIMIT}) AS text, length(text) AS text_size, substr(extracted, 1, 200) AS extracted,
    substr(gold, 1, 200) AS gold, verdict, substr(reason, 1, 200) AS reason, tokens, finished
FROM {_LAST} WHERE list_contains($5, task || ' ' || doc_id)
ORDER BY task, doc_id, policy, repeat
"""
# By each label of the questions, of all cells of both regimes; an answer that could not be judged counts nowhere
_BY_LABEL = """
WITH last AS (
    SELECT cell, policy, task, metric, max(checkpoint_step) AS checkpoint_step FROM samples
    WHERE suite = $1 AND (list_contains($2, cell) OR list_contains($3, cell)) GROUP BY ALL
), labelled AS (
    SELECT s.task, s.metric, s.policy, list_contains($2, s.cell) AS ours, s.verdict, unnest(map_entries(s.labels)) AS pair
    FROM samples s SEMI JOIN last USING (cell, policy, task, metric, checkpoint_step) WHERE s.suite = $1
)
SELECT task, metric, pair.key AS label, pair.value AS value, policy,
    avg((verdict = 'right')::INTEGER) FILTER (NOT ours) AS theirs, avg((verdict = 'right')::INTEGER) FILTER (ours) AS ours,
    count(*) AS answers
FROM labelled WHERE verdict IN ('right', 'wrong') GROUP BY ALL
ORDER BY 1, 2, 3, any_value(try_cast(pair.value AS DOUBLE)) NULLS LAST, 4, 5
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
ALL, READABLE, SOLVED, LOST, INVALID = "all", "readable", "solved", "lost", "invalid"
_SHOW = {
    ALL: "all questions",
    READABLE: "with answers in words",
    SOLVED: "solved only after sharing",
    LOST: "lost by sharing",
    INVALID: "with an invalid answer",
}
"""Choices of questions by their key in the address."""
_SELECT = {
    ALL: lambda rows: rows["ours"] | True,
    READABLE: lambda rows: rows["readable"],
    SOLVED: lambda rows: rows["ours"] & ~rows["theirs"],
    LOST: lambda rows: rows["theirs"] & ~rows["ours"],
    INVALID: lambda rows: rows["invalid"],
}
_PER_PAGE, _REPEATS, _TOKENS, _DOWNLOAD = 5, 2, 400, 2000


def draw(store: Store, suite: str) -> None:
    with st.container(horizontal=True, gap="small"):
        group = choose_one("Group", store.list_groups(suite), "group", width=190)
        cells = store.query_frame(_CELLS, suite, group)
        if cells.empty:
            show_empty("No cell of this group has been evaluated yet.", "harness status")
            return
        regimes = [r for r in store.list_regimes(suite) if r in set(cells["regime"])]
        baseline = cells["baseline"].iloc[0]
        alone = cells["regime_type"].isin(cells["regime_type"][cells["regime"] == baseline])
        shared = cells[~alone].groupby("regime")["accuracy"].mean().dropna()
        ours = choose_one("Regime", regimes, "regime", shared.idxmax() if len(shared) else None, width=190)
        theirs = choose_one("against", regimes, "b", baseline, width=190)
        by_regime = {name: cells[cells["regime"] == name].set_index("seed")["cell"] for name in (ours, theirs)}
        seeds = [str(seed) for seed in by_regime[ours].index if seed in by_regime[theirs].index]
        if not seeds:
            show_empty("These two have no seed in common yet.")
            return
        seed = int(choose_one("Seed", seeds, "seed", width=90))
    pair = {name: str(by_regime[name][seed]) for name in (ours, theirs)}
    cells_of = {name: [str(by_regime[name][int(one)]) for one in seeds] for name in (ours, theirs)}
    draw_tabs(
        {
            "side": ("Side by side", lambda: _side_by_side(store, suite, pair, ours, theirs)),
            "labels": ("By label", lambda: _draw_labels(store, suite, cells_of, ours, theirs)),
            "sent": ("As sent and as read", lambda: _traces(store, suite, pair[ours], ours)),
        }
    )


def _side_by_side(store: Store, suite: str, pair: Mapping[str, str], ours: str, theirs: str) -> None:
    with st.container(horizontal=True, gap="small"):
        metrics = store.query_frame(_METRICS, suite, pair[ours])
        metric = choose_one("Decoding", list(metrics["metric"]), "decoding", width=130)
        place = (suite, pair[ours], pair[theirs], metric)
        solved = store.query_frame(_SOLVED, *place)
        show = choose_key("Show", _list_shows(solved), "show", width=250)
        page = int(st.number_input("Page", 1, 100_000, key="page", bind="query-params", width=120))
    chosen = solved[_SELECT[show](solved)]
    questions = list(dict.fromkeys(chosen["task"] + " " + chosen["doc_id"]))
    by_policy = ", ".join(f"{policy} {count}" for policy, count in chosen.groupby("policy", sort=False).size().items())
    asked = solved[["task", "doc_id"]].drop_duplicates()
    told = f"{len(questions):,} of {len(asked):,} questions" + (f" ({by_policy})" if show in (SOLVED, LOST) else "")
    st.caption(
        escape_markdown(
            f"{told}. Solved: at least one of a policy's answers to the question is right. Seed and questions are the same on "
            "both sides."
        )
    )
    _draw_what_was_kept(store, suite, solved)
    shown = questions[_PER_PAGE * (page - 1) : _PER_PAGE * page]
    if not shown:
        show_empty("No question for this choice.")
        return
    rows = store.query_frame(_ANSWERS, *place, tuple(shown)).to_dict("records")
    for _, answers in groupby(rows, key=lambda row: (row["task"], row["doc_id"])):
        sides = {name: pair[name] for name in (theirs, ours)}
        links = link_regimes(store, sides)
        repeats = 1 if show == READABLE else _REPEATS
        st.html(fill_template("question.html.tmpl", answers=[*answers], sides=sides, links=links, repeats=repeats))
    if len(questions) > _DOWNLOAD:
        st.caption(f"The download has the first {_DOWNLOAD:,} questions.")
    offer_downloads(f"answers-{pair[ours]}", lambda: store.query_frame(_ANSWERS, *place, tuple(questions[:_DOWNLOAD])))


def _draw_labels(store: Store, suite: str, cells: Mapping[str, Sequence[str]], ours: str, theirs: str) -> None:
    """Draw the accuracy of both regimes on the questions of each label, e.g. of each level. cells: by regime, those of the seeds
    that both have."""
    rows = store.query_frame(_BY_LABEL, suite, tuple(cells[ours]), tuple(cells[theirs]))
    if rows.empty:
        show_empty("The questions of this suite's tasks carry no labels.")
        return
    count = count_of(len(cells[ours]), "seed")
    st.caption(
        f"Right answers by what a question is labelled with: skill, level, or a setting of the task; over {count}."
    )
    rows.insert(rows.columns.get_loc("answers"), "difference", 100 * (rows["ours"] - rows["theirs"]))
    titles = {
        "theirs": number_column(theirs, "percent"),
        "ours": number_column(ours, "percent"),
        "difference": number_column("Difference, points", "%+.1f"),
        "answers": number_column("Answers of both", "localized"),
    }
    draw_table(rows, "labels", "Accuracy of two regimes by label, value and policy", titles)
    offer_downloads(f"labels-{suite}", lambda: rows)


def _list_shows(solved: pd.DataFrame) -> dict[str, str]:
    """Return the choices of questions; where some answers alone were kept in words, those come first."""
    if not solved["readable"].any() or solved["readable"].all():
        return {key: title for key, title in _SHOW.items() if key != READABLE}
    return {READABLE: _SHOW[READABLE], **_SHOW}


def _draw_what_was_kept(store: Store, suite: str, solved: pd.DataFrame) -> None:
    """Say of how many questions the answers can be read, and where others can, unless all can be read."""
    readable = solved[solved["readable"]][["task", "doc_id"]].drop_duplicates()
    if len(readable) and not solved["readable"].all():
        st.caption(
            f"Of this comparison the answers to {count_of(len(readable), 'question')} were kept in words, one for each policy; of "
            "the others the verdicts and what was read as the answer. A run of your own keeps all."
        )
    told = [other for other in store.told_suites() if other != suite]
    if readable.empty and told:
        st.caption(
            f"The answers' texts were not kept with these results; those of [{escape_markdown(told[0])}]"
            f"(answers?suite={quote(told[0])}) were."
        )


def _traces(store: Store, suite: str, cell: str, regime: str) -> None:
    traces = store.query_frame(_TRACES.format(columns="step, author, receiver, prompt_id", count=200), suite, cell, 0)
    if traces.empty:
        show_empty(
            f"No exchanged answer of {escape_markdown(regime)} was kept in full: its regime exchanges no text, nothing arrived, "
            "or the results came without texts."
        )
        return
    labels = [visible(f"step {r.step}: {r.author} → {r.receiver}, {r.prompt_id}", 120) for r in traces.itertuples()]
    chosen = st.selectbox(
        "Exchanged answer", range(len(labels)), format_func=labels.__getitem__, key="trace", width=420
    )
    row = store.query_frame(_TRACES.format(columns=_TRACE, count=1), suite, cell, chosen).iloc[0].to_dict()
    st.html(fill_template("trace.html.tmpl", row=row))
    draw_regime_links(store, [regime])
    st.markdown(
        f"**The answer of {escape_markdown(row['author'])}, as sent and as {escape_markdown(row['receiver'])} read it**"
    )
    st.html(token_view(row))
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
    lines = {}
    for ends, told, side in zip(cuts, values, ("author", "receiver"), strict=True):
        starts = enumerate(zip([0, *ends], ends[:_TOKENS], strict=False))
        lines[side] = [
            (content[a:b].decode(errors="replace"), b in edges, [float(v[i]) for v in told if i < len(v)])
            for i, (a, b) in starts
        ]
    more = {side: len(ends) - _TOKENS for side, ends in zip(lines, cuts, strict=True)}
    return fill_template("tokens.html.tmpl", lines=lines, more=more, exp=math.exp)


PAGE = Page(
    "answers",
    "Answers",
    ":material/forum:",
    "One question under two regimes, and what a learner read of a peer's answer.",
    draw,
    order=65,
    figures=False,
    part_of="head-to-head",
)
