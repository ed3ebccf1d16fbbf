"""The verifier's killable processes, for threads, daemonic and forked processes, and Ray. Messages: a length, then the bytes.

A process imports what it needs once and forks children that decide under limits of work and memory. One for mathematics imports the
algebra system and builds its parser's tables, which takes a CPU-second; one for other scorers starts without. An answer over these
limits is wrong, and so is one that makes a library crash. What time ends, or another process, is no verdict: both depend on how
busy the machine is. Mathematics gets a child for each question, so that a verdict does not depend on what was asked before.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import pkgutil
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from io import FileIO
from pathlib import Path
from typing import cast

import msgspec
import psutil

from harness import phases
from harness.errors import VerificationError
from harness.verification.scorer import MATH, Called, Math, Scorer, Undecided, digest_if_long
from harness.verification.verdict import KEPT, Verdict
from harness.verification.work import OverWork, WorkLimit

_LONGEST = 1 << 20


class JudgedQuestion(msgspec.Struct, frozen=True):
    """answer: extracted for mathematics, else the response."""

    gold: str
    answer: str
    scorer: Called


Reply = tuple[Verdict, float]
"""And the CPU-seconds of the worker and all that it started."""


def write_frame(stream: FileIO, message: bytes, seconds: float | None = None) -> None:
    """Write a message behind its length. Raises BrokenPipeError where the reader is gone, or takes nothing for so many seconds."""
    data = memoryview(struct.pack("<I", len(message)) + message)
    while data:
        if not select.select([], [stream], [], seconds)[1]:
            raise BrokenPipeError
        data = data[stream.write(data[: select.PIPE_BUF]) :]


def read_frame(stream: FileIO, seconds: float | None = None) -> bytes | None:
    """Read the next message; empty where the other side is gone or talks nonsense, None after so many seconds."""
    deadline = None if seconds is None else time.monotonic() + seconds
    head = _read_until(stream, 4, deadline)
    if not head:
        return head
    (size,) = struct.unpack("<I", head)
    return _read_until(stream, size, deadline) if size <= _LONGEST else b""


def _read_until(stream: FileIO, size: int, deadline: float | None) -> bytes | None:
    """Read so many bytes; empty where the other side is gone, None after the deadline, which is of `time.monotonic`."""
    parts = bytearray()
    while len(parts) < size:
        patience = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not select.select([stream], [], [], patience)[0]:
            return None
        chunk = stream.read(size - len(parts))
        if not chunk:
            return b""
        parts += chunk
    return bytes(parts)


# The asking side -------------------------------------------------------------------------------------------------------

_ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 120.0
_STARTS = 3  # that may fail in a row
_asked = threading.local()


def asked_seconds() -> float:
    """Return the CPU-seconds of worker processes for the calling thread, killed ones included."""
    seconds: float = getattr(_asked, "seconds", 0.0)
    return seconds


class _Worker:
    """A process that runs `serve`, prepared for mathematics or not. used: CPU-seconds of it and of all that it started, as far as
    known."""

    def __init__(self, mathematics: bool) -> None:
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH", ""))))
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.mathematics = mathematics
        self.used = 0.0
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve(mathematics={mathematics})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={**os.environ, **single, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )

    def reply(self, seconds: float) -> Reply | str:
        """Return the reply, or why the process is dead."""
        body = read_frame(cast(FileIO, self.process.stdout), seconds)
        if body:
            reply: Reply = msgspec.msgpack.decode(body, type=Reply)
            return reply
        self.kill(0.0 if body is None else 5.0)
        return "timeout" if body is None else f"crash: exit status {self.process.returncode}"

    def ask(self, question: JudgedQuestion) -> Reply | str:
        """Send a question and wait for its reply; a worker that takes no more in is found dead by `reply`."""
        with suppress(BrokenPipeError):
            write_frame(
                cast(FileIO, self.process.stdin), msgspec.msgpack.encode(question), question.scorer.wall_seconds
            )
        return self.reply(question.scorer.wall_seconds)

    def kill(self, patience: float = 0.0) -> None:
        """End the process, and count the CPU-seconds of it and of all that it started. patience: seconds that it has to end by
        itself."""
        with suppress(psutil.Error):
            worker = psutil.Process(self.process.pid)
            self.used = max(self.used, sum(sum(p.cpu_times()[:4]) for p in (worker, *worker.children(recursive=True))))
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5.0)
        for stream in (self.process.stdin, self.process.stdout):
            cast(FileIO, stream).close()


def _kill_all(workers: list[_Worker], owner: int) -> None:
    if os.getpid() == owner:
        for worker in workers:
            worker.kill()
    workers.clear()


class WorkerPool:
    """At most `size` worker processes for mathematics and as many for other scorers, which are started when they are needed and
    kept for the next questions."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._register_cleanup()

    def _register_cleanup(self) -> None:
        """Let the workers end with this object."""
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._idle: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _kill_all, self._idle, self._owner)

    def decide(self, questions: Sequence[JudgedQuestion]) -> list[Verdict]:
        """Return the verdicts on questions, in order. Raises VerificationError where workers do not start.

        Workers belong to the process that made them: after a fork the child starts its own.
        """
        if os.getpid() != self._owner:
            self._register_cleanup()
        verdicts = []
        with self._lock:
            threads = ThreadPoolExecutor(min(self.size, len(questions)))
            try:
                for verdict, seconds in threads.map(self._decide_in_order, questions):
                    _asked.seconds = asked_seconds() + seconds
                    verdicts.append(verdict)
            finally:
                threads.shutdown(cancel_futures=True)
        return verdicts

    def close(self) -> None:
        """End the workers. It may be called again, and the pool asked again."""
        _kill_all(self._idle, self._owner)

    def _decide_in_order(self, question: JudgedQuestion) -> Reply:
        """Ask a worker one question, and a second one where the first was killed; return the verdict and the CPU-seconds of both.

        A worker that another process killed says nothing about the answer, so one repetition is fair. After a second death it
        is invalid.
        """
        seconds = 0.0
        for _ in range(2):
            worker = self._take_worker(question.scorer.reference == MATH.reference)
            before = worker.used
            reply = worker.ask(question)
            phases.report_progress()
            if isinstance(reply, str):
                verdict = Verdict("invalid", reply)
                killed = True
            else:
                verdict, used = reply
                worker.used = max(before, used)
                killed = verdict.reason.startswith("crash: SIG")
                self._idle.append(worker)
            seconds += worker.used - before
            if not killed:
                break
        return verdict, seconds

    def _take_worker(self, mathematics: bool) -> _Worker:
        """Return a free worker of this kind, started where there is none. Raises VerificationError."""
        for worker in [worker for worker in self._idle if worker.mathematics is mathematics]:
            with suppress(ValueError):  # another thread took it
                self._idle.remove(worker)
                if worker.process.poll() is None:
                    return worker
                worker.kill()
        for _ in range(_STARTS):
            worker = _Worker(mathematics)
            if not isinstance(worker.reply(_START_SECONDS), str):
                return worker
        raise VerificationError("the verifier's worker processes do not start")


# The deciding side -----------------------------------------------------------------------------------------------------

_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}
_RENEW = 3  # exit status: answered, and the next question wants a process without its memory
_PR_SET_PDEATHSIG = 1
_MEMORY = 1 << 30  # bytes of an answer
_CALLS = 500_000  # of Python functions for an answer: half a CPU-second and more


def serve(mathematics: bool) -> None:
    """Answer questions from standard input until it is closed; what runs in a worker process. mathematics: whether that is asked.

    A child is forked for each question of mathematics, from a parent that has imported everything and answered nothing, and the
    parent tells how a child died. It returns where a child found that nobody asks any more.
    """
    for ignored in (signal.SIGINT, signal.SIGTERM):  # the parent gets them too; it closes stdin or kills
        signal.signal(ignored, signal.SIG_IGN)
    requests = FileIO(os.dup(0))
    replies = FileIO(os.dup(1), "wb")
    os.dup2(2, 1)  # a library's print must not end up in the replies
    sys.set_int_max_str_digits(4_300)
    if mathematics:
        Math().prepare()
    gc.freeze()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = psutil.Process().memory_info().vms + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    _send_verdict(replies, Verdict("right", "ready"))
    busy = mmap.mmap(-1, 1)  # shared: whether a question waits for its reply
    while True:
        busy[0] = 0
        before = _cpu_seconds_used()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = _answer_request(requests, replies, busy, before)
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            return
        if busy[0]:
            _send_verdict(replies, _verdict_of_death(status))


def _send_verdict(replies: FileIO, verdict: Verdict, before: float = 0.0) -> None:
    write_frame(replies, msgspec.msgpack.encode((verdict, before + _cpu_seconds_used())))


def _cpu_seconds_used() -> float:
    """Return the CPU-seconds of this process and its children."""
    books = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(book.ru_utime + book.ru_stime for book in books)


def _answer_request(requests: FileIO, replies: FileIO, busy: mmap.mmap, before: float) -> int:
    """Answer questions in a forked child and return its exit status: 0 where nobody asks any more, else `_RENEW`.

    `busy` falls before the reply is sent: where the child dies between the two, the parent must not send another reply, which
    would answer the next question. before: CPU-seconds of earlier children.
    """
    with suppress(AttributeError, OSError):  # Linux only
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    while body := read_frame(requests):
        busy[0] = 1
        question = msgspec.msgpack.decode(body, type=JudgedQuestion)
        scorer = _load_scorer(question.scorer.reference)
        signal.setitimer(signal.ITIMER_PROF, max(question.scorer.cpu_seconds, 1e-6))
        verdict = judge_within_work(question, scorer)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        busy[0] = 0
        _send_verdict(replies, verdict, before)
        if verdict.reason == "over-limit: memory" or question.scorer.reference == MATH.reference:
            return _RENEW
    return 0


def _verdict_of_death(status: int) -> Verdict:
    """Return the verdict on a question whose process ended like this."""
    if status == -signal.SIGPROF:
        return Verdict("invalid", "timeout: CPU time")
    name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    if -status in _FAULTS:
        return Verdict("wrong", f"unreadable: {name}")
    return Verdict("invalid", f"crash: {name}")


@cache
def _load_scorer(reference: str) -> Scorer | str:
    """Return the scorer of a reference, or why it does not load."""
    try:
        scorer: Scorer = pkgutil.resolve_name(reference)()
        scorer.prepare()
    except (Exception, SystemExit) as error:  # whatever a plugin's import raises
        return f"crash: {reference} does not load: {type(error).__name__}"
    return scorer


def judge_within_work(question: JudgedQuestion, scorer: Scorer | str) -> Verdict:
    """Judge a question: of mathematics under the limit of work; of another scorer, which may start programs, without."""
    if question.scorer.reference != MATH.reference:
        return judge_question(question, scorer)
    limit = WorkLimit(_CALLS)
    try:
        with limit:
            verdict = judge_question(question, scorer)
    except OverWork:
        return Verdict("wrong", "over-limit: work")
    return Verdict("wrong", "over-limit: work") if limit.passed else verdict


def judge_question(question: JudgedQuestion, scorer: Scorer | str) -> Verdict:
    """Judge a question. Limits are the answer's fault and make it wrong; a failing scorer leaves it undecided, and so invalid."""
    if isinstance(scorer, str):
        return Verdict("invalid", scorer)
    try:
        if question.scorer.reference == MATH.reference:
            from harness.verification.algebra import are_equivalent
            from harness.verification.equivalence import decide_on_answer

            score = decide_on_answer(question.gold, question.answer, are_equivalent)
        else:
            score = scorer.score(question.gold, question.answer)
        if not isinstance(score.right, bool):
            return Verdict("invalid", "crash: neither right nor wrong")
        return Verdict(
            "right" if score.right else "wrong", str(score.reason)[:KEPT], digest_if_long(str(score.extracted))
        )
    except Undecided as error:
        return Verdict("invalid", f"undecided: {error}"[:KEPT])
    except MemoryError:
        return Verdict("wrong", "over-limit: memory")
    except RecursionError:
        return Verdict("wrong", "over-limit: recursion")
    except Exception as error:  # sympy and plugins raise anything; the answer counts as undecided
        return Verdict("invalid", f"crash: {type(error).__name__}")
