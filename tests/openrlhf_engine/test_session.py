"""The command itself on this engine: one cell loses a part of itself again and again, and the next run goes on, to the end.
Its training is a mixture of two tasks.

Every loss takes a run of its own: two of them here, all three with HARNESS_ALL_LOSSES=1 in the environment.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from harness.session.suite.prepare import prepare_named
from harness.store.journal import read_journal

pytestmark = pytest.mark.timeout(2700)
SILENCE, SLACK = 15.0, 60.0
STEPS = 8
SUITE = """
name: losses
engine: openrlhf
engine_options: {{dtype: fp32, trainers: 1, max_length: 160, rollout_memory: 0.05, rollout_sequences: 64,
                 start_seconds: 500.0, call_seconds: 240.0, sync_seconds: 40.0, silence_seconds: {silence}}}
groups:
  - name: pair
    policies:
      - {{name: a, model: "{llama}"}}
      - {{name: b, model: "{qwen}"}}
regimes: [independent, sgt]
seeds: [1]
training: {{task: [micro, ladder.add1], steps: {steps}, prompts: 2, rollouts: 4, max_new_tokens: 16, measure_every: 0,
           checkpoint_every: 2}}
evaluation: {{tasks: [micro], k: 1, limit: 4, curve_every: 0}}
"""
PARTS = [  # Ray names a process after its actor's class, or after the parent class whose method it runs
    ("Rollout", signal.SIGKILL, r"policy '\w': rollout engine 0"),
    ("Policy", signal.SIGSTOP, r"policy '\w': trainer rank 0"),
    ("Policy", signal.SIGKILL, r"policy '\w': trainer rank 0"),
]
if not os.environ.get("HARNESS_ALL_LOSSES"):
    del PARTS[2:]


@contextmanager
def running(suite, results):
    """`harness run` of the one cell, as a process that does not outlive the block. Ends with its exit code, see `ended`.

    Under a shell: where Ray runs in this process, it takes its children's exit codes away.
    """
    arguments = ["run", str(suite), "--only", "pair/sgt/1", "--results", str(results)]
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


def print_where_it_stands(process):
    """For each process of the run: its state and command; for the harness and Ray's workers their stacks too."""
    spy = Path(sys.executable).with_name("py-spy")  # comes with Ray
    for one in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess, subprocess.TimeoutExpired):
            command = " ".join(one.cmdline())
            print(one.pid, one.status(), command[:200], flush=True)
            if "harness" in command or command.startswith("ray::"):
                subprocess.run([spy, "dump", "--nonblocking", "--pid", str(one.pid)], timeout=30, check=False)


def ended(process, limit):
    """Exit code and stderr. Fails after `limit` seconds, with where each process of the run stands."""
    try:
        _, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        print_where_it_stands(process)
        raise
    return int(errors.rpartition("exit code ")[2]), errors


def newest(folder):
    matches = [re.fullmatch(r"step-(\d+)", p.name) for p in (folder / "resume").glob("step-*")]
    return max((int(match[1]) for match in matches if match), default=-1)


def lose_a_part(process, part, sent, folder):
    """Once the run has written a new checkpoint, send a signal to one of its actors; all its processes then."""
    begin, start = newest(folder), time.monotonic()
    while newest(folder) <= begin and process.poll() is None:
        if time.monotonic() - start > 700:
            print_where_it_stands(process)
            pytest.fail(f"no checkpoint after step {begin} in 700 s")
        time.sleep(0.2)
    everyone = psutil.Process(process.pid).children(recursive=True)
    actors = [p for p in everyone if any(word.startswith(f"ray::{part}") for word in p.cmdline())]
    if not actors:
        print_where_it_stands(process)
        waited = time.monotonic() - start
        pytest.fail(f"no process of {part} after {waited:.0f} s; newest checkpoint {newest(folder)}, before {begin}")
    os.kill(actors[0].pid, sent)
    return everyone


def test_a_run_that_lost_a_part_says_which_and_the_next_ones_finish_the_cell(tmp_path, folders, report_line):
    suite, results = tmp_path / "losses.yaml", tmp_path / "results"
    suite.write_text(SUITE.format(silence=SILENCE, steps=STEPS, **folders))
    (cell,) = prepare_named(str(suite), results, only=["pair/sgt/1"]).cells
    folder = results / "losses" / cell.key
    for attempt, (part, sent, named) in enumerate(PARTS, start=1):
        with running(suite, results) as process:
            everyone = lose_a_part(process, part, sent, folder)
            lost, reached = time.monotonic(), newest(folder)
            code, errors = ended(process, SILENCE + SLACK + 60)
        waited = time.monotonic() - lost
        (reason,) = [line for line in errors.splitlines() if line.startswith("harness: pair/sgt/1 failed")]
        report_line(f"run {attempt}, {sent.name} of {part} after step {reached}: ended in {waited:.1f} s, {reason}")
        assert code == 1
        assert re.search(named, reason), errors
        assert waited < SILENCE + SLACK
        _, alive = psutil.wait_procs(everyone, timeout=10)
        assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
        status = prepare_named(str(suite), results, only=["pair/sgt/1"]).statuses()
        assert [(s.state, s.attempts) for s in status] == [("failed", attempt)]
    with running(suite, results) as process:
        code, errors = ended(process, 900)
    assert code == 0, errors
    (status,) = prepare_named(str(suite), results, only=["pair/sgt/1"]).statuses()
    assert (status.state, status.attempts) == ("done", len(PARTS) + 1)
    steps = read_journal(folder).tables["steps"].to_pylist()
    assert sorted((row["policy"], row["step"]) for row in steps) == [(p, s) for p in "ab" for s in range(1, STEPS + 1)]
    of_tasks = read_journal(folder).tables["task_steps"].to_pylist()
    expected = sorted((p, s, t, 1) for p in "ab" for s in range(1, STEPS + 1) for t in ("ladder.add1", "micro"))
    assert sorted((row["policy"], row["step"], row["task"], row["prompts"]) for row in of_tasks) == expected
