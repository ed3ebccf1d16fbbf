"""`harness run quickstart` from nothing but an installation, by the clock, compared with the stored accuracies.
Needs idle cores. Run by `bench.py`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb
from bench import NotHere, Row, Size, takes

from harness.store.database import store_path
from harness.store.ingest import ingest

REFERENCE = Path(__file__).parents[1] / "results" / "reference"
SCORES = """
SELECT regime, seed, policy, task, metric, checkpoint_step, right_answers, answers
FROM scores JOIN cells USING (suite, cell) WHERE kind = 'cell' ORDER BY ALL
"""


def scores(results: Path) -> list[tuple[object, ...]]:
    ingest(results)
    with duckdb.connect(str(store_path(results)), read_only=True) as store:
        return store.execute(SCORES).fetchall()


def bench(size: Size) -> list[Row]:
    if size.smoke:
        raise NotHere("not in short")
    with tempfile.TemporaryDirectory() as name:
        results, stored = Path(name) / "results", Path(name) / "stored"
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "harness", "run", "quickstart", "--results", str(results)],
            env=os.environ | {"HARNESS_CACHE": f"{name}/cache"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        minutes = (time.perf_counter() - begin) / 60
        assert done.returncode == 0, done.stdout
        (stored / "reference").mkdir(parents=True)
        (stored / "reference" / "quickstart").symlink_to(REFERENCE / "quickstart")
        assert scores(results) == scores(stored), "other accuracies than the stored ones"
    return [takes("quickstart, everything", [minutes], 4.0, "minutes", "equal to the stored table")]
