"""Jobs for workers: from a cell or base to a message, and from a message to work."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from harness.errors import (
    CheckpointError,
    DiskFullError,
    EngineError,
    Fault,
    FencedError,
    HarnessError,
    PluginError,
    StoreError,
    TrainingError,
    VerificationError,
)
from harness.files import TEMPORARY, remove
from harness.learning import registry
from harness.phases import Interrupted
from harness.session.cell.manifests import Base, base_manifest, cell_manifest, mark, state_of
from harness.session.driver.worker_messages import BaseJob, CellJob, Job
from harness.store.fence import Fence
from harness.store.manifest import remedy
from harness.suite.cells import Cell

if TYPE_CHECKING:
    from harness.verification.verifier import Verifier

log = logging.getLogger("harness")
_NO_MEMORY = re.compile(r"out of memory|(?:can't|cannot) allocate memory|not enough memory|bad_alloc", re.IGNORECASE)
"""In the words of CUDA, PyTorch's allocators, the C library and C++."""


def cell_job(cell: Cell, folder: Path, layout: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> CellJob:
    return CellJob(cell.label, str(folder), cell, {name: dict(options) for name, options in layout.items()})


def base_job(base: Base, folder: Path, layout: Mapping[str, Mapping[str, Any]]) -> BaseJob:
    label = f"base {base.group.name}/{base.policy.name}" + (f"/{base.seed}" if base.seed is not None else "")
    return BaseJob(label, str(folder), base, dict(layout.get(base.policy.name, {})))


def run_job(
    job: Job, verifier: Verifier, progress: Callable[[float, float, str], None], stopped: Callable[[], bool]
) -> float:
    """Do it; returns the CPU-seconds it took. Start and end are noted in its manifest. Raises HarnessError, Interrupted."""
    folder = Path(job.folder)
    manifest = cell_manifest(job.cell) if isinstance(job, CellJob) else base_manifest(job.base)
    fence = Fence(folder, attempts=state_of(folder)[2])
    attempt = fence.owner.attempt
    for leftover in folder.glob(f"*{TEMPORARY}"):  # of a start that was killed
        remove(leftover)
    mark(folder, manifest, "running", attempts=attempt, guard=fence)
    log.info("start %d of %s (%s), process %d on %s", attempt, job.id, folder.name, os.getpid(), socket.gethostname())
    try:
        if isinstance(job, CellJob):
            from harness.session.cell.cell import run_cell

            return run_cell(job.cell, folder, verifier, progress, stopped, job.layout, fence)
        from harness.session.cell.evaluate import evaluate_base

        return evaluate_base(job.base, folder, verifier, progress, job.layout, fence)
    except (DiskFullError, Interrupted):
        log.info("broken off", exc_info=True)
        raise
    except Exception as error:
        log.exception("failed")
        if reason := reason_of(error, job):
            with contextlib.suppress(StoreError, FencedError):
                mark(folder, manifest, "failed", reason, attempts=attempt, guard=fence, fault=fault_of(error))
        raise


def reason_of(error: Exception, job: Job) -> str:
    """An expected error's own words; any other with the line that it comes from: the last one in the plugin, else the last."""
    if isinstance(error, CheckpointError):
        return f"{error}; {remedy(Path(job.folder))}"
    if isinstance(error, HarnessError):
        return str(error)
    frames = list(traceback.walk_tb(error.__traceback__))
    package = _plugin_package(job)
    theirs = [f for f in frames if package and str(f[0].f_globals.get("__name__", "")).partition(".")[0] == package]
    frame, line = (theirs or frames)[-1]
    file = "/".join(Path(frame.f_code.co_filename).parts[-2:])
    return f"{type(error).__name__}: {error} ({file}:{line}, in {frame.f_code.co_name})"


def fault_of(error: Exception) -> Fault:
    """The word for what has happened."""
    match error:
        case TrainingError():
            return error.fault
        case MemoryError():
            return Fault.MEMORY
        case RuntimeError() | EngineError() | OSError() if _NO_MEMORY.search(str(error)):
            return Fault.MEMORY
        case VerificationError():
            return Fault.VERIFIER
        case StoreError() | CheckpointError() | OSError():
            return Fault.DAMAGED
        case EngineError():
            return Fault.ENGINE
    return Fault.ERROR


def _plugin_package(job: Job) -> str:
    """Top-level package of the cell's regime; empty for a base checkpoint."""
    if not isinstance(job, CellJob):
        return ""
    with contextlib.suppress(PluginError):
        return registry.load(job.cell.variant.regime).__module__.partition(".")[0]
    return ""
