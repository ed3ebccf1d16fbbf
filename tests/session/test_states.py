"""A cell's state follows from its folder, from who holds it and from damage of its journal; it is read once for each command."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from running import here

from harness.errors import StoreError
from harness.session.cell.manifests import manifest_of, mark_interrupted, mark_state
from harness.session.suite import prepared as preparing
from harness.session.suite.lock import claim_cells
from harness.session.suite.prepare import prepare_named
from harness.session.suite.prepared import Prepared
from harness.store import diagnosis
from harness.store.cell_state import PENDING, CellFolder, CellState, read_cell_folder, read_state, state_of
from harness.store.database import STORE
from harness.store.ingest import ingest_journals
from harness.store.journal import Journal
from harness.store.manifest import Manifest
from harness.store.read import Snapshot
from harness.store.rows import SampleRow, StepRow


def manifest(state: str, reason: str = "") -> Manifest:
    return Manifest(suite="s", key="k", group="g", state=state, reason=reason, attempts=2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "held", "damage", "state"),
    [
        (CellFolder(None, ""), False, "", PENDING),
        (CellFolder(None, "no manifest; run again"), False, "", CellState("failed", "no manifest; run again", 0)),
        (CellFolder(None, "no manifest"), False, "torn; remove it", CellState("failed", "torn; remove it", 0)),
        (CellFolder(manifest("running"), ""), True, "", CellState("running", "", 2)),
        (CellFolder(manifest("running"), ""), True, "torn; remove it", CellState("running", "", 2)),
        (CellFolder(manifest("running"), ""), False, "", CellState("cut off", "", 2)),
        (CellFolder(manifest("done"), ""), False, "", CellState("done", "", 2)),
        (CellFolder(manifest("done"), ""), False, "torn; remove it", CellState("failed", "torn; remove it", 2)),
        (CellFolder(manifest("failed", "diverged"), ""), False, "", CellState("failed", "diverged", 2)),
    ],
)
def test_the_state_of_a_cell(found: CellFolder, held: bool, damage: str, state: CellState) -> None:
    assert state_of(found, held, damage) == state


def test_a_folder_that_cannot_be_read_says_what_to_do(tmp_path: Path) -> None:
    cell = tmp_path / "suite" / "cell"
    assert read_cell_folder(cell) == CellFolder(None, "")
    (cell / "journal").mkdir(parents=True)
    assert read_state(cell).reason.endswith("cannot be read: No such file or directory; run the suite again")
    (cell / "manifest.json").write_text("{")
    assert read_state(cell).state == "failed"


@pytest.fixture
def finished_suite(tmp_path: Path) -> Prepared:
    """Quickstart with all its cells and base checkpoints done, by hand."""
    prepared = prepare_named("quickstart", tmp_path)
    prepared.write_suite_file()
    for work in (*prepared.cells, *prepared.bases):
        folder = prepared.folder / work.key
        mark_state(folder, manifest_of(work), "done", attempts=1)
        journal = Journal(folder)
        for policy in manifest_of(work).policies:
            journal.append(StepRow(policy=policy.name, step=1, rollouts=8))
            journal.append(
                SampleRow(
                    policy=policy.name, checkpoint_step=1, task="micro", metric="greedy", doc_id="1", verdict="right"
                )
            )
        journal.commit(1)
    return prepared


def test_a_run_with_nothing_left_reads_the_store_once_and_shows_it_once(
    finished_suite: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was brought up to date twice and opened three times."""
    counts: Counter[str] = Counter()

    def counting(results: Path, deadline: float = 30.0, rebuild: bool = False) -> int:
        counts["brought up to date"] += 1
        return ingest_journals(results, deadline, rebuild)

    opened = Snapshot.__init__

    def opening(self: Snapshot, *arguments: object, **options: object) -> None:
        counts["opened"] += 1
        opened(self, *arguments, **options)  # type: ignore[arg-type]

    for module in ("harness.store.diagnosis", "harness.cli.running", "harness.cli.tables"):
        monkeypatch.setattr(f"{module}.ingest_journals", counting)
    monkeypatch.setattr(Snapshot, "__init__", opening)
    code, out, err = here("run", "quickstart", "--results", finished_suite.folder.parent, "--json")
    assert (code, "nothing left to do" in err) == (0, True), err
    assert {row["regime"] for row in json.loads(out)["rows"]} == {cell.variant.name for cell in finished_suite.cells}
    assert counts == {"brought up to date": 1, "opened": 2}


def test_states_stay_as_they_were_read_until_they_are_read_again(tmp_path: Path) -> None:
    prepared = prepare_named("quickstart", tmp_path)
    before = prepared.with_states()
    first, base = prepared.cells[0], prepared.bases[0]
    mark_state(prepared.folder / first.key, manifest_of(first), "done", attempts=1)
    mark_state(prepared.folder / base.key, manifest_of(base), "done", attempts=1)
    assert first in before.pending_cells()
    assert base in before.missing_bases()
    assert before.done_cells() == []
    for now in (prepared, before.with_states(), before.with_states_under_claim()):
        assert first not in now.pending_cells()
        assert base not in now.missing_bases()
        assert now.done_cells() == [first]
        assert now.state(first.key) == ("done", "", 1)


def test_damage_counts_until_another_run_has_made_the_cell_anew(finished_suite: Prepared) -> None:
    prepared, cell = finished_suite, finished_suite.cells[0]
    (part,) = (prepared.folder / cell.key / "journal").glob("*.rows")
    part.write_bytes(part.read_bytes()[:-1])
    damaged = prepared.with_states()
    assert damaged.state(cell.key).state == "failed"
    assert [cell.key for cell in damaged.pending_cells()] == [cell.key]
    assert damaged.with_states_under_claim().state(cell.key).state == "failed"
    mark_state(prepared.folder / cell.key, manifest_of(cell), "done", attempts=2)
    assert damaged.with_states_under_claim().state(cell.key) == ("done", "", 2)


def test_a_busy_store_says_that_it_is_not_up_to_date(finished_suite: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    results = finished_suite.folder.parent
    assert diagnosis.read_damages(results, "quickstart") == ({}, True)
    os.remove(results / STORE)

    def busy(*_: object, **__: object) -> int:
        raise StoreError("another process is writing the store")

    monkeypatch.setattr(diagnosis, "ingest_journals", busy)
    assert diagnosis.read_damages(results, "quickstart") == ({}, False)
    stored = finished_suite.with_states().stored
    assert stored is not None
    assert not stored.in_store


def test_a_running_cell_that_nobody_holds_is_cut_off(tmp_path: Path) -> None:
    prepared = prepare_named("quickstart", tmp_path)
    first = prepared.cells[0]
    mark_state(prepared.folder / first.key, manifest_of(first), "running", attempts=1)
    assert prepared.with_states().statuses()[0].state == prepared.statuses()[0].state == "cut off"
    with claim_cells(prepared.folder, [first.key]):
        assert preparing.keys_held(prepared.folder) == {first.key}
        assert prepared.with_states().statuses()[0].state == prepared.statuses()[0].state == "running"
    mark_interrupted(prepared.folder / first.key)
    assert prepared.with_states().state(first.key) == ("cut off", "", 1)
