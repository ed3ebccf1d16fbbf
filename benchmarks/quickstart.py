"""`harness run quickstart` from nothing but an installation, by the clock, compared with the stored accuracies of this kind
of CPU. Needs idle cores. Run by `bench.py`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb
from bench import NotHere, Row, Size, takes

from harness.session.cell.manifests import processor
from harness.store.database import store_path
from harness.store.ingest import ingest

REFERENCE = Path(__file__).parents[1] / "results" / "reference"
SCORES = """
SELECT regime, seed, policy, task, metric, checkpoint_step, right_answers, answers
FROM scores JOIN cells USING (suite, cell) WHERE kind = 'cell' {} ORDER BY ALL
"""


def scores(results: Path, made: str) -> list[tuple[object, ...]]:
    ingest(results)
    with duckdb.connect(str(store_path(results)), read_only=True) as store:
        return store.execute(SCORES.format(made)).fetchall()


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
        for suite in ("quickstart", "another_cpu"):
            (stored / "reference" / suite).symlink_to(REFERENCE / suite)
        expected = scores(stored, f"AND machine->>'processor' = '{processor()}'")
        compared = "no stored ones of this CPU"
        if expected:
            assert scores(results, "") == expected, "other accuracies than the stored ones of this kind of CPU"
            compared = "equal to the stored table"
    return [takes("quickstart, everything", [minutes], 3.0 if (os.cpu_count() or 1) >= 4 else 5.0, "minutes", compared)]
