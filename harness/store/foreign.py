"""`harness import`: another lab's results folder, every record checked; nothing that exists here is changed.

A cell goes to results/<suite>@<origin>/<key>. What fails a check is refused record by record, the rest of its cell is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from harness import limits
from harness.errors import StoreError, UsageError
from harness.files import replace_atomic
from harness.store.bounds import LONGEST_KEY, checks, fault, is_name
from harness.store.journal import read_journal, write_columns
from harness.store.manifest import Manifest, read_manifest, read_suite, suite_files, write_manifest, write_suite
from harness.store.reference_results import ORIGIN
from harness.store.rows import without_nan
from harness.store.text import visible

_MAX_JOURNAL = 2 << 30
# What an import may take: a compressed file states its unpacked size itself
IMPORT_MEMORY = 4 << 30


@dataclass(slots=True)
class ImportReport:
    cells: int = 0
    present: int = 0
    rows: int = 0
    rows_refused: int = 0
    refused: list[str] = field(default_factory=list)

    def describe(self) -> str:
        lines = [f"{self.cells} cells with {self.rows:,} rows imported, {self.present} were there already"]
        if self.refused:
            lines.append(f"refused ({self.rows_refused} rows in all):")
            lines += [f"  {visible(line, 400)}" for line in self.refused]
        return "\n".join(lines)


def import_results(source: Path, results: Path, origin: str) -> ImportReport:
    """Take over the finished cells of a results folder or one suite's folder that are not there yet. Raises UsageError,
    StoreError, DiskFullError."""
    if not is_name(origin, LONGEST_KEY):
        raise UsageError(f"origin {origin!r}: letters, digits and _ . + - are allowed")
    if origin == ORIGIN:
        raise UsageError(f"origin {origin!r}: is the label of results that come with the checkout; choose another")
    if not source.is_dir():
        raise UsageError(f"{source}: no such folder")
    report = ImportReport()
    folders = list(_cells(source, report))
    if not folders and not report.refused:
        raise UsageError(f"{source}: holds no results (expected <suite>/<cell>/manifest.json)")
    for suite, folder in folders:
        target = results / f"{suite}@{origin}" / folder.name
        if target.exists():
            report.present += 1
            continue
        try:
            manifest = _checked_manifest(suite, folder)
            tables = _checked_tables(manifest, folder, report)
        except StoreError as error:
            report.refused.append(str(error))
            continue
        _write(target, msgspec.structs.replace(manifest, suite=f"{suite}@{origin}", origin=origin), tables)
        report.cells += 1
        report.rows += sum(table.num_rows for table in tables.values())
    for suite in dict.fromkeys(suite for suite, _ in folders):
        _take_suite(results / f"{suite}@{origin}", folders, suite, report)
    return report


@contextmanager
def bounded(memory: int = IMPORT_MEMORY) -> Iterator[None]:
    """A ceiling on what reading another lab's files may take of this process's memory."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(
        pa.system_memory_pool()
    )  # others have reserved address space of their own, which no ceiling sees
    try:
        with limits.memory(memory):
            yield
    finally:
        pa.set_memory_pool(before)


def _cells(source: Path, report: ImportReport) -> Iterator[tuple[str, Path]]:
    suites = [source] if any(source.glob("*/manifest.json")) else sorted(p for p in source.iterdir() if p.is_dir())
    for suite in suites:
        if suite.is_symlink() or not is_name(suite.name, LONGEST_KEY):
            if suite.is_symlink() or any(suite.glob("*/manifest.json")):
                report.refused.append(f"{suite}: not a suite's folder (name or link)")
            continue
        for folder in sorted(suite.iterdir()):
            if folder.is_dir() and (folder / "manifest.json").exists():
                if folder.is_symlink() or not is_name(folder.name, LONGEST_KEY):
                    report.refused.append(f"{folder}: not a cell's folder (name or link)")
                else:
                    yield suite.name, folder


def _checked_manifest(suite: str, folder: Path) -> Manifest:
    journal = folder / "journal"
    files = [folder / "manifest.json", *journal.rglob("*")]
    for file in files:
        if file.is_symlink():
            raise StoreError(f"{file}: a link")
    if sum(file.stat().st_size for file in files[1:] if file.is_file()) > _MAX_JOURNAL:
        raise StoreError(f"{journal}: larger than {_MAX_JOURNAL >> 30} GiB")
    manifest = read_manifest(folder)
    same_suite = manifest.suite.partition("@")[0] == suite.partition("@")[0]
    problem = fault(manifest, folder.name) or ("" if same_suite else "suite: is not the folder's name")
    if problem:
        raise StoreError(f"{folder / 'manifest.json'}: {problem}")
    return manifest


def _checked_tables(manifest: Manifest, folder: Path, report: ImportReport) -> dict[str, pa.Table]:
    contents = read_journal(folder)
    report.refused += contents.problems
    tables: dict[str, pa.Table] = {}
    policies = pa.array([p.name for p in manifest.policies])
    for name, good in contents.tables.items():
        for problem, check in checks(name, policies, good).items():
            kept = good.filter(pc.fill_null(check(good), False))
            if lost := good.num_rows - kept.num_rows:
                report.rows_refused += lost
                report.refused.append(f"{manifest.suite}/{folder.name}/{name}: {lost} row{'s' * (lost > 1)}: {problem}")
            good = kept
        if good.num_rows:
            tables[name] = without_nan(good)
    if "samples" not in tables:
        raise StoreError(f"{folder}: no usable evaluation samples")
    return tables


def _write(target: Path, manifest: Manifest, tables: Mapping[str, pa.Table]) -> None:
    def fill(temporary: Path) -> None:
        compact = temporary / "journal" / "compact-000001"
        compact.mkdir(parents=True)
        for name, table in tables.items():
            write_columns(compact, name, table)
        write_manifest(temporary, manifest)

    replace_atomic(target, fill)


def _take_suite(target: Path, folders: list[tuple[str, Path]], suite: str, report: ImportReport) -> None:
    source = next(folder.parent for name, folder in folders if name == suite)
    file = next(iter(suite_files(source)), None)
    if not target.exists() or (target / "suite.json").exists() or file is None:
        return
    try:
        if file.is_symlink():
            raise StoreError(f"{file}: a link")
        about = read_suite(source)
    except StoreError as error:
        report.refused.append(str(error))
        return
    write_suite(target, msgspec.structs.replace(about, name=target.name, cells=(), bases=(), altered=()))
