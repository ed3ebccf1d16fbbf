"""The calibration of counted costs, from the rows that it was made of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
from results_page import Store, opened

from harness.store.counted_cost import SCORED_TOKEN, TRAINED_TOKEN
from harness.store.finished import read_finished
from harness.store.statistic import SeedCost
from harness.store.tuning_table import whole_group

pytestmark = pytest.mark.slow

_SECONDS = """
SELECT phase, sum(cpu_seconds) AS seconds FROM spent JOIN current_cells USING (suite, cell)
WHERE suite = $1 AND kind = 'cell' GROUP BY phase
"""


@pytest.fixture(scope="module")
def reference_store() -> Iterator[Store]:
    with opened(Path(__file__).parents[1] / "results") as reference:
        yield reference


def list_costs(reference_store: Store, suite: str) -> list[SeedCost]:
    """List what each cell of a suite cost."""
    done = read_finished(reference_store.snapshot, suite)
    return [
        cost
        for (key, _), costs in done.costs.items()
        if key.policy == whole_group(done, key.group) and key.metric.startswith("avg@")
        for cost in costs
    ]


def measure_phase_costs(reference_store: Store, suite: str) -> tuple[float, float]:
    """Return what scoring and training on a token cost, in the CPU time of sampling one."""
    costs = list_costs(reference_store, suite)
    seconds = {row["phase"]: row["seconds"] for row in reference_store.snapshot.query(_SECONDS, [suite]).to_pylist()}
    sampled = seconds["generate"] / sum(cost.tokens for cost in costs)
    scored = seconds["score"] / sum(cost.scored for cost in costs)
    trained = seconds["train"] / sum(cost.trained for cost in costs)
    return scored / sampled, trained / sampled


def test_the_costs_of_phases_are_medians_over_three_suites(reference_store: Store) -> None:
    calibrated = [
        measure_phase_costs(reference_store, f"{suite}@reference") for suite in ("map", "controls", "pretrained")
    ]
    scored, trained = (median(costs) for costs in zip(*calibrated, strict=True))
    assert scored == pytest.approx(SCORED_TOKEN, abs=0.01)
    assert trained == pytest.approx(TRAINED_TOKEN, abs=0.01)
