"""A suite's tables as Parquet, one file each, for any other program."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import UsageError
from harness.files import replace_atomic
from harness.store.read import Snapshot
from harness.store.table import SeedRow, ShowRow, seed_rows, show_rows, suites

STORED = ("scores", "totals", "spent", "steps", "curves", "samples")
"""Tables of the store (docs/store.md), of the cells that count."""


def write_parquet(snapshot: Snapshot, suite: str, out: Path) -> int:
    """Write `show.parquet` (the lines of `harness show`), `seeds.parquet` (the same seed by seed), `cells.parquet` and the store's
    tables into `out`; gives their number. Raises UsageError for an unknown suite, StoreError, DiskFullError."""
    if suite not in suites(snapshot):
        raise UsageError(f"no results of a suite {suite!r}")
    rows: dict[str, Sequence[ShowRow | SeedRow]] = {
        "show": show_rows(snapshot, suite),
        "seeds": seed_rows(snapshot, suite),
    }
    tables = {name: pa.Table.from_pylist([msgspec.to_builtins(row) for row in some]) for name, some in rows.items()}
    tables["cells"] = snapshot.query("SELECT * FROM current_cells WHERE suite = ? ORDER BY cell", [suite])
    for name in STORED:
        tables[name] = snapshot.query(
            f"SELECT * FROM {name} SEMI JOIN current_cells USING (suite, cell) WHERE suite = ?", [suite]
        )
    for name, table in tables.items():
        replace_atomic(out / f"{name}.parquet", partial(pq.write_table, table, compression="zstd"))
    return len(tables)
