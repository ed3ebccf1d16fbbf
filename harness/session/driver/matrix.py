"""The driver: spreads base checkpoints and cells over worker processes, and survives what they do. Imports without torch."""

from __future__ import annotations

import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.allocation.inventory import VISIBLE, Inventory, visible
from harness.allocation.planner import Plan, Request, Scheduler
from harness.engines.catalogue import engines_of
from harness.errors import Fault, HarnessError
from harness.files import TEMPORARY, remove
from harness.session.cell.log import note
from harness.session.cell.manifests import base_manifest, cell_manifest, cut_off, mark, state_of
from harness.session.driver.jobs import base_job, cell_job
from harness.session.driver.process import LAST_WORDS_SECONDS, Inbox, WorkerProcess
from harness.session.driver.progress import Reporter
from harness.session.driver.worker_messages import Alive, Finished, Job, Leave, Progress, Said
from harness.session.suite.lock import holding, locked
from harness.session.suite.planning import place_of_base, place_of_cell
from harness.session.suite.prepare import Prepared

SILENCE_SECONDS = 1800.0
"""A worker that gives no sign of life for so long is taken for hung and killed (docs/recovery.md)."""
LOOK_SECONDS = 1.0
ASLEEP_SECONDS = 30.0
"""Where the driver itself was stopped for so long, its workers probably were too: their silence is counted anew."""
STOP_SECONDS = 18.0
"""For the running steps to end and their checkpoints to be written; a scheduler such as SLURM gives 30 s in all."""
CLOSE_SECONDS = 5.0
ONCE_MORE = frozenset({Fault.MEMORY, Fault.KILLED})
"""Faults that depend on what else the machine did. All others would come again, and are for the next `harness run`."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """How a run ended. `failed` maps labels to reasons; `disk` is the sentence on a full disk."""

    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False
    disk: str = ""

    @property
    def exit_code(self) -> int:
        return 130 if self.interrupted else 1 if self.failed or self.disk else 0


def run_matrix(
    prepared: Prepared,
    plan: Plan,
    reporter: Reporter,
    refresh: Callable[[], None],
    silence: float = SILENCE_SECONDS,
    verbose: bool = False,
    address: str | None = None,
) -> RunSummary:
    """Run what is not done, as planned. `refresh` is called after each finished job (the store's snapshot).

    address: of the Ray cluster to join.
    silence: seconds without a sign of life after which a worker is killed. verbose: report the lines of the cells' logs.

    Raises UsageError if another run has some of these cells, EngineError if the cluster does not start.
    """
    keys = prepared.keys()
    with locked(prepared.folder, keys) as held:
        theirs = holding(prepared.folder) - keys
        for manifest in prepared.folder.glob("*/manifest.json"):
            if manifest.parent.name not in theirs:
                cut_off(manifest.parent)  # left by a driver that was killed: nobody else writes this cell
        for leftover in [] if theirs else prepared.folder.glob(f"*{TEMPORARY}"):
            remove(leftover)
        prepared = prepared.looked()  # once more: the run before may have ended between the planning and the lock
        prepared.record()
        with engines_of(prepared.suite.engine).cluster(address) as environment:
            return _Driver(prepared, plan, reporter, refresh, environment, silence, verbose, held.lost).run()


class _Driver:
    """Jobs wait for their base checkpoints, then for the scheduler's word, then for a worker process."""

    def __init__(
        self,
        prepared: Prepared,
        plan: Plan,
        reporter: Reporter,
        refresh: Callable[[], None],
        environment: Mapping[str, str],
        silence: float = SILENCE_SECONDS,
        verbose: bool = False,
        lost: Callable[[], bool] = lambda: False,
    ) -> None:
        self.lost = lost
        self.prepared, self.reporter, self.refresh, self.environment = prepared, reporter, refresh, environment
        self.silence, self.verbose, self.looked = silence, verbose, time.monotonic()
        self.inbox: Inbox = queue.Queue()
        self.workers: list[WorkerProcess] = []
        self.failed: dict[str, str] = {}
        self.topics: set[str] = set()
        self.done = 0
        self.disk = ""
        folder = prepared.folder
        cells = prepared.pending()
        self.bases = {b.key: b for b in prepared.missing()}
        self.cells = {c.key: c for c in cells}
        self.waits = {c.key: {b.key for b in prepared.bases_of(c)} & self.bases.keys() for c in cells}
        self.most = max(1, plan.resources.workers)
        seconds = {kind.kind: kind.seconds for kind in plan.kinds}
        self.scheduler = Scheduler(Inventory(plan.resources.nodes))
        self.jobs: dict[str, Job] = {}
        self.requests: dict[str, Request] = {}
        for key, base in self.bases.items():
            place = place_of_base(plan, base)
            self.jobs[key] = base_job(base, folder / key, place.layout)
            self.requests[key] = Request(key, place.bundles, 0.0)
        for cell in cells:
            place = place_of_cell(plan, cell)
            self.jobs[cell.key] = cell_job(cell, folder / cell.key, place.layout)
            self.requests[cell.key] = Request(cell.key, place.bundles, seconds[cell.kind])
        self.granted: deque[str] = deque()
        self.again: dict[str, Job | None] = {}
        """What has failed as it need not fail again: to be tried once more, then None."""
        self.gpus = [card.name for card in visible()] if plan.resources.gpus else []

    def run(self) -> RunSummary:
        self.reporter.start(len(self.bases), len(self.cells), self.prepared.suite.training.steps)
        try:
            self._loop()
        except KeyboardInterrupt:
            self._interrupt()
            return RunSummary(self.done, self.failed, interrupted=True, disk=self.disk)
        finally:
            self._close()
            self.reporter.stop()
        return RunSummary(self.done, self.failed, disk=self.disk)

    def _loop(self) -> None:
        self._submit()
        while self.jobs or self._busy() or any(self.again.values()):
            if self.disk:
                self.granted.clear()
                if not self._busy():
                    return
            if not self.granted and not self._busy():
                self._once_more()
            while self.granted and (worker := self._free()) is not None:
                key = self.granted.popleft()
                job = self.jobs.pop(key)
                worker.take(job)
                self.reporter.begin(job.id)
            self._hear()

    def _free(self) -> WorkerProcess | None:
        """A worker without a job, a new one where there is none and may be more; None where there may not."""
        free = [worker for worker in self.workers if worker.job is None]
        if not free and len(self.workers) < self.most:
            free = [WorkerProcess(self.inbox, {**self.environment, **self._gpu()}, self.silence)]
            self.workers += free
        return free[0] if free else None

    def _once_more(self) -> None:
        """Nothing else runs or can: what has failed for want of memory, or was killed, gets the machine and a new process."""
        for key, job in self.again.items():
            if job is not None:
                self.again[key], self.jobs[key] = None, job
                self.granted.append(key)
                self._close()
                return

    def _gpu(self) -> dict[str, str]:
        """The one GPU that a new worker sees, where workers share this machine's: that with the fewest of them."""
        if engines_of(self.prepared.suite.engine).clustered or not self.gpus:
            return {}
        seen = Counter(worker.gpu for worker in self.workers)
        return {VISIBLE: min(self.gpus, key=lambda gpu: seen[gpu])}

    def _busy(self) -> int:
        return sum(worker.job is not None for worker in self.workers)

    def _submit(self) -> None:
        """Hand the scheduler whatever waits for nothing else; it says now or later what may start."""
        able = [key for key in self.requests if not self.waits.get(key)]
        self.granted += self.scheduler.submit([self.requests.pop(key) for key in able])

    def _hear(self) -> None:
        if time.monotonic() - self.looked >= LOOK_SECONDS:
            self._look()
        try:
            worker, message = self.inbox.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            return
        if worker not in self.workers:
            return  # closed meanwhile
        worker.heard = time.monotonic()
        match message:
            case Progress(id=label, done=done, total=total, words=words):
                self.reporter.progress(label, done, total, words)
            case Alive(phase=phase):
                worker.phase = phase
                if worker.job is not None:
                    self.reporter.phase(worker.job.id, phase)
            case Said(text=text, topic=topic):
                new = bool(topic) and topic not in self.topics
                self.topics |= {topic}
                if (self.verbose or new) and worker.job is not None:
                    self.reporter.message(f"{worker.job.id}: {text}")
            case Finished():
                self._finished(worker, message.outcome, message.reason, message.cpu_seconds, message.fault)
            case None:
                self.workers.remove(worker)
                if worker.job is not None:
                    self._finished(
                        worker, "failed", worker.last_words(), 0.0, Fault.SILENT if worker.verdict else Fault.KILLED
                    )
                worker.close(time.monotonic() + CLOSE_SECONDS)

    def _look(self) -> None:
        """Time has passed: for who watches, and for workers without a sign of life."""
        if self.lost():
            raise HarnessError(
                f"{self.prepared.folder}: this run gave no sign of life for long, and another has taken its cells over: "
                "it ends here, and writes nothing more"
            )
        now, before = time.monotonic(), self.looked
        self.looked = now
        self.reporter.tick()
        for worker in self.workers:
            if now - before > ASLEEP_SECONDS:
                worker.heard = max(worker.heard, now)
            elif worker.job is not None and now - worker.heard > self.silence:
                doing = f" while {worker.phase}" if worker.phase else ""
                worker.give_up(f"no sign of life for {self.silence:g} s{doing}: taken for hung and killed")
                worker.heard = now + LAST_WORDS_SECONDS

    def _finished(self, worker: WorkerProcess, outcome: str, reason: str, cpu: float, fault: Fault) -> None:
        job, worker.job = worker.job, None
        assert job is not None
        key = Path(job.folder).name
        if outcome == "done":
            for waiting in self.waits.values():
                waiting.discard(key)
            self.done += key in self.cells
        elif outcome == "disk":
            self.disk = reason
        elif outcome == "failed" and fault in ONCE_MORE and key not in self.again:
            self.again[key] = job
            outcome = "once more, after the others and alone"
        elif outcome == "failed":
            self._fail(key, job.id, reason, fault)
        self.reporter.end(job.id, outcome, reason, cpu)
        self.granted += self.scheduler.end(key)
        self._submit()
        if outcome in {"done", "failed"} and key in self.cells:
            self.refresh()

    def _fail(self, key: str, label: str, reason: str, fault: Fault) -> None:
        folder = self.prepared.folder / key
        self.failed[label] = reason
        if state_of(folder)[:2] != ("failed", reason):  # else the worker has said it
            manifest = cell_manifest(self.cells[key]) if key in self.cells else base_manifest(self.bases[key])
            mark(folder, manifest, "failed", reason, attempts=state_of(folder)[2], fault=fault)
            note(folder, f"failed: {reason}")
        for cell_key, waiting in self.waits.items():
            if key in waiting and cell_key in self.requests:
                del self.requests[cell_key], self.jobs[cell_key]
                self._fail(cell_key, self.cells[cell_key].label, f"{label} failed: {reason}", Fault.BASE)

    def _interrupt(self) -> None:
        """Let every worker write a checkpoint; a second Ctrl-C or the deadline ends it at once."""
        self.reporter.message("stopping: each running cell writes a checkpoint (Ctrl-C again to leave at once)")
        end = time.monotonic() + STOP_SECONDS
        stopped = [Path(worker.job.folder) for worker in self.workers if worker.job is not None and worker.begun]
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
            pass
        finally:
            self._close()
            for folder in stopped:
                cut_off(folder, {"running", "failed"})  # what failed now did so because its surroundings were stopped

    def _close(self) -> None:
        """End all workers: at once where they have a job, else as soon as they leave by themselves. Idempotent."""
        workers, self.workers = self.workers, []
        for worker in workers:
            if worker.job is not None:
                worker.process.kill()
            worker.dismiss()
        deadline = time.monotonic() + CLOSE_SECONDS
        for worker in workers:
            worker.close(deadline)
