"""Killable verifier processes, started when first needed: usable from threads, daemonic and forked processes, and under
Ray."""

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
from harness.verification.messages import Question, Reply, hear, say
from harness.verification.verdict import Verdict

_ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 120.0
_STARTS = 3  # that may fail in a row
_asked = threading.local()


def asked_seconds() -> float:
    """CPU-seconds of processes for the calling thread, killed ones included."""
    found: float = getattr(_asked, "seconds", 0.0)
    return found


class _Worker:
    """used: CPU-seconds that are counted."""

    def __init__(self) -> None:
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH", ""))))
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.used = 0.0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "harness.verification.worker"],
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
            reply: Reply = msgspec.msgpack.decode(body, type=Reply)
            return reply
        self.kill(0.0 if body is None else 5.0)
        return "timeout" if body is None else f"crash: exit status {self.process.returncode}"

    def ask(self, question: Question) -> Reply | str:
        with contextlib.suppress(BrokenPipeError):
            say(cast(FileIO, self.process.stdin), msgspec.msgpack.encode(question))
        return self.reply(question.scorer.wall_seconds)

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
    def __init__(self, size: int) -> None:
        self.size = size
        self._adopt()

    def _adopt(self) -> None:
        self._lock, self._owner = threading.Lock(), os.getpid()
        self._idle: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _kill_all, self._idle, self._owner)

    def decide(self, questions: Sequence[Question]) -> list[Verdict]:
        """Verdicts in order. Raises VerificationError where workers do not start."""
        if os.getpid() != self._owner:
            self._adopt()
        verdicts = []
        with self._lock:
            threads = ThreadPoolExecutor(min(self.size, len(questions)))
            try:
                for verdict, seconds in threads.map(self._decide, questions):
                    _asked.seconds = asked_seconds() + seconds
                    verdicts.append(verdict)
            finally:
                threads.shutdown(cancel_futures=True)
        return verdicts

    def close(self) -> None:
        """Idempotent; may be asked again."""
        _kill_all(self._idle, self._owner)

    def _decide(self, question: Question) -> Reply:
        seconds = 0.0
        for _ in range(2):
            worker = self._take()
            before = worker.used
            reply = worker.ask(question)
            phases.beat()
            if isinstance(reply, str):
                verdict, killed = Verdict("invalid", reply), True
            else:
                verdict, used = reply
                worker.used, killed = max(before, used), verdict.reason.startswith("crash: SIG")
                self._idle.append(worker)
            seconds += worker.used - before
            if not killed:
                break
        return verdict, seconds

    def _take(self) -> _Worker:
        with contextlib.suppress(IndexError):
            while (worker := self._idle.pop()).process.poll() is not None:
                worker.kill()
            return worker
        for _ in range(_STARTS):
            worker = _Worker()
            if not isinstance(worker.reply(_START_SECONDS), str):
                return worker
        raise VerificationError("the verifier's worker processes do not start")
