"""What verifying costs: a phase's CPU-seconds hold those of the verifier's and the scorers' processes."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.session.cell.learners import Clock
from harness.verification.scorer import Called, Score, Scorer
from harness.verification.verifier import Verifier

BUSY = "import sys, time\nwhile time.process_time() < float(sys.argv[1]): pass"


class Busy(Scorer):
    """Computes for the seconds that the answer names, itself or in a program of its own, and may then wait for ever."""

    def score(self, gold: str, text: str) -> Score:
        how, seconds = text.split()
        if how == "program":
            subprocess.run([sys.executable, "-c", BUSY, seconds], check=True)
        else:
            until = time.process_time() + float(seconds)
            while time.process_time() < until:
                pass
        if how == "hang":
            time.sleep(60)
        return Score(True)


@pytest.fixture(autouse=True)
def _reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


CALLED = Called(f"{__name__}:Busy", 5.0, 10.0)


def asked(verifier: Verifier, text: str, called: Called = CALLED) -> float:
    clock = Clock()
    with clock.phase("verify"):
        verifier.by(called).verify([("gold", text)])
    return clock.cpu("verify")


def test_a_phase_counts_the_processes_that_verify_for_it_whichever_thread_asks() -> None:
    with Verifier(workers=1) as verifier, ThreadPoolExecutor(2) as threads:
        assert asked(verifier, "itself 0.01") > 0.25, "the algebra system is imported for whoever asks first"
        assert asked(verifier, "program 0.3") == pytest.approx(0.35, abs=0.15)
        long, short = threads.map(lambda text: asked(verifier, text), ("itself 0.4", "itself 0.1"))
        assert (long, short) == (pytest.approx(0.4, abs=0.1), pytest.approx(0.1, abs=0.1))
        assert asked(verifier, "itself 0.4") < 0.1, "the verdict is known"


@pytest.mark.slow
def test_what_an_answer_used_that_was_killed_counts() -> None:
    over, hung = CALLED._replace(cpu_seconds=0.2), CALLED._replace(wall_seconds=0.8)
    with Verifier(workers=1) as verifier:
        asked(verifier, "itself 0.01")
        assert 0.15 < asked(verifier, "itself 9", over) < 0.5, "by its limit of CPU time"
        assert asked(verifier, "hang 0.3", hung) > 2 * 0.3, "asked twice, each time of another process"
