"""How much of a regime's gain is its settings: the trials of a tuned suite, option by option."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from harness.store.tuning import Trial, Tuned, Tuning
from leaderboard import charts
from leaderboard.data import Store
from leaderboard.parts import choose, downloads, draw_figures, empty
from leaderboard.view import Page, View

PUBLISHED, TRIED, CHOSEN = "as published", "tried", "chosen"


def draw(store: Store, suite: str, view: View) -> None:
    """The table of the suite, then a panel per option of one regime: gain against the option's value, a point per trial."""
    tuning = store.tuning(suite)
    if tuning is None:
        empty(
            "This suite is not tuned: `tune` in a suite tries each regime's settings first.", "harness run tuned_small"
        )
        return
    _summary(store, tuning)
    names = [v.label for v in tuning.variants]
    name = choose("Regime", names, "tuned", names[-1], width=220)
    variant = next(v for v in tuning.variants if v.label == name)
    reference = _published(next(v for v in tuning.variants if (v.variant, v.on) == (tuning.baseline, variant.on)))
    ended = [t for t in variant.trials if t.score is not None and t.steps == tuning.steps]
    if reference is None or not ended:
        empty("No trial of this regime, or not the baseline as published, could be trained to its end.")
        return
    frame = _points(variant, ended, reference)
    options = [o for o in ended[0].settings if len({str(t.settings[o]) for t in ended}) > 1]
    figures = [charts.trials(frame, o, f"{name}: {o}", "gain, points", (PUBLISHED, TRIED, CHOSEN)) for o in options]
    draw_figures(figures, "sensitivity")
    others = len(variant.trials) - len(ended)
    st.caption(
        f"Each point is a trial that ran to its end ({len(ended)}; {others} were stopped at a rung or failed). Gain: score on the "
        f"tuning groups less that of {tuning.baseline} as published. All options move at once, so a column of points is not the "
        "effect of one option alone. Trials are cells of the suite "
        f"“{tuning.trials_in}”."
    )
    numbers = {o: st.column_config.NumberColumn(format="%.3g") for o in frame.select_dtypes("float")}
    mixed = {c: frame[c].map(str) for c in frame.select_dtypes("object")}  # numbers and "none": no type of Arrow's
    st.dataframe(
        frame.assign(**mixed),
        hide_index=True,
        key="trials",
        alt="Trials with their settings and scores",
        placeholder="–",
        column_config={**numbers, "gain": st.column_config.NumberColumn("gain, points", format="%+.1f")},
    )
    downloads(f"sensitivity-{suite}-{name}", frame, figures)


def _summary(store: Store, tuning: Tuning) -> None:
    rows = store.tuning_rows(tuning)
    if rows.empty:
        st.caption("The table's own cells are not finished yet.")
        return
    percent = {
        "published": "As published, %",
        "tuned": "Tuned, %",
        "lowest": "Worst trial, %",
        "highest": "Best trial, %",
    }
    gains = {
        "published_gain": "Gain as published, points",
        "tuned_gain": "Gain tuned, points",
        "change": "Change by tuning, points",
    }
    points = {"promised": "Lead of the best trial", "kept": "Kept on other seeds"}
    st.dataframe(
        rows,
        hide_index=True,
        key="tuned-table",
        alt="As published and tuned, by group and regime",
        placeholder="–",
        column_order=[
            *(["group"] if rows["group"].nunique() > 1 else []),
            "variant",
            *(["on"] if "on" in rows else []),
            *gains,
            *points,
            *percent,
            *_LAST,
        ],
        column_config={
            **{k: st.column_config.NumberColumn(v, format="%.1f") for k, v in percent.items()},
            **{k: st.column_config.NumberColumn(f"{v}, points", format="%+.1f") for k, v in points.items()},
            **gains,
            "group": "Group",
            "variant": "Regime",
            "cpu_seconds": st.column_config.NumberColumn("CPU-seconds of tuning", format="%.0f"),
            "on": "Tuned on",
        },
    )
    moved = store.transfer_rows(tuning)
    if moved.empty:
        return
    st.subheader("Transfer")
    st.caption(
        "Settings that different tuning groups chose, used on the same group: accuracies, and the first less the second."
    )
    st.dataframe(
        moved,
        hide_index=True,
        key="transfer-table",
        alt="Settings tuned on one group, used on another",
        placeholder="–",
        column_order=["group", "variant", "first_on", "first", "second_on", "second", "apart"],
        column_config={
            "group": "Group",
            "variant": "Regime",
            "first_on": "First: tuned on",
            "first": st.column_config.NumberColumn("First, %", format="%.1f"),
            "second_on": "Second: tuned on",
            "second": st.column_config.NumberColumn("Second, %", format="%.1f"),
            "apart": "First less second, points",
        },
    )
    st.caption("Gain tuned: over the baseline that was tuned under the same budget. Kept: on seeds that chose nothing.")


_LAST = ("trials", "failed", "rollouts", "cpu_seconds")


def _published(variant: Tuned) -> float | None:
    return next(t.score for t in variant.trials if t.number == 0)


def _points(variant: Tuned, trials: Sequence[Trial], reference: float) -> pd.DataFrame:
    """A row per trial: its settings, `gain` in points, what it is, and its name."""

    def kind(trial: Trial) -> str:
        return CHOSEN if trial.number == variant.chosen else PUBLISHED if trial.number == 0 else TRIED

    return pd.DataFrame(
        [
            {"trial": t.variant, "kind": kind(t), "gain": 100 * ((t.score or 0.0) - reference), **_said(t)}
            for t in trials
        ]
    )


def _said(trial: Trial) -> dict[str, object]:
    return {option: "none" if value is None else value for option, value in trial.settings.items()}


PAGE = Page(
    "sensitivity",
    "Sensitivity",
    ":material/tune:",
    "How much of a gain is its settings: every trial of a tuned suite, under the same budget for every regime.",
    draw,
    order=40,
    figures=False,
)
