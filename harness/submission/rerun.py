"""Stored cells are trained again and compared row by row: the proof that rows are those of the stated configuration."""

from __future__ import annotations

import math
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from harness.engines.embedded.numerics import environment_of
from harness.errors import CellError, SuiteError, UsageError
from harness.learning import registry
from harness.phases import Interrupted
from harness.session.cell.manifests import describe_processor, label_of, package_versions
from harness.session.driver.jobs import Finished, Progress, job_of
from harness.session.driver.matrix import CLOSE_SECONDS, SILENCE_SECONDS, Inbox, WorkerProcess
from harness.session.suite.files import check_roots
from harness.store.journal import read_journal
from harness.store.manifest import Manifest
from harness.submission.bundle import select_tables
from harness.submission.proofs import SubmittedBundle
from harness.suite.cells import cell_of
from harness.versions import recorded_versions

# Tables of times alone
APART = {"costs"}
# A cell by portable numerics repeats its rows on each of these
EVERY_PROCESSOR = "every x86-64"
_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy")


@dataclass(frozen=True, slots=True)
class RerunRequest:
    """How many cells to train again. seed: of the choice; None: random. minutes: time limit of each cell."""

    cells: int
    seed: int | None = None
    minutes: float = 60.0


def train_cell(manifest: Manifest, folder: Path, deadline: float = math.inf, steps: float = math.inf) -> None:
    """Train a cell in a worker process with the cell's environment, into `folder`.

    deadline: by `time.monotonic`. steps: it is stopped after so many, and not evaluated. Raises CellError where it fails,
    Interrupted at the deadline.
    """
    beside = {name: getattr(manifest, name) for name in ("suite", "key", "baseline", "identity")}
    cell = cell_of({**manifest.config, **beside})
    inbox = Inbox()
    worker = WorkerProcess(inbox, environment_of(cell.engine_options), SILENCE_SECONDS)
    try:
        worker.give_job(job_of(cell, folder))
        while (left := min(deadline, worker.heard + SILENCE_SECONDS) - time.monotonic()) > 0:
            with suppress(queue.Empty):
                match inbox.get(timeout=min(left, threading.TIMEOUT_MAX))[1]:
                    case Progress(done=done, total=total, words=words):
                        print(f"{done:g}/{total:g}  {words}", file=sys.stderr)
                        if done >= steps:
                            worker.ask_to_stop()
                    case Finished(outcome="done"):
                        return
                    case Finished(outcome="interrupted") if steps < math.inf:
                        return
                    case Finished(reason=reason):
                        raise CellError(f"{folder}: {reason}")
                    case None:
                        raise CellError(f"{folder}: {worker.exit_reason()}")
                worker.heard = time.monotonic()
        raise Interrupted
    finally:
        worker.close(time.monotonic() + CLOSE_SECONDS)


def compare_tables(left: Mapping[str, pa.Table], right: Mapping[str, pa.Table]) -> Iterator[tuple[str, bool, str]]:
    """Yield for each table its name, whether all rows but times and costs are the same, and that in words.

    left: as stored; right: as trained now. A column that is absent from all stored rows was added later, and may differ.
    """
    for name in sorted((left.keys() | right.keys()) - APART):
        old = _untimed_rows(left.get(name))
        new = _untimed_rows(right.get(name))
        columns = sorted({column for row in (old or new) for column in row})
        wrong = list[str]()
        added = list[str]()
        for column in columns:
            stored = [row.get(column) for row in old]
            if stored == [row.get(column) for row in new]:
                continue
            is_younger = bool(old) and all(value is None for value in stored)
            (added if is_younger else wrong).append(column)
        if len(old) != len(new) or wrong:
            yield name, False, f"{len(old)} rows stored, {len(new)} now; differing columns: {', '.join(wrong)}"
        else:
            remark = f"; not stored then: {', '.join(added)}" if added else ""
            yield name, True, f"{len(old)} rows, the same{remark}"


def _untimed_rows(table: pa.Table | None) -> list[dict[str, Any]]:
    """Return the rows without times, and with None for NaN, which equals nothing."""
    rows: list[dict[str, Any]] = []
    for row in [] if table is None else table.to_pylist():
        kept = {name: value for name, value in row.items() if not name.endswith("_seconds")}
        rows.append({name: None if value != value else value for name, value in kept.items()})
    return rows


def re_execute(submitted: SubmittedBundle, again: RerunRequest) -> dict[str, str]:
    """Train random cells of a checked bundle again; return by label what is the same.

    Raises UsageError for the first cell whose rows differ, or that cannot be trained here.
    """
    seed = secrets.randbelow(1 << 31) if again.seed is None else again.seed
    stated = sorted(submitted.manifests.values(), key=label_of)
    cells = [
        manifest for manifest in stated if manifest.kind == "cell" and manifest.regime_type in registry.installed()
    ]
    if not cells:
        raise submitted.fault("none of its regimes is installed here", submitted.suite)
    chosen = {
        f"{submitted.bundle}: {submitted.suite}/{manifest.key} ({label_of(manifest)}, --seed {seed})": manifest
        for manifest in Random(seed).sample(cells, min(again.cells, len(cells)))
    }
    for place, manifest in chosen.items():
        check_repeatable(manifest, place)
    try:
        check_roots(submitted.resolved, Path("results"))
    except SuiteError as error:
        raise submitted.fault(error.problem, submitted.suite) from None
    trained: dict[str, str] = {}
    for place, manifest in chosen.items():
        folder = submitted.folder / "again" / manifest.key
        trained[label_of(manifest)] = train_and_compare(
            manifest, submitted.tables(manifest.key), folder, place, again.minutes
        )
    return trained


def repeats_on(manifest: Manifest) -> str:
    """Return the kind of processor on which the cell repeats its rows, EVERY_PROCESSOR, or empty for none."""
    machine = manifest.provenance.machine
    if manifest.config["engine_options"].get("numerics") == "portable":
        return EVERY_PROCESSOR
    return "" if "threads" in machine else machine.get("processor", "unknown")


def repeats_here(manifest: Manifest) -> bool:
    """Say whether the cell repeats its rows on this machine's kind of processor."""
    return repeats_on(manifest) in (EVERY_PROCESSOR, describe_processor())


def check_repeatable(manifest: Manifest, place: str) -> None:
    """Check that the cell can be trained here to the same rows. Raises UsageError, which begins with `place`."""
    made_on = manifest.provenance.machine.get("processor") or "an unknown CPU"
    threads = manifest.provenance.machine.get("threads", "1")
    faults = {
        f"of the engine {manifest.engine}; embedded cells alone can be trained again": manifest.engine != "embedded",
        f"computed by {threads} threads, which round otherwise in every run": threads != "1",
        f"computed with numerics: fast on {made_on}, and comes out the same there alone": not repeats_here(manifest),
    }
    for package, version in manifest.identity.versions.items():
        here = str(recorded_versions()[package].version) if package in recorded_versions() else version
        faults[f"computed by {package} {version}; here is {here}, whose results are others"] = here != version
    for policy in manifest.config["group"]["policies"]:
        absent = not str(policy["model"]).startswith("micro/") and not policy.get("revision")
        faults[f"the model {policy['model']} is not in the bundle"] = absent
    problems = [problem for problem, is_so in faults.items() if is_so]
    if problems:
        raise UsageError(f"{place}: {problems[0]}")


def train_and_compare(
    manifest: Manifest,
    stored: Mapping[str, pa.Table],
    folder: Path,
    place: str,
    minutes: float,
    select: Callable[[Mapping[str, pa.Table]], Mapping[str, pa.Table]] = select_tables,
) -> str:
    """Train a cell again into `folder` and compare its rows with the stored ones; say what is the same.

    minutes: time limit. select: what is stored of the tables of a journal. Raises UsageError where rows differ, or it takes too
    long.
    """
    print(f"training again: {place}", file=sys.stderr)
    try:
        train_cell(manifest, folder, time.monotonic() + 60 * minutes)
    except Interrupted:
        raise UsageError(f"{place}: not finished in {minutes:g} minutes") from None
    now = select(read_journal(folder).tables)
    wrong = [f"{table}: {words}" for table, same, words in compare_tables(stored, now) if not same]
    if not wrong:
        return "every row the same"
    here = package_versions()
    there = manifest.provenance.packages
    unlike = [
        f"{name} {there.get(name)}, here {here.get(name)}" for name in _LIBRARIES if here.get(name) != there.get(name)
    ]
    made_with = f" (made with {', '.join(unlike)})" if unlike else ""
    raise UsageError(f"{place}: other rows{made_with}: {wrong[0]}")
