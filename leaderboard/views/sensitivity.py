"""How much of a gain is its settings: the trials, option by option."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import pandas as pd
import streamlit as st

from harness.store.statistic import POINTS
from harness.store.tuning import Trial, Tuned, Tuning
from harness.store.tuning_table import TransferRow, transfer_rows, tuning_rows
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
from leaderboard.specification import Figure

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
    """Draw the page: what tuning gave, then one regime's trials option by option."""
    tuning = store.find_tuning(suite)
    tuned = store.tuned_suites() if tuning is None else []
    if tuned:
        other = tuned[0]
        st.caption(f"The settings of {escape_markdown(suite)} were not searched. Shown is {escape_markdown(other)}.")
        suite, tuning = other, store.find_tuning(other)
    if tuning is None:
        show_empty(
            "This suite is not tuned: `tune` in a suite tries each regime's settings first.", "harness run tuned_small"
        )
        return
    _draw_tuned(store, tuning)
    draw_regime_links(store, dict.fromkeys(variant.variant for variant in tuning.variants))
    variants = {variant.label: variant for variant in tuning.variants}
    *_, last = variants
    name = choose_one("Regime", [*variants], "tuned", last, width=220)
    variant = variants[name]
    reference = _find_reference(tuning, variant)
    ended = [trial for trial in variant.trials if trial.score is not None and trial.steps == tuning.steps]
    if reference is None or not ended:
        show_empty("No trial of this regime, or not the baseline with its defaults, could be trained to its end.")
        return
    frame = _list_trials(variant, ended, reference)
    figures = _draw_options(frame, _find_varied(ended), name)
    others = len(variant.trials) - len(ended)
    st.caption(
        f"Each point is a trial that ran to its end ({len(ended)}; {others} were stopped at a rung or failed). Gain: score on the "
        f"tuning groups less that of {tuning.baseline} with its defaults. All options move at once, so a column of points is not "
        "the effect of one option alone. Trials are cells of the suite "
        f"“{tuning.trials_in}”."
    )
    _draw_trials(frame)
    offer_downloads(f"sensitivity-{suite}-{name}", lambda: frame, figures)


def _find_reference(tuning: Tuning, variant: Tuned) -> float | None:
    """Return the score of the baseline with its defaults, on the groups that the variant was tuned on; None where it failed."""
    baseline = next(one for one in tuning.variants if (one.variant, one.on) == (tuning.baseline, variant.on))
    return next(trial.score for trial in baseline.trials if trial.number == 0)


def _list_trials(variant: Tuned, ended: Sequence[Trial], reference: float) -> pd.DataFrame:
    """Return a row for each trial: its kind, its gain over the reference in points, and a column for each option."""
    kinds = {0: UNTUNED, variant.chosen: CHOSEN}
    rows = []
    for trial in ended:
        gain = 100 * ((trial.score or 0.0) - reference)
        row = {"trial": trial.variant, "kind": kinds.get(trial.number, TRIED), "gain": gain}
        for option, value in trial.settings.items():
            row[option] = "none" if value is None else value
        rows.append(row)
    return pd.DataFrame(rows)


def _find_varied(ended: Sequence[Trial]) -> list[str]:
    """Return the options of which the trials had several values."""
    varied = []
    for option in ended[0].settings:
        values = {str(trial.settings[option]) for trial in ended}
        if len(values) > 1:
            varied.append(option)
    return varied


def _draw_options(frame: pd.DataFrame, options: Sequence[str], name: str) -> list[Figure]:
    """Draw the gains against each option; return the figures. name: of the regime."""
    kinds = (UNTUNED, TRIED, CHOSEN)
    figures = list[Figure]()
    for option in options:
        title = f"{name}: {option}"
        # the first figure has the legend of all
        figure = charts.draw_trials(frame, option, title, "gain, points", kinds, legend=not figures)
        figures.append(figure)
    draw_figures(figures, "sensitivity")
    return figures


def _draw_trials(frame: pd.DataFrame) -> None:
    """Draw the trials as a table."""
    numbers = {option: number_column(None, "%.3g") for option in frame.select_dtypes("float")}
    numbers["gain"] = number_column("gain, points", "%+.1f")
    # numbers and "none": no type of Arrow's
    mixed = {option: frame[option].map(str) for option in frame.select_dtypes("object")}
    shown = frame.assign(**mixed)
    draw_table(shown, "trials", "Trials with their settings and scores", numbers)


def _draw_tuned(store: Store, tuning: Tuning) -> None:
    """Draw what each regime gains with its defaults and tuned, and how settings carry over to other groups."""
    rows = [msgspec.structs.asdict(row) for row in tuning_rows(store.snapshot, tuning)]
    if not rows:
        st.caption("The table's own cells are not finished yet.")
        return
    frame = pd.DataFrame(rows)
    for gain in _GAINS:
        interval = f"{gain.removesuffix('_gain')}_interval"
        frame[gain] = [POINTS.with_interval(row[gain], row[interval]) for row in rows]
    _to_percent(frame, _SHARES)
    who = ["variant"]
    if frame["group"].nunique() > 1:
        who.insert(0, "group")
    if frame["on"].any():
        who.append("on")
    shown = frame[[*who, *_GAINS, *_SHARES, "trials", "failed", "rollouts", "cpu_seconds"]]
    draw_table(shown, "tuned-table", "With defaults and tuned, by group and regime", _TITLES)
    st.caption(
        "Gain tuned: over the baseline that was tuned under the same budget. Kept: on seeds that chose nothing. Defaults are "
        "published ones, or ours where a regime's paper gives none (`harness regimes` says which)."
    )
    moved = transfer_rows(store.snapshot, tuning)
    if moved:
        _draw_transfer(moved)


def _draw_transfer(moved: Sequence[TransferRow]) -> None:
    """Draw what settings give on a group that they were not tuned on."""
    st.header("Transfer")
    st.caption(
        "Settings that different tuning groups chose, used on the same group: accuracies, and the first less the second."
    )
    rows = [msgspec.structs.asdict(row) | {"apart": row.apart} for row in moved]
    frame = pd.DataFrame(rows)
    _to_percent(frame, _MOVED)
    shown = frame[["group", "variant", "first_on", "first", "second_on", "second", "apart"]]
    draw_table(shown, "transfer-table", "Settings tuned on one group, used on another", _TITLES)


def _to_percent(frame: pd.DataFrame, columns: Iterable[str]) -> None:
    """Turn fractions into percent, in place; a missing one becomes NaN."""
    names = [*columns]
    frame[names] = frame[names].astype(float) * 100


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
