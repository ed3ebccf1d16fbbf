"""The command itself on this engine, by its shipped suite: a cell loses a part of itself, and the next run finishes it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import psutil
import pytest

from harness.session.suite.prepare import prepare
from harness.store.journal import read_journal

pytestmark = pytest.mark.timeout(1500)
SILENCE, SLACK = 15.0, 60.0
STEPS = 8
CELL = "llama-qwen/sgt/11"
SET = {
    "training.steps": STEPS, "training.prompts": 2, "training.rollouts": 4, "training.checkpoint_every": 2,
    "evaluation.limit": 4, "evaluation.curve_every": 0, "engine_options.silence_seconds": SILENCE,
}  # fmt: skip
ASKED = [f"{key}={value}" for key, value in SET.items()]


@contextmanager
def running(results):
    """`harness run` of the one cell, as a process that does not outlive the block. Ends with its exit code, see `ended`.

    Under a shell: where Ray runs in this process, it takes its children's exit codes away.
    """
    sets = [word for one in ASKED for word in ("--set", one)]
    arguments = ["run", "openrlhf_cpu", "--only", CELL, "--results", str(results), *sets]
    command = [sys.executable, "-c", "from harness.cli import main; main()", *arguments]
    shell = ["sh", "-c", '"$@"; echo "exit code $?" >&2', "sh", *command]
    process = subprocess.Popen(shell, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children():
                child.kill()
        process.kill()


def ended(process, limit):
    _, errors = process.communicate(timeout=limit)
    return int(errors.rpartition("exit code ")[2]), errors


def newest(folder):
    found = [re.fullmatch(r"step-(\d+)", p.name) for p in (folder / "resume").glob("step-*")]
    return max((int(match[1]) for match in found if match), default=-1)


def lose_its_sampler(process, folder):
    """Once the run has written a new checkpoint, kill one of its rollout actors; all its processes then."""
    begin, end = newest(folder), time.monotonic() + 300
    while newest(folder) <= begin and process.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
    everyone = psutil.Process(process.pid).children(recursive=True)
    # Ray names a process after its actor's class
    actors = [p for p in everyone if any(word.startswith("ray::Rollout") for word in p.cmdline())]
    assert actors, [p.cmdline()[:1] for p in everyone]
    os.kill(actors[0].pid, signal.SIGKILL)
    return everyone


def test_a_run_that_lost_a_part_says_which_and_the_next_one_finishes_the_cell(tmp_path, report_line):
    def status():
        return prepare("openrlhf_cpu", tmp_path, only=CELL, overrides=ASKED).status()

    (cell,) = prepare("openrlhf_cpu", tmp_path, only=CELL, overrides=ASKED).cells
    folder = tmp_path / "openrlhf_cpu" / cell.key
    with running(tmp_path) as process:
        everyone = lose_its_sampler(process, folder)
        lost, reached = time.monotonic(), newest(folder)
        code, errors = ended(process, SILENCE + SLACK + 60)
    waited = time.monotonic() - lost
    (reason,) = [line for line in errors.splitlines() if line.startswith(f"harness: {CELL} failed")]
    report_line(f"a rollout actor killed after step {reached}: ended in {waited:.1f} s, {reason}")
    assert code == 1
    assert re.search(r"policy '\w+': rollout engine 0", reason), errors
    assert waited < SILENCE + SLACK
    _, alive = psutil.wait_procs(everyone, timeout=10)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    assert [(s.state, s.attempts) for s in status()] == [("failed", 1)]
    with running(tmp_path) as process:
        code, errors = ended(process, 400)
    assert code == 0, errors
    assert [(s.state, s.attempts) for s in status()] == [("done", 2)]
    tables = read_journal(folder).tables
    assert tables["samples"].num_rows == 2 * 4 * 3, "two policies' answers, two at random and one greedy each"
    found = sorted((row["policy"], row["step"]) for row in tables["steps"].to_pylist())
    assert found == [(p, s) for p in ("llama", "qwen") for s in range(1, STEPS + 1)]
