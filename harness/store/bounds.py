"""What manifests and rows of others must satisfy: those of an import, and reference results."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.errors import StoreError
from harness.store.columns import SCHEMAS
from harness.store.manifest import Manifest
from harness.store.text import visible
from harness.suite.schema import LONGEST_NAME, LONGEST_TASK, NAME_PATTERN, TASK_PATTERN

_BUDGET = re.compile(r"[1-9][0-9]?x")
LONGEST_KEY = 128
"""Of cells' keys, and of what lies beside them."""
_MAX_TEXT = 1 << 20
_MAX_NAME = 256
_MAX_COUNT = 1 << 53

_TEXTS = {"prompt", "text", "extracted", "gold", "own_text", "peer_text"}
_SHARES = {
    "reward_mean", "effective_sample_size", "clipped_share", "refused_share", "peer_only_support_share", "accuracy",
    "residual_boundary",
}  # fmt: skip
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
"""Columns where -1 stands for none; of a checkpoint, for the model as published (`PUBLISHED`)."""
LATER = {"clipped_tokens", "ratios", "vote", "empty", "unboxed"}
"""Columns that older versions did not write."""


def fault(manifest: Manifest, key: str) -> str:
    """What is wrong with the manifest of a finished cell, or base checkpoint, whose key is `key`; empty where nothing is.

    Names become parts of paths. Those of a checkpoint that `harness evaluate` has asked are not: its group is the path of a folder.
    """
    base = manifest.kind == "base"
    names = [policy.name for policy in manifest.policies]
    good = _printable if base else is_name
    checks = {
        "key: is not the folder's name": manifest.key == key and is_name(key, LONGEST_KEY),
        "state: only finished cells are taken": manifest.state == "done",
        "policies: empty, doubled or too many": 0 < len(names) <= 64 and len(set(names)) == len(names),
        "policies: not names as a suite has them": all(good(name) for name in names),
        "group: not a name as a suite has it": good(manifest.group),
        "regime: not a name as a suite has it": is_name(manifest.regime) or (base and not manifest.regime),
        "seed: absent or out of range": base or (manifest.seed is not None and manifest.seed < _MAX_COUNT),
        "budget: not like 1x": bool(_BUDGET.fullmatch(manifest.budget)),
    }
    return next((problem for problem, kept in checks.items() if not kept), "")


def is_name(text: str, longest: int = LONGEST_NAME) -> bool:
    """Whether it is a name as suites have them, which is always one part of a path."""
    return len(text) <= longest and re.fullmatch(NAME_PATTERN, text) is not None


def check_parts(place: Path, manifest: Manifest, *more: str) -> None:
    """Names that become folders and files: suite, key, group, regime and policies, and `more`.

    Raises StoreError where one is not one part of a path: manifests that were never imported were never checked either.
    """
    for name in (
        manifest.suite,
        manifest.key,
        manifest.group,
        manifest.regime,
        *(p.name for p in manifest.policies),
        *more,
    ):
        if not _printable(name) or name in {".", ".."} or {"/", "\\"} & set(name):
            raise StoreError(f"{place}: {name[:200]!a} is no name for a file")


def _printable(text: str) -> bool:
    return 0 < len(text) <= _MAX_NAME and text == visible(text) and not {"\n", "\t"} & set(text)


Check = Callable[[pa.Table], pa.ChunkedArray]


def checks(name: str, policies: pa.Array, table: pa.Table) -> dict[str, Check]:
    """What each row of a table must satisfy, by the words that refuse it. With a column `cell` it is a table of several cells, and
    `policies` are those of all."""
    checks: dict[str, Check] = {}
    for column in SCHEMAS[name]:
        label, kind = column.name, column.type
        if label in LATER and table[label].null_count == table.num_rows:
            continue
        if pa.types.is_string(kind):
            limit = _MAX_TEXT if label in _TEXTS else _MAX_NAME
            checks[f"{label}: absent or longer than {limit:,} bytes"] = partial(_short, label, limit)
        elif pa.types.is_integer(kind):
            inside = _absent_or_inside if label in LATER else _inside
            checks[f"{label}: absent or out of range"] = partial(
                inside, label, -1 if label in _NEGATIVE else 0, _MAX_COUNT
            )
        elif pa.types.is_floating(kind):
            low, high = (0.0, 1.0) if label in _SHARES else (-1e300, 1e300)
            checks[f"{label}: not in [{low:g}, {high:g}]"] = partial(_unmeasured_or_inside, label, low, high)
        elif pa.types.is_boolean(kind):
            checks[f"{label}: absent"] = partial(_there, label)
        if label == "task":
            checks["task: not a task's name"] = partial(_named, label)
        if label in _WORDS:
            checks[f"{label}: not one of {', '.join(_WORDS[label])}"] = partial(_one_of, label, pa.array(_WORDS[label]))
    for label in ("policy", "author", "receiver"):
        if label in SCHEMAS[name].names:
            known = pa.concat_arrays([policies, pa.array([""])]) if name == "costs" else policies
            checks[f"{label}: not a policy of the cell"] = partial(_one_of, label, known)
    if name in _UNIQUE:
        of = ["cell"] if "cell" in table.schema.names else []
        checks["stands twice"] = partial(_first_of, [*of, *_UNIQUE[name]])
    return checks


def _short(column: str, limit: int, table: pa.Table) -> pa.ChunkedArray:
    return pc.less_equal(pc.binary_length(table[column]), limit)


def _named(column: str, table: pa.Table) -> pa.ChunkedArray:
    matching = pc.match_substring_regex(table[column], f"^(?:{TASK_PATTERN})$")
    return pc.and_(matching, _short(column, LONGEST_TASK, table))


def _inside(column: str, low: float, high: float, table: pa.Table) -> pa.ChunkedArray:
    return pc.and_(pc.greater_equal(table[column], low), pc.less_equal(table[column], high))


def _absent_or_inside(column: str, low: float, high: float, table: pa.Table) -> pa.ChunkedArray:
    return pc.or_kleene(pc.is_null(table[column]), _inside(column, low, high, table))


def _unmeasured_or_inside(column: str, low: float, high: float, table: pa.Table) -> pa.ChunkedArray:
    return pc.or_kleene(pc.is_null(table[column], nan_is_null=True), _inside(column, low - 1e-9, high + 1e-9, table))


def _there(column: str, table: pa.Table) -> pa.ChunkedArray:
    return pc.is_valid(table[column])


def _one_of(column: str, words: pa.Array, table: pa.Table) -> pa.ChunkedArray:
    return pc.is_in(table[column], words)


def _first_of(columns: list[str], table: pa.Table) -> pa.ChunkedArray:
    numbered = table.select(columns).append_column("row", pa.array(np.arange(table.num_rows)))
    first = numbered.group_by(columns).aggregate([("row", "min")])["row_min"]
    return pc.is_in(numbered["row"], first.combine_chunks())
