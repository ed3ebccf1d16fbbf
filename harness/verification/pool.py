"""A pool of killable verifier processes, started when the first pair needs one.

Plain subprocesses and pipes: usable from threads, from daemonic and forked processes and under Ray. One thread at a time
drives the pool; others wait for it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from harness import phases
from harness.errors import VerificationError
from harness.verification.messages import HEADER, MAX_FRAME, Limits, Question, Reply, read_exactly, write

_ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 120.0
_asked = threading.local()


def asked_seconds() -> float:
    """CPU-seconds that the pools' processes have used to answer the calling thread, those that were killed included."""
    found: float = getattr(_asked, "seconds", 0.0)
    return found


class _Worker:
    """One subprocess. `deadline` is a monotonic time; `question` the index it works on, None while it starts or idles."""

    def __init__(self, limits: Limits) -> None:
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH", ""))))
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "harness.verification.worker", msgspec.json.encode(limits).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **single, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
        self.ready = False
        self.used = 0.0
        self.question: int | None = None
        self.deadline = time.monotonic() + _START_SECONDS

    def ask(self, index: int, question: Question, limits: Limits) -> bool:
        assert self.process.stdin is not None
        try:
            write(self.process.stdin, question)  # type: ignore[arg-type]
        except BrokenPipeError:
            return False
        self.question, self.deadline = index, time.monotonic() + (question.wall_seconds or limits.wall_seconds)
        return True

    def receive(self) -> Reply | None:
        """The reply that is waiting, or None when the process is gone. What it took is the calling thread's."""
        stream = self.process.stdout
        assert stream is not None
        header = read_exactly(stream, HEADER.size)  # type: ignore[arg-type]
        if header is None:
            return None
        (size,) = HEADER.unpack(header)
        body = read_exactly(stream, size) if size <= MAX_FRAME else None  # type: ignore[arg-type]
        if body is None:
            return None
        reply = msgspec.msgpack.decode(body, type=Reply)
        self.count(reply.cpu_seconds)
        return reply

    def count(self, used: float) -> None:
        """Put what is new of the CPU-seconds that it has used down to the calling thread."""
        _asked.seconds = asked_seconds() + max(0.0, used - self.used)
        self.used = max(self.used, used)

    def count_all(self) -> None:
        """`count` of what the system says: of a worker that is to be killed, or has died."""
        with contextlib.suppress(psutil.Error):
            worker = psutil.Process(self.process.pid)
            self.count(sum(sum(p.cpu_times()[:4]) for p in (worker, *worker.children(recursive=True))))

    def cause_of_death(self) -> str:
        self.count_all()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5.0)
        return f"crash: exit status {self.process.returncode}"

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5.0)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def _kill_all(workers: list[_Worker], owner: int) -> None:
    if os.getpid() == owner:
        for worker in workers:
            worker.kill()
    workers.clear()


class Pool:
    """Decides pairs in up to `size` worker processes."""

    def __init__(self, size: int, limits: Limits) -> None:
        self.size, self.limits = size, limits
        self._lock = threading.Lock()
        self._adopt()

    def _adopt(self) -> None:
        """Own a fresh set of workers; a forked child must not share its parent's pipes."""
        self._owner = os.getpid()
        self._workers: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _kill_all, self._workers, self._owner)

    def decide(self, questions: Sequence[Question]) -> list[Reply]:
        """Replies in the order of the questions.

        Raises
        ------
        VerificationError
            Workers cannot be started.
        """
        if os.getpid() != self._owner:
            self._lock = threading.Lock()
            self._adopt()
        with self._lock:
            return self._run(questions)

    def close(self) -> None:
        """Kill every worker. Idempotent; the pool starts again when asked again."""
        _kill_all(self._workers, self._owner)

    def _run(self, questions: Sequence[Question]) -> list[Reply]:
        replies: dict[int, Reply] = {}
        waiting = deque(range(len(questions)))
        again: set[int] = set()
        failures = 0
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
            while len(replies) < len(questions):
                while len(self._workers) < min(self.size, len(questions) - len(replies)):
                    self._start(selector)
                for worker in self._workers:
                    idle = worker.ready and worker.question is None
                    if waiting and idle and worker.ask(waiting[0], questions[waiting[0]], self.limits):
                        waiting.popleft()
                now = time.monotonic()
                busy = [w for w in self._workers if w.question is not None or not w.ready]
                patience = max(0.0, min((w.deadline for w in busy), default=now) - now)
                for key, _ in selector.select(patience):
                    phases.beat()
                    worker = key.data
                    reply = worker.receive()
                    if reply is not None and not worker.ready:
                        worker.ready = True
                        continue
                    index = worker.question
                    if reply is None:
                        if not worker.ready:
                            failures += 1
                            if failures >= 3:
                                raise VerificationError("the verifier's worker processes do not start")
                        elif index is not None:
                            self._lost(index, worker.cause_of_death(), replies, waiting, again)
                        self._drop(worker, selector)
                    elif index is not None:
                        worker.question = None
                        if reply.killed:
                            self._lost(index, reply.reason, replies, waiting, again)
                        else:
                            replies[index] = reply
                for worker in [w for w in self._workers if w.deadline < time.monotonic()]:
                    if worker.question is None and worker.ready:
                        continue
                    if worker.question is not None:
                        self._lost(worker.question, "timeout", replies, waiting, again)
                    else:
                        failures += 1
                        if failures >= 3:
                            raise VerificationError("the verifier's worker processes do not start")
                    self._drop(worker, selector)
        return [replies[index] for index in range(len(questions))]

    @staticmethod
    def _lost(index: int, cause: str, replies: dict[int, Reply], waiting: deque[int], again: set[int]) -> None:
        """A pair whose process was killed or stopped is asked once more: only one that does it twice is at fault itself."""
        if index in again:
            replies[index] = Reply(right=None, reason=cause)
        else:
            again.add(index)
            waiting.appendleft(index)

    def _start(self, selector: selectors.BaseSelector) -> None:
        worker = _Worker(self.limits)
        self._workers.append(worker)
        selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]

    def _drop(self, worker: _Worker, selector: selectors.BaseSelector) -> None:
        selector.unregister(worker.process.stdout)  # type: ignore[arg-type]
        self._workers.remove(worker)
        worker.count_all()
        worker.kill()
