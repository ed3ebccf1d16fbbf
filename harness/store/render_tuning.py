"""What tuning changed, as text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

import numpy as np

from harness.store.statistic import PERCENT, POINTS
from harness.store.text_page import TextPage
from harness.store.tuning import Tuning
from harness.store.tuning_table import TuningResults, TuningRow

_TUNED_HEADS = (
    "regime", "defaults", "gain", "tuned", "gain", "change", "over trials", "lead: promised", "kept", "CPU-s",
)  # fmt: skip


_TUNED_NOTE = (
    "gain: over the baseline with its defaults, and of tuned regimes over the *tuned* baseline; change: tuned less defaults. "
    "Defaults are published ones, or ours where a regime's paper gives none (`harness regimes` says which). Over trials: lowest to "
    "highest score on the tuning groups. Lead of the best trial over the defaults: promised by the trials, and kept on seeds that "
    "chose nothing. Points"
)


def render_tuning(page: TextPage, results: TuningResults) -> None:
    """Print what tuning gave: a table a group, what was chosen, how far the best trial was lucky, and the transfer."""
    tuning = results.tuning
    rows = results.rows
    first = [row for row in rows if row.group == rows[0].group]
    trials = len(tuning.variants[0].trials)
    page.say("")
    page.say(f"Tuned under an equal budget: {trials} trials each, {tuning.metric} of {tuning.task}")
    for group, members in groupby(rows, key=attrgetter("group")):
        page.print_table(group, _TUNED_HEADS, map(_make_tuned_cells, members))
    for row in first:
        page.say(_write_chosen(tuning, row))
    optimism = _write_optimism(first, trials)
    if optimism:
        page.say(optimism)
    # imported results keep no trials
    trials_in = "" if "@" in tuning.suite else f"; trials are cells of the suite {tuning.trials_in}"
    page.say(_TUNED_NOTE + trials_in)
    if results.transfer:
        page.say("")
        page.say("Transfer: settings that different tuning groups chose, used on the same group")
    for (group, one, other), moved in groupby(results.transfer, key=attrgetter("group", "first_on", "second_on")):
        heads = ("regime", f"tuned on {one}", f"tuned on {other}", "first less second")
        lines = [(row.variant, PERCENT.text(row.first), PERCENT.text(row.second), row.apart) for row in moved]
        page.print_table(group, heads, lines)


def _write_chosen(tuning: Tuning, row: TuningRow) -> str:
    """Say which trial of a regime was chosen, and what it changes of the defaults."""
    chosen = next(one for one in tuning.variants if (one.variant, one.on) == (row.variant, row.on))
    defaults = next(trial.settings for trial in chosen.trials if trial.number == 0)
    changes = [f"{name} {defaults[name]} -> {value}" for name, value in row.settings.items() if value != defaults[name]]
    if not changes:
        return f"{chosen.label}: the defaults were best"
    return f"{chosen.label}: trial {chosen.chosen}: {', '.join(changes)}"


def _write_optimism(rows: Sequence[TuningRow], trials: int) -> str:
    """Say how much of the best trial's lead was luck, mean over the choices; empty where no other seeds have shown it."""
    leads = [(row.promised, row.kept) for row in rows if row.kept is not None]
    if not leads:
        return ""
    promised, kept = (float(np.mean(each)) for each in zip(*leads, strict=True))
    return (
        f"Optimism of choosing the best of {trials} trials, mean of {len(leads)} choices: a lead of {POINTS.text(promised)} "
        f"points promised, {POINTS.text(kept)} kept, {POINTS.text(promised - kept)} of luck."
    )


def _make_tuned_cells(row: TuningRow) -> list[str]:
    """Return a row's cells, in the order of `_TUNED_HEADS`."""
    regime = f"{row.variant}, tuned on {row.on}" if row.on else row.variant
    published_gain = POINTS.with_interval(row.published_gain, row.published_interval)
    tuned_gain = POINTS.with_interval(row.tuned_gain, row.tuned_interval)
    change = POINTS.with_interval(row.change, row.change_interval)
    over_trials = f"{PERCENT.text(row.lowest)} to {PERCENT.text(row.highest)}"
    if row.failed:
        over_trials += f", {row.failed} failed"
    return [
        regime,
        PERCENT.text(row.published),
        published_gain,
        PERCENT.text(row.tuned),
        tuned_gain,
        change,
        over_trials,
        POINTS.text(row.promised),
        POINTS.text(row.kept),
        f"{row.cpu_seconds:,.0f}",
    ]
