"""A question's answers under two regimes, and a peer's answer as sent and as the learner read it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple
from urllib.parse import quote

import pandas as pd
import streamlit as st

from harness.store.sentences import count_of
from harness.store.text import visible
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
from leaderboard.templating import fill_template

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
_TEXTS = ("prompt", "own_text", "peer_text")
_LISTS = ("source_pieces", "source_logprobs", "receiver_pieces", "aligned", "receiver_logprobs")
_TRACE_COLUMNS = [
    "author, receiver, own_verdict, peer_verdict, used, substr(gold, 1, 200) AS gold",
    *(f"substr({text}, 1, {_LIMIT}) AS {text}, length({text}) AS {text}_size" for text in _TEXTS),
    *(f"{column}[1:{_LIMIT}] AS {column}" for column in _LISTS),
]
_TRACE = ", ".join(_TRACE_COLUMNS)
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


class _Pair(NamedTuple):
    """Two regimes of a group with the seeds that both have. cells: by regime and seed."""

    ours: str
    theirs: str
    seed: int
    cells: Mapping[str, Mapping[int, str]]

    def find_cells(self) -> dict[str, str]:
        """Return each regime's cell of the chosen seed."""
        return {name: of_seed[self.seed] for name, of_seed in self.cells.items()}


def draw(store: Store, suite: str) -> None:
    """Draw the page: the choice of two regimes, then their answers, their accuracies by label, and what was exchanged."""
    with st.container(horizontal=True, gap="small"):
        pair = _choose_pair(store, suite)
    if pair is None:
        return
    cell = pair.find_cells()[pair.ours]
    draw_tabs(
        {
            "side": ("Side by side", lambda: _draw_sides(store, suite, pair)),
            "labels": ("By label", lambda: _draw_labels(store, suite, pair)),
            "sent": ("As sent and as read", lambda: _draw_traces(store, suite, cell, pair.ours)),
        }
    )


def _choose_pair(store: Store, suite: str) -> _Pair | None:
    """Draw the choices; by default the most accurate regime that shares against the baseline. None where there is no pair."""
    group = choose_one("Group", store.list_groups(suite), "group", width=190)
    cells = store.query_frame(_CELLS, suite, group)
    if cells.empty:
        show_empty("No cell of this group has been evaluated yet.", "harness status")
        return None
    present = set(cells["regime"])
    regimes = [regime for regime in store.list_regimes(suite) if regime in present]
    baseline = cells["baseline"].iloc[0]
    # a variant of the baseline shares no more than it
    kinds_of_baseline = cells["regime_type"][cells["regime"] == baseline]
    alone = cells["regime_type"].isin(kinds_of_baseline)
    of_shared = cells[~alone].groupby("regime")["accuracy"]
    shared = of_shared.mean().dropna()
    best = shared.idxmax() if len(shared) else None
    ours = choose_one("Regime", regimes, "regime", best, width=190)
    theirs = choose_one("against", regimes, "b", baseline, width=190)
    by_seed = {}
    for name in (ours, theirs):
        own = cells[cells["regime"] == name]
        by_seed[name] = {int(seed): str(cell) for seed, cell in zip(own["seed"], own["cell"], strict=True)}
    seeds = [seed for seed in by_seed[ours] if seed in by_seed[theirs]]
    if not seeds:
        show_empty("These two have no seed in common yet.")
        return None
    seed = int(choose_one("Seed", [str(one) for one in seeds], "seed", width=90))
    of_both = {name: {one: own[one] for one in seeds} for name, own in by_seed.items()}
    return _Pair(ours, theirs, seed, of_both)


def _draw_sides(store: Store, suite: str, pair: _Pair) -> None:
    """Draw, question by question, what both regimes answered; and what the download has."""
    cells = pair.find_cells()
    ours, theirs = cells[pair.ours], cells[pair.theirs]
    with st.container(horizontal=True, gap="small"):
        metrics = store.query_frame(_METRICS, suite, ours)
        metric = choose_one("Decoding", list(metrics["metric"]), "decoding", width=130)
        place = (suite, ours, theirs, metric)
        solved = store.query_frame(_SOLVED, *place)
        show = choose_key("Show", _list_shows(solved), "show", width=250)
        page = int(st.number_input("Page", 1, 100_000, key="page", bind="query-params", width=120))
    chosen = solved[_SELECT[show](solved)]
    names = chosen["task"] + " " + chosen["doc_id"]
    questions = list(dict.fromkeys(names))
    st.caption(_count_questions(solved, chosen, len(questions), show))
    _draw_what_was_kept(store, suite, solved)
    first_shown = _PER_PAGE * (page - 1)
    shown = questions[first_shown : _PER_PAGE * page]
    if not shown:
        show_empty("No question for this choice.")
        return
    rows = store.query_frame(_ANSWERS, *place, tuple(shown)).to_dict("records")
    sides = {pair.theirs: theirs, pair.ours: ours}
    links = link_regimes(store, sides)
    repeats = 1 if show == READABLE else _REPEATS
    for _, answers in groupby(rows, key=lambda row: (row["task"], row["doc_id"])):
        html = fill_template("question.html.tmpl", answers=[*answers], sides=sides, links=links, repeats=repeats)
        st.html(html)
    if len(questions) > _DOWNLOAD:
        st.caption(f"The download has the first {_DOWNLOAD:,} questions.")
    first = tuple(questions[:_DOWNLOAD])
    offer_downloads(f"answers-{ours}", lambda: store.query_frame(_ANSWERS, *place, first))


def _count_questions(solved: pd.DataFrame, chosen: pd.DataFrame, count: int, show: str) -> str:
    """Say how many of the questions are shown, of some choices by policy, as Markdown."""
    asked = solved[["task", "doc_id"]].drop_duplicates()
    told = f"{count:,} of {len(asked):,} questions"
    if show in (SOLVED, LOST):
        counts = chosen.groupby("policy", sort=False).size()
        by_policy = ", ".join(f"{policy} {number}" for policy, number in counts.items())
        told += f" ({by_policy})"
    meaning = "Solved: at least one of a policy's answers to the question is right. Seed and questions are the same on both sides."
    return escape_markdown(f"{told}. {meaning}")


def _draw_labels(store: Store, suite: str, pair: _Pair) -> None:
    """Draw the accuracy of both regimes on the questions of each label, e.g. of each level, over the seeds that both have."""
    ours = tuple(pair.cells[pair.ours].values())
    theirs = tuple(pair.cells[pair.theirs].values())
    rows = store.query_frame(_BY_LABEL, suite, ours, theirs)
    if rows.empty:
        show_empty("The questions of this suite's tasks carry no labels.")
        return
    count = count_of(len(ours), "seed")
    st.caption(
        f"Right answers by what a question is labelled with: skill, level, or a setting of the task; over {count}."
    )
    difference = 100 * (rows["ours"] - rows["theirs"])
    rows.insert(rows.columns.get_loc("answers"), "difference", difference)
    titles = {
        "theirs": number_column(pair.theirs, "percent"),
        "ours": number_column(pair.ours, "percent"),
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


def _draw_traces(store: Store, suite: str, cell: str, regime: str) -> None:
    """Draw one exchanged answer of a cell: the texts, and its tokens as sent and as the receiver read them."""
    listed = _TRACES.format(columns="step, author, receiver, prompt_id", count=200)
    traces = store.query_frame(listed, suite, cell, 0)
    if traces.empty:
        show_empty(
            f"No exchanged answer of {escape_markdown(regime)} was kept in full: its regime exchanges no text, nothing arrived, "
            "or the results came without texts."
        )
        return
    labels = []
    for trace in traces.itertuples():
        label = f"step {trace.step}: {trace.author} → {trace.receiver}, {trace.prompt_id}"
        labels.append(visible(label, 120))
    places = range(len(labels))
    chosen = st.selectbox("Exchanged answer", places, format_func=labels.__getitem__, key="trace", width=420)
    found = store.query_frame(_TRACES.format(columns=_TRACE, count=1), suite, cell, chosen)
    row = found.iloc[0].to_dict()
    st.html(fill_template("trace.html.tmpl", row=row))
    draw_regime_links(store, [regime])
    author, receiver = escape_markdown(row["author"]), escape_markdown(row["receiver"])
    st.markdown(f"**The answer of {author}, as sent and as {receiver} read it**")
    st.html(token_view(row))
    own = ", and the receiver's own in brackets" if len(row["receiver_logprobs"]) else ""
    st.caption(
        "Upper line: the author's tokens with its log-probabilities. Lower line: the receiver's tokens with the author's "
        f"log-probabilities carried over{own}. The darker, the less likely. Bars: chunk edges, where both tokenizers cut."
    )


def token_view(trace: Mapping[str, Any]) -> str:
    """Return HTML of both segmentations of `peer_text`, escaped. `*_pieces` are byte lengths; edges end a token in both."""
    author_ends = list(accumulate(map(int, trace["source_pieces"])))
    receiver_ends = list(accumulate(map(int, trace["receiver_pieces"])))
    edges = set(author_ends) & set(receiver_ends)
    content = str(trace["peer_text"]).encode()
    author_values = [trace["source_logprobs"]]
    receiver_values = [trace["aligned"], trace["receiver_logprobs"]]
    lines = {
        "author": _cut_tokens(content, author_ends, edges, author_values),
        "receiver": _cut_tokens(content, receiver_ends, edges, receiver_values),
    }
    more = {"author": len(author_ends) - _TOKENS, "receiver": len(receiver_ends) - _TOKENS}
    return fill_template("tokens.html.tmpl", lines=lines, more=more, exp=math.exp)


def _cut_tokens(
    content: bytes, ends: Sequence[int], edges: set[int], values: Sequence[Sequence[float]]
) -> list[tuple[str, bool, list[float]]]:
    """Return each of the first tokens as text, whether it ends at an edge, and its numbers. ends: byte offsets.

    values: lists of a number for each token; a list may be shorter than there are tokens, or empty.
    """
    tokens = []
    start = 0
    for place, end in enumerate(ends[:_TOKENS]):
        text = content[start:end].decode(errors="replace")
        numbers = [float(of_tokens[place]) for of_tokens in values if place < len(of_tokens)]
        tokens.append((text, end in edges, numbers))
        start = end
    return tokens


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
