"""Journals as runs of a tracker, afterwards or while they grow: cells are runs, named with their keys.

The journals are followed from outside; nothing here is in the path of training. What was written is remembered beside the runs, so
a second look adds what is new, and a cell that was resumed from an earlier checkpoint is written anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from harness.errors import StoreError, UsageError
from harness.files import write_atomic
from harness.reading import read_bytes
from harness.store.bounds import check_parts
from harness.store.journal import read_journal
from harness.store.manifest import Manifest, read_manifest

_MAX_BYTES = 1 << 20


class Point(NamedTuple):
    """One number of one policy. at: seconds since 1970, of the cell's start, for journals hold no other."""

    policy: str
    tag: str
    step: int
    value: float
    at: float


class Written(msgspec.Struct, frozen=True):
    """What a tracker holds of a cell already: how many points, and a digest of them; how often the cell was written anew."""

    points: int = 0
    digest: str = ""
    renewed: int = 0


class News(NamedTuple):
    """Points of a cell that a tracker has not yet. since: how many it has; at 0 whatever it holds of the cell is to go. renewed:
    how often that happened."""

    manifest: Manifest
    points: list[Point]
    since: int
    renewed: int

    @property
    def name(self) -> str:
        """What people read."""
        return run_name(self.manifest)

    def rows(self) -> Iterator[tuple[int, float, dict[str, float]]]:
        """Step, time and values by `<policy>/<tag>`, for trackers that have one run for all policies of a cell. A row holds what
        came into the journal at once, so that every look makes the same rows."""
        for (step, at, *_), points in groupby(
            self.points, key=lambda p: (max(p.step, 0), p.at, p.policy, p.tag.partition("/")[0])
        ):
            yield step, at, {f"{p.policy}/{p.tag}": p.value for p in points}

    def details(self) -> dict[str, Any]:
        """What runs are grouped and filtered by."""
        m = self.manifest
        return {
            "suite": m.suite,
            "group": m.group,
            "regime": m.regime,
            "regime_type": m.regime_type,
            "seed": m.seed,
            "budget": m.budget,
            "engine": m.engine,
            "options": m.options,
            "policies": [p.name for p in m.policies],
            "cell": m.key,
            "started": m.provenance.started,
        }


class Tracker(Protocol):
    """Where points go. Made with the folder of its runs; raises UsageError where its package is not installed."""

    folder: Path

    def memory(self, manifest: Manifest) -> Path:
        """The file that says what it holds of a cell. Without it the cell is written anew."""

    def write(self, news: News) -> None:
        """Take points in; they are kept when it returns. Raises UsageError where the tracker cannot."""


def follow(results: Path, suite: str, tracker: Tracker) -> int:
    """Bring the tracker up to the journals; gives the number of points written.

    Cells that cannot be read now are left for the next look. Raises UsageError where there are no cells, or of the tracker, and
    StoreError for names that are none for its files.
    """
    manifests = sorted((results / suite).glob("*/manifest.json"))
    if not manifests:
        raise UsageError(f"{results / suite}: no cells yet (harness run {suite})")
    count = 0
    for file in manifests:
        try:
            manifest = read_manifest(file.parent)
            if manifest.kind != "cell" or not manifest.provenance.started:
                continue
            points = list(_points(file.parent, manifest))
        except StoreError:
            continue
        check_parts(file.parent, manifest, *{point.policy for point in points})
        with suppress(StoreError):
            count += _bring(manifest, points, tracker)
    return count


def run_name(manifest: Manifest) -> str:
    """`<group>/<regime>/<seed>-<cell key>`."""
    return f"{manifest.group}/{manifest.regime}/{manifest.seed}-{manifest.key}"


def missing(package: str, extra: str, error: ImportError) -> UsageError:
    """What to say where a tracker's package is not installed."""
    return UsageError(f"{package} is not installed ({error}): pip install 'experience-sharing-harness[{extra}]'")


def _bring(manifest: Manifest, points: list[Point], tracker: Tracker) -> int:
    memory = tracker.memory(manifest)
    before = _written(memory)
    if before.digest != _digest(points[: before.points]):  # resumed from an earlier checkpoint
        before = Written(renewed=before.renewed + (before.points > 0))
    if new := points[before.points :]:
        tracker.write(News(manifest, new, before.points, before.renewed))
        after = Written(len(points), _digest(points), before.renewed)
        write_atomic(memory, msgspec.json.encode(after))
    return len(new)


def _points(folder: Path, manifest: Manifest) -> Iterator[Point]:
    """Step by step, so that a growing journal only adds at the end: each step's numbers, then the final evaluation."""
    at = datetime.fromisoformat(manifest.provenance.started).timestamp()
    tables = read_journal(folder).tables
    rows: list[tuple[int, str, dict[str, Any]]] = []
    for name in ("steps", "curves"):
        rows += [(r["step"], name, r) for r in tables[name].to_pylist()] if name in tables else []
    for step, name, row in sorted(rows, key=lambda found: (found[0], found[1] == "steps", found[2]["policy"])):
        if name == "curves":
            yield Point(row["policy"], f"held-out/{row['metric']}", step, row["accuracy"], at)
            continue
        for tag, value in row.items():
            if tag not in ("policy", "step") and value is not None:
                yield Point(row["policy"], f"steps/{tag}", step, float(value), at)
    if manifest.state == "done" and "samples" in tables:
        counts: dict[tuple[str, int, str, str], list[int]] = {}
        for row in tables["samples"].select(["policy", "checkpoint_step", "task", "metric", "verdict"]).to_pylist():
            right = counts.setdefault((row["policy"], row["checkpoint_step"], row["task"], row["metric"]), [0, 0])
            right[0] += row["verdict"] == "right"
            right[1] += row["verdict"] != "invalid"
        for (policy, step, task, metric), (right_, valid) in sorted(counts.items()):
            if valid:
                yield Point(policy, f"evaluation/{task}/{metric}", step, right_ / valid, at)


def _written(memory: Path) -> Written:
    """Nothing where a look was cut off before it could say so: its run is written anew."""
    try:
        return msgspec.json.decode(read_bytes(memory, _MAX_BYTES), type=Written)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return Written(0, "unknown")


def _digest(points: list[Point]) -> str:
    return hashlib.blake2b(repr(points).encode(), digest_size=16).hexdigest()
