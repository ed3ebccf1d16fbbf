"""What a plugin's author and a run's owner learn from a cell that fails: hung, stopped, or with an exception."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from harness.session.cell import log as logs

from .running import harness

REGIMES = '''
import time
from harness.learning.advantages import GRPO, own_term
from regimes.independent import Independent


class Clumsy(Independent):
    """Gives the house's own function what it cannot take."""

    def learn(self, own, inbox, context):
        return [own_term(own, self.nothing, GRPO)]

    def nothing(self, group):
        return [None for _ in group.valid]


class Sleepy(Independent):
    """Waits for what never comes."""

    def learn(self, own, inbox, context):
        while True:
            time.sleep(1000)
'''
SUITE = """
name: lone
baseline: {baseline}
groups:
  - name: one
    policies: [{{name: a, model: {llama}}}]
regimes: [{regimes}]
seeds: [3]
training: {{steps: 400, prompts: 4, rollouts: 4, max_new_tokens: 8, measure_every: 0}}
evaluation: {{k: {k}, limit: 200, curve_every: 0}}
"""
SILENCE = 6


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which a package with two bad regimes is installed."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "misfits.py").write_text(REGIMES)
    info = folder / "misfits-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: misfits\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[harness.regimes]\nclumsy = misfits:Clumsy\nsleepy = misfits:Sleepy\n")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))}


def lone(tmp_path: Path, folders: dict[str, Path], *regimes: str, k: int = 0) -> tuple[Path, Path]:
    file = tmp_path / "lone.yaml"
    file.write_text(SUITE.format(llama=folders["llama"], baseline=regimes[0], regimes=", ".join(regimes), k=k))
    return file, tmp_path / "results"


def cells(results: Path, env: dict[str, str] | None = None) -> dict[str, dict[str, object]]:
    code, out, err = harness("status", "lone", "--results", results, "--json", env=env)
    assert code == 0, err
    return {c["regime"]: c for c in json.loads(out)["cells"]}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_plugins_error_names_its_own_line_and_leaves_its_traceback(tmp_path, folders, site):
    file, results = lone(tmp_path, folders, "clumsy")
    code, _, err = harness("run", file, "--results", results, "-v", env=site)
    assert code == 1
    assert "one/clumsy/3: training" in err, "-v streams the phases"
    line = REGIMES[: REGIMES.index("own_term(own")].count("\n") + 1
    reason = str(cells(results, site)["clumsy"]["reason"])
    assert reason.startswith("TypeError: ")
    assert reason.endswith(f"/misfits.py:{line}, in learn)"), "his line, not the one of ours that it ran into"
    narrow = harness("status", "lone", "--results", results, env={**site, "COLUMNS": "80"})[1]
    assert reason in " ".join(narrow.split())
    log = results / "lone" / str(cells(results, site)["clumsy"]["key"]) / "log"
    assert f"log: {log}" in narrow
    text = log.read_text()
    assert "Traceback (most recent call last)" in text
    assert "return [own_term(own, self.nothing, GRPO)]" in text
    assert "in own_answers" in text
    for name in ("one/clumsy/3", log.parent.name, log.parent.name[:6]):
        code, out, err = harness("logs", name, "--results", results, "--lines", 12, env=site)
        assert code == 0, err
        assert out.splitlines() == text.splitlines()[-12:]
    assert harness("run", file, "--results", results, env=site)[0] == 1
    assert cells(results, site)["clumsy"]["attempts"] == 2
    assert (log.parent / "log.1").read_text() == text
    assert harness("logs", "one/clumsy/3", "lone", "--earlier", 1, "--results", results, env=site)[0] == 0
    assert harness("logs", "nothing", "--results", results)[0] == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_main_thread_that_waits_for_ever_is_found(tmp_path, folders, site):
    file, results = lone(tmp_path, folders, "sleepy")
    code, _, _ = harness("run", file, "--results", results, "--silence", SILENCE, env=site)
    assert code == 1
    reason = str(cells(results, site)["sleepy"]["reason"])
    assert reason.startswith(f"no sign of life for {SILENCE} s while training 0/400")
    (log,) = results.glob(f"lone/{cells(results, site)['sleepy']['key']}/log")
    assert re.search(r'misfits\.py", line \d+ in learn', log.read_text()), "where it hung"
    assert reason in log.read_text()


def test_a_log_is_bounded_and_keeps_its_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "LIMIT", 40_000)
    monkeypatch.setattr(logs, "_HEAD", 1_000)
    log = tmp_path / "log"
    log.write_text("".join(f"line {i}\n" for i in range(20_000)))
    with log.open("a") as writer:
        logs.trim(log)
        writer.write("afterwards\n")
    lines = log.read_text().splitlines()
    assert log.stat().st_size < 40_000
    assert (lines[0], lines[-2], lines[-1]) == ("line 0", "line 19999", "afterwards")
    assert any("cut" in line for line in lines)
    for i in range(6):
        logs.note(tmp_path, f"attempt {i}")
        with logs.logged(tmp_path):
            pass
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log", "log.1", "log.2", "log.3"]
