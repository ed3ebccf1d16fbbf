"""Every command with tiny arguments: what it prints and writes. What runs cells is a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from running import harness

from harness.cli.app import app
from harness.engines.embedded.families import build_model, build_tokenizer
from harness.session.cell.manifests import ENVIRONMENT

SECRETS = {
    "HF_TOKEN": "hf_zZ9secretQ1", "AWS_SECRET_ACCESS_KEY": "aws+zZ9secretQ2", "WANDB_API_KEY": "zZ9secretQ3",
    "PASSWORD": "zZ9secretQ4", "DATABASE_URL": "postgres://me:zZ9secretQ5@db",
    "HARNESS_OWN_TOKEN": "zZ9secretQ6", "OMP_DISPLAY_SECRET": "zZ9secretQ7",
}  # fmt: skip
PROGRAM = Path(sys.executable).with_name("harness")
SUITE = """
name: tiny
groups:
  - name: pair
    policies:
      - {{name: a, model: {llama}}}
      - {{name: b, model: {qwen}}}
regimes: [independent, sgt]
seeds: [3]
training: {{steps: 1, prompts: 2, rollouts: 2, max_new_tokens: 6, learning_rate: 0.001, measure_every: 0}}
evaluation: {{k: 2, limit: 3, curve_every: 0}}
"""
BANDIT = """
bandits:
  - {name: rescue, logits: [[2.0, 0.5, -3.0], [0.0, 0.0, 1.5]], rewards: [0, 0, 1], rollouts: 2}
regimes: [independent, sgt]
"""


class Place:
    """A folder to work in, and the program called there, with secrets in its environment."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, *arguments: object, code: int = 0) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.root)
            kept = {name: os.environ.get(name, "") for name in ("HARNESS_DATA", "HARNESS_MODELS")}
            for name, value in (SECRETS | kept).items():  # options set the latter two for their process
                patch.setenv(name, value)
            found, out, err = harness(*arguments)
        assert not any(secret in out + err for secret in SECRETS.values())
        assert found == code, err
        assert "Traceback" not in err
        return out

    def json(self, *arguments: object) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A finished tiny suite: `harness run` made it."""
    root = tmp_path_factory.mktemp("place")
    folders = {}
    for family in ("llama", "qwen"):
        folders[family] = root / family
        tokenizer = build_tokenizer(family)
        build_model(family, 0, tokenizer).save_pretrained(folders[family])
        tokenizer.save_pretrained(folders[family])
    (root / "tiny.yaml").write_text(SUITE.format(**folders))
    (root / "bandits.yaml").write_text(BANDIT)
    harness = Place(root)
    assert "independent" in harness("run", "tiny.yaml", "--jobs", 1)
    return harness


def run(harness: Place) -> None:
    rows = harness.json("run", "tiny.yaml")["rows"]
    assert {row["regime"] for row in rows} == {"independent", "sgt"}


def plan(harness: Place) -> None:
    assert harness.json("plan", "tiny.yaml", "--inventory", "8cpu-24G")["feasible"]
    assert "does not fit" in harness("plan", "hetero_size", "--inventory", "1xH100-80G", code=1)


def rehearse(harness: Place) -> None:
    """Rehearsals themselves are in tests/rehearsal."""
    harness("rehearse", "quickstart", code=2)


def submit(harness: Place) -> None:
    script = harness("submit", "tiny.yaml", "--slurm", "--dry-run", "--time", "1:00:00")
    assert "#SBATCH --job-name=tiny" in script
    assert not [*(harness.root / "results" / "tiny").glob("slurm")]
    harness("submit", "tiny.yaml", "--slurm", "--dry-run", "--time", "soon", code=2)


def status(harness: Place) -> None:
    assert {cell["state"] for cell in harness.json("status", "tiny.yaml")["cells"]} == {"done"}


def show(harness: Place) -> None:
    assert "independent" in harness("show", "tiny")
    assert json.loads(harness("show", "tiny", "--format", "json"))["rows"]
    assert harness("show", "tiny", "--format", "latex").count(r"\begin{tabular}") >= 1


def regimes(harness: Place) -> None:
    found = {row["name"]: row for row in harness.json("regimes")["regimes"]}
    assert found["hacpo"]["shares"] == ["Rollout"]


def tasks(harness: Place) -> None:
    (micro,) = (row for row in harness.json("tasks")["tasks"] if row["name"] == "micro")
    assert (micro["size"], micro["perfect"], micro["empty"]) == (240, 1.0, 0.0)


def engines(harness: Place) -> None:
    assert {row["name"]: row["available"] for row in harness.json("engines")["engines"]}["embedded"]


def data(harness: Place) -> None:
    sets = harness.json("data", "--data-dir", ".")["sets"]
    assert {row["state"] for row in sets} == {"absent"}


def evaluate(harness: Place) -> None:
    folder = next((harness.root / "results" / "tiny").glob("*/checkpoint/a"))
    found = harness.json("eval", folder, "--tasks", "micro", "--limit", 3, "--k", 0, "--results", "elsewhere")
    assert [(m["name"], m["documents"]) for m in found["metrics"]] == [("greedy", 3)]
    more = ("--limit", 3, "--k", 0, "--results", "elsewhere")
    shown = harness.json("eval", folder, "--few-shot", "--max-new-tokens", 2, *more)
    assert shown["folder"] != found["folder"], "another measurement"
    assert shown["answers"].endswith("without a box")
    query = "SELECT min(prompt LIKE 'Q: %boxed%'), max(tokens) FROM samples WHERE cell = '%s'"
    told = harness.json("sql", query.replace("%s", Path(shown["folder"]).name), "--results", "elsewhere")["rows"]
    assert told == [[True, 2]]
    harness("eval", folder, "--chat", *more, code=2)


def logs(harness: Place) -> None:
    assert "train" in harness("logs", "pair/sgt/3")
    harness("logs", "nobody/sgt/3", code=2)


def convert(harness: Place) -> None:
    """What becomes of a whole file is tested beside its reader."""
    (harness.root / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    harness("convert", "cut.gguf", "folder", code=2)
    assert not (harness.root / "folder").exists()


def rescore(harness: Place) -> None:
    report = harness.json("rescore", "tiny")
    assert report["samples"] == 3 * 2 * 3 * 3  # two cells and the base, two policies, three questions, greedy and two
    assert report["changes"] == []


def sql(harness: Place) -> None:
    assert harness.json("sql", "SELECT count(*) FROM steps")["rows"] == [[4]]
    harness("sql", "DROP TABLE steps", code=2)


def bandit(harness: Place) -> None:
    assert "rescue" in harness("bandit", "bandits.yaml")


def new_regime(harness: Place) -> None:
    assert "pip install -e best-of-peers" in harness("new-regime", "best-of-peers")
    assert (harness.root / "best-of-peers" / "best_of_peers.py").is_file()


def new_suite(harness: Place) -> None:
    """Two folders to a suite that runs as the command says."""
    said = harness("new-suite", "--models", "llama", "qwen", "--task", "micro", "-o", "pair.yaml")
    assert "pair.yaml: written, 12 cells" in said
    assert "harness run pair.yaml" in said
    spaced = harness("new-suite", "--models", "llama", "qwen", "--task", "micro", "-o", "a pair.yaml")
    assert "  harness plan 'a pair.yaml'\n" in spaced
    text = (harness.root / "pair.yaml").read_text()
    harness("new-suite", "--models", "llama", "qwen", "-o", "pair.yaml", code=2)
    assert (harness.root / "pair.yaml").read_text() == text, "what is there stays"
    trial = ["training.steps=1", "seeds=[1]", "evaluation.limit=3", "regimes=[independent]", "training.prompts=2"]
    assert harness.json("plan", "pair.yaml")["feasible"]
    done = harness("run", "pair.yaml", "--jobs", 1, *(word for setting in trial for word in ("--set", setting)))
    assert "independent" in done


def export(harness: Place) -> None:
    harness("export", "tiny", "--out", "report.html")
    assert "independent" in (harness.root / "report.html").read_text()


def new_task(harness: Place) -> None:
    assert "pip install -e near-sums" in harness("new-task", "near-sums")
    assert (harness.root / "near-sums" / "near_sums.py").is_file()
    harness("new-task", "near-sums", code=2)


def new_engine(harness: Place) -> None:
    assert "pip install -e plain-torch" in harness("new-engine", "plain-torch")
    assert (harness.root / "plain-torch" / "plain_torch" / "engine.py").is_file()
    harness("new-engine", "plain-torch", code=2)


def import_(harness: Place) -> None:
    harness("import", "results", "--results", "joined", "--origin", "other-lab")
    rows = harness.json("sql", "SELECT DISTINCT origin FROM cells", "--results", "joined")["rows"]
    assert rows == [["other-lab"]]


def bundle(harness: Place) -> None:
    written = Path(harness("bundle", "tiny").strip())
    assert written.name.startswith("tiny-")
    assert harness.json("bundle", "tiny", "-o", "again.zip") == {
        "bundle": "again.zip",
        "bytes": (harness.root / written).stat().st_size,
    }


def submit_check(harness: Place) -> None:
    harness("bundle", "tiny", "-o", "mine.zip")
    report = harness.json("submit-check", "mine.zip")
    assert report["refused"] == ""
    assert "accepted: re-scored" in harness("submit-check", "mine.zip")
    (harness.root / "torn.zip").write_bytes((harness.root / "mine.zip").read_bytes()[:-9])
    assert "REFUSED  container  torn.zip: not a bundle" in harness("submit-check", "torn.zip", code=2)


def track(harness: Place) -> None:
    harness("track", "tiny", "--to", "nowhere", code=2)
    installed = find_spec("tensorboard") is not None
    harness("track", "tiny", "--out", "runs", code=0 if installed else 2)
    assert (harness.root / "runs/tiny/pair/sgt").is_dir() == installed


def doctor(harness: Place) -> None:
    checks = {row["name"]: row for row in harness.json("doctor")["checks"]}
    assert checks["engine embedded"]["ok"]
    assert "ok  regimes" in harness("doctor")


def leaderboard(harness: Place) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([PROGRAM, "leaderboard", "--port", str(port)], cwd=harness.root, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=5) as answer:
                    assert answer.read() == b"ok"
                    break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.2)
    finally:
        process.terminate()
        process.wait(20)
    with socket.socket() as gone:
        assert gone.connect_ex(("127.0.0.1", port)) != 0


STARTED: dict[str, Callable[[Place], None]] = {
    "run": run, "plan": plan, "rehearse": rehearse, "submit": submit, "status": status, "logs": logs, "show": show,
    "regimes": regimes, "tasks": tasks,
    "engines": engines, "data": data, "eval": evaluate, "convert": convert, "rescore": rescore, "sql": sql,
    "bandit": bandit, "new-suite": new_suite, "new-regime": new_regime, "new-task": new_task, "new-engine": new_engine,
    "export": export, "import": import_, "bundle": bundle, "submit-check": submit_check, "track": track, "doctor": doctor,
    "leaderboard": leaderboard,
}  # fmt: skip


def test_every_command_is_started_here() -> None:
    assert {command.name for command in app.registered_commands} == set(STARTED)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in ("new-suite", "leaderboard"))) for n in STARTED]
)
def test_a_command(place: Place, name: str) -> None:
    STARTED[name](place)


def test_the_installed_program_names_all_its_commands() -> None:
    listed = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, timeout=100, check=True).stdout
    assert all(f"  {name} " in listed for name in STARTED)


def test_nothing_of_the_environment_is_kept_but_what_is_listed(place: Place) -> None:
    files = [file for file in place.root.rglob("*") if file.is_file()]
    assert len(files) > 20
    assert not [file for file in files for secret in SECRETS.values() if secret.encode() in file.read_bytes()]
    (manifest, *_) = (place.root / "results" / "tiny").glob("[0-9a-f]*/manifest.json")
    recorded = json.loads(manifest.read_text())["provenance"]["environment"]
    assert recorded["OMP_NUM_THREADS"] == "1"
    assert set(recorded) <= set(ENVIRONMENT)
