"""40 unequal micro cells on 2 workers, and on 4 where there are as many cores: the clock's time of all of them. Run by `bench.py`.

Beside it the lower bound that their own times leave: the larger of their sum over the workers and of the longest. A job is a cell
or the evaluation of a base checkpoint, its own time what its ledger says it spent of the clock. Needs idle cores.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb
from bench import NotHere, Row, Size, takes
from generation import PAIR

from harness.engines.embedded.stage0 import base_checkpoint
from harness.store.database import store_path
from harness.store.ingest import ingest

KINDS = ("model: micro/llama, stage0: {strong: add}", "model: micro/qwen, stage0: {strong: mul}")
GROUPS, SEEDS, STEPS = (2, 3, 4, 5), 5, 3


def suite() -> str:
    """Cells of two to five policies that learn alone or from each other: eight a seed."""
    groups = ""
    for policies in GROUPS:
        members = (f"      - {{name: p{number}, {KINDS[number % 2]}}}\n" for number in range(policies))
        groups += f"  - name: of-{policies}\n    policies:\n{''.join(members)}"
    return (
        f"name: unequal\ngroups:\n{groups}regimes: [independent, sgt]\nseeds: {list(range(1, 1 + SEEDS))}\n"
        f"training: {{steps: {STEPS}, measure_every: 0, checkpoint_every: {STEPS}}}\n"
        "evaluation: {k: 1, limit: 30, curve_every: 0}\n"
    )


def run(file: Path, results: Path, workers: int) -> float:
    """Seconds by the clock."""
    command = [sys.executable, "-m", "harness", "run", str(file), "--results", str(results), "--jobs", str(workers)]
    begin = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return time.perf_counter() - begin


def bench(size: Size) -> list[Row]:
    if (os.cpu_count() or 1) < 2:
        raise NotHere("two cores")
    if size.smoke:
        raise NotHere("not in short")
    for spec in PAIR:
        base_checkpoint(spec)  # trained once, into the cache: others would wait for it
    rows = []
    for workers in (2, 4)[: 1 + ((os.cpu_count() or 1) >= 4)]:
        with tempfile.TemporaryDirectory() as name:
            file, results = Path(name) / "unequal.yaml", Path(name) / "results"
            file.write_text(suite())
            taken = run(file, results, workers)
            ingest(results)
            with duckdb.connect(str(store_path(results)), read_only=True) as store:
                query = "SELECT cell, sum(wall_seconds) FROM costs GROUP BY cell"
                own = [seconds for _, seconds in store.execute(query).fetchall()]
        bound = max(sum(own) / workers, max(own))
        name = f"{len(own)} unequal jobs on {workers} workers"
        rows.append(takes(name, [taken / bound], 1.15, "x", "lower bound of their times"))
    return rows
