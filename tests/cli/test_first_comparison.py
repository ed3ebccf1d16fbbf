"""A run tells its first comparison as soon as two cells can be compared, and at its end how long it took."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest
from running import harness

from harness.cli.running import FirstComparison
from harness.store.manifest import read_manifest


def keep_only(results: Path, regimes: set[str]) -> None:
    """Remove all cells but those of the first seed of these regimes."""
    for file in results.glob("labs/*/manifest.json"):
        manifest = read_manifest(file.parent)
        if manifest.kind == "cell" and (manifest.regime not in regimes or manifest.seed != 1):
            shutil.rmtree(file.parent)


def test_it_is_told_once_and_only_where_the_baseline_is_done(lab, tmp_path):
    told: list[str] = []
    for regimes in ({"independent"}, {"sgt"}, {"independent", "sgt"}):
        results = tmp_path / "-".join(sorted(regimes))
        shutil.copytree(lab / "results", results)
        keep_only(results, regimes)
        first = FirstComparison(results, "labs", time.monotonic() - 61, told.append)
        first.refresh_store()
        first.refresh_store()
    (line,) = told
    assert re.fullmatch(
        r"first comparison, after \d+ s: sgt [+-]\d+\.\d points over independent \(llama-qwen, micro, avg@2, seed 1; .*",
        line,
    )


@pytest.mark.slow
def test_the_end_of_a_run_says_how_long_it_took(lab, tmp_path):
    few = ["--set", "seeds=[1]", "--set", "training.steps=1", "--set", "evaluation.limit=4"]
    _, _, said = harness("run", lab / "labs.yaml", "--results", tmp_path, "--jobs", 1, *few)
    assert len(re.findall(r"^first comparison, after \d+ s: ", said, re.M)) == 1
    assert re.search(r"^3 cells in [\d.]+ (s|min)\.$", said, re.M)
