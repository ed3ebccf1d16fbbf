"""Run a stored cell again with today's code and compare every row but times and costs: the proof that a change keeps results.

    python tools/rerun.py results/smoke/0123456789abcdef

The cell is taken from its manifest alone, so one of older code or another lab can be run again too. Exit code 1: something differs.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, UsageError
from harness.session.driver.jobs import cell_job, run_job
from harness.store.journal import read_journal
from harness.store.manifest import read_manifest
from harness.suite.cells import cell_of
from harness.threads import settle
from harness.verification.verifier import Verifier

APART = {"costs"}
"""Tables of times alone."""


def run_again(stored: Path, folder: Path) -> None:
    """Train and evaluate the cell of `stored` in `folder`. Raises UsageError for what is not a cell, and as the cell does."""
    manifest = read_manifest(stored)
    if manifest.kind != "cell" or manifest.state != "done":
        raise UsageError(f"{stored}: not a finished cell (kind {manifest.kind}, {manifest.state})")
    beside = {name: getattr(manifest, name) for name in ("suite", "key", "baseline", "identity")}
    job = cell_job(cell_of({**manifest.config, **beside}), folder)
    with Verifier(workers=1) as verifier:
        run_job(
            job,
            verifier,
            lambda done, total, words: print(f"{done:g}/{total:g}  {words}", file=sys.stderr),
            lambda: False,
        )


def differences(stored: Path, again: Path) -> Iterator[str]:
    """A line for each table whose rows are not the same, and for each that is."""
    left, right = read_journal(stored).tables, read_journal(again).tables
    for table in sorted((left.keys() | right.keys()) - APART):
        old, new = (
            [_plain(row) for row in (side[table].to_pylist() if table in side else [])] for side in (left, right)
        )
        columns = sorted({c for row in (old or new) for c in row})
        wrong = [c for c in columns if [row.get(c) for row in old] != [row.get(c) for row in new]]
        later = [c for c in wrong if old and all(row.get(c) is None for row in old)]
        wrong = [c for c in wrong if c not in later]
        if len(old) != len(new) or wrong:
            yield f"{table}: {len(old)} rows stored, {len(new)} now; differing columns: {', '.join(wrong)}"
        else:
            added = f"; not stored then: {', '.join(later)}" if later else ""
            print(f"{table}: {len(old)} rows, the same{added}")


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Without times; NaN equals itself."""
    nan = {k for k, v in row.items() if isinstance(v, float) and math.isnan(v)}
    return {k: None if k in nan else v for k, v in row.items() if not k.endswith("_seconds")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cell", type=Path, help="a finished cell's folder")
    chosen = parser.parse_args()
    settle()
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / chosen.cell.name
        try:
            run_again(chosen.cell, folder)
        except HarnessError as error:
            print(f"rerun: {error}", file=sys.stderr)
            return error.exit_code
        found = list(differences(chosen.cell, folder))
    print("\n".join(found) or "the stored rows")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
