"""Intervals for other questions: by hand, and how often they hold the true gain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from paced_results import Line, write_paced
from running import ingested

from harness.statistics.crossed import estimate_crossed
from harness.store.table import MEAN, show_rows


def test_the_variance_is_that_of_the_two_way_layout() -> None:
    values = np.array([[1.0, 2.0, 6.0], [2.0, 2.0, 5.0]])
    found = estimate_crossed(values)
    # By hand: seeds' means 3, 3; questions' means 1.5, 2, 5.5; residuals -.5, 0, .5 and their negatives
    square_questions, square_rest = 2 * (1.5**2 + 1 + 2.5**2) / 2, (4 * 0.25) / 2
    assert found.mean == 3
    assert found.error == pytest.approx(np.sqrt((0 + square_questions - square_rest) / 6))
    assert estimate_crossed(values[:1]).error != estimate_crossed(values[:1]).error, "one seed has no interval"


@pytest.mark.parametrize(("of_seed", "of_question"), [(0.02, 0.1), (0.02, 0.0), (0.0, 0.1), (0.005, 0.2)])
def test_intervals_hold_the_gain_over_all_questions(of_seed: float, of_question: float) -> None:
    rng = np.random.default_rng(4)
    draws, held = 600, 0
    for _ in range(draws):
        differences = (
            of_seed * rng.standard_normal((5, 1))
            + of_question * rng.standard_normal((1, 60))
            + 0.2 * rng.standard_normal((5, 60))
        )
        found = estimate_crossed(differences)
        held += found.low <= 0 <= found.high
    assert 0.93 <= held / draws <= 0.995


def test_the_table_has_it_beside_the_interval_over_seeds(tmp_path: Path) -> None:
    write_paced(tmp_path, [Line("independent"), Line("sgt", "sgt", end=0.1)])
    with ingested(tmp_path) as snapshot:
        rows = show_rows(snapshot, "paced")
    sgt = {(row.policy, row.metric): row for row in rows if row.regime == "sgt"}
    low, high = sgt[MEAN, "avg@4"].gain_questions_interval
    assert low <= sgt[MEAN, "avg@4"].gain_interval[0] + 1e-9
    assert high - low > 0
    assert low < sgt[MEAN, "avg@4"].gain < high
    assert sgt[MEAN, "greedy"].gain_questions_interval is None
    assert sgt["a", "avg@4"].gain_questions_interval is None
