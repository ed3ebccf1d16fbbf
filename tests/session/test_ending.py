"""How runs end: by the scheduler's SIGTERM on a busy machine, by SIGKILL; and what `status` says afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from .command import harness, said, start, wait_until

pytestmark = pytest.mark.slow

LONG = ["--set", "regimes=[independent]", "--set", "seeds=[3, 4]", "--set", "training.steps=40", "--set",
        "training.checkpoint_every=1000", "--set", "evaluation.curve_every=0"]  # fmt: skip


def states(results, *arguments):
    code, out, err = harness("status", *arguments, "--results", results, "--json")
    assert code == 0, err
    return [(c["state"], c["attempts"]) for c in json.loads(out)["cells"]]


@pytest.mark.timeout(600)
def test_sigterm_on_a_busy_machine_ends_like_ctrl_c(suite_file, tmp_path):
    results = tmp_path / "results"
    with ExitStack() as stack:
        for _ in range(2 * (os.cpu_count() or 1)):
            hog = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(hog.kill)
        process = start("run", suite_file, "--results", results, "--jobs", 2, *LONG, start_new_session=True)
        wait_until(lambda: len(said(results, "step 2/40")) == 2, process, 400)
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGTERM)  # to every process, as SLURM does
        _, err = process.communicate(timeout=60)
        assert time.monotonic() - began < 30
    assert process.returncode == 130, err
    assert "goes on from here" in err
    assert len(list(results.glob("tiny/*/resume/step-*"))) == 2, (
        "the only checkpoints there can be are those of the end"
    )
    assert states(results, "tiny") == [("cut off", 1)] * 2, "how such a cell goes on: test_cells.py"
