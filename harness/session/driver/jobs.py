"""What driver and workers say to each other, one JSON object a line; running a job."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

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
from harness.files import TEMPORARY, guarded, remove
from harness.learning import registry
from harness.phases import Interrupted
from harness.session.cell.manifests import Base, base_manifest, cell_manifest, label_of, mark, state_of
from harness.session.suite.lock import held
from harness.store.journal import read_journal
from harness.store.manifest import Manifest, remedy
from harness.suite.cells import Cell, read, written

if TYPE_CHECKING:
    from harness.verification.verifier import Verifier

log = logging.getLogger("harness")
_NO_MEMORY = re.compile(r"out of memory|(?:can't|cannot) allocate memory|not enough memory|bad_alloc", re.IGNORECASE)
"""In the words of CUDA, PyTorch's allocators, the C library and C++."""


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


class Job(_Message, frozen=True):
    """A cell or a base. layout: engine options of the plan, by policy. claim: the run's, by which it may write, or empty."""

    id: str
    folder: str
    cell: Cell | None = None
    base: Base | None = None
    layout: dict[str, dict[str, Any]] = {}
    claim: str = ""

    def manifest(self) -> Manifest:
        if self.cell is not None:
            return cell_manifest(self.cell)
        assert self.base is not None
        return base_manifest(self.base)


class Leave(_Message, frozen=True):
    """After a checkpoint at the next step's end."""


class Progress(_Message, frozen=True):
    """`words` on the last step."""

    id: str
    done: float
    total: float
    words: str


class Alive(_Message, frozen=True):
    """The work went on."""

    phase: str


class Said(_Message, frozen=True):
    """A line of the log. topic: shown once for each."""

    text: str
    topic: str = ""


class Finished(_Message, frozen=True):
    """outcome: `done`, `failed`, `interrupted`, `disk` (full)."""

    id: str
    outcome: str
    reason: str = ""
    fault: Fault = Fault.ERROR
    cpu_seconds: float = 0.0


ToWorker = Job | Leave
FromWorker = Progress | Alive | Said | Finished

encoder = msgspec.json.Encoder(enc_hook=written)
to_worker = msgspec.json.Decoder(ToWorker, dec_hook=read)
from_worker = msgspec.json.Decoder(FromWorker)


def job_of(
    work: Cell | Base, folder: Path, layout: Mapping[str, Mapping[str, Any]] = MappingProxyType({}), claim: str = ""
) -> Job:
    options = {name: dict(own) for name, own in layout.items()}
    if isinstance(work, Cell):
        return Job(work.label, str(folder), cell=work, layout=options, claim=claim)
    return Job(label_of(base_manifest(work)), str(folder), base=work, layout=options, claim=claim)


def run_job(
    job: Job, verifier: Verifier, progress: Callable[[float, float, str], None], stopped: Callable[[], bool]
) -> float:
    """Returns CPU-seconds. Raises HarnessError, Interrupted."""
    folder, claim = Path(job.folder), Path(job.claim)
    with guarded(folder, partial(held, claim, folder)) if job.claim else contextlib.nullcontext():
        attempt = _attempts(folder) + 1
        for leftover in folder.glob(f"*{TEMPORARY}"):  # of a start that was killed
            remove(leftover)
        mark(folder, job.manifest(), "running", attempts=attempt)
        process = f"process {os.getpid()} on {socket.gethostname()}"
        log.info("start %d of %s (%s), %s", attempt, job.id, folder.name, process)
        try:
            if job.cell is not None:
                from harness.session.cell.cell import run_cell

                return run_cell(job.cell, folder, verifier, progress, stopped, job.layout, attempt)
            from harness.session.cell.evaluate import evaluate_base

            assert job.base is not None
            layout = job.layout.get(job.base.policy.name, {})
            return evaluate_base(job.base, folder, verifier, progress, layout, attempt)
        except (DiskFullError, Interrupted):
            log.info("interrupted", exc_info=True)
            raise
        except Exception as error:
            log.exception("failed")
            with contextlib.suppress(StoreError, FencedError):
                mark(folder, job.manifest(), "failed", failure_reason(error, job), attempt, fault_of(error))
            raise


def _attempts(folder: Path) -> int:
    """Earlier starts; of a damaged manifest by the ledger of costs."""
    state, _, attempts = state_of(folder)
    if state == "failed" and not attempts:
        with contextlib.suppress(StoreError):
            costs = read_journal(folder).tables.get("costs")
            return 0 if costs is None else max(costs["attempt"].to_pylist())
    return attempts


def failure_reason(error: Exception, job: Job) -> str:
    """Of an unexpected error also its last line in the plugin, else its last."""
    if isinstance(error, CheckpointError):
        return f"{error}; {remedy(Path(job.folder))}"
    if isinstance(error, HarnessError):
        return str(error)
    package = ""
    if job.cell is not None:
        with contextlib.suppress(PluginError):
            package = registry.load(job.cell.variant.regime).__module__.partition(".")[0]
    frames = list(traceback.walk_tb(error.__traceback__))
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
