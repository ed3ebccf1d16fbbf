"""Read-only access to the store. A user's statement runs in a process of its own: the database's own limits do not
reach into every function."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from harness import limits as process_limits
from harness.errors import HarnessError, StoreError, UsageError
from harness.store.database import CELL_TABLES, OF_A_RUN, VIEWS, quote_path, store_path
from harness.store.manifest import SuiteFile
from harness.store.starts import write_unpaired
from harness.store.tuning import list_chosen, read_tuning

__all__ = [
    "LIMITS",
    "OWN_MEMORY",
    "OWN_SECONDS",
    "START_SECONDS",
    "Limits",
    "QueryAnswer",
    "Snapshot",
    "ask_in_process",
]

OWN_SECONDS = 120.0
"""What one of our own statements may take."""
OWN_MEMORY = 4 << 30
"""Bytes that they may take together."""
_BATCH = 256
_DAMAGE = (duckdb.IOException, duckdb.FatalException, duckdb.InternalException, duckdb.SerializationException)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a user's statement may take. rows, bytes: its answer is cut there. memory: in bytes."""

    rows: int = 10_000
    bytes: int = 16 << 20
    seconds: float = 30.0
    memory: int = 1 << 30


LIMITS = Limits()
"""Of `harness sql`."""


class QueryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a user's statement. cut: the limit that cut them, `rows` or `bytes`, or empty."""

    columns: list[str] = []
    rows: list[list[Any]] = []
    cut: str = ""


class Snapshot:
    """One state of the store, readable while a newer one takes its place. SQL cannot change it, nor reach files, the
    network or settings."""

    def __init__(self, results: Path, shown: SuiteFile | None = None, memory: int = OWN_MEMORY) -> None:
        """Open the store of a results folder. shown: the run whose cells count, instead of the folder's. memory: bytes.

        Raises StoreError where the store is absent or damaged.
        """
        self.finished: dict[str, Any] = {}
        """By suite, what `finished.read_finished` has read."""
        self.path = path = store_path(results)
        if not path.is_file():
            raise StoreError(f"{results}: no results yet (run a suite first: harness run quickstart)")
        self._use = "USE store"
        # attached, for `connect(path)` would share one instance with older snapshots
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
            self._connection.execute(f"ATTACH '{quote_path(path)}' AS store (READ_ONLY)")
            self._connection.execute("USE store")
            described = _describe_run(shown, results) if shown else {}
            if shown and not _is_stored_run(self._connection, shown.name, described):
                _show_run_instead(self._connection, shown.name, described)
                self._use = "USE memory"
            self._connection.execute("SET enable_external_access = false")
            self._connection.execute("SET lock_configuration = true")
        except duckdb.Error as error:
            self._connection.close()
            raise StoreError(self._explain_damage(error)) from error

    def query(self, statement: str, parameters: Sequence[Any] = ()) -> pa.Table:
        """Return rows of one of our own statements. Thread-safe. Raises StoreError where it fails, or exceeds
        `OWN_SECONDS`."""
        with self._connection.cursor() as cursor:
            try:
                cursor.execute(self._use)
                with _interrupt_after(cursor, OWN_SECONDS):
                    return cursor.sql(statement, params=list(parameters)).to_arrow_table()
            except duckdb.Error as error:
                raise StoreError(self._explain_damage(error) if _is_damage(error) else str(error)) from error

    def sql(self, statement: str, limits: Limits = LIMITS) -> QueryAnswer:
        """Return a user's statement; only `ask` surely bounds its memory and time. Raises UsageError where it is refused,
        fails or exceeds a limit, StoreError where the store is damaged."""
        try:
            parsed = duckdb.extract_statements(statement)
        except duckdb.Error as error:
            raise UsageError(_first_line(error)) from error
        if len(parsed) != 1 or parsed[0].type not in {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}:
            raise UsageError("one SELECT statement is expected; the store is read-only")
        with self._connection.cursor() as cursor:
            cursor.execute("USE store")
            try:
                with _interrupt_after(cursor, limits.seconds):
                    return _cut_answer(cursor.sql(statement), limits)
            except duckdb.InterruptException as error:
                raise UsageError(f"the statement took longer than {limits.seconds:g} s") from error
            except duckdb.OutOfMemoryException as error:
                raise UsageError(_too_large(limits)) from error
            except (duckdb.Error, pa.ArrowException, OverflowError, ValueError) as error:
                if isinstance(error, duckdb.Error) and _is_damage(error):
                    raise StoreError(self._explain_damage(error)) from error
                raise UsageError(_first_line(error)) from error

    def _explain_damage(self, error: duckdb.Error) -> str:
        return f"{self.path}: cannot be read: {_first_line(error)} (delete it: it is built again from the journals)"

    def close(self) -> None:
        """Close the snapshot. It may be called again."""
        self._connection.close()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _describe_run(shown: SuiteFile, results: Path) -> dict[str, Any]:
    """Return what the row of a suite says of one run of it: which lines and cells count, and what was chosen."""
    return {
        "baseline": shown.baseline, "variants": [v.name for v in shown.variants], "groups": list(shown.groups),
        "cells": list(shown.cells), "bases": list(shown.bases), "altered": list(shown.altered),
        "tuned": list_chosen(read_tuning(results, shown.name, shown)),
    }  # fmt: skip


def _is_stored_run(connection: duckdb.DuckDBPyConnection, suite: str, described: Mapping[str, Any]) -> bool:
    """Say whether the store's row of a suite is of this very run, so that its own views and judgement already show it."""
    columns = ", ".join(described)
    stored = connection.execute(f"SELECT {columns} FROM store.suites WHERE suite = ?", [suite]).fetchone()
    return stored == tuple(described.values())


def _show_run_instead(connection: duckdb.DuckDBPyConnection, suite: str, described: Mapping[str, Any]) -> None:
    """Lay views over the store in which a suite's row describes another run, and judge anew which of its cells are paired."""
    for table in (*CELL_TABLES, *VIEWS.keys() - {*OF_A_RUN}):
        connection.execute(f"CREATE VIEW memory.{table} AS FROM store.{table}")
    connection.execute("CREATE TABLE memory.suites AS FROM store.suites WHERE suite = ?", [suite])
    values = ", ".join(f"{name} = ?" for name in described)
    connection.execute(f"UPDATE memory.suites SET {values}", list(described.values()))
    connection.execute("USE memory")
    connection.execute("CREATE TABLE unpaired AS FROM store.unpaired LIMIT 0")
    for view in OF_A_RUN:
        connection.execute(f"CREATE VIEW {view} AS {VIEWS[view]}")
    write_unpaired(connection, [suite])
    connection.execute("USE store")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextmanager
def _interrupt_after(cursor: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, cursor.interrupt)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _cut_answer(relation: duckdb.DuckDBPyRelation | None, limits: Limits) -> QueryAnswer:
    """Take the rows of a statement up to the limits, and say in `cut` which limit was met."""
    if relation is None:
        return QueryAnswer()
    with relation.limit(limits.rows + 1).to_arrow_reader(_BATCH) as batches:
        columns = batches.schema.names
        rows = list[list[Any]]()
        size = 0
        for batch in batches:
            for row in range(batch.num_rows):
                one = batch.slice(row, 1)
                size += one.nbytes
                cut = "rows" if len(rows) == limits.rows else "bytes" if size > limits.bytes else ""
                if cut:
                    return QueryAnswer(columns=columns, rows=rows, cut=cut)
                rows += [[_in_words(value) for value in values.values()] for values in one.to_pylist()]
    return QueryAnswer(columns=columns, rows=rows)


def _in_words(value: Any) -> Any:
    """Return an interval as text: months and days have no fixed length."""
    if isinstance(value, Decimal) and value.as_tuple().exponent == 0 and abs(value) < 1 << 53:
        return int(value)  # a sum of integers
    if not isinstance(value, pa.MonthDayNano):
        return value
    units = {"months": value.months, "days": value.days, "seconds": value.nanoseconds / 1e9}
    return ", ".join(f"{count:g} {unit}" for unit, count in units.items() if count) or "0 seconds"


def _is_damage(error: duckdb.Error) -> bool:
    return isinstance(error, _DAMAGE) or "Corrupt database" in str(error)


START_SECONDS = 5.0
"""What a user's statement's process may take besides it."""
_SPARE = 128 << 20
"""Memory beside the database's, for its threads and for the answer's text."""


def ask_in_process(results: Path, statement: str, limits: Limits) -> QueryAnswer:
    """Answer a SELECT statement. Raises UsageError (also where it exceeds its limits), StoreError."""
    question = msgspec.json.encode((str(results), statement, limits))
    try:
        process = subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            input=question,
            capture_output=True,
            timeout=limits.seconds + START_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"the statement took longer than {limits.seconds:g} s") from None
    try:
        answer, refused, usage = msgspec.msgpack.decode(
            process.stdout, type=tuple[QueryAnswer, str, bool]
        )  # JSON would lack NaN
    except msgspec.MsgspecError:
        if process.returncode > 0 and not re.search(b"MemoryError|bad_alloc", process.stderr):
            raise StoreError(
                f"the statement's process failed: {process.stderr.decode(errors='replace')[-400:]}"
            ) from None
        raise UsageError(_too_large(limits)) from None
    if refused:
        raise (UsageError if usage else StoreError)(refused)
    return answer


def _too_large(limits: Limits) -> str:
    return f"the statement needs more than {limits.memory >> 20:,} MiB of memory"


def _answer_stdin() -> None:
    """Answer a statement from standard input, as a process that `ask` starts and may kill: what it writes says why one was
    refused."""
    results, statement, limits = msgspec.json.decode(sys.stdin.buffer.read(), type=tuple[str, str, Limits])
    answer = QueryAnswer()
    refused = ""
    usage = True
    try:
        with (
            Snapshot(Path(results), memory=limits.memory) as snapshot,
            process_limits.limit_memory(limits.memory + _SPARE),
        ):
            answer = snapshot.sql(statement, limits)
    except HarnessError as error:
        refused = str(error)
        usage = isinstance(error, UsageError)
    except MemoryError:
        refused = _too_large(limits)
    sys.stdout.buffer.write(msgspec.msgpack.encode(msgspec.to_builtins((answer, refused, usage), enc_hook=str)))


if __name__ == "__main__":
    _answer_stdin()
