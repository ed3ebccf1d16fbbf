"""The gate: code that computes results does not change under the same results version (docs/versions.md)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.versions import BESIDE, PACKAGES, ROOT, files_of, owner_of, parse_versions, syntax_digest

COMPUTES_NOTHING = {
    "allocation", "bandit", "cache", "cli", "clusters", "errors", "files", "formats", "limits", "phases",
    "plugins", "published", "reading", "rehearsal", "scaffold", "scoring", "statistics", "store", "submission", "suite",
    "tuning", "versions",
}  # fmt: skip
SOURCE = '''
"""A module."""
RATE = 0.1
"""A rate."""

class A:
    """A class."""

def half(x):
    """Half of x."""
    return x / 2  # not a third
'''


def gate(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tools/results_versions.py", *options]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("harness", "regimes", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_no_code_changed_under_the_same_version() -> None:
    done = gate(ROOT)
    assert done.returncode == 0, f"\n{done.stdout}{done.stderr}"


def test_a_changed_formula_is_found_with_the_line_to_edit(tree: Path) -> None:
    file = tree / "harness/learning/advantages.py"
    text = file.read_text()
    formula = "pool.mean()"
    assert formula in text
    file.write_text(text.replace(formula, "pool.max()", 1))
    done = gate(tree)
    assert done.returncode == 1
    line = parse_versions((tree / "harness/versions.toml").read_text())["learning"].line
    assert (tree / "harness/versions.toml").read_text().splitlines()[line - 1] == "version = 1"
    assert f"harness/versions.toml:{line}: [learning]" in done.stdout
    assert "[tasks]" not in done.stdout
    assert gate(tree, "--raise", "learning").returncode == 0
    assert parse_versions((tree / "harness/versions.toml").read_text())["learning"].version == 2
    assert gate(tree).returncode == 0


def test_a_refactoring_is_recorded_without_raising(tree: Path) -> None:
    file = tree / "regimes/sgt.py"
    file.write_text(file.read_text() + "\n\nUNUSED = 1\n")
    assert "[regimes/sgt]" in gate(tree).stdout
    gate(tree, "--keep")
    assert gate(tree).returncode == 0
    assert parse_versions((tree / "harness/versions.toml").read_text())["regimes/sgt"].version == 1


def test_the_digest_reads_code_alone() -> None:
    reference = syntax_digest({"a.py": SOURCE})
    for same in (
        SOURCE.replace('"""A module."""', '"""Another word."""'),
        SOURCE.replace('"""A rate."""\n', ""),
        SOURCE.replace('"""A class."""', "pass"),
        SOURCE.replace("  # not a third", ""),
        SOURCE.replace("x / 2", "(x /\n            2)"),
    ):
        assert same != SOURCE
        assert syntax_digest({"a.py": same}) == reference
    for other in (
        SOURCE.replace("x / 2", "x / 3"),
        SOURCE.replace("x / 2", "x // 2"),
        SOURCE.replace("0.1", "1"),
        SOURCE.replace("half(x)", "half(x=None)"),
    ):
        assert syntax_digest({"a.py": other}) != reference
    assert syntax_digest({"b.py": SOURCE}) != reference


def test_a_table_with_the_marks_of_a_conflict_reads() -> None:
    ours, theirs = 'version = 2\nsyntax = "aa"', 'version = 3\nsyntax = "bb"'
    text = f'[learning]\n<<<<<<< ours\n{ours}\n=======\n{theirs}\n>>>>>>> theirs\n\n["regimes/sgt"]\nversion = 1\nsyntax = "cc"\n'
    table = parse_versions(text)
    assert (table["learning"].version, table["learning"].line) == (3, 6)
    assert table["regimes/sgt"].version == 1


def test_every_package_is_versioned_or_known_to_compute_nothing() -> None:
    places = {place.split("/")[1] for own in PACKAGES.values() for place in own if place.startswith("harness/")}
    here = {p.stem for p in (ROOT / "harness").iterdir() if (p.is_dir() or p.suffix == ".py") and p.name[0] != "_"}
    assert here - places - COMPUTES_NOTHING == set(), "say in harness/versions.py whether it computes results"
    assert all((ROOT / place).exists() for place in BESIDE)
    assert all(files_of(package) for package in PACKAGES)
    assert owner_of(ROOT / "harness/session/cell/evaluate.py") == "evaluation"
    assert owner_of(ROOT / "harness/session/driver/progress.py") is None
