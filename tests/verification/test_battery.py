"""Hostile answers: nothing hangs, nothing is right, and the verifier lives on; in threads, processes and under Ray."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import threading

import psutil
import pytest
from hostile_answers import HOSTILE

from harness.errors import VerificationError
from harness.verification.messages import Limits
from harness.verification.verdict import Verdict
from harness.verification.verifier import Verifier, require_valid

SAMPLE = [("42", r"\boxed{42}"), (r"\frac{1}{1-x}", r"\boxed{-\frac{1}{x-1}}"), ("x^2", r"\boxed{x^3}"), *HOSTILE[:24]]
EXPECTED = ["right", "right", "wrong", *["wrong"] * 24]


def _values(pairs: list[tuple[str, str | None]]) -> list[str]:
    with Verifier(workers=1) as verifier:
        return [verdict.value for verdict in verifier.verify(pairs)]


def test_hostile_answers_are_wrong_or_invalid_with_a_reason(verifier: Verifier) -> None:
    for (gold, text), verdict in zip(HOSTILE, verifier.verify(HOSTILE), strict=True):
        assert verdict.value == "wrong" or (verdict.value == "invalid" and verdict.reason), (gold, text)


def test_in_a_thread(verifier: Verifier) -> None:
    results: list[list[str]] = []
    work = lambda: results.append([v.value for v in verifier.verify(SAMPLE)])  # noqa: E731
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [EXPECTED] * 4


def test_in_a_process_pool_and_in_daemonic_processes() -> None:
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(_values, SAMPLE).result(60) == EXPECTED
    with multiprocessing.get_context("spawn").Pool(1) as daemons:
        assert daemons.apply_async(_values, (SAMPLE,)).get(60) == EXPECTED


def test_a_forked_child_starts_its_own_processes(verifier: Verifier) -> None:
    verifier.verify([("x", r"\boxed{\frac{2x}{2}}")])
    receive, send = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        send.send(
            [v.value for v in verifier.verify([("y", f"\\boxed{{\\frac{{{i}y}}{{{i + 1}}}}}") for i in range(2, 80)])]
        )
        verifier.close()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    mine = verifier.verify([("z", f"\\boxed{{\\frac{{{i}z}}{{{i}}}}}") for i in range(2, 80)])
    assert receive.poll(60)
    assert set(receive.recv()) == {"wrong"}
    process.join(20)
    assert {v.value for v in mine} == {"right"}


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("x^2", r"\boxed{(x+1)^{999}}"),
        ("x^2", r"\boxed{(x+1)^{99}(x+2)^{99}(x+3)^{99}(x^9+x^5+1)^{99}}"),
        (r"\frac{1}{1-x}", r"\boxed{\frac{(x^{97}+1)^{31}(x^{89}-x+1)^{29}}{(x^{83}+x+1)^{23}(x-1)^{19}}}"),
    ],
)
def test_nobody_escapes_by_being_slow_to_simplify(verifier: Verifier, gold: str, text: str) -> None:
    assert verifier.verify([(gold, text)])[0].value == "wrong"


def test_under_ray() -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed")

    def values(pairs: list[tuple[str, str | None]]) -> list[str]:
        with Verifier(workers=1) as verifier:
            return [verdict.value for verdict in verifier.verify(pairs)]

    ray.init(num_cpus=1, include_dashboard=False)
    try:
        assert ray.get(ray.remote(values).remote(SAMPLE), timeout=100) == EXPECTED
    finally:
        ray.shutdown()


UNREAD = (r"\max(x, y)", r"\boxed{\max(y, x)}")  # in none of our grammars: the algebra system decides
SLOW = (r"\max(x, y)", r"\boxed{\sin(\sin(\sin(\sin(\sin(\sin(\sin(x^{50}))))))) + \sqrt{x+\sqrt{x+\sqrt{y+\sqrt{x}}}}}")
AFTER = (r"\max(x, y)", r"\boxed{\max (y + 0, x)}")


def _worker() -> psutil.Process:
    """The one process of a `Verifier(workers=1)`, whose child decides."""
    return next(p for p in psutil.Process().children() if "harness.verification.worker" in " ".join(p.cmdline()))


def test_an_answer_over_the_cpu_limit_is_wrong_and_the_pool_goes_on() -> None:
    with Verifier(workers=1, limits=Limits(cpu_seconds=0.0)) as verifier:
        for _ in range(3):
            verdict = verifier.verify([SLOW])[0]
            assert (verdict.value, verdict.reason) == ("wrong", "over-limit: time")
            verifier = verifier
    with Verifier(workers=1) as verifier:
        values = [v.value for v in verifier.verify([SLOW, UNREAD])]
        assert values[0] == "wrong"


def test_a_killed_worker_is_replaced() -> None:
    with Verifier(workers=1) as verifier:
        assert verifier.verify([("x", r"\boxed{\frac{2x}{2}}")])[0].value == "right"
        for child in psutil.Process().children():
            if "harness.verification.worker" in " ".join(child.cmdline()):
                child.kill()
                child.wait(10)
        values = [v.value for v in verifier.verify([("y", r"\boxed{\frac{2y}{2}}"), ("y", r"\boxed{3y}")])]
    assert "wrong" in values
    assert set(values) <= {"right", "wrong", "invalid"}


def test_processes_start_only_when_needed_and_close_ends_them() -> None:
    before = len(psutil.Process().children())
    with Verifier() as verifier:
        verifier.verify([("42", r"\boxed{42}"), (r"(1, \frac12)", r"\boxed{(1, 0.5)}"), ("x", r"\boxed{\frac{2x}{2}}")])
        assert len(psutil.Process().children()) == before
        verifier.verify([UNREAD])
        assert len(psutil.Process().children()) == before + 1
    assert len(psutil.Process().children()) == before


def test_too_many_invalid_verdicts_fail_the_cell() -> None:
    verdicts = [Verdict("right")] * 97 + [Verdict("invalid", "timeout")] * 3
    require_valid(verdicts, 0.03)
    with pytest.raises(VerificationError, match=r"3 of 100 .*timeout"):
        require_valid(verdicts, 0.02)
