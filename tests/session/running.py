"""Running cells in this process, and what they leave behind, comparable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.session.cell.manifests import suite_file
from harness.session.driver.jobs import cell_job, run_job
from harness.session.suite.prepare import Prepared, prepare
from harness.store.journal import read_journal
from harness.store.manifest import write_suite
from harness.suite.cells import Cell
from harness.verification.verifier import Verifier

TIMES = {"generate_seconds", "verify_seconds", "exchange_seconds", "score_seconds", "train_seconds"}


def run(
    file: Path, results: Path, overrides: Sequence[str] = (), only: str | None = None, stop_after: int | None = None
) -> Prepared:
    """Every cell of the suite, one after another; `stop_after` steps each asks to stop."""
    prepared = prepare(str(file), results, overrides=overrides, only=only)
    write_suite(prepared.folder, suite_file(prepared.suite, list(prepared.cells)))
    verifier = Verifier(workers=1)
    try:
        for cell in prepared.cells:
            steps = [0]

            def observe(done: float, total: float, words: str, steps: list[int] = steps) -> None:
                steps[0] = int(done)

            stopped: Callable[[], bool] = lambda steps=steps: stop_after is not None and steps[0] + 1 >= stop_after  # noqa: E731
            run_job(cell_job(cell, prepared.folder / cell.key), verifier, observe, stopped)
    finally:
        verifier.close()
    return prepared


def rows(prepared: Prepared, cell: Cell, table: str) -> list[dict[str, Any]]:
    """A journal table as plain rows, times left out, NaN as None."""
    data = read_journal(prepared.folder / cell.key).tables.get(table)
    found = data.to_pylist() if data is not None else []
    return [{k: None if v != v else v for k, v in row.items() if k not in TIMES} for row in found]


def cell(prepared: Prepared, regime: str) -> Cell:
    return next(c for c in prepared.cells if c.variant.name == regime)
