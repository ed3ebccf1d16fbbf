"""The driver: spreads base checkpoints and cells over worker processes, and survives what they do. Imports without torch."""

from __future__ import annotations

import fcntl
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from harness.allocation.estimates import Estimates
from harness.allocation.inventory import Inventory
from harness.allocation.planner import Plan
from harness.allocation.scheduler import Action, Refuse, Request, Scheduler, Start, Stop
from harness.allocation.suites import kind_of
from harness.errors import HarnessError, UsageError
from harness.session.cluster import cluster
from harness.session.jobs import base_job, cell_job
from harness.session.manifests import base_manifest, cell_manifest, mark, state_of, suite_file
from harness.session.messages import Finished, FromWorker, Job, Leave, Progress, Ready, ToWorker, encoder, from_worker
from harness.session.planning import place_of_base, place_of_cell
from harness.session.prepare import Prepared
from harness.session.progress import Reporter
from harness.store.manifest import write_suite
from harness.threads import LARGE_BLOCKS, ONE_THREAD

SILENCE_SECONDS = 3600.0
"""A worker that says nothing for so long is taken for hung and killed."""
STOP_SECONDS = 45.0
LONGEST_SECONDS = 30 * 86400.0
"""No job may take longer; what hangs is found by its silence, long before."""
PATIENCE_SECONDS = 1800.0
"""After so long a waiting job that fits nowhere gets a reservation in the future (`Scheduler`)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `failed` maps labels to reasons; `disk` is the sentence on a full disk."""

    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False
    disk: str = ""

    @property
    def exit_code(self) -> int:
        return 130 if self.interrupted else 1 if self.failed or self.disk else 0


def run_matrix(prepared: Prepared, plan: Plan, reporter: Reporter, refresh: Callable[[], None]) -> Outcome:
    """Run what is not done, as planned. `refresh` is called after each finished job (the store's snapshot).

    Raises UsageError if another run holds these results, EngineError if the cluster does not start.
    """
    with _lock(prepared.folder):
        write_suite(prepared.folder, suite_file(prepared.suite, list(prepared.cells)))
        with cluster(prepared.suite.engine) as environment:
            return _Driver(prepared, plan, reporter, refresh, environment).run()


class _Worker:
    """One worker process and the job it has."""

    def __init__(self, inbox: queue.Queue[tuple[_Worker, FromWorker | None]], environment: Mapping[str, str]) -> None:
        self.stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the worker
        environment = {**os.environ, **ONE_THREAD, **LARGE_BLOCKS, "PYTHONUNBUFFERED": "1", **environment}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "harness.session.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr, env=environment,
        )  # fmt: skip
        self.job: Job | None = None
        self.ready = False
        self.heard = time.monotonic()
        threading.Thread(target=self._listen, args=(inbox,), daemon=True).start()

    def send(self, message: ToWorker) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(encoder.encode(message) + b"\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it died; the listener reports that

    def _listen(self, inbox: queue.Queue[tuple[_Worker, FromWorker | None]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            inbox.put((self, from_worker.decode(line)))
        self.process.wait()
        inbox.put((self, None))

    def last_words(self) -> str:
        """How it ended, with the last line that it wrote to stderr."""
        code = self.process.returncode
        self.stderr.seek(0, os.SEEK_END)
        self.stderr.seek(max(0, self.stderr.tell() - 2000))
        lines = [line for line in self.stderr.read().decode(errors="replace").splitlines() if line.strip()]
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        return f"the worker process was {how}" + (f" ({lines[-1][:200]})" if lines else "")

    def close(self) -> None:
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.stderr.close()


class _Driver:
    """Jobs wait for their base checkpoints, then for the scheduler's word, then for a worker process."""

    def __init__(
        self,
        prepared: Prepared,
        plan: Plan,
        reporter: Reporter,
        refresh: Callable[[], None],
        environment: Mapping[str, str],
    ) -> None:
        self.prepared, self.reporter, self.refresh, self.environment = prepared, reporter, refresh, environment
        self.inbox: queue.Queue[tuple[_Worker, FromWorker | None]] = queue.Queue()
        self.workers: list[_Worker] = []
        self.failed: dict[str, str] = {}
        self.done = 0
        self.disk = ""
        folder = prepared.folder
        cells = prepared.pending()
        needed = {b.key: b for c in cells for b in prepared.bases_of(c)}
        self.bases = {key: b for key, b in needed.items() if state_of(folder / key)[0] != "done"}
        self.cells = {c.key: c for c in cells}
        self.waits = {c.key: {b.key for b in prepared.bases_of(c)} & self.bases.keys() for c in cells}
        self.most = max(1, plan.resources.workers)
        priors = {kind.kind: kind.seconds for kind in plan.kinds}
        nodes = Inventory(plan.resources.nodes)
        self.scheduler = Scheduler(nodes, LONGEST_SECONDS, PATIENCE_SECONDS, estimates=Estimates(priors))
        self.jobs: dict[str, Job] = {}
        self.requests: dict[str, Request] = {}
        for key, base in self.bases.items():
            place = place_of_base(plan, base)
            self.jobs[key] = base_job(base, folder / key, place.layout)
            self.requests[key] = Request(key, "base", place.bundles, LONGEST_SECONDS)
        for cell in cells:
            place = place_of_cell(plan, cell)
            self.jobs[cell.key] = cell_job(cell, folder / cell.key, place.layout)
            self.requests[cell.key] = Request(cell.key, kind_of(cell), place.bundles, LONGEST_SECONDS)
        self.granted: deque[str] = deque()

    def run(self) -> Outcome:
        self.reporter.start(len(self.bases), [c.label for c in self.cells.values()], self.prepared.suite.training.steps)
        try:
            self._loop()
        except KeyboardInterrupt:
            self._interrupt()
            return Outcome(self.done, self.failed, interrupted=True, disk=self.disk)
        finally:
            for worker in self.workers:
                if worker.job is not None:
                    worker.process.kill()
                worker.close()
            self.reporter.stop()
        return Outcome(self.done, self.failed, disk=self.disk)

    def _loop(self) -> None:
        self._submit()
        while self.jobs or self._busy():
            if self.disk:
                self.granted.clear()
                if not self._busy():
                    return
            for worker in self.workers:
                if self.granted and worker.ready and worker.job is None:
                    self._assign(worker, self.granted.popleft())
            starting = sum(not worker.ready for worker in self.workers)
            if len(self.granted) > starting and len(self.workers) < self.most:
                self.workers.append(_Worker(self.inbox, self.environment))
                continue
            self._hear()

    def _busy(self) -> int:
        return sum(worker.job is not None for worker in self.workers)

    def _submit(self) -> None:
        """Hand the scheduler whatever waits for nothing else; it says at once or later what may start."""
        able = [key for key in self.requests if not self.waits.get(key)]
        self._act(self.scheduler.submit([self.requests.pop(key) for key in able], time.monotonic()))

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Start(key=key):
                    self.granted.append(key)
                case Stop(key=key):
                    for worker in self.workers:
                        if worker.job is not None and Path(worker.job.folder).name == key:
                            worker.process.kill()
                case Refuse(key=key, reason=reason):
                    self._fail(key, self.jobs.pop(key).id, reason)

    def _assign(self, worker: _Worker, key: str) -> None:
        job = self.jobs.pop(key)
        worker.job, worker.heard = job, time.monotonic()
        worker.send(job)
        self.reporter.begin(job.id)

    def _hear(self) -> None:
        try:
            worker, message = self.inbox.get(timeout=5.0)
        except queue.Empty:
            self.reporter.tick()
            self._act(self.scheduler.tick(time.monotonic()))
            for worker in self.workers:
                if worker.job is not None and time.monotonic() - worker.heard > SILENCE_SECONDS:
                    worker.process.kill()
            return
        worker.heard = time.monotonic()
        match message:
            case Ready():
                worker.ready = True
            case Progress(id=label, done=done, total=total, words=words):
                self.reporter.progress(label, done, total, words)
            case Finished():
                self._finished(worker, message.outcome, message.reason, message.cpu_seconds)
            case None:
                self.workers.remove(worker)
                if worker.job is not None:
                    self._finished(worker, "failed", worker.last_words(), 0.0)
                elif not worker.ready:
                    raise HarnessError(worker.last_words())
                worker.close()

    def _finished(self, worker: _Worker, outcome: str, reason: str, cpu: float) -> None:
        job, worker.job = worker.job, None
        assert job is not None
        key = Path(job.folder).name
        if outcome == "done":
            for waiting in self.waits.values():
                waiting.discard(key)
            self.done += key in self.cells
        elif outcome == "disk":
            self.disk = reason
        elif outcome == "failed":
            self._fail(key, job.id, reason)
        self.reporter.end(job.id, outcome, reason, cpu)
        ended = self.scheduler.finished if outcome == "done" else self.scheduler.failed
        self._act(ended(key, time.monotonic()))
        self._submit()
        if outcome in {"done", "failed"} and key in self.cells:
            self.refresh()

    def _fail(self, key: str, label: str, reason: str) -> None:
        folder = self.prepared.folder / key
        self.failed[label] = reason
        if state_of(folder)[0] != "failed":
            manifest = cell_manifest(self.cells[key]) if key in self.cells else base_manifest(self.bases[key])
            mark(folder, manifest, "failed", reason, attempts=state_of(folder)[2])
        for cell_key, waiting in self.waits.items():
            if key in waiting and cell_key in self.requests:
                del self.requests[cell_key], self.jobs[cell_key]
                self._fail(cell_key, self.cells[cell_key].label, f"{label} failed: {reason}")

    def _interrupt(self) -> None:
        """Let every worker write a checkpoint; a second Ctrl-C or the deadline ends it at once."""
        self.reporter.message("stopping: each running cell writes a checkpoint (Ctrl-C again to leave at once)")
        end = time.monotonic() + STOP_SECONDS
        for worker in self.workers:
            worker.send(Leave())
        try:
            while any(w.job for w in self.workers) and time.monotonic() < end:
                try:
                    worker, message = self.inbox.get(timeout=1.0)
                except queue.Empty:
                    continue
                if message is None or isinstance(message, Finished):
                    worker.job = None
        except KeyboardInterrupt:
            return


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """One run per results/<suite>; the lock dies with its process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"{folder}: another `harness run` is writing these results") from None
        yield
