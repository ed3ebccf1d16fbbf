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
from typing import Any, NamedTuple

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


class WrittenPoints(msgspec.Struct, frozen=True):
    """What a tracker holds of a cell already: how many points, and a digest of them; how often the cell was written anew."""

    points: int = 0
    digest: str = ""
    renewed: int = 0


class NewPoints(NamedTuple):
    """Points of a cell that a tracker has not yet. since: how many it has; at 0 whatever it holds of the cell is to go. renewed:
    how often that happened."""

    manifest: Manifest
    points: list[Point]
    since: int
    renewed: int

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
        names = ("suite", "group", "regime", "regime_type", "seed", "budget", "engine", "options")
        policies = [p.name for p in m.policies]
        return {n: getattr(m, n) for n in names} | {
            "policies": policies,
            "cell": m.key,
            "started": m.provenance.started,
        }


class Tracker:
    """Where points go. folder: of its runs."""

    folder: Path

    def memory(self, manifest: Manifest) -> Path:
        """The file that says what it holds of a cell. Without it the cell is written anew."""
        return self.folder / "harness" / manifest.suite / f"{manifest.key}.json"

    def write(self, new: NewPoints) -> None:
        """Take points in; they are kept when it returns. Raises UsageError where the tracker cannot."""
        raise NotImplementedError


def follow(results: Path, suite: str, tracker: Tracker) -> int:
    """Bring the tracker up to the journals; returns the number of points written.

    Cells that cannot be read now are left for the next look. Raises UsageError where there are no cells, or of the tracker, and
    StoreError for names that are none for its files.
    """
    count = 0
    for file in manifests(results, suite):
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


def manifests(results: Path, suite: str) -> list[Path]:
    """Files of the suite's cells. Raises UsageError where there are none."""
    found = sorted((results / suite).glob("*/manifest.json"))
    if not found:
        raise UsageError(f"{results / suite}: no cells yet (harness run {suite})")
    return found


def run_name(manifest: Manifest) -> str:
    """`<group>/<regime>/<seed>-<cell key>`."""
    return f"{manifest.group}/{manifest.regime}/{manifest.seed}-{manifest.key}"


def _bring(manifest: Manifest, points: list[Point], tracker: Tracker) -> int:
    memory = tracker.memory(manifest)
    try:
        before = msgspec.json.decode(read_bytes(memory, _MAX_BYTES), type=WrittenPoints)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        before = WrittenPoints(
            digest="unknown"
        )  # a look was interrupted before it could say so: its run is written anew
    if before.digest != _digest(points[: before.points]):  # resumed from an earlier checkpoint
        before = WrittenPoints(renewed=before.renewed + (before.points > 0))
    if new := points[before.points :]:
        tracker.write(NewPoints(manifest, new, before.points, before.renewed))
        after = WrittenPoints(len(points), _digest(points), before.renewed)
        write_atomic(memory, msgspec.json.encode(after))
    return len(new)


def _digest(points: list[Point]) -> str:
    return hashlib.blake2b(repr(points).encode(), digest_size=16).hexdigest()


def _points(folder: Path, manifest: Manifest) -> Iterator[Point]:
    """Step by step, so that a growing journal only adds at the end: each step's numbers, then the final evaluation."""
    at = datetime.fromisoformat(manifest.provenance.started).timestamp()
    tables = read_journal(folder).tables
    rows: list[tuple[int, bool, dict[str, Any]]] = []
    for name in ("steps", "curves"):
        rows += [(r["step"], name == "steps", r) for r in tables[name].to_pylist()] if name in tables else []
    for step, trained, row in sorted(rows, key=lambda each: (*each[:2], each[2]["policy"])):
        numbers = (
            {f"steps/{tag}": value for tag, value in row.items() if tag not in ("policy", "step")}
            if trained
            else {f"held-out/{row['metric']}": row["accuracy"]}
        )
        for tag, value in numbers.items():
            if value is not None:
                yield Point(row["policy"], tag, step, float(value), at)
    if manifest.state == "done" and "samples" in tables:
        samples = tables["samples"].select(["policy", "checkpoint_step", "task", "metric", "verdict"]).to_pandas()
        valid = samples[samples["verdict"] != "invalid"]
        means = valid["verdict"].eq("right").groupby([valid[name] for name in samples.columns[:-1]]).mean()
        for (policy, step, task, metric), value in means.items():
            yield Point(policy, f"evaluation/{task}/{metric}", int(step), float(value), at)
