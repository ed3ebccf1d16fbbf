"""The command itself, as people run it: killed, started again, with other numbers of workers; failures stay where they are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.session.matrix import _Driver
from harness.session.prepare import prepare
from harness.session.progress import Plain

SHORT = ["--set", "regimes=[independent, hacpo]", "--set", "seeds=[3, 4]"]
TIMES = ("cpu_seconds", "gpu_seconds", "gain_per_gpu_second")


def start(*arguments: object, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from harness.cli import main; main()", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload]


def harness(*arguments: object) -> tuple[int, str, str]:
    process = start(*arguments)
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def table(suite: str, results: Path) -> list[dict[str, object]]:
    code, out, err = harness("show", suite, "--format", "json", "--results", results)
    assert code == 0, err
    return [{k: v for k, v in row.items() if k not in TIMES} for row in json.loads(out)["rows"]]


@pytest.mark.timeout(400)
def test_killed_and_started_again_gives_the_same_table(suite_file, tmp_path):
    results = tmp_path / "killed"
    process = start("run", suite_file, "--results", results, "--jobs", 2, *SHORT, start_new_session=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not any(results.glob("tiny/*/resume/step-*")):
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    code, _, err = harness("run", suite_file, "--results", results, "--jobs", 2, *SHORT)
    assert code == 0, err
    done = json.loads(harness("status", suite_file, "--results", results, "--json", *SHORT)[1])["cells"]
    assert [c["state"] for c in done] == ["done"] * 4
    assert max(c["attempts"] for c in done) > 1
    other = tmp_path / "straight"
    assert harness("run", suite_file, "--results", other, "--jobs", 1, *SHORT)[0] == 0
    assert table("tiny", results) == table("tiny", other)
    began = time.monotonic()
    code, _, err = harness("run", suite_file, "--results", results, *SHORT)
    assert code == 0
    assert "nothing left to do" in err
    assert time.monotonic() - began < 60


@pytest.mark.timeout(200)
def test_a_cell_that_fails_leaves_the_others_alone(suite_file, tmp_path, folders):
    text = suite_file.read_text()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    broken_one = f"      - {{name: c, model: {broken}}}\n"
    whole_one = f"      - {{name: d, model: {folders['qwen']}}}\n"
    group = "  - name: broken\n    policies:\n" + broken_one + whole_one
    suite_file.write_text(text.replace("regimes:", group + "regimes:"))
    results = tmp_path / "results"
    one = ["--set", "regimes=[independent]", "--set", "training.steps=1"]
    code, _, err = harness("run", suite_file, "--results", results, *one)
    assert code == 1
    assert "broken/independent/3 failed: " in err
    assert "Traceback" not in err
    states = {p.parent.name: json.loads(p.read_text()) for p in results.glob("tiny/*/manifest.json")}
    by_group = {(m["kind"], m["group"]): m["state"] for m in states.values() if m["kind"] == "cell"}
    assert by_group == {("cell", "pair"): "done", ("cell", "broken"): "failed"}


def test_two_runs_on_one_folder_are_refused(suite_file, tmp_path):
    import fcntl

    folder = tmp_path / "results" / "tiny"
    folder.mkdir(parents=True)
    with (folder / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        code, _, err = harness("run", suite_file, "--results", tmp_path / "results", *SHORT)
    assert code == 2
    assert "another `harness run`" in err


@pytest.mark.parametrize("place", ["a_file", "a_file/below"])
def test_results_that_cannot_be_written(suite_file, tmp_path, place):
    (tmp_path / "a_file").write_text("x")
    code, out, err = harness("run", suite_file, "--results", tmp_path / place, *SHORT)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "is a file" in err


def test_no_room_for_the_predicted_results(suite_file, tmp_path, monkeypatch):
    import shutil

    from harness.errors import UsageError
    from harness.session.prepare import check_room

    prepared = prepare(str(suite_file), tmp_path / "results")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(UsageError, match="GiB are free"):
        check_room(prepared)
    assert not (tmp_path / "results").exists()


def test_cells_wait_for_their_bases_only(suite_file, tmp_path):
    driver = _Driver(prepare(str(suite_file), tmp_path), Plain(), lambda: None)
    assert set(driver.waits[driver.prepared.cells[0].key]) == set(driver.bases)
