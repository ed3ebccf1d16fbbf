"""Journals as runs of a tracker. A second look adds what is new; a cell resumed from an earlier checkpoint is written
anew. Nothing leaves this machine without a login to W&B or WANDB_MODE."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from harness.errors import StoreError, UsageError
from harness.files import write_atomic
from harness.reading import read_bytes
from harness.store.journal import read_journal
from harness.store.manifest import Manifest, read_manifest
from harness.store.validation import check_file_names

_MAX_BYTES = 1 << 20
_SECONDS = 120


class TrackedPoint(NamedTuple):
    """A value of a policy at a step. at: seconds since 1970."""

    policy: str
    tag: str
    step: int
    value: float
    at: float


class WrittenPoints(msgspec.Struct, frozen=True):
    """What is remembered of a cell that was written. digest: of its points. renewed: how often it was written anew."""

    points: int = 0
    digest: str = ""
    renewed: int = 0


class NewPoints(NamedTuple):
    """Points that a tracker lacks. since: how many it has; at 0 what it holds is to go. renewed: how often it went."""

    manifest: Manifest
    points: list[TrackedPoint]
    since: int
    renewed: int

    def rows(self) -> Iterator[tuple[int, float, dict[str, float]]]:
        """Step, time and values by `<policy>/<tag>`; the same at every look."""

        def place_of(point: TrackedPoint) -> tuple[int, float, str, str]:
            kind = point.tag.partition("/")[0]
            return max(point.step, 0), point.at, point.policy, kind

        for (step, at, *_), points in groupby(self.points, key=place_of):
            yield step, at, {f"{point.policy}/{point.tag}": point.value for point in points}

    def details(self) -> dict[str, Any]:
        """Return what a tracker notes as a run's configuration."""
        manifest = self.manifest
        names = ("suite", "group", "regime", "regime_type", "seed", "budget", "engine", "options")
        told = {name: getattr(manifest, name) for name in names}
        told["policies"] = [policy.name for policy in manifest.policies]
        told["cell"] = manifest.key
        told["started"] = manifest.provenance.started
        return told


class Tracker:
    """Where points go. folder: of its runs."""

    folder: Path

    def memory(self, manifest: Manifest) -> Path:
        return self.folder / "harness" / manifest.suite / f"{manifest.key}.json"

    def write(self, new: NewPoints) -> None:
        """Take points in for good. Raises UsageError where the tracker cannot."""
        raise NotImplementedError


def follow_suite(results: Path, suite: str, tracker: Tracker) -> int:
    """Bring the tracker up to the journals; returns the number of points written. Unreadable cells wait. Raises
    UsageError, StoreError."""
    count = 0
    for file in find_manifests(results, suite):
        try:
            manifest = read_manifest(file.parent)
            if manifest.kind != "cell" or not manifest.provenance.started:
                continue
            points = list(_read_points(file.parent, manifest))
        except StoreError:
            continue
        check_file_names(file.parent, manifest, *{point.policy for point in points})
        with suppress(StoreError):
            count += _bring_up_to_date(manifest, points, tracker)
    return count


def find_manifests(results: Path, suite: str) -> list[Path]:
    files = sorted((results / suite).glob("*/manifest.json"))
    if not files:
        raise UsageError(f"{results / suite}: no cells here (`harness status` lists the suites that have some)")
    return files


def run_name(manifest: Manifest) -> str:
    """Return the name of a cell's run: `<group>/<regime>/<seed>-<cell key>`."""
    return f"{manifest.group}/{manifest.regime}/{manifest.seed}-{manifest.key}"


def _bring_up_to_date(manifest: Manifest, points: list[TrackedPoint], tracker: Tracker) -> int:
    """Write the points of a cell that the tracker has not got yet, and return how many.

    A cell that was resumed from an earlier checkpoint has other points than were written, and is written anew.
    """
    memory = tracker.memory(manifest)
    try:
        before = msgspec.json.decode(read_bytes(memory, _MAX_BYTES), type=WrittenPoints)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        before = WrittenPoints(digest="unknown")  # a look was interrupted
    if before.digest != _digest_points(points[: before.points]):  # resumed from an earlier checkpoint
        before = WrittenPoints(renewed=before.renewed + (before.points > 0))
    new = points[before.points :]
    if new:
        tracker.write(NewPoints(manifest, new, before.points, before.renewed))
        after = WrittenPoints(len(points), _digest_points(points), before.renewed)
        write_atomic(memory, msgspec.json.encode(after))
    return len(new)


def _digest_points(points: list[TrackedPoint]) -> str:
    return hashlib.blake2b(repr(points).encode(), digest_size=16).hexdigest()


def _read_points(folder: Path, manifest: Manifest) -> Iterator[TrackedPoint]:
    """Yield a cell's points in order of steps: a growing journal adds at the end."""
    at = datetime.fromisoformat(manifest.provenance.started).timestamp()
    tables = read_journal(folder).tables
    points: list[TrackedPoint] = []
    if "curves" in tables:
        points += _points_of_curves(tables["curves"].to_pylist(), at)
    if "steps" in tables:
        points += _points_of_steps(tables["steps"].to_pylist(), at)
    yield from sorted(points, key=lambda point: (point.step, point.tag.startswith("steps/"), point.policy))
    if manifest.state == "done" and "samples" in tables:
        yield from _points_of_samples(tables["samples"], at)


def _points_of_curves(rows: Sequence[Mapping[str, Any]], at: float) -> Iterator[TrackedPoint]:
    """Yield the accuracies of learning curves. at: seconds since 1970, of all points of a cell."""
    for row in rows:
        if row["accuracy"] is not None:
            yield TrackedPoint(row["policy"], f"held-out/{row['metric']}", row["step"], float(row["accuracy"]), at)


def _points_of_steps(rows: Sequence[Mapping[str, Any]], at: float) -> Iterator[TrackedPoint]:
    """Yield what was measured at each step, column by column."""
    for row in rows:
        for name, value in row.items():
            if name not in ("policy", "step") and value is not None:
                yield TrackedPoint(row["policy"], f"steps/{name}", row["step"], float(value), at)


def _points_of_samples(table: pa.Table, at: float) -> Iterator[TrackedPoint]:
    """Yield the accuracy of each evaluation, the mean over its questions, as in tables."""
    columns = ["policy", "checkpoint_step", "task", "metric", "doc_id"]
    samples = table.select([*columns, "verdict"]).to_pandas()
    valid = samples[samples["verdict"] != "invalid"]
    is_right = valid["verdict"].eq("right")
    of_questions = is_right.groupby([valid[name] for name in columns]).mean()
    means = of_questions.groupby(level=columns[:-1]).mean()
    for (policy, step, task, metric), value in means.items():
        yield TrackedPoint(policy, f"evaluation/{task}/{metric}", int(step), float(value), at)


class TensorBoard(Tracker):
    def __init__(self, out: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.folder = out
        self._event = Event
        self._summary = Summary
        self._writer = EventFileWriter

    def run_folder(self, manifest: Manifest) -> Path:
        return self.folder / manifest.suite / run_name(manifest)

    def memory(self, manifest: Manifest) -> Path:
        return self.run_folder(manifest) / "harness.json"

    def write(self, new: NewPoints) -> None:
        """Append points to the cell's folder, a writer for each policy; without earlier points the folder is emptied first."""
        folder = self.run_folder(new.manifest)
        if not new.since:
            shutil.rmtree(folder, ignore_errors=True)
        by_policy: dict[str, list[TrackedPoint]] = {}
        for point in new.points:
            by_policy.setdefault(point.policy, []).append(point)
        for policy, points in by_policy.items():
            writer = self._writer(str(folder / policy))
            try:
                for point in points:
                    value = self._summary.Value(tag=point.tag, simple_value=point.value)
                    summary = self._summary(value=[value])
                    event = self._event(wall_time=point.at, step=max(point.step, 0), summary=summary)
                    writer.add_event(event)
            finally:
                writer.close()


class Wandb(Tracker):
    """In `<out>/wandb`, a run per cell; offline without a login. History only grows: a renewed cell becomes the run
    `<key>-2`."""

    def __init__(self, out: Path) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self.folder = out / "wandb"
        self._wandb = wandb
        self._mode = os.environ.get("WANDB_MODE") or None
        if self._mode is None:
            self._mode = "online" if wandb.login(prompt=False, verify=False) else "offline"
        self._settings = wandb.Settings(
            silent=True, console="off", init_timeout=_SECONDS, finish_timeout=_SECONDS, finish_timeout_raises=True,
            disable_code=True, disable_git=True, x_disable_machine_info=True, x_disable_meta=True, x_disable_stats=True,
            x_save_requirements=False,
        )  # fmt: skip

    def write(self, new: NewPoints) -> None:
        """Append points to the cell's run, or begin it. Raises UsageError with what W&B says."""
        m = new.manifest
        if not new.since:
            for segment in self.folder.glob(f"offline-run-*-{m.key}*"):
                shutil.rmtree(segment, ignore_errors=True)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            run = self._wandb.init(
                project=m.suite,
                id=f"{m.key}-{new.renewed + 1}" if new.renewed else m.key,
                name=run_name(m),
                group=m.group,
                job_type=m.regime,
                config=new.details(),
                dir=self.folder.parent,
                mode=self._mode,
                resume="allow",
                settings=self._settings,
            )
            run.define_metric("*", step_metric="step")
            for step, _, values in new.rows():
                run.log({"step": step, **values})
            run.finish()
        except (self._wandb.Error, TimeoutError) as error:
            raise UsageError(f"W&B: {' '.join(str(error).split())}") from None


class Trackio(Tracker):
    """`<out>/trackio/<suite>.db`, a run per cell, by its storage class: `init` starts threads and asks the hub for the
    user."""

    def __init__(self, out: Path) -> None:
        self.folder = out / "trackio"
        os.environ["TRACKIO_DIR"] = str(self.folder.resolve())
        from trackio.sqlite_storage import SQLiteStorage

        self._store = SQLiteStorage

    def write(self, new: NewPoints) -> None:
        """Append points to the cell's run, or begin it; points that are there already are not added twice. Raises UsageError."""
        m = new.manifest
        rows = list(new.rows())
        try:
            self._store.validate_project_name(m.suite)
            if not new.since:
                self._store.delete_run(m.suite, run_name(m), run_id=m.key)
            steps = [step for step, _, _ in rows]
            times = [datetime.fromtimestamp(at, UTC).isoformat() for _, at, _ in rows]
            metrics = [values for _, _, values in rows]
            config = {**new.details(), "_Group": m.group, "_Created": m.provenance.started}
            ids = [f"{m.key}-{new.since}-{i}" for i in range(len(rows))]  # nothing is added twice
            self._store.bulk_log(
                project=m.suite,
                run=run_name(m),
                run_id=m.key,
                metrics_list=metrics,
                steps=steps,
                timestamps=times,
                config=config,
                log_ids=ids,
            )
        except (ValueError, OSError, sqlite3.Error) as error:
            raise UsageError(f"Trackio: {error}") from None


# Class, name for people, extra
_TRACKERS = {
    "tensorboard": (TensorBoard, "TensorBoard", "track"),
    "wandb": (Wandb, "W&B", "wandb"),
    "trackio": (Trackio, "Trackio", "trackio"),
}


def open_tracker(name: str, out: Path) -> Tracker:
    """Make a tracker of that name. Raises UsageError for an unknown or uninstalled one."""
    if name not in _TRACKERS:
        raise UsageError(f"--to {name}: one of {', '.join(_TRACKERS)}")
    kind, title, extra = _TRACKERS[name]
    try:
        return kind(out)
    except ImportError as error:
        advice = f"pip install 'experience-sharing-harness[{extra}]'"
        raise UsageError(f"{title} is not installed ({error}): {advice}") from None
