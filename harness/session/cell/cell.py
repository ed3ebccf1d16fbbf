"""One cell from start to end: open its learners, train, evaluate, and keep the manifest true at every moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec import structs

from harness.engines.catalogue import open_engines
from harness.engines.kind import Engines
from harness.engines.protocol import PolicyEngine
from harness.errors import HarnessError
from harness.learning import registry
from harness.phases import Phase, halt, log, phase
from harness.session.cell import resume_point
from harness.session.cell.clock import Clock
from harness.session.cell.evaluate import cost_rows, evaluate_member
from harness.session.cell.health import check_trained
from harness.session.cell.learners import Learner
from harness.session.cell.lengths import with_length
from harness.session.cell.loop import Observer, Run
from harness.session.cell.manifests import cell_manifest, mark, with_commits
from harness.session.cell.prompt_order import pool_entry, trained_by
from harness.session.policy.model_folders import base_folder, start_options
from harness.store.fence import Fence
from harness.store.journal import Journal
from harness.store.rows import Row
from harness.suite.cells import Cell
from harness.verification.verifier import Verifier


def run_cell(
    cell: Cell,
    folder: Path,
    verifier: Verifier,
    observe: Observer,
    stopped: Callable[[], bool],
    layout: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    fence: Fence | None = None,
) -> float:
    """Train and evaluate `cell` in `folder`, from its newest checkpoint if there is one. Returns the CPU-seconds it took.

    layout: engine options that a plan has chosen, by policy; the suite's own come before them. fence: this start's, if it has
    one by now.

    Raises CellError, DiskFullError, Interrupted.
    """
    fence = fence or Fence(folder)
    attempt = fence.owner.attempt
    manifest = structs.replace(cell_manifest(cell), pool=pool_entry(cell.training))
    mark(folder, manifest, "running", attempts=attempt, guard=fence)
    journal = Journal(folder, fence)
    start = start_options(cell.engine, cell.engine_options)
    folders = {p.name: base_folder(p, cell.seed, options=start) for p in cell.group.policies}
    chosen = {name: {**layout.get(name, {}), **cell.engine_options} for name in folders}
    options = {
        p.name: with_length(cell.engine, chosen[p.name], p, folders[p.name], cell.evaluation, cell)
        for p in cell.group.policies
    }
    with open_engines(cell.engine, options, cell.training.temperature) as engines:
        learners = engines.each(partial(_open, cell, engines, folders), range(len(cell.group.policies)))
        computed = {m.name: getattr(m.engine, "precision", "") for m in learners}
        manifest = with_commits(manifest, {m.name: m.base for m in learners}, computed)
        try:
            _train(
                cell, folder, engines, learners, journal, trained_by(cell, verifier), attempt, observe, stopped, fence
            )
            check_trained(folder)
            for rows in engines.each(partial(_evaluate, cell, verifier, attempt), learners):
                journal.append(rows)
            journal.commit(cell.training.steps + 1)
        except Exception:
            for learner in learners:  # what it has cost, and the rows up to there, which say how it came to it
                journal.append(cost_rows(attempt, learner.name, learner.clock))
            with suppress(HarnessError):
                journal.commit(0)
            raise
    journal.compact()
    if cell.keep == "best":
        resume_point.choose_best(folder, fence)
    mark(folder, manifest, "done", attempts=attempt, guard=fence)
    resume_point.tidy(folder, cell.keep, fence)
    return sum(learner.clock.ever for learner in learners)


def _train(
    cell: Cell,
    folder: Path,
    engines: Engines,
    learners: Sequence[Learner],
    journal: Journal,
    verifier: Verifier,
    attempt: int,
    observe: Observer,
    stopped: Callable[[], bool],
    fence: Fence,
) -> None:
    """Until the final checkpoint is there, or open that which is."""
    final, steps = folder / resume_point.FINAL, cell.training.steps
    if resume_point.holds_last(folder, steps):
        resume_point.finish(folder, steps, fence)  # it may have been cut off there
        resume_point.restore(final, cell.key, learners)
        journal.rewind(steps)
        observe(steps, steps, "")
        return
    references = _references(cell, engines, learners)
    with phase("training", steps) as training:
        heard = _Told(training, observe)
        run = Run(cell, folder, engines, learners, journal, verifier, attempt, heard, stopped, references)
        run.train()
        run.costs()
    resume_point.finish(folder, steps, fence)


@dataclass(frozen=True, slots=True)
class _Told:
    """Passes finished steps on to the driver, as a count of the phase and as a line of the log."""

    training: Phase
    observe: Observer

    def __call__(self, done: int, total: int, words: str) -> None:
        self.training.count(done)
        if words:
            log.info("step %d/%d  %s", done, total, words)
        self.observe(done, total, words)


def _open(cell: Cell, engines: Engines, folders: Mapping[str, Path], index: int) -> Learner:
    policy = cell.group.policies[index]
    folder = folders[policy.name]
    with phase(f"opening {policy.name}"):
        engine = engines.open(policy, folder)
    regime = registry.build(cell.variant.regime, cell.variant.options)
    clock = Clock(partial(engines.cpu_seconds, policy.name), engine.gpus, policy.name)
    return Learner(policy, engine, regime, cell.rollouts(index), folder, clock)


def _evaluate(cell: Cell, verifier: Verifier, attempt: int, learner: Learner) -> list[Row]:
    halt()
    return [*evaluate_member(learner, cell, verifier, attempt)]


def _references(cell: Cell, engines: Engines, learners: Sequence[Learner]) -> dict[str, PolicyEngine]:
    """Frozen copies of the base weights, where something is measured against them."""
    needed = cell.training.kl or cell.training.measure_every or "strong" in cell.sharing.direction
    if not needed:
        return {}
    with phase("opening the frozen references"):
        opened = engines.each(lambda learner: engines.reference(learner.policy, learner.base), learners)
    return {learner.name: engine for learner, engine in zip(learners, opened, strict=True)}
