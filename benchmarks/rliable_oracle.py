"""rliable as an oracle and as a rival: stores its answers for the tests and compares the speed of IQM bootstraps.

Needs an environment of its own, because rliable's import breaks with current pandas:

    pip install rliable==1.2.0 arch==7.2.0 "pandas<2.3" "numpy<2.3" "scipy<1.15" jaxtyping
    PYTHONPATH=. python benchmarks/rliable_oracle.py [--write tests/rliable_reference.json]

The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from rliable import library, metrics

from harness.statistics import iqm_interval

SHAPES = ((3, 4), (5, 7), (10, 26))
RESAMPLES = 50_000


def case(runs: int, tasks: int) -> dict[str, object]:
    """Scores of two regimes and what rliable says of them."""
    rng = np.random.default_rng(runs * tasks)
    x, y = rng.random((runs, tasks)).round(3), (rng.random((runs, tasks)) * 0.9).round(3)
    np.random.seed(0)  # rliable ignores random_state
    value, interval = library.get_interval_estimates(
        {"x": x}, lambda s: np.array([metrics.aggregate_iqm(s)]), reps=RESAMPLES
    )
    better, better_interval = library.get_interval_estimates(
        {"x,y": (x, y)}, lambda a, b: np.array([metrics.probability_of_improvement(a, b)]), reps=2000
    )
    return {
        "x": x.tolist(), "y": y.tolist(), "iqm": float(value["x"][0]), "iqm_low": float(interval["x"][0, 0]),
        "iqm_high": float(interval["x"][1, 0]), "better": float(better["x,y"][0]),
        "better_low": float(better_interval["x,y"][0, 0]), "better_high": float(better_interval["x,y"][1, 0]),
    }  # fmt: skip


def speed(runs: int, tasks: int, rounds: int = 5, resamples: int = 5000, calls: int = 4) -> dict[str, float]:
    """Median ratio of the two times over interleaved rounds, same scores and number of resamples.

    In a round each side is called several times in a row. `first`: ratio of the first calls, which find the other side's data
    in the cache; `ratio`: of the calls after it, as where a page draws one interval after another.
    """
    x = np.random.default_rng(0).random((runs, tasks))

    def rival() -> None:
        library.get_interval_estimates({"x": x}, lambda s: np.array([metrics.aggregate_iqm(s)]), reps=resamples)

    def own() -> None:
        iqm_interval(x, resamples=resamples)

    times = {side: np.array([]).reshape(0, calls) for side in (rival, own)}
    for _ in range(rounds):
        for side in (rival, own):
            row = []
            for _ in range(calls):
                started = time.perf_counter()
                side()
                row.append(time.perf_counter() - started)
            times[side] = np.vstack([times[side], row])
    later = {side: taken[:, 1:].mean(axis=1) for side, taken in times.items()}
    return {
        "runs": runs, "tasks": tasks, "ratio": float(np.median(later[rival] / later[own])),
        "first": float(np.median(times[rival][:, 0] / times[own][:, 0])), "own_seconds": float(np.median(later[own])),
    }  # fmt: skip


def main() -> None:
    """Print the figures; with --write, store the oracle's answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    if arguments.write:
        arguments.write.write_text(json.dumps({"cases": [case(*shape) for shape in SHAPES]}, indent=1) + "\n")
    print(json.dumps({"speed": [speed(*shape) for shape in SHAPES]}))


if __name__ == "__main__":
    main()
