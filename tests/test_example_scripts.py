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


def harness(*arguments: object, site: Path | None = None) -> str:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, filter(None, (site, ROOT, os.environ.get("PYTHONPATH")))))
    }
    command = [sys.executable, "-m", "harness", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    harness("run", EXAMPLES / "run" / "pair.yaml", "--results", folder, "--jobs", 1)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_run_and_analyse(results: Path) -> None:
    shown = json.loads(harness("show", "pair", "--results", results, "--format", "json"))["rows"]
    command = [sys.executable, EXAMPLES / "analyse" / "gains.py", "pair", results]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    expected = {
        (r["group"], r["policy"], r["task"], r["regime"]): [f"{100 * v:+.1f}" for v in (r["gain"], *r["gain_interval"])]
        for r in shown
        if r["metric"] == "greedy" and r["policy"] != "*" and r["gain"] is not None
    }
    found = {tuple(line.split()[:4]): re.findall(r"[-+]\d+\.\d", line) for line in done.stdout.splitlines()}
    assert len(found) == 2
    assert found == expected


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_submit(results: Path, tmp_path: Path) -> None:
    paths = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    command = ["sh", EXAMPLES / "submit" / "bundle.sh", "pair", results]
    environment = os.environ | {"PATH": paths, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accepted: re-executed" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_extend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, site = shutil.copytree(EXAMPLES / "extend", tmp_path / "extend"), tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", site, package], check=True, timeout=120)
    assert "borrow" in {r["name"] for r in json.loads(harness("regimes", "--json", site=site))["regimes"]}
    folder = tmp_path / "results"
    harness("run", package / "suite.yaml", "--results", folder, "--jobs", 1, site=site)
    states = {
        c["regime"]: c["state"]
        for c in json.loads(harness("status", "borrow", "--results", folder, "--json", site=site))["cells"]
    }
    assert states["borrow"] == "done"
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
