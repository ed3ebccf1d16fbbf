"""Room on the disk: what a prepared suite will take, and a refusal before anything is written. Imports without torch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from harness.allocation.cells_as_demand import RegimeLoad, kind_of
from harness.allocation.disk import MICRO, PROSE, CellDisk, Text, cell_disk, evaluation_bytes
from harness.allocation.planner import Disk
from harness.allocation.shapes import load_shape
from harness.allocation.size import checkpoint_bytes
from harness.cache import PRETRAINED, cache_folder, hub_cache, model_folder
from harness.errors import UsageError
from harness.session.cell.manifests import Base
from harness.session.suite.demands import asked, demand_of, loads
from harness.session.suite.prepare import Prepared
from harness.suite.cells import Cell
from harness.suite.schema import FileTask, Policy, Stage0
from harness.tasks.registry import is_generated

_MODEL_FILES = ("*.safetensors", "*.bin", "*.gguf", "*.pt", "*.pth")


def disk_of(prepared: Prepared, workers: int) -> Disk:
    """What the pending cells take, so many of them side by side. Raises UsageError for a model whose size is not known."""
    pending, variants = prepared.left(), loads(prepared.suite)
    of_kind = {kind_of(cell): cell for cell in pending}
    sizes = {name: cell_size(cell, variants[cell.variant.name]) for name, cell in of_kind.items()}
    cells = [sizes[kind_of(cell)] for cell in pending]
    bases = {b.key: b for cell in pending for b in prepared.bases_of(cell)}
    asks = asked(prepared.suite.evaluation)
    text = _text(prepared.suite.training.task)
    kept = sum(c.kept for c in cells) + len(prepared.missing()) * evaluation_bytes(asks.answers, asks.tokens / 2, text)
    most = sorted((c.running - c.kept for c in cells), reverse=True)[: max(1, workers)]
    return Disk(kept, kept + sum(most), sum(size for _, size in _caches(bases.values())))


def cell_size(cell: Cell, load: RegimeLoad) -> CellDisk:
    """What one cell takes."""
    work = demand_of(cell, load)
    shared = work.workload.trained - 1.0
    return cell_disk(work, cell.keep, shared, _text(cell.training.task), _tokenizers(cell.group.policies))


def check_place(folder: Path) -> None:
    """Refuse a folder that cannot be made or written, before anything that takes time. Raises UsageError."""
    existing = _existing(folder)
    if not existing.is_dir():
        raise UsageError(f"{folder}: {existing} is a file, not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"{folder}: {existing} cannot be written")


def check_room(prepared: Prepared, disk: Disk) -> None:
    """Refuse, before anything is written, what the disks cannot hold. Raises UsageError."""
    folder = prepared.folder
    pending = prepared.left()
    there = sum(_size(prepared.folder / cell.key) for cell in pending)
    needs = [(folder, "the results", max(0, disk.running - there))]
    bases = {b.key: b for cell in pending for b in prepared.bases_of(cell)}
    needs += [(place, "the models", size) for place, size in _caches(bases.values())]
    by_device: dict[int, list[tuple[Path, str, int]]] = {}
    for place, what, size in needs:
        by_device.setdefault(_existing(place).stat().st_dev, []).append((place, what, size))
    for found in by_device.values():
        place, needed = found[0][0], sum(size for *_, size in found)
        free = shutil.disk_usage(_existing(place)).free
        if needed > free:
            words = " and ".join(dict.fromkeys(what for _, what, size in found if size))
            raise UsageError(
                f"{place}: {words} need about {needed / 2**30:.2f} GiB, {free / 2**30:.2f} GiB are free on this disk "
                "(`keep: none` or `best` in the suite: docs/suites.md)"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink(missing_ok=True)  # another part of the suite probes too
    except OSError as error:  # permissions do not tell everything: read-only mounts, root's own limits
        raise UsageError(f"{folder}: cannot be written: {error.strerror or error}") from None


def _caches(bases: Iterable[Base]) -> Iterator[tuple[Path, int]]:
    """Where base checkpoints and hub models that are not there yet will lie, and their bytes, each once."""
    for (model, revision, *_), base in {_made_of(base): base for base in bases}.items():
        shape = load_shape(model, revision)
        if model.startswith("micro/"):
            yield cache_folder(), checkpoint_bytes(shape, "fp32").kept
        elif not model.startswith(PRETRAINED) and not model_folder(model).is_dir():
            place, whole = hub_cache(base.policy.model), checkpoint_bytes(shape, "bf16").kept
            if _size(place / "blobs") < whole // 2:
                yield place.parent, whole


def _made_of(base: Base) -> tuple[str, str | None, Stage0 | None, int | None]:
    """What tells two base checkpoints apart."""
    policy = base.policy
    return policy.model, policy.revision, policy.stage0, base.seed


def _text(task: str | FileTask) -> Text:
    return MICRO if is_generated(task) else PROSE


def _tokenizers(policies: list[Policy]) -> dict[str, int]:
    """Bytes of all but the weights, of the policies that are folders here."""
    found = {}
    for policy in policies:
        folder = model_folder(policy.model)
        if folder.is_dir():
            heavy = {path for pattern in _MODEL_FILES for path in folder.glob(pattern)}
            found[policy.name] = sum(p.stat().st_size for p in folder.iterdir() if p.is_file() and p not in heavy)
    return found


def _existing(path: Path) -> Path:
    return next(p for p in (path, *path.parents) if p.exists())


def _size(folder: Path) -> int:
    return sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file()) if folder.is_dir() else 0
