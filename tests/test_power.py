"""Power is what simulated tests find, and is stated from stored variances."""

from __future__ import annotations

from math import log
from pathlib import Path

import numpy as np
import pytest
from paced_results import Line, write_paced
from running import ingested

from harness.statistics import mean_interval
from harness.statistics.power import find_power
from harness.store import expected_power
from harness.store.expected_power import StoredSpreads, describe_power, read_spreads, recall_spreads
from harness.store.ingest import ingest_journals
from harness.store.read import Snapshot


@pytest.mark.parametrize(("spread", "seeds", "effect"), [(0.02, 5, 0.02), (0.02, 10, 0.02), (0.05, 8, 0.02)])
def test_power_is_the_share_of_tests_that_find_the_effect(spread: float, seeds: int, effect: float) -> None:
    drawn = effect + spread * np.random.default_rng(0).standard_normal((4000, seeds))
    means = mean_interval(drawn)
    found = float(((means.p <= 0.05) & (means.mean > 0)).mean())
    assert find_power(spread, seeds, effect) == pytest.approx(found, abs=0.025)


def test_power_is_said_from_stored_spreads(tmp_path: Path) -> None:
    write_paced(tmp_path, [Line("independent"), Line("hacpo", "hacpo", pace=1.1)], noise=0.006)
    with ingested(tmp_path) as snapshot:
        spreads = read_spreads(snapshot)
    assert (spreads.gains, spreads.paces) == (1, 1)
    assert spreads.gain is not None
    assert spreads.pace is not None
    said = describe_power(spreads, 5)
    shown = (find_power(spreads.gain, 5, 0.02), find_power(spreads.pace, 5, log(1.1)))
    assert said.count("%") == 2
    assert [f"{100 * power:.0f}%" in said for power in shown] == [True, True]
    assert describe_power(StoredSpreads(None, 0, None, 0), 5) == ""


def test_spreads_are_kept_as_long_as_the_store_does_not_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def read_anew(snapshot: Snapshot) -> StoredSpreads:
        read.append(1)
        return read_spreads(snapshot)

    monkeypatch.setattr(expected_power, "read_spreads", read_anew)
    write_paced(tmp_path, [Line("independent"), Line("hacpo", "hacpo", pace=1.1)], noise=0.006)
    ingest_journals(tmp_path)
    first = recall_spreads(tmp_path)
    assert first.paces == 1
    assert recall_spreads(tmp_path) == first
    assert len(read) == 1
    (place,) = tmp_path.glob("*.spreads.json")
    for damaged in (b"", b"{}", b'{"of": ["0.1.0", 1, 2, 3], "spreads": {"gain": "x"}}', place.read_bytes()[:-2]):
        place.write_bytes(damaged)
        assert recall_spreads(tmp_path) == first
    assert len(read) == 5
    write_paced(tmp_path, [Line("independent"), Line("sgt", "sgt", pace=1.2)], noise=0.006, suite="another")
    ingest_journals(tmp_path)
    assert recall_spreads(tmp_path).paces == 2, "the store is another one"


def test_no_seeds_no_power_and_no_spread_certainty() -> None:
    assert (find_power(0.02, 1, 0.02), find_power(0.0, 3, 0.02), find_power(0.0, 3, 0.0)) == (0.0, 1.0, 0.0)
