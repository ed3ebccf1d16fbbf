"""Hostile answers: nothing hangs, nothing is right, and the verifier lives on."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hostile_answers import HOSTILE

from harness.errors import VerificationError
from harness.verification.catalogue import scorer_called
from harness.verification.processes import JudgedQuestion, judge_question
from harness.verification.scorer import MATH, Called, Math
from harness.verification.verdict import Verdict
from harness.verification.verifier import Verifier, require_valid
from harness.verification.work import OverWork, WorkLimit

SAMPLE = [("42", r"\boxed{42}"), (r"\frac{1}{1-x}", r"\boxed{-\frac{1}{x-1}}"), ("x^2", r"\boxed{x^3}"), *HOSTILE[:24]]
EXPECTED = ["right", "right", "wrong", *["wrong"] * 24]


def _values(pairs: list[tuple[str, str | None]]) -> list[str]:
    with Verifier(workers=1) as verifier:
        return [verdict.value for verdict in verifier.verify(pairs)]


def test_hostile_answers_are_wrong(verifier: Verifier) -> None:
    for (gold, text), verdict in zip(HOSTILE, verifier.verify(HOSTILE), strict=True):
        assert verdict.value == "wrong", (gold, text, verdict.reason)


def test_in_a_process_pool_and_in_daemonic_processes() -> None:
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(_values, SAMPLE).result(60) == EXPECTED
    with multiprocessing.get_context("spawn").Pool(1) as daemons:
        assert daemons.apply_async(_values, (SAMPLE,)).get(60) == EXPECTED


@pytest.mark.slow
def test_a_forked_child_starts_its_own_processes(verifier: Verifier) -> None:
    verifier.verify([UNREAD])
    receive, send = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        send.send(
            [v.value for v in verifier.verify([(r"\max(y, 1)", f"\\boxed{{\\max(y, {i})}}") for i in range(2, 30)])]
        )
        verifier.close()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    mine = verifier.verify([(f"\\max(z, {i})", f"\\boxed{{\\max({i}, z)}}") for i in range(2, 30)])
    assert receive.poll(60)
    assert set(receive.recv()) == {"wrong"}
    process.join(20)
    assert {v.value for v in mine} == {"right"}


@pytest.mark.slow
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
HUGE = (r"\sum_{k=1}^{n} k", r"\boxed{\sum_{k=1}^{n} \lfloor e^{e^{e^k}} \rfloor}")
SLOWEST = (r"\sum_{k=1}^{n} k", r"\boxed{n \lfloor e^{e^{e^3}} \rfloor}")


@pytest.mark.parametrize(
    ("pair", "reason", "patience"), [(SLOWEST, "over-limit: work", 1), (HUGE, "over-limit: memory", 10)]
)
def test_an_answer_over_the_limits_is_wrong_and_the_pool_goes_on(
    pair: tuple[str, str], reason: str, patience: int
) -> None:
    """patience: a slow processor would be out of time before it is out of memory."""
    with Verifier(workers=1) as started:
        verifier = started.by(MATH._replace(cpu_seconds=patience * MATH.cpu_seconds))
        before = verifier.verify([UNREAD])[0].value
        verdicts = verifier.verify([pair, (r"\max(y, z)", r"\boxed{\max(z, y)}")])
    assert before == "right"
    assert (verdicts[0].value, verdicts[0].reason) == ("wrong", reason)
    assert verdicts[1].value == "right"


@pytest.mark.parametrize(
    ("error", "reply"),
    [
        (MemoryError, Verdict("wrong", "over-limit: memory")),
        (RecursionError, Verdict("wrong", "over-limit: recursion")),
        (ZeroDivisionError, Verdict("invalid", "crash: ZeroDivisionError")),
    ],
)
def test_memory_and_depth_are_the_answers_doing(
    error: type[Exception], reply: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    def algebra(gold: str, answer: str) -> bool:
        raise error

    monkeypatch.setattr("harness.verification.algebra.are_equivalent", algebra)
    assert judge_question(JudgedQuestion(UNREAD[0], r"\max(x, y, 1)", MATH), Math()) == reply


@pytest.mark.slow
def test_a_child_killed_from_outside_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    others = set(psutil.Process().children())
    with Verifier(workers=1) as mathematics:
        verifier = mathematics.by(Called("test_costs:Busy", 30.0, 60.0))
        assert verifier.verify([("gold", "itself 0.01")])[0].value == "right"

        def deciding() -> list[psutil.Process]:
            return [child for worker in {*psutil.Process().children()} - others for child in worker.children()]

        killers = [threading.Timer(after, lambda: [busy.kill() for busy in deciding()]) for after in (1.0, 2.0)]
        for killer in killers:
            killer.start()
        verdict = verifier.verify([("gold", "itself 20")])[0]
        assert (verdict.value, verdict.reason) == ("invalid", "crash: SIGKILL")
        assert mathematics.verify([(r"\max(y, z)", r"\boxed{\max(z, y)}")])[0].value == "right"


@pytest.mark.slow
def test_what_time_alone_ends_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    with Verifier(workers=1) as mathematics:
        verdict = mathematics.by(Called("test_costs:Busy", 0.2, 60.0)).verify([("gold", "itself 9")])[0]
    assert (verdict.value, verdict.reason) == ("invalid", "timeout: CPU time")


def test_a_fault_of_our_rules_is_no_verdict_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(gold: str, answer: str, algebra: object) -> bool:
        raise RecursionError

    with Verifier(workers=1) as verifier:
        monkeypatch.setattr("harness.verification.equivalence._compare_sets", rule)
        verdict = verifier.verify([("x+1", r"\boxed{x+2}")])[0]
        monkeypatch.undo()
        assert (verdict.value, verdict.reason) == ("invalid", "crash: RecursionError")
        assert verifier.verify([("x+1", r"\boxed{x+2}")])[0].value == "wrong"


def test_an_answer_gets_one_verdict_whatever_was_asked_before() -> None:
    """A computation's count of calls begins anew for each question: caches of earlier ones would make it smaller."""
    pair = (r"\sum_{k=1}^{n} k^2", r"\boxed{\frac{n(n+1)(2n+1)}{6}}")
    near = (r"\sum_{k=1}^{n} k^2", r"\boxed{\frac{n(n+1)(2n+1)}{3}}")
    with Verifier(workers=1) as verifier:
        values = [verifier.verify([asked])[0].value for asked in (pair, near, pair)]
        verifier._cache.clear()
        again = [verifier.verify([asked])[0].value for asked in (near, pair)]
    assert (values, again) == (["right", "wrong", "right"], ["wrong", "right"])


@pytest.mark.parametrize(("calls", "over"), [(50, True), (5_000, False)])
def test_work_is_counted_by_calls(calls: int, over: bool) -> None:
    """Exactly, also where the block ends before anybody looks."""

    def work() -> int:
        return 1

    limit = WorkLimit(calls)
    with limit:
        total = sum(work() for _ in range(100))
    assert (total, limit.passed) == (100, over)


def do_nothing() -> None:
    """A call."""


def call_for_ever() -> None:
    with WorkLimit(10_000):
        while True:
            do_nothing()


def test_a_block_over_its_work_is_stopped() -> None:
    with pytest.raises(OverWork):
        call_for_ever()


def test_a_stopped_process_is_not_waited_for_while_it_is_asked() -> None:
    before = set(psutil.Process().children())
    with Verifier(workers=1).by(scorer_called("exact")._replace(wall_seconds=1.0)) as verifier:
        verifier.verify([("a", "b\na")])
        (worker,) = {*psutil.Process().children()} - before
        for process in worker.children():
            process.suspend()
        long = "x" * 120_000  # more than a pipe holds
        late, begin = threading.Timer(30.0, worker.kill), time.monotonic()
        late.start()
        assert [v.value for v in verifier.verify([(long, long)])] == ["right"]
        late.cancel()
        assert time.monotonic() - begin < 25.0


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


PAIRS: list[tuple[str, str | None]] = [
    (f"\\sum_{{i=1}}^{{{n}}} i^2", f"\\boxed{{{n * (n + 1) * (2 * n + 1) // 6 + off}}}")
    for n in range(3, 33)
    for off in (0, 1)
]
"""Sums need the algebra system, so they are decided in a process of the pool."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("how", "parent", "count"),
    [
        (signal.SIGKILL, False, 12),
        *(
            pytest.param(how, parent, len(PAIRS), marks=pytest.mark.slow)
            for how in (signal.SIGKILL, signal.SIGSTOP)
            for parent in (False, True)
        ),
    ],
)
def test_killed_and_stopped_processes_change_no_verdict(how: signal.Signals, parent: bool, count: int) -> None:
    verdicts: list[Verdict] = []
    with Verifier(workers=1).by(MATH._replace(wall_seconds=3.0)) as verifier:
        asking = threading.Thread(target=lambda: verdicts.extend(verifier.verify(PAIRS[:count])))
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
    assert [v.value for v in verdicts] == ["right", "wrong"] * (count // 2)
