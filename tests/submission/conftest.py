"""A real bundle: micro models trained for two steps, with an A/A control and three seeds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "session"))

from running import harness

SUITE = """
title: A lab's own suite
groups:
  - name: llama-qwen
    policies:
      - {name: llama, model: micro/llama, stage0: {preset: trap, strong: add}}
      - {name: qwen, model: micro/qwen, stage0: {preset: trap, strong: mul}}
regimes:
  - independent
  - {regime: independent, name: independent-aa, sampling_stream: 1}
  - sgt
seeds: [1, 2, 3]
training: {steps: 2, prompts: 6, checkpoint_every: 2, measure_every: 2}
evaluation: {k: 2, limit: 24, curve_every: 2, curve_prompts: 12}
"""


@pytest.fixture(scope="session")
def results(shared: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """Their results folder."""

    def make(root: Path) -> None:
        (root / "labs.yaml").write_text(SUITE)
        code, _, err = harness("run", root / "labs.yaml", "--results", root / "results", "--jobs", 1)
        assert code == 0, err
        assert harness("show", "labs", "--results", root / "results")[0] == 0, "its store is made, too"

    return shared("lab", make) / "results"


@pytest.fixture(scope="session")
def bundle(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their bundle."""
    code, out, err = harness("bundle", "labs", "--results", results, "-o", tmp_path_factory.mktemp("bundle"))
    assert code == 0, err
    return Path(out.strip())
