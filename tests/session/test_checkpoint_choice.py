"""How much a reported number gains by the choice of its checkpoint."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from harness.session.suite.prepared import Prepared
from harness.store.checkpoint_choice import choose_checkpoint, read_checkpoint_choices
from harness.store.ingest import ingest_journals
from harness.store.journal import read_journal
from harness.store.read import Snapshot

STEPS = np.array([2, 4, 6])
REWARDED = np.arange(1, 7)


def test_the_rewards_since_the_point_before_choose_and_no_point_of_the_curve_does() -> None:
    rewards = np.array([0.0, 0.1, 0.9, 0.9, 0.2, 0.2])
    chosen = choose_checkpoint(STEPS, np.array([0.8, 0.3, 0.5]), REWARDED, rewards)
    assert (chosen.last, chosen.best_on_validation, chosen.best_on_test) == (0.5, 0.3, 0.8)


def test_of_equal_rewards_the_later_point_is_chosen_and_a_point_without_rewards_never() -> None:
    accuracies = np.array([0.1, 0.2, 0.3])
    assert choose_checkpoint(STEPS, accuracies, REWARDED, np.full(6, 0.5)).best_on_validation == 0.3
    assert choose_checkpoint(STEPS, accuracies, np.array([1, 3]), np.array([0.5, 0.4])).best_on_validation == 0.1


def test_the_rows_are_those_of_the_journals(finished: Prepared) -> None:
    """Recomputed from each cell's own curve, without the store."""
    last, best = defaultdict(list), defaultdict(list)
    for cell in finished.cells:
        curve = read_journal(finished.folder / cell.key).tables["curves"].to_pandas()
        for _, points in curve[curve["step"] > 0].groupby("policy"):
            last[cell.variant.name].append(points.sort_values("step")["accuracy"].iloc[-1])
            best[cell.variant.name].append(points["accuracy"].max())
    ingest_journals(finished.folder.parent)
    with Snapshot(finished.folder.parent, finished.suite_file()) as snapshot:
        rows = {row.regime: row for row in read_checkpoint_choices(snapshot, finished.suite.name)}
    assert rows.keys() == last.keys() == {"independent", "sgt", "hacpo"}
    for regime, row in rows.items():
        assert row.last == pytest.approx(np.mean(last[regime]))
        assert row.best_on_test == pytest.approx(np.mean(best[regime]))
        assert row.flattered == pytest.approx(row.best_on_test - row.last)
        assert row.last <= row.best_on_test
        assert row.best_on_validation <= row.best_on_test
        assert (row.points, row.curves) == (2, 2)
