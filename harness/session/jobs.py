"""Jobs for workers: from a cell or base to a message, and from a message to work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from harness.errors import DiskFullError, HarnessError, StoreError
from harness.session.manifests import Base, base_manifest, cell_manifest, mark, state_of
from harness.session.messages import BaseJob, CellJob, Job
from harness.suite.cells import Cell
from harness.suite.schema import Evaluation, Group, Sharing, Suite, Training, Variant

if TYPE_CHECKING:
    from harness.verification.verifier import Verifier


def cell_job(cell: Cell, folder: Path, layout: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> CellJob:
    chosen = {name: dict(options) for name, options in layout.items()}
    return CellJob(cell.label, str(folder), cell.suite, cell.key, cell.baseline, cell.config(), chosen)


def base_job(base: Base, folder: Path, layout: Mapping[str, Mapping[str, Any]]) -> BaseJob:
    suite = base.suite
    group = suite.groups.index(base.group)
    label = f"base {base.group.name}/{base.policy.name}" + (f"/{base.seed}" if base.seed is not None else "")
    policy = base.group.policies.index(base.policy)
    chosen = dict(layout.get(base.policy.name, {}))
    return BaseJob(label, str(folder), suite.model_dump(mode="json"), group, policy, base.seed, base.sources, chosen)


def cell_of(job: CellJob) -> Cell:
    """The cell that a message describes."""
    c = job.config
    return Cell(
        suite=job.suite,
        engine=c["engine"],
        engine_options=c["engine_options"],
        group=Group.model_validate(c["group"]),
        variant=Variant.model_validate(c["variant"]),
        sharing=Sharing.model_validate(c["sharing"]),
        training=Training.model_validate(c["training"]),
        evaluation=Evaluation.model_validate(c["evaluation"]),
        seed=c["seed"],
        key=job.key,
        baseline=job.baseline,
    )


def _as_steps(progress: Callable[[float, float, str], None], share: float, words: str) -> None:
    progress(share, 1.0, words)


def run_job(
    job: Job, verifier: Verifier, progress: Callable[[float, float, str], None], stopped: Callable[[], bool]
) -> float:
    """Do it; returns the CPU-seconds it took. A failure is also noted in the job's manifest. Raises HarnessError, Interrupted."""
    folder = Path(job.folder)
    if isinstance(job, CellJob):
        from harness.session.cell import run_cell

        cell = cell_of(job)
        manifest = cell_manifest(cell)
        work = partial(run_cell, cell, folder, verifier, progress, stopped, job.layout)
    else:
        from harness.session.evaluate import evaluate_base

        suite = Suite.model_validate(job.suite)
        group = suite.groups[job.group]
        base = Base(suite, group, group.policies[job.policy], job.seed, job.sources)
        manifest = base_manifest(base)
        work = partial(evaluate_base, base, folder, verifier, partial(_as_steps, progress), job.layout)
    try:
        return work()
    except DiskFullError:
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, HarnessError) else f"{type(error).__name__}: {error}"
        if reason and type(error).__name__ != "Interrupted":
            with contextlib.suppress(StoreError):
                mark(folder, manifest, "failed", reason, attempts=state_of(folder)[2])
        raise
