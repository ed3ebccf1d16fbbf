"""The wheel, installed outside the checkout: it has its suites and reference results with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an environment that has the wheel, and of this one the libraries alone."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_symlink() or (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    run = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", place, source]
    subprocess.run(run, check=True, timeout=300)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "venv"], check=True, timeout=120)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(place / "venv"), "platbase": str(place / "venv")}))
    (wheel,) = place.glob("*.whl")
    target = ["--target", packages, "--no-deps", wheel]
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *target], check=True, timeout=300)
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place / "venv" / "bin" / "python"


def say(command: Path, folder: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HARNESS_"))}
    done = subprocess.run(
        [command, "-m", "harness", *arguments], cwd=folder, capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_its_tables_are_those_of_the_checkout_and_its_suites_are_planned(installed: Path, tmp_path: Path) -> None:
    where = subprocess.run(
        [installed, "-c", "import harness; print(harness.__file__)"], cwd=tmp_path, capture_output=True, text=True
    ).stdout
    assert str(installed.parents[1]) in where, "the wheel's, not the checkout's"

    shipped = {folder.name for folder in (ROOT / "results/reference").iterdir() if folder.is_dir()}
    assert shipped
    overview = say(installed, tmp_path, "show")
    assert [name for name in shipped if name not in overview] == []
    theirs = say(installed, tmp_path, "show", "quickstart@reference", "--format", "csv")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "reference").symlink_to(ROOT / "results/reference")
    ours = subprocess.run(
        [sys.executable, "-m", "harness", "show", "quickstart@reference", "--format", "csv", "--results", tmp_path / "ours"],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=True,
    ).stdout  # fmt: skip
    assert theirs == ours
    assert "smoke" in say(installed, tmp_path, "plan", "smoke")
    assert "sgt" in say(installed, tmp_path, "regimes")
