"""Commands that compute: run, plan, status, eval, bandit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import (
    RESULTS,
    Engine,
    Json,
    MaybeSuite,
    Only,
    Results,
    Set,
    SuiteName,
    print_json,
    print_table,
)
from harness.errors import HarnessError, UsageError

Jobs = Annotated[int | None, typer.Option("--jobs", min=1, max=1024, help="Worker processes; default one per core.")]
Inventory = Annotated[
    str | None, typer.Option("--inventory", metavar="SPEC", help="Plan for e.g. 8xH100-80G instead of this machine.")
]


def run(
    suite: SuiteName,
    engine: Engine = None,
    results: Results = RESULTS,
    jobs: Jobs = None,
    only: Only = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Run what is missing of a suite, resume what was cut off, and print the table."""
    from harness.learning import registry
    from harness.session.matrix import run_matrix
    from harness.session.planning import check_feasible
    from harness.session.prepare import check_room, prepare
    from harness.session.progress import reporter
    from harness.store.ingest import ingest

    prepared = prepare(suite, results, overrides=set_ or (), engine=engine, only=only)
    pending = prepared.pending()
    if not pending:
        print(f"{prepared.suite.name}: nothing left to do, all {len(prepared.cells)} cells are done.", file=sys.stderr)
        _after(prepared.suite.name, results, json, None)
        return
    plan = check_feasible(prepared, jobs)
    check_room(prepared)
    for remark in registry.remarks(prepared.suite):
        print(f"note: {remark}", file=sys.stderr)
    outcome = run_matrix(prepared, plan, reporter(), lambda: _ingest(results))
    for label, reason in outcome.failed.items():
        print(f"harness: {label} failed: {reason}", file=sys.stderr)
    if outcome.disk:
        words = (
            f"the disk is full ({outcome.disk}); finished work is intact, run the same command again once there is room"
        )
        print(f"harness: {words}", file=sys.stderr)
    elif outcome.interrupted:
        print(f"harness: interrupted; `harness run {suite}` goes on from here", file=sys.stderr)
    else:
        ingest(results)
        _after(prepared.suite.name, results, json, outcome.done)
    raise typer.Exit(outcome.exit_code)


def _ingest(results: Path) -> None:
    """While a suite runs, a snapshot that cannot be made now is made after the next cell."""
    from harness.store.ingest import ingest

    try:
        ingest(results, deadline=2.0)
    except HarnessError as error:
        print(f"harness: the store was not refreshed: {error}", file=sys.stderr)


def _after(suite: str, results: Path, json: bool, done: int | None) -> None:
    from harness.cli.reading import show_suite

    show_suite(suite, results, "json" if json else "table")
    if not json:
        print(
            f"\nNext: `harness show {suite} --format markdown`, `harness status {suite}`, "
            "`harness leaderboard`, or a suite of your own (docs/suites.md).",
            file=sys.stderr,
        )


def plan(
    suite: SuiteName,
    inventory: Inventory = None,
    engine: Engine = None,
    results: Results = RESULTS,
    only: Only = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Say what a suite needs, in which layout, how long it takes; exit code 1 if it does not fit."""
    from harness.session.planning import describe_plan, plan_for
    from harness.session.prepare import prepare

    prepared = prepare(suite, results, overrides=set_ or (), engine=engine, only=only)
    found = plan_for(prepared, inventory)
    if json:
        print_json(found.as_json())
    else:
        print(describe_plan(prepared, found))
    raise typer.Exit(0 if found.feasible else 1)


def status(suite: MaybeSuite = None, results: Results = RESULTS, set_: Set = None, json: Json = False) -> None:
    """Done, running, failed or pending, per cell, with the reason."""
    from harness.session.prepare import CellStatus, prepare
    from harness.store.manifest import read_suite

    names = [suite] if suite else sorted(p.parent.name for p in results.glob("*/suite.json"))
    if not names:
        raise UsageError(f"{results}: no suite has been run here yet (harness run quickstart)")
    found: list[CellStatus] = []
    for name in names:
        try:
            found += prepare(name, results, overrides=set_ or ()).status()
        except HarnessError:
            if suite:
                raise
            read_suite(results / name)
            print(
                f"harness: {name}: run from a file that is not given here; see `harness show {name}`", file=sys.stderr
            )
    if json:
        rows = [
            {"key": s.cell.key, "regime": s.cell.variant.name, "group": s.cell.group.name, "seed": s.cell.seed,
             "state": s.state, "reason": s.reason, "attempts": s.attempts, "suite": s.cell.suite}
            for s in found
        ]  # fmt: skip
        print_json({"cells": rows})
        return
    columns = ["suite", "group", "regime", "seed", "state", "attempts", "key", "reason"]
    print_table("", columns, [
        [s.cell.suite, s.cell.group.name, s.cell.variant.name, str(s.cell.seed), s.state, str(s.attempts), s.cell.key, s.reason]
        for s in found
    ])  # fmt: skip
    counts = {state: sum(s.state == state for s in found) for state in ("done", "running", "failed", "pending")}
    print("\n" + ", ".join(f"{n} {state}" for state, n in counts.items() if n))


def evaluate(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A Hugging Face folder.")],
    tasks: Annotated[str, typer.Option("--tasks", help="Names, separated by commas.")] = "micro",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="First so many questions of each task.")] = None,
    k: Annotated[int, typer.Option("--k", min=0, max=1024, help="Samples per question for avg@k; 0: greedy only.")] = 4,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    backend: Annotated[str, typer.Option("--backend", help="embedded, hf or vllm.")] = "embedded",
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Folder of benchmark JSONL files.")] = None,
    results: Results = RESULTS,
    json: Json = False,
) -> None:
    """Run a checkpoint through lm-eval; samples are stored like any other."""
    from harness.session.standalone import evaluate_checkpoint

    found = evaluate_checkpoint(
        checkpoint, tasks.split(","), limit=limit, k=k, seed=seed, backend=backend, data_dir=data_dir, results=results
    )
    if json:
        print_json(found)
        return
    rows = [[m.task, m.name, f"{m.value:.4f}", str(m.documents), str(m.samples), str(m.invalid)] for m in found.metrics]
    columns = ["task", "metric", "accuracy", "questions", "answers", "invalid"]
    print_table(f"{checkpoint}", columns, rows, frozenset(columns[2:]))
    print(f"\nstored in {found.folder}", file=sys.stderr)


def bandit(suite: SuiteName, results: Results = RESULTS, json: Json = False) -> None:
    """The exact bandit laboratory: bias, variance and support of each regime's real code, by enumeration."""
    from harness.bandit.report import run_bandit

    report = run_bandit(suite, results)
    if json:
        print_json(report.as_json())
    else:
        print(report.describe())
