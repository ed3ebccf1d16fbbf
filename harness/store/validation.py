"""What manifests and rows that others wrote must satisfy before anything reads them: names, bounds, words, uniqueness.

Nothing here proves that results are true; it keeps out what no run of the harness can have written, and what would harm a
reader (paths, control characters, numbers that nothing holds).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from datetime import datetime
from functools import reduce
from operator import and_
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.errors import StoreError
from harness.store.manifest import Manifest
from harness.store.rows import LATER, SCHEMAS, SHARE, marked_columns
from harness.store.text import visible
from harness.store.tuning import Tuned, Tuning
from harness.suite.schema import LONGEST_NAME, LONGEST_TASK, NAME_PATTERN, TASK_PATTERN

# A multiple above 0 of the suite's rollouts; where policies share the prompts out it is any fraction (`0.333x`)
_BUDGET = re.compile(r"(?![0.]+x)[0-9]{1,2}(\.[0-9]{1,6})?x")
# Of a policy's start, where it was noted
_DIGEST = re.compile(r"([0-9a-f]{32})?")
LONGEST_KEY = 128
_MAX_TEXT = 1 << 20
_MAX_NAME = 256
# A larger integer is not exact as a float
_MAX_COUNT = 1 << 53
# A larger float is not a measurement, and its square is infinite
_MAX_FLOAT = 1e300

_TEXTS = {"prompt", "text", "extracted", "gold", "own_text", "peer_text"}
_SHARES = marked_columns(SHARE)
_LATER = marked_columns(LATER)
_VERDICTS = ("right", "wrong", "invalid", "")
_WORDS = {
    "verdict": _VERDICTS,
    "own_verdict": _VERDICTS,
    "peer_verdict": _VERDICTS,
    "metric": ("greedy", "sampled"),
    "source": ("own", "peer"),
}
# Columns by which a row of a table is the only one of its cell
_UNIQUE = {
    "steps": ["policy", "step"],
    "curves": ["policy", "step", "metric"],
    "samples": ["policy", "checkpoint_step", "task", "metric", "doc_id", "repeat"],
}
# Columns in which -1 has a meaning
_NEGATIVE = {"made", "vote", "checkpoint_step"}


def find_manifest_fault(manifest: Manifest, key: str) -> str:
    """Return what is wrong with the manifest of a finished cell or base checkpoint, or empty.

    key: the cell's, by which the manifest was found. The group of an evaluated checkpoint may be a path.
    """
    base = manifest.kind == "base"
    names = [policy.name for policy in manifest.policies]
    are_distinct = 0 < len(names) <= 64 and len(set(names)) == len(names)
    is_of_regime = is_name(manifest.regime) or (base and not manifest.regime)
    has_seed = base or (manifest.seed is not None and manifest.seed < _MAX_COUNT)
    starts_are_digests = all(_DIGEST.fullmatch(policy.start) for policy in manifest.policies)
    is_good_name = _is_printable if base else is_name
    checks = {
        "key: is not the folder's name": manifest.key == key and is_name(key, LONGEST_KEY),
        "state: only finished cells are taken": manifest.state == "done",
        "policies: empty, doubled or too many": are_distinct,
        "policies: not names as a suite has them": all(is_good_name(name) for name in names),
        "policies: a start that is no digest": starts_are_digests,
        "carried: of a policy that the cell does not have": manifest.carried.keys() <= set(names),
        "group: not a name as a suite has it": is_good_name(manifest.group),
        "regime: not a name as a suite has it": is_of_regime,
        "seed: absent or out of range": has_seed,
        "budget: not like 1x": bool(_BUDGET.fullmatch(manifest.budget)),
        "provenance.started: not a time": _is_time(manifest.provenance.started),
        "provenance.finished: not a time": _is_time(manifest.provenance.finished),
    }
    return next((problem for problem, kept in checks.items() if not kept), "")


def find_tuning_fault(tuning: Tuning, variants: Collection[str]) -> str:
    """Return what is wrong with a suite's choice among its `variants`, or empty."""
    places = [(tuned.variant, tuned.on) for tuned in tuning.variants]
    deciding = [tuned.on for tuned in tuning.variants if tuned.on]
    words = [tuning.trials_in, tuning.task, tuning.metric, *deciding]
    names = set[str]()
    for tuned in tuning.variants:
        names |= {tuned.variant, tuned.final}
    has_baseline = bool(places) and all((tuning.baseline, on) in places for _, on in places)
    checks = {
        "not text as a suite has it": all(map(_is_printable, words)),
        "variants: doubled": len(set(places)) == len(places),
        "variants: the baseline is absent": has_baseline,
        "variants: not of the suite": names <= set(variants),
    }
    for problem, kept in checks.items():
        if not kept:
            return problem
    for variant in tuning.variants:
        problem = _find_trials_fault(variant)
        if problem:
            return f"{variant.variant[:99]!a}: {problem}"
    return ""


def _find_trials_fault(tuned: Tuned) -> str:
    """Return what is wrong with the trials of one variant, or empty."""
    trials = {trial.number: trial for trial in tuned.trials}
    best = trials.get(tuned.chosen)
    steps = [trial.steps for trial in tuned.trials]
    scores = [tuned.checked, tuned.checked_published, *(trial.score for trial in tuned.trials)]
    costs = (tuned.rollouts, tuned.cpu_seconds, tuned.gpu_seconds)
    texts: list[str] = []
    for trial in tuned.trials:
        values = map(str, trial.settings.values())
        texts += [trial.variant, trial.fault, *trial.settings, *values]
    shares_in_bounds = all(score is None or 0 <= score <= 1 for score in scores)
    costs_in_bounds = all(0 <= cost <= _MAX_FLOAT for cost in costs)
    steps_in_bounds = all(0 <= count <= _MAX_COUNT for count in steps)
    chosen_has_ended = best is not None and best.score is not None and best.steps == max(steps)
    names_of_settings = {tuple(trial.settings) for trial in tuned.trials}
    checks = {
        "trials: doubled": len(trials) == len(tuned.trials),
        "trials: the variant with its defaults is absent": 0 in trials,
        "trials: the chosen one did not run to its end": chosen_has_ended,
        "trials: unlike settings": len(names_of_settings) == 1,
        "trials: not text as a suite has it": all(_is_printable(text) for text in texts if text),
        "out of range": shares_in_bounds and costs_in_bounds and steps_in_bounds,
    }
    return next((problem for problem, kept in checks.items() if not kept), "")


def _is_time(text: str) -> bool:
    """Say whether the text is a moment in ISO 8601 with its time zone."""
    try:
        time = datetime.fromisoformat(text)
        time.timestamp()
    except (ValueError, OverflowError):
        return False
    return time.tzinfo is not None  # else another moment on each machine


def is_name(text: str, longest: int = LONGEST_NAME) -> bool:
    """Say whether the text is a name as suites have them, of at most `longest` characters."""
    return len(text) <= longest and re.fullmatch(NAME_PATTERN, text) is not None


def check_file_names(place: Path, manifest: Manifest, *more: str) -> None:
    """Check that the manifest's names, and `more`, can be parts of a path. Raises StoreError, which begins with `place`."""
    policies = [policy.name for policy in manifest.policies]
    for name in (manifest.suite, manifest.key, manifest.group, manifest.regime, *policies, *more):
        leaves_folder = name in {".", ".."} or {"/", "\\"} & set(name)
        if leaves_folder or not _is_printable(name):
            raise StoreError(f"{place}: {name[:200]!a} is no name for a file")


def _is_printable(text: str) -> bool:
    """Say whether the text is one line without control characters."""
    return 0 < len(text) <= _MAX_NAME and text == visible(text) and not {"\n", "\t"} & set(text)


def sift_rows(
    name: str, policies: Iterable[str], table: pa.Table, replays: bool = False
) -> tuple[pa.Table, dict[str, int]]:
    """Return the rows of table `name` that a run can have written, and the number of others by the reason.

    With a column `cell` the table and `policies` are of several cells. replays: the cell replays another run's exchange,
    whose authors are no policies of the cell.
    """
    refused: dict[str, int] = {}
    rules = _make_rules(name, [*policies], table, replays)
    # all at once first, since most tables break no rule
    good = table.filter(reduce(and_, rules.values()))
    if good.num_rows < table.num_rows:
        for problem, rule in rules.items():
            before = table.num_rows
            table = table.filter(rule)
            refused[problem] = before - table.num_rows
    for column in SCHEMAS[name]:
        if pa.types.is_list(column.type):
            bad = _find_broken_lists(table[column.name])
            refused[f"{column.name}: absent in part"] = len(bad)
            table = _without_rows(table, bad)
    for column in SCHEMAS[name]:
        if pa.types.is_map(column.type):
            bad = _find_broken_maps(table[column.name])
            refused[f"{column.name}: a key twice or without a value"] = len(bad)
            table = _without_rows(table, bad)
    if name in _UNIQUE:
        bad = _find_repeats(name, table)
        refused["occurs twice"] = len(bad)
        table = _without_rows(table, bad)
    return table, {problem: count for problem, count in refused.items() if count}


def _without_rows(table: pa.Table, bad: np.ndarray) -> pa.Table:
    """Return the table without the rows of these numbers."""
    if not len(bad):
        return table
    good = np.setdiff1d(np.arange(table.num_rows), bad)
    return table.take(good)


def _find_broken_lists(column: pa.ChunkedArray) -> np.ndarray:
    """Return the numbers of the rows whose list lacks an element."""
    lists = column.combine_chunks()
    row_of_each = pc.list_parent_indices(lists)
    absent = pc.list_flatten(lists).is_null()
    holes = row_of_each.filter(absent).unique()
    return np.asarray(holes.to_numpy())


def _find_broken_maps(column: pa.ChunkedArray) -> np.ndarray:
    """Return the numbers of the rows whose map has a key twice, or a key without a value."""
    texts = pa.struct([("key", pa.string()), ("value", pa.string())])
    # As lists of pairs: pyarrow's functions for the indices of a map itself abort the process
    maps = column.combine_chunks().cast(pa.list_(texts))
    row = pc.list_parent_indices(maps).to_numpy()
    keys, values = pc.list_flatten(maps).flatten()
    keys = keys.dictionary_encode()
    distinct = len(keys.dictionary)
    # one number for each row and key: equal ones stand together once they are sorted
    numbers = row * distinct + keys.indices.to_numpy()
    pairs = np.sort(numbers, kind="stable")
    later = pairs[1:]
    repeated = later[later == pairs[:-1]]
    twice = repeated // max(1, distinct)
    has_no_value = values.is_null().to_numpy(zero_copy_only=False)
    absent = row[has_no_value]
    return np.union1d(twice, absent)


def _find_repeats(name: str, table: pa.Table) -> np.ndarray:
    """Return the numbers of the rows that repeat an earlier one of the same cell."""
    columns = list(_UNIQUE[name])
    if "cell" in table.schema.names:
        columns.insert(0, "cell")
    rows = np.arange(table.num_rows)
    numbered = table.append_column("row", pa.array(rows)).select([*columns, "row"])
    grouped = numbered.group_by(columns).aggregate([("row", "min")])
    first = grouped["row_min"].to_numpy()
    return np.setdiff1d(rows, first)


def _make_rules(name: str, policies: list[str], table: pa.Table, replays: bool) -> dict[str, pc.Expression]:
    """Return by the words that refuse a row the expression that a good row satisfies."""
    rules: dict[str, pc.Expression] = {}
    for column in SCHEMAS[name]:
        if column.name in _LATER and table[column.name].null_count == table.num_rows:
            continue  # of an older version, which did not have the column
        if not pa.types.is_map(column.type):
            problem, rule = _make_type_rule(column)
            rules[problem] = rule
        rules |= _make_name_rules(name, column.name, policies, replays)
    return rules


def _make_type_rule(column: pa.Field) -> tuple[str, pc.Expression]:
    """Return the bounds of a column (but a map) by its type, and the words for a value outside of them."""
    label = column.name
    value = pc.field(label)
    if pa.types.is_string(column.type):
        most = _MAX_TEXT if label in _TEXTS else _MAX_NAME
        return f"{label}: absent or longer than {most:,} bytes", pc.binary_length(value) <= most
    if pa.types.is_integer(column.type):
        least = -1 if label in _NEGATIVE else 0
        inside = (value >= least) & (value <= _MAX_COUNT)
        rule = value.is_null() | inside if label in _LATER else inside
        return f"{label}: absent or out of range", rule
    if pa.types.is_floating(column.type):
        low = 0.0 if label in _SHARES or label.endswith("_seconds") else -_MAX_FLOAT
        high = 1.0 if label in _SHARES else _MAX_FLOAT
        inside = (value >= low - 1e-9) & (value <= high + 1e-9)
        # Not measured is null, or NaN
        return f"{label}: not in [{low:g}, {high:g}]", value.is_null(nan_is_null=True) | inside
    return f"{label}: absent", value.is_valid()


def _make_name_rules(name: str, label: str, policies: list[str], replays: bool) -> dict[str, pc.Expression]:
    """Return the rules of a column that holds names or words, none for another one."""
    value = pc.field(label)
    rules: dict[str, pc.Expression] = {}
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
        # A cost that no single policy caused has an empty name
        known = [*policies, ""] if name == "costs" else policies
        rules[f"{label}: not a policy of the cell"] = value.isin(known)
    return rules
