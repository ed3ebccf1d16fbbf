"""The store built from the journals of 5 million rows, beside DuckDB reading the same rows from one Parquet file a table. Run by
`bench.py`.

CPU-seconds of all threads. Ours reads and checks hundreds of cells' journals and builds what the store derives from them besides.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
from bench import Row, Size, costs, turns

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from synthetic_results import write_results

from harness.store.database import store_path
from harness.store.ingest import ingest
from harness.store.rows import SCHEMAS

ROWS = 5_000_000


def counts(connection: duckdb.DuckDBPyConnection, present: list[str]) -> dict[str, int]:
    return {name: connection.execute(f"SELECT count(*) FROM {name}").fetchall()[0][0] for name in present}


def bench(size: Size) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        results = Path(name) / "results"
        groups = {f"pair-{g}": ("llama", "qwen") for g in range(2 if size.smoke else 10)}
        seeds = range(1 if size.smoke else 10)
        write_results(results, "many", groups, seeds=seeds, steps=500, questions=1000, repeats=2, exchanges=50)
        report = ingest(results)
        assert size.smoke or report.rows >= ROWS, report
        with duckdb.connect(str(store_path(results)), read_only=True) as store:
            rows = {table: count for table, count in counts(store, list(SCHEMAS)).items() if count}
            for table in rows:
                store.execute(f"COPY {table} TO '{name}/{table}.parquet'")

        def read() -> dict[str, int]:
            target = Path(name) / "rival.duckdb"
            target.unlink(missing_ok=True)
            with duckdb.connect(str(target)) as connection:
                for table in rows:
                    connection.execute(f"CREATE TABLE {table} AS SELECT * FROM '{name}/{table}.parquet'")
                connection.execute("CHECKPOINT")
                return counts(connection, list(rows))

        def own() -> dict[str, int]:
            ingest(results, rebuild=True)
            with duckdb.connect(str(store_path(results)), read_only=True) as connection:
                return counts(connection, list(rows))

        def equal(found: dict[str, Any]) -> None:
            assert found["ours"] == found["duckdb"] == rows

        sides: dict[str, Callable[[], Any]] = {"ours": own, "duckdb": read}
        spent = turns(sides, min(3, size.rounds), equal)
    return [costs(f"ingest, {sum(rows.values()):,} rows", "DuckDB, Parquet", spent["ours"], spent["duckdb"], 2.0)]
