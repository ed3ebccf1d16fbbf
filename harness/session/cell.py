"""One cell from start to end: open its members, train, evaluate, and keep the manifest true at every moment."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from harness.engines.protocol import PolicyEngine
from harness.learning import registry
from harness.session import checkpoint
from harness.session.evaluate import evaluate_policy
from harness.session.loop import Interrupted, Observer, Run
from harness.session.manifests import cell_manifest, mark
from harness.session.members import Member
from harness.session.models import base_folder, open_engine
from harness.store.journal import Journal
from harness.store.manifest import read_manifest
from harness.suite.cells import Cell
from harness.tokenization.codec import TokenCodec
from harness.verification.verifier import Verifier

__all__ = ["Interrupted", "run_cell"]


def run_cell(cell: Cell, folder: Path, verifier: Verifier, observe: Observer, stopped: Callable[[], bool]) -> None:
    """Train and evaluate `cell` in `folder`, from its newest checkpoint if there is one.

    Raises CellError (also noted in the manifest), DiskFullError, Interrupted.
    """
    attempt = (read_manifest(folder).attempts if (folder / "manifest.json").exists() else 0) + 1
    mark(folder, cell_manifest(cell), "running", attempts=attempt)
    journal = Journal(folder)
    with ExitStack() as stack:
        members = [_open(cell, i, stack) for i in range(len(cell.group.policies))]
        final = folder / checkpoint.FINAL
        if not final.is_dir():
            references = _references(cell, members, stack)
            run = Run(cell, folder, members, journal, verifier, attempt, observe, stopped, references)
            try:
                run.train()
            finally:
                run.costs()
            checkpoint.finish(folder, cell.training.steps)
        else:
            checkpoint.restore(final, cell.key, members)
            journal.rewind(cell.training.steps)
        for member in members:
            observe(cell.training.steps, cell.training.steps, f"evaluating {member.name}")
            evaluate_policy(member.engine, cell, member.name, cell.training.steps, journal, verifier, attempt)
        journal.commit(cell.training.steps + 1)
    journal.compact()
    mark(folder, cell_manifest(cell), "done", attempts=attempt)


def _open(cell: Cell, index: int, stack: ExitStack) -> Member:
    policy = cell.group.policies[index]
    folder = base_folder(policy, cell.seed)
    engine = open_engine(cell.engine, policy, folder, cell.training.temperature, dict(cell.engine_options))
    stack.callback(engine.close)
    regime = registry.build(cell.variant.regime, cell.variant.options)
    return Member(policy, engine, regime, TokenCodec(engine.tokenizer), cell.rollouts(index), folder)


def _references(cell: Cell, members: list[Member], stack: ExitStack) -> dict[str, PolicyEngine]:
    """Frozen copies of the base weights, where something is measured against them."""
    needed = cell.training.kl or cell.training.measure_every or "strong" in cell.sharing.direction
    if not needed:
        return {}
    found = {}
    for member in members:
        options = dict(cell.engine_options)
        found[member.name] = open_engine(cell.engine, member.policy, member.base, cell.training.temperature, options)
        stack.callback(found[member.name].close)
    return found
