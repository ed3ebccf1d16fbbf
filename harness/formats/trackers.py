"""The trackers of `harness track`, each of which imports its package when it is made. Local: nothing leaves this machine, and no
network is needed, unless somebody is logged in to W&B or WANDB_MODE says so.

TensorBoard has a run per policy, `<out>/<suite>/<group>/<regime>/<seed>-<cell key>/<policy>`.

W&B (`<out>/wandb`) has a run per cell, whose id is the cell's key. Without a login it is written offline, for `wandb sync`. What is
new at a later look is a further segment of the same run. W&B's history only grows, so a cell that is written anew becomes the run
`<key>-2`.

Trackio (`<out>/trackio/<suite>.db`) has a run per cell, whose id is the cell's key. Points go into its own storage class, as its
importers write: its `init` starts threads that measure the processor, stamps each point with the time now and asks the hub who is
logged in.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import UsageError
from harness.formats.tracking import NewPoints, Tracker, run_name
from harness.store.manifest import Manifest

_SECONDS = 120
"""For a run of W&B to be opened, and for its last points to be sent."""


class TensorBoard(Tracker):
    def __init__(self, out: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.folder = out
        self._event, self._summary, self._writer = Event, Summary, EventFileWriter

    def run_folder(self, manifest: Manifest) -> Path:
        """Of a cell; its last part ends with the cell's key, which is the run's identity."""
        return self.folder / manifest.suite / run_name(manifest)

    def memory(self, manifest: Manifest) -> Path:
        return self.run_folder(manifest) / "harness.json"

    def write(self, new: NewPoints) -> None:
        folder = self.run_folder(new.manifest)
        if not new.since:
            shutil.rmtree(folder, ignore_errors=True)
        for policy in dict.fromkeys(p.policy for p in new.points):
            writer = self._writer(str(folder / policy))
            try:
                for p in (p for p in new.points if p.policy == policy):
                    value = self._summary.Value(tag=p.tag, simple_value=p.value)
                    summary = self._summary(value=[value])
                    writer.add_event(self._event(wall_time=p.at, step=max(p.step, 0), summary=summary))
            finally:
                writer.close()


class Wandb(Tracker):
    def __init__(self, out: Path) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self.folder = out / "wandb"
        self._wandb = wandb
        self._out = out
        self._mode = os.environ.get("WANDB_MODE") or None
        if self._mode is None:
            self._mode = "online" if wandb.login(prompt=False, verify=False) else "offline"
        self._settings = wandb.Settings(
            silent=True, console="off", init_timeout=_SECONDS, finish_timeout=_SECONDS, finish_timeout_raises=True,
            disable_code=True, disable_git=True, x_disable_machine_info=True, x_disable_meta=True, x_disable_stats=True,
            x_save_requirements=False,
        )  # fmt: skip

    def write(self, new: NewPoints) -> None:
        m = new.manifest
        if not new.since:
            for segment in self.folder.glob(f"offline-run-*-{m.key}*"):
                shutil.rmtree(segment, ignore_errors=True)
        self._out.mkdir(parents=True, exist_ok=True)
        try:
            run = self._wandb.init(
                project=m.suite, id=f"{m.key}-{new.renewed + 1}" if new.renewed else m.key, name=run_name(m), group=m.group,
                job_type=m.regime, config=new.details(), dir=self._out, mode=self._mode, resume="allow", settings=self._settings,
            )  # fmt: skip
            run.define_metric("*", step_metric="step")
            for step, _, values in new.rows():
                run.log({"step": step, **values})
            run.finish()
        except (self._wandb.Error, TimeoutError) as error:
            raise UsageError(f"W&B: {' '.join(str(error).split())}") from None


class Trackio(Tracker):
    def __init__(self, out: Path) -> None:
        self.folder = out / "trackio"
        os.environ["TRACKIO_DIR"] = str(self.folder.resolve())
        from trackio.sqlite_storage import SQLiteStorage

        self._store = SQLiteStorage

    def write(self, new: NewPoints) -> None:
        m, rows = new.manifest, list(new.rows())
        try:
            self._store.validate_project_name(m.suite)
            if not new.since:
                self._store.delete_run(m.suite, run_name(m), run_id=m.key)
            self._store.bulk_log(
                project=m.suite,
                run=run_name(m),
                run_id=m.key,
                metrics_list=[values for _, _, values in rows],
                steps=[step for step, _, _ in rows],
                timestamps=[datetime.fromtimestamp(at, UTC).isoformat() for _, at, _ in rows],
                config={**new.details(), "_Group": m.group, "_Created": m.provenance.started},
                log_ids=[
                    f"{m.key}-{new.since}-{i}" for i in range(len(rows))
                ],  # a look that was cut off adds nothing twice
            )
        except (ValueError, OSError, sqlite3.Error) as error:
            raise UsageError(f"Trackio: {error}") from None


_TRACKERS = {
    "tensorboard": (TensorBoard, "TensorBoard", "track"),
    "wandb": (Wandb, "W&B", "wandb"),
    "trackio": (Trackio, "Trackio", "trackio"),
}
"""Class, name for people, extra."""


def open_tracker(name: str, out: Path) -> Tracker:
    """Raises UsageError for an unknown one, or one whose package is not installed."""
    if name not in _TRACKERS:
        raise UsageError(f"--to {name}: one of {', '.join(_TRACKERS)}")
    kind, title, extra = _TRACKERS[name]
    try:
        return kind(out)
    except ImportError as error:
        advice = f"pip install 'experience-sharing-harness[{extra}]'"
        raise UsageError(f"{title} is not installed ({error}): {advice}") from None
