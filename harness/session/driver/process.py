"""The driver's end of one worker process."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from harness.allocation.inventory import VISIBLE
from harness.limits import LARGE_BLOCKS, ONE_THREAD
from harness.session.cell.log import log_of, tail
from harness.session.driver.jobs import FromWorker, Job, Said, ToWorker, encoder, from_worker

STACKS_SECONDS = 1.0
"""For the stacks of a hung worker's threads, before it is killed."""
START_SECONDS = 300.0
"""So much longer than ever after a new process may be silent: it imports its libraries."""
Inbox = queue.Queue[tuple["WorkerProcess", FromWorker | None]]
"""What workers say, and None from one that has ended."""


class WorkerProcess:
    """begun: whether it has said anything of its job. kill_reason: why it was killed."""

    def __init__(self, inbox: Inbox, environment: Mapping[str, str], silence: float) -> None:
        self.stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the worker
        environment = {**os.environ, **ONE_THREAD, **LARGE_BLOCKS, "PYTHONUNBUFFERED": "1", **environment}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "harness.session.driver.worker", str(silence)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr, env=environment,
        )  # fmt: skip
        self.gpu = environment.get(VISIBLE, "")
        self.job: Job | None = None
        self.heard = time.monotonic() + START_SECONDS
        self.begun = False
        self.phase = self.kill_reason = ""
        threading.Thread(target=self._listen, args=(inbox,), daemon=True).start()

    def take(self, job: Job) -> None:
        """Also before its process is up."""
        self.job, self.heard, self.begun, self.phase = job, max(self.heard, time.monotonic()), False, ""
        self.send(job)

    def send(self, message: ToWorker) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # it died; the listener reports that
            self.process.stdin.write(encoder.encode(message) + b"\n")
            self.process.stdin.flush()

    def _listen(self, inbox: Inbox) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = from_worker.decode(line)
            self.begun |= isinstance(message, Said)
            inbox.put((self, message))
        self.process.wait()
        inbox.put((self, None))

    def kill(self, reason: str) -> None:
        """After it was asked where its threads are."""
        self.kill_reason = reason
        with suppress(OSError):
            self.process.send_signal(signal.SIGUSR1)
        killing = threading.Timer(STACKS_SECONDS, self.process.kill)
        killing.daemon = True
        killing.start()

    def exit_reason(self) -> str:
        """With the last line of its job's log, before that of stderr."""
        if self.kill_reason:
            return self.kill_reason
        code = self.process.returncode
        if self.job is not None and self.begun:
            lines = tail(log_of(Path(self.job.folder)), 20)
        else:
            self.stderr.seek(0)
            lines = self.stderr.read().decode(errors="replace").splitlines()[-20:]
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        said = [line for line in lines if line.strip()]
        return f"the worker process was {how}" + (f" ({said[-1][:200]})" if said else "")

    def dismiss(self) -> None:
        """It leaves when its stdin closes; a job is given up."""
        if self.job is not None:
            self.process.kill()
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()

    def close(self, deadline: float) -> None:
        """At `deadline` (monotonic) it is killed."""
        self.dismiss()
        try:
            self.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.stderr.close()
