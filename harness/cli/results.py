"""Commands that read results."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated

import typer

from harness.cli import tables
from harness.cli.arguments import (
    RESULTS,
    Json,
    MaybeSuite,
    Models,
    Results,
    Set,
    check_target,
    print_json,
    print_report,
    print_table,
    suite_name,
)
from harness.errors import HarnessError, UsageError
from harness.session.cell.log import log_of, read_tail
from harness.session.suite.prepared import CellStatus
from harness.store.read import Limits, Snapshot, ask_in_process
from harness.store.text import visible

FORMATS = ("table", "json", "csv", "markdown", "latex")
# But HTML, and what writes each
EXPORTS = {
    "parquet": "harness.formats.exports:write_parquet",
    "cards": "harness.formats.exports:write_cards",
}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


TableFormat = Annotated[str | None, typer.Option("--format", help=f"{', '.join(FORMATS)}; default table.")]
Paper = Annotated[str | None, typer.Option("--against", help="Published numbers beside ours, e.g. hacpo2026.")]
Margin = Annotated[
    float,
    typer.Option("--margin", min=0.0, max=100.0, help="Treat effects up to this size, in points, as no effect."),
]
Full = Annotated[
    bool, typer.Option("--full", help="Every policy and metric, what tuning changed, and how the numbers are made.")
]
AsJson = Annotated[bool, typer.Option("--json", help="The same as --format json.")]


def show(
    suite: MaybeSuite = None,
    format_: TableFormat = None,
    against: Paper = None,
    margin: Margin = 2.0,
    full: Full = False,
    set_: Set = None,
    results: Results = RESULTS,
    models: Models = None,
    json: AsJson = False,
) -> None:
    """A suite's answer in a sentence, and its table: gain of each regime over the baseline at the same rollout budget, in each
    group. Without SUITE a sentence for each."""
    if json and format_ not in (None, "json"):
        raise UsageError(f"--json and --format {format_}: --json is --format json, give one of the two")
    if json:
        format_ = "json"
    format_ = format_ or "table"
    if format_ not in FORMATS:
        raise UsageError(f"--format {format_}: one of {', '.join(FORMATS)}")
    if against is not None and format_ != "table":
        raise UsageError(f"--format {format_}: not with --against, which prints a table")
    tables.refresh_store(results)
    if set_ and suite is None:
        raise UsageError("--set: name the suite too")
    prepared = tables.altered_run(suite, results, set_) if suite and set_ else None
    tables.show_suite(suite, results, format_, against, margin / 100, prepared, full)


def status(
    suite: MaybeSuite = None,
    results: Results = RESULTS,
    set_: Set = None,
    models: Models = None,
    json: Json = False,
) -> None:
    """Each cell of SUITE with its state, and why it failed; without SUITE a line for each suite."""
    if set_ and suite is None:
        raise UsageError("--set: name the suite too")
    names = tables.all_suites(results) if suite is None else [suite]
    if not names:
        raise UsageError(f"{results}: no suite has been run here yet (harness run quickstart)")
    statuses: list[CellStatus] = []
    notes: dict[str, list[str]] = {}
    for name in names:
        try:
            cells, notes[suite_name(name)] = tables.cell_statuses(name, results, set_ or [])
            statuses += cells
        except HarnessError as error:
            if suite is not None:
                raise
            print(f"harness: {name}: {error}", file=sys.stderr)
    if json:
        print_json({"cells": statuses, "notes": notes})
        return
    for name in dict.fromkeys(status.suite for status in statuses):
        cells = [status for status in statuses if status.suite == name]
        if suite is None:
            print(f"{name}: {tables.count_states(cells)}")
        else:
            tables.print_statuses(name, cells, notes.get(name, ()))


CellOfLog = Annotated[str, typer.Argument(metavar="CELL", help="A key or the beginning of one, or group/regime/seed.")]
LinesFromEnd = Annotated[int, typer.Option("--lines", min=1, help="Number of lines from the end.")]
EarlierStart = Annotated[
    int, typer.Option("--earlier", min=0, help="Show the log of this many starts before the newest.")
]


def logs(
    cell: CellOfLog,
    suite: MaybeSuite = None,
    lines: LinesFromEnd = 40,
    earlier: EarlierStart = 0,
    results: Results = RESULTS,
) -> None:
    """The end of a cell's log: phases, warnings, tracebacks, output of libraries."""
    name = None if suite is None else suite_name(suite)
    log = log_of(tables.cell_folder(cell, name, results), earlier)
    if not log.exists():
        raise UsageError(f"{log}: there is no such log")
    print(f"{log}:", file=sys.stderr)
    shown = [visible(_COLOUR.sub("", line)) for line in read_tail(log, lines)]
    print("\n".join(shown))


Query = Annotated[str, typer.Argument(help="One SELECT statement.")]
MostRows = Annotated[
    int, typer.Option("--rows", min=1, max=10_000_000, help="Most rows that are shown; a longer answer is cut.")
]
MostMegabytes = Annotated[
    int, typer.Option("--megabytes", min=1, max=4096, help="Largest answer, in megabytes; a larger one is cut.")
]
MostSeconds = Annotated[
    float, typer.Option("--seconds", min=0.1, max=86_400, help="Time limit of the statement, in seconds.")
]
MostMemory = Annotated[
    int, typer.Option("--memory", min=64, metavar="MIB", help="Memory limit of the statement, in MiB.")
]


def sql(
    query: Query,
    results: Results = RESULTS,
    rows: MostRows = 10_000,
    megabytes: MostMegabytes = 16,
    seconds: MostSeconds = 30.0,
    memory: MostMemory = 1024,
    json: Json = False,
) -> None:
    """A read-only query on the store (docs/store.md has the schema)."""
    tables.refresh_store(results)
    limits = Limits(rows=rows, bytes=megabytes << 20, seconds=seconds, memory=memory << 20)
    answer = ask_in_process(results, query, limits)
    cells = [] if json else [_texts_of_values(row) for row in answer.rows]
    print_table("", answer.columns, cells, json=answer if json else None)
    if answer.cut:
        limit = f"--rows {rows}" if answer.cut == "rows" else f"--megabytes {megabytes}"
        print(f"note: the answer goes on; shown are its first {len(answer.rows):,} rows ({limit})", file=sys.stderr)


def _texts_of_values(row: Sequence[object]) -> list[str]:
    """Return a row of an answer as a table shows it."""
    return ["NULL" if value is None else str(value) for value in row]


ExportFormat = Annotated[str, typer.Option("--format", help=", ".join(["html", *EXPORTS]))]
ExportTarget = Annotated[
    Path | None, typer.Option("--out", help="What to write; default report.html, or a folder named as the format.")
]


def export(
    suite: MaybeSuite = None,
    format_: ExportFormat = "html",
    out: ExportTarget = None,
    results: Results = RESULTS,
) -> None:
    """A static HTML report: one file, no server. Or one suite as Parquet tables, or as model cards with the hub's
    evaluation results."""
    if format_ not in {"html", *EXPORTS}:
        raise UsageError(f"--format {format_}: one of {', '.join(['html', *EXPORTS])}")
    if suite is None and format_ != "html":
        raise UsageError(f"--format {format_}: name the suite")
    usual = "report.html" if format_ == "html" else format_
    target = Path(usual) if out is None else out
    check_target(target, format_, one=format_ == "html")
    tables.refresh_store(results)
    suite = tables.say_what_lacks(suite, results)
    if format_ == "html":
        from leaderboard.report import export_report

        export_report(results, target, suite)
        print(f"wrote {target}", file=sys.stderr)
        return
    write = resolve_name(EXPORTS[format_])
    with Snapshot(results) as snapshot:
        count = write(snapshot, results, str(suite), target)
    what = "tables" if format_ == "parquet" else "policies of cells"
    print(f"wrote {target}: {count} {what}", file=sys.stderr)


Port = Annotated[int, typer.Option("--port", min=1, max=65535)]
ListenAddress = Annotated[
    str,
    typer.Option(
        "--address",
        metavar="HOST",
        help="Address to listen on: by default this machine only; 0.0.0.0 for every machine of the network.",
    ),
]


def leaderboard(
    port: Port = 8501,
    address: ListenAddress = "localhost",
    results: Results = RESULTS,
) -> None:
    """The Streamlit leaderboard."""
    check_address(address)
    if importlib.util.find_spec("streamlit") is None:
        raise UsageError("the leaderboard needs streamlit: pip install 'experience-sharing-harness[leaderboard]'")
    from leaderboard import command

    sys.stdout.flush()
    os.execv(sys.executable, command(results, port, address))  # a signal that ends this process ends the server


def check_address(address: str) -> None:
    """Check an address. Raises UsageError where no server can listen there."""
    try:
        if not address:
            raise OSError("empty")
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        socket.create_server((address, 0), family=family).close()
    except (OSError, UnicodeError) as error:
        fault = getattr(error, "strerror", None) or error
        raise UsageError(f"--address {address!r}: not an IP address or a host name of this machine: {fault}") from None


OtherScorer = Annotated[
    str | None, typer.Option("--scorer", help="Another scorer than each task's own (`harness tasks --scorers`).")
]


def rescore(
    suite: MaybeSuite = None,
    scorer: OtherScorer = None,
    results: Results = RESULTS,
    json: Json = False,
) -> None:
    """Verify stored samples again and show which verdicts would change; the texts are never touched."""
    from harness.session.single.rescoring import rescore_results

    name = None if suite is None else suite_name(suite)
    report = rescore_results(results, name, scorer)
    print_report(report.describe(), report, json)
