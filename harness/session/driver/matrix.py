"""The driver of a run: it spreads cells and base checkpoints over worker processes, watches them, and records how each ended. It
imports no torch: a worker that dies takes nothing with it."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec

from harness.allocation.inventory import VISIBLE, Inventory, list_visible_gpus
from harness.allocation.planner import Plan
from harness.allocation.scheduler import JobRequest, Scheduler
from harness.engines.catalogue import backend_of
from harness.engines.embedded import numerics
from harness.errors import DiskFullError, Fault, HarnessError, StoreError
from harness.files import TEMPORARY, remove_path
from harness.limits import LARGE_BLOCKS, ONE_THREAD
from harness.session.cell.log import append_note, log_of, read_tail
from harness.session.cell.manifests import BaseCheckpoint, mark_interrupted, mark_state
from harness.session.driver.jobs import (
    Alive,
    Finished,
    FromWorker,
    Job,
    LogLine,
    Progress,
    encoder,
    from_worker,
    job_of,
)
from harness.session.driver.progress import Reporter
from harness.session.suite.lock import CellsClaim, claim_cells, keys_held
from harness.session.suite.planning import in_run_order, place_of
from harness.session.suite.prepared import Prepared
from harness.store.cell_state import read_state
from harness.suite.cells import Cell

# Without progress, until a worker is killed as hung (docs/recovery.md)
SILENCE_SECONDS = 1800.0
LOOK_SECONDS = 1.0
# A driver stopped for so long counts silence anew
ASLEEP_SECONDS = 30.0
# For running steps to end and be saved; SLURM gives 30 s
STOP_SECONDS = 18.0
CLOSE_SECONDS = 5.0
# Faults that depend on what else the machine did
RETRIED_FAULTS = frozenset({Fault.MEMORY, Fault.KILLED})
STACKS_SECONDS = 1.0
# So much longer for a new process, which imports its libraries
START_SECONDS = 300.0


@dataclass(slots=True)
class RunSummary:
    """failed: reasons by label; disk: the sentence on a full disk."""

    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False
    disk: str = ""

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return 130
        return 1 if self.failed or self.disk else 0


def run_matrix(
    prepared: Prepared,
    plan: Plan,
    reporter: Reporter,
    refresh: Callable[[], None],
    silence: float = SILENCE_SECONDS,
    verbose: bool = False,
    address: str | None = None,
) -> RunSummary:
    """Run the cells and bases that are not done, and return how it ended. refresh: called after each finished cell. silence:
    seconds without progress before a worker is killed. address: of a Ray cluster. Raises UsageError if another run has some of
    these cells, EngineError."""
    keys = prepared.keys()
    with claim_cells(prepared.folder, keys) as claim:
        theirs = keys_held(prepared.folder, claim) - keys
        for manifest in prepared.folder.glob("*/manifest.json"):
            if manifest.parent.name not in theirs:
                mark_interrupted(manifest.parent)  # left by a driver that was killed
        for leftover in [] if theirs else prepared.folder.glob(f"*{TEMPORARY}"):
            remove_path(leftover)
        prepared = prepared.with_states_under_claim()
        prepared.write_suite_file()
        with backend_of(prepared.suite.engine).cluster(address) as cluster:
            environment = {**cluster, **numerics.environment_of(prepared.suite.engine_options)}
            return Driver(prepared, plan, reporter, refresh, environment, silence, verbose, claim).run()


# What workers say, None from one that has ended
Inbox = queue.Queue[tuple["WorkerProcess", FromWorker | None]]


class WorkerProcess:
    """One worker process and the job it has. begun: it has logged something of its job. heard: when it last reported, by the
    monotonic clock. kill_reason: why it was killed, or empty."""

    def __init__(self, inbox: Inbox, environment: Mapping[str, str], silence: float) -> None:
        self.stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the worker
        environment = {**os.environ, **ONE_THREAD, **LARGE_BLOCKS, "PYTHONUNBUFFERED": "1", **environment}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "harness.session.driver.jobs", str(silence)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr, env=environment,
        )  # fmt: skip
        self.gpu = environment.get(VISIBLE, "")
        self.job: Job | None = None
        self.heard = time.monotonic() + START_SECONDS
        self.begun = False
        self.phase = self.kill_reason = ""
        threading.Thread(target=self._read_messages, args=(inbox,), daemon=True).start()

    def give_job(self, job: Job) -> None:
        """Send a job to the process."""
        self.job = job
        self.heard = max(self.heard, time.monotonic())
        self.begun = False
        self.phase = ""
        assert self.process.stdin is not None
        with suppress(OSError):  # it died; the listener reports that
            self.process.stdin.write(encoder.encode(job) + b"\n")
            self.process.stdin.flush()

    def ask_to_stop(self) -> None:
        """Close the process's stdin: it ends after a checkpoint at the end of its step."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()

    def _read_messages(self, inbox: Inbox) -> None:
        """Put the process's messages into the driver's inbox until it ends, then None. Runs in a thread of its own."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                message = from_worker.decode(line)
            except msgspec.DecodeError:  # cut off: it was killed
                break
            self.begun |= isinstance(message, LogLine)
            inbox.put((self, message))
        self.process.wait()
        inbox.put((self, None))

    def kill_hung(self, reason: str) -> None:
        """Ask a silent process where its threads are, for its log, and kill it a second later."""
        self.kill_reason = reason
        with suppress(OSError):
            self.process.send_signal(signal.SIGUSR1)
        killing = threading.Timer(STACKS_SECONDS, self.process.kill)
        killing.daemon = True
        killing.start()

    def exit_reason(self) -> str:
        """Say how the process ended, with the last line of its job's log or of stderr."""
        if self.kill_reason:
            return self.kill_reason
        code = self.process.returncode
        if self.job is not None and self.begun:
            lines = read_tail(log_of(Path(self.job.folder)), 20)
        else:
            self.stderr.seek(0)
            lines = self.stderr.read().decode(errors="replace").splitlines()[-20:]
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        said = [line for line in lines if line.strip()]
        return f"the worker process was {how}" + (f" ({said[-1][:200]})" if said else "")

    def end_or_kill(self) -> None:
        """End an idle process, kill one at work."""
        if self.job is not None:
            self.process.kill()
        self.ask_to_stop()

    def close(self, deadline: float) -> None:
        """Wait for the process's end until `deadline` (monotonic), then kill it."""
        self.end_or_kill()
        try:
            self.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.stderr.close()


class Driver:
    """A run in progress. waits: by cell, the bases that must be measured first. granted: jobs that have a place."""

    def __init__(
        self,
        prepared: Prepared,
        plan: Plan,
        reporter: Reporter,
        refresh: Callable[[], None],
        environment: Mapping[str, str],
        silence: float = SILENCE_SECONDS,
        verbose: bool = False,
        claim: CellsClaim | None = None,
    ) -> None:
        self.prepared = prepared
        self.reporter = reporter
        self.refresh = refresh
        self.environment = environment
        self.claim = claim
        self.silence = silence
        self.verbose = verbose
        self.checked = time.monotonic()  # when the workers' silence was last checked
        self.inbox: Inbox = queue.Queue()
        self.workers: list[WorkerProcess] = []
        self.topics: set[str] = set()  # of log lines that are shown once
        self.summary = RunSummary()
        cells = prepared.pending_cells()
        bases = prepared.missing_bases()
        self.bases = {base.key for base in bases}
        # By cell: the bases that it waits for
        self.waits = {cell.key: {base.key for base in prepared.bases_of(cell)} & self.bases for cell in cells}
        self.most = max(1, plan.resources.workers)
        self.inventory = plan.resources.inventory
        self.scheduler = Scheduler(Inventory(plan.resources.nodes))
        # By key, until given to a worker
        self.jobs: dict[str, Job] = {}
        self.requests: dict[str, JobRequest] = {}
        turns = self._order_of_starts(in_run_order(cells, plan))
        own_claim = "" if claim is None else str(claim.file)
        todo: list[BaseCheckpoint | Cell] = [*bases, *cells]
        for work in todo:
            request = place_of(plan, work, turns.get(work.key, len(turns)))
            self.requests[work.key] = request
            self.jobs[work.key] = job_of(work, prepared.folder / work.key, request.layout, own_claim)
        self.granted: deque[str] = deque()
        # Failures to be tried once more, then None
        self.again: dict[str, Job | None] = {}
        self.gpus = [card.name for card in list_visible_gpus()] if plan.resources.gpus else []

    def _order_of_starts(self, cells: Sequence[Cell]) -> dict[str, int]:
        """Say when each job is to start, by key: a base in the turn of the first cell that waits for it."""
        turns: dict[str, int] = {}
        for turn, cell in enumerate(cells):
            for key in (*sorted(self.waits[cell.key]), cell.key):
                turns.setdefault(key, turn)
        return turns

    def run(self) -> RunSummary:
        """Run all jobs and return how the run ended."""
        steps = [job.cell.training.steps for job in self.jobs.values() if job.cell is not None]
        mean = sum(steps) / max(1, len(steps))
        self.reporter.start(len(self.bases), len(self.waits), mean, self.most, self.inventory)
        try:
            self._run_jobs()
        except KeyboardInterrupt:
            self.summary.interrupted = True
            self._stop_workers()
        finally:
            self._close_workers()
            self.reporter.stop()
        return self.summary

    def _run_jobs(self) -> None:
        """Run jobs until all jobs have ended, or the disk is full and no worker is at work."""
        self._submit_ready_jobs()
        while self.jobs or self._count_busy() or any(self.again.values()):
            if self.summary.disk:
                self.granted.clear()
                if not self._count_busy():
                    return
            if not self.granted and not self._count_busy():
                self._retry_alone()
            while self.granted and (worker := self._idle_worker()) is not None:
                job = self.jobs.pop(self.granted.popleft())
                worker.give_job(job)
                self.reporter.begin(job.id)
            if time.monotonic() - self.checked >= LOOK_SECONDS:
                self._check_heartbeats()
            try:
                worker, message = self.inbox.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                continue
            if worker in self.workers:  # else it was closed meanwhile
                self._process_message(worker, message)

    def _idle_worker(self) -> WorkerProcess | None:
        """Find an idle worker, a new one while there may be more, or None."""
        for worker in self.workers:
            if worker.job is None:
                return worker
        if len(self.workers) >= self.most:
            return None
        worker = WorkerProcess(self.inbox, {**self.environment, **self._gpu_environment()}, self.silence)
        self.workers.append(worker)
        return worker

    def _retry_alone(self) -> None:
        """Start a job again that failed for lack of memory or was killed; nothing else runs beside it now."""
        for key, job in self.again.items():
            if job is not None:
                self.again[key] = None
                self.jobs[key] = job
                self.granted.append(key)
                self._close_workers()
                return

    def _gpu_environment(self) -> dict[str, str]:
        """Choose for a new worker the GPU that fewest workers have. Clustered engines place their own processes."""
        if backend_of(self.prepared.suite.engine).clustered or not self.gpus:
            return {}
        used = Counter(worker.gpu for worker in self.workers)
        return {VISIBLE: min(self.gpus, key=lambda gpu: used[gpu])}

    def _count_busy(self) -> int:
        return sum(worker.job is not None for worker in self.workers)

    def _submit_ready_jobs(self) -> None:
        """Ask the scheduler for a place for each job whose bases are measured."""
        ready = [key for key in self.requests if not self.waits.get(key)]
        self.granted += self.scheduler.submit([self.requests.pop(key) for key in ready])

    def _process_message(self, worker: WorkerProcess, message: FromWorker | None) -> None:
        """Take up a worker's message. message: None where the process has ended."""
        worker.heard = time.monotonic()
        match message:
            case Progress(id=label, done=done, total=total, words=words):
                self.reporter.progress(label, done, total, words)
            case Alive(phase=phase):
                worker.phase = phase
                if worker.job is not None:
                    self.reporter.phase(worker.job.id, phase)
            case LogLine(text=text, topic=topic):
                is_new = bool(topic) and topic not in self.topics
                self.topics.add(topic)
                if (self.verbose or is_new) and worker.job is not None:
                    self.reporter.message(f"{worker.job.id}: {text}")
            case Finished():
                self._process_end(worker, message)
            case None:
                self.workers.remove(worker)
                if worker.job is not None:
                    fault = Fault.SILENT if worker.kill_reason else Fault.KILLED
                    self._process_end(worker, Finished(worker.job.id, "failed", worker.exit_reason(), fault))
                worker.close(time.monotonic() + CLOSE_SECONDS)

    def _check_heartbeats(self) -> None:
        """Kill workers that made no progress for `silence` seconds. A driver that was itself stopped counts from now on."""
        self._check_claim()
        now = time.monotonic()
        before = self.checked
        self.checked = now
        self.reporter.tick()
        for worker in self.workers:
            if now - before > ASLEEP_SECONDS:
                worker.heard = max(worker.heard, now)
            elif worker.job is not None and now - worker.heard > self.silence:
                doing = f" while {worker.phase}" if worker.phase else ""
                worker.kill_hung(f"no progress for {self.silence:g} s{doing}: killed as hung")
                worker.heard = now + STACKS_SECONDS

    def _check_claim(self) -> None:
        """Check that the run still has its claim. Raises HarnessError where another run has taken over."""
        if self.claim is not None and self.claim.is_lost():
            raise HarnessError(
                f"{self.prepared.folder}: this run did not renew its claim in time, and another run has taken over its "
                "cells; it ends now and writes nothing more"
            )

    def _process_end(self, worker: WorkerProcess, end: Finished) -> None:
        """Record how a job ended, and give its place to others."""
        self._check_claim()  # a worker that may no longer write has failed; another run has its cell
        job = worker.job
        worker.job = None
        assert job is not None
        key = Path(job.folder).name
        outcome = end.outcome
        if outcome == "done":
            for waiting in self.waits.values():
                waiting.discard(key)
            self.summary.done += key in self.waits
        elif outcome == "disk":
            self.summary.disk = end.reason
        elif outcome == "failed" and end.fault in RETRIED_FAULTS and key not in self.again:
            self.again[key] = job
            outcome = "once more, after the others and alone"
        elif outcome == "failed":
            self._record_failure(job, end.reason, end.fault)
        self.reporter.end(job.id, outcome, end.reason, end.cpu_seconds)
        self.granted += self.scheduler.end(key)
        self._submit_ready_jobs()
        if outcome in {"done", "failed"} and key in self.waits:
            self.refresh()

    def _record_failure(self, job: Job, reason: str, fault: Fault) -> None:
        """Mark a job as failed, and with a base the cells that wait for it."""
        folder = Path(job.folder)
        self.summary.failed[job.id] = reason
        state, known, attempts = read_state(folder)
        if (state, known) != ("failed", reason):  # else the worker has said it
            try:
                mark_state(folder, job.manifest(), "failed", reason, attempts, fault)
            except DiskFullError as error:
                self.summary.disk = str(error)
            except StoreError as error:  # the other cells go on
                self.reporter.message(str(error))
            append_note(folder, f"failed: {reason}")
        for key, waiting in self.waits.items():
            if folder.name in waiting and key in self.requests:
                del self.requests[key]
                waiter = self.jobs.pop(key)
                why = f"{job.id} failed: {reason}"
                self._record_failure(waiter, why, Fault.BASE)
                self.reporter.end(waiter.id, "failed", why, 0.0)

    def _stop_workers(self) -> None:
        """Let each running cell write a checkpoint and end, for at most `STOP_SECONDS`; a second Ctrl-C ends them at once."""
        self.reporter.message("stopping: each running cell writes a checkpoint (Ctrl-C again to leave at once)")
        end = time.monotonic() + STOP_SECONDS
        stopped = [Path(worker.job.folder) for worker in self.workers if worker.job is not None and worker.begun]
        for worker in self.workers:
            worker.ask_to_stop()
        try:
            while any(w.job for w in self.workers) and time.monotonic() < end:
                try:
                    worker, message = self.inbox.get(timeout=1.0)
                except queue.Empty:
                    continue
                if message is None or isinstance(message, Finished):
                    worker.job = None
        except KeyboardInterrupt:
            pass
        finally:
            self._close_workers()
            for folder in stopped:
                mark_interrupted(folder, {"running", "failed"})  # failures now come from the stop

    def _close_workers(self) -> None:
        """End all workers; those that do not end in time are killed."""
        workers = self.workers
        self.workers = []
        for worker in workers:
            worker.end_or_kill()
        deadline = time.monotonic() + CLOSE_SECONDS
        for worker in workers:
            worker.close(deadline)
