"""Each example does what its head says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.learning.conformance import check_regime

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def called(*command: object, site: Path | None = None, cwd: Path | None = None) -> str:
    """What it prints, with our Python first on the path and `site` among its packages."""
    paths = os.pathsep.join(map(str, filter(None, (site, ROOT, os.environ.get("PYTHONPATH")))))
    programs = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=300, cwd=cwd,
        env=os.environ | {"PYTHONPATH": paths, "PATH": programs},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def harness(*arguments: object, site: Path | None = None) -> str:
    return called(sys.executable, "-m", "harness", *arguments, site=site)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    harness("run", EXAMPLES / "run" / "pair.yaml", "--results", folder, "--jobs", 1)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_run_and_analyse(results: Path) -> None:
    shown = json.loads(harness("show", "pair", "--results", results, "--format", "json"))["rows"]
    said = called(sys.executable, EXAMPLES / "analyse" / "gains.py", "pair", results)
    expected = {
        (r["group"], r["policy"], r["task"], r["regime"]): [f"{100 * v:+.1f}" for v in (r["gain"], *r["gain_interval"])]
        for r in shown
        if r["metric"] == "greedy" and r["policy"] != "*" and r["gain"] is not None
    }
    gains = {tuple(line.split()[:4]): re.findall(r"[-+]\d+\.\d", line) for line in said.splitlines()}
    assert (len(gains), gains) == (2, expected)
    paces = called(sys.executable, EXAMPLES / "analyse" / "acceleration.py", "pair", results).splitlines()
    assert paces[0].startswith("pair: ")
    assert re.fullmatch(r"  \S+ sgt +too few points: \d+ seeds? with .*", paces[1])


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_submit(results: Path, tmp_path: Path) -> None:
    said = called("sh", EXAMPLES / "submit" / "bundle.sh", "pair", results, cwd=tmp_path)
    assert "accepted: re-executed" in said


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_extend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, site = shutil.copytree(EXAMPLES / "extend", tmp_path / "extend"), tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", site, package], check=True, timeout=120)
    folder = tmp_path / "results"
    harness("run", package / "suite.yaml", "--results", folder, "--jobs", 1, site=site)
    cells = json.loads(harness("status", "borrow", "--results", folder, "--json", site=site))["cells"]
    assert ("borrow", "done") in {(c["regime"], c["state"]) for c in cells}
    monkeypatch.syspath_prepend(str(package))
    from borrow import Borrow

    check_regime(Borrow)


def test_the_extension_is_the_one_of_the_documentation() -> None:
    (sample,) = re.findall(r"(?s)```python\n(.*?)```", (ROOT / "docs" / "regimes.md").read_text())
    assert (EXAMPLES / "extend" / "borrow.py").read_text() == sample


def test_every_example_is_listed() -> None:
    page = (EXAMPLES / "README.md").read_text()
    linked = set(re.findall(r"\]\(([^)]+)\)", page))
    assert all((EXAMPLES / target).exists() for target in linked)
    assert {path.name for path in EXAMPLES.iterdir()} - {"README.md"} == {target.split("/")[0] for target in linked}
