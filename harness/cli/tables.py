"""What `show`, `status` and `logs` print; imported when they run."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from harness import published
from harness.cli.arguments import fold_text, is_file, print_report, print_table, results_option, suite_name
from harness.cli.document import write_document
from harness.errors import StoreError, UsageError
from harness.published import Publication, PublishedRow
from harness.session.cell.log import log_of
from harness.session.cell.manifests import label_of
from harness.session.suite.gaps import find_gaps
from harness.session.suite.prepare import prepare_named, prepare_stored
from harness.session.suite.prepared import CellStatus, Prepared
from harness.statistics import MARGIN
from harness.store.database import store_path
from harness.store.diagnosis import diagnose_suite, list_damages
from harness.store.finished import ShowRow
from harness.store.ingest import ingest_journals
from harness.store.manifest import (
    MARK,
    SuiteFile,
    is_installed,
    read_manifests,
    read_submission,
    read_suite,
    suite_files,
    suite_folder,
)
from harness.store.ranking import Heading, Said, make_heading
from harness.store.read import Snapshot
from harness.store.reference_results import choose_suite, list_own, list_references
from harness.store.remarks import Missing, describe_gaps
from harness.store.render import render_overview, render_rows
from harness.store.table import MEAN, list_suites, show_rows, status_rows
from harness.store.text import visible
from harness.store.tuning import read_tuning, without_trials
from harness.store.tuning_table import TuningResults, transfer_rows, tuning_rows

STATES = ("done", "running", "cut off", "failed", "pending")
MARKS = {
    "~": "; the same expectation, estimated from another number of answers",
    "!": ": two different quantities, not to be compared",
}
# By (source, group, policy, method): our accuracy by task and metric
Ours = dict[tuple[str, str, str, str], dict[str, dict[str, float]]]


def refresh_store(results: Path) -> None:
    """Bring the store up to date. Raises UsageError.

    An installed wheel has reference results of its own, so there is something to show before any run: its store needs a folder,
    which is made then."""
    if is_installed() and not results.exists():
        results.mkdir(parents=True)
    if results.is_dir():
        if sys.stderr.isatty() and not store_path(results).is_file():
            print("reading the results for the first time ...", file=sys.stderr)
        ingest_journals(results)
    elif not store_path(results).is_file():
        raise UsageError(f"{results}: no results yet (run a suite first: harness run quickstart)")


def _known_suites(suite: str | None, snapshot: Snapshot, results: Path) -> tuple[list[str], str | None]:
    """Return the suites that the store has, and the one that SUITE means. Raises UsageError, StoreError where damage hides it."""
    known = list_suites(snapshot)
    name = None if suite is None else choose_suite(suite_name(suite), known)
    is_there = name in known or (name is None and known)
    hidden = () if is_there else (name, name and f"{name}{MARK}")
    for one in hidden:
        for damage in list_damages(snapshot, one):
            raise StoreError(str(damage))
    if name is not None and name not in known:
        raise UsageError(f"{results}: no results of a suite {name!r} (there are: {', '.join(known) or 'none'})")
    if not known:
        raise UsageError(f"{results}: no results yet (run a suite first: harness run quickstart)")
    return known, name


def show_suite(
    suite: str | None,
    results: Path,
    format_: str,
    paper: str | None = None,
    margin: float = MARGIN,
    prepared: Prepared | None = None,
    full: bool = False,
) -> None:
    """Print a suite's table, or of several suites what each opens with. paper: whose numbers to print beside ours. margin:
    effects up to this share count as none. prepared: the run to show. full: not the means of one metric alone."""
    file = None if prepared is None else prepared.suite_file()
    with Snapshot(results, file) as snapshot:
        show_snapshot(snapshot, suite, results, format_, paper, margin, prepared, full)


def show_snapshot(
    snapshot: Snapshot,
    suite: str | None,
    results: Path,
    format_: str,
    paper: str | None = None,
    margin: float = MARGIN,
    prepared: Prepared | None = None,
    full: bool = False,
) -> None:
    """Print what `show_suite` prints, from a snapshot that is open: of the run `prepared`, where one is given."""
    file = None if prepared is None else prepared.suite_file()
    known, name = _known_suites(suite, snapshot, results)
    if file is not None and name != file.name:
        raise UsageError(f"{results}: {file.name} was not run here with --set {' '.join(file.altered)}")
    names = [name] if name else list_own(known)
    beside = "" if paper is None else table_against_paper(paper, snapshot, names)  # raises before anything is printed
    _say_reference(suite, names, known, results)
    if format_ == "json" and len(names) > 1:
        raise UsageError(f"--format json shows one suite; name one of {', '.join(names)}")
    if paper is not None:
        write_document(beside)
        return
    for one in list(names) if file is None else ():
        _say_runs(one, names, snapshot, results, suite)
    heads = {}
    for one in names if suite else without_trials(names):
        gaps = _find_gaps(snapshot, results, one, suite, prepared)
        head = make_heading(snapshot, one, margin, _choose_what_is_said(format_, brief=not full or len(names) > 1))
        heads[one] = msgspec.structs.replace(head, missing=gaps)
    if len(names) > 1 and format_ == "table":
        sys.stdout.write(render_overview(heads, _width(), _in_colour()))
        print(f"harness show SUITE{results_option(results)}: its table", file=sys.stderr)
    else:
        _print_tables(snapshot, heads, results, format_, margin, prepared, full)
    for one in heads:
        _say_damage(snapshot, one)


def _choose_what_is_said(format_: str, brief: bool) -> Said:
    """Return how much of a heading a format prints. brief: of one metric alone, or a sentence for each of several suites."""
    if format_ == "json":
        return "everything"
    if format_ == "table":
        return "first" if brief else "opening"
    return "nothing"


def _print_tables(
    snapshot: Snapshot,
    heads: Mapping[str, Heading],
    results: Path,
    format_: str,
    margin: float,
    prepared: Prepared | None,
    full: bool,
) -> None:
    """Print each suite's table, and on stderr how to see more of it. heads: the sentences above the tables."""
    file = None if prepared is None else prepared.suite_file()
    for i, (suite, head) in enumerate(heads.items()):
        first = head.sentences[0] if head.sentences else None
        brief = format_ == "table" and not full
        opening = (first.policy, first.metric) if brief and first else None
        rows = show_rows(snapshot, suite, margin, opening)
        text = _table_text(snapshot, results, suite, head, rows, format_, file, full)
        if format_ == "markdown" and len(heads) > 1:
            text = f"## {suite}\n\n{text}\n"
        elif format_ == "csv" and i:
            text = text.partition("\n")[2]  # one head for all
        write_document(text)
        if rows and not full and format_ == "table":
            more = "policies, other metrics, how the numbers are made"
            command = f"harness show {_quote(suite)}{settings_of(prepared)} --full{results_option(results)}"
            print(f"{command}: {more}", file=sys.stderr)


def _table_text(
    snapshot: Snapshot,
    results: Path,
    suite: str,
    head: Heading,
    rows: Sequence[ShowRow],
    format_: str,
    file: SuiteFile | None,
    full: bool,
) -> str:
    """Return the text of one suite's table. CSV has no place for what the table lacks: that is said on stderr. Raises StoreError
    where nothing of a reference result can be read."""
    if suite.endswith(MARK) and not rows:
        for damage in list_damages(snapshot, suite):
            raise StoreError(str(damage))
    if format_ == "csv":
        _say_gaps(suite, head.missing)
    submission = read_submission(suite_folder(results, suite))
    if submission is not None:
        head = msgspec.structs.replace(head, submission=submission.describe())
    tuned = None
    tuning = read_tuning(results, suite, file)
    if tuning is not None:
        tuned = TuningResults(tuning, tuning_rows(snapshot, tuning), transfer_rows(snapshot, tuning))
    return render_rows(suite, rows, format_, _width(), _in_colour(), head, tuned, brief=not full)


def _width() -> int:
    """Return the columns of the terminal; 120 where there is none."""
    return shutil.get_terminal_size((120, 24)).columns


def _in_colour() -> bool:
    """Whether the terminal takes colours and nobody asked for none (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _say_runs(one: str, names: list[str], snapshot: Snapshot, results: Path, suite: str | None) -> None:
    """Name the run shown, and others. An unreadable one leaves `names`; raises StoreError where it was asked for, or the
    last."""
    folder = suite_folder(results, one)
    for i, run in enumerate(suite_files(folder)):
        try:
            altered = read_suite(folder, run).altered
        except StoreError as error:
            if i:
                continue  # said below the table
            names.remove(one)
            words = next((str(d) for d in list_damages(snapshot, one) if d.problem == str(error)), str(error))
            if suite or not names:
                raise StoreError(words) from error
            print(f"harness: {one}: {visible(words)}", file=sys.stderr)
            return
        settings = " ".join(f"--set {_quote(words)}" for words in altered)
        if altered and i == 0:
            print(f"{one}: not run as written yet; shown is the run with {settings}", file=sys.stderr)
        elif altered:
            print(f"{one}: not in this table: harness show {one} {settings}{results_option(results)}", file=sys.stderr)


def _quote(word: str) -> str:
    """Return a word for a shell, always in quotes."""
    quoted = shlex.quote(word)
    return quoted if quoted != word else f"'{word}'"


def _say_damage(snapshot: Snapshot, suite: str) -> None:
    """Say on stderr which folders and files of a suite cannot be read."""
    for damage in list_damages(snapshot, suite):
        print(f"harness: {visible(str(damage))}", file=sys.stderr)


def _say_reference(suite: str | None, names: list[str], known: list[str], results: Path) -> None:
    """Say on stderr whether what is shown, or lies beside it, are reference results. known: suites of the store; names: those
    that are shown."""
    shown = [one.removesuffix(MARK) for one in names if one.endswith(MARK)]
    others = [one for one in known if one not in names and one.endswith(MARK)]
    beside = [one for one in others if suite is None or one == f"{names[0]}{MARK}"]
    if shown and suite is None:
        first = "quickstart" if "quickstart" in shown else shown[0]
        print(f"reference results; nothing was run here yet (harness run {first})", file=sys.stderr)
    elif shown and not str(suite).endswith(MARK):
        print(f"reference results; your own: harness run {shown[0]}", file=sys.stderr)
    elif beside:
        print(
            f"reference results beside these: harness show {' | '.join(beside)}{results_option(results)}",
            file=sys.stderr,
        )


def _find_gaps(
    snapshot: Snapshot, results: Path, suite: str, asked: str | None = None, prepared: Prepared | None = None
) -> list[Missing]:
    file = Path(asked) if asked is not None and is_file(asked) else None
    missing, unknown = find_gaps(snapshot, results, suite, file, prepared)
    if unknown:
        print(f"harness: {suite}: {visible(unknown)}", file=sys.stderr)
    return missing


def say_what_lacks(suite: str | None, results: Path) -> str | None:
    """Say on stderr what a suite's table lacks. Returns the name of the suite that is meant."""
    with Snapshot(results) as snapshot:
        known, name = _known_suites(suite, snapshot, results)
        for one in [name] if name else known:
            _say_gaps(one, _find_gaps(snapshot, results, one, suite))
            _say_damage(snapshot, one)
    return name


def _say_gaps(suite: str, lacks: Sequence[Missing]) -> None:
    """Say on stderr what a suite's table lacks, a line for each kind of gap."""
    for head, lines in describe_gaps(lacks).items():
        words = [visible(" ".join(line.split()), 400) for line in lines]
        begun = head[0].lower() + head[1:]
        print(f"{suite}: {begun}: {'; '.join(words)}", file=sys.stderr)


def table_against_paper(name: str, snapshot: Snapshot, suites: Sequence[str]) -> str:
    """Make a table of a paper's numbers, and of ours where the same models were trained the same way. Raises UsageError."""
    paper = published.load_publication(name)
    ours = _our_accuracies(paper, snapshot, suites)
    lines = [f"{paper.title}, arXiv {paper.arxiv} {paper.version}; in percent, ours in brackets where it was run here"]
    lines.append(f"How it was measured there: {paper.protocol.strip()}")
    marks: dict[str, None] = {}
    lines += _published_lines(paper, ours, marks)
    if marks:
        lines += ["", *marks]
    if not ours:
        suites_of_paper = ", ".join(paper.suites)
        lines += ["", f"None of these models has been trained here yet (suites: {suites_of_paper})."]
    notes = [f"  - {note}" for note in paper.notes]
    lines += ["", "What does not fit together:", *notes]
    return "\n".join(lines) + "\n"


def _published_lines(paper: Publication, ours: Ours, marks: dict[str, None]) -> list[str]:
    """Return the paper's tables, one for each of its sources and groups. marks: gets what a mark behind a number means."""
    tasks: dict[str, None] = {}  # in order of appearance
    tables: dict[tuple[str, str], list[PublishedRow]] = {}
    for row in paper.rows:
        tasks |= dict.fromkeys(row.values)
        tables.setdefault((row.source, row.group), []).append(row)
    metrics = [f"{task}, {paper.metric(task)}" for task in tasks]
    heads = f"{'average':>9}" + "".join(f"{metric:>16}" for metric in metrics)
    lines = []
    for (source, group), rows in tables.items():
        title = f"{group} ({source})" if group else source
        lines += ["", title, f"  {'policy':<28} {'method':<22}{heads}"]
        for row in rows:
            cells = [_published_cell(paper, row, task, ours, marks) for task in tasks]
            average = "" if row.average is None else f"{100 * paper.share(row.average):.1f}"
            numbers = "".join(f"{cell:>16}" for cell in cells)
            lines.append(f"  {row.policy:<28} {row.method:<22}{average:>9}{numbers}")
    return lines


def _published_cell(paper: Publication, row: PublishedRow, task: str, ours: Ours, marks: dict[str, None]) -> str:
    """Return a number of the paper, and ours: by the paper's metric, else by another with a mark, which `marks` explains."""
    if task not in row.values:
        return ""
    there = f"{100 * paper.share(row.values[task]):.1f}"
    same_row = ours.get((row.source, row.group, row.policy, row.method), {})
    here = same_row.get(task)
    if not here:
        return there
    wanted = paper.metric(task)
    metric = min(here, key=lambda metric: (metric != wanted, not metric.startswith("avg@"), metric))
    both_sampled = metric.startswith("avg@") and wanted.startswith("avg@")
    mark = ""
    if metric != wanted:
        mark = "~" if both_sampled else "!"
        marks[f"{mark} {task}: {wanted} there, {metric} here{MARKS[mark]}"] = None
    return f"{there} [{100 * here[metric]:.1f}]{mark}"


def _our_accuracies(paper: Publication, snapshot: Snapshot, suites: Sequence[str]) -> Ours:
    """Return our accuracies of the models and methods that a paper has, at its places."""
    accuracies: Ours = {}
    for suite in without_trials(suites):
        cells = snapshot.query(
            "SELECT DISTINCT group_name, policies, models, regime, regime_type, options, budget FROM current_cells "
            "WHERE suite = ? AND kind = 'cell'",
            [suite],
        ).to_pylist()
        models = {}
        variants = {}
        for cell in cells:
            models[cell["group_name"]] = dict(zip(cell["policies"], cell["models"], strict=True))
            variants[cell["regime"]] = cell
        for row in show_rows(snapshot, suite):
            if row.policy == MEAN or row.regime != row.variant:  # no paper's mean, nor tuned as here
                continue
            group = models[row.group]
            variant = variants[row.variant]
            peers = tuple(model for policy, model in group.items() if policy != row.policy)
            options = json.loads(variant["options"])
            objective = options.get("objective", "grpo")
            factor = float(variant["budget"][:-1])
            plain = not {"dynamic_sampling", "sampling", "training"} & set(options)
            kind = variant["regime_type"] if plain else ""  # else it is no paper's plain baseline
            there = paper.beside(group[row.policy], peers, kind, row.regime, objective, factor)
            if there is not None:
                key = there.source, there.group, there.policy, there.method
                by_task = accuracies.setdefault(key, {})
                by_metric = by_task.setdefault(row.task, {})
                by_metric.setdefault(row.metric, row.accuracy)
    return accuracies


def settings_of(prepared: Prepared | None) -> str:
    """Write an altered run's settings, for a command that is printed."""
    altered = prepared.altered if prepared else ()
    return "".join(f" --set {shlex.quote(setting)}" for setting in altered)


def altered_run(suite: str, results: Path, overrides: list[str]) -> Prepared:
    """Find the run with these settings. Raises UsageError, SuiteError."""
    stored = not is_file(suite) and suite_files(results / suite)
    return (prepare_stored if stored else prepare_named)(suite, results, overrides=overrides)


def all_suites(results: Path) -> list[str]:
    """List the suites with results of our own; else the reference results."""
    ours = set()
    for folder in results.glob("*/"):
        if suite_files(folder) or any(folder.glob("*/manifest.json")):
            ours.add(folder.name)
    return list_own([*sorted(ours), *list_references(results)])


def cell_statuses(name: str, results: Path, overrides: list[str]) -> tuple[list[CellStatus], list[str]]:
    """Return the states of a suite's cells, and lines on their models and training pool. Results without a suite of ours
    (reference results, other labs') are asked of the store. Raises UsageError, StoreError."""
    runs = suite_files(results / name)
    stored = name in list_references(results) or runs or any((results / name).glob("*/manifest.json"))
    if is_file(name) or not stored or (runs and "@" not in name):
        prepared = altered_run(name, results, overrides).with_states()
        return prepared.statuses(), prepared.describe_inputs()
    if overrides:
        raise UsageError(f"--set: {name}: these results have no suite whose settings could be altered")
    ingest_journals(results)  # reference results, checkpoints' evaluations, other labs' suites
    with Snapshot(results) as snapshot:
        rows = status_rows(snapshot, name)
        for damage in list_damages(snapshot, name):
            if len(damage.cells) > len(rows):  # not of single cells
                raise StoreError(str(damage))
    return [CellStatus(**row, suite=name, log="") for row in rows], []


def print_statuses(name: str, cells: list[CellStatus], notes: Sequence[str]) -> None:
    """Print a suite's cells with their states, the reasons of those that have one, and how many are in each state."""
    rows = [[cell.label, cell.state, str(cell.attempts), cell.key] for cell in cells]
    print_table(name, ["cell", "state", "starts", "key"], rows, ["starts"])
    for cell in cells:
        if not cell.reason:
            continue
        print(f"\n{visible(cell.label)} {cell.state}:")
        for line in cell.reason.splitlines():
            print(fold_text(line, "  "))
        if cell.log:
            print(f"  log: {cell.log}")
    print(f"\n{count_states(cells)}\n")
    for line in notes:
        print(f"{name}: {line}")


def count_states(cells: Sequence[CellStatus]) -> str:
    """Say how many cells are in each state."""
    states = [cell.state for cell in cells]
    counted = [(states.count(state), state) for state in STATES]
    return ", ".join(f"{count} {state}" for count, state in counted if count)


def print_findings(run: str, results: Path, json: bool) -> int:
    """Print what is wrong with a suite or a cell's folder, by its records; return 1 where something is. Raises UsageError."""
    folder = Path(run)
    key = None
    if os.path.isfile(folder / "manifest.json"):
        place = folder.resolve()
        key = place.name
        suite = place.parent.name
        results = place.parents[1]
    else:
        suite = suite_name(run)
        if not any(suite_files(results / suite)) and suite_folder(results, f"{suite}{MARK}").is_dir():
            suite += MARK
    if not suite_folder(results, suite).is_dir():
        raise UsageError(f"{results}: no results of a suite {suite!r}, and no cell's folder {run!r}")
    ingest_journals(results)
    with Snapshot(results) as snapshot:
        findings = diagnose_suite(snapshot, suite, key, results_option(results))
    by_cell: dict[str, list[str]] = {}
    for finding in findings:
        of_policy = f"{finding.policy}, " if finding.policy else ""
        words = f"{of_policy}{finding.trouble}: {finding.words}; {finding.advice}"
        by_cell.setdefault(finding.cell, []).append(words)
    lines = []
    for cell, its_findings in by_cell.items():
        lines += [visible(cell), *map(fold_text, its_findings)]
    if not findings:
        examined = f"{suite}/{key}" if key else suite
        lines = [f"{examined}: nothing is wrong that its records would show"]
    print_report("\n".join(lines), {"suite": suite, "findings": findings}, json)
    return int(bool(findings))


def cell_folder(cell: str, suite: str | None, results: Path) -> Path:
    """Find a cell's folder by its key, the beginning of one, or its label; of several with one label the last at work. Raises
    UsageError."""
    if not cell:
        raise UsageError(
            "CELL is empty: a key or the beginning of one, or group/regime/seed (`harness status` names them)"
        )
    manifests = results.glob("*/*/manifest.json") if suite is None else (results / suite).glob("*/manifest.json")
    folders = [file.parent for file in manifests]
    named = {folder for folder in folders if folder.name.startswith(cell)}
    if len(named) > 1 and not any(folder.name == cell for folder in named):
        keys = ", ".join(sorted(folder.name for folder in named))
        raise UsageError(f"{cell}: the beginning of several keys: {keys}")
    labelled = [folder for folder, manifest in read_manifests(folders) if label_of(manifest) == cell]
    suites = sorted({folder.parent.name for folder in (*named, *labelled)})
    if len(suites) > 1:
        words = f"name one of {', '.join(suites)}: harness logs {cell} SUITE{results_option(results)}"
        raise UsageError(f"{cell}: in several suites, {words}")
    if not suites:
        where = "" if suite is None else f" in {suite}"
        raise UsageError(f"{results}: no cell {cell!r}{where} (`harness status` names them)")

    def newest(folder: Path) -> tuple[bool, float]:
        log = log_of(folder)
        return folder.name == cell, log.stat().st_mtime if log.exists() else 0.0

    return max(named or labelled, key=newest)
