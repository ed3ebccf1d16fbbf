"""One run a cell: locks on files, claims that live, died or were left by another machine, and changes that come too late."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from safetensors import SafetensorError

from harness.engines import checkpoint
from harness.errors import DiskFullError, FencedError, StoreError, UsageError
from harness.exchange.replay import ReplaySource, ReplayWriter
from harness.files import disk_errors, guard_changes, lock_file
from harness.session.cell import resume_point
from harness.session.cell.exchanges import ExchangeState
from harness.session.cell.manifests import mark_state
from harness.session.suite import lock as claims
from harness.session.suite.lock import RUNS, claim_cells, hold_for_change, keys_held
from harness.store.journal import Journal, read_journal
from harness.store.manifest import Manifest
from harness.store.rows import StepRow

LOCK = """
import os, sys; from harness.files import lock_file
print(lock_file(os.open(sys.argv[1], os.O_RDWR), 0), flush=True); sys.stdin.read()
"""
CLAIM = """
import sys, time; from pathlib import Path; from harness.session.suite.lock import claim_cells, hold_for_change
with claim_cells(Path(sys.argv[1]), sys.argv[3:]) as claim:
    with hold_for_change(claim.file, Path("a")) if sys.argv[2] == "changing" else open("/dev/null"):
        print("True", flush=True); time.sleep(100)
"""


@contextmanager
def holder(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that holds something, until it is killed at the block's end."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "True\n"
            yield process
        finally:
            process.kill()
            process.wait()


def foreign(folder: Path, age: float, *keys: str) -> Path:
    """A claim as a run on another machine has left it."""
    file = folder / RUNS / "0.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"host": "far", "system": "far", "pid": 1, "born": "1", "keys": keys}))
    os.utime(file, (time.time() - age,) * 2)
    return file


def test_a_holder_is_waited_for_and_its_death_frees_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    file, told = os.open(path, os.O_RDWR), []
    with holder(LOCK, path):
        for shared in (False, True):
            with pytest.raises(TimeoutError):
                lock_file(file, 0.1, look=0.02, waiting=lambda: told.append(1), shared=shared)
        assert told
    assert lock_file(file, 5.0, shared=True)
    other = os.open(path, os.O_RDONLY)
    assert lock_file(other, 0.0, shared=True)
    os.close(other)
    os.close(file)
    with pytest.raises(OSError, match="Bad file descriptor"):
        lock_file(file, 0.0)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.ENOSPC, DiskFullError), (errno.EDQUOT, DiskFullError), (errno.EIO, StoreError)],
)
def test_a_full_disk_is_one_thing(code: int, kind: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(kind, match=f"cannot be read: {os.strerror(code)}"), disk_errors(tmp_path, "cannot be read"):
        raise OSError(code, os.strerror(code))


def test_a_disk_that_fills_up_while_weights_are_written(tmp_path: Path) -> None:
    def fill(words: str, new: Path) -> None:
        (new / "model.safetensors").write_bytes(b"half")
        raise SafetensorError(words)

    full = "Error while serializing: I/O error: File too large (os error 27)"
    with pytest.raises(DiskFullError, match=os.strerror(errno.EFBIG)), disk_errors(tmp_path):
        checkpoint.write(tmp_path / "a", "a", 1, partial(fill, full))
    with pytest.raises(SafetensorError, match="no tensor"):
        checkpoint.write(tmp_path / "a", "a", 1, partial(fill, "no tensor"))
    assert not [*tmp_path.iterdir()]


def test_disjoint_keys_go_on_side_by_side_and_a_common_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "PATIENCE_SECONDS", 0.2)
    with holder(CLAIM, tmp_path, "idle", "a", "b") as process:
        with claim_cells(tmp_path, {"c"}):
            assert keys_held(tmp_path) == {"a", "b", "c"}
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(UsageError, match=f"process {process.pid} on "), claim_cells(tmp_path, {"b", "c"}):
            pass
        assert keys_held(tmp_path) == {"a", "b"}
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and nobody has asked for its exit code
        with claim_cells(tmp_path, {"a"}):
            assert len(list((tmp_path / RUNS).iterdir())) == 1


def test_another_machines_claim_holds_for_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(claims, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(claims, "LEASE_SECONDS", 1.0)
    file, began = foreign(tmp_path, 0.0, "a"), time.monotonic()
    with claim_cells(tmp_path, {"a"}):
        assert time.monotonic() - began > 0.9
    assert not file.exists()
    assert "far" in capfd.readouterr().err
    file = foreign(tmp_path, 0.0, "a")
    program = f"import os, time\nprint(True, flush=True)\nwhile True: os.utime({str(file)!r}); time.sleep(0.05)"
    with holder(program), pytest.raises(UsageError, match="process 1 on far"), claim_cells(tmp_path, {"a"}):
        pass
    assert file.exists(), "it renews its claim"


def test_a_claim_is_as_old_as_the_file_system_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with claim_cells(tmp_path, {"b"}) as claim:
        foreign(tmp_path, 0.0, "a")
        late = time.time() + 10 * claims.LEASE_SECONDS
        monkeypatch.setattr(claims.time, "time", lambda: late)
        assert keys_held(tmp_path, claim) == {"a", "b"}


RACE = """
import sys, time
from pathlib import Path
from harness.errors import UsageError
from harness.session.suite.lock import claim_cells
folder = Path(sys.argv[1])
try:
    with claim_cells(folder / "results", {"a"}):
        (folder / "inside").mkdir()   # fails where somebody else is inside
        time.sleep(0.3)
        (folder / "inside").rmdir()
    print("had it")
except UsageError:
    print("refused")
"""


def test_of_many_that_come_at_once_one_is_inside_at_a_time(tmp_path: Path) -> None:
    racers = [
        subprocess.Popen([sys.executable, "-c", RACE, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    said = [racer.communicate(timeout=60)[0].strip() for racer in racers]
    assert set(said) <= {"had it", "refused"}, said
    assert "had it" in said


def test_nothing_that_is_kept_can_be_written_by_a_run_whose_cell_was_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was stopped and wakes up after its cell was given to another."""
    monkeypatch.setattr(claims, "BEAT_SECONDS", 0.01)
    cell, manifest = tmp_path / "a", Manifest(suite="s", key="a", group="g")
    nobody = ExchangeState(b"", {})
    with claim_cells(tmp_path, {"a"}) as claim, guard_changes(cell, partial(hold_for_change, claim.file, cell)):
        journal = Journal(cell)
        journal.append(StepRow(policy="a", step=1))
        journal.commit(1)
        resume_point.save_resume_point(cell, "a", 1, [], nobody)
        claim.file.unlink()
        foreign(tmp_path, 0.0, "a")
        assert claim.is_lost()
        journal.append(StepRow(policy="a", step=2))
        writers: list[Callable[[], object]] = [
            lambda: journal.commit(2), journal.compact, lambda: journal.rewind(0), lambda: Journal(cell),
            lambda: mark_state(cell, manifest, "done"), lambda: resume_point.save_resume_point(cell, "a", 2, [], nobody),
            lambda: resume_point.finish_checkpoint(cell, 1), lambda: resume_point.settle_checkpoint(cell, "none"),
            lambda: ReplayWriter(cell / "exchange.replay", 1),
        ]  # fmt: skip
        for write in writers:
            with pytest.raises(FencedError, match=f"taken over by process 1 on far; process {os.getpid()} on"):
                write()
    assert read_journal(cell).tables["steps"]["step"].to_pylist() == [1]
    assert resume_point.latest_resume_point(cell) == (1, cell / "resume" / "step-00000001")
    assert not (cell / "manifest.json").exists()
    assert not list(cell.rglob("*.tmp"))
    mark_state(cell, manifest, "done")
    Journal(cell).compact()


def test_one_that_is_stopped_in_the_middle_of_a_change_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "CHANGE_SECONDS", 0.2)
    with holder(CLAIM, tmp_path, "changing", "a") as process:
        process.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(
            claims, "_start_of_process", lambda pid: "" if pid == process.pid else "1"
        )  # its driver is dead
        words = rf"a worker of the ended run \(process {process.pid} on .*\) still has a lock"
        with pytest.raises(UsageError, match=words), claim_cells(tmp_path, {"a"}):
            pass
        process.kill()
        process.wait()
        with claim_cells(tmp_path, {"a"}):
            assert keys_held(tmp_path) == {"a"}


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
    assert [source.messages(step, "b") for step in (1, 2, 3)] == [[b"one"], [b"two"], []]
