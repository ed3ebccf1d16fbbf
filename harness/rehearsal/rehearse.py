"""A suite of real models, rehearsed: the checks of its full run, then one tiny cell of every kind, trained, evaluated and shown.
Results lie in a folder of their own."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.allocation.planner import Plan
from harness.errors import CellError, StoreError, UsageError
from harness.rehearsal.examination import TOKENIZERS, Examination, RehearsalFault, UnmendableError
from harness.rehearsal.tiny import (
    MODELS,
    PREFIX,
    engine_here,
    list_not_rehearsed,
    name_of,
    scale_down,
    with_tiny_models,
)
from harness.session.cell.manifests import label_of
from harness.session.driver.matrix import run_matrix
from harness.session.driver.progress import Reporter, show_phases
from harness.session.suite.disk import check_disk, check_place
from harness.session.suite.files import check_roots
from harness.session.suite.planning import check_feasible
from harness.session.suite.prepared import Prepared
from harness.store.ingest import ingest_journals
from harness.store.journal import read_journal
from harness.store.manifest import read_manifest, read_manifests
from harness.store.read import Snapshot
from harness.store.table import show_rows
from harness.suite.cells import Cell, select_cells
from harness.suite.load import find_suite, load_suite

__all__ = ["PREFIX", "Rehearsal", "RehearsalFault", "Rehearsed", "examine_suite", "name_of", "rehearse_suite"]

# Without progress
SECONDS = 300.0


class Rehearsed(msgspec.Struct, frozen=True):
    """A tiny cell. received, refused: records of its peers."""

    cell: str
    state: str
    reason: str = ""
    received: int = 0
    refused: int = 0


class Rehearsal(msgspec.Struct, kw_only=True):
    """The report. needs: the full run's plan."""

    suite: str
    engine: str
    results: str
    findings: list[RehearsalFault] = []
    models: dict[str, str] = {}
    cells: list[Rehearsed] = []
    table: list[Any] = []
    not_rehearsed: list[str] = []
    remarks: list[str] = []
    needs: Any = None


class UnrehearsableError(Exception):
    """No cell can be run, for a fault that cannot be replaced; the report names it."""

    def __init__(self, report: Rehearsal) -> None:
        report.not_rehearsed.append("any cell, for what is named above")
        self.report = report
        super().__init__(report.suite)


def examine_suite(
    name: str, results: Path, root: Path, overrides: Sequence[str] = (), inventory: str | None = None
) -> tuple[Rehearsal, Prepared, Plan]:
    """Check what a full run checks. Returns what was found, the suite with what is at fault replaced, and the full run's plan.
    Arguments and errors as of `rehearse_suite`; UnrehearsableError for what cannot be replaced."""
    source = str(find_suite(name))
    suite = load_suite(name, overrides)
    check_roots(suite, Path(source), overrides)
    if all(policy.is_micro for group in suite.groups for policy in group.policies):
        raise UsageError(f"{suite.name}: has only micro models, which run here without a rehearsal: harness run {name}")
    for made in (TOKENIZERS, MODELS):
        shutil.rmtree(root / made, ignore_errors=True)
    examination = Examination(suite, source, results, root, overrides)
    report = Rehearsal(
        suite=suite.name,
        engine=suite.engine,
        results=str(root / "results"),
        findings=examination.faults,
        remarks=examination.remarks,
        not_rehearsed=examination.not_rehearsed,
    )
    with show_phases("checking models, tokenizers and data"):
        try:
            examination.check_tokenizers()
            examination.check_tasks()
            examination.check_rollouts()
            examination.check_options()
            prepared, plan = examination.plan(examination.check_models(), inventory)
        except UnmendableError:
            raise UnrehearsableError(report) from None
    report.needs = msgspec.to_builtins(plan)
    report.findings += _find_shared_keys(prepared)
    try:
        check_place(prepared.folder)
        check_disk(prepared, plan.disk)
    except UsageError as error:
        place = str(prepared.folder)
        report.findings.append(RehearsalFault("disk", place, str(error).removeprefix(f"{place}: ")))
    return report, prepared, plan


def rehearse_suite(
    name: str,
    results: Path,
    root: Path,
    overrides: Sequence[str] = (),
    inventory: str | None = None,
    only: Sequence[str] = (),
) -> tuple[Rehearsal, Plan | None]:
    """Rehearse a suite. Returns a report, and the full run's plan where there is one. results: of the full run, left alone. root:
    where the rehearsal writes. inventory: for the full run's plan. Raises UsageError for a suite that cannot be rehearsed,
    InfeasibleError where even tiny cells do not fit."""
    try:
        report, prepared, plan = examine_suite(name, results, root, overrides, inventory)
    except UnrehearsableError as fault:
        return fault.report, None
    kinds = {cell.kind for cell in select_cells(prepared.all_cells, only)}
    report.engine = engine_here(prepared.suite)
    report.not_rehearsed += list_not_rehearsed(prepared.suite)
    try:
        with show_phases("making stand-ins"):
            rehearsed, made = with_tiny_models(scale_down(prepared.suite), kinds, root)
    except CellError as error:  # a stand-in cannot be asked the suite's questions
        report.findings.append(RehearsalFault("model", prepared.suite.name, str(error)))
        return UnrehearsableError(report).report, plan
    report.models |= made
    if not rehearsed.cells:
        raise UsageError(
            f"--only {' '.join(only)}: matches none of the suite's cells that can be rehearsed (group/regime/seed)"
        )
    outcome = run_matrix(rehearsed, check_feasible(rehearsed, None), Reporter(), lambda: None, SECONDS)
    if outcome.interrupted:
        raise KeyboardInterrupt
    if outcome.disk:
        report.findings.append(RehearsalFault("disk", str(root), outcome.disk))
    _look_at_cells(rehearsed, outcome.failed, report)
    _look_at_table(rehearsed, report)
    return report, plan


def _find_shared_keys(prepared: Prepared) -> list[RehearsalFault]:
    """List faults for each key that two cells have, here or in the results."""
    labels: dict[str, set[str]] = {}
    for cell in prepared.all_cells:
        labels.setdefault(cell.key, set()).add(cell.label)
    stored = read_manifests(file.parent for file in prepared.folder.glob("*/manifest.json"))
    for folder, manifest in stored:
        if folder.name in labels:
            labels[folder.name].add(label_of(manifest))
    shared = {key: sorted(of_key) for key, of_key in labels.items() if len(of_key) > 1}
    return [
        RehearsalFault("key collision", key, f"one key of several cells: {', '.join(of_key)}")
        for key, of_key in shared.items()
    ]


# What came of it ------------------------------------------------------------------------------------------------------


def _look_at_cells(rehearsed: Prepared, failed: Mapping[str, str], report: Rehearsal) -> None:
    """Report how each tiny cell ended, and what became of its peers' records. failed: reasons, by cell."""
    reasons: dict[str, list[str]] = {}
    silent = []
    for cell in rehearsed.cells:
        state, reason, _ = rehearsed.state(cell.key)
        reason = failed.get(cell.label, reason)
        if state != "done":
            reasons.setdefault(reason or state, []).append(cell.label)
            report.cells.append(Rehearsed(cell.label, state, reason))
            continue
        folder = rehearsed.folder / cell.key
        received, refused = _look_at_records(cell, folder, report)
        report.remarks += _unlike_carried(folder, report)
        if rehearsed.resolved.records_shared(cell) and not received + refused:
            silent.append(cell.kind)
        report.cells.append(Rehearsed(cell.label, state, reason, received, refused))
    for reason, labels in reasons.items():
        more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
        report.findings.append(RehearsalFault("cell", f"{labels[0]}{more}", reason))
    if silent:
        report.not_rehearsed.append(f"learning from peers in {', '.join(silent)}: none had anything to send")


def _look_at_records(cell: Cell, folder: Path, report: Rehearsal) -> tuple[int, int]:
    """Report authors of whom a receiver refused every record, but for policies that are bad peers by the suite. Returns how many
    records the cell's policies accepted and refused."""
    bad = {policy.name for policy in cell.group.policies if policy.condition is not None}
    received = refused = 0
    for (author, receiver), counts in _records_heard(folder).items():
        accepted = counts[""]
        total = counts.total()
        received += accepted
        refused += total - accepted
        if total and not accepted and author not in bad:
            problem = f"all {total} records were refused, most often as {counts.most_common(1)[0][0]!r}"
            place = f"{cell.label}: {author} -> {receiver}"
            report.findings.append(RehearsalFault("peers refused", place, problem))
    return received, refused


def _unlike_carried(folder: Path, report: Rehearsal) -> list[str]:
    """List policies whose own answers have other ids when they are carried as a peer's. What that costs, only real weights
    tell."""
    prices = read_manifest(folder).carried.items()
    said = (
        f"{name}: its own answers, carried as a peer's, get other ids: {price.why}"
        for name, price in prices
        if price.why
    )
    return [words for words in said if words not in report.remarks]


def _records_heard(folder: Path) -> dict[tuple[str, str], Counter[str]]:
    """Count, by author and receiver: records by reason of refusal; accepted ones have none."""
    ledger = read_journal(folder).tables.get("exchanges")
    reasons: dict[tuple[str, str], Counter[str]] = {}
    for row in [] if ledger is None else ledger.to_pylist():
        reasons.setdefault((row["author"], row["receiver"]), Counter())[row["reason"]] += row["messages"]
    return reasons


def _look_at_table(rehearsed: Prepared, report: Rehearsal) -> None:
    """Make the table, as a run does at its end, and report regimes that it lacks."""
    done = {cell.variant.name for cell in rehearsed.done_cells()}
    if not done:
        return
    try:
        ingest_journals(rehearsed.folder.parent)
        with Snapshot(rehearsed.folder.parent, rehearsed.suite_file()) as snapshot:
            report.table = show_rows(snapshot, rehearsed.suite.name)
    except StoreError as error:
        report.findings.append(RehearsalFault("table", rehearsed.suite.name, str(error)))
        return
    absent = done - {row.regime for row in report.table}
    if absent:
        report.findings.append(
            RehearsalFault("table", rehearsed.suite.name, f"has no row of {', '.join(sorted(absent))}")
        )
