"""benchmarks/torture.py in short: a dozen faults at random moments, tables and costs compared after each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TORTURE = Path(__file__).parents[2] / "benchmarks" / "torture.py"


@pytest.mark.timeout(1500)
def test_a_dozen_faults(tmp_path: Path) -> None:
    command = [sys.executable, str(TORTURE), "--short", "--seed", "4", "--work", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1400, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["violation"] == ""
    assert sum(n for kind, n in summary["faults"].items() if kind != "clock step") >= 12, summary
