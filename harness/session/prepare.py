"""From a suite's name to what there is to do: validated, resolved, with the state of every cell. Imports without torch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.engines import options
from harness.engines.openrlhf.settings import Settings
from harness.errors import PluginError, SuiteError, UsageError
from harness.learning import registry
from harness.session.manifests import Base, state_of
from harness.session.provenance import sources_digest
from harness.suite import cells as suite_cells
from harness.suite.cells import Cell
from harness.suite.load import find, load
from harness.suite.schema import Suite
from harness.tasks.registry import get_task
from harness.tasks.sets import SETS
from harness.tasks.training import SOURCES

ENGINE_OPTIONS: dict[str, type[msgspec.Struct]] = {"embedded": options.Embedded, "openrlhf": Settings}
_MICRO_CELL_BYTES = 30 << 20


@dataclass(frozen=True, slots=True)
class CellStatus:
    """A cell and where it stands: `pending`, `running` (also: cut off), `done` or `failed` with the reason."""

    cell: Cell
    state: str
    reason: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A suite ready to run. `folder` is results/<suite>."""

    source: str
    suite: Suite
    folder: Path
    cells: tuple[Cell, ...]
    bases: tuple[Base, ...]

    def status(self) -> list[CellStatus]:
        return [CellStatus(c, *state_of(self.folder / c.key)) for c in self.cells]

    def pending(self) -> list[Cell]:
        """Cells that are not done, failed ones included: they are tried again."""
        return [s.cell for s in self.status() if s.state != "done"]

    def bases_of(self, cell: Cell) -> list[Base]:
        return [b for b in self.bases if b.group.name == cell.group.name and b.seed in (None, cell.seed)]


def prepare(
    name: str, results: Path, *, overrides: Sequence[str] = (), engine: str | None = None, only: str | None = None
) -> Prepared:
    """Load, validate and expand a suite. Raises SuiteError, PluginError, UsageError; writes nothing."""
    if engine is not None:
        overrides = [*overrides, f"engine={engine}"]
    source = str(find(name))
    suite = registry.validate(load(name, overrides), source)
    if suite.engine not in ENGINE_OPTIONS:
        raise UsageError(f"{source}: engine: unknown engine {suite.engine!r} (installed: {', '.join(ENGINE_OPTIONS)})")
    options.read(ENGINE_OPTIONS[suite.engine], suite.engine_options, source)
    data = _data_revision(suite, source)
    engine_sources = sources_digest(suite.engine)
    sources = {v.regime: engine_sources + registry.source_digest(v.regime) for v in suite.regimes}
    found = suite_cells.select(suite_cells.expand(suite, sources, data), only)
    if not found:
        raise UsageError(f"--only {only}: matches none of the suite's cells (they are named group/regime/seed)")
    groups = {c.group.name for c in found}
    bases = [
        Base(suite, group, policy, seed, engine_sources)
        for group in suite.groups
        if group.name in groups
        for policy in group.policies
        for seed in (suite.seeds if policy.stage0 is not None and policy.stage0.per_seed else [None])
    ]
    return Prepared(source, suite, results / suite.name, tuple(found), tuple(bases))


def _data_revision(suite: Suite, source: str) -> str:
    """Checksums of all sets that the suite reads, as one string for the cells' keys. Raises SuiteError for an unknown task."""
    found = []
    for i, name in enumerate(suite.evaluation.tasks):
        try:
            found.append(f"{name}={get_task(name).checksum}")
        except PluginError as error:
            raise SuiteError(source, f"evaluation.tasks[{i}]", str(error)) from None
    task = suite.training.task
    if task == "micro":
        return ",".join(found)
    if task not in SOURCES:
        raise SuiteError(
            source, "training.task", f"unknown training task {task!r}; there are micro, {', '.join(SOURCES)}"
        )
    return ",".join([*found, f"training:{SETS[SOURCES[task]].sha256}"])


def check_room(prepared: Prepared) -> None:
    """Refuse, before anything is written, what the disk cannot hold. Raises UsageError."""
    folder = prepared.folder
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    if not existing.is_dir():
        raise UsageError(f"{folder}: {existing} is a file, not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"{folder}: {existing} cannot be written")
    needed = predicted_bytes(prepared, len(prepared.pending()))
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise UsageError(
            f"{folder}: the results need about {needed / 2**30:.2f} GiB, {free / 2**30:.2f} GiB are free on this disk"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:  # permissions do not tell everything: read-only mounts, root's own limits
        raise UsageError(f"{folder}: cannot be written: {error.strerror or error}") from None


def predicted_bytes(prepared: Prepared, cells: int) -> int:
    """Disk that `cells` more cells take: checkpoints with optimiser states, and journals."""
    return cells * _MICRO_CELL_BYTES
