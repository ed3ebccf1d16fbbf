"""rliable as a rival (run by `bench.py`) and as an oracle, whose answers the tests compare with:

    PYTHONPATH=. .venv-rliable/bin/python benchmarks/rliable_oracle.py --write tests/rliable_reference.json

It needs an environment of its own, which `make bench` makes: its import breaks with current pandas.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from bench import Row, Size, faster, turns
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


def bench(size: Size) -> list[Row]:
    """IQM and its interval, the same scores and number of resamples; several calls, as a page makes them."""
    rows = []
    for runs, tasks, bar in ((3, 4, 40.0), (5, 7, 40.0), (10, 26, 40.0), (50, 10, 1.0)):
        x = np.random.default_rng(0).random((runs, tasks))
        resamples, calls = (100, 1) if size.smoke else (RESAMPLES, 1) if runs <= 10 else (5000, 2)

        def rival(x: np.ndarray = x, resamples: int = resamples, calls: int = calls) -> Any:
            iqms = [
                library.get_interval_estimates({"x": x}, lambda s: np.array([metrics.aggregate_iqm(s)]), reps=resamples)
                for _ in range(calls)
            ]
            return iqms[0][0]["x"][0], *iqms[0][1]["x"].ravel()

        def own(x: np.ndarray = x, resamples: int = resamples, calls: int = calls) -> Any:
            found, *_ = (iqm_interval(x, resamples=resamples) for _ in range(calls))
            return found.value, found.low, found.high

        def equal(found: dict[str, Any], resamples: int = resamples) -> None:
            assert abs(found["own"][0] - found["rival"][0]) < 1e-12
            assert np.allclose(found["own"], found["rival"], atol=0.7 / resamples**0.5)

        spent = turns({"own": own, "rival": rival}, size.rounds, equal)
        rows.append(faster(f"IQM bootstrap, {runs}x{tasks}", "rliable", spent["own"], spent["rival"], bar))
    return rows


def main() -> None:
    """Store the oracle's answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, required=True)
    cases = [case(*shape) for shape in SHAPES]
    parser.parse_args().write.write_text(json.dumps({"cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
