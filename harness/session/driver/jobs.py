"""Jobs, a cell or a base each, and their worker process: `python -m harness.session.driver.jobs SECONDS` reads jobs on stdin
and writes progress to stdout, in lines of JSON, until stdin closes. SECONDS: the limit without progress."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import queue
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from harness import phases
from harness.errors import (
    CheckpointError,
    DiskFullError,
    EngineError,
    Fault,
    FencedError,
    HarnessError,
    PluginError,
    StoreError,
    TrainingError,
    VerificationError,
)
from harness.files import TEMPORARY, guard_changes, is_full, remove_path
from harness.learning import registry
from harness.limits import UNUSED, keep_arrow_from_pandas, without_collection
from harness.session.cell.log import log_of, log_output, trim_log
from harness.session.cell.manifests import BaseCheckpoint, label_of, manifest_of, mark_state
from harness.session.suite.lock import hold_for_change
from harness.store.cell_state import read_state
from harness.store.journal import read_journal
from harness.store.manifest import Manifest, remedy_for
from harness.suite.cells import Cell, fields_of_model, model_of_fields

if TYPE_CHECKING:
    from harness.verification.verifier import Verifier

log = logging.getLogger("harness")
GRACE_SECONDS = 30.0
# Between two looks at the work; at most a tenth of the limit on silence
PULSE_SECONDS = 5.0
# Of the time: a main thread that uses it works, though no count moves
LEAST_CPU_SHARE = 0.01
FORMAT = "%(asctime)s %(levelname)-7s %(message)s"
# Of CUDA, PyTorch's allocators, the C library and C++
_NO_MEMORY = re.compile(r"out of memory|(?:can't|cannot) allocate memory|not enough memory|bad_alloc", re.IGNORECASE)
_FAULTS = (
    (MemoryError, Fault.MEMORY),
    (VerificationError, Fault.VERIFIER),
    ((StoreError, CheckpointError, OSError), Fault.DAMAGED),
    (EngineError, Fault.ENGINE),
)


class Job(msgspec.Struct, frozen=True):
    """layout: the plan's engine options, by policy. claim: the run's, by which it may write, or empty."""

    id: str
    folder: str
    cell: Cell | None = None
    base: BaseCheckpoint | None = None
    layout: Mapping[str, Mapping[str, Any]] = {}
    claim: str = ""

    def manifest(self) -> Manifest:
        work = self.cell or self.base
        assert work is not None
        return manifest_of(work)


class Progress(msgspec.Struct, frozen=True, tag=True):
    id: str
    done: float
    total: float
    words: str


class Alive(msgspec.Struct, frozen=True, tag=True):
    phase: str


class LogLine(msgspec.Struct, frozen=True, tag=True):
    """A line of the log. topic: shown once for each."""

    text: str
    topic: str = ""


class Finished(msgspec.Struct, frozen=True, tag=True):
    """outcome: `done`, `failed`, `interrupted`, `disk` (full)."""

    id: str
    outcome: str
    reason: str = ""
    fault: Fault = Fault.ERROR
    cpu_seconds: float = 0.0


FromWorker = Progress | Alive | LogLine | Finished

encoder = msgspec.json.Encoder(enc_hook=fields_of_model)
to_worker = msgspec.json.Decoder(Job, dec_hook=model_of_fields)
from_worker = msgspec.json.Decoder(FromWorker)


def job_of(
    work: Cell | BaseCheckpoint, folder: Path, layout: Mapping[str, Mapping[str, Any]] = {}, claim: str = ""
) -> Job:
    cell, base = (work, None) if isinstance(work, Cell) else (None, work)
    return Job(label_of(manifest_of(work)), str(folder), cell, base, layout, claim)


def run_job(
    job: Job, verifier: Verifier, progress: Callable[[float, float, str], None], stopped: Callable[[], bool]
) -> float:
    """Run a job, and return its CPU-seconds. Raises HarnessError, Interrupted."""
    folder = Path(job.folder)
    with (
        guard_changes(folder, partial(hold_for_change, Path(job.claim), folder))
        if job.claim
        else contextlib.nullcontext()
    ):
        attempt = _count_attempts(folder) + 1
        for leftover in folder.glob(f"*{TEMPORARY}"):
            remove_path(leftover)
        mark_state(folder, job.manifest(), "running", attempts=attempt)
        process = f"process {os.getpid()} on {socket.gethostname()}"
        log.info("start %d of %s (%s), %s", attempt, job.id, folder.name, process)
        try:
            if job.cell is not None:
                from harness.session.cell.cell import run_cell

                return run_cell(job.cell, folder, verifier, progress, stopped, job.layout, attempt)
            from harness.session.cell.evaluate import evaluate_base

            assert job.base is not None
            layout = job.layout.get(job.base.policy.name, {})
            return evaluate_base(job.base, folder, verifier, progress, layout, attempt)
        except phases.Interrupted:
            log.info("interrupted: the next run goes on from the last checkpoint")
            raise
        except DiskFullError as error:
            log.info("interrupted: %s", error)
            raise
        except (Exception, SystemExit) as error:
            log.exception("failed")
            with contextlib.suppress(StoreError, FencedError):
                mark_state(folder, job.manifest(), "failed", failure_reason(error, job), attempt, fault_of(error))
            raise


def _count_attempts(folder: Path) -> int:
    """Count the starts of a cell so far; those of a damaged manifest by the ledger of costs."""
    state, _, attempts = read_state(folder)
    if state == "failed" and not attempts:
        with contextlib.suppress(StoreError, KeyError):
            attempts = max(read_journal(folder).tables["costs"]["attempt"].to_pylist())
    return attempts


def failure_reason(error: BaseException, job: Job) -> str:
    """Say why a job failed; of an unexpected error also its last line, of the plugin if any."""
    if isinstance(error, HarnessError):
        if isinstance(error, CheckpointError):
            return f"{error}; {remedy_for(Path(job.folder))}"
        return str(error)
    package = ""
    if job.cell is not None:
        with contextlib.suppress(PluginError):
            package = registry.load(job.cell.variant.regime).__module__.partition(".")[0]
    frames = list(traceback.walk_tb(error.__traceback__))
    theirs = [f for f in frames if package and str(f[0].f_globals.get("__name__", "")).partition(".")[0] == package]
    frame, line = (theirs or frames)[-1]
    file = "/".join(Path(frame.f_code.co_filename).parts[-2:])
    words = " ".join(str(error).splitlines())
    return f"{type(error).__name__}: {words} ({file}:{line}, in {frame.f_code.co_name})"


def fault_of(error: BaseException) -> Fault:
    if isinstance(error, TrainingError):
        return error.fault
    if isinstance(error, RuntimeError | EngineError | OSError) and _NO_MEMORY.search(str(error)):
        return Fault.MEMORY
    return next((fault for kind, fault in _FAULTS if isinstance(error, kind)), Fault.ERROR)


@dataclass(slots=True)
class Heartbeat:
    """Work goes on: a phase counted, or the main thread computed."""

    said: float
    used: float = 0.0
    beats: int = -1

    def is_due(self, now: float, cpu: float, beats: int) -> bool:
        """Whether a heartbeat is due. now: seconds; cpu: of the main thread."""
        if beats == self.beats and cpu - self.used < LEAST_CPU_SHARE * (now - self.said):
            return False
        self.said = now
        self.used = cpu
        self.beats = beats
        return True


class Worker(logging.Handler):
    """A log handler that sends to the driver."""

    def __init__(self, source: BinaryIO, sink: BinaryIO, silence: float) -> None:
        super().__init__(logging.INFO)
        self._sink = sink
        self._source = source
        self._writing = threading.Lock()
        self._jobs: queue.Queue[Job | None] = queue.Queue()
        self._stopped = threading.Event()
        self._job: Job | None = None
        phases.set_stop_check(self._stopped.is_set)
        log.addHandler(self)
        threading.Thread(target=self._read_jobs, daemon=True).start()
        threading.Thread(target=self._send_heartbeats, args=(min(PULSE_SECONDS, silence / 10),), daemon=True).start()

    def serve(self) -> None:
        """Run the jobs that the driver sends, one after another, until it asks for an end or is gone."""
        from harness.verification.verifier import Verifier

        verifier = Verifier(workers=1)
        with contextlib.suppress(Exception), without_collection(*UNUSED):  # the job says it
            import harness.session.cell.cell  # noqa: F401  for those who import it later
        keep_arrow_from_pandas()
        while not self._stopped.is_set() and (job := self._jobs.get()) is not None:
            self._job = job
            try:
                with log_output(Path(job.folder)):
                    try:
                        spent = run_job(job, verifier, partial(self._send_progress, job.id), self._stopped.is_set)
                        finished = Finished(job.id, "done", cpu_seconds=spent)
                    except (Exception, SystemExit) as error:  # a fault of ours or of a plugin ends this cell alone
                        finished = _end_of(error, job)
                    log.info("end: %s %s", finished.outcome, finished.reason)
            except OSError as error:  # of the log itself
                finished = _end_of(error, job)
            self._job = None
            self._send_event(finished)
        verifier.close()

    def emit(self, record: logging.LogRecord) -> None:
        self._send_event(LogLine(record.getMessage(), getattr(record, "topic", "")))

    def _send_progress(self, job: str, done: float, total: float, words: str) -> None:
        self._send_event(Progress(job, done, total, words))

    def _send_event(self, message: FromWorker) -> None:
        try:
            with self._writing:
                self._sink.write(encoder.encode(message) + b"\n")
                self._sink.flush()
        except BrokenPipeError:  # the driver is gone
            self._stopped.set()

    def _send_heartbeats(self, interval: float) -> None:
        """Tell the driver that the worker lives, as often as work goes on; a silent one is killed. The job's log is kept within
        its limit."""
        heartbeat = Heartbeat(time.monotonic())
        main = threading.main_thread().ident
        cpu_clock = getattr(time, "pthread_getcpuclockid", lambda _: time.CLOCK_PROCESS_CPUTIME_ID)
        while True:
            time.sleep(interval)
            if heartbeat.is_due(time.monotonic(), time.clock_gettime(cpu_clock(main)), phases.progress_count()):
                self._send_event(Alive(phases.describe_phases()))
            job = self._job
            if job is not None:
                trim_log(log_of(Path(job.folder)))

    def _read_jobs(self) -> None:
        """Read jobs until the driver closes the pipe; then leave the running one some seconds to save, and end the process."""
        for line in self._source:
            self._jobs.put(to_worker.decode(line))
        self._stopped.set()  # the driver asks for it or is gone
        self._jobs.put(None)
        time.sleep(GRACE_SECONDS)
        os._exit(1)


def _end_of(error: BaseException, job: Job) -> Finished:
    if isinstance(error, phases.Interrupted):
        return Finished(job.id, "interrupted")
    if isinstance(error, DiskFullError) or (isinstance(error, OSError) and is_full(error)):
        return Finished(job.id, "disk", str(error))
    return Finished(job.id, "failed", failure_reason(error, job), fault_of(error))


def main() -> None:
    """Serve jobs as a worker process. Stdout is kept for messages; what libraries print there goes to stderr."""
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
