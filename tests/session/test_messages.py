"""What crosses the border to a worker process arrives as it was sent."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.session.driver.jobs import base_job, cell_job, encoder, to_worker
from harness.session.suite.prepare import prepare
from harness.suite.cells import cell_of
from harness.suite.load import shipped


@pytest.mark.parametrize("suite", sorted(set(shipped()) - {"bandit"}))
def test_a_job_is_its_cell(suite: str, tmp_path: Path) -> None:
    prepared = prepare(suite, tmp_path)
    for cell in prepared.cells:
        job = cell_job(cell, tmp_path / cell.key, {"a": {"threads": 2}})
        assert to_worker.decode(encoder.encode(job)) == job
    for base in prepared.bases:
        sent = base_job(base, tmp_path / base.key, {base.policy.name: {"threads": 2}})
        arrived = to_worker.decode(encoder.encode(sent))
        assert arrived == sent
        assert arrived.base.key == base.key


def test_a_cell_from_its_manifest(tmp_path: Path) -> None:
    """As tools/rerun.py reads it: the configuration, and beside it what the configuration does not hold."""
    cell = prepare("quickstart", tmp_path).cells[0]
    beside = {"suite": cell.suite, "key": cell.key, "identity": msgspec.to_builtins(cell.identity), "keep": cell.keep}
    assert cell_of({**cell.config(), **beside}) == cell
    with pytest.raises(ValueError, match="seed"):
        cell_of({**cell.config(), **beside, "seed": "eleven"})
