"""The driver's reaction to what its workers say and do, message by message, without a process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.errors import Fault
from harness.session.driver import matrix
from harness.session.driver.jobs import Finished, Job
from harness.session.driver.matrix import _Driver
from harness.session.driver.process import WorkerProcess
from harness.session.driver.progress import Reporter
from harness.session.suite.planning import plan_for
from harness.session.suite.prepare import Prepared, prepare
from harness.store.manifest import read_manifest

DEAD = "the worker process was ended with code 1 (ImportError: a library)"


@dataclass(eq=False)
class Hand:
    """A worker whose every move is told. fates: what each start of a job comes to; None is the process's death."""

    driver: _Driver
    fates: Mapping[str, Iterator[str | None]]
    job: Job | None = None
    gpu: str = ""
    begun: bool = False
    phase: str = ""
    kill_reason: str = ""
    heard: float = field(default_factory=time.monotonic)
    process: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(kill=lambda: None))

    def take(self, job: Job) -> None:
        self.job = job
        fate = next(self.fates[job.id])
        self.driver.inbox.put((self, None if fate is None else Finished(job.id, fate, "no room", Fault.MEMORY)))  # type: ignore[arg-type]

    def exit_reason(self) -> str:
        return DEAD

    def dismiss(self) -> None: ...
    def close(self, deadline: float) -> None: ...


def driven(
    prepared: Prepared, fates: dict[str, list[str | None]], monkeypatch: pytest.MonkeyPatch, jobs: int = 2
) -> tuple[matrix.RunSummary, int]:
    """How a run of these fates ends, and how many processes it started."""
    driver = _Driver(prepared, plan_for(prepared, "8cpu-24G", jobs), Reporter(), lambda: None, {})
    started, ahead = list[Hand](), {label: iter(each) for label, each in fates.items()}

    def process(*_: object) -> Hand:
        started.append(Hand(driver, ahead))
        return started[-1]

    monkeypatch.setattr(matrix, "WorkerProcess", process)
    return driver.run(), len(started)


@pytest.mark.parametrize(("jobs", "processes"), [(1, 2), (2, 3)])
def test_want_of_memory_is_tried_once_more_in_a_new_process(
    suite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int, processes: int
) -> None:
    prepared = prepare(str(suite_file), tmp_path, overrides=["regimes=[independent, hacpo]"])
    hungry, other = sorted(cell.label for cell in prepared.cells)
    fates: dict[str, list[str | None]] = {"base pair/a": ["done"], "base pair/b": ["done"], other: ["done"]}
    summary, started = driven(prepared, {**fates, hungry: ["failed", "done"]}, monkeypatch, jobs)
    assert (summary.done, summary.failed, started) == (2, {}, processes)
    summary, _ = driven(prepared, {**fates, hungry: ["failed", "failed"]}, monkeypatch, jobs)
    assert (summary.done, summary.failed) == (1, {hungry: "no room"})


@pytest.mark.parametrize("twice", [False, True])
def test_a_worker_that_dies_before_it_begins_takes_only_its_job_with_it(
    suite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twice: bool
) -> None:
    """Issue 24, line 18: all others go on; its job is started once more, after them, in a new process."""
    prepared = prepare(str(suite_file), tmp_path, overrides=["regimes=[independent, hacpo]"])
    cells = {cell.label: cell.key for cell in prepared.cells}
    dies, lives = sorted(cells)
    fates: dict[str, list[str | None]] = {"base pair/a": ["done"], "base pair/b": ["done"], lives: ["done"]}
    summary, started = driven(prepared, {**fates, dies: [None, None if twice else "done"]}, monkeypatch)
    assert (summary.done, summary.failed, started) == ((1, {dies: DEAD}, 3) if twice else (2, {}, 3))
    if twice:
        found = read_manifest(prepared.folder / cells[dies])
        assert (found.state, found.fault, found.reason) == ("failed", Fault.KILLED, DEAD)


@pytest.mark.slow
def test_a_process_that_does_not_come_up_says_why(
    suite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 24, line 18: in its own last words, and not in those of an earlier start's log."""
    (tmp_path / "msgspec.py").write_text("raise ImportError('a library is broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    prepared = prepare(str(suite_file), tmp_path)
    driver = _Driver(prepared, plan_for(prepared, "8cpu-24G", 1), Reporter(), lambda: None, {})
    job = driver.jobs[prepared.cells[0].key]
    Path(job.folder).mkdir(parents=True)
    (Path(job.folder) / "log").write_text("what the start before has said\n")
    worker = WorkerProcess(driver.inbox, {}, 60.0)
    worker.take(job)
    assert driver.inbox.get(timeout=60.0) == (worker, None)
    assert worker.exit_reason() == "the worker process was ended with code 1 (ImportError: a library is broken)"
    worker.close(time.monotonic())
