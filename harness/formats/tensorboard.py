"""TensorBoard runs: `<out>/<suite>/<group>/<regime>/<seed>-<cell key>/<policy>`."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.formats.tracking import News, missing, run_name
from harness.store.manifest import Manifest


class TensorBoard:
    """A run per policy of a cell. Raises UsageError where it is not installed."""

    def __init__(self, out: Path) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise missing("TensorBoard", "track", error) from None
        self.folder = out
        self._event, self._summary, self._writer = Event, Summary, EventFileWriter

    def run_folder(self, manifest: Manifest) -> Path:
        """Of a cell; its last part ends with the cell's key, which is the run's identity."""
        return self.folder / manifest.suite / run_name(manifest)

    def memory(self, manifest: Manifest) -> Path:
        return self.run_folder(manifest) / "harness.json"

    def write(self, news: News) -> None:
        folder = self.run_folder(news.manifest)
        if not news.since:
            shutil.rmtree(folder, ignore_errors=True)
        for policy in dict.fromkeys(p.policy for p in news.points):
            writer = self._writer(str(folder / policy))
            try:
                for p in (p for p in news.points if p.policy == policy):
                    value = self._summary.Value(tag=p.tag, simple_value=p.value)
                    summary = self._summary(value=[value])
                    writer.add_event(self._event(wall_time=p.at, step=max(p.step, 0), summary=summary))
            finally:
                writer.close()
