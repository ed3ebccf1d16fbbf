"""The house's rules: imports point downward, light packages stay light, every shipped suite loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LEVELS = {
    "cache": 0,
    "errors": 0,
    "threads": 0,
    "versions": 0,
    "limits": 0,
    "plugins": 1,
    "scaffold": 2,
    "phases": 0,
    "reading": 0,
    "suite": 1,
    "verification": 1,
    "statistics": 1,
    "experience": 2,
    "store": 2,
    "published": 2,
    "exchange": 3,
    "formats": 3,
    "allocation": 3,
    "learning": 4,
    "tokenization": 4,
    "tasks": 4,
    "leaderboard": 4,
    "gguf": 4,
    "engines": 5,
    "bandit": 5,
    "regimes": 5,
    "evaluation": 6,
    "session": 7,
    "clusters": 8,
    "tuning": 8,
    "submission": 9,
    "cli": 10,
}
"""A package imports only packages of a lower level. The harness itself reaches regimes by their entry points alone."""
OUTSIDE = {"regimes", "leaderboard"}


def _imports(file: Path) -> set[str]:
    """Dotted modules imported anywhere in the file, for its types alone too."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _files(package: str) -> list[Path]:
    place = (ROOT if package in OUTSIDE else ROOT / "harness") / package
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


def _package(module: str) -> str | None:
    """The package of this project that a dotted module belongs to."""
    first, *rest = module.split(".")
    return rest[0] if first == "harness" and rest else first if first in OUTSIDE | {"tests", "benchmarks"} else None


@pytest.mark.parametrize("package", sorted(LEVELS))
def test_imports_point_downward(package: str) -> None:
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in _files(package)
        for name in sorted(_imports(file))
        if (other := _package(name)) not in {None, package}
        and (LEVELS.get(str(other), 99) >= LEVELS[package] or other == "regimes")
    ]
    assert not wrong, "\n".join(wrong)


def test_every_package_has_a_level() -> None:
    packages = {p.stem for p in (ROOT / "harness").iterdir() if (p.is_dir() or p.suffix == ".py") and p.name[0] != "_"}
    assert packages | OUTSIDE == set(LEVELS)


def test_regimes_need_no_torch() -> None:
    for file in (ROOT / "regimes").rglob("*.py"):
        assert not {n.split(".")[0] for n in _imports(file)} & {"torch", "transformers", "ray"}, file


@pytest.mark.parametrize(
    "module",
    [
        "harness.suite.load",
        "harness.session.prepare",
        "harness.session.matrix",
        "harness.session.preflight",
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
