"""What a prepared suite takes on the disk. Imports without torch."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from harness.allocation.cost_model import MEAN_ANSWER, checkpoint_bytes
from harness.allocation.planner import Disk
from harness.allocation.shapes import load_shape
from harness.cache import PRETRAINED, cache_folder, hub_cache, model_folder
from harness.errors import UsageError
from harness.session.suite.demands import asked, demand
from harness.session.suite.prepare import Prepared
from harness.suite.cells import Cell
from harness.suite.schema import FileTask
from harness.tasks.registry import is_generated

_WEIGHTS = {".safetensors", ".bin", ".gguf", ".pt", ".pth"}
_TABLES = {
    "samples": (4200, 72),
    "steps": (9600, 140),
    "terms": (2700, 52),
    "curves": (1350, 13),
    "costs": (2030, 24),
    "exchanges": (4200, 33),
    "traces": (4000, 60),
}
"""Bytes of a finished journal's tables before their first row (schemas), and per row, texts and lists left out, as lz4 leaves them;
measured on micro cells."""
_PHASES = 7
"""Cost rows of one policy between two checkpoints."""
_TRACES = 2
"""Traces of one policy and step."""
_MANIFEST = 3300


class CellDisk(NamedTuple):
    """Bytes of one cell. running: at the fullest moment before its end."""

    kept: int
    running: int


def _text(task: str | FileTask) -> tuple[float, float]:
    """Bytes per token that lz4 leaves of an answer's text, and of what a trace lists: measured on the micro task, a prior of
    prose."""
    return (0.3, 4.0) if is_generated(task) else (2.2, 32.0)


def disk_of(prepared: Prepared, workers: int) -> Disk:
    """So many of the pending cells side by side. Raises UsageError for a model of unknown size."""
    pending = prepared.left()
    of_kind = {cell.kind: cell_disk(cell) for cell in {cell.kind: cell for cell in pending}.values()}
    cells = [of_kind[cell.kind] for cell in pending]
    answers, tokens = asked(prepared.suite.evaluation)
    header, row = _TABLES["samples"]
    evaluated = 2000 + _MANIFEST // 3 + header
    evaluated += int(answers * (row + _text(prepared.suite.training.task)[0] * MEAN_ANSWER * tokens))
    kept = sum(c.kept for c in cells) + len(prepared.missing()) * evaluated
    most = sorted((c.running - c.kept for c in cells), reverse=True)[: max(1, workers)]
    return Disk(kept, kept + sum(most), sum(size for _, size in _caches(prepared)))


def cell_disk(cell: Cell) -> CellDisk:
    asks, (answer, trace) = demand(cell), _text(cell.training.task)
    work, policies, shared = asks.workload, len(asks.policies), asks.workload.trained - 1.0
    own = sum(p.rollouts for p in asks.policies) * work.prompts * work.steps
    rows = {
        "samples": policies * work.evaluated,
        "steps": policies * work.steps,
        "terms": policies * work.steps * (2 if shared else 1),
        "curves": policies * work.curves,
        "costs": policies * _PHASES * work.saves,
        "exchanges": int(own * shared),
        "traces": policies * work.steps * _TRACES if shared else 0,
    }
    texts = rows["samples"] * answer * work.evaluation_tokens + rows["traces"] * trace * work.answer_tokens
    tables = sum(_TABLES[name][0] + _TABLES[name][1] * count for name, count in rows.items() if count)
    journal = _MANIFEST + int(MEAN_ANSWER * texts) + tables
    saved = [
        checkpoint_bytes(p.model, p.precision, _tokenizer(model_folder(policy.model)), p.adapters)
        for p, policy in zip(asks.policies, cell.group.policies, strict=True)
    ]
    weights, whole = sum(c.kept for c in saved), sum(c.whole for c in saved)
    kept = journal + (0 if cell.keep == "none" else weights)
    best = 2 * weights + max(c.optimiser for c in saved) if cell.keep == "best" else 0
    return CellDisk(kept, max(kept, journal + min(2, max(1, work.saves)) * whole + best))


def check_place(folder: Path) -> None:
    """Before anything that takes time. Raises UsageError."""
    existing = _existing(folder)
    try:
        with tempfile.TemporaryFile(
            dir=existing
        ):  # permissions do not tell everything: read-only mounts, root's own limits
            pass
    except OSError as error:
        why = f"cannot be written: {error.strerror or error}" if existing.is_dir() else "is a file, not a folder"
        raise UsageError(f"{folder}: {existing} {why}") from None


def check_disk(prepared: Prepared, disk: Disk) -> None:
    """Raises UsageError for what the disks cannot hold."""
    folder = prepared.folder
    there = sum(_size(folder / cell.key) for cell in prepared.left())
    needs = [(folder, "the results", max(0, disk.running - there))]
    needs += [(place, "the models", size) for place, size in _caches(prepared)]
    by_device: dict[int, list[tuple[Path, str, int]]] = {}
    for need in needs:
        by_device.setdefault(_existing(need[0]).stat().st_dev, []).append(need)
    for found in by_device.values():
        place, needed = found[0][0], sum(size for *_, size in found)
        free = shutil.disk_usage(_existing(place)).free
        if needed > free:
            words = " and ".join(dict.fromkeys(what for _, what, size in found if size))
            raise UsageError(
                f"{place}: {words} need about {needed / 2**30:.2f} GiB, {free / 2**30:.2f} GiB are free on this disk "
                "(`keep: none` or `best` in the suite: docs/suites.md)"
            )


def _caches(prepared: Prepared) -> Iterator[tuple[Path, int]]:
    """Where models that are not there yet will lie, and their bytes, each once."""
    bases = {b.key: b for cell in prepared.left() for b in prepared.bases_of(cell)}.values()
    for model, revision, *_ in {(b.policy.model, b.policy.revision, b.policy.stage0, b.seed): b for b in bases}:
        shape = load_shape(model, revision)
        if model.startswith("micro/"):
            yield cache_folder(), checkpoint_bytes(shape, "fp32").kept
        elif not model.startswith(PRETRAINED) and not model_folder(model).is_dir():
            place, whole = hub_cache(model), checkpoint_bytes(shape, "bf16").kept
            if _size(place / "blobs") < whole // 2:
                yield place.parent, whole


def _tokenizer(folder: Path) -> int | None:
    if not folder.is_dir():
        return None
    return sum(p.stat().st_size for p in folder.iterdir() if p.is_file() and p.suffix not in _WEIGHTS)


def _existing(path: Path) -> Path:
    return next(p for p in (path, *path.parents) if p.exists())


def _size(folder: Path) -> int:
    return sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file()) if folder.is_dir() else 0
