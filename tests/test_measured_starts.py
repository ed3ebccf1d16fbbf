"""What starts do when asked for the skill that they lack: measured on the package's own, and read back by the results page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import measured_starts
import pytest
import results_page as page
from measured_starts import MeasuredStart, MeasuredStarts, write_measured

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_start_of_the_package_seldom_shows_the_skill_that_it_lacks(tmp_path: Path) -> None:
    script = (sys.executable, str(ROOT / "tools" / "measure_starts.py"), "quickstart", "11", "--to", str(tmp_path))
    subprocess.run(script, check=True, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"})
    measured = measured_starts.read_measured(tmp_path / "quickstart.json")
    starts = list(measured.starts.values())
    assert {start.lacks for start in starts} == {"add", "mul"}
    for start in starts:
        assert 0 <= start.mass <= start.reasoned < 0.05
        assert start.answers == 2_000
    assert set(measured.policies.values()) == set(measured.starts)


def test_the_page_gives_means_over_seeds(tmp_path: Path) -> None:
    starts = {
        str(seed): MeasuredStart(str(seed), "neox", "mul", seed, 2_000, reasoned=0.01 * seed, mass=0.004 * seed)
        for seed in (1, 3)
    }
    write_measured(tmp_path / "map.json", MeasuredStarts(starts, {f"weak-0/neox/{seed}": str(seed) for seed in (1, 3)}))
    store = page.Store(tmp_path, snapshot=None, suites=["map"], starts=tmp_path)
    assert "| weak-0 | neox | mul | 2.00 | 0.80 | 4,000 |" in page.starts(store, "map")
