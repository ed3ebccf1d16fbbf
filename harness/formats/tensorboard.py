"""Journals as TensorBoard runs, afterwards or while they grow: one run per policy of a cell, named with the cell's key.

The journals are followed from outside; nothing here is in the path of training. What was written is remembered beside the runs, so
a second look adds what is new, and a cell that was resumed from an earlier checkpoint is written anew.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from harness.errors import StoreError, UsageError
from harness.files import write_atomic
from harness.reading import read_bytes
from harness.store.journal import read_journal
from harness.store.manifest import Manifest, read_manifest

_FILE = "harness.json"
_MAX_BYTES = 1 << 20


class Point(NamedTuple):
    """One number of one policy. at: seconds since 1970, of the cell's start, for journals hold no other."""

    policy: str
    tag: str
    step: int
    value: float
    at: float


class Written(msgspec.Struct, frozen=True):
    """What a run holds already: how many points, and a digest of them."""

    points: int = 0
    digest: str = ""


def follow(results: Path, suite: str, out: Path) -> int:
    """Bring `<out>/<suite>/<group>/<regime>/<seed>-<cell key>/<policy>` up to the journals; gives the number of points written.

    Cells that cannot be read now are left for the next look. Raises UsageError where there are no cells, or TensorBoard is not
    installed, StoreError.
    """
    manifests = sorted((results / suite).glob("*/manifest.json"))
    if not manifests:
        raise UsageError(f"{results / suite}: no cells yet (harness run {suite})")
    count = 0
    for file in manifests:
        try:
            manifest = read_manifest(file.parent)
            if manifest.kind == "cell" and manifest.provenance.started:
                points = list(_points(file.parent, manifest))
                count += _write(run_folder(out, manifest), points)
        except StoreError:
            continue
    return count


def run_folder(out: Path, manifest: Manifest) -> Path:
    """Of a cell; its last part ends with the cell's key, which is the run's identity."""
    return out / manifest.suite / manifest.group / manifest.regime / f"{manifest.seed}-{manifest.key}"


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


def _write(folder: Path, points: list[Point]) -> int:
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise UsageError(
            f"TensorBoard is not installed ({error}): pip install 'experience-sharing-harness[track]'"
        ) from None
    before = _written(folder)
    if before.digest != _digest(points[: before.points]):  # resumed from an earlier checkpoint
        shutil.rmtree(folder, ignore_errors=True)
        before = Written()
    new = points[before.points :]
    if not new:
        return 0
    for policy in dict.fromkeys(p.policy for p in new):
        writer = EventFileWriter(str(folder / policy))
        try:
            for p in (p for p in new if p.policy == policy):
                value = Summary.Value(tag=p.tag, simple_value=p.value)
                writer.add_event(Event(wall_time=p.at, step=max(p.step, 0), summary=Summary(value=[value])))
        finally:
            writer.close()
    write_atomic(folder / _FILE, msgspec.json.encode(Written(len(points), _digest(points))))
    return len(new)


def _written(folder: Path) -> Written:
    """Nothing where a look was cut off before it could say so: its run is written anew."""
    try:
        return msgspec.json.decode(read_bytes(folder / _FILE, _MAX_BYTES), type=Written)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return Written(0, "unknown")


def _digest(points: list[Point]) -> str:
    return hashlib.blake2b(repr(points).encode(), digest_size=16).hexdigest()
