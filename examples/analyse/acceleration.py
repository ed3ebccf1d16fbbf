"""How much faster each regime learns than the baseline (kappa) and where it ends (delta), from the store.

python examples/analyse/acceleration.py SUITE [RESULTS]

From held-out learning curves of at least five points, else from training rewards, averaged over tenths of a run: those follow the
prompts that were drawn, but regimes of one seed draw the same. docs/statistics.md has the definition and its limits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from harness.statistics.acceleration import MIN_POINTS, fit_acceleration
from harness.store.read import Snapshot

CURVES = """
SELECT group_name, policy, regime, seed, step, avg(curves.accuracy) AS accuracy
FROM curves JOIN current_cells USING (suite, cell) WHERE suite = ? AND kind = 'cell' GROUP BY ALL
"""
REWARDS = """
SELECT group_name, policy, regime, seed, step, reward_mean AS accuracy
FROM steps JOIN current_cells USING (suite, cell) WHERE suite = ? AND kind = 'cell'
"""
TENTHS = 10


def read_points(results: Path, suite: str) -> tuple[str, pd.DataFrame, str]:
    """The baseline's name, a point per group, policy, regime, seed and step, and what was measured."""
    with Snapshot(results) as store:
        (baseline,) = store.query("SELECT baseline FROM suites WHERE suite = ?", [suite])["baseline"].to_pylist()
        points = store.query(CURVES, [suite]).to_pandas()
        if points.step.nunique() >= MIN_POINTS:
            return baseline, points, "held-out curves"
        points = store.query(REWARDS, [suite]).to_pandas()
    width = points.step.max() / TENTHS
    points["step"] = (np.ceil(points.step / width) - 0.5) * width
    keys = ["group_name", "policy", "regime", "seed", "step"]
    return baseline, points.groupby(keys, as_index=False).accuracy.mean(), "training rewards"


def lines(results: Path, suite: str) -> Iterator[str]:
    """A line for each group and regime. Each seed's curve is the mean of the group's policies."""
    baseline, points, measured = read_points(results, suite)
    yield f"{suite}: {measured} against {baseline}"
    for group, of_group in points.groupby("group_name"):
        curves = of_group.pivot_table(index=["regime", "seed"], columns="step", values="accuracy").dropna()
        own = curves.loc[baseline]
        for regime in curves.index.get_level_values("regime").unique().drop(baseline):
            other = curves.loc[regime]
            seeds = own.index.intersection(other.index)
            found = fit_acceleration(curves.columns, own.loc[seeds], other.loc[seeds])
            kappa = f"kappa {found.kappa:5.2f} [{found.kappa_low:.2f}, {found.kappa_high:.2f}]"
            low, delta, high = (100 * end for end in (found.delta_low, found.delta, found.delta_high))
            yield f"  {group} {regime:18} {kappa}  delta {delta:+5.1f} [{low:+.1f}, {high:+.1f}]  {found.problem}"


if __name__ == "__main__":
    print("\n".join(lines(Path(sys.argv[2] if len(sys.argv) > 2 else "results"), sys.argv[1])))
