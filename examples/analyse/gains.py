"""Gains of each regime over the baseline, by policy, read from the store.

python examples/analyse/gains.py SUITE [RESULTS]
"""

from __future__ import annotations

import sys
from pathlib import Path

from harness.statistics import estimate_paired_difference, sampling_variance
from harness.store.read import Snapshot

SCORES = """
SELECT group_name, policy, task, seed, regime, accuracy, error, questions, answers
FROM scores JOIN current_cells USING (suite, cell)
WHERE suite = ? AND metric = 'greedy' AND kind = 'cell'
"""
PLACE = ["group_name", "policy", "task"]


def gains(results: Path, suite: str) -> dict[tuple[str, ...], tuple[float, float, float]]:
    """Gain, low and high by (group, policy, task, regime), greedy answers; accuracies in [0, 1], 95 % intervals over seeds."""
    with Snapshot(results) as store:
        (baseline,) = store.query("SELECT baseline FROM suites WHERE suite = ?", [suite])["baseline"].to_pylist()
        scores = store.query(SCORES, [suite]).to_pandas()
    scores["noise"] = sampling_variance(scores.accuracy, scores.error, scores.questions, scores.answers)
    base = scores[scores.regime == baseline].drop(columns="regime")
    others = scores[scores.regime != baseline].merge(base, on=[*PLACE, "seed"], suffixes=("", "_base"))
    by_place = {}
    for place, pairs in others.groupby([*PLACE, "regime"]):
        gain = estimate_paired_difference(pairs.accuracy, pairs.accuracy_base, noise=pairs.noise + pairs.noise_base)
        by_place[place] = float(gain.mean), float(gain.low), float(gain.high)
    return by_place


if __name__ == "__main__":
    suite, results = sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else "results")
    for place, (mean, low, high) in gains(results, suite).items():
        print(" ".join(f"{name:12}" for name in place), f"{100 * mean:+5.1f} [{100 * low:+.1f}, {100 * high:+.1f}]")
