"""A verdict does not depend on how busy the machine is."""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest
from corpus import corpus

from harness.verification.verifier import Verifier

PAIRS = int(os.environ.get("PAIRS", "300"))
ALGEBRA = [
    (rf"\sum_{{k=1}}^{{n}} k^{power}+{shift}", rf"\boxed{{{shift + off}+\sum_{{j=1}}^{{n}} j^{power}}}")
    for power in (1, 2, 3)
    for shift in range(2, 7)
    for off in (0, 1)
] + [
    (r"\int_0^1 x^2\sin x\,dx", r"\boxed{\int_0^1 t^2\sin t\,dt}"),
    (r"\int_0^1 x^2\sin x\,dx+1", r"\boxed{1+\int_0^1 t^2\sin t\,dt}"),
    (r"\sum_{k=1}^{n} k", r"\boxed{n \lfloor e^{e^{e^3}} \rfloor}"),
    (r"\sum_{k=1}^{n} k^2", r"\boxed{\sin(\sin(\sin(\sin(x^{85}+\sqrt{x+\sqrt{x}}))))}"),
]


def keep_busy(until: float) -> None:
    while time.monotonic() < until:
        sum(number * number for number in range(10_000))


def verdicts_of(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    with Verifier() as verifier:
        return [(verdict.value, verdict.reason) for verdict in verifier.verify(pairs)]


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_verdicts_are_the_same_beside_six_busy_processes() -> None:
    """What needs the algebra system, in among the corpus; at most two verdicts may be lost, none may turn."""
    cases = [(case.gold, case.text) for case in corpus(rounds=4)]
    pairs = (ALGEBRA + cases)[:PAIRS]
    idle = verdicts_of(pairs)
    context = multiprocessing.get_context("fork")
    busy = [context.Process(target=keep_busy, args=(time.monotonic() + 1_500,), daemon=True) for _ in range(6)]
    for process in busy:
        process.start()
    try:
        loaded = verdicts_of(pairs)
    finally:
        for process in busy:
            process.kill()
    changed = [(pair, a, b) for pair, a, b in zip(pairs, idle, loaded, strict=True) if a != b]
    assert len(changed) <= 2
    assert all("invalid" in (before[0], after[0]) for _, before, after in changed)
