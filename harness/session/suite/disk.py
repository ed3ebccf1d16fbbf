"""What a suite takes on the disk: rows, checkpoints and models; and whether there is room for it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.allocation.cost_model import MEAN_ANSWER, CellDemand, checkpoint_bytes
from harness.allocation.planner import Disk
from harness.cache import PRETRAINED, cache_folder, hub_cache, model_folder
from harness.errors import UsageError
from harness.session.policy import WEIGHTS
from harness.session.suite.demand import demand_of
from harness.session.suite.prepared import Prepared
from harness.session.suite.resolved import ResolvedSuite
from harness.suite.cells import Cell

# Bytes of a finished journal's tables: schema, and per row without texts and lists; measured on micro cells
_TABLES = {
    "samples": (4200, 72),
    "steps": (9600, 140),
    "terms": (2700, 52),
    "curves": (1350, 13),
    "costs": (2030, 24),
    "exchanges": (4200, 33),
    "traces": (4000, 60),
}
_COSTS_A_CHECKPOINT = 7
_TRACES_A_STEP = 2
_MANIFEST = 3300
# Bytes of a base checkpoint's folder beside its samples and its manifest, which is a third of a cell's
_BASE = 2000 + _MANIFEST // 3


def _text_bytes(resolved: ResolvedSuite) -> tuple[float, float]:
    """Bytes under lz4 per token of an answer's text and of a trace's lists; measured on micro, whose texts repeat, and others."""
    return (0.3, 4.0) if resolved.training.source.generated else (2.2, 32.0)


def disk_of(prepared: Prepared, workers: int) -> Disk:
    """Return what the cells that are left take. workers: cells side by side. Raises UsageError for a model of unknown size."""
    resolved = prepared.resolved
    pending = prepared.cells_to_run()
    first_of_kind = {cell.kind: cell for cell in pending}
    of_kind = {kind: cell_disk(cell, resolved) for kind, cell in first_of_kind.items()}
    cells = [of_kind[cell.kind] for cell in pending]
    evaluated = resolved.evaluation_load()
    schema, row = _TABLES["samples"]
    answer, _ = _text_bytes(resolved)
    of_base = _BASE + schema + int(evaluated.answers * (row + answer * MEAN_ANSWER * evaluated.tokens))
    kept = sum(cell.kept for cell in cells) + len(prepared.missing_bases()) * of_base
    while_running = sorted((cell.running - cell.kept for cell in cells), reverse=True)
    running = kept + sum(while_running[: max(1, workers)])
    return Disk(kept, running, sum(size for _, size in _cache_needs(prepared)))


def cell_disk(cell: Cell, resolved: ResolvedSuite) -> Disk:
    """Return what one cell takes, finished and while it runs."""
    demand = demand_of(cell, resolved)
    journal = _journal_bytes(cell, resolved, demand)
    saved = []
    for policy, own in zip(cell.group.policies, demand.policies, strict=True):
        tokenizer = _tokenizer_bytes(model_folder(policy.model))
        saved.append(checkpoint_bytes(own.model, own.precision, tokenizer, own.adapters))
    weights = sum(checkpoint.kept for checkpoint in saved)
    whole = sum(checkpoint.whole for checkpoint in saved)
    kept = journal + (0 if cell.keep == "none" else weights)
    at_once = min(2, max(1, demand.workload.saves))  # the last checkpoint goes when the next one is complete
    best = 2 * weights + max(checkpoint.optimiser for checkpoint in saved) if cell.keep == "best" else 0
    return Disk(kept, max(kept, journal + at_once * whole + best))


def _journal_bytes(cell: Cell, resolved: ResolvedSuite, demand: CellDemand) -> int:
    """Return the bytes of a finished cell's journal and manifest."""
    work = demand.workload
    policies = len(demand.policies)
    answer, trace = _text_bytes(resolved)
    penalised = cell.training.kl > 0
    shared = work.trained - 1.0 - penalised
    own_answers = sum(policy.rollouts for policy in demand.policies) * work.prompts * work.steps
    terms_a_step = (2 if shared else 1) + penalised
    rows = {
        "samples": policies * work.evaluated,
        "steps": policies * work.steps,
        "terms": policies * work.steps * terms_a_step,
        "curves": policies * work.curves,
        "costs": policies * _COSTS_A_CHECKPOINT * work.saves,
        "exchanges": int(own_answers * shared),
        "traces": policies * work.steps * _TRACES_A_STEP if shared else 0,
    }
    tables = 0
    for name, count in rows.items():
        schema, row = _TABLES[name]
        tables += schema + row * count if count else 0
    texts = rows["samples"] * answer * work.evaluation_tokens + rows["traces"] * trace * work.answer_tokens
    return _MANIFEST + int(MEAN_ANSWER * texts) + tables


def _tokenizer_bytes(folder: Path) -> int | None:
    """Return the bytes of a model's files beside its weights; None where it is no folder here."""
    if not folder.is_dir():
        return None
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file() and file.suffix not in WEIGHTS)


def check_place(folder: Path) -> None:
    """Check, before anything slow, that results can be written. Raises UsageError."""
    existing = _existing_parent(folder)
    try:
        with tempfile.TemporaryFile(dir=existing):  # permissions do not tell of read-only mounts and root's limits
            pass
    except OSError as error:
        why = f"cannot be written: {error.strerror or error}" if existing.is_dir() else "is a file, not a folder"
        raise UsageError(f"{folder}: {existing} {why}") from None


def check_disk(prepared: Prepared, disk: Disk) -> None:
    """Check that there is room. Raises UsageError where results and models need more than the disks have free."""
    folder = prepared.folder
    there = sum(_bytes_in(folder / cell.key) for cell in prepared.cells_to_run())
    needs = [(folder, "the results", max(0, disk.running - there))]
    needs += [(place, "the models", size) for place, size in _cache_needs(prepared)]
    by_device: dict[int, list[tuple[Path, str, int]]] = {}
    for need in needs:
        by_device.setdefault(_existing_parent(need[0]).stat().st_dev, []).append(need)
    for items in by_device.values():
        place = items[0][0]
        needed = sum(size for *_, size in items)
        free = shutil.disk_usage(_existing_parent(place)).free
        if needed > free:
            words = " and ".join(dict.fromkeys(what for _, what, size in items if size))
            raise UsageError(
                f"{place}: {words} need about {needed / 2**30:.2f} GiB, {free / 2**30:.2f} GiB are free on this disk "
                "(`keep: none` in the suite needs less: docs/suites.md)"
            )


def _cache_needs(prepared: Prepared) -> Iterator[tuple[Path, int]]:
    """Count the bytes that models will take, and where: supervised starts and micro models in the harness's cache, others in the
    hub's."""
    resolved = prepared.resolved
    bases = {base.key: base for cell in prepared.cells_to_run() for base in prepared.bases_of(cell)}.values()
    missing = {base.key for base in prepared.missing_bases()}
    for base in {(b.policy.model, b.policy.revision, b.policy.stage0, b.seed): b for b in bases}.values():
        policy = base.policy
        if policy.is_micro or (policy.stage0 is not None and base.key in missing):
            micro = policy.is_micro
            precision = "fp32" if micro else resolved.engine.precision(policy, prepared.suite.engine_options)
            yield cache_folder(), checkpoint_bytes(resolved.shape_of(policy), precision).kept
    for policy in {(b.policy.model, b.policy.revision): b.policy for b in bases if not b.policy.is_micro}.values():
        shape = resolved.shape_of(policy)
        model = policy.model
        if not model.startswith(PRETRAINED) and not model_folder(model).is_dir():
            place = hub_cache(model)
            whole = checkpoint_bytes(shape, "bf16").kept
            if _bytes_in(place / "blobs") < whole // 2:
                yield place.parent, whole


def _existing_parent(path: Path) -> Path:
    return next(p for p in (path, *path.parents) if p.exists())


def _bytes_in(folder: Path) -> int:
    if folder.is_dir():
        return sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file())
    return 0
