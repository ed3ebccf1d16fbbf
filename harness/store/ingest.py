"""Builds the store's DuckDB file (`database`) from the journals: incremental, one writer, atomically replaced."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import duckdb
import msgspec
import numpy as np
import pyarrow as pa

from harness.errors import StoreError
from harness.files import TEMPORARY, disk_errors, flush_to_disk, lock_file, remove_path, replace_atomic
from harness.store.cell_state import as_damaged
from harness.store.database import CELL_TABLES, SCORES, STORE, create_tables, quote_path, schema_version, store_path
from harness.store.journal import Contents, read_journal
from harness.store.manifest import (
    MARK,
    Manifest,
    SuiteFile,
    read_manifest,
    read_suite,
    remedy_for,
    suite_file_name,
    suite_files,
    suite_folder,
)
from harness.store.reference_results import (
    INDEX,
    command_to_restore,
    forget_last_folder,
    list_references,
    read_index,
    read_reference,
)
from harness.store.rows import SCHEMAS
from harness.store.starts import write_unpaired
from harness.store.tuning import list_chosen, read_tuning, tuning_name

_LOCK = ".harness.lock"
# Rows held before they are inserted: few large commits are fast
_BATCH_BYTES = 256 << 20
_THREADS = min(4, os.cpu_count() or 1)
# Changed more recently: the time stamp may not show the next change
_SETTLED_NS = 2_000_000_000


class Source(NamedTuple):
    """A cell's folder, and the fingerprint by which a changed one is told."""

    suite: str
    cell: str
    folder: str
    fingerprint: str


Row = dict[str, Any]
Loaded = tuple[Source, Manifest, dict[str, pa.Table]]


@contextmanager
def writer_lock(store: Path, deadline: float) -> Iterator[bool]:
    """Hold the store's writer lock; yields whether the file system has locks. Raises StoreError."""
    with disk_errors(store.parent / _LOCK):
        store.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(store.parent / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            there = lock_file(handle, deadline)
        except TimeoutError:
            raise StoreError(f"{store.parent}: another process is writing the store") from None
        except OSError as error:
            raise StoreError(f"{store.parent / _LOCK}: cannot be locked: {error.strerror}") from error
        yield there
    finally:
        os.close(handle)


def ingest_journals(results: Path, deadline: float = 30.0, rebuild: bool = False) -> int:
    """Bring the store up to date with the journals; returns how many cells were read.

    Raises StoreError (no folder, locked for longer than `deadline` seconds), DiskFullError; the store is then as
    before.
    """
    if not results.is_dir():
        raise StoreError(f"{results}: no such results folder")
    store = store_path(results)
    with writer_lock(store, deadline) as alone:
        for leftover in store.parent.glob(f"{STORE}.*{TEMPORARY}*") if alone else ():  # of a writer that died
            remove_path(leftover)
        known = None if rebuild else _stored_fingerprints(store)
        sources, suites = scan_results(results)
        marks = {key: s.fingerprint for key, s in sources.items()} | {(name, ""): mark for name, mark in suites.items()}
        if known == marks:
            return 0
        try:
            return _build_store(store, known, sources, suites, results)
        except StoreError:
            if known is None:
                raise
            return _build_store(store, None, sources, suites, results)  # damaged: built anew


def _build_store(
    store: Path,
    known: Mapping[tuple[str, str], str] | None,
    sources: Mapping[tuple[str, str], Source],
    suites: Mapping[str, str],
    results: Path,
) -> int:
    """Write the store anew, or bring it up to date, and return how many cells were read. known: fingerprints of the old
    store's content, from which the new one starts; None to start from nothing."""
    changed = [s for key, s in sources.items() if known is None or known.get(key) != s.fingerprint]
    gone = [key for key in known or {} if key[1] and key not in sources]
    keys = [*((s.suite, s.cell) for s in changed), *gone]
    # where cells or the suite's own files changed, and with them what is compared
    rejudged = {suite for suite, _ in keys} | {
        name for name, mark in suites.items() if known is None or known.get((name, "")) != mark
    }

    def fill(temporary: Path) -> None:
        """Write the store in a temporary file. Raises OSError where the disk is full or a write fails."""
        if known is not None:
            shutil.copyfile(store, temporary)
        try:
            with duckdb.connect(str(temporary)) as connection:
                connection.execute(f"SET threads = {_THREADS}")
                if known is None:
                    create_tables(connection)
                else:
                    connection.register("keys", pa.table({"suite": [s for s, _ in keys], "cell": [c for _, c in keys]}))
                    for table in CELL_TABLES:
                        connection.execute(f"DELETE FROM {table} WHERE (suite, cell) IN (FROM keys)")
                    connection.execute("DELETE FROM suites; DELETE FROM problems WHERE cell = ''")
                _insert_all(connection, changed, suites, results)
                write_unpaired(connection, rejudged)
                connection.execute("CHECKPOINT")
            flush_to_disk(temporary)
        except duckdb.Error as error:  # a failed write has several kinds
            full = "No space left" in str(error)
            raise OSError(errno.ENOSPC if full else errno.EIO, str(error).splitlines()[0]) from error
        finally:
            remove_path(temporary.with_name(temporary.name + ".wal"))

    replace_atomic(store, fill)
    return len(changed)


def scan_results(results: Path) -> tuple[dict[tuple[str, str], Source], dict[str, str]]:
    """Return every cell's folder, and fingerprints of suite files. A rename into a folder changes its time stamp."""
    now = time.time_ns()
    sources: dict[tuple[str, str], Source] = {}
    suites: dict[str, str] = {}
    for suite in _list_subfolders(results):
        cells = list[os.DirEntry[str]]()
        with suppress(FileNotFoundError, PermissionError):  # gone, or not ours: lost+found at the root of a disk
            cells = _list_subfolders(Path(suite.path))
        for cell in cells:
            stamps = [_time_stamp(cell.path), _time_stamp(f"{cell.path}/journal")]
            if stamps[1] or _time_stamp(f"{cell.path}/manifest.json"):
                settled = now - max(stamps) > _SETTLED_NS
                mark = f"{stamps[0]}-{stamps[1]}" + ("" if settled else f"-read-at-{now}")
                sources[suite.name, cell.name] = Source(suite.name, cell.name, cell.path, mark)
        files = suite_files(Path(suite.path))
        if files:
            files += [f.with_name(tuning_name(f.name)) for f in files]
            suites[suite.name] = " ".join(f"{file.name}-{_time_stamp(str(file))}" for file in files)
    for name, folder in list_references(results).items():
        mark = f"{_time_stamp(str(folder))}-{_time_stamp(str(folder / INDEX))}"  # the first changes where a file is restored
        with suppress(StoreError):  # said where the suite's own line is read
            sources |= {(name, cell): Source(name, cell, str(folder), mark) for cell in read_index(folder).cells}
        suites[name] = mark
    return sources, suites


def _list_subfolders(path: Path) -> list[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        return sorted((e for e in entries if not e.name.startswith(".") and e.is_dir()), key=lambda e: e.name)


def _time_stamp(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _stored_fingerprints(store: Path) -> dict[tuple[str, str], str] | None:
    """Return the fingerprints of what a store holds, by suite and cell (empty for the suite's file).

    None where there is no store, where it is of another schema, or torn: it must be built anew.
    """
    if not store.exists():
        return None
    try:
        with duckdb.connect() as connection:
            connection.execute(f"ATTACH '{quote_path(store)}' AS store (READ_ONLY)")
            connection.execute("USE store")
            if connection.execute("SELECT version FROM about").fetchone() != (schema_version(),):
                return None
            query = "SELECT suite, cell, fingerprint FROM cells UNION ALL SELECT suite, '', fingerprint FROM suites"
            return {(suite, cell): mark for suite, cell, mark in connection.execute(query).fetchall()}
    except duckdb.Error:  # torn: built anew
        return None


def _insert_all(
    connection: duckdb.DuckDBPyConnection, changed: Sequence[Source], suites: Mapping[str, str], results: Path
) -> None:
    """Insert suites, and changed cells in batches of `_BATCH_BYTES`, so that memory does not grow with their number."""
    problems: list[Row] = []
    _insert_rows(connection, "suites", [_suite_row(results, name, mark, problems) for name, mark in suites.items()])
    batch = list[Loaded]()
    size = 0
    for i, source in enumerate(changed, 1):
        batch.append(_load_cell(source, problems))
        size += sum(table.nbytes for table in batch[-1][-1].values())
        if i == len(changed) or size >= _BATCH_BYTES:
            _insert_cells(connection, batch)
            batch = []
            size = 0
    forget_last_folder()
    _insert_rows(connection, "problems", problems)


def _insert_rows(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Row]) -> None:
    if rows:
        connection.register("rows", pa.Table.from_pylist(rows))
        connection.execute(f"INSERT INTO {table} BY NAME FROM rows")


def _suite_row(results: Path, name: str, mark: str, problems: list[Row]) -> Row:
    """Make the row of a suite's file. What is damaged is noted in `problems`, and an older file of the run stands for it."""
    folder = suite_folder(results, name)
    suite = SuiteFile(name=name, baseline="")
    tuning = None
    stored = name.endswith(MARK)

    def damaged(error: StoreError, file: Path) -> None:
        mends = command_to_restore(folder) if stored else remedy_for(file)
        problems.append({"suite": name, "cell": "", "problem": str(error), "remedy": mends})

    for file in [*suite_files(folder)[::-1]] or (None,):  # the first stands for the folder
        try:
            if stored:
                read_index(folder)
            suite = read_suite(folder, file)
        except StoreError as error:
            damaged(error, file or folder)
            suite = SuiteFile(name=name, baseline="")
    try:
        tuning = read_tuning(results, name, suite)
    except StoreError as error:
        damaged(error, folder / tuning_name(suite_file_name(suite)))
    named = {
        k: getattr(suite, k) for k in ("title", "baseline", "engine", "groups", "seeds", "cells", "bases", "altered")
    }
    return {
        "suite": name, **named, "variants": [v.name for v in suite.variants], "tuned": list_chosen(tuning),
        "config": json.dumps(suite.config), "fingerprint": mark,
    }  # fmt: skip


def _load_cell(source: Source, problems: list[Row]) -> Loaded:
    """Read a cell's manifest and journal. What is damaged is noted in `problems`, and the cell counts as damaged."""
    stored = source.suite.endswith(MARK)
    folder = Path(source.folder)
    problem = ""
    mends = ""
    kind: Literal["base", "cell"] = "base" if source.cell.startswith(("base-", "eval-")) else "cell"
    manifest = Manifest(suite=source.suite, key=source.cell, group="", kind=kind)
    try:
        manifest = read_reference(folder).manifests[source.cell] if stored else read_manifest(folder)
    except StoreError as error:
        problem = str(error)
        mends = remedy_for(folder, removed=False)
    try:
        contents = read_reference(folder).cells[source.cell] if stored else read_journal(folder)
    except StoreError as error:
        contents = Contents({}, [str(error)])
    if contents.problems:
        problem = contents.problems[0]
        mends = command_to_restore(folder) if stored else remedy_for(folder)
    if problem:
        problems.append({"suite": source.suite, "cell": source.cell, "problem": problem, "remedy": mends})
        manifest = as_damaged(manifest, problem, mends)
    return source, manifest, contents.tables


def _insert_cells(connection: duckdb.DuckDBPyConnection, batch: Sequence[Loaded]) -> None:
    """Insert a batch of cells with their tables, and the scores of their samples."""
    _insert_rows(connection, "cells", [_cell_row(source, manifest) for source, manifest, _ in batch])
    for name in SCHEMAS:
        holders = [(source, tables[name]) for source, _, tables in batch if name in tables]
        if not holders:
            continue
        owner = np.repeat(np.arange(len(holders), dtype=np.int32), [table.num_rows for _, table in holders])
        data = pa.concat_tables([table for _, table in holders]).combine_chunks()
        for place, column in enumerate(("suite", "cell")):
            labels = pa.DictionaryArray.from_arrays(owner, [source[place] for source, _ in holders])
            data = data.add_column(place, column, labels)
        connection.register("rows", data)
        connection.execute(f"INSERT INTO {name} SELECT * FROM rows")
        if name == "samples":
            connection.execute(f"INSERT INTO scores {SCORES.format(samples='rows')}")


def _cell_row(source: Source, m: Manifest) -> Row:
    """Make a cell's row of its manifest."""
    own = (
        "kind",
        "origin",
        "regime",
        "regime_type",
        "seed",
        "budget",
        "engine",
        "baseline",
        "state",
        "reason",
        "fault",
        "attempts",
    )
    made = ("code_version", "dirty", "python", "started", "finished")
    provenance = m.provenance
    row: Row = {
        "suite": source.suite,
        "cell": source.cell,
        "fingerprint": source.fingerprint,
        "group_name": m.group,
    }
    row |= {name: getattr(m, name) for name in own}
    row |= {name: getattr(provenance, name) for name in made}
    row["policies"] = [policy.name for policy in m.policies]
    row["models"] = [policy.model for policy in m.policies]
    row["options"] = json.dumps(m.options, sort_keys=True)
    row["config"] = json.dumps(m.config)
    row["commit_hash"] = provenance.commit
    row["packages"] = json.dumps(provenance.packages)
    row["machine"] = json.dumps(provenance.machine)
    row["starts"] = [policy.start for policy in m.policies]
    row["identity"] = msgspec.json.encode(m.identity).decode()
    return row
