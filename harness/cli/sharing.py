"""Commands by which results go elsewhere."""

from __future__ import annotations

import shlex
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from harness.cli.arguments import (
    RESULTS,
    Finished,
    Json,
    Results,
    check_target,
    print_report,
    results_option,
    suite_name,
)
from harness.errors import StoreError, UsageError
from harness.formats.tracking import find_manifests, follow_suite, open_tracker
from harness.store.imported_results import import_results, limit_import_memory
from harness.store.ingest import ingest_journals
from harness.store.read import Snapshot
from harness.store.remarks import describe_unpaired
from harness.store.table import list_suites
from harness.store.text import visible
from harness.submission.bundle import make_bundle
from harness.submission.check import BundleReport, check_bundle, mark_reported, take_bundle
from harness.submission.rerun import RerunRequest

TRACKERS = ("tensorboard", "wandb", "trackio")
EVERY = 15.0
ReExecute = Annotated[
    int, typer.Option("--re-execute", metavar="N", min=0, max=10_000, help="Train this many random cells again here.")
]
Drawn = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of the choice of cells; default a random one.")]
Minutes = Annotated[
    float,
    typer.Option("--minutes", min=0.1, max=100_000, help="Time limit, in minutes, of each cell that is trained again."),
]


BundleFile = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="FILE", help="Default <suite>-<digest>.zip in this folder.")
]


def bundle(
    suite: Finished,
    out: BundleFile = None,
    results: Results = RESULTS,
    json: Json = False,
) -> None:
    """One file of a finished suite's results, for other labs to check: no weights, named by its content."""
    if out is not None and not out.is_dir():
        check_target(out, "a bundle", one=True)
    path, apart = make_bundle(suite_name(suite), results, out)
    size = path.stat().st_size
    print_report(str(path), {"bundle": str(path), "bytes": size, "unpaired": apart}, json)
    if not json:
        for line in apart:
            print(f"in no table: {visible(line, 400)}", file=sys.stderr)
        print(f"{size:,} bytes; next: harness submit-check {shlex.quote(str(path))}", file=sys.stderr)


Bundle = Annotated[Path, typer.Argument(metavar="BUNDLE", help="A file that `harness bundle` made.")]


def submit_check(
    bundle: Bundle,
    re_execute: ReExecute = 0,
    seed: Drawn = None,
    minutes: Minutes = 60.0,
    results: Results = RESULTS,
    json: Json = False,
) -> None:
    """Check a bundle, one line per check; exit code 2 with the reason if it is refused."""
    with check_bundle(bundle, results, _rerun_request(re_execute, seed, minutes)) as (_, report):
        pass
    _end_check(report, json)


Source = Annotated[Path, typer.Argument(metavar="DIR|BUNDLE", help="Another lab's results folder, or its bundle.")]
Origin = Annotated[
    str | None, typer.Option("--origin", help="Label that tells these results from your own, e.g. the lab's name.")
]


def import_(
    source: Source,
    origin: Origin = None,
    re_execute: ReExecute = 0,
    seed: Drawn = None,
    minutes: Minutes = 60.0,
    results: Results = RESULTS,
    json: Json = False,
) -> None:
    """Merge another lab's results after validating every record; a bundle is imported completely or refused."""
    again = _rerun_request(re_execute, seed, minutes)
    if source.is_file():
        report, folder = take_bundle(source, results, origin, again)
        if folder is not None:
            print(f"imported into {folder}; next: harness show {folder.name}{results_option(results)}", file=sys.stderr)
        if report.refused and not json:
            raise UsageError(visible(report.refused, 2000))
        _end_check(report, json)
        return
    if re_execute:
        raise UsageError(f"{source}: --re-execute is for bundles")
    if source.resolve() == results.resolve():
        raise UsageError(f"{source}: these are the results of --results themselves, not another lab's")
    label = origin or source.resolve().name
    with limit_import_memory():
        imported = import_results(source, results, label)
    mark_reported(results, label)
    imported.unpaired += _list_unpaired(results, label)
    print_report(imported.describe(), imported, json)
    if imported.refused and not imported.cells + imported.present:
        raise typer.Exit(1)


To = Annotated[str, typer.Option("--to", help=", ".join(TRACKERS))]
TrackFolder = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the runs are kept.")]
Live = Annotated[bool, typer.Option("--live", help="Go on following the run until Ctrl-C.")]
Every = Annotated[float, typer.Option("--every", min=0.1, max=3600, help="With --live: seconds between two readings.")]


def track(
    suite: Finished,
    to: To = "tensorboard",
    out: TrackFolder = Path("runs"),
    live: Live = False,
    every: Every = EVERY,
    results: Results = RESULTS,
) -> None:
    """Follow a suite's journals, while it runs or afterwards; nothing is written twice."""
    if every != EVERY and not live:
        raise UsageError("--every: works only with --live")
    name = suite_name(suite)
    find_manifests(results, name)  # fails before a missing package does
    tracker = open_tracker(to, out)
    print(f"{follow_suite(results, name, tracker):,} new points in {tracker.folder}", file=sys.stderr)
    while live:
        time.sleep(every)
        count = follow_suite(results, name, tracker)
        if count:
            print(f"{count:,} new points in {tracker.folder}", file=sys.stderr)


def _rerun_request(cells: int, seed: int | None, minutes: float) -> RerunRequest | None:
    if cells:
        return RerunRequest(cells, seed, minutes)
    if seed is not None or minutes != RerunRequest(0).minutes:
        raise UsageError(f"--{'minutes' if seed is None else 'seed'}: works only with --re-execute")
    return None


def _list_unpaired(results: Path, label: str) -> list[str]:
    """List unpaired runs of the suites from that origin; nothing where another process is writing the store: its tables will say
    it."""
    with suppress(StoreError):
        ingest_journals(results)
        with Snapshot(results) as snapshot:
            names = [name for name in list_suites(snapshot) if name.endswith(f"@{label}")]
            return [line for name in names for line in describe_unpaired(snapshot, name)]
    return []


def _end_check(report: BundleReport, json: bool) -> None:
    print_report(report.describe(), {**msgspec.structs.asdict(report), "refused": visible(report.refused)}, json)
    if report.refused:
        print(f"harness: {visible(report.refused, 2000)}", file=sys.stderr)
        raise typer.Exit(2)
