"""How much of a gain is its settings: the trials, option by option."""

from __future__ import annotations

import msgspec
import pandas as pd
import streamlit as st

from harness.store.statistic import POINTS
from harness.store.tuning import Tuning
from harness.store.tuning_table import transfer_rows, tuning_rows
from leaderboard import charts
from leaderboard.data import Store
from leaderboard.page import (
    Page,
    choose_one,
    draw_figures,
    draw_regime_links,
    draw_table,
    escape_markdown,
    number_column,
    offer_downloads,
    show_empty,
)

UNTUNED, TRIED, CHOSEN = "defaults", "tried", "chosen"
_GAINS = {
    "published_gain": "Gain with defaults, points",
    "tuned_gain": "Gain tuned, points",
    "change": "Change by tuning, points",
}
_SHARES = {
    "promised": number_column("Lead of the best trial, points", "%+.1f"),
    "kept": number_column("Kept on other seeds, points", "%+.1f"),
    "published": number_column("With defaults, %", "%.1f"),
    "tuned": number_column("Tuned, %", "%.1f"),
    "lowest": number_column("Worst trial, %", "%.1f"),
    "highest": number_column("Best trial, %", "%.1f"),
}
_MOVED = {"first": number_column("First, %", "%.1f"), "second": number_column("Second, %", "%.1f")}
_TITLES = {
    **_GAINS,
    **_SHARES,
    **_MOVED,
    "group": "Group",
    "variant": "Regime",
    "on": "Tuned on",
    "cpu_seconds": number_column("CPU-seconds of tuning", "%.0f"),
    "first_on": "First: tuned on",
    "second_on": "Second: tuned on",
    "apart": "First less second, points",
}


def draw(store: Store, suite: str) -> None:
    tuning = store.tuning(suite)
    tuned = store.tuned_suites() if tuning is None else []
    if tuned:
        st.caption(f"The settings of {escape_markdown(suite)} were not searched. Shown is {escape_markdown(tuned[0])}.")
        suite, tuning = tuned[0], store.tuning(tuned[0])
    if tuning is None:
        show_empty(
            "This suite is not tuned: `tune` in a suite tries each regime's settings first.", "harness run tuned_small"
        )
        return
    _draw_tuned(store, tuning)
    variants = {v.label: v for v in tuning.variants}
    draw_regime_links(store, dict.fromkeys(v.variant for v in tuning.variants))
    name = choose_one("Regime", [*variants], "tuned", [*variants][-1], width=220)
    variant = variants[name]
    baseline = next(v for v in tuning.variants if (v.variant, v.on) == (tuning.baseline, variant.on))
    reference = next(t.score for t in baseline.trials if t.number == 0)
    ended = [t for t in variant.trials if t.score is not None and t.steps == tuning.steps]
    if reference is None or not ended:
        show_empty("No trial of this regime, or not the baseline with its defaults, could be trained to its end.")
        return
    kinds = {0: UNTUNED, variant.chosen: CHOSEN}
    frame = pd.DataFrame(
        [
            {"trial": t.variant, "kind": kinds.get(t.number, TRIED), "gain": 100 * ((t.score or 0.0) - reference)}
            | {option: "none" if value is None else value for option, value in t.settings.items()}
            for t in ended
        ]
    )
    options = [o for o in ended[0].settings if len({str(t.settings[o]) for t in ended}) > 1]
    figures = list[charts.Figure]()
    for option in options:
        title, kind_names = f"{name}: {option}", (UNTUNED, TRIED, CHOSEN)
        figures.append(charts.draw_trials(frame, option, title, "gain, points", kind_names, legend=not figures))
    draw_figures(figures, "sensitivity")
    others = len(variant.trials) - len(ended)
    st.caption(
        f"Each point is a trial that ran to its end ({len(ended)}; {others} were stopped at a rung or failed). Gain: score on the "
        f"tuning groups less that of {tuning.baseline} with its defaults. All options move at once, so a column of points is not "
        "the effect of one option alone. Trials are cells of the suite "
        f"“{tuning.trials_in}”."
    )
    numbers = {o: number_column(None, "%.3g") for o in frame.select_dtypes("float")} | {
        "gain": number_column("gain, points", "%+.1f")
    }
    mixed = {c: frame[c].map(str) for c in frame.select_dtypes("object")}  # numbers and "none": no type of Arrow's
    draw_table(frame.assign(**mixed), "trials", "Trials with their settings and scores", numbers)
    offer_downloads(f"sensitivity-{suite}-{name}", lambda: frame, figures)


def _draw_tuned(store: Store, tuning: Tuning) -> None:
    rows = [msgspec.structs.asdict(r) for r in tuning_rows(store.snapshot, tuning)]
    if not rows:
        st.caption("The table's own cells are not finished yet.")
        return
    frame = pd.DataFrame(rows)
    for gain in _GAINS:
        interval = f"{gain.removesuffix('_gain')}_interval"
        frame[gain] = [POINTS.with_interval(row[gain], row[interval]) for row in rows]
    frame[[*_SHARES]] = frame[[*_SHARES]].astype(float) * 100
    who = [*(["group"] if frame["group"].nunique() > 1 else []), "variant", *(["on"] if frame["on"].any() else [])]
    shown = frame[[*who, *_GAINS, *_SHARES, "trials", "failed", "rollouts", "cpu_seconds"]]
    draw_table(shown, "tuned-table", "With defaults and tuned, by group and regime", _TITLES)
    st.caption(
        "Gain tuned: over the baseline that was tuned under the same budget. Kept: on seeds that chose nothing. Defaults are "
        "published ones, or ours where a regime's paper gives none (`harness regimes` says which)."
    )
    if moved := transfer_rows(store.snapshot, tuning):
        st.header("Transfer")
        st.caption(
            "Settings that different tuning groups chose, used on the same group: accuracies, and the first less the second."
        )
        frame = pd.DataFrame([msgspec.structs.asdict(r) | {"apart": r.apart} for r in moved])
        frame[[*_MOVED]] = frame[[*_MOVED]].astype(float) * 100
        shown = frame[["group", "variant", "first_on", "first", "second_on", "second", "apart"]]
        draw_table(shown, "transfer-table", "Settings tuned on one group, used on another", _TITLES)


PAGE = Page(
    "sensitivity",
    "Settings tried",
    ":material/tune:",
    "How much of a gain is its settings: every trial of a tuned suite, under the same budget for every regime.",
    draw,
    order=40,
    figures=False,
    part_of="ranking",
)
