"""A verifier's process that is killed or stopped from outside takes no verdict with it."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress

import psutil
import pytest

from harness.verification.scorer import MATH
from harness.verification.verdict import Verdict
from harness.verification.verifier import Verifier

PAIRS: list[tuple[str, str | None]] = [
    (f"\\sum_{{i=1}}^{{{n}}} i^2", f"\\boxed{{{n * (n + 1) * (2 * n + 1) // 6 + off}}}")
    for n in range(3, 33)
    for off in (0, 1)
]
"""Sums need the algebra system, so they are decided in a process of the pool."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("how", "parent"),
    [
        (signal.SIGKILL, False),
        *(
            pytest.param(how, parent, marks=pytest.mark.slow)
            for how, parent in ((signal.SIGSTOP, False), (signal.SIGKILL, True), (signal.SIGSTOP, True))
        ),
    ],
)
def test_killed_and_stopped_processes_change_no_verdict(how: signal.Signals, parent: bool) -> None:
    found: list[Verdict] = []
    with Verifier(workers=1).by(MATH._replace(wall_seconds=3.0)) as verifier:
        asking = threading.Thread(target=lambda: found.extend(verifier.verify(PAIRS)))
        asking.start()
        struck = 0
        while asking.is_alive() and not struck:
            for worker in psutil.Process().children():
                with suppress(psutil.Error):  # it has just ended
                    for process in worker.children():  # the one that answers
                        (worker if parent else process).send_signal(how)
                        struck += 1
            time.sleep(0.05)
        asking.join(200)
    assert struck
    assert [v.value for v in found] == ["right", "wrong"] * (len(PAIRS) // 2)
