"""Commands that read results: show, sql, export, leaderboard, rescore."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from harness.cli.arguments import (
    RESULTS,
    Json,
    MaybeSuite,
    Results,
    Set,
    is_file,
    print_json,
    print_table,
    suite_name,
    too_long,
)
from harness.errors import StoreError, UsageError
from harness.store.text import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.session.suite.prepare import Prepared
    from harness.store.read import Snapshot
    from harness.store.remarks import Missing

FORMATS = ("table", "json", "csv", "markdown", "latex")
SAID: dict[str, Literal["everything", "opening"]] = {"table": "opening", "json": "everything"}
"""Formats with sentences above the rows, and which."""
EXPORTS = {"html": "report.html", "lm-eval": "lm-eval", "eee": "eee", "parquet": "parquet", "cards": "cards"}
"""Formats of `export`, and what each writes by default."""


def show(
    suite: MaybeSuite = None,
    format_: Annotated[str | None, typer.Option("--format", help=f"{', '.join(FORMATS)}; default table.")] = None,
    against: Annotated[
        str | None, typer.Option("--against", help="Published numbers beside ours, e.g. hacpo2026.")
    ] = None,
    margin: Annotated[
        float, typer.Option("--margin", min=0.0, max=100.0, help="Points below which an effect is of no interest.")
    ] = 2.0,
    set_: Set = None,
    results: Results = RESULTS,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Regime x group: accuracy, gain over the budget-matched baseline, verdict, intervals, tie groups, cost; of several suites a
    sentence each."""
    if json and format_ not in (None, "json"):
        raise UsageError(f"--json and --format {format_}: --json is --format json, give one of the two")
    format_ = "json" if json else format_ or "table"
    if format_ not in FORMATS:
        raise UsageError(f"--format {format_}: one of {', '.join(FORMATS)}")
    _ingest(results)
    prepared = None
    if set_:
        from harness.session.suite.prepare import prepare, prepare_stored
        from harness.store.manifest import suite_files

        if suite is None:
            raise UsageError("--set: name the suite too")
        stored = bool(suite_files(results / suite)) and not is_file(suite)
        prepared = (prepare_stored if stored else prepare)(suite, results, overrides=set_)
    show_suite(suite, results, format_, against, margin / 100, prepared)


def _ingest(results: Path) -> None:
    """Bring the store up to the journals. Raises UsageError where there are no results to read."""
    from harness.store.database import store_path
    from harness.store.ingest import ingest

    if results.is_dir():
        if sys.stderr.isatty() and not store_path(results).is_file():
            print("reading the results for the first time ...", file=sys.stderr)
        ingest(results)
    elif not store_path(results).is_file():
        raise UsageError(f"{results}: no results yet (run a suite first: harness run quickstart)")


def _known(suite: str | None, snapshot: Snapshot, results: Path) -> tuple[list[str], str | None]:
    """All suites with results, and the one of them that SUITE means.

    Raises UsageError where there is none, StoreError where there would be but for damage.
    """
    from harness.store.diagnosis import damages
    from harness.store.reference_results import MARK, meant
    from harness.store.table import suites

    known = suites(snapshot)
    name = None if suite is None else meant(suite_name(suite), known)
    for one in () if name in known or (name is None and known) else (name, name and f"{name}{MARK}"):
        if damaged := damages(snapshot, one):
            raise StoreError(str(damaged[0]))
    if name is not None and name not in known:
        raise UsageError(f"{results}: no results of a suite {name!r} (there are: {', '.join(known) or 'none'})")
    if not known:
        raise UsageError(f"{results}: no results yet (run a suite first: harness run quickstart)")
    return known, name


def show_suite(
    suite: str | None,
    results: Path,
    format_: str,
    against: str | None = None,
    margin: float | None = None,
    prepared: Prepared | None = None,
) -> None:
    """Print one suite's table; of several in a terminal what each opens with. `margin` is a share (`statistics.MARGIN`).

    prepared: the run to show instead of what stands for the suite's folder.
    """
    import msgspec

    from harness.statistics import MARGIN
    from harness.store.diagnosis import damages
    from harness.store.manifest import read_submission, read_suite, suite_files
    from harness.store.ranking import heading
    from harness.store.read import Snapshot
    from harness.store.reference_results import MARK, own, suite_folder
    from harness.store.render import overview, render
    from harness.store.table import show_rows
    from harness.store.tuning import read_tuning, without_trials
    from harness.store.tuning_table import transfer_rows, tuning_rows, with_tuning

    margin = MARGIN if margin is None else margin
    file = None if prepared is None else prepared.file()
    with Snapshot(results, file) as snapshot:
        known, name = _known(suite, snapshot, results)
        names = [name] if name else own(known)
        _say_reference(suite, names, known)
        if format_ == "json" and len(names) > 1:
            raise UsageError(f"--format json shows one suite; name one of {', '.join(names)}")
        for one in list(names) if against is None and file is None else ():
            folder = suite_folder(results, one)
            for i, run in enumerate(suite_files(folder)):
                try:
                    altered = read_suite(folder, run).altered
                except StoreError as error:
                    if i:
                        continue  # said below the table
                    names.remove(one)
                    words = next((str(d) for d in damages(snapshot, one) if d.problem == str(error)), str(error))
                    if suite or not names:
                        raise StoreError(words) from error
                    print(f"harness: {one}: {visible(words)}", file=sys.stderr)
                    break
                settings = " ".join(f"--set {_quoted(words)}" for words in altered)
                if altered and i == 0:
                    print(f"{one}: not run as written yet; shown is the run with {settings}", file=sys.stderr)
                elif altered:
                    print(f"{one}: not in this table: harness show {one} {settings}", file=sys.stderr)
        if against is not None:
            from harness.cli import against as papers

            sys.stdout.write(papers.against(against, snapshot, names))
            return
        width = shutil.get_terminal_size((120, 24)).columns
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        names = names if suite else without_trials(names)
        if len(names) > 1 and format_ == "table":
            heads = {
                one: msgspec.structs.replace(
                    heading(snapshot, one, margin, "opening"), missing=_lacking(snapshot, results, one)
                )
                for one in names
            }
            sys.stdout.write(overview(heads, width, colour))
            print("harness show SUITE: its table", file=sys.stderr)
            for one in names:
                _say_damage(snapshot, one)
            return
        for one in names:
            rows = show_rows(snapshot, one, margin)
            if one.endswith(MARK) and not rows and (damaged := damages(snapshot, one)):  # nothing of it can be read
                raise StoreError(str(damaged[0]))
            lacks = _lacking(snapshot, results, one, suite, prepared)
            head = msgspec.structs.replace(heading(snapshot, one, margin, SAID.get(format_, "nothing")), missing=lacks)
            if format_ == "csv":
                _say_gaps(one, lacks)
            if (taken := read_submission(suite_folder(results, one))) is not None:
                head = msgspec.structs.replace(head, submission=taken.describe())
            text = render(one, rows, format_, width, colour, head)
            tuning = read_tuning(results, one, file)
            if tuning is not None:
                tuned, moved = tuning_rows(snapshot, tuning), transfer_rows(snapshot, tuning)
                text = with_tuning(text, tuning, tuned, moved, format_)
            sys.stdout.write(text)
            _say_damage(snapshot, one)


def _quoted(word: str) -> str:
    """In quotes for a shell, needed or not."""
    quoted = shlex.quote(word)
    return quoted if quoted != word else f"'{word}'"


def _say_damage(snapshot: Snapshot, suite: str) -> None:
    """On stderr: what of the suite's files could not be read."""
    from harness.store.diagnosis import damages

    for damage in damages(snapshot, suite):
        print(f"harness: {visible(str(damage))}", file=sys.stderr)


def _say_reference(suite: str | None, names: list[str], known: list[str]) -> None:
    """On stderr: that reference results are shown, or which lie beside what is shown."""
    from harness.store.reference_results import MARK

    shown = [one.removesuffix(MARK) for one in names if one.endswith(MARK)]
    beside = [
        one
        for one in known
        if one not in names and (suite is None or one == f"{names[0]}{MARK}") and one.endswith(MARK)
    ]
    if shown and suite is None:
        first = "quickstart" if "quickstart" in shown else shown[0]
        print(f"reference results; nothing was run here yet (harness run {first})", file=sys.stderr)
    elif shown and not str(suite).endswith(MARK):
        print(f"reference results; your own: harness run {shown[0]}", file=sys.stderr)
    elif beside:
        print(f"reference results beside these: harness show {' | '.join(beside)}", file=sys.stderr)


def sql(
    query: Annotated[str, typer.Argument(help="One SELECT statement.")],
    results: Results = RESULTS,
    rows: Annotated[int, typer.Option("--rows", min=1, max=10_000_000, help="Rows that are shown at most.")] = 10_000,
    megabytes: Annotated[int, typer.Option("--megabytes", min=1, max=4096, help="Size of the answer at most.")] = 16,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, max=86_400, help="The statement ends then.")] = 30.0,
    memory: Annotated[int, typer.Option("--memory", min=64, metavar="MIB", help="What it may take.")] = 1024,
    json: Json = False,
) -> None:
    """A read-only query on the store (docs/store.md has the schema)."""
    from harness.store.read import Limits, ask

    _ingest(results)
    found = ask(results, query, Limits(rows=rows, bytes=megabytes << 20, seconds=seconds, memory=memory << 20))
    if json:
        print_json(found)
    else:
        print_table("", found.columns, [["NULL" if v is None else str(v) for v in row] for row in found.rows])
    if found.cut:
        limit = f"--rows {rows}" if found.cut == "rows" else f"--megabytes {megabytes}"
        print(f"note: the answer goes on; shown are its first {len(found.rows):,} rows ({limit})", file=sys.stderr)


def export(
    suite: MaybeSuite = None,
    format_: Annotated[str, typer.Option("--format", help=", ".join(EXPORTS))] = "html",
    out: Annotated[
        Path | None, typer.Option("--out", help="What to write; default report.html, or a folder named as the format.")
    ] = None,
    results: Results = RESULTS,
) -> None:
    """A static HTML report: one file, no server. Or one suite as lm-eval's output folders, as Every Eval Ever records, as Parquet,
    as model cards with the hub's evaluation results."""
    if format_ not in EXPORTS:
        raise UsageError(f"--format {format_}: one of {', '.join(EXPORTS)}")
    if suite is None and format_ != "html":
        raise UsageError(f"--format {format_}: name the suite")
    target = Path(EXPORTS[format_]) if out is None else out
    _check_target(target, format_)
    _ingest(results)
    from harness.store.read import Snapshot

    with Snapshot(results) as snapshot:
        asked, (known, suite) = suite, _known(suite, snapshot, results)
        for one in known if suite is None else [suite]:
            _say_gaps(one, _lacking(snapshot, results, one, asked))
            _say_damage(snapshot, one)
    if format_ == "html":
        from leaderboard.report import export_report

        export_report(results, target, suite)
        print(f"wrote {target}", file=sys.stderr)
    else:
        count = _export_suite(str(suite), format_, target, results)
        print(f"wrote {target}: {count} {'tables' if format_ == 'parquet' else 'policies of cells'}", file=sys.stderr)


def _check_target(target: Path, format_: str) -> None:
    """Whether `--out` can be written, before anything is computed. Raises UsageError."""
    if too_long(target):
        raise UsageError(f"--out {str(target)[:40]}...: longer than a file's name can be")
    one, whole = format_ == "html", target.absolute()
    if one and whole.is_dir():
        raise UsageError(f"--out {target}: a folder; {format_} is one file")
    if not one and whole.exists() and not whole.is_dir():
        raise UsageError(f"--out {target}: a file; {format_} is a folder of files")
    place = next(folder for folder in (*([] if one else [whole]), *whole.parents) if os.path.exists(folder))
    if not place.is_dir():
        raise UsageError(f"--out {target}: {place} is no folder")
    if not os.access(place, os.W_OK):
        raise UsageError(f"--out {target}: nothing can be written to {place}")


def _lacking(
    snapshot: Snapshot, results: Path, suite: str, asked: str | None = None, prepared: Prepared | None = None
) -> list[Missing]:
    """`session.suite.lacking.lacking` of a suite that was asked for by its name or its file; on stderr where it cannot be told."""
    from harness.session.suite.lacking import lacking

    file = Path(asked) if asked is not None and is_file(asked) else None
    found, unknown = lacking(snapshot, results, suite, file, prepared)
    if unknown:
        print(f"harness: {suite}: {visible(unknown)}", file=sys.stderr)
    return found


def _say_gaps(suite: str, lacks: Sequence[Missing]) -> None:
    """On stderr, in a line each: what is not among what is written, or is there of other settings."""
    from harness.store.remarks import noted

    for head, lines in noted(lacks).items():
        words = [visible(" ".join(line.split()), 400) for line in lines]
        print(f"{suite}: {head[0].lower()}{head[1:]}: {'; '.join(words)}", file=sys.stderr)


def _export_suite(suite: str, format_: str, out: Path, results: Path) -> int:
    from harness.formats.cards import write_cards
    from harness.formats.every_eval_ever import write_every_eval_ever
    from harness.formats.lm_eval import write_lm_eval
    from harness.formats.parquet import write_parquet
    from harness.store.read import Snapshot

    writers = {"lm-eval": write_lm_eval, "eee": write_every_eval_ever, "cards": write_cards}
    with Snapshot(results) as snapshot:
        if format_ == "parquet":
            return write_parquet(snapshot, suite, out)
        return writers[format_](snapshot, results, suite, out)


def leaderboard(
    port: Annotated[int, typer.Option("--port", min=1, max=65535)] = 8501,
    address: Annotated[
        str, typer.Option("--address", help="Who may read: by default this machine alone; 0.0.0.0 is everybody.")
    ] = "localhost",
    results: Results = RESULTS,
) -> None:
    """The Streamlit leaderboard."""
    import importlib.util

    check_address(address)
    if importlib.util.find_spec("streamlit") is None:
        raise UsageError("the leaderboard needs streamlit: pip install 'experience-sharing-harness[leaderboard]'")
    from leaderboard import command

    sys.stdout.flush()
    os.execv(
        sys.executable, command(results, port, address)
    )  # in this process's place: a signal that ends it ends the server


def check_address(address: str) -> None:
    """Whether a server can listen there; asked for by its name or number. Raises UsageError."""
    import socket

    fault = "empty"
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE) if address else []
    except (OSError, UnicodeError) as error:
        found, fault = [], getattr(error, "strerror", None) or str(error)
    for family, kind, protocol, _, place in found:
        try:
            with socket.socket(family, kind, protocol) as tried:
                tried.bind(place)
            return
        except OSError as error:
            fault = error.strerror or str(error)
    raise UsageError(f"--address {address!r}: not an IP address or a host name of this machine: {fault}")


def rescore(
    suite: MaybeSuite = None,
    scorer: Annotated[
        str | None, typer.Option("--scorer", help="Another scorer than each task's own (`harness tasks --scorers`).")
    ] = None,
    results: Results = RESULTS,
    json: Json = False,
) -> None:
    """Verify stored samples again and show which verdicts would change; the texts are never touched."""
    from harness.session.single.rescoring import rescore_results

    report = rescore_results(results, None if suite is None else suite_name(suite), scorer)
    if json:
        print_json(report)
    else:
        print(report.describe())
