"""Retention: what training leaves of tasks that it did not train.

A suite names such tasks (`retention`). Gains in training may be paid for elsewhere, and a peer's answers may cost more there
than own ones: the table has the change since before training, and the difference from the baseline of the same seeds. These tasks
are in no mean, family of tests or verdict, so that naming one changes no other number.
"""

from __future__ import annotations

import msgspec

from harness.statistics import estimate_paired_difference
from harness.store.finished import BySeed, Key, estimate_difference, group_by_line, read_retained
from harness.store.read import Snapshot
from harness.store.statistic import Pair, to_bounds, to_number


class RetentionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A regime's policy, or `*` for the mean of its group, on a task that was not trained. before, after: mean accuracy over seeds,
    as shares. change: after less before, with its 95 % interval over seeds. over_baseline: the change less that of the baseline's
    same seeds, None for the baseline. seeds: those whose accuracy before training is known."""

    group: str
    task: str
    metric: str
    regime: str
    policy: str
    seeds: int
    before: float
    after: float
    change: float
    change_interval: Pair | None
    over_baseline: float | None
    over_baseline_interval: Pair | None


def read_retention(snapshot: Snapshot, suite: str) -> list[RetentionRow]:
    """Return a row for each group, task, metric, policy and regime; none where the suite names no task that is not trained."""
    retained = read_retained(snapshot, suite)
    started = [row for row in retained.rows if row.base is not None]
    found = []
    for key, lines in group_by_line(started).items():
        for regime, by_seed in lines.items():
            baseline = next(iter(by_seed.values())).baseline
            theirs = lines.get(baseline) if baseline else None
            found.append(_summarise_line(key, regime, by_seed, theirs))
    return found


def _summarise_line(key: Key, regime: str, by_seed: BySeed, baseline: BySeed | None) -> RetentionRow:
    """Make the row of one regime. by_seed: its seeds, each with its accuracy before training; baseline: its baseline's, if there is
    one."""
    rows = list(by_seed.values())
    befores = [row.base or 0.0 for row in rows]
    afters = [row.accuracy for row in rows]
    # As many answers were asked before training, so that sampling made those as uncertain as these.
    change = estimate_paired_difference(afters, befores, noise=[2 * row.noise for row in rows])
    # Both lines began at the same weights: the difference of their ends is that of their changes.
    beside = estimate_difference(by_seed, baseline) if baseline else None
    return RetentionRow(
        group=key.group,
        task=key.task,
        metric=key.metric,
        regime=regime,
        policy=key.policy,
        seeds=len(rows),
        before=sum(befores) / len(rows),
        after=sum(afters) / len(rows),
        change=float(change.mean),
        change_interval=to_bounds(change),
        over_baseline=to_number(beside.mean) if beside else None,
        over_baseline_interval=to_bounds(beside) if beside else None,
    )
