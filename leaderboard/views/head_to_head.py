"""Two regimes on the same cells: by group and seed, and question by question."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from harness.statistics import holm, paired, paired_by_question
from harness.store.table import MEAN
from leaderboard import charts
from leaderboard.data import Store
from leaderboard.frames import baseline_of
from leaderboard.parts import choose, downloads, empty, escaped, percent_interval
from leaderboard.view import Page, View
from leaderboard.words import GAINS, LOSES, NOTHING, UNCLEAR, verdict

_QUESTIONS = """
SELECT c.group_name AS "group", c.regime, c.seed, s.policy, s.task, s.doc_id,
    avg((s.verdict = 'right')::INT) FILTER (s.verdict <> 'invalid') AS mean, any_value(substr(s.prompt, 1, 160)) AS prompt
FROM current_cells c JOIN samples s USING (suite, cell)
WHERE c.suite = ? AND c.kind = 'cell' AND c.state = 'done' AND c.regime IN (?, ?) AND s.metric = ? AND s.task = ?
GROUP BY ALL
"""


def draw(store: Store, suite: str, view: View) -> None:
    """Selectors, differences per group, per seed, per question."""
    seeds = store.seeds(suite)
    regimes = list(dict.fromkeys(seeds["regime"]))
    if len(regimes) < 2:
        empty("Two regimes must have finished before they can be compared.", f"harness status {suite}")
        return
    means = seeds[seeds["policy"] == MEAN].groupby("regime")["accuracy"].mean()
    best = str(means.idxmax()) if len(means) else regimes[-1]
    baseline = baseline_of(seeds, regimes[0])
    with st.container(horizontal=True, gap="small"):
        ours = choose("Regime", regimes, "a", best if best != baseline else regimes[-1], width=190)
        theirs = choose("against", regimes, "b", baseline, width=190)
        metric = choose("Metric", list(dict.fromkeys(seeds["metric"])), "metric", width=130)
        task = choose("Benchmark", list(dict.fromkeys(seeds["task"])), "task", width=160)
    if ours == theirs:
        empty("A regime against itself: choose another one.")
        return
    rows = seeds[(seeds["metric"] == metric) & (seeds["task"] == task)]
    wide = rows[rows["regime"].isin([ours, theirs])].pivot_table(
        index=["group", "policy", "seed"], columns="regime", values="accuracy", sort=False
    )
    if not {ours, theirs} <= set(wide.columns) or wide.dropna().empty:
        empty("These two have no group and seed in common yet.")
        return
    wide = wide.dropna().assign(difference=lambda w: w[ours] - w[theirs]).reset_index()
    groups = _by_group(wide, ours, theirs)
    questions = _by_question(store, suite, ours, theirs, metric, task)
    st.info(_sentence(groups, questions, ours, theirs), icon=":material/balance:")
    order = list(groups["regime"])
    title = f"{ours} minus {theirs}: {task}, {metric}"
    marks = [
        charts.Mark(r.regime, r.value, r.low, r.high, r.verdict, r.label, f"{r.seeds} seeds")
        for r in groups.itertuples()
    ]
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
    left.vega_lite_chart(spec=by_group, key="by-group")
    right.vega_lite_chart(spec=by_seed, key="by-seed")
    st.subheader("Question by question")
    if questions is None:
        empty("No question was answered by both.")
    else:
        _draw_questions(questions, ours, theirs)
    downloads(f"{ours}-against-{theirs}", wide, [by_group, by_seed])


def _by_group(wide: pd.DataFrame, ours: str, theirs: str) -> pd.DataFrame:
    rows = []
    for (group, policy), part in wide.groupby(["group", "policy"], sort=False):
        found = paired(part[ours].to_numpy(), part[theirs].to_numpy())
        mean, low, high = (100 * float(v) for v in (found.mean, found.low, found.high))
        known = low == low
        rows.append(
            {
                "regime": f"{group}, mean" if policy == MEAN else f"{group}, {policy}",
                "value": mean,
                "low": low if known else mean,
                "high": high if known else mean,
                "mean": policy == MEAN,
                "label": f"{mean:+.1f} {percent_interval(found.low, found.high)}".strip(),
                "p": float(found.p),
                "seeds": len(part),
            }
        )
    found_rows = pd.DataFrame(rows)
    adjusted = holm(found_rows["p"].to_numpy())
    judged = zip(found_rows["value"], found_rows["low"], found_rows["high"], adjusted, found_rows["seeds"], strict=True)
    return found_rows.assign(
        verdict=[verdict(v, low, high, p, True) if n > 1 else NOTHING for v, low, high, p, n in judged]
    )


def _by_question(store: Store, suite: str, ours: str, theirs: str, metric: str, task: str) -> pd.DataFrame | None:
    kind = "greedy" if metric == "greedy" else "sampled"
    frame = store.frame(_QUESTIONS, suite, ours, theirs, kind, task)
    keys = ["group", "policy", "doc_id"]
    wide = frame.pivot_table(index=[*keys, "seed"], columns="regime", values="mean")
    if not {ours, theirs} <= set(wide.columns):
        return None
    wide = wide.dropna().groupby(keys).mean()
    prompts = frame.groupby(keys)["prompt"].first()
    return wide.join(prompts).reset_index() if len(wide) else None


def _sentence(groups: pd.DataFrame, questions: pd.DataFrame | None, ours: str, theirs: str) -> str:
    heads = groups[groups["mean"]] if groups["mean"].any() else groups
    parts = []
    for row in heads.itertuples():
        word = {
            GAINS: "is ahead",
            LOSES: "is behind",
            UNCLEAR: f"may be {'ahead' if row.value > 0 else 'behind'}",
        }.get(row.verdict, "cannot be told from it")
        parts.append(f"on {row.regime.removesuffix(', mean')} {ours} {word} ({row.label} points, {row.seeds} seeds)")
    text = f"Against {theirs}: {'; '.join(parts)}."
    if questions is not None:
        found = paired_by_question(questions[ours].to_numpy()[None], questions[theirs].to_numpy()[None])
        text += f" Of {len(questions):,} questions asked of each policy it does better on {found.wins:,}"
        text += f" and worse on {found.losses:,}."
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
                "sign test p": found.sign_p,
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
            "sign test p": st.column_config.NumberColumn(format="%.3g"),
        },
    )
    st.caption(
        "Each question's accuracy is its mean over seeds and repeats. This interval takes the trained checkpoints "
        "as given and speaks of "
        "other questions; the one above takes the questions as given and speaks of other seeds."
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
    "head-to-head", "Head to head", ":material/balance:", "Two regimes on the same groups, seeds and questions.", draw
)
