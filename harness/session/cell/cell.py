"""One cell from start to end: open its members, train, evaluate, and keep the manifest true at every moment."""

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
from harness.session.cell import checkpoint
from harness.session.cell.clock import Clock
from harness.session.cell.evaluate import cost_rows, evaluate_member
from harness.session.cell.health import check_trained
from harness.session.cell.loop import Observer, Run
from harness.session.cell.manifests import cell_manifest, mark, with_commits
from harness.session.cell.members import Member
from harness.session.cell.prompts import pool_entry, trained_by
from harness.session.policy.models import base_folder, start_options
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
    options = {p.name: {**layout.get(p.name, {}), **cell.engine_options} for p in cell.group.policies}
    with open_engines(cell.engine, options, cell.training.temperature) as engines:
        members = engines.each(partial(_open, cell, engines), range(len(cell.group.policies)))
        computed = {m.name: getattr(m.engine, "precision", "") for m in members}
        manifest = with_commits(manifest, {m.name: m.base for m in members}, computed)
        try:
            _train(
                cell, folder, engines, members, journal, trained_by(cell, verifier), attempt, observe, stopped, fence
            )
            check_trained(folder)
            for rows in engines.each(partial(_evaluate, cell, verifier, attempt), members):
                journal.append(rows)
            journal.commit(cell.training.steps + 1)
        except Exception:
            for member in members:  # what it has cost, and the rows up to there, which say how it came to it
                journal.append(cost_rows(attempt, member.name, member.clock))
            with suppress(HarnessError):
                journal.commit(0)
            raise
    journal.compact()
    if cell.keep == "best":
        checkpoint.choose_best(folder, fence)
    mark(folder, manifest, "done", attempts=attempt, guard=fence)
    checkpoint.tidy(folder, cell.keep, fence)
    return sum(member.clock.ever for member in members)


def _train(
    cell: Cell,
    folder: Path,
    engines: Engines,
    members: Sequence[Member],
    journal: Journal,
    verifier: Verifier,
    attempt: int,
    observe: Observer,
    stopped: Callable[[], bool],
    fence: Fence,
) -> None:
    """Until the final checkpoint is there, or open that which is."""
    final, steps = folder / checkpoint.FINAL, cell.training.steps
    if final.is_dir():
        checkpoint.finish(folder, steps, fence)  # it may have been cut off there
        checkpoint.restore(final, cell.key, members)
        journal.rewind(steps)
        return
    references = _references(cell, engines, members)
    with phase("training", steps) as training:
        heard = _Told(training, observe)
        run = Run(cell, folder, engines, members, journal, verifier, attempt, heard, stopped, references)
        run.train()
        run.costs()
    checkpoint.finish(folder, steps, fence)


@dataclass(frozen=True, slots=True)
class _Told:
    """Passes finished steps on to the driver, as a count of the phase and as a line of the log."""

    training: Phase
    observe: Observer

    def __call__(self, done: int, total: int, words: str) -> None:
        self.training.count(done)
        log.info("step %d/%d  %s", done, total, words)
        self.observe(done, total, words)


def _open(cell: Cell, engines: Engines, index: int) -> Member:
    policy = cell.group.policies[index]
    with phase(f"opening {policy.name}"):
        folder = base_folder(policy, cell.seed, options=start_options(cell.engine, cell.engine_options))
        engine = engines.open(policy, folder)
    regime = registry.build(cell.variant.regime, cell.variant.options)
    clock = Clock(partial(engines.cpu_seconds, policy.name), engine.gpus, policy.name)
    return Member(policy, engine, regime, cell.rollouts(index), folder, clock)


def _evaluate(cell: Cell, verifier: Verifier, attempt: int, member: Member) -> list[Row]:
    halt()
    return [*evaluate_member(member, cell, verifier, attempt)]


def _references(cell: Cell, engines: Engines, members: Sequence[Member]) -> dict[str, PolicyEngine]:
    """Frozen copies of the base weights, where something is measured against them."""
    needed = cell.training.kl or cell.training.measure_every or "strong" in cell.sharing.direction
    if not needed:
        return {}
    with phase("opening the frozen references"):
        opened = engines.each(lambda member: engines.reference(member.policy, member.base), members)
    return {member.name: engine for member, engine in zip(members, opened, strict=True)}
