"""Two regimes on the same cells, by group, seed and question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pandas as pd
import streamlit as st

from harness.statistics import mean_interval
from harness.statistics.comparison import EQUIVALENT, GAINS, INCONCLUSIVE, LOSES, WITHHELD
from harness.store.ranking import Pairing, compare_pair
from harness.store.sentences import count_of, explain_verdicts, joined, write_points
from harness.store.statistic import POINTS, to_bounds
from harness.store.table import MEAN
from leaderboard import charts
from leaderboard.data import Store
from leaderboard.page import (
    Page,
    choose_margin,
    choose_one,
    draw_figure,
    draw_forests,
    draw_regime_links,
    draw_table,
    escape_markdown,
    link_regimes,
    number_column,
    offer_downloads,
    show_empty,
    show_unfinished,
    write_linked,
)
from leaderboard.specification import Figure

_QUESTIONS = """
SELECT c.group_name AS "group", c.regime, c.seed, s.policy, s.task, s.doc_id, s.value AS mean,
    substr(s.prompt, 1, 160) AS prompt
FROM current_cells c JOIN questions s USING (suite, cell)
WHERE c.suite = ? AND c.kind = 'cell' AND c.state = 'done' AND c.regime IN (?, ?) AND s.metric = ? AND s.task = ?
"""
_WORDS = {
    GAINS: "is ahead",
    LOSES: "is behind",
    EQUIVALENT: "is neither ahead nor behind by more than {}",
    INCONCLUSIVE: "cannot be told from it",
    **{why: f"is not judged ({why})" for why in WITHHELD},
}


# Groups whose numbers stand in the sentence; of more, the figure has them
_TOLD = 2


class _Chosen(NamedTuple):
    """What the reader chose to compare."""

    ours: str
    theirs: str
    metric: str
    task: str
    margin: float


def draw(store: Store, suite: str) -> None:
    """Draw the page."""
    seed_rows = store.list_seeds(suite)
    seeds = pd.DataFrame([msgspec.structs.asdict(row) for row in seed_rows])
    regimes = list(dict.fromkeys(seeds["regime"])) if len(seeds) else []
    if len(regimes) < 2:
        show_unfinished(store, suite, "Two regimes must have finished before they can be compared.")
        return
    chosen = _choose_pair(store, suite, seeds, regimes)
    if chosen.ours == chosen.theirs:
        show_empty("A regime against itself: choose another one.")
        return
    wide = _pair_seeds(seeds, chosen)
    if wide.empty:
        show_empty("These two have no group and seed in common yet.")
        return
    rows = [row for row in seed_rows if row.metric == chosen.metric]
    compared = compare_pair(rows, chosen.ours, chosen.theirs, chosen.margin)
    pairs = [pair for pair in compared if pair.task == chosen.task]
    variants = {row.regime: row.variant for row in rows}
    of_both = {name: variants[name] for name in (chosen.ours, chosen.theirs)}
    questions = _compare_questions(store, suite, of_both, chosen.metric, chosen.task)
    links = link_regimes(store, (chosen.ours, chosen.theirs))
    sentence = _write_sentence(pairs, questions, chosen)
    st.info(write_linked(sentence, links, 3000), icon=":material/balance:")
    forest, dots = _make_figures(pairs, wide, chosen)
    draw_forests([forest])
    draw_figure(dots, "difference")
    st.caption(
        "Bars: the 95 % interval of one difference by itself, not corrected. Marks: its verdict, which is corrected."
    )
    explained = escape_markdown(explain_verdicts(chosen.margin), 2000)
    with st.expander("How verdicts are made"):
        st.markdown(f"The verdict on a pair is the one that its panel has on the page One suite. {explained}")
    draw_regime_links(store, links)
    st.header("Question by question")
    if questions is None:
        show_empty("No question was answered by both.")
    else:
        _draw_questions(questions, chosen.ours, chosen.theirs)
    offer_downloads(f"{chosen.ours}-against-{chosen.theirs}", lambda: wide, [forest, dots])


def _choose_pair(store: Store, suite: str, seeds: pd.DataFrame, regimes: Sequence[str]) -> _Chosen:
    """Draw the page's choices; by default the best regime against the baseline."""
    baseline = next(iter(seeds["baseline"].dropna().mode()), regimes[0])
    ordered = store.order_regimes(suite, regimes, baseline)
    best = ordered[0]
    metrics = list(dict.fromkeys(seeds["metric"]))
    tasks = list(dict.fromkeys(seeds["task"]))
    with st.container(horizontal=True, gap="small"):
        ours = choose_one("Regime", ordered, "a", best, width=170)
        theirs = choose_one("against", ordered, "b", baseline, width=170)
        metric = choose_one("Metric", metrics, "metric", width=120)
        task = choose_one("Benchmark", tasks, "task", width=140)
        margin = choose_margin()
    return _Chosen(ours, theirs, metric, task, margin)


def _pair_seeds(seeds: pd.DataFrame, chosen: _Chosen) -> pd.DataFrame:
    """Return both accuracies and their difference by group, policy and seed, where both have one."""
    here = (seeds["metric"] == chosen.metric) & (seeds["task"] == chosen.task)
    own = seeds[here]
    wide = own.pivot_table(index=["group", "policy", "seed"], columns="regime", values="accuracy", sort=False)
    wide = wide.reindex(columns=[chosen.ours, chosen.theirs]).dropna()
    difference = wide[chosen.ours] - wide[chosen.theirs]
    return wide.assign(difference=difference).reset_index()


def _make_figures(pairs: Sequence[Pairing], wide: pd.DataFrame, chosen: _Chosen) -> tuple[charts.Forest, Figure]:
    """Return the differences with their intervals, and the same seed by seed, of the means where there are some."""
    title = f"{chosen.ours} minus {chosen.theirs}: {chosen.task}, {chosen.metric}"
    unit = "difference, points"
    marks = [_make_mark(pair, chosen.margin) for pair in pairs]
    forest = charts.Forest(marks, title, unit)
    means = wide[wide["policy"] == MEAN]
    drawn = wide if means.empty else means
    labels = "seed " + drawn["seed"].astype(str)
    each = pd.DataFrame({"row": drawn["group"], "value": 100 * drawn["difference"], "label": labels})
    return forest, charts.draw_dots(each, "The same, seed by seed", unit)


def _name_pair(pair: Pairing) -> str:
    return f"{pair.group}, {'mean' if pair.policy == MEAN else pair.policy}"


def _write_difference(pair: Pairing) -> str:
    return POINTS.with_interval(pair.difference, pair.interval)


def _make_mark(pair: Pairing, margin: float) -> Figure:
    """Return a difference as a mark of the figure, in points."""
    low, high = pair.interval or (pair.difference, pair.difference)
    words = _WORDS[pair.verdict].format(write_points(margin))
    return {
        "name": _name_pair(pair),
        "value": 100 * pair.difference,
        "low": 100 * low,
        "high": 100 * high,
        "verdict": pair.verdict,
        "words": words,
        "label": _write_difference(pair),
        "detail": count_of(pair.seeds, "seed"),
    }


def _compare_questions(
    store: Store, suite: str, variants: dict[str, str], metric: str, task: str
) -> pd.DataFrame | None:
    """Return both accuracies of each question and their difference, means over the seeds that both have; None without any.

    variants: by the name of each regime, as the store has it.
    """
    kind = "sampled" if metric.startswith("avg@") else metric
    frame = store.query_frame(_QUESTIONS, suite, *variants.values(), kind, task)
    keys = ["group", "policy", "doc_id"]
    stored = [*variants.values()]
    wide = frame.pivot_table(index=[*keys, "seed"], columns="regime", values="mean").reindex(columns=stored)
    ours, theirs = variants
    of_both = wide.set_axis([ours, theirs], axis=1).dropna()
    means = of_both.groupby(keys).mean()
    # rounding of the means must not decide which is better
    means["difference"] = (means[ours] - means[theirs]).round(12)
    if not len(means):
        return None
    prompts = frame.groupby(keys)["prompt"].first()
    return means.join(prompts).reset_index()


def _write_sentence(pairs: Sequence[Pairing], questions: pd.DataFrame | None, chosen: _Chosen) -> str:
    """Return what the differences say in one sentence, of the means where there are some."""
    heads = [pair for pair in pairs if pair.policy == MEAN] or pairs
    margin = write_points(chosen.margin)
    parts = []
    for verdict in dict.fromkeys(pair.verdict for pair in heads):
        where = []
        for pair in heads:
            if pair.verdict == verdict:
                place = pair.group if pair.policy == MEAN else _name_pair(pair)
                numbers = f" ({_write_difference(pair)} points, {count_of(pair.seeds, 'seed')})"
                where.append(place + numbers if len(heads) <= _TOLD else place)
        parts.append(f"on {joined(where)} {chosen.ours} {_WORDS[verdict].format(margin)}")
    text = f"Against {chosen.theirs}: {'; '.join(parts)}."
    return text if questions is None else text + _count_better(questions)


def _count_better(questions: pd.DataFrame) -> str:
    """Say on how many questions the regime does better and worse."""
    difference = questions["difference"]
    better, worse = (difference > 0).sum(), (difference < 0).sum()
    askers = len(questions[["group", "policy"]].drop_duplicates())
    each = f", each asked of {askers} policies ({len(questions):,} comparisons)," if askers > 1 else ""
    asked = questions["doc_id"].nunique()
    return f" Of {asked:,} questions{each} it does better on {better:,} and worse on {worse:,}."


def _draw_questions(questions: pd.DataFrame, ours: str, theirs: str) -> None:
    """Draw on how many questions each policy does better, and the questions that differ most."""
    rows = []
    for (group, policy), part in questions.groupby(["group", "policy"], sort=False):
        difference = part["difference"]
        mean = mean_interval(difference)
        counts = (difference > 0).sum(), (difference == 0).sum(), (difference < 0).sum()
        interval = POINTS.interval(to_bounds(mean))
        rows.append((group, policy, *counts, 100 * float(mean.mean), interval))
    columns = ["group", "policy", "better", "equal", "worse", "difference", "interval"]
    titles_of_numbers = {
        "difference": number_column("Difference, points", "%+.1f"),
        "interval": "95 % interval over questions",
    }
    titles = {name: name.capitalize() for name in columns} | titles_of_numbers
    table = pd.DataFrame(rows, columns=columns)
    draw_table(table, "question-table", "Wins and losses by question", titles)
    st.caption(
        "Each question's accuracy is its mean over seeds and repeats. Better, equal, worse: on how many questions, by however "
        "little; the difference is how much, on the mean question. This interval is over "
        "questions, for these checkpoints; the one above is over seeds, for these questions."
    )
    with st.expander("Questions with the largest differences"):
        ranked = questions.sort_values("difference", key=abs, ascending=False, kind="stable").head(50)
        names = [ours, theirs, "difference"]
        titles = {name: number_column(None, "percent") for name in names}
        largest = ranked[["group", "policy", "doc_id", "prompt", *names]]
        draw_table(largest, "largest", "Questions with the largest differences", titles)


PAGE = Page(
    "head-to-head",
    "Head to head",
    ":material/balance:",
    "Two regimes on the same groups, seeds and questions.",
    draw,
    order=20,
)
