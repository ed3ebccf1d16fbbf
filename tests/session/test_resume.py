"""Kill and resume; docs/recovery.md names the test of each fault."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from running import TABLES, harness, here, rows, said, start, wait_until

from harness.errors import StoreError
from harness.session.cell import resume_point
from harness.session.cell.exchanges import ExchangeState
from harness.session.suite.prepare import prepare_named
from harness.session.suite.prepared import Prepared
from harness.store.manifest import Manifest, PolicyEntry, read_manifest, read_suite, write_manifest

ROOT = Path(__file__).parents[2]
FAST = ["evaluation.curve_every=0", "regimes=[independent]"]
LONG = ["--jobs", 1, "--set", "training.checkpoint_every=1000", *(x for o in FAST for x in ("--set", o))]


def worker_of(results: Path, words: str, process: subprocess.Popen[str] | None = None) -> tuple[psutil.Process, Path]:
    """The process that writes the one log which says these words, once it does; and the cell's folder."""
    wait_until(lambda: bool(said(results, words)), process, 300)
    (log,) = said(results, words)
    match = re.search(r"process (\d+)", log.read_text())
    assert match is not None
    return psutil.Process(int(match[1])), log.parent


@pytest.mark.timeout(600)
def test_a_killed_worker_is_tried_once_more(finished: Prepared, suite_file: Path, tmp_path: Path) -> None:
    results, short = tmp_path / "results", ["--set", "regimes=[independent]", "--jobs", 1]
    killer = threading.Thread(target=lambda: worker_of(results, "step 2/4")[0].kill(), daemon=True)
    killer.start()
    code, _, err = here("run", suite_file, "--results", results, *short)
    assert code == 0, err
    assert "pair/independent/3: once more, after the others and alone, the worker process was killed by signal 9" in err
    states = {
        (m.kind, m.state, m.fault, m.attempts)
        for m in (read_manifest(f.parent) for f in results.glob("tiny/*/manifest.json"))
    }
    assert states == {("base", "done", None, 1), ("cell", "done", None, 2)}
    assert "nothing left to do" in here("run", suite_file, "--results", results, *short)[2]
    prepared = prepare_named(str(suite_file), results, overrides=["regimes=[independent]"])
    for table in TABLES:
        assert rows(prepared, prepared.cells[0], table) == rows(finished, prepared.cells[0], table), table


def contents(folder: Path) -> dict[str, str]:
    files = [file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("log")]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_stopped_worker_wakes_up_too_late(suite_file: Path, tmp_path: Path) -> None:
    steps = ["--set", "training.steps=8"]
    process = start("run", suite_file, "--results", tmp_path, *LONG, *steps)
    worker, folder = worker_of(tmp_path, "step 2/8", process)
    worker.suspend()
    process.kill()
    process.communicate()
    assert harness("run", suite_file, "--results", tmp_path, *LONG, *steps, timeout=400)[0] == 0
    done = contents(folder)
    assert worker.status() == psutil.STATUS_STOPPED
    worker.resume()  # its step ends, its driver is gone: it would write a checkpoint and its rows
    worker.wait(100)
    assert contents(folder) == done
    assert read_manifest(folder).state == "done"
    assert "taken over; process" in (folder / "log.1").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_worker_whose_driver_was_killed_keeps_its_step(suite_file: Path, tmp_path: Path) -> None:
    process = start("run", suite_file, "--results", tmp_path, *LONG, "--set", "training.steps=8")
    worker, folder = worker_of(tmp_path, "step 2/8", process)
    process.kill()
    process.communicate()
    worker.wait(100)
    assert list(folder.glob("resume/step-*")), "the checkpoint of the step in which the driver died"
    assert read_manifest(folder).state == "running", "not failed: the next run calls it cut off, and goes on"
    assert "BrokenPipeError" not in (folder / "log").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sigterm_on_a_busy_machine_ends_like_ctrl_c(suite_file: Path, tmp_path: Path) -> None:
    long = [*LONG[2:], "--set", "seeds=[3, 4]", "--set", "training.steps=40"]
    with ExitStack() as stack:
        process = start("run", suite_file, "--results", tmp_path, "--jobs", 2, *long, start_new_session=True)
        wait_until(lambda: len(said(tmp_path, "step 2/40")) == 2, process, 400)
        for _ in range(2 * (os.cpu_count() or 1)):
            hog = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(hog.kill)
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGTERM)  # to every process, as SLURM does
        _, err = process.communicate(timeout=60)
        assert time.monotonic() - began < 30
    assert process.returncode == 130, err
    assert "goes on from here" in err
    assert len(list(tmp_path.glob("tiny/*/resume/step-*"))) == 2, "there can be no checkpoints but those of the end"
    cells = json.loads(harness("status", "tiny", "--results", tmp_path, "--json")[1])["cells"]
    assert [(c["state"], c["attempts"]) for c in cells] == [("cut off", 1)] * 2


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_where_flock_fails_a_run_works_and_a_killed_one_goes_on(suite_file: Path, tmp_path: Path) -> None:
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")
    source, library = tmp_path / "no_locks.c", tmp_path / "no_locks.so"
    source.write_text("#include <errno.h>\nint flock(int fd, int op) { errno = ENOLCK; return -1; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    env, results = {"LD_PRELOAD": str(library)}, tmp_path / "results"
    command = ["run", suite_file, "--results", results, "--jobs", 1, "--set", "regimes=[independent, hacpo]"]
    first = start(*command, env=env)
    wait_until(lambda: any(results.glob("tiny/*/resume/step-*")), first)
    first.send_signal(signal.SIGSTOP)  # so that it is not over before the next one asks
    code, _, err = harness(*command, env=env)
    assert (code, "another `harness run` is writing these results" in err) == (2, True), err
    first.kill()
    first.communicate()
    code, _, err = harness(*command, env=env)
    assert code == 0, err
    assert (results / "harness.duckdb").exists()


def test_a_checkpoint_with_many_messages_held_back_is_read_again(tmp_path: Path) -> None:
    state = ExchangeState(b"", {"stale": bytes(50 << 20)})
    place = resume_point.save_resume_point(tmp_path, "k", 1, [], state)
    assert (place / resume_point.SESSION).stat().st_size > 64 << 20
    assert resume_point.restore_resume_point(place, "k", []).exchange == state


def test_every_altered_byte_of_a_manifest_is_noticed(tmp_path: Path) -> None:
    policies = (PolicyEntry("a", "micro/llama"), PolicyEntry("b", "micro/qwen"))
    manifest = Manifest(suite="s", key="k", group="pair", regime="hacpo", seed=13, policies=policies, config={"x": 1.5})
    write_manifest(tmp_path, manifest)
    file = tmp_path / "manifest.json"
    data, unnoticed = file.read_bytes(), []
    for at in range(0, len(data), 3):
        altered = bytearray(data)
        altered[at] ^= 1 + at % 127
        file.write_bytes(altered)
        with suppress(StoreError):
            unnoticed += [at] if read_manifest(tmp_path) != manifest else []
    assert unnoticed == []
    shipped = (ROOT / "results" / "reference" / "quickstart" / "suite.json").read_bytes()
    (tmp_path / "suite.json").write_bytes(shipped.replace(b'"quickstart"', b'"quickstarx"', 1))
    with pytest.raises(StoreError, match="altered"):
        read_suite(tmp_path)


def test_the_table_of_faults_names_tests_that_there_are() -> None:
    section = (ROOT / "docs" / "recovery.md").read_text().partition("| event |")[2].partition("\n\n")[0]
    lines = section.splitlines()[2:]
    assert len(lines) >= 16
    for line in lines:
        match = re.search(r"\| `(tests/[\w/]+\.py)::(test_\w+)` \|$", line)
        assert match is not None, f"no test: {line}"
        assert f"\ndef {match[2]}(" in (ROOT / match[1]).read_text(), match[0]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_dozen_faults(tmp_path: Path) -> None:
    torture = [sys.executable, str(ROOT / "benchmarks/torture.py"), "--short", "--seed", "4", "--work", str(tmp_path)]
    done = subprocess.run(torture, capture_output=True, text=True, timeout=1400, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["violation"] == ""
    assert sum(n for kind, n in summary["faults"].items() if kind != "clock step") >= 12, summary
