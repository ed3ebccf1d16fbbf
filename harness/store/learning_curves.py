"""Learning curves of a suite's finished cells: held-out ones, or training rewards where a suite has too few points of those."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from harness.statistics.acceleration import MIN_POINTS
from harness.store.read import Snapshot

# Stands for the mean over a group's policies
MEAN = "*"
HELD_OUT, REWARD = "held-out", "training reward"
# A reward is the mean of a tenth of a run: that of one step is of a few questions only
TENTHS = 10

# Accuracy by updates served, of each seed
SeedCurves = dict[int, dict[float, float]]


@dataclass(frozen=True, slots=True)
class LearningCurves:
    """The curves of one suite. kind: HELD_OUT or REWARD. points: by group, policy (or MEAN) and variant."""

    kind: str
    points: dict[tuple[str, str, str], SeedCurves] = field(default_factory=dict)

    def of(self, group: str, policy: str, variant: str) -> SeedCurves:
        """Return the curves of a variant's seeds; empty where it has none."""
        return self.points.get((group, policy, variant), {})


_HELD_OUT = """
SELECT c.group_name, v.policy, c.regime, c.seed, v.step::DOUBLE AS served, avg(v.accuracy) AS accuracy
FROM current_cells c JOIN curves v USING (suite, cell)
WHERE c.suite = $1 AND c.kind = 'cell' AND c.state = 'done' AND v.accuracy IS NOT NULL AND v.metric = (
    SELECT max(metric) FROM curves WHERE suite = $1  -- 'sampled' rather than 'greedy' where both were measured
)
GROUP BY ALL ORDER BY ALL
"""
# The answers of a step come before its update
_REWARDS = """
WITH length AS (SELECT max(step) AS steps FROM steps WHERE suite = $1)
SELECT c.group_name, s.policy, c.regime, c.seed, avg(s.step) - 1 AS served, avg(s.reward_mean) AS accuracy
FROM current_cells c JOIN steps s USING (suite, cell), length
WHERE c.suite = $1 AND c.kind = 'cell' AND c.state = 'done' AND s.reward_mean IS NOT NULL
GROUP BY c.group_name, s.policy, c.regime, c.seed, ceil(s.step * $2 / length.steps) ORDER BY ALL
"""


def read_curves(snapshot: Snapshot, suite: str, policies: Mapping[str, Sequence[str]]) -> LearningCurves:
    """Read the curves of a suite. policies: by group; their mean has a curve too, at the points that all of them have."""
    rows = snapshot.query(_HELD_OUT, [suite]).to_pylist()
    kind = HELD_OUT
    if len({row["served"] for row in rows}) < MIN_POINTS:
        rows = snapshot.query(_REWARDS, [suite, TENTHS]).to_pylist()
        kind = REWARD
    curves = LearningCurves(kind)
    for row in rows:
        _add_point(curves, row["policy"], row)
    for group, members in policies.items():
        if len(members) > 1:
            _add_mean(curves, group, members)
    return curves


def common_points(curves: Iterable[Mapping[float, float]]) -> list[float]:
    """Return where all of these curves have a point, in order."""
    places = [set(curve) for curve in curves]
    return sorted(set.intersection(*places)) if places else []


def stack_curves(
    curves: SeedCurves, seeds: Sequence[int], points: Sequence[float]
) -> Float[np.ndarray, "seeds points"]:
    """Return the accuracies of these seeds at these points."""
    return np.array([[curves[seed][point] for point in points] for seed in seeds])


def _add_point(curves: LearningCurves, policy: str, row: Mapping[str, Any]) -> None:
    of_variant = curves.points.setdefault((row["group_name"], policy, row["regime"]), {})
    of_variant.setdefault(row["seed"], {})[row["served"]] = row["accuracy"]


def _add_mean(curves: LearningCurves, group: str, members: Sequence[str]) -> None:
    """Add the mean of the members' curves, for every variant and seed that all of them have."""
    variants = {variant for of, _, variant in curves.points if of == group}
    for variant in sorted(variants):
        each = [curves.of(group, member, variant) for member in members]
        seeds = set.intersection(*(set(one) for one in each))
        for seed in sorted(seeds):
            together = [one[seed] for one in each]
            points = common_points(together)
            accuracies = np.array([[one[point] for point in points] for one in together])  # (members, points)
            means = accuracies.mean(axis=0).tolist()
            curves.points.setdefault((group, MEAN, variant), {})[seed] = dict(zip(points, means, strict=True))
