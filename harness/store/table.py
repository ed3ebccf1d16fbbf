"""The rows of `harness show` and `harness status`: what a suite's cells add up to."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from harness.errors import StoreError
from harness.statistics import MARGIN, Estimate, per_unit
from harness.store.families import MEAN, Family, Finished, Key, finished, judged
from harness.store.read import Snapshot

__all__ = ["MEAN", "SeedRow", "ShowRow", "StatusRow", "seed_rows", "show_rows", "status_rows", "suites"]

Pair = tuple[float, float]


class ShowRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line: a regime on one group, policy, task and metric. Accuracies and gains are fractions in [0, 1].

    seeds: how many finished. base: accuracy before training. interval: Student t over seeds, None for a single one.
    gain: paired by seed with `baseline`, the baseline variant at the same budget; None for itself and without pairs.
    peer_used: share of the received peer answers that gave a nonzero gradient. rollouts, tokens (generated), cpu_seconds,
    gpu_seconds: mean per seed; of the whole cell where policy is `*`.
    The rest is one family of paired t tests over the regimes of one group, policy, task, metric (`statistics.judge`).
    tie_group: letters; two regimes are told apart exactly where they share none. best: cannot be told from the best mean.
    gain_p: of the gain, corrected within the family. detectable: the smallest gain that these seeds would have shown so with
    80 % power. verdict: `statistics.verdict`.
    gain_per_1000_rollouts, gain_per_gpu_second: None where nothing was spent.
    """

    group: str
    policy: str
    regime: str
    task: str
    metric: str
    seeds: int
    base: float | None
    accuracy: float
    interval: Pair | None
    gain: float | None
    gain_interval: Pair | None
    baseline: str | None
    peer_used: float | None
    rollouts: float
    tokens: float
    cpu_seconds: float
    gpu_seconds: float
    budget: str
    tie_group: str
    best: bool
    gain_p: float | None
    detectable: float | None
    verdict: str
    gain_per_1000_rollouts: float | None
    gain_per_gpu_second: float | None


class StatusRow(msgspec.Struct, frozen=True, kw_only=True):
    """One cell's state, as its manifest has it."""

    key: str
    regime: str
    group: str
    seed: int
    state: str
    reason: str
    attempts: int


class SeedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One seed of a line: its accuracy, the base's, and the gain over the baseline of the same seed and budget.

    noise: `statistics.sampling_variance` of the accuracy.
    """

    group: str
    policy: str
    regime: str
    task: str
    metric: str
    seed: int
    accuracy: float
    noise: float
    base: float | None
    gain: float | None
    baseline: str | None


def suites(snapshot: Snapshot) -> list[str]:
    """Names of all suites with cells, in order of name."""
    return [r["suite"] for r in snapshot.query("SELECT DISTINCT suite FROM cells ORDER BY suite").to_pylist()]


def status_rows(snapshot: Snapshot, suite: str | None = None) -> list[StatusRow]:
    """The cells that have a folder, in order of group, seed and regime."""
    rows = snapshot.query(
        "SELECT cell AS key, regime, group_name AS 'group', coalesce(seed, 0) AS seed, state, reason, attempts FROM current_cells "
        "WHERE kind = 'cell' AND (? IS NULL OR suite = ?) ORDER BY suite, group_name, seed, regime",
        [suite, suite],
    )
    return msgspec.convert(rows.to_pylist(), list[StatusRow])


def show_rows(snapshot: Snapshot, suite: str, margin: float = MARGIN) -> list[ShowRow]:
    """The suite's finished cells as lines, in the suite's order of groups and regimes. `margin` is that of the verdicts.

    Raises StoreError on an unknown suite.
    """
    cells = finished(snapshot, suite)
    if not cells.families and suite not in suites(snapshot):
        raise StoreError(f"no results of a suite {suite!r}")
    rows = [row for key, family in cells.families.items() for row in _family_rows(key, family, cells, margin)]
    groups = {key[0]: i for i, key in reversed(list(enumerate(cells.families)))}
    return sorted(rows, key=lambda r: _line(r, cells, groups))


def _line(row: ShowRow, cells: Finished, groups: dict[str, int]) -> tuple[object, ...]:
    """A regime's policies beside each other."""
    members = [MEAN, *cells.policies[row.group]]
    regime = cells.places.get(row.regime, len(cells.places)), row.regime
    return groups[row.group], row.task, row.metric == "greedy", row.metric, regime, members.index(row.policy)


def seed_rows(snapshot: Snapshot, suite: str) -> list[SeedRow]:
    """The finished cells seed by seed, in the order of `show_rows`. Empty for an unknown suite."""
    cells = finished(snapshot, suite)
    rows = []
    for (group, policy, task, metric), family in cells.families.items():
        for name in cells.regimes(family.scores):
            reference = cells.reference(name)
            against = family.scores.get(reference, {}) if reference else {}
            for seed, score in sorted(family.scores[name].items()):
                rows.append(
                    SeedRow(
                        group=group,
                        policy=policy,
                        regime=name,
                        task=task,
                        metric=metric,
                        seed=seed,
                        accuracy=score.accuracy,
                        noise=score.noise,
                        base=family.base.get(seed, family.base.get(None)),
                        gain=score.accuracy - against[seed].accuracy if seed in against else None,
                        baseline=reference,
                    )
                )
    return rows


def _family_rows(key: Key, family: Family, cells: Finished, margin: float) -> Iterable[ShowRow]:
    group, policy, task, metric = key
    ordered = {name: family.scores[name] for name in cells.regimes(family.scores)}
    names, found = judged(ordered, {name: cells.reference(name) for name in ordered}, margin)
    for i, name in enumerate(names):
        rollouts, tokens, cpu, gpu, received, used = np.sum(family.costs[name], axis=0)
        count = len(family.costs[name])
        with_seed = [family.base.get(seed, family.base.get(None, np.nan)) for seed in family.scores[name]]
        gain = found.gains.mean[i]
        yield ShowRow(
            group=group,
            policy=policy,
            regime=name,
            task=task,
            metric=metric,
            seeds=int(found.own.n[i]),
            base=number(np.mean(with_seed)),
            accuracy=float(found.own.mean[i]),
            interval=bounds(found.own[i], within=(0.0, 1.0)),
            gain=number(gain),
            gain_interval=bounds(found.gains[i]),
            baseline=cells.reference(name) if found.gains.n[i] else None,
            peer_used=float(used / received) if received else None,
            rollouts=float(rollouts / count),
            tokens=float(tokens / count),
            cpu_seconds=float(cpu / count),
            gpu_seconds=float(gpu / count),
            budget=cells.variants[name].budget,
            tie_group=found.groups[i],
            best=found.best[i],
            gain_p=number(found.gain_p[i]),
            detectable=number(found.detectable[i]),
            verdict=found.verdicts[i],
            gain_per_1000_rollouts=number(per_unit(gain, rollouts / count, 1000)),
            gain_per_gpu_second=number(per_unit(gain, gpu / count)),
        )


def number(value: float | np.floating | np.ndarray) -> float | None:
    """NaN is None."""
    return None if np.isnan(value) else float(value)


def bounds(estimate: Estimate, within: Pair = (-np.inf, np.inf)) -> Pair | None:
    """The interval of one mean, as far as it lies in what is possible; None where there is none."""
    low, high = (number(np.clip(end, *within)) for end in (estimate.low, estimate.high))
    return None if low is None or high is None else (low, high)
