"""Every command with tiny arguments on the lab's results: what it prints and writes."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from running import SECRETS, harness

from harness.cli.app import COMMANDS
from harness.session.cell.manifests import ENVIRONMENT

PROGRAM = Path(sys.executable).with_name("harness")
BANDIT = """
bandits:
  - {name: rescue, logits: [[2.0, 0.5, -3.0], [0.0, 0.0, 1.5]], rewards: [0, 0, 1], rollouts: 2}
regimes: [independent, sgt]
"""
Place = Callable[..., str]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, untrained: Callable[[str], Path], lab: Path) -> Path:
    """The lab's suite and results, two models, a file of bandits, half a model, half a bundle."""
    root = shutil.copytree(lab, tmp_path_factory.mktemp("place"), dirs_exist_ok=True)
    for family in ("llama", "qwen"):
        shutil.copytree(untrained(family), root / family)
    (root / "bandits.yaml").write_text(BANDIT)
    (root / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    (root / "torn.zip").write_bytes(b"PK\x03\x04")
    return root


@pytest.fixture
def place(root: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The program called there, with secrets in its environment: what a line of its words prints."""
    monkeypatch.chdir(root)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    for name in ("HARNESS_DATA", "HARNESS_MODELS"):  # options set these for their process
        monkeypatch.setenv(name, os.environ.get(name, ""))

    def call(line: str, code: int = 0) -> str:
        found, out, err = harness(*shlex.split(line))
        assert not any(secret in out + err for secret in SECRETS.values())
        assert found == code, err
        assert "Traceback" not in err
        return out

    return call


DOCUMENTS: dict[str, tuple[Callable[[Any], object], object]] = {
    "run labs.yaml": (lambda d: {row["regime"] for row in d["rows"]}, {"independent", "independent-aa", "sgt"}),
    "status labs.yaml": (lambda d: {cell["state"] for cell in d["cells"]}, {"done"}),
    "regimes": (lambda d: [r["shares"] for r in d["regimes"] if r["name"] == "hacpo"], [["Rollout"]]),
    "tasks": (
        lambda d: [(t["size"], t["perfect"], t["empty"]) for t in d["tasks"] if t["name"] == "micro"],
        [(240, 1.0, 0.0)],
    ),
    "engines": (lambda d: [e["available"] for e in d["engines"] if e["name"] == "embedded"], [True]),
    "data --data-dir .": (lambda d: {row["state"] for row in d["sets"]}, {"absent"}),
    "plan labs.yaml --inventory 8cpu-24G": (lambda d: d["feasible"], True),
    # nine cells and the base, two policies, 24 questions, greedy and two samples
    "rescore labs": (lambda d: (d["samples"], d["changes"]), (10 * 2 * 24 * 3, [])),
    "sql 'SELECT count(*) FROM steps'": (lambda d: d["rows"], [[9 * 2 * 2]]),
    "bundle labs -o again.zip": (lambda d: d["bundle"], "again.zip"),
    "doctor": (lambda d: [c["ok"] for c in d["checks"] if c["name"] == "engine embedded"], [True]),
}
"""What of its JSON is right."""
LINES: dict[str, list[tuple[str, int, str]]] = {
    "plan": [("plan hetero_size --inventory 1xH100-80G", 1, "does not fit")],
    "rehearse": [("rehearse quickstart", 2, "")],
    "submit": [
        ("submit labs.yaml --slurm --dry-run --time 1:00:00", 0, "#SBATCH --job-name=labs"),
        ("submit labs.yaml --slurm --dry-run --time soon", 2, ""),
    ],
    "logs": [("logs llama-qwen/sgt/3", 0, "train"), ("logs nobody/sgt/3", 2, "")],
    "show": [("show labs", 0, "independent"), ("show labs --format latex", 0, r"\begin{tabular}")],
    "convert": [("convert cut.gguf folder", 2, "")],
    "sql": [("sql 'DROP TABLE steps'", 2, "")],
    "bandit": [("bandit bandits.yaml", 0, "rescue")],
    "new-regime": [
        ("new-regime best-of-peers", 0, "pip install -e best-of-peers"),
        ("new-regime best-of-peers", 2, ""),
    ],
    "new-task": [("new-task near-sums", 0, "pip install -e near-sums"), ("new-task near-sums", 2, "")],
    "new-engine": [("new-engine plain-torch", 0, "pip install -e plain-torch"), ("new-engine plain-torch", 2, "")],
    "export": [("export labs --out report.html", 0, "")],
    "import": [
        ("import results --results joined --origin other-lab", 0, ""),
        ("sql 'SELECT DISTINCT origin FROM cells' --results joined --json", 0, "other-lab"),
    ],
    "submit-check": [
        ("bundle labs -o mine.zip", 0, "mine.zip"),
        ("submit-check mine.zip", 0, "accepted: re-scored"),
        ("submit-check torn.zip", 2, "REFUSED  container  torn.zip: not a bundle"),
    ],
    "track": [("track labs --to nowhere", 2, "")],
    "doctor": [("doctor", 0, "ok  regimes")],
}
"""Exit codes, and what is printed with them."""


@pytest.mark.parametrize("line", DOCUMENTS)
def test_a_document(place: Place, line: str) -> None:
    read, right = DOCUMENTS[line]
    assert read(json.loads(place(f"{line} --json"))) == right


@pytest.mark.parametrize("name", LINES)
def test_a_command(place: Place, root: Path, name: str) -> None:
    for line, code, words in LINES[name]:
        assert words in place(line, code)
    assert not (root / "folder").exists(), "half a model is no folder"


def test_eval(place: Place, root: Path) -> None:
    folder = next((root / "results" / "labs").glob("*/checkpoint/llama"))
    line = f"eval {folder} --limit 3 --k 0 --results elsewhere --json"
    found = json.loads(place(f"{line} --tasks micro"))
    assert [(m["name"], m["documents"]) for m in found["metrics"]] == [("greedy", 3)]
    shown = json.loads(place(f"{line} --few-shot --max-new-tokens 2"))
    assert shown["folder"] != found["folder"], "another measurement"
    query = (
        f"SELECT min(prompt LIKE 'Q: %boxed%'), max(tokens) FROM samples WHERE cell = '{Path(shown['folder']).name}'"
    )
    assert json.loads(place(f"sql {shlex.quote(query)} --results elsewhere --json"))["rows"] == [[True, 2]]
    place(f"{line} --chat", code=2)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_new_suite(place: Place, root: Path) -> None:
    """Two folders to a suite that runs as the command says."""
    models = "new-suite --models llama qwen --task micro"
    assert "pair.yaml: written, 12 cells" in place(f"{models} --no-trial -o pair.yaml")
    said = place(f"{models} -o 'a pair.yaml'")
    assert "  harness plan 'a pair.yaml'\n" in said
    text = (root / "a pair.yaml").read_text()
    assert ("Measured" in (root / "pair.yaml").read_text(), "#   Measured here with" in text) == (False, True)
    assert text.count("stage0: {preset: format") == 2, "of random weights nothing is right"
    place(f"{models} -o 'a pair.yaml'", code=2)
    assert (root / "a pair.yaml").read_text() == text, "what is there stays"
    trial = ["training.steps=1", "seeds=[1]", "evaluation.limit=3", "regimes=[independent]", "training.prompts=2"]
    assert "independent" in place("run pair.yaml --jobs 1 " + " ".join(f"--set {setting}" for setting in trial))


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=5) as answer:
            return bool(answer.read() == b"ok")
    except OSError:
        return False


@pytest.mark.slow
def test_leaderboard(root: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([PROGRAM, "leaderboard", "--port", str(port)], cwd=root, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not answers(port):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        connections = psutil.Process(process.pid).net_connections("inet")
        listening = {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
        assert listening
        assert listening <= {"127.0.0.1", "::1"}, "on this machine alone"
    finally:
        process.terminate()
        process.wait(20)
    assert not answers(port)


def test_every_command_is_started_here_and_named_by_the_installed_program() -> None:
    started = {line.split()[0] for line in DOCUMENTS} | set(LINES) | {"eval", "new-suite", "leaderboard"}
    assert {name for named in COMMANDS.values() for name in named} == started
    listed = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, timeout=100, check=True).stdout
    assert all(f"  {name} " in listed for name in started)


def test_nothing_of_the_environment_is_kept_but_what_is_listed(root: Path) -> None:
    files = [file for file in root.rglob("*") if file.is_file()]
    assert len(files) > 20
    assert not [file for file in files for secret in SECRETS.values() if secret.encode() in file.read_bytes()]
    (manifest, *_) = (root / "results" / "labs").glob("[0-9a-f]*/manifest.json")
    recorded = json.loads(manifest.read_text())["provenance"]["environment"]
    assert set(recorded) <= set(ENVIRONMENT)
