"""Run a stored cell again with today's code and compare every row but times and costs: the proof that a change keeps results.

    python tools/rerun.py results/smoke/0123456789abcdef

The cell is taken from its manifest alone, so one of older code or another lab can be run again too. Exit code 1: something differs.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from harness.errors import HarnessError, UsageError
from harness.limits import settle
from harness.store.journal import read_journal
from harness.store.manifest import read_manifest
from harness.submission import rerun
from harness.submission.rerun import train


def run_again(stored: Path, folder: Path) -> None:
    manifest = read_manifest(stored)
    if manifest.kind != "cell" or manifest.state != "done":
        raise UsageError(f"{stored}: not a finished cell (kind {manifest.kind}, {manifest.state})")
    train(manifest, folder)


def differences(stored: Path, again: Path) -> Iterator[str]:
    for table, same, words in rerun.differences(read_journal(stored).tables, read_journal(again).tables):
        if same:
            print(f"{table}: {words}")
        else:
            yield f"{table}: {words}"


def main(cell: Annotated[Path, typer.Argument(help="A finished cell's folder.")]) -> None:
    """Run a stored cell again with today's code and compare every row but times and costs."""
    settle()
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / cell.name
        try:
            run_again(cell, folder)
        except HarnessError as error:
            print(f"rerun: {error}", file=sys.stderr)
            sys.exit(error.exit_code)
        different = list(differences(cell, folder))
    print("\n".join(different) or "the stored rows")
    sys.exit(bool(different))


if __name__ == "__main__":
    typer.run(main)
