"""DeepSpeed's optimiser offload stays off: its faults weakened baselines that others published (arXiv 2604.23747)."""

from __future__ import annotations

import ast
from pathlib import Path

import harness.engines

FOLDER = Path(harness.engines.__file__).parent / "openrlhf"
KEYS = {"adam_offload", "offload_optimizer", "offload_param", "cpu_offload"}


def test_no_module_of_the_engine_turns_it_on() -> None:
    """Read from the source, for want of DeepSpeed in this environment."""
    said = []
    for file in sorted(FOLDER.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.keyword) and node.arg in KEYS:
                said.append((node.arg, ast.unparse(node.value)))
            if isinstance(node, ast.Constant) and node.value in KEYS:
                said.append((str(node.value), file.name))
    assert said == [("adam_offload", "False")]
