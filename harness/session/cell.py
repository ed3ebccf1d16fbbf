"""One cell from start to end: open its members, train, evaluate, and keep the manifest true at every moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness.engines.protocol import PolicyEngine
from harness.learning import registry
from harness.session import checkpoint
from harness.session.clock import Clock
from harness.session.engines import Engines, open_engines
from harness.session.evaluate import evaluate_member
from harness.session.loop import Interrupted, Observer, Run
from harness.session.manifests import cell_manifest, mark
from harness.session.members import Member
from harness.session.models import base_folder
from harness.store.journal import Journal
from harness.store.manifest import read_manifest
from harness.store.rows import Row
from harness.suite.cells import Cell
from harness.tokenization.codec import TokenCodec
from harness.verification.verifier import Verifier

__all__ = ["Interrupted", "run_cell"]


def run_cell(
    cell: Cell,
    folder: Path,
    verifier: Verifier,
    observe: Observer,
    stopped: Callable[[], bool],
    layout: Mapping[str, Mapping[str, Any]] | None = None,
) -> float:
    """Train and evaluate `cell` in `folder`, from its newest checkpoint if there is one. Returns the CPU-seconds it took.

    layout: engine options that a plan has chosen, by policy; the suite's own come before them.

    Raises CellError (also noted in the manifest), DiskFullError, Interrupted.
    """
    attempt = (read_manifest(folder).attempts if (folder / "manifest.json").exists() else 0) + 1
    mark(folder, cell_manifest(cell), "running", attempts=attempt)
    journal = Journal(folder)
    options = {p.name: {**(layout or {}).get(p.name, {}), **cell.engine_options} for p in cell.group.policies}
    with open_engines(cell.engine, options, cell.training.temperature) as engines:
        members = engines.each(partial(_open, cell, engines), range(len(cell.group.policies)))
        final = folder / checkpoint.FINAL
        if not final.is_dir():
            references = _references(cell, engines, members)
            run = Run(cell, folder, engines, members, journal, verifier, attempt, observe, stopped, references)
            try:
                run.train()
            finally:
                run.costs()
            checkpoint.finish(folder, cell.training.steps)
        else:
            checkpoint.restore(final, cell.key, members)
            journal.rewind(cell.training.steps)
        for rows in engines.each(partial(_evaluate, cell, verifier, observe, attempt), members):
            journal.append(rows)
        journal.commit(cell.training.steps + 1)
    journal.compact()
    mark(folder, cell_manifest(cell), "done", attempts=attempt)
    return sum(member.clock.ever for member in members)


def _open(cell: Cell, engines: Engines, index: int) -> Member:
    policy = cell.group.policies[index]
    folder = base_folder(policy, cell.seed)
    engine = engines.open(policy, folder)
    regime = registry.build(cell.variant.regime, cell.variant.options)
    clock = Clock(partial(engines.cpu_seconds, policy.name), engine.gpus)
    return Member(policy, engine, regime, TokenCodec(engine.tokenizer), cell.rollouts(index), folder, clock)


def _evaluate(cell: Cell, verifier: Verifier, observe: Observer, attempt: int, member: Member) -> list[Row]:
    observe(cell.training.steps, cell.training.steps, f"evaluating {member.name}")
    return [*evaluate_member(member, cell, verifier, attempt)]


def _references(cell: Cell, engines: Engines, members: Sequence[Member]) -> dict[str, PolicyEngine]:
    """Frozen copies of the base weights, where something is measured against them."""
    needed = cell.training.kl or cell.training.measure_every or "strong" in cell.sharing.direction
    if not needed:
        return {}
    opened = engines.each(lambda member: engines.reference(member.policy, member.base), members)
    return {member.name: engine for member, engine in zip(members, opened, strict=True)}
