"""Two regimes on the same cells: by group and seed, and question by question."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from harness.statistics import paired_by_question
from harness.statistics.comparison import EQUIVALENT, GAINS, INCONCLUSIVE, LOSES, WITHHELD
from harness.store.ranking import Pairing, pairing
from harness.store.sentences import explained, points
from harness.store.statistic import POINTS
from harness.store.table import MEAN
from leaderboard import charts
from leaderboard.data import Store
from leaderboard.frames import baseline_of, seeds_frame
from leaderboard.parts import (
    choose,
    choose_margin,
    downloads,
    draw_figure,
    empty,
    escaped,
    percent_interval,
    unfinished,
)
from leaderboard.view import Page, View

_QUESTIONS = """
SELECT c.group_name AS "group", c.regime, c.seed, s.policy, s.task, s.doc_id, s.value AS mean,
    substr(s.prompt, 1, 160) AS prompt
FROM current_cells c JOIN questions s USING (suite, cell)
WHERE c.suite = ? AND c.kind = 'cell' AND c.state = 'done' AND c.regime IN (?, ?) AND s.metric = ? AND s.task = ?
"""


def draw(store: Store, suite: str, view: View) -> None:
    """Selectors, differences per group, per seed, per question."""
    rows = store.seeds(suite)
    seeds = seeds_frame(rows)
    regimes = list(dict.fromkeys(seeds["regime"]))
    if len(regimes) < 2:
        unfinished(store, suite, "Two regimes must have finished before they can be compared.")
        return
    means = seeds[seeds["policy"] == MEAN].groupby("regime")["accuracy"].mean()
    best = str(means.idxmax()) if len(means) else regimes[-1]
    baseline = baseline_of(seeds, regimes[0])
    with st.container(horizontal=True, gap="small"):
        ours = choose("Regime", regimes, "a", best if best != baseline else regimes[-1], width=170)
        theirs = choose("against", regimes, "b", baseline, width=170)
        metric = choose("Metric", list(dict.fromkeys(seeds["metric"])), "metric", width=120)
        task = choose("Benchmark", list(dict.fromkeys(seeds["task"])), "task", width=140)
        margin = choose_margin()
    if ours == theirs:
        empty("A regime against itself: choose another one.")
        return
    rows = [r for r in rows if (r.metric, r.task) == (metric, task)]
    chosen = seeds[(seeds["metric"] == metric) & (seeds["task"] == task) & seeds["regime"].isin([ours, theirs])]
    wide = chosen.pivot_table(index=["group", "policy", "seed"], columns="regime", values="accuracy", sort=False)
    if not {ours, theirs} <= set(wide.columns) or wide.dropna().empty:
        empty("These two have no group and seed in common yet.")
        return
    wide = wide.dropna().assign(difference=lambda w: w[ours] - w[theirs]).reset_index()
    found = pairing(rows, ours, theirs, margin)
    cells = {r.regime: r.variant for r in rows}
    questions = _by_question(store, suite, {name: cells[name] for name in (ours, theirs)}, metric, task)
    st.info(_sentence(found, questions, ours, theirs, margin), icon=":material/balance:")
    title = f"{ours} minus {theirs}: {task}, {metric}"
    order = [_name(pair) for pair in found]
    marks = [_mark(pair, margin) for pair in found]
    by_group = charts.forest(marks, title, "difference, points", order)
    drawn = wide[wide["policy"] == MEAN] if (wide["policy"] == MEAN).any() else wide
    by_seed = charts.dots(
        pd.DataFrame(
            {"row": drawn["group"], "value": 100 * drawn["difference"], "label": "seed " + drawn["seed"].astype(str)}
        ),
        "The same, seed by seed",
        "difference, points",
    )
    left, right = st.columns(2)
    draw_figure(by_group, "by-group", left)
    draw_figure(by_seed, "by-seed", right)
    st.caption(f"The verdict on a pair is that of its panel on the ranking page. {escaped(explained(margin), 2000)}")
    st.header("Question by question")
    if questions is None:
        empty("No question was answered by both.")
    else:
        _draw_questions(questions, ours, theirs)
    downloads(f"{ours}-against-{theirs}", wide, [by_group, by_seed])


def _name(pair: Pairing) -> str:
    return f"{pair.group}, {'mean' if pair.policy == MEAN else pair.policy}"


def _label(pair: Pairing) -> str:
    interval = percent_interval(*pair.interval) if pair.interval else ""
    return f"{POINTS.text(pair.difference)} {interval}".strip()


def _mark(pair: Pairing, margin: float) -> charts.Mark:
    low, high = pair.interval or (pair.difference, pair.difference)
    values = (100 * pair.difference, 100 * low, 100 * high)
    words = _WORDS[pair.verdict].format(points(margin))
    return charts.Mark(_name(pair), *values, pair.verdict, words, _label(pair), f"{pair.seeds} seeds")


_WORDS = {
    GAINS: "is ahead",
    LOSES: "is behind",
    EQUIVALENT: "is neither ahead nor behind by more than {}",
    INCONCLUSIVE: "cannot be told from it",
    **{why: f"is not judged ({why})" for why in WITHHELD},
}


def _by_question(store: Store, suite: str, variants: dict[str, str], metric: str, task: str) -> pd.DataFrame | None:
    """variants: of the two regimes, those of the suite whose cells they are."""
    kind = "sampled" if metric.startswith("avg@") else metric
    frame = store.frame(_QUESTIONS, suite, *variants.values(), kind, task)
    keys = ["group", "policy", "doc_id"]
    wide = frame.pivot_table(index=[*keys, "seed"], columns="regime", values="mean")
    if not set(variants.values()) <= set(wide.columns):
        return None
    wide = wide[[*variants.values()]].set_axis([*variants], axis=1).dropna().groupby(keys).mean()
    prompts = frame.groupby(keys)["prompt"].first()
    return wide.join(prompts).reset_index() if len(wide) else None


def _sentence(found: Sequence[Pairing], questions: pd.DataFrame | None, ours: str, theirs: str, margin: float) -> str:
    heads = [pair for pair in found if pair.policy == MEAN] or found
    parts = [
        f"on {pair.group if pair.policy == MEAN else _name(pair)} {ours} {_WORDS[pair.verdict].format(points(margin))} "
        f"({_label(pair)} points, {pair.seeds} seeds)"
        for pair in heads
    ]
    text = f"Against {theirs}: {'; '.join(parts)}."
    if questions is not None:
        by_question = paired_by_question(questions[ours].to_numpy()[None], questions[theirs].to_numpy()[None])
        askers = len(questions[["group", "policy"]].drop_duplicates())
        each = f", each asked of {askers} policies ({len(questions):,} comparisons)," if askers > 1 else ""
        text += f" Of {questions['doc_id'].nunique():,} questions{each} it does better on {by_question.wins:,}"
        text += f" and worse on {by_question.losses:,}."
    return escaped(text, 3000)


def _draw_questions(questions: pd.DataFrame, ours: str, theirs: str) -> None:
    rows = []
    for (group, policy), part in questions.groupby(["group", "policy"], sort=False):
        found = paired_by_question(part[ours].to_numpy()[None], part[theirs].to_numpy()[None])
        rows.append(
            {
                "group": group,
                "policy": policy,
                "better": found.wins,
                "equal": found.draws,
                "worse": found.losses,
                "difference": 100 * float(found.difference.mean),
                "interval": percent_interval(found.difference.low, found.difference.high),
            }
        )
    st.dataframe(
        pd.DataFrame(rows),
        hide_index=True,
        key="question-table",
        alt="Wins and losses by question",
        column_config={
            "difference": st.column_config.NumberColumn("Difference, points", format="%+.1f"),
            "interval": st.column_config.TextColumn("95 % interval over questions"),
        },
    )
    st.caption(
        "Each question's accuracy is its mean over seeds and repeats. Better, equal, worse: on how many questions, by however "
        "little; the difference is how much, on the mean question. This interval takes the trained checkpoints "
        "as given and speaks of other questions; the one above takes the questions as given and speaks of other seeds."
    )
    with st.expander("Questions with the largest differences"):
        ranked = questions.assign(difference=questions[ours] - questions[theirs])
        ranked = ranked.reindex(ranked["difference"].abs().sort_values(ascending=False, kind="stable").index).head(50)
        shown = ranked[["group", "policy", "doc_id", "prompt", ours, theirs, "difference"]]
        numbers = {name: st.column_config.NumberColumn(format="percent") for name in (ours, theirs, "difference")}
        st.dataframe(
            shown, hide_index=True, key="largest", column_config=numbers, alt="Questions with the largest differences"
        )


PAGE = Page(
    "head-to-head",
    "Head to head",
    ":material/balance:",
    "Two regimes on the same groups, seeds and questions.",
    draw,
    order=20,
)
