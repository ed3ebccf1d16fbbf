"""The house's rules: imports point downward, light packages stay light, every shipped suite loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LEVELS = {
    "errors": 0,
    "threads": 0,
    "suite": 1,
    "exchange": 2,
    "verification": 2,
    "learning": 3,
    "tokenization": 3,
    "tasks": 4,
    "allocation": 3,
    "store": 3,
    "engines": 5,
    "statistics": 3,
    "bandit": 5,
    "published": 4,
    "evaluation": 6,
    "session": 7,
    "cli": 8,
}
"""A package imports only packages of its own or a lower level."""
SAME_LEVEL = {("store", "statistics")}
"""The one permitted import between neighbours: tables are made of statistics."""
LATE = {("cli", "leaderboard")}


def _imports(file: Path) -> set[str]:
    """Dotted modules imported anywhere in the file, TYPE_CHECKING blocks left out."""
    tree = ast.parse(file.read_text())
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _files(package: str) -> list[Path]:
    place = ROOT / "harness" / package
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


@pytest.mark.parametrize("package", sorted(LEVELS))
def test_imports_point_downward(package: str) -> None:
    wrong = []
    for file in _files(package):
        for name in _imports(file):
            parts = name.split(".")
            if parts[0] in {"regimes", "leaderboard", "tests"} and (package, parts[0]) not in LATE:
                wrong.append(f"{file.relative_to(ROOT)} imports {name}")
            if parts[0] != "harness" or len(parts) < 2 or parts[1] not in LEVELS or parts[1] == package:
                continue
            same = LEVELS[parts[1]] == LEVELS[package] and (package, parts[1]) not in SAME_LEVEL
            if LEVELS[parts[1]] > LEVELS[package] or same:
                wrong.append(f"{file.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_every_package_has_a_level() -> None:
    packages = {p.stem for p in (ROOT / "harness").iterdir() if (p.is_dir() or p.suffix == ".py") and p.name[0] != "_"}
    assert packages == set(LEVELS)


def test_regimes_need_no_torch() -> None:
    for file in (ROOT / "regimes").rglob("*.py"):
        assert not {n.split(".")[0] for n in _imports(file)} & {"torch", "transformers", "ray"}, file


@pytest.mark.parametrize(
    "module",
    [
        "harness.suite.load",
        "harness.session.prepare",
        "harness.session.matrix",
        "harness.learning.registry",
        "harness.store.read",
        "harness.statistics",
        "harness.cli.app",
        "regimes.hacpo",
    ],
)
def test_light_modules_import_without_torch(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'torch', 'transformers', 'lm_eval', 'ray'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_unpickles_or_evaluates() -> None:
    banned = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle"}
    for file in [
        *(ROOT / "harness").rglob("*.py"),
        *(ROOT / "regimes").rglob("*.py"),
        *(ROOT / "leaderboard").rglob("*.py"),
    ]:
        assert not {n.split(".")[0] for n in _imports(file)} & banned, file
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", None)
                assert name not in {"eval", "exec"}, f"{file}:{node.lineno}"
