"""What the packages import is what pyproject.toml declares."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENGINE = {"openrlhf", "ray", "deepspeed", "vllm"}
"""In the OpenRLHF engine's own environment, pinned by constraints-openrlhf.txt."""


def _normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _imported(package: str) -> dict[str, Path]:
    """Top-level modules of other projects, each with a file that imports it."""
    modules: dict[str, Path] = {}
    for file in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            modules |= {name.split(".")[0]: file for name in names}
    return {name: file for name, file in modules.items() if name not in sys.stdlib_module_names | OWN}


_distributions = cache(metadata.packages_distributions)
OWN = {"harness", "regimes", "leaderboard", "suites"}
CORE, EXTRAS = PROJECT["dependencies"], PROJECT["optional-dependencies"]


@pytest.mark.parametrize(
    ("package", "requirements"),
    [
        (
            "harness",
            [CORE, EXTRAS["gym"], EXTRAS["lora"], EXTRAS["tune"], EXTRAS["track"], EXTRAS["wandb"], EXTRAS["trackio"]],
        ),
        ("regimes", [CORE]),
        ("suites", [CORE]),
        ("leaderboard", [CORE, EXTRAS["leaderboard"]]),
    ],
)
def test_every_import_is_declared(package: str, requirements: list[list[str]]) -> None:
    declared = {_normal(re.match(r"[\w.-]+", one)[0]) for many in requirements for one in many}  # type: ignore[index]
    homes = _distributions()
    missing = {
        name: str(file.relative_to(ROOT))
        for name, file in _imported(package).items()
        if name not in ENGINE and not {_normal(home) for home in homes.get(name, [name])} & declared
    }
    assert not missing


def test_the_engine_environment_pins_what_only_it_has() -> None:
    pins = {
        line.split("==")[0].removesuffix("-cpu")
        for line in (ROOT / "constraints-openrlhf.txt").read_text().splitlines()
    }
    assert pins >= ENGINE


def test_extras_are_spelt_as_their_packages_spell_them() -> None:
    for requirement in CORE:
        if asked := re.match(r"([\w.-]+)\[([\w,.-]+)\]", requirement):
            known = metadata.metadata(asked[1]).get_all("Provides-Extra") or []
            assert set(asked[2].split(",")) <= set(known), requirement


def test_what_is_no_module_is_installed_too() -> None:
    listing = """
from setuptools import Distribution
project = Distribution()
project.parse_config_files()
project.set_defaults()
build = project.get_command_obj("build_py")
build.ensure_finalized()
build.manifest_files = {}
for package in build.packages:
    print(*build.find_data_files(package, build.get_package_dir(package)), sep="\\n")
"""
    shown = [
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout.split()
        for command in ([sys.executable, "-c", listing], ["git", "ls-files", "harness", "leaderboard", "suites"])
    ]
    link = "harness/store/reference"  # a wheel has what it leads to
    wanted = {name for name in shown[1] if not name.endswith((".py", ".md"))} - {link}
    given = subprocess.run(
        ["git", "ls-files", "results/reference"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    wanted |= {name.replace("results/reference", link, 1) for name in given}
    assert sum(name.endswith(".tmpl") or "/bases/" in name for name in wanted) == 53
    assert not wanted - set(shown[0])
