"""rliable as a rival, in an environment of its own: its import breaks with current pandas. Run by `bench.py`.

The tests compare with what it said of three random tables, once, with seed 0 (tests/rliable_reference.json).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from bench import Row, Size, faster, turns
from rliable import library, metrics

from harness.statistics import iqm_interval

RESAMPLES = 50_000


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
