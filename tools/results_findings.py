"""What all reference results together show, what they exclude, and what they could not have shown: parts of docs/results.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.statistics import MARGIN
from harness.statistics.comparison import EQUIVALENT
from harness.store.equal_cost import FOUND
from harness.store.finished import ShowRow
from harness.store.pace_table import choose_rows, make_pace_line
from harness.store.sentences import write_rate
from harness.store.statistic import POINTS

# A pace between these is called the baseline's
PACES = (0.9, 1.1)


@dataclass(frozen=True)
class SuiteRows:
    """One suite's rows of the mean of policies and the first metric, of lines that share and are compared. training: its
    settings."""

    name: str
    training: Mapping[str, Any]
    rows: Sequence[ShowRow]

    def describe_settings(self, row: ShowRow) -> str:
        """Return e.g. `rate 1e-4, 25 steps of 12 questions`; a tuned line has a rate and a number of questions of its own."""
        if ", tuned" in row.regime:
            return f"rate as tuned, {self.training['steps']} steps"
        rate = write_rate(self.training["learning_rate"])
        return f"rate {rate}, {self.training['steps']} steps of {self.training['prompts']} questions"


def describe_found(suites: Sequence[SuiteRows]) -> str:
    """List the gains that are found: also at equal cost, and over the baseline at its best rate in the suite."""
    lines = []
    for suite in suites:
        for row in suite.rows:
            if row.found == FOUND:
                rates = (
                    f"{row.baseline_rates} rates of the baseline"
                    if row.baseline_rates > 1
                    else "one rate of the baseline"
                )
                gain = POINTS.with_interval(row.gain, row.gain_interval)
                equal = POINTS.with_interval(row.equal_cost_gain, row.equal_cost_interval)
                lines.append(
                    f"- {row.regime} on `{row.group}` of `{suite.name}` ({suite.describe_settings(row)}; {rates}): {gain} over the "
                    f"baseline, {equal} at equal cost (over {row.equal_cost_baseline})"
                )
    return "\n".join(lines) if lines else "- nothing"


def describe_found_paces(suites: Sequence[SuiteRows]) -> str:
    """List the paces whose 95 % interval leaves out 1, with their reach."""
    lines = []
    for suite in suites:
        for row in suite.rows:
            if row.kappa is not None and not row.kappa_interval[0] <= 1 <= row.kappa_interval[1]:
                line = make_pace_line(row)
                lines.append(
                    f"- {row.regime} on `{row.group}` of `{suite.name}` ({suite.describe_settings(row)}; {row.pace_curve}): "
                    f"kappa {line.kappa}, reach {line.reach}"
                )
    return "\n".join(lines) if lines else "- nothing"


def describe_excluded(suites: Sequence[SuiteRows]) -> str:
    """Say in how many comparisons an effect beyond the margin is excluded, of the gain, of harm, of the pace and of the reach."""
    rows = [row for suite in suites for row in suite.rows]
    judged = [row for row in rows if row.gain_interval]
    none = sum(row.verdict == EQUIVALENT for row in judged)
    harmless = sum(row.gain_interval[0] >= -MARGIN for row in judged)
    paced = [row for row in rows if row.kappa is not None]
    alike = sum(PACES[0] <= row.kappa_interval[0] and row.kappa_interval[1] <= PACES[1] for row in paced)
    ended = [row for row in rows if row.reach is not None]
    level = sum(row.reach_interval[0] >= -MARGIN and row.reach_interval[1] <= MARGIN for row in ended)
    points = f"{100 * MARGIN:g} points"
    return (
        f"A gain or loss beyond {points} in {none} of {len(judged)} comparisons, a loss beyond {points} in {harmless} of "
        f"{len(judged)}; a pace outside {PACES[0]} to {PACES[1]} in {alike} of {len(paced)} that are identified, a reach beyond "
        f"{points} in {level} of {len(ended)} (95 % intervals)."
    )


def describe_unseen(suites: Sequence[SuiteRows]) -> str:
    """Say how large a gain had to be to be seen, and how many paces and ends are not identified."""
    rows = [row for suite in suites for row in suite.rows]
    detectable = np.array([row.detectable for row in rows if row.detectable is not None])
    if not detectable.size:
        return "Nothing was compared with two seeds or more."
    paced = [row for row in rows if row.pace_curve]
    no_pace = sum(row.kappa is None for row in paced)
    no_end = sum(row.reach is None for row in paced)
    no_equal = sum(row.equal_cost_ratio is not None and row.equal_cost_ratio < 0.8 for row in rows)
    compared = sum(row.equal_cost_ratio is not None for row in rows)
    one_rate = sum(row.baseline_rates == 1 for row in rows if row.equal_cost_ratio is not None)
    return (
        f"With 80 % power half of the comparisons could have shown a gain of {100 * np.median(detectable):.1f} points, nine tenths "
        f"one of {100 * np.quantile(detectable, 0.9):.1f}. The pace is not identified in {no_pace} of {len(paced)} lines, the "
        f"reach in {no_end}: most runs end on the slope, and most have no held-out curve. In {no_equal} of {compared} comparisons "
        f"no baseline is as dear as the regime; in {one_rate} the baseline ran at one learning rate alone."
    )


def select_sharing(rows: Sequence[ShowRow], alone: set[str]) -> list[ShowRow]:
    """Select the rows of the mean of policies and the first metric, of variants that share and have a baseline. alone: those that
    do not share."""
    return [row for row in choose_rows(rows) if row.variant not in alone and row.gain is not None]
