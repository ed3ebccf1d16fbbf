"""Commands that say where things stand: status, logs."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from harness.cli.arguments import (
    RESULTS,
    Json,
    MaybeSuite,
    Models,
    Results,
    Set,
    is_file,
    print_json,
    print_table,
    suite_name,
)
from harness.errors import HarnessError, StoreError, UsageError
from harness.store.text import visible

if TYPE_CHECKING:
    from harness.session.suite.prepare import Prepared
    from harness.store.manifest import Manifest
    from harness.suite.cells import Identity

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
STATES = ("done", "running", "cut off", "failed", "pending")


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One cell: its state, why it failed, how often it was started, and the log of its newest start."""

    key: str
    regime: str
    group: str
    seed: int | None
    state: str
    reason: str
    attempts: int
    suite: str
    log: str
    identity: Identity | None = None
    """Of what the key is made; None where the manifest alone is known."""

    @property
    def label(self) -> str:
        seed = "" if self.seed is None else f"/{self.seed}"
        return f"{self.group}/{self.regime}{seed}" if self.regime else f"{self.group}{seed}" or self.key


def status(
    suite: MaybeSuite = None,
    results: Results = RESULTS,
    set_: Set = None,
    models: Models = None,
    json: Json = False,
) -> None:
    """Done, running, cut off, failed or pending, per cell, with the reason and the log."""
    if set_ and suite is None:
        raise UsageError("--set: name the suite too")
    names = _known(results) if suite is None else [suite]
    if not names:
        raise UsageError(f"{results}: no suite has been run here yet (harness run quickstart)")
    found: list[Standing] = []
    notes: dict[str, list[str]] = {}
    for name in names:
        try:
            cells, notes[suite_name(name)] = _standing(name, results, set_ or [])
            found += cells
        except HarnessError as error:
            if suite is not None:
                raise
            print(f"harness: {name}: {error}", file=sys.stderr)
    if json:
        print_json({"cells": found, "notes": notes})
        return
    for name in dict.fromkeys(s.suite for s in found):
        _print(name, [s for s in found if s.suite == name])
        for line in notes.get(name, ()):
            print(f"{name}: {line}")


def _known(results: Path) -> list[str]:
    """Every suite with results of our own, as the leaderboard names them; else the reference results."""
    from harness.store.manifest import suite_files
    from harness.store.reference_results import own, references

    ours = {file.parent.parent.name for file in results.glob("*/*/manifest.json")} | {
        folder.name for folder in results.glob("*/") if suite_files(folder)
    }
    return own([*sorted(ours), *references(results)])


def _standing(name: str, results: Path, overrides: list[str]) -> tuple[list[Standing], list[str]]:
    """The cells, and a line each on what their models and training pool are."""
    from harness.session.suite.prepare import prepare, prepare_stored
    from harness.store.manifest import suite_files
    from harness.store.reference_results import references

    folder, stored = results / name, name in references(results)
    if is_file(name) or not (stored or suite_files(folder) or any(folder.glob("*/manifest.json"))):
        return _cells(prepare(name, results, overrides=overrides))
    if suite_files(folder) and "@" not in name:
        return _cells(prepare_stored(name, results, overrides=overrides))
    if overrides:
        raise UsageError(f"--set: {name}: these results have no suite whose settings could be altered")
    return _stored(
        name, results
    ), []  # reference results, evaluations of checkpoints, and what another lab's code has run


def _cells(prepared: Prepared) -> tuple[list[Standing], list[str]]:
    prepared = prepared.looked()
    cells = [
        Standing(
            key=s.cell.key, regime=s.cell.variant.name, group=s.cell.group.name, seed=s.cell.seed, state=s.state,
            reason=s.reason, attempts=s.attempts, suite=s.cell.suite, log=s.log, identity=s.cell.identity,
        )
        for s in prepared.status()
    ]  # fmt: skip
    return cells, prepared.notes()


def _stored(suite: str, results: Path) -> list[Standing]:
    from harness.store.diagnosis import damages
    from harness.store.ingest import ingest
    from harness.store.read import Snapshot
    from harness.store.table import status_rows

    ingest(results)
    with Snapshot(results) as snapshot:
        rows = status_rows(snapshot, suite)
        whole = [damage for damage in damages(snapshot, suite) if len(damage.cells) > len(rows)]
    if whole:  # a file of all of them
        raise StoreError(str(whole[0]))
    return [Standing(**msgspec.structs.asdict(row), suite=suite, log="") for row in rows]


def _print(name: str, cells: list[Standing]) -> None:
    """A table that fits a narrow terminal; sentences and paths stand below it, folded between words only."""
    rows = [[s.label, s.state, str(s.attempts), s.key] for s in cells]
    print_table(name, ["cell", "state", "starts", "key"], rows, frozenset(["starts"]))
    width = shutil.get_terminal_size().columns
    for cell in cells:
        if cell.reason:
            print(f"\n{visible(cell.label)} {cell.state}:")
            for line in cell.reason.splitlines():
                print(textwrap.fill(visible(line), width, initial_indent="  ", subsequent_indent="  ",
                                    break_long_words=False, break_on_hyphens=False))  # fmt: skip
            if cell.log:
                print(f"  log: {cell.log}")
    counts = {state: sum(s.state == state for s in cells) for state in STATES}
    print("\n" + ", ".join(f"{n} {state}" for state, n in counts.items() if n) + "\n")


def logs(
    cell: Annotated[str, typer.Argument(metavar="CELL", help="A key or the beginning of one, or group/regime/seed.")],
    suite: MaybeSuite = None,
    lines: Annotated[int, typer.Option("--lines", min=1, help="So many lines from the end.")] = 40,
    earlier: Annotated[int, typer.Option("--earlier", min=0, help="The log of so many starts before the newest.")] = 0,
    results: Results = RESULTS,
) -> None:
    """The end of a cell's log: its phases, warnings, tracebacks and whatever libraries said."""
    from harness.session.cell.log import log_of, tail

    folder = _folder(cell, None if suite is None else suite_name(suite), results)
    log = log_of(folder, earlier)
    if not log.exists():
        raise UsageError(f"{log}: there is no such log")
    print(f"{log}:", file=sys.stderr)
    print("\n".join(visible(_COLOUR.sub("", line)) for line in tail(log, lines)))


def _folder(cell: str, suite: str | None, results: Path) -> Path:
    """The one folder that `cell` means, of one suite or of all; of several with the same label the one that was at work last.
    Raises UsageError."""
    from harness.session.cell.log import log_of
    from harness.store.manifest import readable

    if not cell:
        raise UsageError(
            "CELL is empty: a key or the beginning of one, or group/regime/seed (`harness status` names them)"
        )
    manifests = results.glob("*/*/manifest.json") if suite is None else (results / suite).glob("*/manifest.json")
    folders = [file.parent for file in manifests]
    named = {folder for folder in folders if folder.name.startswith(cell)}
    if len(named) > 1 and not any(folder.name == cell for folder in named):
        raise UsageError(f"{cell}: the beginning of several keys: {', '.join(sorted(f.name for f in named))}")
    labelled = [folder for folder, manifest in readable(folders) if _label(manifest) == cell]
    suites = sorted({folder.parent.name for folder in (*named, *labelled)})
    if len(suites) > 1:
        raise UsageError(f"{cell}: in several suites, name one of {', '.join(suites)}: harness logs {cell} SUITE")
    if not suites:
        raise UsageError(
            f"{results}: no cell {cell!r}{f' in {suite}' if suite is not None else ''} (`harness status` names them)"
        )
    return max(named or labelled, key=lambda folder: (folder.name == cell, _changed(log_of(folder))))


def _label(manifest: Manifest) -> str:
    if manifest.kind == "cell":
        return f"{manifest.group}/{manifest.regime}/{manifest.seed}"
    return f"base {manifest.group}/{manifest.policies[0].name}" + ("" if manifest.seed is None else f"/{manifest.seed}")


def _changed(log: Path) -> float:
    return log.stat().st_mtime if log.exists() else 0.0
