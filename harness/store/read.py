"""Read-only access to the store: `harness show`, `status`, `sql` and the leaderboard."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from harness.errors import StoreError, UsageError
from harness.store.columns import SCHEMAS
from harness.store.ingest import STORE, quoted
from harness.store.manifest import SuiteFile
from harness.store.schema import CURRENT, DERIVED

_DAMAGE = (duckdb.IOException, duckdb.FatalException, duckdb.InternalException, duckdb.SerializationException)


class Snapshot:
    """One consistent state of the store. It stays readable while a newer one takes its place; `close` it after use.

    SQL can neither change anything nor reach files, the network or the settings.
    """

    def __init__(self, results: Path, shown: SuiteFile | None = None) -> None:
        """shown: the run whose cells count for its suite, instead of the one that stands for the suite's folder.

        Raises StoreError where there is no store, or it cannot be read.
        """
        self._path = path = results / STORE
        if not path.exists():
            raise StoreError(f"{results}: no results yet (run a suite first: harness run quickstart)")
        self._use = "USE memory" if shown else "USE store"
        # attached to a private in-memory database: `connect(path)` would share one instance with older snapshots
        self._connection = duckdb.connect(
            ":memory:", config={"temp_directory": "", "autoinstall_known_extensions": "false"}
        )
        try:
            for statement in (
                f"ATTACH '{quoted(path)}' AS store (READ_ONLY)",
                "USE store",
                *(_instead(shown) if shown else ()),
                "SET enable_external_access = false",
                "SET lock_configuration = true",
            ):
                self._connection.execute(statement)
        except duckdb.Error as error:
            self._connection.close()
            raise StoreError(self._damaged(error)) from error

    def query(self, statement: str, parameters: Sequence[Any] = ()) -> pa.Table:
        """Rows of one of our own statements. Safe to call from several threads. Raises StoreError."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(self._use)
                return cursor.sql(statement, params=list(parameters)).to_arrow_table()
        except duckdb.Error as error:
            raise StoreError(self._damaged(error) if _is_damage(error) else str(error)) from error

    def sql(self, statement: str, seconds: float = 60.0) -> pa.Table:
        """A user's statement: exactly one that only reads. Raises UsageError."""
        try:
            parsed = duckdb.extract_statements(statement)
        except duckdb.Error as error:
            raise UsageError(_first_line(error)) from error
        if len(parsed) != 1 or parsed[0].type not in {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}:
            raise UsageError("one SELECT statement is expected; the store is read-only")
        with self._connection.cursor() as cursor:
            cursor.execute("USE store")
            timer = threading.Timer(seconds, cursor.interrupt)
            timer.start()
            try:
                return cursor.sql(statement).to_arrow_table()
            except duckdb.InterruptException as error:
                raise UsageError(f"the statement took longer than {seconds:.0f} s") from error
            except duckdb.Error as error:
                if _is_damage(error):
                    raise StoreError(self._damaged(error)) from error
                raise UsageError(_first_line(error)) from error
            finally:
                timer.cancel()

    def _damaged(self, error: duckdb.Error) -> str:
        return f"{self._path}: cannot be read: {_first_line(error)} (delete it: it is built again from the journals)"

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _instead(shown: SuiteFile) -> list[str]:
    """Statements that lay views over the store, in which a suite's cells are those of `shown`."""
    literal = {
        "baseline": _text(shown.baseline), "variants": _texts(v.name for v in shown.variants), "groups": _texts(shown.groups),
        "cells": _texts(shown.cells), "bases": _texts(shown.bases), "altered": _texts(shown.altered),
    }  # fmt: skip
    changed = ", ".join(f"{value} AS {name}" for name, value in literal.items())
    tables = [*SCHEMAS, *DERIVED, "cells", "problems", "questions"]
    return [
        *(f"CREATE VIEW memory.{table} AS FROM store.{table}" for table in tables),
        f"CREATE VIEW memory.suites AS SELECT * REPLACE ({changed}) FROM store.suites WHERE suite = {_text(shown.name)}",
        "USE memory",
        CURRENT,
        "USE store",
    ]


def _texts(values: Iterable[str]) -> str:
    return f"[{', '.join(map(_text, values))}]::VARCHAR[]"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _is_damage(error: duckdb.Error) -> bool:
    """Of the file, not of the statement. A broken block comes as one of several kinds."""
    return isinstance(error, _DAMAGE) or "Corrupt database" in str(error)


def _first_line(error: duckdb.Error) -> str:
    return str(error).splitlines()[0]
