"""What manifests and rows of others must satisfy."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.errors import StoreError
from harness.store.manifest import Manifest
from harness.store.rows import SCHEMAS
from harness.store.text import visible
from harness.suite.schema import LONGEST_NAME, LONGEST_TASK, NAME_PATTERN, TASK_PATTERN

_BUDGET = re.compile(r"[1-9][0-9]?x")
LONGEST_KEY = 128
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
# Columns that older versions did not write
LATER = {
    *("clipped_tokens", "ratios", "vote", "empty", "unboxed"),
    *("hinted_prompts", "hinted_answers", "hinted_right"),
}


def fault(manifest: Manifest, key: str) -> str:
    """What is wrong with the manifest of a finished cell or base checkpoint, whose group may be a folder's path; else empty."""
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
    return len(text) <= longest and re.fullmatch(NAME_PATTERN, text) is not None


def check_parts(place: Path, manifest: Manifest, *more: str) -> None:
    """Raises StoreError where a name that becomes a folder or file is not one part of a path."""
    names = (manifest.suite, manifest.key, manifest.group, manifest.regime, *(p.name for p in manifest.policies), *more)
    for name in names:
        if not _printable(name) or name in {".", ".."} or {"/", "\\"} & set(name):
            raise StoreError(f"{place}: {name[:200]!a} is no name for a file")


def _printable(text: str) -> bool:
    return 0 < len(text) <= _MAX_NAME and text == visible(text) and not {"\n", "\t"} & set(text)


Check = Callable[[pa.Table], pa.ChunkedArray]


def checks(name: str, policies: pa.Array, table: pa.Table) -> dict[str, Check]:
    """What each row must satisfy, by the words that refuse it. With a column `cell` the table is of several cells, and
    `policies` are those of all."""
    found: dict[str, Check] = {}
    for column in SCHEMAS[name]:
        label, kind = column.name, column.type
        if label in LATER and table[label].null_count == table.num_rows:
            continue
        if pa.types.is_string(kind):
            most = _MAX_TEXT if label in _TEXTS else _MAX_NAME
            found[f"{label}: absent or longer than {most:,} bytes"] = _of(label, _short, most)
        elif pa.types.is_integer(kind):
            least = -1 if label in _NEGATIVE else 0
            found[f"{label}: absent or out of range"] = _of(label, _inside, least, _MAX_COUNT, label in LATER)
        elif pa.types.is_floating(kind):
            low, high = (0.0, 1.0) if label in _SHARES else (-1e300, 1e300)
            found[f"{label}: not in [{low:g}, {high:g}]"] = _of(label, _inside, low - 1e-9, high + 1e-9, True)
        elif pa.types.is_boolean(kind):
            found[f"{label}: absent"] = _of(label, pc.is_valid)
        if label == "task":
            found["task: not a task's name"] = _of(label, _is_task)
        if label in _WORDS:
            found[f"{label}: not one of {', '.join(_WORDS[label])}"] = _of(label, pc.is_in, pa.array(_WORDS[label]))
        if label in ("policy", "author", "receiver"):
            known = pa.concat_arrays([policies, pa.array([""])]) if name == "costs" else policies
            found[f"{label}: not a policy of the cell"] = _of(label, pc.is_in, known)
    if name in _UNIQUE:
        of = ["cell"] if "cell" in table.schema.names else []
        found["stands twice"] = partial(_first_of, [*of, *_UNIQUE[name]])
    return found


def _of(column: str, test: Callable[..., pa.ChunkedArray], *arguments: object) -> Check:
    return lambda table: test(table[column], *arguments)


def _short(values: pa.ChunkedArray, most: int) -> pa.ChunkedArray:
    return pc.less_equal(pc.binary_length(values), most)


def _is_task(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.and_(pc.match_substring_regex(values, f"^(?:{TASK_PATTERN})$"), _short(values, LONGEST_TASK))


def _inside(values: pa.ChunkedArray, low: float, high: float, or_absent: bool) -> pa.ChunkedArray:
    inside = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))
    return pc.or_kleene(pc.is_null(values, nan_is_null=True), inside) if or_absent else inside


def _first_of(columns: list[str], table: pa.Table) -> pa.ChunkedArray:
    numbered = table.select(columns).append_column("row", pa.array(np.arange(table.num_rows)))
    first = numbered.group_by(columns).aggregate([("row", "min")])["row_min"]
    return pc.is_in(numbered["row"], first.combine_chunks())
