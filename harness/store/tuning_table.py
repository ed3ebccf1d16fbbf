"""What a suite's tuning changed: each variant as published and as tuned, and what a setting is worth where it was not chosen."""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

import msgspec
import numpy as np

from harness.statistics import paired
from harness.store.comparisons import MEAN, BySeed, Finished, Spent, finished
from harness.store.read import Snapshot
from harness.store.statistic import POINTS, Pair, bounds, number
from harness.store.tuning import Tuned, Tuning, tuned_label


class TuningRow(msgspec.Struct, frozen=True, kw_only=True):
    """One variant on one group, in fractions. published_gain: over the baseline as published; tuned_gain: over the *tuned*
    baseline. lowest, highest, deviation: of the trials that ran to the end. promised: the best trial's lead over the
    published setting; kept: the same on the check's seeds."""

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
        """The difference with its interval, in points."""
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


def scores(snapshot: Snapshot, suite: str, task: str, cells: int, only: str = "") -> Scores:
    """cells: groups x seeds; a variant that has fewer is left out. only: this group's part of them."""
    found = finished(snapshot, suite)
    metric = metric_of(found, task)
    values: dict[str, list[float]] = {}
    spent: dict[str, list[Spent]] = {}
    for (group, policy, of, kind), family in found.families.items():
        if (of, kind, policy) == (task, metric, whole(found, group)) and only in ("", group):
            for name, by_seed in family.scores.items():
                values.setdefault(name, []).extend(by_seed[seed].accuracy for seed in sorted(by_seed))
                spent.setdefault(name, []).extend(family.costs[name])
    full = {name: round(float(np.mean(each)), 12) for name, each in values.items() if len(each) == cells}
    costs = (
        {name: sum(getattr(s, what) for s in each) for name, each in spent.items()}
        for what in ("rollouts", "cpu", "gpu")
    )
    return Scores(task, metric, full, *costs)


def metric_of(found: Finished, task: str) -> str:
    """Answers sampled at temperature 1 where there are any, else greedy ones."""
    metrics = [metric for _, _, of, metric in found.families if of == task]
    return next((m for m in metrics if m.startswith("avg@")), "greedy")


def whole(found: Finished, group: str) -> str:
    policies = found.policies[group]
    return MEAN if len(policies) > 1 else policies[0]


def tuning_rows(snapshot: Snapshot, tuning: Tuning) -> list[TuningRow]:
    rows = []
    for group, scored in _first_task(snapshot, tuning).items():
        for variant in tuning.variants:
            ours, theirs = scored.get(variant.variant), scored.get(tuned_label(variant.variant, variant.on))
            if ours and theirs:
                baselines = (tuning.baseline, tuned_label(tuning.baseline, variant.on))
                base, tuned = (scored.get(name, {}) for name in baselines)
                rows.append(_row(group, variant, ours, theirs, base, tuned, variant.variant == tuning.baseline))
    return rows


def transfer_rows(snapshot: Snapshot, tuning: Tuning) -> list[TransferRow]:
    """Every two choices of a variant on every group, as far as their cells are finished."""
    rows = []
    for group, scored in _first_task(snapshot, tuning).items():
        for one, other in combinations(tuning.variants, 2):
            ours, theirs = (scored.get(tuned_label(v.variant, v.on)) for v in (one, other))
            if one.variant != other.variant or not ours or not theirs:
                continue
            mean, interval = difference(ours, theirs)
            rows.append(
                TransferRow(
                    group=group, variant=one.variant, first_on=one.on, first=_mean(ours), second_on=other.on,
                    second=_mean(theirs), difference=mean or 0.0, interval=interval, same=one.final == other.final,
                )
            )  # fmt: skip
    return rows


def _first_task(snapshot: Snapshot, tuning: Tuning) -> dict[str, dict[str, BySeed]]:
    found = finished(snapshot, tuning.suite)
    first = next((task for _, _, task, _ in found.families), "")
    return {
        group: family.scores
        for (group, policy, task, kind), family in found.families.items()
        if task == first and kind == metric_of(found, task) and policy == whole(found, group)
    }


def _row(
    group: str, tuned: Tuned, ours: BySeed, theirs: BySeed, base: BySeed, tuned_base: BySeed, is_baseline: bool
) -> TuningRow:
    ended = [t.score for t in tuned.trials if t.score is not None and t.steps == max(t.steps for t in tuned.trials)]
    first, best = (next(t.score for t in tuned.trials if t.number == n) for n in (0, tuned.chosen))
    gain, gain_interval = (None, None) if is_baseline else difference(ours, base)
    tuned_gain, tuned_interval = (None, None) if is_baseline else difference(theirs, tuned_base)
    change, change_interval = difference(theirs, ours)
    checked = None not in (tuned.checked, tuned.checked_published)
    return TuningRow(
        group=group, variant=tuned.variant, published=_mean(ours), published_gain=gain, published_interval=gain_interval,
        tuned=_mean(theirs), tuned_gain=tuned_gain, tuned_interval=tuned_interval, change=change or 0.0,
        change_interval=change_interval if tuned.chosen else None, trials=len(tuned.trials),
        failed=sum(t.score is None for t in tuned.trials), lowest=min(ended), highest=max(ended),
        deviation=float(np.std(ended, ddof=1)) if len(ended) > 1 else 0.0,
        promised=(best or 0.0) - (first if first is not None else best or 0.0),
        kept=(tuned.checked or 0.0) - (tuned.checked_published or 0.0) if checked else None,
        rollouts=tuned.rollouts, cpu_seconds=tuned.cpu_seconds, gpu_seconds=tuned.gpu_seconds,
        settings=next(t.settings for t in tuned.trials if t.number == tuned.chosen), on=tuned.on,
    )  # fmt: skip


def difference(ours: BySeed, theirs: BySeed) -> tuple[float | None, Pair | None]:
    seeds = sorted(ours.keys() & theirs.keys())
    a, b = (np.array([by_seed[s] for s in seeds]).reshape(-1, 2) for by_seed in (ours, theirs))
    found = paired(a[:, 0], b[:, 0], noise=a[:, 1] + b[:, 1])
    return number(found.mean), bounds(found)


def _mean(by_seed: BySeed) -> float:
    return float(np.mean([score.accuracy for score in by_seed.values()]))
