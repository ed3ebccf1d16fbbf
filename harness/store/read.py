"""Read-only access to the store: `harness show`, `status`, `sql` and the leaderboard."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from harness.errors import StoreError, UsageError
from harness.store.ingest import STORE, quoted


class Snapshot:
    """One consistent state of the store. It stays readable while a newer one takes its place; `close` it after use.

    SQL can neither change anything nor reach files, the network or the settings.
    """

    def __init__(self, results: Path) -> None:
        """Raises StoreError where there is no store, or it cannot be read."""
        path = results / STORE
        if not path.exists():
            raise StoreError(f"{results}: no results yet (run a suite first: harness run quickstart)")
        # attached to a private in-memory database: `connect(path)` would share one instance with older snapshots
        self._connection = duckdb.connect(
            ":memory:", config={"temp_directory": "", "autoinstall_known_extensions": "false"}
        )
        try:
            for statement in (
                f"ATTACH '{quoted(path)}' AS store (READ_ONLY)",
                "USE store",
                "SET enable_external_access = false",
                "SET lock_configuration = true",
            ):
                self._connection.execute(statement)
        except duckdb.Error as error:
            self._connection.close()
            raise StoreError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from error

    def query(self, statement: str, parameters: Sequence[Any] = ()) -> pa.Table:
        """Rows of one of our own statements. Safe to call from several threads. Raises StoreError."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute("USE store")
                return cursor.sql(statement, params=list(parameters)).to_arrow_table()
        except duckdb.Error as error:
            raise StoreError(str(error)) from error

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
                raise UsageError(_first_line(error)) from error
            finally:
                timer.cancel()

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _first_line(error: duckdb.Error) -> str:
    return str(error).splitlines()[0]
