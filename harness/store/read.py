"""Read-only access to the store: `harness show`, `status`, `sql` and the leaderboard."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from harness.errors import StoreError, UsageError
from harness.store.columns import SCHEMAS
from harness.store.ddl import CURRENT, DERIVED, quoted
from harness.store.manifest import SuiteFile
from harness.store.place import store_path
from harness.store.tuning import chosen, read_tuning

__all__ = ["LIMITS", "OWN_MEMORY", "OWN_SECONDS", "Answer", "Limits", "Snapshot"]

OWN_SECONDS = 120.0
"""What one of our own statements may take: those of `show` and of the leaderboard's pages."""
OWN_MEMORY = 4 << 30
"""Bytes that our own statements may take together."""
_BATCH = 256
_DAMAGE = (duckdb.IOException, duckdb.FatalException, duckdb.InternalException, duckdb.SerializationException)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a user's statement may take.

    Attributes
    ----------
    rows, bytes
        Of its answer, which is cut there.
    seconds
        Then it is ended.
    memory
        Bytes; if it needs more it is ended.
    """

    rows: int = 10_000
    bytes: int = 16 << 20
    seconds: float = 30.0
    memory: int = 1 << 30


LIMITS = Limits()
"""Of `harness sql`."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a user's statement.

    Attributes
    ----------
    columns
        Names.
    rows
        As Python values.
    cut
        By which limit it lacks rows, `rows` or `bytes`; empty where it is whole.
    """

    columns: list[str] = []
    rows: list[list[Any]] = []
    cut: str = ""


class Snapshot:
    """One consistent state of the store. It stays readable while a newer one takes its place; `close` it after use.

    SQL can neither change anything nor reach files, the network or the settings.
    """

    def __init__(self, results: Path, shown: SuiteFile | None = None, memory: int = OWN_MEMORY) -> None:
        """Parameters
        ----------
        results
            The results folder.
        shown
            The run whose cells count for its suite, instead of the one that stands for the suite's folder.
        memory
            Bytes that statements may take together.

        Raises
        ------
        StoreError
            There is no store, or it cannot be read.
        """
        self.derived: dict[str, Any] = {}
        """What was computed from this state and is asked for again, by whoever keeps it there."""
        self.path = path = store_path(results)
        """The file."""
        self.state = ""
        """What tells this state of the store from every other one; empty where that is not known."""
        if not path.is_file():
            raise StoreError(f"{results}: no results yet (run a suite first: harness run quickstart)")
        self._use = "USE memory" if shown else "USE store"
        # attached to a private in-memory database: `connect(path)` would share one instance with older snapshots
        self._connection = duckdb.connect(
            ":memory:",
            config={
                "temp_directory": "",
                "memory_limit": f"{memory}B",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "python_enable_replacements": "false",
            },
        )
        try:
            before = _stamps(path)
            for statement in (
                f"ATTACH '{quoted(path)}' AS store (READ_ONLY)",
                "USE store",
            ):
                self._connection.execute(statement)
            self.state = self._state(before)
            if shown:
                _instead(self._connection, shown, results)
            for statement in ("SET enable_external_access = false", "SET lock_configuration = true"):
                self._connection.execute(statement)
        except duckdb.Error as error:
            self._connection.close()
            raise StoreError(self._damaged(error)) from error

    def query(self, statement: str, parameters: Sequence[Any] = ()) -> pa.Table:
        """Rows of one of our own statements. Safe to call from several threads.

        Parameters
        ----------
        statement
            DuckDB's SQL; tables and columns stand in docs/store.md.
        parameters
            For its question marks.

        Raises
        ------
        StoreError
            It fails, or takes longer than `OWN_SECONDS`.
        """
        with self._connection.cursor() as cursor:
            try:
                cursor.execute(self._use)
                with _until(cursor, OWN_SECONDS):
                    return cursor.sql(statement, params=list(parameters)).to_arrow_table()
            except duckdb.Error as error:
                raise StoreError(self._damaged(error) if _is_damage(error) else str(error)) from error

    def sql(self, statement: str, limits: Limits = LIMITS) -> Answer:
        """A user's statement. What bounds its memory and time for certain is `harness.store.sql`.

        Parameters
        ----------
        statement
            Exactly one that only reads.
        limits
            On its answer and time.

        Raises
        ------
        UsageError
            It is refused, fails or exceeds a limit.
        StoreError
            The store is damaged.
        """
        try:
            parsed = duckdb.extract_statements(statement)
        except duckdb.Error as error:
            raise UsageError(_first_line(error)) from error
        if len(parsed) != 1 or parsed[0].type not in {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}:
            raise UsageError("one SELECT statement is expected; the store is read-only")
        with self._connection.cursor() as cursor:
            cursor.execute("USE store")
            try:
                with _until(cursor, limits.seconds):
                    return _answer(cursor.sql(statement), limits)
            except duckdb.InterruptException as error:
                raise UsageError(f"the statement took longer than {limits.seconds:g} s") from error
            except duckdb.OutOfMemoryException as error:
                raise UsageError(f"the statement needs more than {limits.memory >> 20:,} MiB of memory") from error
            except (duckdb.Error, pa.ArrowException, OverflowError, ValueError) as error:
                if isinstance(error, duckdb.Error) and _is_damage(error):
                    raise StoreError(self._damaged(error)) from error
                raise UsageError(_first_line(error)) from error

    def _state(self, before: list[tuple[int, int]]) -> str:
        """By what the writer wrote, and by the file's times and sizes, should others have changed it. before: attaching it."""
        try:
            found = self._connection.execute("SELECT state FROM about").fetchall()
        except duckdb.Error:  # of another version
            return ""
        return f"{found} {before}" if before == _stamps(self.path) else ""

    def _damaged(self, error: duckdb.Error) -> str:
        return f"{self.path}: cannot be read: {_first_line(error)} (delete it: it is built again from the journals)"

    def close(self) -> None:
        """Idempotent."""
        self._connection.close()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _instead(connection: duckdb.DuckDBPyConnection, shown: SuiteFile, results: Path) -> None:
    """Lay views over the store, in which a suite's cells are those of `shown`."""
    changed = {
        "baseline": shown.baseline, "variants": [v.name for v in shown.variants], "groups": list(shown.groups),
        "cells": list(shown.cells), "bases": list(shown.bases), "altered": list(shown.altered),
        "tuned": chosen(read_tuning(results, shown.name, shown)),
    }  # fmt: skip
    for table in (*SCHEMAS, *DERIVED, "cells", "problems", "questions"):
        connection.execute(f"CREATE VIEW memory.{table} AS FROM store.{table}")
    connection.execute("CREATE TABLE memory.suites AS FROM store.suites WHERE suite = ?", [shown.name])
    values = ", ".join(f"{name} = ?" for name in changed)
    connection.execute(f"UPDATE memory.suites SET {values}", list(changed.values()))
    for statement in ("USE memory", CURRENT, "USE store"):
        connection.execute(statement)


def _stamps(path: Path) -> list[tuple[int, int]]:
    """Of the file and of what DuckDB, if others write to it, has not yet put there."""
    files = [Path(found) for found in (path, f"{path}.wal") if os.path.exists(found)]
    return [(file.stat().st_mtime_ns, file.stat().st_size) for file in files]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextmanager
def _until(cursor: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, cursor.interrupt)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _answer(relation: duckdb.DuckDBPyRelation | None, limits: Limits) -> Answer:
    """The first rows, as many as the limits allow."""
    if relation is None:
        return Answer()
    with relation.limit(limits.rows + 1).to_arrow_reader(_BATCH) as batches:
        columns, rows, size = batches.schema.names, list[list[Any]](), 0
        for batch in batches:
            for row in range(batch.num_rows):
                one = batch.slice(row, 1)
                size += one.nbytes
                cut = "rows" if len(rows) == limits.rows else "bytes" if size > limits.bytes else ""
                if cut:
                    return Answer(columns=columns, rows=rows, cut=cut)
                rows += [[_in_words(value) for value in values.values()] for values in one.to_pylist()]
    return Answer(columns=columns, rows=rows)


def _in_words(value: Any) -> Any:
    """An interval as text: its months, days and the rest are of no fixed length in each other."""
    if not isinstance(value, pa.MonthDayNano):
        return value
    units = {"months": value.months, "days": value.days, "seconds": value.nanoseconds / 1e9}
    return ", ".join(f"{count:g} {unit}" for unit, count in units.items() if count) or "0 seconds"


def _is_damage(error: duckdb.Error) -> bool:
    """Of the file, not of the statement. A broken block comes as one of several kinds."""
    return isinstance(error, _DAMAGE) or "Corrupt database" in str(error)
