"""A worker that was stopped and wakes up after its cell was given to another writes nothing into it."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from harness.errors import FencedError, StoreError
from harness.exchange.replay import ReplaySource, ReplayWriter
from harness.session.cell.manifests import mark
from harness.store.fence import Fence
from harness.store.journal import Journal, read_journal
from harness.store.manifest import Manifest, read_manifest
from harness.store.rows import StepRow

from .command import harness, said, start, wait_until
from .test_failures import worker_of

LONG = ["--set", "regimes=[independent]", "--set", "training.steps=8", "--set", "training.checkpoint_every=1000",
        "--set", "evaluation.curve_every=0", "--jobs", 1]  # fmt: skip


def contents(folder: Path) -> dict[str, str]:
    """Digests of all files but the logs."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*") if file.is_file() and not file.name.startswith("log")
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_stopped_worker_wakes_up_too_late(suite_file: Path, tmp_path: Path) -> None:
    process = start("run", suite_file, "--results", tmp_path, *LONG)
    wait_until(lambda: bool(said(tmp_path, "step 2/8")), process, 300)
    (log,) = said(tmp_path, "step 2/8")
    worker = psutil.Process(worker_of(log))
    worker.suspend()
    process.kill()
    process.communicate()
    assert harness("run", suite_file, "--results", tmp_path, *LONG, timeout=400)[0] == 0
    done = contents(log.parent)
    assert worker.status() == psutil.STATUS_STOPPED
    worker.resume()  # its step ends, its driver is gone: it would write a checkpoint and its rows
    worker.wait(100)
    assert contents(log.parent) == done
    assert read_manifest(log.parent).state == "done"
    assert "taken over by start 2" in (log.parent / "log.1").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_worker_whose_driver_was_killed_keeps_its_step(suite_file: Path, tmp_path: Path) -> None:
    process = start("run", suite_file, "--results", tmp_path, *LONG)
    wait_until(lambda: bool(said(tmp_path, "step 2/8")), process, 300)
    (log,) = said(tmp_path, "step 2/8")
    worker = psutil.Process(worker_of(log))
    process.kill()
    process.communicate()
    worker.wait(100)
    assert list(log.parent.glob("resume/step-*")), "the checkpoint of the step in which the driver died"
    assert read_manifest(log.parent).state == "running", "not failed: the next run calls it cut off, and goes on"
    assert "BrokenPipeError" not in log.read_text()


def test_nothing_that_is_kept_can_be_written_by_an_older_start(tmp_path: Path) -> None:
    cell = Manifest(suite="s", key="k", group="g")
    old = Fence(tmp_path)
    journal = Journal(tmp_path, old)
    journal.append(StepRow(policy="a", step=1))
    journal.commit(1)
    new = Fence(tmp_path)
    assert (old.owner.attempt, new.owner.attempt) == (1, 2)
    journal.append(StepRow(policy="a", step=2))
    for write in (
        lambda: journal.commit(2), journal.compact, lambda: journal.rewind(0), lambda: Journal(tmp_path, old),
        lambda: mark(tmp_path, cell, "done", guard=old),
    ):  # fmt: skip
        with pytest.raises(FencedError, match=f"taken over by start 2, process {os.getpid()}"):
            write()
    assert read_journal(tmp_path).tables["steps"]["step"].to_pylist() == [1]
    assert not (tmp_path / "manifest.json").exists()
    mark(tmp_path, cell, "done", guard=new)
    Journal(tmp_path, new).compact()
    assert not list(tmp_path.rglob("*.tmp"))
    (tmp_path / ".fence").write_bytes(b"\xff torn")
    with pytest.raises(FencedError):
        mark(tmp_path, cell, "failed", guard=new)
    assert Fence(tmp_path, attempts=7).owner.attempt == 8


def _hold(folder: Path, held: object) -> None:
    with Fence(folder)():
        held.set()  # type: ignore[attr-defined]
        time.sleep(100)


def test_one_that_is_stopped_while_it_holds_the_lock_is_named(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    process = context.Process(target=_hold, args=(tmp_path, held))
    process.start()
    assert held.wait(60)
    os.kill(process.pid or 0, signal.SIGSTOP)
    with pytest.raises(StoreError, match=rf"start 1, process {process.pid} on .* does not let go"):
        Fence(tmp_path, patience=0.3)
    process.kill()
    process.join(10)
    assert Fence(tmp_path).owner.attempt == 2


def test_a_recording_goes_on_in_a_file_of_its_own(tmp_path: Path) -> None:
    old = ReplayWriter(tmp_path / "recording")
    old.record(1, "b", [b"one"])
    old.flush()
    new = ReplayWriter(tmp_path / "recording", resume=1)
    old.record(2, "b", [b"late"])
    old.close()
    new.record(2, "b", [b"two"])
    new.close()
    source = ReplaySource(tmp_path / "recording")
    assert (source.messages(1, "b"), source.messages(2, "b"), source.messages(3, "b")) == ([b"one"], [b"two"], [])
