"""One writer per cell: claims that live, died, were left by another machine, and that two lay at the same moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.session.suite import lock
from harness.session.suite.lock import LEASE_SECONDS, RUNS, holding, locked

HOLDER = "import sys, time; from pathlib import Path; from harness.session.suite.lock import locked\n"
HOLDER += "with locked(Path(sys.argv[1]), sys.argv[2:]): print('held', flush=True); time.sleep(100)"


def hold(folder: Path, *keys: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder), *keys], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def leave(folder: Path, age: float, *keys: str, name: str = "0") -> Path:
    """A claim as a run on another machine has left it."""
    file = folder / RUNS / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"host": "far", "system": "far", "pid": 1, "born": "1", "keys": keys}))
    os.utime(file, (time.time() - age,) * 2)
    return file


def test_disjoint_keys_go_on_side_by_side_and_a_common_one_is_refused(tmp_path):
    holder = hold(tmp_path, "a", "b")
    try:
        with locked(tmp_path, {"c"}):
            assert holding(tmp_path) == {"a", "b", "c"}
        with pytest.raises(UsageError, match=f"process {holder.pid} on "), locked(tmp_path, {"b", "c"}):
            pass
        assert holding(tmp_path) == {"a", "b"}
    finally:
        holder.kill()
        holder.wait()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_holder_is_followed_at_once_and_a_stopped_one_never(tmp_path, sent):
    holder = hold(tmp_path, "a")
    holder.send_signal(sent)
    try:
        if sent == signal.SIGSTOP:
            with pytest.raises(UsageError, match="another `harness run`"), locked(tmp_path, {"a"}):
                pass
            return
        time.sleep(0.5)  # dead, and nobody has asked for its exit code
        begin = time.monotonic()
        with locked(tmp_path, {"a"}):
            assert time.monotonic() - begin < 1
            assert len(list((tmp_path / RUNS).iterdir())) == 1
    finally:
        holder.kill()
        holder.wait()


def test_another_machines_claim_holds_for_its_lease(tmp_path, capfd):
    file = leave(tmp_path, LEASE_SECONDS - 4, "a")
    begin = time.monotonic()
    with locked(tmp_path, {"a"}):
        assert 3 < time.monotonic() - begin < 10
    assert not file.exists()
    assert "far" in capfd.readouterr().err


def test_another_machine_that_renews_its_claim_lives(tmp_path, monkeypatch):
    file = leave(tmp_path, 30.0, "a")
    program = f"import os, time\nwhile True: os.utime({str(file)!r}); time.sleep(1)"
    with subprocess.Popen([sys.executable, "-c", program]) as far:
        try:
            with pytest.raises(UsageError, match="process 1 on far"), locked(tmp_path, {"a"}):
                pass
        finally:
            far.kill()
    assert file.exists()


def test_a_run_whose_claim_was_taken_notices(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.1)
    with locked(tmp_path, {"a"}) as held:
        time.sleep(0.5)
        assert not held.lost()
        next((tmp_path / RUNS).iterdir()).unlink()
        time.sleep(0.5)
        assert held.lost()


RACE = """
import sys, time
from pathlib import Path
from harness.errors import UsageError
from harness.session.suite.lock import locked
folder, begin = Path(sys.argv[1]), float(sys.argv[2])
time.sleep(max(0, begin - time.time()))
try:
    with locked(folder / "results", {"a"}):
        (folder / "inside").mkdir()   # fails where somebody else is inside
        time.sleep(0.3)
        (folder / "inside").rmdir()
    print("had it")
except UsageError:
    print("refused")
"""


def test_of_many_that_come_at_once_one_is_inside_at_a_time(tmp_path):
    begin = str(time.time() + 4)
    racers = [
        subprocess.Popen([sys.executable, "-c", RACE, str(tmp_path), begin], stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    said = [racer.communicate(timeout=60)[0].strip() for racer in racers]
    assert set(said) <= {"had it", "refused"}, said
    assert "had it" in said
