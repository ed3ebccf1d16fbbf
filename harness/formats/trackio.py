"""Trackio runs, one per cell whose id is the cell's key, in the database `<out>/trackio/<suite>.db`.

Points go into Trackio's own storage class, as its importers write: its `init` starts threads that measure the processor, stamps
each point with the time now and asks the hub who is logged in.
"""

from __future__ import annotations

import os
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import UsageError
from harness.formats.tracking import News, missing
from harness.store.manifest import Manifest


class Trackio:
    """Local, without a dashboard. Raises UsageError where it is not installed."""

    def __init__(self, out: Path) -> None:
        self.folder = out / "trackio"
        os.environ["TRACKIO_DIR"] = str(self.folder.resolve())
        try:
            from trackio.sqlite_storage import SQLiteStorage
        except ImportError as error:
            raise missing("Trackio", "trackio", error) from None
        self._store = SQLiteStorage

    def memory(self, manifest: Manifest) -> Path:
        return self.folder / "harness" / manifest.suite / f"{manifest.key}.json"

    def write(self, news: News) -> None:
        m, rows = news.manifest, list(news.rows())
        try:
            self._store.validate_project_name(m.suite)
            if not news.since:
                self._store.delete_run(m.suite, news.name, run_id=m.key)
            self._store.bulk_log(
                project=m.suite,
                run=news.name,
                run_id=m.key,
                metrics_list=[values for _, _, values in rows],
                steps=[step for step, _, _ in rows],
                timestamps=[datetime.fromtimestamp(at, UTC).isoformat() for _, at, _ in rows],
                config={**news.details(), "_Group": m.group, "_Created": m.provenance.started},
                log_ids=[
                    f"{m.key}-{news.since}-{i}" for i in range(len(rows))
                ],  # a look that was cut off adds nothing twice
            )
        except (ValueError, OSError, sqlite3.Error) as error:
            raise UsageError(f"Trackio: {error}") from None
