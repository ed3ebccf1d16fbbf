"""`harness import`: another lab's results folder into results/<suite>@<origin>/<key>; what exists here stays. Records
that fail a check are refused, the rest of their cell is taken."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness import limits
from harness.errors import StoreError, SuiteError, UsageError
from harness.files import replace_atomic
from harness.store.journal import read_journal, write_columns
from harness.store.manifest import (
    ORIGIN,
    Manifest,
    SuiteFile,
    read_manifest,
    read_sealed,
    read_submission,
    read_suite,
    suite_files,
    write_manifest,
    write_suite,
)  # fmt: skip
from harness.store.rows import LATER, SCHEMAS, SHARE, marked, without_nan
from harness.store.text import visible
from harness.store.tuning import Tuned, Tuning, tuning_name, tuning_path, write_tuning
from harness.suite.load import resolve
from harness.suite.schema import LONGEST_NAME, LONGEST_TASK, NAME_PATTERN, TASK_PATTERN

_BUDGET = re.compile(r"[1-9][0-9]?x")
# Of a policy's start, where it was noted
_DIGEST = re.compile(r"([0-9a-f]{32})?")
LONGEST_KEY = 128
_MAX_TEXT = 1 << 20
_MAX_NAME = 256
_MAX_COUNT = 1 << 53
# Of a suite; each is named where it is missing
_MAX_CELLS = 100_000

_TEXTS = {"prompt", "text", "extracted", "gold", "own_text", "peer_text"}
_SHARES, _LATER = marked(SHARE), marked(LATER)
_WORDS = {
    "verdict": ("right", "wrong", "invalid", ""),
    "own_verdict": ("right", "wrong", "invalid", ""),
    "peer_verdict": ("right", "wrong", "invalid", ""),
    "metric": ("greedy", "sampled"),
    "source": ("own", "peer"),
}
_UNIQUE = {
    "steps": ["policy", "step"],
    "curves": ["policy", "step", "metric"],
    "samples": ["policy", "checkpoint_step", "task", "metric", "doc_id", "repeat"],
}
_NEGATIVE = {"made", "vote", "checkpoint_step"}
_MAX_JOURNAL = 2 << 30
# What an import may take: a compressed file states its unpacked size itself
IMPORT_MEMORY = 4 << 30


@dataclass(slots=True)
class ImportReport:
    """unpaired: cells that started from other weights than their baseline, filled in once the store is built."""

    cells: int = 0
    present: int = 0
    rows: int = 0
    rows_refused: int = 0
    refused: list[str] = field(default_factory=list)
    unpaired: list[str] = field(default_factory=list)

    def describe(self) -> str:
        lines = [f"{self.cells} cells with {self.rows:,} rows imported, {self.present} were there already"]
        lines += [f"in no table: {visible(line, 400)}" for line in self.unpaired]
        if self.refused:
            lines.append(f"refused ({self.rows_refused} rows in all):")
            lines += [f"  {visible(line, 400)}" for line in self.refused]
        return "\n".join(lines)


def import_results(source: Path, results: Path, origin: str, bundle: str = "") -> ImportReport:
    """Take over finished cells that are not here yet, of a results folder or of one suite's. bundle: that these are,
    checked. Raises UsageError, StoreError, DiskFullError."""
    if not is_name(origin, LONGEST_KEY):
        raise UsageError(f"origin {origin!r}: letters, digits and _ . + - are allowed")
    if origin == ORIGIN:
        raise UsageError(f"origin {origin!r}: is the label of results that come with the checkout; choose another")
    if not source.is_dir():
        raise UsageError(f"{source}: no such folder")
    report = ImportReport()
    folders = list(_cells(source, report))
    if not folders and not report.refused:
        raise UsageError(f"{source}: holds no results (expected <suite>/<cell>/manifest.json)")
    suites = {suite: folder.parent for suite, folder in folders}
    for target in (results / f"{suite}@{origin}" for suite in suites):
        before = read_submission(target)
        if before is not None and before.bundle not in ("", bundle):  # its badge is no other results'
            raise UsageError(f"{target}: holds the checked bundle {before.bundle}; give another --origin")
    for suite, folder in folders:
        target = results / f"{suite}@{origin}" / folder.name
        if target.exists():
            report.present += 1
            continue
        try:
            manifest = _checked_manifest(suite, folder)
            tables = _checked_tables(manifest, folder, report)
        except StoreError as error:
            report.refused.append(str(error))
            continue
        _write(target, msgspec.structs.replace(manifest, suite=f"{suite}@{origin}", origin=origin), tables)
        report.cells += 1
        report.rows += sum(table.num_rows for table in tables.values())
    for suite, folder in suites.items():
        _take_suite(results / f"{suite}@{origin}", folder, report)
        run = next((file.name for file in suite_files(folder)), "suite.json")
        _take_tuning(results, SuiteFile(name=f"{suite}@{origin}"), folder / tuning_name(run), report)
    return report


@contextmanager
def bounded(memory: int = IMPORT_MEMORY) -> Iterator[None]:
    """A ceiling on the memory that reading another lab's files may take."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())  # other pools have reserved address space, which no ceiling sees
    try:
        with limits.memory(memory):
            yield
    finally:
        pa.set_memory_pool(before)


def _cells(source: Path, report: ImportReport) -> Iterator[tuple[str, Path]]:
    suites = [source] if any(source.glob("*/manifest.json")) else sorted(p for p in source.iterdir() if p.is_dir())
    for suite in suites:
        if suite.is_symlink() or not is_name(suite.name, LONGEST_KEY):
            if suite.is_symlink() or any(suite.glob("*/manifest.json")):
                report.refused.append(f"{suite}: not a suite's folder (name or link)")
            continue
        for folder in sorted(suite.iterdir()):
            if folder.is_dir() and (folder / "manifest.json").exists():
                if folder.is_symlink() or not is_name(folder.name, LONGEST_KEY):
                    report.refused.append(f"{folder}: not a cell's folder (name or link)")
                else:
                    yield suite.name, folder


def _checked_manifest(suite: str, folder: Path) -> Manifest:
    journal = folder / "journal"
    files = [folder / "manifest.json", journal, *journal.rglob("*")]
    for file in files:
        if file.is_symlink():
            raise StoreError(f"{file}: a link")
    if sum(file.stat().st_size for file in files[1:] if file.is_file()) > _MAX_JOURNAL:
        raise StoreError(f"{journal}: larger than {_MAX_JOURNAL >> 30} GiB")
    manifest = read_manifest(folder)
    same_suite = manifest.suite.partition("@")[0] == suite.partition("@")[0]
    problem = fault(manifest, folder.name) or ("" if same_suite else "suite: is not the folder's name")
    if problem:
        raise StoreError(f"{folder / 'manifest.json'}: {problem}")
    return manifest


def _checked_tables(manifest: Manifest, folder: Path, report: ImportReport) -> dict[str, pa.Table]:
    contents = read_journal(folder)
    report.refused += contents.problems
    tables: dict[str, pa.Table] = {}
    for name, table in contents.tables.items():
        replays = bool(manifest.options.get("replay"))
        good, lost = sift(name, (p.name for p in manifest.policies), table, replays)
        for problem, count in lost.items():
            report.rows_refused += count
            report.refused.append(f"{manifest.suite}/{folder.name}/{name}: {count} row{'s' * (count > 1)}: {problem}")
        if good.num_rows:
            tables[name] = without_nan(good)
    if "samples" not in tables:
        raise StoreError(f"{folder}: no usable evaluation samples")
    return tables


def _write(target: Path, manifest: Manifest, tables: Mapping[str, pa.Table]) -> None:
    def fill(temporary: Path) -> None:
        compact = temporary / "journal" / "compact-000001"
        compact.mkdir(parents=True)
        for name, table in tables.items():
            write_columns(compact, name, table)
        write_manifest(temporary, manifest)

    replace_atomic(target, fill)


def _take_suite(target: Path, source: Path, report: ImportReport) -> None:
    file = next(iter(suite_files(source)), None)
    if not target.exists() or file is None:
        return
    try:
        if file.is_symlink():
            raise StoreError(f"{file}: a link")
        about = read_suite(source)
        if max(len(about.groups) * len(about.seeds) * len(about.variants), len(about.cells)) > _MAX_CELLS:
            raise StoreError(f"{file}: of more than {_MAX_CELLS:,} cells")
        ours = read_suite(target) if (target / "suite.json").exists() else None
    except StoreError as error:
        report.refused.append(str(error))
        return
    if ours is None:
        config: dict[str, Any] = {}
        try:
            if about.config:
                config = resolve(about.config, (), f"{file}: config").model_dump(mode="json")
        except SuiteError as error:
            report.refused.append(str(error))
        except (ValueError, RecursionError):
            report.refused.append(f"{file}: config: nested too deeply")
        ours = msgspec.structs.replace(about, name=target.name, altered=(), config=config)
    cells, bases = _united(ours.cells, about.cells), _united(ours.bases, about.bases)
    write_suite(target, msgspec.structs.replace(ours, cells=cells, bases=bases))


def _take_tuning(results: Path, file: SuiteFile, source: Path, report: ImportReport) -> None:
    """Which trial was chosen; it decides what a tuned regime is compared with."""
    target = tuning_path(results, file)
    if not (target.parent / "suite.json").exists() or target.exists() or not (source.exists() or source.is_symlink()):
        return
    try:
        if source.is_symlink():
            raise StoreError(f"{source}: a link")
        tuning = read_sealed(source, Tuning)
        if problem := tuning_fault(tuning, {v.name for v in read_suite(target.parent).variants}):
            raise StoreError(f"{source}: {problem}")
    except StoreError as error:
        report.refused.append(str(error))
        return
    write_tuning(results, file, msgspec.structs.replace(tuning, suite=file.name))


def _united(ours: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[str, ...]:
    """Keys that belong to the suite; with none all do."""
    return tuple(dict.fromkeys((*ours, *theirs))) if ours and theirs else ()


# What manifests and rows of others must satisfy ----------------------------------------------------------------------


def fault(manifest: Manifest, key: str) -> str:
    """What is wrong with the manifest of a finished cell or base (its group may be a path), or empty."""
    base = manifest.kind == "base"
    names = [policy.name for policy in manifest.policies]
    good = _printable if base else is_name
    checks = {
        "key: is not the folder's name": manifest.key == key and is_name(key, LONGEST_KEY),
        "state: only finished cells are taken": manifest.state == "done",
        "policies: empty, doubled or too many": 0 < len(names) <= 64 and len(set(names)) == len(names),
        "policies: not names as a suite has them": all(good(name) for name in names),
        "policies: a start that is no digest": all(_DIGEST.fullmatch(policy.start) for policy in manifest.policies),
        "carried: of a policy that the cell does not have": manifest.carried.keys() <= set(names),
        "group: not a name as a suite has it": good(manifest.group),
        "regime: not a name as a suite has it": is_name(manifest.regime) or (base and not manifest.regime),
        "seed: absent or out of range": base or (manifest.seed is not None and manifest.seed < _MAX_COUNT),
        "budget: not like 1x": bool(_BUDGET.fullmatch(manifest.budget)),
        "provenance.started: not a time": _is_time(manifest.provenance.started),
        "provenance.finished: not a time": _is_time(manifest.provenance.finished),
    }
    return next((problem for problem, kept in checks.items() if not kept), "")


def tuning_fault(tuning: Tuning, variants: Collection[str]) -> str:
    """What is wrong with a suite's choice among its `variants`, or empty."""
    places = [(v.variant, v.on) for v in tuning.variants]
    words = [tuning.trials_in, tuning.task, tuning.metric, *(v.on for v in tuning.variants if v.on)]
    checks = {
        "not text as a suite has it": all(map(_printable, words)),
        "variants: doubled": len(set(places)) == len(places),
        "variants: the baseline is absent": bool(places) and all((tuning.baseline, on) in places for _, on in places),
        "variants: not of the suite": all({v.variant, v.final} <= {*variants} for v in tuning.variants),
    }
    first = next((problem for problem, kept in checks.items() if not kept), "")
    return first or next(filter(None, map(_trials_fault, tuning.variants)), "")


def _trials_fault(tuned: Tuned) -> str:
    trials = {trial.number: trial for trial in tuned.trials}
    best, steps = trials.get(tuned.chosen), [trial.steps for trial in tuned.trials]
    texts = [
        text for t in tuned.trials for text in (t.variant, t.fault, *t.settings, *map(str, t.settings.values())) if text
    ]
    scores = [tuned.checked, tuned.checked_published, *(t.score for t in tuned.trials)]
    costs = (tuned.rollouts, tuned.cpu_seconds, tuned.gpu_seconds)
    checks = {
        "trials: doubled": len(trials) == len(tuned.trials),
        "trials: the variant as published is absent": 0 in trials,
        "trials: the chosen one did not run to its end": best is not None
        and best.score is not None
        and best.steps == max(steps),
        "trials: unlike settings": len({tuple(t.settings) for t in tuned.trials}) == 1,
        "trials: not text as a suite has it": all(map(_printable, texts)),
        "out of range": all(score is None or 0 <= score <= 1 for score in scores)
        and all(0 <= cost <= 1e300 for cost in costs)
        and all(0 <= count <= _MAX_COUNT for count in steps),
    }
    return next((f"{tuned.variant[:99]!a}: {problem}" for problem, kept in checks.items() if not kept), "")


def _is_time(text: str) -> bool:
    try:
        time = datetime.fromisoformat(text)
        time.timestamp()
    except (ValueError, OverflowError):
        return False
    return time.tzinfo is not None  # else another moment on each machine


def is_name(text: str, longest: int = LONGEST_NAME) -> bool:
    return len(text) <= longest and re.fullmatch(NAME_PATTERN, text) is not None


def check_parts(place: Path, manifest: Manifest, *more: str) -> None:
    """Raises StoreError where a name is not one part of a path."""
    names = (manifest.suite, manifest.key, manifest.group, manifest.regime, *(p.name for p in manifest.policies), *more)
    for name in names:
        if not _printable(name) or name in {".", ".."} or {"/", "\\"} & set(name):
            raise StoreError(f"{place}: {name[:200]!a} is no name for a file")


def _printable(text: str) -> bool:
    return 0 < len(text) <= _MAX_NAME and text == visible(text) and not {"\n", "\t"} & set(text)


def sift(name: str, policies: Iterable[str], table: pa.Table, replays: bool = False) -> tuple[pa.Table, dict[str, int]]:
    """The rows of table `name` that a run can have written, and the number of others by the words that refuse them.
    With a column `cell` the table and `policies` are of several cells. replays: authors are of another run."""
    lost: dict[str, int] = {}
    rules = _rules(name, [*policies], table, replays)
    if table.filter(reduce(and_, rules.values())).num_rows < table.num_rows:
        for problem, rule in rules.items():
            before, table = table.num_rows, table.filter(rule)
            lost[problem] = before - table.num_rows
    for column in (column.name for column in SCHEMAS[name] if pa.types.is_list(column.type)):
        lists = table[column].combine_chunks()
        holes = pc.list_parent_indices(lists).filter(pc.list_flatten(lists).is_null()).unique()
        lost[f"{column}: absent in part"] = len(holes)
        table = table.take(np.setdiff1d(np.arange(table.num_rows), holes))
    for column in SCHEMAS[name]:
        if pa.types.is_map(column.type):
            texts = pa.struct([("key", pa.string()), ("value", pa.string())])
            maps = table[column.name].combine_chunks().cast(pa.list_(texts))  # a map's own indices abort the process
            row, (keys, values) = pc.list_parent_indices(maps).to_numpy(), pc.list_flatten(maps).flatten()
            keys = keys.dictionary_encode()
            pairs = np.sort(row * len(keys.dictionary) + keys.indices.to_numpy(), kind="stable")
            twice = pairs[1:][pairs[1:] == pairs[:-1]] // max(1, len(keys.dictionary))
            holes = np.union1d(twice, row[values.is_null().to_numpy(zero_copy_only=False)])
            lost[f"{column.name}: a key twice or without a value"] = len(holes)
            table = table.take(np.setdiff1d(np.arange(table.num_rows), holes))
    if name in _UNIQUE:
        columns = [*({"cell"} & {*table.schema.names}), *_UNIQUE[name]]
        numbered = table.append_column("row", pa.array(np.arange(table.num_rows)))
        first = numbered.select([*columns, "row"]).group_by(columns).aggregate([("row", "min")])["row_min"]
        lost["occurs twice"] = table.num_rows - len(first)
        if lost["occurs twice"]:
            table = table.take(first.combine_chunks().sort())
    return table, {problem: count for problem, count in lost.items() if count}


def _rules(name: str, policies: list[str], table: pa.Table, replays: bool) -> dict[str, pc.Expression]:
    rules: dict[str, pc.Expression] = {}
    for column in SCHEMAS[name]:
        label, kind, value = column.name, column.type, pc.field(column.name)
        if label in _LATER and table[label].null_count == table.num_rows:
            continue
        if pa.types.is_string(kind):
            most = _MAX_TEXT if label in _TEXTS else _MAX_NAME
            rules[f"{label}: absent or longer than {most:,} bytes"] = pc.binary_length(value) <= most
        elif pa.types.is_integer(kind):
            inside = (value >= (-1 if label in _NEGATIVE else 0)) & (value <= _MAX_COUNT)
            rules[f"{label}: absent or out of range"] = value.is_null() | inside if label in _LATER else inside
        elif pa.types.is_floating(kind):
            low = 0.0 if label in _SHARES or label.endswith("_seconds") else -1e300
            high = 1.0 if label in _SHARES else 1e300
            inside = (value >= low - 1e-9) & (value <= high + 1e-9)
            rules[f"{label}: not in [{low:g}, {high:g}]"] = value.is_null(nan_is_null=True) | inside
        elif pa.types.is_boolean(kind) or pa.types.is_list(kind):
            rules[f"{label}: absent"] = value.is_valid()
        if label == "task":
            named = pc.match_substring_regex(value, f"^(?:{TASK_PATTERN})$")
            rules["task: not a task's name"] = named & (pc.binary_length(value) <= LONGEST_TASK)
        if label in _WORDS:
            words = [word for word in _WORDS[label] if word or name != "samples"]
            rules[f"{label}: not one of {', '.join(words)}"] = value.isin(words)
        if label == "author" and replays:
            named = pc.match_substring_regex(value, f"^(?:{NAME_PATTERN})$")
            rules["author: not a name as a suite has it"] = named & (pc.binary_length(value) <= LONGEST_NAME)
        elif label in ("policy", "author", "receiver"):
            rules[f"{label}: not a policy of the cell"] = value.isin([*policies, *([""] if name == "costs" else [])])
    return rules
