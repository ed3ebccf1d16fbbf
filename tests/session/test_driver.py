"""The driver: what it says and does, message by message without a process."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow.parquet as pq
import pytest
import torch
import yaml

from harness import phases
from harness.allocation.layout import START_SECONDS
from harness.allocation.shapes import load_shape
from harness.engines.backend import read_options
from harness.engines.embedded import account
from harness.engines.openrlhf.plugin import OpenRLHFSettings
from harness.errors import DiskFullError, Fault, HarnessError, StoreError, UsageError
from harness.session.cell import cell as training
from harness.session.cell.cell import run_cell
from harness.session.cell.learners import Clock
from harness.session.cell.manifests import manifest_of, mark_state
from harness.session.driver import matrix, progress
from harness.session.driver.jobs import Alive, Finished, Heartbeat, Job, encoder, job_of, run_job, to_worker
from harness.session.driver.matrix import Driver, WorkerProcess, run_matrix
from harness.session.driver.progress import Reporter, show_phases
from harness.session.suite import planning
from harness.session.suite.lock import claim_cells
from harness.session.suite.planning import place_of, plan_for
from harness.session.suite.prepare import prepare_named
from harness.session.suite.prepared import Prepared, StoredCells
from harness.store.cell_state import PENDING, CellState
from harness.store.journal import read_journal
from harness.store.manifest import read_manifest
from harness.store.rows import SampleRow
from harness.suite.schema import Policy
from harness.verification.verifier import Verifier

DEAD = "the worker process was ended with code 1 (ImportError: a library)"


@dataclass(eq=False)
class Hand:
    """A worker whose every move is told. fates: what each start of a job comes to; None is the process's death."""

    driver: Driver
    fates: Mapping[str, Iterator[str | None]]
    job: Job | None = None
    gpu: str = ""
    begun: bool = False
    phase: str = ""
    kill_reason: str = ""
    heard: float = field(default_factory=time.monotonic)
    process: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(kill=lambda: None))

    def give_job(self, job: Job) -> None:
        self.job = job
        fate = next(self.fates[job.id])
        self.driver.inbox.put((self, None if fate is None else Finished(job.id, fate, "no room", Fault.MEMORY)))  # type: ignore[arg-type]

    def exit_reason(self) -> str:
        return DEAD

    def end_or_kill(self) -> None: ...
    def close(self, deadline: float) -> None: ...


def driver_of(prepared: Prepared, jobs: int) -> Driver:
    return Driver(prepared, plan_for(prepared, "8cpu-24G", jobs), Reporter(), lambda: None, {})


def driven(
    prepared: Prepared, fates: dict[str, list[str | None]], monkeypatch: pytest.MonkeyPatch, jobs: int = 2
) -> tuple[matrix.RunSummary, int]:
    """How a run of these fates ends, and how many processes it started."""
    driver = driver_of(prepared, jobs)
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
    prepared = prepare_named(str(suite_file), tmp_path, overrides=["regimes=[independent, hacpo]"])
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
    """All others go on; its job is started once more, after them, in a new process."""
    prepared = prepare_named(str(suite_file), tmp_path, overrides=["regimes=[independent, hacpo]"])
    cells = {cell.label: cell.key for cell in prepared.cells}
    dies, lives = sorted(cells)
    fates: dict[str, list[str | None]] = {"base pair/a": ["done"], "base pair/b": ["done"], lives: ["done"]}
    summary, started = driven(prepared, {**fates, dies: [None, None if twice else "done"]}, monkeypatch)
    assert (summary.done, summary.failed, started) == ((1, {dies: DEAD}, 3) if twice else (2, {}, 3))
    if twice:
        manifest = read_manifest(prepared.folder / cells[dies])
        assert (manifest.state, manifest.fault, manifest.reason) == ("failed", Fault.KILLED, DEAD)


@pytest.mark.parametrize("error", [StoreError("not ours"), DiskFullError("no room")])
def test_a_folder_that_cannot_be_written_ends_no_other_cell(
    suite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: HarnessError
) -> None:
    def refused(*_: object) -> None:
        raise error

    monkeypatch.setattr(matrix, "mark_state", refused)
    prepared = prepare_named(str(suite_file), tmp_path, overrides=["regimes=[independent, hacpo]"])
    fails, other = sorted(cell.label for cell in prepared.cells)
    fates: dict[str, list[str | None]] = {"base pair/a": ["done"], "base pair/b": ["done"], other: ["done"]}
    summary, _ = driven(prepared, {**fates, fails: ["failed", "failed"]}, monkeypatch)
    disk = str(error) if isinstance(error, DiskFullError) else ""
    assert (summary.done, summary.failed, summary.disk) == (1, {fails: "no room"}, disk)


def test_a_line_that_a_killed_worker_cut_off_is_its_last() -> None:
    worker, inbox = object.__new__(WorkerProcess), matrix.Inbox()
    line = encoder.encode(Alive("training")) + b"\n"
    worker.process = SimpleNamespace(stdout=[line, line[:9]], wait=lambda: -9)  # type: ignore[assignment]  # a killed process's pipe
    worker.begun = False
    worker._read_messages(inbox)
    assert [inbox.get_nowait()[1] for _ in range(2)] == [Alive("training"), None]


def test_silence_is_counted_while_the_driver_is_awake_and_a_job_is_being_done(
    suite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, now = driver_of(prepare_named(str(suite_file), tmp_path), 1), [1000.0]
    monkeypatch.setattr(matrix, "time", SimpleNamespace(monotonic=lambda: now[0]))
    hand, killed = Hand(driver, {}, job=driver.jobs[driver.prepared.cells[0].key]), list[str]()
    idle = Hand(driver, {}, heard=0.0)
    for worker in (hand, idle):
        worker.kill_hung = killed.append  # type: ignore[attr-defined]
    driver.workers, driver.checked, driver.silence = [hand, idle], now[0], 60.0  # type: ignore[list-item]
    driver._process_message(hand, Alive("training 3/400"))  # type: ignore[arg-type]
    for later, awake, expected in ((59.0, True, 0), (3600.0, False, 0), (3659.0, True, 0), (3661.0, True, 1)):
        now[0] = 1000.0 + later
        driver.checked = now[0] - 1.0 if awake else driver.checked
        driver._check_heartbeats()
        assert len(killed) == expected, later
    assert killed == ["no progress for 60 s while training 3/400: killed as hung"]


def test_a_worker_lives_while_it_counts_or_computes() -> None:
    heartbeat = Heartbeat(0.0)
    moments = [(5, 0.0, 0), (10, 0.04, 0), (15, 0.2, 0), (20, 0.2, 1), (25, 0.2, 1), (9999, 0.2, 1), (10000, 0.2, 2)]
    assert [heartbeat.is_due(*moment) for moment in moments] == [True, False, True, True, False, False, True]


@pytest.mark.slow
def test_a_process_that_does_not_come_up_says_why(
    suite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its own last words, and not in those of an earlier start's log."""
    (tmp_path / "msgspec.py").write_text("raise ImportError('a library is broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    prepared = prepare_named(str(suite_file), tmp_path)
    driver = driver_of(prepared, 1)
    job = driver.jobs[prepared.cells[0].key]
    Path(job.folder).mkdir(parents=True)
    (Path(job.folder) / "log").write_text("what the start before has said\n")
    worker = WorkerProcess(driver.inbox, {}, 60.0)
    worker.give_job(job)
    assert driver.inbox.get(timeout=60.0) == (worker, None)
    assert worker.exit_reason() == "the worker process was ended with code 1 (ImportError: a library is broken)"
    worker.close(time.monotonic())


def test_two_runs_on_one_folder_are_refused(suite_file: Path, tmp_path: Path) -> None:
    prepared = prepare_named(str(suite_file), tmp_path)
    own = {prepared.cells[0].key}
    with claim_cells(prepared.folder, own), pytest.raises(UsageError, match="another `harness run`"):
        run_matrix(prepared, plan_for(prepared, "8cpu-24G"), Reporter(), lambda: None)


def test_cells_wait_for_their_bases_and_no_more_is_granted_than_the_plan_holds(
    suite_file: Path, tmp_path: Path
) -> None:
    driver = driver_of(prepare_named(str(suite_file), tmp_path, overrides=["seeds=[1,2,3]"]), 2)
    assert all(set(waiting) == set(driver.bases) for waiting in driver.waits.values())
    driver._submit_ready_jobs()
    assert set(driver.granted) == set(driver.bases)  # two bases, two places
    for base in driver.bases:
        for waiting in driver.waits.values():
            waiting.discard(base)
        driver.granted += driver.scheduler.end(base)
    driver.granted.clear()
    driver._submit_ready_jobs()
    first = driver.granted.popleft()
    driver.granted += driver.scheduler.end(first)
    assert len(driver.granted) == 2
    assert first not in driver.granted


def test_time_left_counts_own_steps_of_cells_and_none_of_a_failed_base_s(suite_file, tmp_path, monkeypatch):
    overrides = ["regimes=[independent, {regime: sgt, training: {steps: 4}}]", "training.steps=2"]
    prepared = prepare_named(str(suite_file), tmp_path, overrides=overrides)
    driver = driver_of(prepared, 2)
    monkeypatch.setattr(driver, "_run_jobs", lambda: None)
    driver.run()
    assert driver.reporter._total == sum(c.training.steps for c in prepared.cells) + 3 * 2.5 * len(driver.bases)
    driver._record_failure(next(job for job in driver.jobs.values() if job.base), "no room", Fault.MEMORY)
    assert {c.label for c in prepared.cells} == driver.summary.failed.keys() - {"base pair/a"}
    assert {c.label for c in prepared.cells} == driver.reporter._at.keys()


def test_a_planned_layout_reaches_the_policies_unless_the_suite_has_its_own(suite_file, tmp_path):
    prepared = prepare_named(str(suite_file), tmp_path, engine="openrlhf")
    place = place_of(plan_for(prepared, "8xH100-80G"), prepared.cells[0])
    own = {p.name for p in prepared.cells[0].group.policies}
    assert place.layout.keys() == own
    assert sum(b.gpus for b in place.bundles) == sum(options["trainers"] for options in place.layout.values())
    for options in place.layout.values():
        read_options(OpenRLHFSettings, options)
    prepared = prepare_named(str(suite_file), tmp_path, engine="openrlhf", overrides=["engine_options.trainers=2"])
    plan = plan_for(prepared, "8xH100-80G")
    assert all(p.gpus == 2 for kind in plan.kinds for p in kind.layout.policies)
    assert place_of(plan, prepared.cells[0]).layout == {name: {"share_devices": False} for name in own}
    base = place_of(plan, prepared.bases[0])
    assert sum(b.gpus for b in base.bundles) == 2
    states = {b.key: CellState("done", "", 1) for b in prepared.bases} | {c.key: PENDING for c in prepared.cells}
    cells = plan_for(replace(prepared, stored=StoredCells({}, states, {})), "8xH100-80G").predicted.wall_seconds
    assert plan.predicted.wall_seconds == pytest.approx(cells + base.seconds)  # both bases side by side
    assert base.seconds > START_SECONDS


def test_seconds_of_finished_cells_are_this_machines(suite_file, tmp_path, monkeypatch):
    prepared = prepare_named(str(suite_file), tmp_path)
    monkeypatch.setattr(planning, "_measured_seconds", lambda *_: {cell.kind: 1e7 for cell in prepared.cells})
    here, there = (plan_for(prepared, inventory).predicted.wall_seconds for inventory in (None, "1xH100-80G"))
    assert there < 1e7 <= here


@pytest.mark.parametrize("suite", ["quickstart", "controls", "elicit", "bad_peers", "beyond"])
def test_micro_suites_are_planned_to_take_what_the_reference_took(suite, tmp_path, monkeypatch):
    folder = Path(__file__).parents[2] / "results" / "reference" / suite
    costs = folder / "costs.parquet"
    made = json.loads(pq.read_table(folder / "manifests.parquet")["manifest"][0].as_py())["identity"]["versions"]
    if int(made["engines/embedded"]) < 5:  # whose portable products cost more
        monkeypatch.setattr(account, "PORTABLE", 1.7)
    taken = sum(pq.read_table(costs, columns=["cpu_seconds"])["cpu_seconds"].to_pylist())
    predicted = plan_for(prepare_named(suite, tmp_path), "2cpu-24G").predicted.cpu_seconds
    assert predicted == pytest.approx(taken, rel=0.25)


HUB = """
name: hub
groups:
  - name: pair
    policies: [{name: a, model: Qwen/Qwen3-0.6B}, {name: b, model: meta-llama/Llama-3.2-1B}]
regimes: [independent, hacpo]
seeds: [1]
training: {task: math, steps: 50, max_new_tokens: 1024, learning_rate: 1.0e-6}
evaluation: {tasks: [math500], curve_every: 0}
"""


def test_the_embedded_engine_is_planned_on_the_gpus_there_are(tmp_path):
    file = tmp_path / "hub.yaml"
    file.write_text(HUB)
    prepared = prepare_named(str(file), tmp_path / "results")
    gpu, cores = (plan_for(prepared, inventory) for inventory in ("1xH100-80G", "16cpu-512G"))
    assert (gpu.feasible, gpu.resources.gpus_used) == (True, 1), gpu.shortfall
    assert gpu.predicted.wall_seconds < cores.predicted.wall_seconds / 4  # where a cell has its four cores
    (tokens,) = {place_of(gpu, c).layout["a"].get("micro_tokens") for c in prepared.cells}
    assert tokens == 4096  # 8192 tokens of the larger vocabulary do not fit
    assert place_of(cores, prepared.cells[0]).layout["a"] == {"threads": 4}
    on_cpu = plan_for(
        prepare_named(str(file), tmp_path / "results", overrides=["engine_options.device=cpu"]), "1xH100-80G+16cpu-512G"
    )
    assert on_cpu.resources.gpus_used == 0
    own = prepare_named(str(file), tmp_path / "results", overrides=["engine_options.micro_tokens=1024"])
    assert "micro_tokens" not in place_of(plan_for(own, "1xH100-80G"), own.cells[0]).layout["a"]


def test_cores_are_for_cells_side_by_side_before_they_are_for_threads(tmp_path):
    file = tmp_path / "hub.yaml"
    file.write_text(HUB)

    def planned(inventory: str, *overrides: str, jobs: int | None = None) -> tuple[int, object]:
        prepared = prepare_named(str(file), tmp_path / "results", overrides=overrides)
        plan = plan_for(prepared, inventory, jobs)
        return plan.resources.workers, place_of(plan, prepared.cells[0]).layout["a"]["threads"]

    assert planned("2cpu-512G") == (2, 1)
    assert planned("2cpu-60G") == (1, 2), "two of them do not fit"
    assert planned("8cpu-512G") == (2, 4)
    assert planned("2cpu-512G", "regimes=[independent]") == (1, 2), "one cell is left"
    assert planned("2cpu-512G", jobs=1) == (1, 2)
    assert planned("2cpu-512G", "engine_options.threads=2") == (1, 2)
    assert planned("8cpu-512G", "engine_options={numerics: portable, dtype: fp32}") == (2, 1), (
        "rows of one thread repeat"
    )


def test_a_supervised_start_is_planned_with_all_weights_trained(tmp_path):
    file = tmp_path / "hub.yaml"
    file.write_text(HUB)
    small = ["training.max_new_tokens=16", "training.prompts=2", "evaluation.max_new_tokens=16", "evaluation.limit=2"]
    lora = ["engine_options.lora={rank: 16, alpha: 32}", "groups[0].policies[1].stage0={preset: format, task: ladder}"]
    prepared = prepare_named(str(file), tmp_path / "results", overrides=[*small, *lora])
    plan = plan_for(prepared, "2cpu-512G")
    (cell, *_), (kept, started) = prepared.cells, prepared.bases
    own, other, start = (place_of(plan, one).bundles[0].memory for one in (cell, kept, started))
    assert own == other < start
    assert start > 16 * load_shape("meta-llama/Llama-3.2-1B", None).parameters
    assert plan.predicted.memory_bytes >= start


def test_workers_go_to_the_gpu_with_the_fewest_of_them(suite_file, tmp_path, nvidia_smi, monkeypatch):
    """What is forbidden is not given, and as many are planned with as are visible."""
    nvidia_smi(8)
    monkeypatch.setattr("harness.allocation.inventory.available_memory", lambda: 24 * 10**9)  # whatever is free here
    prepared = prepare_named(str(suite_file), tmp_path)

    def given():
        plan = plan_for(prepared, None)
        driver = Driver(prepared, plan, Reporter(), lambda: None, {})
        names = []
        for _ in range(3):
            names.append(driver._gpu_environment())
            driver.workers.append(SimpleNamespace(gpu=names[-1].get("CUDA_VISIBLE_DEVICES", "")))
        return plan.resources.gpus, [name.get("CUDA_VISIBLE_DEVICES") for name in names]

    for chosen, gpu in {
        "6,1": (2, ["6", "1", "6"]), "3": (1, ["3"] * 3), "GPU-7a": (1, ["GPU-7a"] * 3), "": (0, [None] * 3), "-1": (0, [None] * 3),
    }.items():  # fmt: skip
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        assert given() == gpu
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert given() == (8, ["0", "1", "2"])
    assert driver_of(prepared, 2)._gpu_environment() == {}


def test_results_of_several_threads_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = prepare_named("quickstart", tmp_path).cells[0]
    for threads, said in ((1, None), (2, "2")):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=threads: count)
        mark_state(tmp_path / cell.key, manifest_of(cell), "done", attempts=1)
        assert read_manifest(tmp_path / cell.key).provenance.machine.get("threads") == said


@pytest.mark.parametrize("suite", ["cross_family", "bad_peers", "tuned_small"])
def test_a_job_arrives_at_a_worker_as_it_was_sent(suite: str, tmp_path: Path) -> None:
    prepared = prepare_named(suite, tmp_path)
    for work in (*prepared.cells[:9], *prepared.bases):
        job = job_of(work, tmp_path / work.key, {"a": {"threads": 2}}, "claim")
        arrived = to_worker.decode(encoder.encode(job))
        assert arrived == job
        assert (arrived.cell or arrived.base).key == work.key  # type: ignore[union-attr]


def test_a_phase_says_how_far_it_is_between_its_counts() -> None:
    with phases.announce_phase("evaluating a", 10) as evaluation:
        phases.show_inside_phase("token 3/44")
        assert phases.describe_phases() == "evaluating a 0/10 (token 3/44)"
        evaluation.count(4)
        assert phases.describe_phases() == "evaluating a 4/10"
        with Clock(policy="b").phase("generate"):
            phases.show_inside_phase("token 1/2")
            assert phases.describe_phases() == "evaluating a 4/10: b sampling (token 1/2)"
    phases.show_inside_phase("nobody listens")
    assert phases.describe_phases() == ""


def test_the_phases_of_a_cell_have_names_and_a_start_tells_where_it_begins(
    suite_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the phases in order, whether a start trains from the beginning or a checkpoint."""
    caplog.set_level("INFO", "harness")
    overrides = ["regimes=[independent]", "training.steps=2", "evaluation.limit=3"]
    prepared = prepare_named(str(suite_file), tmp_path, overrides=overrides)
    (cell,), heard = prepared.cells, list[tuple[int, int, bool]]()

    def start(stop: bool) -> list[tuple[int, int, bool]]:
        heard.clear()
        folder = prepared.folder / cell.key
        with Verifier(workers=1) as verifier, suppress(phases.Interrupted):
            run_cell(cell, folder, verifier, lambda *at: heard.append((at[0], at[1], bool(at[2]))), lambda: stop)
        return heard

    assert start(stop=True) == [(0, 2, False), (1, 2, True)]
    assert start(stop=False) == [(1, 2, False), (2, 2, True)]
    said = [record.message for record in caplog.records]
    named = ["opening a", "training", "curve at step 0: 3 questions", "step 1/2", "step 2/2",
             "final evaluation of a", "final evaluation of b"]  # fmt: skip
    at = [next(i for i, line in enumerate(said) if line.startswith(words)) for words in named]
    assert at == sorted(at)
    assert start(stop=False) == [], "what was evaluated is not trained again"


def test_an_evaluation_s_costs_stay_where_the_next_policy_s_is_stopped(
    suite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluated(_engine: object, _evaluation: object, policy: Policy, *_: object) -> list[SampleRow]:
        if policy.name == "b":
            raise phases.Interrupted
        return []

    monkeypatch.setattr(training, "sample_rows", evaluated)
    overrides = ["regimes=[independent]", "training.steps=0", "evaluation.curve_every=0"]
    prepared = prepare_named(str(suite_file), tmp_path, overrides=overrides)
    folder = prepared.folder / prepared.cells[0].key
    with Verifier(workers=1) as verifier, pytest.raises(phases.Interrupted):
        run_cell(prepared.cells[0], folder, verifier, lambda *_: None, lambda: False)
    costs = read_journal(folder).tables["costs"].to_pylist()
    assert [row["policy"] for row in costs if row["phase"] == "evaluate"] == ["a", "b"]


def reporter(bases: int, cells: int, steps: int, **at: float) -> Reporter:
    """One whose jobs began a minute ago at these shares."""
    made = Reporter()
    made.start(bases, cells, steps, 2, "local: 2 cores, 24 GB")
    for label, share in at.items():
        made.begin(label)
        made.progress(label, share, 1, "")
    made._began = time.monotonic() - 60.0
    return made


def test_rate_and_time_left_are_those_of_the_steps_that_this_run_makes() -> None:
    """Steps of the run that was cut off took none of this one's time."""
    base = reporter(1, 1, 10, **{"base a": 1.0, "a": 0.0})
    assert base.words() == "0/1 cells", "what a base takes is no step of a cell"
    base.progress("a", 2, 10, "")
    assert base.words() == "0/1 cells, 30 s a step, about 4 min left"
    run = reporter(0, 3, 400, trained=1.0, half=0.5, fresh=0.0)
    assert run.words() == "0/3 cells"
    run.end("trained", "done", "", 1.0)
    run.progress("half", 205, 400, "")
    run.progress("fresh", 5, 400, "")
    assert run.words() == "1/3 cells, 6 s a step, about 59 min left"
    run.end("half", "once more, after the others and alone", "", 0.0)
    run.begin("half")
    run.progress("half", 200, 400, "")
    assert run.words() == "1/3 cells, 6 s a step, about 60 min left", "to be made again, and made"
    run.end("fresh", "failed", "", 0.0)
    assert run.words() == "1/3 cells, 6 s a step, about 20 min left", "its other steps are not made, nor will be"


def test_while_bases_alone_train_no_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six seconds a step, of 70 steps and of 60."""
    now = [100.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    run = Reporter()
    run.start(2, 3, 10, 2, "local")
    for cell, ends, left in (("a", 160.0, "7 min"), ("b", 1060.0, "6 min")):
        run.begin(cell)
        run.progress(cell, 0, 10, "")
        now[0] = ends
        run.progress(cell, 10, 10, "")
        run.end(cell, "done", "", 1.0)
        run.begin(f"base {cell}")
        now[0] = 1000.0 if cell == "a" else 2000.0
        assert run.words().endswith(f" cells, 6 s a step, about {left} left")


def test_plain_lines_name_the_phase(capsys: pytest.CaptureFixture[str]) -> None:
    plain = reporter(1, 1, 2, **{"base pair/a": 0.0})
    plain.phase("base pair/a", "baseline evaluation of a: generating micro 12/60")
    plain._said -= 60
    plain.tick()
    plain.end("base pair/a", "failed", "a reason [in brackets] longer than any terminal is wide" + " x" * 100, 0.0)
    start, line, end = capsys.readouterr().err.splitlines()
    assert start == "1 cell and 1 base checkpoint to do, 2 at a time (local: 2 cores, 24 GB)"
    assert line == "0/1 cells; base pair/a: baseline evaluation of a: generating micro 12/60"
    assert end.startswith("base pair/a: failed, a reason [in brackets]")
    assert end.endswith("x  [0/1 cells]")


@pytest.mark.parametrize("full", [False, True])
def test_a_run_goes_on_where_nobody_takes_its_words(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    gone = open("/dev/full" if full else writer, "w", buffering=1)  # noqa: SIM115, its close fails
    monkeypatch.setattr(sys, "stderr", gone)
    plain = reporter(0, 1, 2, a=0.0)
    plain.end("a", "done", "", 1.0)
    plain.stop()


def test_a_command_that_takes_long_says_what_it_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.05)
    with show_phases("importing"):
        time.sleep(0.15)
        with phases.announce_phase("generating micro", 3) as generating:
            generating.count(2)
            time.sleep(0.15)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "importing"
    assert "generating micro 2/3" in lines


def test_a_run_whose_cells_somebody_took_over_ends(suite_file: Path, tmp_path: Path) -> None:
    prepared = prepare_named(str(suite_file), tmp_path)
    with claim_cells(prepared.folder, prepared.keys()) as claim:
        driver = Driver(prepared, plan_for(prepared, "8cpu-24G"), Reporter(), lambda: None, {}, claim=claim)
        driver._check_heartbeats()
        claim.file.unlink()  # as the next run does with that of a dead one
        with pytest.raises(HarnessError, match="another run has taken over its cells"):
            driver._check_heartbeats()


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_baseline_runs_first_and_then_the_quickest_seed_by_seed(
    suite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    """Whatever the suite's order, after two short cells of a seed there is something to compare."""
    more = ["regimes=[{name: double, regime: independent, training: {steps: 40}}, hacpo, independent]", "seeds=[1, 2]"]
    prepared = prepare_named(str(suite_file), tmp_path, overrides=more)
    order = list[str]()
    fates: dict[str, list[str | None]] = {f"base pair/{name}": ["done"] for name in "ab"}
    monkeypatch.setattr(Reporter, "begin", lambda self, label: order.append(label))
    summary, _ = driven(prepared, {**fates, **{cell.label: ["done"] for cell in prepared.cells}}, monkeypatch, jobs)
    assert (summary.done, summary.failed) == (6, {})
    cells = [label for label in order if not label.startswith("base ")]
    regimes = [label.split("/")[1] for label in cells]
    seeds = [label.split("/")[2] for label in cells]
    assert regimes == ["independent", "hacpo", "double"] * 2
    assert seeds == ["1"] * 3 + ["2"] * 3


def test_a_plan_counts_on_that_order(suite_file: Path, tmp_path: Path) -> None:
    prepared = prepare_named(str(suite_file), tmp_path, overrides=["regimes=[hacpo, sgt, independent]", "seeds=[1, 2]"])
    plan = plan_for(prepared, "8cpu-24G", 1)
    assert [kind.kind for kind in plan.kinds] == ["pair/independent", "pair/hacpo", "pair/sgt"]


@pytest.mark.parametrize("error", [phases.Interrupted(), DiskFullError("the disk is full")])
def test_the_log_of_an_interrupted_cell_ends_without_a_traceback(
    error: Exception,
    suite_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    prepared = prepare_named(str(suite_file), tmp_path)
    (cell, *_) = prepared.cells

    def stop(*_: object) -> float:
        raise error

    monkeypatch.setattr("harness.session.cell.cell.run_cell", stop)
    with caplog.at_level(logging.INFO), pytest.raises(type(error)):
        run_job(job_of(cell, tmp_path / cell.key), cast(Verifier, None), lambda *_: None, lambda: False)
    last = caplog.records[-1]
    assert last.getMessage().startswith("interrupted: ")
    assert last.exc_info is None
    assert "Traceback" not in caplog.text


NESTED = """
groups:
  - name: pair
    policies: [{name: a, model: micro/neox, stage0: {strong: add}}, {name: b, model: micro/gpt2, stage0: {strong: mul}}]
  - name: three
    policies:
      - {name: a, model: micro/neox, stage0: {strong: add}}
      - {name: b, model: micro/gpt2, stage0: {strong: mul}}
      - {name: c, model: micro/qwen, stage0: {strong: add}}
regimes: [independent, sgt]
seeds: [1]
"""


def test_a_start_that_groups_share_is_planned_to_be_trained_once(tmp_path):
    """Each group measures it, with samples of its own."""
    seconds = {}
    for name in ("pair", "three", "both"):
        text = yaml.safe_load(NESTED)
        text["groups"] = [group for group in text["groups"] if name in ("both", group["name"])]
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(text))
        seconds[name] = plan_for(prepare_named(str(file), tmp_path / "results"), "2cpu-24G").predicted.cpu_seconds
    saved = seconds["pair"] + seconds["three"] - seconds["both"]
    assert 1.5 * planning.BASE_SECONDS < saved < 2 * planning.BASE_SECONDS
