"""What a suite's tuning changed, and what a setting is worth where it was not chosen."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any, NamedTuple

import msgspec
import numpy as np

from harness.store.finished import BySeed, FinishedScores, Key, estimate_difference, group_by_line, read_finished
from harness.store.read import Snapshot
from harness.store.statistic import POINTS, Pair, to_bounds, to_number
from harness.store.table import MEAN
from harness.store.tuning import Tuned, Tuning, tuned_label


class TuningRow(msgspec.Struct, frozen=True, kw_only=True):
    """A variant on one group; accuracies and gains are fractions, costs those of all its trials.

    published_gain, tuned_gain: over the baseline as the suite has it, and over the baseline as tuned. lowest, highest, deviation:
    scores of the trials that ran to the end. promised: the lead of the best trial over the published setting; kept: the
    same lead on seeds that chose nothing, None where these were not run.
    """

    group: str
    variant: str
    published: float
    published_gain: float | None
    published_interval: Pair | None
    tuned: float
    tuned_gain: float | None
    tuned_interval: Pair | None
    change: float
    change_interval: Pair | None
    trials: int
    failed: int
    lowest: float
    highest: float
    deviation: float
    promised: float
    kept: float | None
    rollouts: float
    cpu_seconds: float
    gpu_seconds: float
    settings: dict[str, Any]
    on: str = ""


class TransferRow(msgspec.Struct, frozen=True, kw_only=True):
    """A variant on one group under the settings that two tuning groups chose. difference: of the accuracies, second less
    first. same: both chose the same setting."""

    group: str
    variant: str
    first_on: str
    first: float
    second_on: str
    second: float
    difference: float
    interval: Pair | None
    same: bool

    @property
    def apart(self) -> str:
        """The difference in words."""
        return "the same setting" if self.same else POINTS.with_interval(self.difference, self.interval)


class TuningResults(NamedTuple):
    """What the commands show of a suite's tuning."""

    tuning: Tuning
    rows: list[TuningRow]
    transfer: list[TransferRow]


class TrialScores(msgspec.Struct, frozen=True):
    """Mean accuracy of each trial's variant on one task and metric, and what its cells cost (rollouts, CPU- and
    GPU-seconds)."""

    task: str
    metric: str
    score: dict[str, float]
    rollouts: dict[str, float]
    cpu: dict[str, float]
    gpu: dict[str, float]


_COSTS = """
WITH rolled AS (SELECT suite, cell, sum(rollouts) AS rollouts FROM totals GROUP BY ALL),
paid AS (SELECT suite, cell, sum(cpu_seconds) AS cpu, sum(gpu_seconds) AS gpu FROM spent GROUP BY ALL)
SELECT regime, coalesce(sum(rollouts), 0)::DOUBLE AS rollouts, round(coalesce(sum(cpu), 0), 6) AS cpu,
    round(coalesce(sum(gpu), 0), 6) AS gpu
FROM current_cells LEFT JOIN rolled USING (suite, cell) LEFT JOIN paid USING (suite, cell)
WHERE suite = ? AND kind = 'cell' GROUP BY regime
"""


def read_trial_scores(snapshot: Snapshot, suite: str, task: str, cells: int, only: str = "") -> TrialScores:
    """Read what the variants of a suite of trials scored, and cost.

    cells: groups x seeds; a variant with fewer finished cells has no score. only: the group that counts, empty for all.
    """
    done = read_finished(snapshot, suite)
    values: dict[str, list[float]] = {}
    for key, lines in _select_panels(done, task).items():
        if only and key.group != only:
            continue
        for name, by_seed in lines.items():
            values.setdefault(name, []).extend(row.accuracy for row in by_seed.values())
    # Rounded, for trials of equal accuracy must tie whatever the order of their sum
    full = {name: round(float(np.mean(each)), 12) for name, each in values.items() if len(each) == cells}
    rows = snapshot.query(_COSTS, [suite]).to_pylist()
    return TrialScores(
        task=task,
        metric=_choose_metric(done, task),
        score=full,
        rollouts={row["regime"]: row["rollouts"] for row in rows},
        cpu={row["regime"]: row["cpu"] for row in rows},
        gpu={row["regime"]: row["gpu"] for row in rows},
    )


def _choose_metric(done: FinishedScores, task: str) -> str:
    """Choose the mean of samples at temperature 1 where there are any, else greedy."""
    return next((r.metric for r in done.rows if r.task == task and r.metric.startswith("avg@")), "greedy")


def whole_group(done: FinishedScores, group: str) -> str:
    """Return the policy of the rows that stand for the whole group: MEAN, or its only policy."""
    policies = done.policies[group]
    return MEAN if len(policies) > 1 else policies[0]


def _select_panels(done: FinishedScores, task: str) -> dict[Key, dict[str, BySeed]]:
    """Return the lines of whole groups on the task, by the metric that tuning goes by."""
    metric = _choose_metric(done, task)
    panels: dict[Key, dict[str, BySeed]] = {}
    for key, lines in group_by_line(done.rows).items():
        if (key.task, key.metric, key.policy) == (task, metric, whole_group(done, key.group)):
            panels[key] = lines
    return panels


def tuning_rows(snapshot: Snapshot, tuning: Tuning) -> list[TuningRow]:
    """Return a row for each choice on each group where the published and the tuned variant have finished cells."""
    rows = []
    for group, scored in _read_first_task(snapshot, tuning).items():
        for choice in tuning.variants:
            published = scored.get(choice.variant)
            tuned = scored.get(tuned_label(choice.variant, choice.on))
            if published and tuned:
                rows.append(_make_row(group, choice, published, tuned, scored))
    return rows


def transfer_rows(snapshot: Snapshot, tuning: Tuning) -> list[TransferRow]:
    """Return a row for every two choices of a variant on every group, as far as they are finished."""
    rows = []
    for group, scored in _read_first_task(snapshot, tuning).items():
        for one, other in combinations(tuning.variants, 2):
            ours = scored.get(tuned_label(one.variant, one.on))
            theirs = scored.get(tuned_label(other.variant, other.on))
            if one.variant != other.variant or not ours or not theirs:
                continue
            apart = estimate_difference(ours, theirs)
            row = TransferRow(
                group=group,
                variant=one.variant,
                first_on=one.on,
                first=_mean_accuracy(ours),
                second_on=other.on,
                second=_mean_accuracy(theirs),
                difference=to_number(apart.mean) or 0.0,
                interval=to_bounds(apart),
                same=one.final == other.final,
            )
            rows.append(row)
    return rows


def _read_first_task(snapshot: Snapshot, tuning: Tuning) -> dict[str, dict[str, BySeed]]:
    """Return the whole groups' lines on the suite's first task, by group and line."""
    done = read_finished(snapshot, tuning.suite)
    task = done.rows[0].task if done.rows else ""
    return {key.group: lines for key, lines in _select_panels(done, task).items()}


def _make_row(group: str, choice: Tuned, published: BySeed, tuned: BySeed, scored: Mapping[str, BySeed]) -> TuningRow:
    """Make the row of one choice on one group. scored: all lines of the group, for the baselines of both."""
    trials = {trial.number: trial for trial in choice.trials}
    chosen = trials[choice.chosen]
    ended = _list_scores(choice)
    failed = [trial for trial in choice.trials if trial.score is None]
    best = chosen.score or 0.0
    # Trial 0 is the variant with the suite's own settings; where it failed, the best trial has no lead to speak of
    first = trials[0].score
    without_tuning = first if first is not None else best
    gain = estimate_difference(published, _lines_baseline(published, scored))
    tuned_gain = estimate_difference(tuned, _lines_baseline(tuned, scored))
    change = estimate_difference(tuned, published)
    # Where trial 0 was chosen nothing was changed
    was_changed = choice.chosen != 0
    change_interval = to_bounds(change) if was_changed else None
    return TuningRow(
        group=group,
        variant=choice.variant,
        published=_mean_accuracy(published),
        published_gain=to_number(gain.mean),
        published_interval=to_bounds(gain),
        tuned=_mean_accuracy(tuned),
        tuned_gain=to_number(tuned_gain.mean),
        tuned_interval=to_bounds(tuned_gain),
        change=to_number(change.mean) or 0.0,
        change_interval=change_interval,
        trials=len(choice.trials),
        failed=len(failed),
        lowest=min(ended),
        highest=max(ended),
        deviation=float(np.std(ended, ddof=1)) if len(ended) > 1 else 0.0,
        promised=best - without_tuning,
        kept=_find_kept_lead(choice),
        rollouts=choice.rollouts,
        cpu_seconds=choice.cpu_seconds,
        gpu_seconds=choice.gpu_seconds,
        settings=chosen.settings,
        on=choice.on,
    )


def _list_scores(choice: Tuned) -> list[float]:
    """Return the scores of the trials that ran to the end."""
    longest = max(trial.steps for trial in choice.trials)
    whole = [trial for trial in choice.trials if trial.steps == longest]
    return [trial.score for trial in whole if trial.score is not None]


def _find_kept_lead(choice: Tuned) -> float | None:
    """Return the chosen setting's lead over the suite's own on seeds that chose nothing; None where it was not checked."""
    if choice.checked is None or choice.checked_published is None:
        return None
    return choice.checked - choice.checked_published


def _lines_baseline(line: BySeed, scored: Mapping[str, BySeed]) -> BySeed:
    """Return the rows of the line's baseline, none where it has none."""
    baseline = next(iter(line.values())).baseline
    return scored.get(baseline or "", {})


def _mean_accuracy(by_seed: BySeed) -> float:
    return float(np.mean([score.accuracy for score in by_seed.values()]))
