"""`harness import`: another lab's results into results/<suite>@<origin>/<key>; what exists here stays.

The source is a results folder in the one format to give and take (`store.results_folder`; a bundle is such a folder as a
zip), or the folder of journals that `harness run` wrote. The first is taken completely or refused; of the second, records
that fail a check are refused and the rest of their cell is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from harness import limits
from harness.errors import StoreError, SuiteError, UsageError
from harness.files import replace_atomic
from harness.store.journal import read_journal, write_columns
from harness.store.manifest import (
    ORIGIN,
    Manifest,
    SuiteFile,
    read_manifest,
    read_sealed,
    read_submission,
    read_suite,
    suite_files,
    write_manifest,
    write_suite,
)
from harness.store.results_folder import INDEX, TUNING, read_results_folder
from harness.store.rows import without_nan
from harness.store.text import visible
from harness.store.tuning import Tuning, tuning_name, tuning_path, write_tuning
from harness.store.validation import (
    LONGEST_KEY,
    find_manifest_fault,
    find_tuning_fault,
    is_name,
    sift_rows,
)
from harness.suite.load import parse_suite

# Of a suite; each is named where it is missing
_MAX_CELLS = 100_000
_MAX_JOURNAL = 2 << 30
# The folder of a journal that was written at once
COMPACT = "compact-000001"
# What an import may take: a compressed file states its unpacked size itself
IMPORT_MEMORY = 4 << 30


@dataclass(slots=True)
class ImportReport:
    """What an import took. cells, present: taken, and here already. refused: in words, with the place. unpaired: cells that
    started from other weights than their baseline, filled in once the store is built."""

    cells: int = 0
    present: int = 0
    rows: int = 0
    rows_refused: int = 0
    refused: list[str] = field(default_factory=list)
    unpaired: list[str] = field(default_factory=list)

    def describe(self) -> str:
        """Return the report as lines for people."""
        lines = [f"{self.cells} cells with {self.rows:,} rows imported, {self.present} were there already"]
        lines += [f"in no table: {visible(line, 400)}" for line in self.unpaired]
        if self.refused:
            lines.append(f"refused ({self.rows_refused} rows in all):")
            lines += [f"  {visible(line, 400)}" for line in self.refused]
        return "\n".join(lines)


def import_results(source: Path, results: Path, origin: str, bundle: str = "") -> ImportReport:
    """Take over the finished cells that are not here yet, of a results folder or of one suite's.

    origin: a label for where they come from. bundle: the name of the bundle that these are, whose checks are done. Raises
    UsageError for a wrong label or place, StoreError, DiskFullError.
    """
    if not is_name(origin, LONGEST_KEY):
        raise UsageError(f"origin {origin!r}: letters, digits and _ . + - are allowed")
    if origin == ORIGIN:
        raise UsageError(f"origin {origin!r}: is the label of results that come with the checkout; choose another")
    if not source.is_dir():
        raise UsageError(f"{source}: no such folder")
    report = ImportReport()
    if (source / INDEX).is_file():
        _import_folder(source, results, origin, bundle, report)
    else:
        _import_journals(source, results, origin, bundle, report)
    return report


@contextmanager
def limit_import_memory(memory: int = IMPORT_MEMORY) -> Iterator[None]:
    """Put a ceiling on the memory (bytes) that reading another lab's files may take."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())  # other pools have reserved address space, which no ceiling sees
    try:
        with limits.limit_memory(memory):
            yield
    finally:
        pa.set_memory_pool(before)


def _check_label(target: Path, bundle: str) -> None:
    """Check that the folder holds no other checked bundle: its badge is no other results'. Raises UsageError."""
    before = read_submission(target)
    if before is not None and before.bundle not in ("", bundle):
        raise UsageError(f"{target}: holds the checked bundle {before.bundle}; give another --origin")


def _import_folder(source: Path, results: Path, origin: str, bundle: str, report: ImportReport) -> None:
    """Take over a results folder; the suite's name is the one that its index states."""
    folder = read_results_folder(source)
    suite = folder.index.suite
    label = f"{suite}@{origin}"
    target = results / label
    _check_label(target, bundle)
    for key, manifest in folder.manifests.items():
        if (target / key).exists():
            report.present += 1
            continue
        tables = {name: without_nan(table) for name, table in folder.cells[key].tables.items()}
        _write_cell(target / key, msgspec.structs.replace(manifest, suite=label, origin=origin), tables)
        report.cells += 1
        report.rows += sum(table.num_rows for table in tables.values())
    _take_suite(target, source, report)
    if TUNING in folder.index.files:
        _take_tuning(results, SuiteFile(name=label), source / TUNING, report)


def _import_journals(source: Path, results: Path, origin: str, bundle: str, report: ImportReport) -> None:
    """Take over folders of journals, of several suites or of one."""
    folders = list(_find_cells(source, report))
    if not folders and not report.refused:
        raise UsageError(
            f"{source}: holds no results (expected {INDEX}, or <suite>/<cell>/manifest.json of a folder of results)"
        )
    suites = {suite: folder.parent for suite, folder in folders}
    for suite in suites:
        _check_label(results / f"{suite}@{origin}", bundle)
    for suite, folder in folders:
        label = f"{suite}@{origin}"
        target = results / label / folder.name
        if target.exists():
            report.present += 1
            continue
        try:
            manifest = check_manifest(suite, folder)
            tables = check_tables(manifest, folder, report)
        except StoreError as error:
            report.refused.append(str(error))
            continue
        _write_cell(target, msgspec.structs.replace(manifest, suite=label, origin=origin), tables)
        report.cells += 1
        report.rows += sum(table.num_rows for table in tables.values())
    for suite, folder in suites.items():
        label = f"{suite}@{origin}"
        _take_suite(results / label, folder, report)
        run = next((file.name for file in suite_files(folder)), "suite.json")
        _take_tuning(results, SuiteFile(name=label), folder / tuning_name(run), report)


def _find_cells(source: Path, report: ImportReport) -> Iterator[tuple[str, Path]]:
    """Yield suite and folder of each cell; refuse links and folders whose names a suite cannot have."""
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


def check_manifest(suite: str, folder: Path) -> Manifest:
    """Return the manifest of a cell's folder, whose files are not links and not too large. Raises StoreError."""
    journal = folder / "journal"
    files = [folder / "manifest.json", journal, *journal.rglob("*")]
    for file in files:
        if file.is_symlink():
            raise StoreError(f"{file}: a link")
    if sum(file.stat().st_size for file in files[1:] if file.is_file()) > _MAX_JOURNAL:
        raise StoreError(f"{journal}: larger than {_MAX_JOURNAL >> 30} GiB")
    manifest = read_manifest(folder)
    same_suite = manifest.suite.partition("@")[0] == suite.partition("@")[0]
    problem = find_manifest_fault(manifest, folder.name) or ("" if same_suite else "suite: is not the folder's name")
    if problem:
        raise StoreError(f"{folder / 'manifest.json'}: {problem}")
    return manifest


def check_tables(manifest: Manifest, folder: Path, report: ImportReport) -> dict[str, pa.Table]:
    """Return the good rows of a cell's journal, by table; the others are added to the report. Raises StoreError."""
    contents = read_journal(folder)
    report.refused += contents.problems
    tables: dict[str, pa.Table] = {}
    policies = [policy.name for policy in manifest.policies]
    replays = bool(manifest.options.get("replay"))
    for name, table in contents.tables.items():
        good, refused = sift_rows(name, policies, table, replays)
        for problem, count in refused.items():
            report.rows_refused += count
            report.refused.append(f"{manifest.suite}/{folder.name}/{name}: {count} row{'s' * (count > 1)}: {problem}")
        if good.num_rows:
            tables[name] = without_nan(good)
    if "samples" not in tables:
        raise StoreError(f"{folder}: no usable evaluation samples")
    return tables


def _write_cell(target: Path, manifest: Manifest, tables: Mapping[str, pa.Table]) -> None:
    """Write a cell's folder, completely or not at all. Raises DiskFullError."""

    def fill(temporary: Path) -> None:
        compact = temporary / "journal" / COMPACT
        compact.mkdir(parents=True)
        for name, table in tables.items():
            write_columns(compact, name, table)
        write_manifest(temporary, manifest)

    replace_atomic(target, fill)


def _take_suite(target: Path, source: Path, report: ImportReport) -> None:
    """Take over the suite's file; to one that is here already the cells are added."""
    file = next(iter(suite_files(source)), None)
    if not target.exists() or file is None:
        return
    try:
        if file.is_symlink():
            raise StoreError(f"{file}: a link")
        theirs = read_suite(source)
        if max(len(theirs.groups) * len(theirs.seeds) * len(theirs.variants), len(theirs.cells)) > _MAX_CELLS:
            raise StoreError(f"{file}: of more than {_MAX_CELLS:,} cells")
        ours = read_suite(target) if (target / "suite.json").exists() else None
    except StoreError as error:
        report.refused.append(str(error))
        return
    if ours is None:
        config: dict[str, Any] = {}
        try:
            if theirs.config:
                config = parse_suite(theirs.config, (), f"{file}: config").model_dump(mode="json")
        except SuiteError as error:
            report.refused.append(str(error))
        except (ValueError, RecursionError):
            report.refused.append(f"{file}: config: nested too deeply")
        ours = msgspec.structs.replace(theirs, name=target.name, altered=(), config=config)
    cells = _unite_keys(ours.cells, theirs.cells)
    bases = _unite_keys(ours.bases, theirs.bases)
    write_suite(target, msgspec.structs.replace(ours, cells=cells, bases=bases))


def _take_tuning(results: Path, file: SuiteFile, source: Path, report: ImportReport) -> None:
    """Take over which trial was chosen: it decides what a tuned regime is compared with."""
    target = tuning_path(results, file)
    if not (target.parent / "suite.json").exists() or target.exists() or not (source.exists() or source.is_symlink()):
        return
    try:
        if source.is_symlink():
            raise StoreError(f"{source}: a link")
        tuning = read_sealed(source, Tuning)
        problem = find_tuning_fault(tuning, {variant.name for variant in read_suite(target.parent).variants})
        if problem:
            raise StoreError(f"{source}: {problem}")
    except StoreError as error:
        report.refused.append(str(error))
        return
    write_tuning(results, file, msgspec.structs.replace(tuning, suite=file.name))


def _unite_keys(ours: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys that belong to the suite; with none all do."""
    if ours and theirs:
        return tuple(dict.fromkeys((*ours, *theirs)))
    return ()
