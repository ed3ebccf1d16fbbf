"""A worker process: takes cells and base checkpoints one after another, so that torch is imported once.

    python -m harness.session.worker       jobs as JSON lines on stdin, progress as JSON lines on stdout

It leaves when its stdin closes, so no worker outlives its driver. Whatever libraries print goes to stderr.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import BinaryIO

from harness.errors import DiskFullError, HarnessError
from harness.session.messages import Finished, FromWorker, Job, Leave, Progress, Ready, encoder, to_worker

GRACE_SECONDS = 30.0
_REPORT_SECONDS = 0.2


class Worker:
    """Runs jobs and reports on them."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._sink, self._source = sink, source
        self._lock = threading.Lock()
        self._jobs: queue.Queue[Job | None] = queue.Queue()
        self._stopped = threading.Event()
        self._reported = 0.0
        threading.Thread(target=self._read, daemon=True).start()

    def serve(self) -> None:
        """Until told to stop."""
        from harness.verification.verifier import Verifier

        verifier = Verifier(workers=1)
        self._say(Ready())
        while not self._stopped.is_set() and (job := self._jobs.get()) is not None:
            self._say(self._finished(job, verifier))
        verifier.close()

    def _finished(self, job: Job, verifier: object) -> Finished:
        from harness.session.jobs import run_job
        from harness.session.loop import Interrupted

        try:
            spent = run_job(job, verifier, lambda *a: self._progress(job.id, *a), self._stopped.is_set)  # type: ignore[arg-type]
        except Interrupted:
            return Finished(job.id, "interrupted", "")
        except DiskFullError as error:
            return Finished(job.id, "disk", str(error))
        except HarnessError as error:
            return Finished(job.id, "failed", str(error))
        except OSError as error:
            if error.errno == 28:
                return Finished(job.id, "disk", str(error))
            traceback.print_exc()
            return Finished(job.id, "failed", f"{type(error).__name__}: {error}")
        except Exception as error:  # a fault of ours or of a plugin ends this cell, not the others
            traceback.print_exc()
            frame = traceback.extract_tb(error.__traceback__)[-1]
            return Finished(
                job.id, "failed", f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"
            )
        return Finished(job.id, "done", "", spent)

    def _progress(self, job: str, done: float, total: float, words: str) -> None:
        if time.monotonic() - self._reported >= _REPORT_SECONDS or done >= total:
            self._reported = time.monotonic()
            self._say(Progress(job, done, total, words))

    def _say(self, message: FromWorker) -> None:
        with self._lock:
            self._sink.write(encoder.encode(message) + b"\n")
            self._sink.flush()

    def _read(self) -> None:
        for line in self._source:
            message = to_worker.decode(line)
            if isinstance(message, Leave):
                self._stopped.set()
                self._jobs.put(None)
            else:
                self._jobs.put(message)
        self._stopped.set()  # the driver is gone
        self._jobs.put(None)
        time.sleep(GRACE_SECONDS)
        os._exit(1)


def main() -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides what Ctrl-C means
    sink = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    Worker(sys.stdin.buffer, sink).serve()


if __name__ == "__main__":
    main()
