"""Reference results: made of finished runs, and trained again (harness/store/results_folder.py has the format).

    python tools/reference.py make RESULTS SUITE...          into results/reference/<suite>; --partly: what is finished of it
    python tools/reference.py rescore SUITE...               stored texts judged again by today's verifier
    python tools/reference.py texts RESULTS SUITE...         answers in words added, of a run that has the same rows
    python tools/reference.py unpack SUITE RESULTS           their cells as results, for `harness run` to go on with
    python tools/reference.py check [--cells 3] [--bases 1] [--seed N]   so many random cells again, compared row by row

    python tools/reference.py again CELL_FOLDER              any finished cell, from its manifest alone, by today's code
    python tools/reference.py base NAME FOLDER               a base checkpoint that comes with the package, trained again

`make` refuses what gives another table than the run, and what is not finished: with `--partly`, for a suite that takes days and
is made in pieces, it keeps the finished cells, and tables say how many are missing. `check` draws from the cells of today's results
versions whose rows repeat here, and says where there are none; it trains some of the package's base checkpoints too, and the first
five steps of a cell of pretrained models. Exit codes: 0 done, 1 something came out as another one, 2 usage.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import typer

import harness
from harness.allocation.shapes import MICRO
from harness.cache import model_folder
from harness.engines.embedded.numerics import ENVIRONMENT
from harness.engines.embedded.presets import SHIPPED
from harness.engines.embedded.warmup import REPORT, MicroSpec, train_base
from harness.errors import HarnessError, UsageError
from harness.files import remove_path
from harness.learning import registry
from harness.limits import use_one_thread
from harness.phases import Interrupted
from harness.session.cell.manifests import label_of
from harness.store.imported_results import COMPACT
from harness.store.ingest import ingest_journals
from harness.store.journal import read_journal, write_columns
from harness.store.manifest import (
    MARK,
    ORIGIN,
    Manifest,
    Submission,
    SuiteFile,
    read_manifest,
    read_submission,
    read_suite,
    write_manifest,
    write_submission,
    write_suite,
)
from harness.store.read import Snapshot
from harness.store.reference_results import list_references, read_reference
from harness.store.remarks import read_moments
from harness.store.results_folder import TUNING, write_results_folder
from harness.store.table import show_rows
from harness.store.tuning import read_tuning, tuning_path
from harness.store.tuning_table import tuning_rows
from harness.submission.bundle import gather_suite, select_tables, write_suite_folder
from harness.submission.check import describe_settings
from harness.submission.judging import judge_again
from harness.submission.rerun import check_repeatable, compare_tables, repeats_here, train_and_compare, train_cell
from harness.verification.verifier import Verifier
from harness.versions import PACKAGES, versions_of

RESULTS = Path(__file__).parents[1] / "results"
MOST = 20_000_000
READABLE = 10
"""Of each micro cell so many answers are kept in words, for a reader of the board (`choose_readable`)."""
REAL_STEPS = 5
"""Of a cell of pretrained models, which takes long: so many are compared."""

app = typer.Typer(help=__doc__, add_completion=False, rich_markup_mode=None)
Where = Annotated[Path, typer.Option("--results", help="Whose reference/ is meant.")]
Names = StrEnum("Names", sorted(path.name for path in SHIPPED.iterdir() if path.is_dir()))  # type: ignore[misc]  # mypy wants literal members


@app.command()
def make(
    results: Annotated[Path, typer.Argument()],
    suites: list[str],
    to: Where = RESULTS,
    partly: Annotated[bool, typer.Option("--partly", help="Leave out cells that are not finished.")] = False,
) -> None:
    ingest_journals(results)
    for suite in suites:
        finished = gather_suite(results, suite, partly=partly)
        if finished.unfinished:
            print(
                f"note: {suite}: {len(finished.unfinished)} cells and base checkpoints are not finished",
                file=sys.stderr,
            )
        manifests = [manifest for manifest, _ in finished.cells.values()]
        if dirty := sum(manifest.provenance.dirty for manifest in manifests):
            print(f"note: {suite}: {dirty} of {len(manifests)} cells by a checkout with changes in it", file=sys.stderr)
        tables = {key: _select_kept(manifest, own) for key, (manifest, own) in finished.cells.items()}
        target = to / ORIGIN / suite
        with tempfile.TemporaryDirectory() as place:
            draft = Path(place) / ORIGIN / suite
            write_suite_folder(draft, finished, tables, tuning_path(results, finished.file))
            write_submission(draft, Submission(badge="reference", category=describe_settings(finished.resolved)))
            read_reference(draft)
            _check_same_table(suite, finished.file, results, Path(place))
            remove_path(target)
            shutil.copytree(draft, target)
        size = sum(file.stat().st_size for file in target.iterdir())
        print(f"{target}: {len(manifests)} cells and base checkpoints, {size:,} bytes")
    total = sum(file.stat().st_size for folder in list_references(to).values() for file in folder.iterdir())
    print(f"{to / ORIGIN}: {total:,} bytes in all", file=sys.stderr)
    if total > MOST:
        raise UsageError(f"{to / ORIGIN}: {total:,} bytes; reference results have at most {MOST:,}")


@app.command()
def unpack(suite: str, to: Annotated[Path, typer.Argument()], results: Where = RESULTS) -> None:
    source = results / ORIGIN / suite
    reference = read_reference(source)
    if (to / suite).exists():
        raise UsageError(f"{to / suite}: exists already")
    for key, manifest in reference.manifests.items():
        folder = to / suite / key
        journal = folder / "journal" / COMPACT
        journal.mkdir(parents=True)
        for name, table in reference.cells[key].tables.items():
            write_columns(journal, name, table)
        write_manifest(folder, msgspec.structs.replace(manifest, suite=suite, origin=""))
    file = read_suite(source)
    write_suite(to / suite, file)
    if (source / TUNING).is_file():
        shutil.copyfile(source / TUNING, tuning_path(to, file))
    print(f"{to / suite}: {len(reference.manifests)} cells and base checkpoints")


@app.command()
def rescore(suites: list[str], results: Where = RESULTS) -> None:
    """Training is not repeated: rewards stay those of the verifier that the cell's results versions name."""
    with Verifier() as verifier:

        def judge_cell(key: str, manifest: Manifest, tables: dict[str, pa.Table]) -> int:
            if "samples" not in tables or _is_micro(manifest):
                return 0
            tables["samples"], changed = _rescore_samples(tables["samples"], verifier)
            return changed

        for suite in suites:
            folder = results / ORIGIN / suite
            print(f"{folder}: {_rewrite_suite(folder, judge_cell)} verdicts are other ones")


@app.command()
def texts(results: Annotated[Path, typer.Argument()], suites: list[str], to: Where = RESULTS) -> None:
    """Every row stays as it is but for the words of answers that `make` would keep."""
    for suite in suites:
        folder = to / ORIGIN / suite
        runs = {label_of(manifest): place for place, manifest in _list_runs(results / suite)}

        def add_words(
            key: str, manifest: Manifest, tables: dict[str, pa.Table], runs: Mapping[str, Path] = runs
        ) -> int:
            run = runs.get(label_of(manifest))
            if run is None or not _is_micro(manifest):
                return 0
            own = read_journal(run).tables
            wrong = [line for line in compare_tables(tables, _select_like(tables, own)) if not line[1]]
            if wrong:
                raise UsageError(f"{run}: other rows than {key} of the reference: {wrong[0][0]}: {wrong[0][2]}")
            tables["samples"] = _select_kept(manifest, own)["samples"]
            return 1

        print(f"{folder}: answers in words of {_rewrite_suite(folder, add_words)} cells and base checkpoints")


def _rewrite_suite(folder: Path, change: Callable[[str, Manifest, dict[str, pa.Table]], int]) -> int:
    """Write a reference suite again, with each cell's tables as `change` leaves them, and return the sum of what it returned."""
    reference = read_reference(folder)
    manifests = {}
    tables = {}
    changed = 0
    for key, manifest in reference.manifests.items():
        manifests[key] = msgspec.structs.replace(manifest, suite=folder.name, origin="")
        tables[key] = dict(reference.cells[key].tables)
        changed += change(key, manifest, tables[key])
    tuning = (folder / TUNING).read_bytes() if (folder / TUNING).is_file() else None
    # Writing empties the folder: what lies there is read before
    submission = read_submission(folder)
    write_results_folder(folder, read_suite(folder), harness.__version__, manifests, tables, tuning)
    if submission is not None:
        write_submission(folder, submission)
    return changed


def _list_runs(suite: Path) -> list[tuple[Path, Manifest]]:
    """Return folder and manifest of every finished cell and base checkpoint of a run."""
    folders = sorted(file.parent for file in suite.glob("*/manifest.json"))
    runs = [(folder, read_manifest(folder)) for folder in folders]
    return [(folder, manifest) for folder, manifest in runs if manifest.state == "done"]


def _rescore_samples(table: pa.Table, verifier: Verifier) -> tuple[pa.Table, int]:
    """Return the samples with today's verdicts, reasons, extracted answers and votes, and how many verdicts are other ones."""
    again = judge_again(table.to_pylist(), verifier)
    verdicts = [one.sample.verdict for one in again]
    columns = {
        "verdict": [verdict.value for verdict in verdicts],
        "reason": [verdict.reason for verdict in verdicts],
        "extracted": [verdict.extracted for verdict in verdicts],
        "vote": [one.vote for one in again],
    }
    changed = sum(old != new for old, new in zip(table["verdict"].to_pylist(), columns["verdict"], strict=True))
    for name, values in columns.items():
        field = table.schema.field(name)
        table = table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))
    return table, changed


def _check_same_table(suite: str, file: SuiteFile, results: Path, place: Path) -> None:
    """Raises UsageError where the results folder in `place` gives another table than the run."""
    kept_as = f"{suite}{MARK}"
    ingest_journals(place)
    with Snapshot(results, file) as ours, Snapshot(place) as kept:
        same = all(give(ours, suite) == give(kept, kept_as) for give in (show_rows, read_moments))
        left, right = read_tuning(results, suite, file), read_tuning(place, kept_as)
        if left and right:
            same = same and tuning_rows(ours, left) == tuning_rows(kept, right)
    if not same:
        raise UsageError(
            f"{results / suite}: gives another table than what would be kept of it; where it runs just now, stop it first"
        )


def check(results: Path, cells: int, seed: int | None, minutes: float, bases: int = 1) -> int:
    """Train random cells and base checkpoints again; return how many came out as other ones.

    seed: of the draw, None for a random one. minutes: time limit of each. Raises UsageError where no cell can be drawn.
    """
    seed = secrets.randbelow(1 << 31) if seed is None else seed
    stored = _list_cells(results)
    drawable = _find_drawable(results, stored)
    chosen = Random(seed).sample(drawable, min(cells, len(drawable)))
    wrong = 0
    for folder, manifest in chosen:
        wrong += not _comes_out_again(folder, manifest, seed, minutes)
    for name in _drawn_bases(seed, bases):
        wrong += _base_differs(name, minutes)
    return wrong + _real_cell_differs(stored, seed, minutes)


def _real_cell_differs(stored: Sequence[tuple[Path, Manifest]], seed: int, minutes: float) -> bool:
    """Train the first steps of a cell of pretrained models again, if one can be; say and return whether rows are other ones."""
    real = [(folder, manifest) for folder, manifest in stored if not _is_micro(manifest)]
    current = [(folder, manifest) for folder, manifest in real if _is_current(manifest) and _is_known(manifest)]
    here = [(folder, manifest) for folder, manifest in current if repeats_here(manifest) and _has_models(manifest)]
    if not here:
        _note(
            f"cells of pretrained models are not checked (no fault): of {len(real)}, {len(current)} have today's results versions, "
            "and none of these has its models (make pretrained) and its kind of CPU here"
        )
        return False
    folder, manifest = Random(seed).choice(here)
    place = f"{folder.name}/{manifest.key} ({label_of(manifest)}, first {REAL_STEPS} steps, --seed {seed})"
    _note(f"training again: {place}")
    stored = _first_steps(read_reference(folder).cells[manifest.key].tables)
    with tempfile.TemporaryDirectory(prefix="reference-") as scratch:
        again = Path(scratch) / manifest.key
        try:
            train_cell(manifest, again, time.monotonic() + 60 * minutes, REAL_STEPS)
            now = _first_steps(read_journal(again).tables)
        except Interrupted:
            print(f"other rows   {place}: not finished in {minutes:g} minutes", flush=True)
            return True
        except HarnessError as error:
            print(f"other rows   {place}: {error}", flush=True)
            return True
    wrong = [f"{table}: {words}" for table, same, words in compare_tables(stored, now) if not same]
    print(f"other rows   {place}: {wrong[0]}" if wrong else f"ok           {place}: every row the same", flush=True)
    return bool(wrong)


def _first_steps(tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Return the rows of the first `REAL_STEPS` training steps: of the tables that reference results keep, `steps` has them."""
    steps = tables["steps"]
    first = sorted(set(steps["step"].to_pylist()))[:REAL_STEPS]
    return {"steps": steps.filter(pc.is_in(steps["step"], pa.array(first, steps["step"].type)))}


def _list_cells(results: Path) -> list[tuple[Path, Manifest]]:
    """Return the manifests of all reference cells, each with the folder of its suite."""
    cells: list[tuple[Path, Manifest]] = []
    for folder in list_references(results).values():
        for manifest in read_reference(folder).manifests.values():
            if manifest.kind == "cell":
                cells.append((folder, msgspec.structs.replace(manifest, suite=folder.name, origin="")))
    return cells


def _find_drawable(results: Path, stored: Sequence[tuple[Path, Manifest]]) -> list[tuple[Path, Manifest]]:
    """Return those of the stored cells whose rows must be the same here, and say why others are not among them.

    None where all cells have older results versions: their rows may differ by right. Raises UsageError where none of the current
    ones can be trained here.
    """
    current = [(folder, manifest) for folder, manifest in stored if _is_current(manifest)]
    if stored and not current:
        _note(
            f"{results / ORIGIN}: all {len(stored)} cells have older results versions (docs/versions.md); none is trained"
        )
        return []
    if len(current) < len(stored):
        _note(f"{len(stored) - len(current)} of {len(stored)} cells have older results versions")
    drawable = [(folder, manifest) for folder, manifest in current if _can_train_here(manifest)]
    if not drawable:
        raise UsageError(f"{results / ORIGIN}: no cells that can be trained again here ({len(stored)} in all)")
    if len(drawable) < len(current):
        _note(f"{len(current) - len(drawable)} of {len(current)} cells need models, engines or another kind of CPU")
    _note(f"drawn from {len(drawable)} of {len(stored)} cells, whose rows must be the same")
    return drawable


def _note(line: str) -> None:
    print(line, file=sys.stderr)


def _comes_out_again(folder: Path, manifest: Manifest, seed: int, minutes: float) -> bool:
    """Train one reference cell again, print and return whether its rows are the same."""
    place = f"{folder.name}/{manifest.key} ({label_of(manifest)}, --seed {seed})"
    stored = read_reference(folder).cells[manifest.key].tables
    with tempfile.TemporaryDirectory(prefix="reference-") as scratch:
        try:
            check_repeatable(manifest, place)
            again = train_and_compare(
                manifest, stored, Path(scratch) / manifest.key, place, minutes, select=partial(_select_like, stored)
            )
        except HarnessError as error:
            print(f"other rows   {error}", flush=True)
            return False
    print(f"ok           {folder.name}: {label_of(manifest)}: {again}", flush=True)
    return True


def _drawn_bases(seed: int, count: int) -> list[Names]:
    """Draw base checkpoints of the package."""
    return Random(seed).sample(list(Names), min(count, len(Names)))


def _is_current(manifest: Manifest) -> bool:
    """Whether today's code is of the results versions that the cell was made with; rows of others may differ."""
    stored = manifest.identity.versions
    now = versions_of(package for package in stored if package in PACKAGES)
    return bool(stored) and all(stored[package] == version for package, version in now.items())


def _base_differs(name: str, minutes: float) -> bool:
    with tempfile.TemporaryDirectory(prefix="reference-") as scratch:
        environment = {**os.environ, **ENVIRONMENT, "HARNESS_CACHE": scratch, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "base", name, scratch]
        done = subprocess.run(command, env=environment, timeout=60 * minutes).returncode
        weights = [folder / name / "model.safetensors" for folder in (SHIPPED, Path(scratch))]
        same = done == 0 and weights[0].read_bytes() == weights[1].read_bytes()
    print(f"{'ok          ' if same else 'other weights'} base checkpoint {name}", flush=True)
    return not same


@app.command()
def again(cell: Path) -> None:
    manifest = read_manifest(cell)
    if manifest.kind != "cell" or manifest.state != "done":
        raise UsageError(f"{cell}: not a finished cell (kind {manifest.kind}, {manifest.state})")
    with tempfile.TemporaryDirectory(prefix="reference-") as scratch:
        train_cell(manifest, folder := Path(scratch) / cell.name)
        tables = list(compare_tables(read_journal(cell).tables, read_journal(folder).tables))
    print("\n".join(f"{table}: {words}" for table, _, words in tables))
    raise typer.Exit(not all(same for _, same, _ in tables))


@app.command()
def base(name: Names, to: Path) -> None:
    said = json.loads((SHIPPED / name / REPORT).read_bytes())["spec"]
    spec = MicroSpec(**{key: said[key] for key in ("family", "strong", "preset", "seed", "numerics")})
    train_base(spec, to / name)


def _select_kept(manifest: Manifest, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Return what is kept of a cell's tables. Prompts and texts, by far the longest columns, are left empty in all but some
    answers of micro models; of pretrained models all texts stay (`store.remarks`), and no prompt, which is benchmark data."""
    if _is_micro(manifest):
        return select_tables(tables, ("prompt", "text"), READABLE)
    return select_tables(tables)


def _select_like(stored: Mapping[str, pa.Table], tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Return what is kept of a cell that was trained again, its answers in words where those of `stored` are: folders of older
    versions have fewer, or none."""
    selected = select_tables(tables, ())
    kept = stored["samples"]
    samples = selected["samples"]
    if len(samples) == len(kept):  # else the comparison says that
        for column in ("prompt", "text"):
            place = samples.schema.get_field_index(column)
            words = pc.if_else(pc.equal(kept[column], ""), pa.scalar("", pa.string()), samples[column])
            samples = samples.set_column(place, samples.schema.field(place), words)
        selected["samples"] = samples
    return selected


def _is_micro(manifest: Manifest) -> bool:
    return all(policy.model.startswith(MICRO) for policy in manifest.policies)


def _can_train_here(manifest: Manifest) -> bool:
    """Say whether the cell needs nothing that is not here, and repeats its rows on this machine."""
    return _is_micro(manifest) and _is_known(manifest) and repeats_here(manifest)


def _is_known(manifest: Manifest) -> bool:
    """Say whether the cell's engine is the embedded one and its regime is installed."""
    return manifest.engine == "embedded" and manifest.regime_type in registry.installed()


def _has_models(manifest: Manifest) -> bool:
    """Say whether the folders of the cell's models are here."""
    models = [policy.model for policy in manifest.policies]
    return all(model.startswith(MICRO) or model_folder(model).is_dir() for model in models)


@app.command("check")
def _check(
    cells: Annotated[int, typer.Option(help="How many.")] = 3,
    bases: Annotated[int, typer.Option(help="How many of the package's base checkpoints.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Of the draw; default a random one.")] = None,
    minutes: Annotated[float, typer.Option(help="For each cell.")] = 60.0,
    unless_empty: Annotated[bool, typer.Option("--unless-empty", help="Exit code 0 where there is none.")] = False,
    results: Where = RESULTS,
) -> None:
    if unless_empty and not list_references(results):
        print(f"{results / ORIGIN}: no reference results to check", file=sys.stderr)
    elif check(results, cells, seed, minutes, bases):
        raise typer.Exit(1)


def main() -> None:
    use_one_thread()
    try:
        app()
    except HarnessError as error:
        print(f"reference: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
