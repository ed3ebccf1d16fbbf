"""A worker process (`python -m harness.session.driver.worker SECONDS`): jobs as JSON lines on stdin, progress on stdout, until
stdin closes. SECONDS: the driver's limit on silence."""

from __future__ import annotations

import faulthandler
import logging
import os
import queue
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from harness import phases
from harness.errors import DiskFullError
from harness.files import is_full
from harness.session.cell.log import log_of, logged, trim
from harness.session.driver.jobs import (
    Alive,
    Finished,
    FromWorker,
    Job,
    Leave,
    Progress,
    Said,
    encoder,
    failure_reason,
    fault_of,
    run_job,
    to_worker,
)

GRACE_SECONDS = 30.0
_REPORT_SECONDS = 0.2
PULSE_SECONDS = 5.0
"""Between two looks at whether the work gets on; a tenth of the limit on silence where that is shorter."""
LEAST_CPU_SHARE = 0.01
"""A main thread that uses so much of the time works, even where no count moves: inside a long call of native code."""
FORMAT = "%(asctime)s %(levelname)-7s %(message)s"

log = logging.getLogger("harness")


@dataclass(slots=True)
class Heartbeat:
    """Whether the work goes on: a phase counted, or the main thread computed."""

    said: float
    used: float = 0.0
    beats: int = -1

    def due(self, now: float, cpu: float, beats: int) -> bool:
        """now: seconds of the clock, cpu: of the main thread; beats: so far."""
        if beats == self.beats and cpu - self.used < LEAST_CPU_SHARE * (now - self.said):
            return False
        self.said, self.used, self.beats = now, cpu, beats
        return True


class Worker(logging.Handler):
    """A log handler: it sends its records to the driver."""

    def __init__(self, source: BinaryIO, sink: BinaryIO, silence: float) -> None:
        super().__init__(logging.INFO)
        self._sink, self._source = sink, source
        self._writing = threading.Lock()
        self._jobs: queue.Queue[Job | None] = queue.Queue()
        self._stopped = threading.Event()
        self._reported = 0.0
        self._job: Job | None = None
        phases.obey(self._stopped.is_set)
        log.addHandler(self)
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._pulse, args=(min(PULSE_SECONDS, silence / 10),), daemon=True).start()

    def serve(self) -> None:
        """Until told to stop."""
        from harness.verification.verifier import Verifier

        verifier = Verifier(workers=1)
        while not self._stopped.is_set() and (job := self._jobs.get()) is not None:
            self._job = job
            try:
                with logged(Path(job.folder)):
                    try:
                        spent = run_job(job, verifier, self._progress, self._stopped.is_set)
                        finished = Finished(job.id, "done", cpu_seconds=spent)
                    except Exception as error:  # a fault of ours or of a plugin ends this cell, not the others
                        finished = _ended(error, job)
                    log.info("end: %s %s", finished.outcome, finished.reason)
            except OSError as error:  # of the log itself
                finished = _ended(error, job)
            self._job = None
            self._say(finished)
        verifier.close()

    def emit(self, record: logging.LogRecord) -> None:
        self._say(Said(record.getMessage(), getattr(record, "topic", "")))

    def _progress(self, done: float, total: float, words: str) -> None:
        if time.monotonic() - self._reported >= _REPORT_SECONDS or done >= total or not words:
            self._reported = time.monotonic()
            assert self._job is not None
            self._say(Progress(self._job.id, done, total, words))

    def _say(self, message: FromWorker) -> None:
        try:
            with self._writing:
                self._sink.write(encoder.encode(message) + b"\n")
                self._sink.flush()
        except BrokenPipeError:  # the driver is gone: the step ends and is kept, as if it had said so
            self._stopped.set()

    def _pulse(self, interval: float) -> None:
        heartbeat = Heartbeat(time.monotonic())
        while True:
            time.sleep(interval)
            if heartbeat.due(time.monotonic(), _main_cpu_seconds(), phases.beats()):
                self._say(Alive(phases.words()))
            if (job := self._job) is not None:
                trim(log_of(Path(job.folder)))

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


def _ended(error: Exception, job: Job) -> Finished:
    if isinstance(error, phases.Interrupted):
        return Finished(job.id, "interrupted")
    if isinstance(error, DiskFullError) or (isinstance(error, OSError) and is_full(error)):
        return Finished(job.id, "disk", str(error))
    return Finished(job.id, "failed", failure_reason(error, job), fault_of(error))


def _main_cpu_seconds() -> float:
    thread = threading.main_thread().ident
    if thread is None or not hasattr(time, "pthread_getcpuclockid"):
        return time.process_time()
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


def main() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)  # the driver decides what they mean
    sink = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    logging.basicConfig(stream=sys.stderr, format=FORMAT, datefmt="%Y-%m-%d %H:%M:%S")
    logging.captureWarnings(True)
    log.setLevel(logging.INFO)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the driver asks a silent worker where it is before it kills it
    Worker(sys.stdin.buffer, sink, float(sys.argv[1])).serve()


if __name__ == "__main__":
    main()
