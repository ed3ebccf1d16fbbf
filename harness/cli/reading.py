"""Commands that read results: show, sql, export, import, leaderboard, rescore."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import RESULTS, Json, MaybeSuite, Results, print_json, print_table
from harness.errors import UsageError

FORMATS = ("table", "json", "csv", "markdown", "latex")


def show(
    suite: MaybeSuite = None,
    format_: Annotated[str, typer.Option("--format", help=", ".join(FORMATS))] = "table",
    against: Annotated[
        str | None, typer.Option("--against", help="Published numbers beside ours, e.g. hacpo2026.")
    ] = None,
    results: Results = RESULTS,
) -> None:
    """Regime x group: accuracy, gain over the budget-matched baseline, intervals, tie groups, cost."""
    if format_ not in FORMATS:
        raise UsageError(f"--format {format_}: one of {', '.join(FORMATS)}")
    from harness.store.ingest import ingest

    if results.is_dir():
        ingest(results)
    show_suite(suite, results, format_, against)


def show_suite(suite: str | None, results: Path, format_: str, against: str | None = None) -> None:
    """Print one suite's table, or every suite's."""
    from harness.store.read import Snapshot
    from harness.store.render import render
    from harness.store.table import show_rows, suites

    with Snapshot(results) as snapshot:
        known = suites(snapshot)
        name = Path(suite).stem if suite else None
        names = [name] if name else known
        if name and name not in known:
            raise UsageError(f"{results}: no results of a suite {name!r} (there are: {', '.join(known) or 'none'})")
        if format_ == "json" and len(names) > 1:
            raise UsageError(f"--format json shows one suite; name one of {', '.join(names)}")
        for one in names if against is None else ():
            sys.stdout.write(render(one, show_rows(snapshot, one), format_))
        if against is not None:
            from harness.cli import against as papers

            sys.stdout.write(papers.against(against, snapshot, names))


def sql(
    query: Annotated[str, typer.Argument(help="One SELECT statement.")], results: Results = RESULTS, json: Json = False
) -> None:
    """A read-only query on the store (docs/store.md has the schema)."""
    from harness.store.ingest import ingest
    from harness.store.read import Snapshot

    if results.is_dir():
        ingest(results)
    with Snapshot(results) as snapshot:
        found = snapshot.sql(query)
    if json:
        print_json({"columns": found.column_names, "rows": [list(r.values()) for r in found.to_pylist()]})
        return
    print_table("", found.column_names, [[str(v) for v in row.values()] for row in found.to_pylist()])


def export(
    suite: MaybeSuite = None,
    out: Annotated[Path, typer.Option("--out", help="The HTML file to write.")] = Path("report.html"),
    results: Results = RESULTS,
) -> None:
    """A static HTML report: one file, no server."""
    from harness.store.ingest import ingest
    from leaderboard.report import export_report

    if results.is_dir():
        ingest(results)
    export_report(results, out, suite)
    print(f"wrote {out}", file=sys.stderr)


def import_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Another lab's results folder.")],
    origin: Annotated[str | None, typer.Option("--origin", help="A label for where they come from.")] = None,
    results: Results = RESULTS,
    json: Json = False,
) -> None:
    """Merge another lab's results after validating every record."""
    from harness.store.foreign import import_results

    report = import_results(folder, results, origin or folder.resolve().name)
    if json:
        print_json(report)
    else:
        print(report.describe())


def leaderboard(
    port: Annotated[int, typer.Option("--port", min=1, max=65535)] = 8501, results: Results = RESULTS
) -> None:
    """The Streamlit leaderboard."""
    import importlib.util

    if importlib.util.find_spec("streamlit") is None:
        raise UsageError("the leaderboard needs streamlit: pip install 'experience-sharing-harness[leaderboard]'")
    from leaderboard import command

    raise typer.Exit(subprocess.run(command(results, port), check=False).returncode)


def rescore(suite: MaybeSuite = None, results: Results = RESULTS, json: Json = False) -> None:
    """Verify stored samples again and show which verdicts would change; the texts are never touched."""
    from harness.session.rescoring import rescore_results

    report = rescore_results(results, suite)
    if json:
        print_json(report)
    else:
        print(report.describe())
