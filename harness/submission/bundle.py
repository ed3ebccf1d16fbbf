"""`harness bundle`: a finished suite as one file that another lab can check. No weights, no path of this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

import harness
from harness.cache import PRETRAINED
from harness.errors import StoreError, UsageError
from harness.files import write_atomic
from harness.session.cell.processor import processor
from harness.session.policy.weights import local_folder
from harness.store.ingest import ingest
from harness.store.journal import read_journal, write_columns
from harness.store.manifest import (
    Manifest,
    SuiteFile,
    read_manifest,
    read_suite,
    remedy,
    write_manifest,
    write_suite,
)
from harness.store.read import Snapshot
from harness.store.reference_results import KEPT
from harness.store.table import ShowRow, show_rows
from harness.submission.container import SCORES, pack
from harness.suite.load import resolve
from harness.suite.schema import Suite

COMPACT = "compact-000001"
WORDLESS = ("prompt",)
"""Columns of samples that a bundle leaves empty: the tasks have the prompts."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the store's `scores`: what one policy of one cell has on one task under one metric."""

    cell: str
    policy: str
    task: str
    metric: str
    questions: int
    answers: int
    invalid: int
    accuracy: float


class Stated(msgspec.Struct, frozen=True, kw_only=True):
    """scores.json: every accuracy, and the lines of the table."""

    scores: list[Score]
    rows: list[ShowRow]


def make_bundle(suite: str, results: Path, out: Path | None = None) -> Path:
    """Write the bundle of results/<suite>, whose cells are all finished, to `out` (a file, or a folder for it); gives its path.

    Raises UsageError for what is not finished, StoreError for damaged journals, DiskFullError.
    """
    folder = results / suite
    if not (folder / "suite.json").is_file():
        raise UsageError(f"{folder}: no results of the suite as written (harness run {suite})")
    file = read_suite(folder, folder / "suite.json")
    installed(resolve(file.config, (), f"{folder}/suite.json: config"))
    with tempfile.TemporaryDirectory(prefix="bundle-") as root:
        scratch = Path(root)
        for key in (*file.cells, *file.bases):
            manifest, tables = finished(folder / key)
            _write(scratch / suite / key, manifest, compact(tables))
        write_suite(scratch / suite, portable(file))
        files = {SCORES: msgspec.json.format(msgspec.json.encode(stated(scratch, suite)), indent=1) + b"\n"}
        for path in sorted((scratch / suite).rglob("*")):
            if path.is_file():
                files[path.relative_to(scratch).as_posix()] = path.read_bytes()
    name, data = pack(suite, files, harness.__version__, processor())
    target = Path(name) if out is None else out / name if out.is_dir() else out
    write_atomic(target, data)
    return target


def installed(suite: Suite) -> list[str]:
    """The evaluation's tasks: names of what is installed, which anybody can ask and judge again. Raises UsageError for others."""
    for task in (suite.training.task, *suite.evaluation.tasks):
        if not isinstance(task, str) or task.startswith("lm_eval:"):
            name = task if isinstance(task, str) else task.file
            raise UsageError(
                f"{name[:200]!a}: a bundle holds tasks that are installed by name (`harness new-task` makes one)"
            )
    return [task for task in suite.evaluation.tasks if isinstance(task, str)]


def stated(results: Path, suite: str) -> Stated:
    """What the samples of the one suite in `results` give. Raises StoreError."""
    ingest(results)
    with Snapshot(results) as snapshot:
        scores = snapshot.query(
            "SELECT cell, policy, task, metric, questions, answers, invalid, accuracy FROM scores WHERE suite = ? "
            "ORDER BY cell, policy, task, metric",
            [suite],
        )
        return Stated(scores=msgspec.convert(scores.to_pylist(), list[Score]), rows=show_rows(snapshot, suite))


def compact(tables: Mapping[str, pa.Table], wordless: Sequence[str] = WORDLESS) -> dict[str, pa.Table]:
    """A journal's tables cut to what a suite's table is made of, and the checks need. wordless: columns of samples to empty."""
    found = {name: tables[name] for name in KEPT if name in tables}
    for column in wordless if "samples" in found else ():
        samples = found["samples"]
        place = samples.schema.get_field_index(column)
        nothing = pa.repeat(pa.scalar("", pa.string()), samples.num_rows)
        found["samples"] = samples.set_column(place, samples.schema.field(place), nothing)
    return found


def finished(source: Path) -> tuple[Manifest, dict[str, pa.Table]]:
    """Manifest, without a path of this machine, and tables of a cell or base checkpoint that has come to its end.

    Raises UsageError for one that has not, StoreError.
    """
    try:
        manifest = read_manifest(source)
    except StoreError as error:
        if (source / "manifest.json").exists():
            raise StoreError(f"{error}; {remedy(source, removed=False)}") from error
        raise UsageError(f"{source}: absent; run the suite to its end first") from error
    if manifest.state != "done":
        why = f" ({manifest.reason})" if manifest.reason else ""
        raise UsageError(f"{source}: {manifest.state}{why}; a bundle holds every cell of its suite, finished")
    contents = read_journal(source)
    if contents.problems:
        raise StoreError(f"{contents.problems[0]}; {remedy(source)}")
    entries = tuple(msgspec.structs.replace(e, model=_model(e.model)) for e in manifest.policies)
    return msgspec.structs.replace(manifest, policies=entries, config=_portable(manifest.config)), contents.tables


def portable(file: SuiteFile) -> SuiteFile:
    """A suite's file without a path of this machine."""
    return msgspec.structs.replace(file, config=_portable(file.config))


def _write(target: Path, manifest: Manifest, tables: Mapping[str, pa.Table]) -> None:
    folder = target / "journal" / COMPACT
    folder.mkdir(parents=True)
    for name, table in tables.items():
        write_columns(folder, name, table)
    write_manifest(target, manifest)


def _portable(value: Any) -> Any:
    """Plain configuration with the names of models' folders in the place of their paths, which no key knows."""
    if isinstance(value, dict):
        return {k: _model(v) if k == "model" and isinstance(v, str) else _portable(v) for k, v in value.items()}
    return [_portable(v) for v in value] if isinstance(value, list) else value


def _model(name: str) -> str:
    if name.startswith(PRETRAINED):  # lies in everybody's cache under this name
        return name
    return Path(name).name if name.startswith(("/", "~", ".")) or local_folder(name) else name
