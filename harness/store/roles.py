"""Gains by role at the start: of the group's stronger and of its weaker member, by their accuracy before training.

Which of two families is stronger may differ from seed to seed, where each seed has its own base checkpoints. What a regime does to
the stronger member and to the weaker one is another question than what it does to either family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from harness.statistics import Estimate, mean_interval
from harness.store.finished import FinishedScores, SeedRow
from harness.store.statistic import Pair, to_bounds, to_number
from harness.store.table import MEAN


class RoleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A regime on one group, task and metric. stronger, weaker: mean gain over seeds of the member with the highest and of the one
    with the lowest accuracy before training. apart: the former less the latter, with its 95 % interval over the same seeds."""

    group: str
    task: str
    metric: str
    regime: str
    seeds: int
    stronger: float | None
    stronger_interval: Pair | None
    weaker: float | None
    weaker_interval: Pair | None
    apart: float | None
    apart_interval: Pair | None


def role_rows(cells: FinishedScores, metric: str) -> list[RoleRow]:
    """Return a row for each group, task and regime whose members differ before training, in the tables' order."""
    by_line: dict[tuple[str, str, str], dict[int, list[SeedRow]]] = {}
    for row in cells.rows:
        if row.metric == metric and row.policy != MEAN and row.gain is not None and row.base is not None:
            by_seed = by_line.setdefault((row.group, row.task, row.regime), {})
            by_seed.setdefault(row.seed, []).append(row)
    rows = []
    for (group, task, regime), by_seed in by_line.items():
        pairs = _pair_members(by_seed, len(cells.policies[group]))
        if not pairs:
            continue
        stronger = _estimate_gain([strong for strong, _ in pairs])
        weaker = _estimate_gain([weak for _, weak in pairs])
        apart = mean_interval([(strong.gain or 0.0) - (weak.gain or 0.0) for strong, weak in pairs])
        rows.append(
            RoleRow(
                group=group,
                task=task,
                metric=metric,
                regime=regime,
                seeds=len(pairs),
                stronger=to_number(stronger.mean),
                stronger_interval=to_bounds(stronger),
                weaker=to_number(weaker.mean),
                weaker_interval=to_bounds(weaker),
                apart=to_number(apart.mean),
                apart_interval=to_bounds(apart),
            )
        )
    return rows


def _pair_members(by_seed: Mapping[int, Sequence[SeedRow]], members: int) -> list[tuple[SeedRow, SeedRow]]:
    """Return the strongest and the weakest member of each seed that has all members, where their starts differ."""
    pairs = []
    for seed in sorted(by_seed):
        ranked = sorted(by_seed[seed], key=lambda row: -(row.base or 0.0))
        if len(ranked) == members > 1 and ranked[0].base != ranked[-1].base:
            pairs.append((ranked[0], ranked[-1]))
    return pairs


def _estimate_gain(rows: Sequence[SeedRow]) -> Estimate:
    return mean_interval([row.gain or 0.0 for row in rows])
