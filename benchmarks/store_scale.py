"""The store at scale: 10,000 cells, 10 million step rows, 5 million samples (all synthetic).

    python benchmarks/store_scale.py FOLDER [--cells 10000] [--make]

`--make` writes the journals first (minutes, 2 GB); then the store is built and `harness show` is timed. Wall times need an
idle machine; CPU-seconds are given beside them. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import Pool
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from synthetic_results import REGIMES, Regime, write_results

from harness.store.ingest import ingest

SUITES = 10
MORE = (Regime("naive", "naive", 0.08), Regime("graft", "graft", 0.03), Regime("sapo", "sapo", 0.02))


def make(folder: Path, suite: int, cells: int) -> None:
    """One suite of cells/10: ten groups, ten regimes, the rest seeds."""
    groups = {f"pair-{g:02d}": ("llama", "qwen") for g in range(10)}
    seeds = range(max(1, cells // SUITES // 100))
    write_results(
        folder, f"synthetic-{suite:02d}", groups, (*REGIMES, *MORE), seeds, steps=500, questions=83, repeats=2, exchanges=50
    )  # fmt: skip


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds, children included."""
    wall, cpu = time.perf_counter(), sum(os.times()[:4])
    action()
    return time.perf_counter() - wall, sum(os.times()[:4]) - cpu


def show(folder: Path) -> None:
    """`harness show` of one suite in a process of its own."""
    code = (
        "import sys; from pathlib import Path; from harness.store.ingest import ingest; from harness.store.read import Snapshot; "
        "from harness.store.table import show_rows; from harness.store.render import render; results = Path(sys.argv[1]); "
        "ingest(results); snapshot = Snapshot(results); print(len(render('s', show_rows(snapshot, 'synthetic-00'))))"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--make", action="store_true")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    if arguments.make:
        folder.mkdir(parents=True, exist_ok=True)
        with Pool(min(4, os.cpu_count() or 1)) as pool:
            pool.starmap(make, [(folder, suite, arguments.cells) for suite in range(SUITES)])
    rows = 0

    def build() -> None:
        nonlocal rows
        rows = ingest(folder, rebuild=True).rows

    wall, cpu = timed(build)
    time.sleep(2.5)
    ingest(folder)
    shows = [timed(lambda: show(folder)) for _ in range(5)]
    figures = {
        "rows": rows,
        "ingest_seconds": wall, "ingest_cpu_seconds": cpu, "rows_per_second": rows / wall, "rows_per_cpu_second": rows / cpu,
        "show_seconds": statistics.median(s for s, _ in shows), "show_cpu_seconds": statistics.median(c for _, c in shows),
        "store_bytes": (folder / "harness.duckdb").stat().st_size, "load": os.getloadavg()[0],
    }  # fmt: skip
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
