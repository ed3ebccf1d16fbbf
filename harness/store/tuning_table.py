"""What a suite's tuning changed, and what a setting is worth where it was not chosen."""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

import msgspec
import numpy as np

from harness.store.read import Snapshot
from harness.store.statistic import POINTS, Pair, bounds, number
from harness.store.table import MEAN, BySeed, Finished, Key, by_line, difference, finished
from harness.store.tuning import Tuned, Tuning, tuned_label


class TuningRow(msgspec.Struct, frozen=True, kw_only=True):
    """A variant on one group, in fractions. published_gain, tuned_gain: over the baseline as published, as tuned.
    lowest, highest, deviation: of trials that ran to the end. promised: the best trial's lead; kept: the same on the
    check's seeds."""

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
        return "the same setting" if self.same else POINTS.with_interval(self.difference, self.interval)


class TuningResults(NamedTuple):
    tuning: Tuning
    rows: list[TuningRow]
    transfer: list[TransferRow]


class Scores(msgspec.Struct, frozen=True):
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


def scores(snapshot: Snapshot, suite: str, task: str, cells: int, only: str = "") -> Scores:
    """cells: groups x seeds; a variant with fewer has no score. only: this group's scores."""
    done = finished(snapshot, suite)
    values: dict[str, list[float]] = {}
    for key, lines in _panels(done, task).items():
        for name, by_seed in lines.items() if only in ("", key.group) else ():
            values.setdefault(name, []).extend(row.accuracy for row in by_seed.values())
    full = {name: round(float(np.mean(each)), 12) for name, each in values.items() if len(each) == cells}
    rows = snapshot.query(_COSTS, [suite]).to_pylist()
    costs = ({row["regime"]: row[what] for row in rows} for what in ("rollouts", "cpu", "gpu"))
    return Scores(task, _metric(done, task), full, *costs)


def _metric(done: Finished, task: str) -> str:
    """Sampled at temperature 1 where there are any, else greedy."""
    return next((r.metric for r in done.rows if r.task == task and r.metric.startswith("avg@")), "greedy")


def whole(done: Finished, group: str) -> str:
    policies = done.policies[group]
    return MEAN if len(policies) > 1 else policies[0]


def _panels(done: Finished, task: str) -> dict[Key, dict[str, BySeed]]:
    place = task, _metric(done, task)
    return {
        key: lines
        for key, lines in by_line(done.rows).items()
        if key[2:] == place and key.policy == whole(done, key.group)
    }


def tuning_rows(snapshot: Snapshot, tuning: Tuning) -> list[TuningRow]:
    rows = []
    for group, scored in _first_task(snapshot, tuning).items():
        for variant in tuning.variants:
            ours, theirs = scored.get(variant.variant), scored.get(tuned_label(variant.variant, variant.on))
            if ours and theirs:
                baselines = (next(iter(line.values())).baseline or "" for line in (ours, theirs))
                rows.append(_row(group, variant, ours, theirs, *(scored.get(name, {}) for name in baselines)))
    return rows


def transfer_rows(snapshot: Snapshot, tuning: Tuning) -> list[TransferRow]:
    """Every two choices of a variant on every group, as far as finished."""
    rows = []
    for group, scored in _first_task(snapshot, tuning).items():
        for one, other in combinations(tuning.variants, 2):
            ours, theirs = (scored.get(tuned_label(v.variant, v.on)) for v in (one, other))
            if one.variant != other.variant or not ours or not theirs:
                continue
            apart = difference(ours, theirs)
            rows.append(
                TransferRow(
                    group=group, variant=one.variant, first_on=one.on, first=_mean(ours), second_on=other.on,
                    second=_mean(theirs), difference=number(apart.mean) or 0.0, interval=bounds(apart),
                    same=one.final == other.final,
                )
            )  # fmt: skip
    return rows


def _first_task(snapshot: Snapshot, tuning: Tuning) -> dict[str, dict[str, BySeed]]:
    done = finished(snapshot, tuning.suite)
    task = done.rows[0].task if done.rows else ""
    return {key.group: lines for key, lines in _panels(done, task).items()}


def _row(group: str, tuned: Tuned, ours: BySeed, theirs: BySeed, base: BySeed, tuned_base: BySeed) -> TuningRow:
    ended = [t.score for t in tuned.trials if t.score is not None and t.steps == max(t.steps for t in tuned.trials)]
    first, best = (next(t.score for t in tuned.trials if t.number == n) for n in (0, tuned.chosen))
    gain, tuned_gain, change = difference(ours, base), difference(theirs, tuned_base), difference(theirs, ours)
    checked = None not in (tuned.checked, tuned.checked_published)
    return TuningRow(
        group=group, variant=tuned.variant, published=_mean(ours), published_gain=number(gain.mean),
        published_interval=bounds(gain), tuned=_mean(theirs), tuned_gain=number(tuned_gain.mean),
        tuned_interval=bounds(tuned_gain), change=number(change.mean) or 0.0,
        change_interval=bounds(change) if tuned.chosen else None, trials=len(tuned.trials),
        failed=sum(t.score is None for t in tuned.trials), lowest=min(ended), highest=max(ended),
        deviation=float(np.std(ended, ddof=1)) if len(ended) > 1 else 0.0,
        promised=(best or 0.0) - (first if first is not None else best or 0.0),
        kept=(tuned.checked or 0.0) - (tuned.checked_published or 0.0) if checked else None,
        rollouts=tuned.rollouts, cpu_seconds=tuned.cpu_seconds, gpu_seconds=tuned.gpu_seconds,
        settings=next(t.settings for t in tuned.trials if t.number == tuned.chosen), on=tuned.on,
    )  # fmt: skip


def _mean(by_seed: BySeed) -> float:
    return float(np.mean([score.accuracy for score in by_seed.values()]))
