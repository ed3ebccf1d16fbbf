"""The command `harness rehearse`."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.arguments import RESULTS, DataDir, Engine, Json, Models, Only, Set, SuiteName, fold, print_json
from harness.cli.running import Inventory
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.rehearsal.rehearse import Rehearsal

Kept = Annotated[
    Path | None,
    typer.Option("--results", metavar="DIR", help="Keep what the rehearsal makes here; default a temporary folder."),
]


def rehearse(
    suite: SuiteName,
    results: Kept = None,
    only: Only = None,
    inventory: Inventory = None,
    engine: Engine = None,
    set_: Set = None,
    data_dir: DataDir = None,
    models: Models = None,
    json: Json = False,
) -> None:
    """Run one tiny cell of every kind from start to table, and list the faults of a full run; exit code 1 if there are any."""
    from harness.allocation.planner import describe
    from harness.rehearsal import rehearse as way

    settings = [*(set_ or ()), *([f"engine={engine}"] if engine else [])]
    with ExitStack() as stack:
        root = results or Path(stack.enter_context(TemporaryDirectory(prefix="harness-rehearsal-")))
        if next(root.glob("*/suite.json"), None):
            raise UsageError(f"--results {root}: has results of real runs; give a rehearsal another folder")
        found, plan = way.rehearse(suite, RESULTS, root, settings, inventory, only)
        if json:
            print_json(found)
        else:
            _say(found)
            print(f"\nThe full run needs\n{describe(plan)}")
            if results:
                print(f"the table: harness show {way.PREFIX}{found.suite} --results {found.results}", file=sys.stderr)
    raise typer.Exit(1 if found.findings else 0)


def _say(found: Rehearsal) -> None:
    done = [cell for cell in found.cells if cell.state == "done"]
    print(f"{found.suite}: {len(done)} of {len(found.cells)} kinds of cells rehearsed on the {found.engine} engine")
    parts = {
        "Would fail": [f"{f.name}: {f.place}: {f.problem}" for f in found.findings] or ["nothing that was found"],
        "Models": [f"{name}: {what}" for name, what in found.models.items()],
        "Not rehearsed": found.not_rehearsed,
        "Remarks": found.remarks,
    }
    for title, lines in parts.items():
        if lines:
            print("\n".join(["", title, *map(fold, lines)]))
