"""A pool of killable verifier processes, started when first needed. Subprocesses and pipes: usable from threads, daemonic and
forked processes and under Ray."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from typing import cast

import msgspec
import psutil

from harness import phases
from harness.errors import VerificationError
from harness.verification.messages import Limits, Question, Reply, hear, say

_ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 120.0
_STARTS = 3  # that may fail in a row
_asked = threading.local()


def asked_seconds() -> float:
    """CPU-seconds that processes have used to answer the calling thread, killed ones included."""
    found: float = getattr(_asked, "seconds", 0.0)
    return found


class _Worker:
    """used: CPU-seconds that are counted."""

    def __init__(self, limits: Limits) -> None:
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH", ""))))
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.used = 0.0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "harness.verification.worker", msgspec.json.encode(limits).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={**os.environ, **single, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )

    def reply(self, seconds: float) -> Reply | str:
        """The next reply, or what became of the process, which then is dead."""
        body = hear(cast(FileIO, self.process.stdout), seconds)
        if body:
            return msgspec.msgpack.decode(body, type=Reply)
        self.kill(0.0 if body is None else 5.0)
        return "timeout" if body is None else f"crash: exit status {self.process.returncode}"

    def ask(self, question: Question, limits: Limits) -> Reply | str:
        with contextlib.suppress(BrokenPipeError):
            say(cast(FileIO, self.process.stdin), msgspec.msgpack.encode(question))
        return self.reply(question.wall_seconds or limits.wall_seconds)

    def kill(self, patience: float = 0.0) -> None:
        """patience: seconds for a process that is ending by itself."""
        with contextlib.suppress(psutil.Error):
            worker = psutil.Process(self.process.pid)
            self.used = max(self.used, sum(sum(p.cpu_times()[:4]) for p in (worker, *worker.children(recursive=True))))
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5.0)
        for stream in (self.process.stdin, self.process.stdout):
            cast(FileIO, stream).close()


def _kill_all(workers: list[_Worker], owner: int) -> None:
    if os.getpid() == owner:
        for worker in workers:
            worker.kill()
    workers.clear()


class Pool:
    def __init__(self, size: int, limits: Limits) -> None:
        self.size, self.limits = size, limits
        self._adopt()

    def _adopt(self) -> None:
        """A forked child must not share its parent's pipes."""
        self._lock, self._owner = threading.Lock(), os.getpid()
        self._idle: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _kill_all, self._idle, self._owner)

    def decide(self, questions: Sequence[Question]) -> list[Reply]:
        """Replies in order. Raises VerificationError where workers do not start."""
        if os.getpid() != self._owner:
            self._adopt()
        replies = []
        with self._lock:
            threads = ThreadPoolExecutor(min(self.size, len(questions)))
            try:
                for reply in threads.map(self._decide, questions):
                    _asked.seconds = asked_seconds() + reply.cpu_seconds
                    replies.append(reply)
            finally:
                threads.shutdown(cancel_futures=True)
        return replies

    def close(self) -> None:
        """Idempotent; the pool starts again when asked again."""
        _kill_all(self._idle, self._owner)

    def _decide(self, question: Question) -> Reply:
        """With the CPU-seconds that it took. A question whose process was killed or stopped is asked once more."""
        seconds, cause = 0.0, ""
        for _ in range(2):
            worker, before = self._take()
            reply = worker.ask(question, self.limits)
            phases.beat()
            if isinstance(reply, Reply):
                worker.used = max(worker.used, reply.cpu_seconds)
                self._idle.append(worker)
            seconds += worker.used - before
            cause = reply if isinstance(reply, str) else reply.reason
            if isinstance(reply, Reply) and not cause.startswith("crash: SIG"):
                return msgspec.structs.replace(reply, cpu_seconds=seconds)
        return Reply(right=None, reason=cause, cpu_seconds=seconds)

    def _take(self) -> tuple[_Worker, float]:
        """And the CPU-seconds of it that are counted already."""
        with contextlib.suppress(IndexError):
            while (worker := self._idle.pop()).process.poll() is not None:
                worker.kill()
            return worker, worker.used
        for _ in range(_STARTS):
            worker = _Worker(self.limits)
            if isinstance(worker.reply(_START_SECONDS), Reply):
                return worker, 0.0
        raise VerificationError("the verifier's worker processes do not start")
