"""Plugins that pip really installs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.engines.catalogue import PLUGINS as ENGINES
from harness.errors import UsageError
from harness.learning.registry import PLUGINS as REGIMES
from harness.scaffold import write_package
from harness.tasks.registry import PLUGINS as TASKS

pytestmark = pytest.mark.slow  # pip installs
HERE = Path(__file__).parent
SUITE = """
groups:
  - name: pair
    policies:
      - {name: a, model: micro/llama, stage0: {preset: trap, strong: add}}
      - {name: b, model: micro/qwen, stage0: {preset: trap, strong: mul}}
regimes: [independent, NAME]
seeds: [1]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the witnesses, a scaffolded regime, engine and task, installed by pip."""
    work = tmp_path_factory.mktemp("plugins")
    shutil.copytree(HERE / "witnesses", work / "witnesses")
    written = (
        write_package(REGIMES, "shortest-success", work),
        write_package(REGIMES, "likely-answers", work, "scores"),
        write_package(REGIMES, "wrong-drafts", work, "hints"),
        write_package(ENGINES, "plain-torch", work),
        write_package(TASKS, "near-sums", work),
    )
    target = work / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", target, work / "witnesses", *written], check=True, timeout=120)
    return target


def harness(
    site: Path, *arguments: object, trace: Path | None = None, timeout: float = 100
) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH", ""))))
    environment = os.environ | {"PYTHONPATH": paths, "WITNESS_TRACE": str(trace or os.devnull)}
    command = [sys.executable, "-m", "harness", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)


def ok(site: Path, *arguments: object, timeout: float = 300) -> str:
    done = harness(site, *arguments, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout


def document(site: Path, *arguments: object) -> dict:
    return json.loads(ok(site, *arguments, "--json"))


def refused(site: Path, words: str, *arguments: object) -> None:
    done = harness(site, *arguments)
    assert (done.returncode, len(done.stderr.strip().splitlines()), words in done.stderr) == (2, 1, True), done.stderr


def test_installed_plugins_are_listed_and_broken_ones_with_their_error(site):
    regimes = {r["name"]: r for r in document(site, "regimes")["regimes"]}
    witness, scaffolded = regimes["witness"], regimes["shortest-success"]
    assert (witness["origin"], witness["error"]) == ("harness-witnesses 1.2.3 (witness:Witness)", "")
    assert (scaffolded["shares"], scaffolded["options"]) == (["Success"], {"weight": 0.1, "below": 0.0})
    for name, words in {
        "broken": "No module named 'a_module_that_nobody_has'",
        "quitter": "SystemExit: goodbye",
        "misnamed": "has no attribute 'Nothing'",
        "no-regime": "not a subclass",
        "greedy": "does not share Rollout",
        "careless": "forgot something",
        "boundless": "Endless.values: needs Meta(max_length=...)",
        "impostor": "the tag 'success' is taken",
    }.items():
        assert words in regimes[name]["error"], name


def test_found_without_import_and_imported_on_use(site, tmp_path):
    trace = tmp_path / "trace"
    suite = tmp_path / "plain.yaml"
    for regime, imports in (("sgt", ""), ("witness", "imported\n")):
        suite.write_text(SUITE.replace("NAME", regime))
        done = harness(site, "plan", str(suite), "--results", str(tmp_path), trace=trace)
        assert done.returncode == 0, done.stderr
        assert (trace.read_text() if trace.exists() else "") == imports


@pytest.mark.slow_but("greedy")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("broken", "does not load: ModuleNotFoundError"),
        ("greedy", "needs peers' log-probabilities (Need.ALIGNED) but does not share Rollout"),
        ("{regime: shortest-success, below: 2.0}", "below: must lie in [0, 1]"),
        ("shortest-sucess", "did you mean 'shortest-success'?"),
    ],
)
def test_refused_before_anything_starts_in_one_line(site, tmp_path, name, words):
    suite = tmp_path / "bad.yaml"
    suite.write_text(SUITE.replace("NAME", name))
    refused(site, words, "run", str(suite), "--results", str(tmp_path / "results"))
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("registry", "name", "flavour", "passed"),
    [
        (REGIMES, "shortest-success", "", 5), (REGIMES, "likely-answers", "scores", 5), (REGIMES, "wrong-drafts", "hints", 5),
        (ENGINES, "plain-torch", "", 14), (TASKS, "near-sums", "", 14),
    ],
)  # fmt: skip
def test_a_scaffold_passes_its_own_tests(site, tmp_path, registry, name, flavour, passed):
    """Beyond rollouts: one regime of each kind passes from outside the package."""
    written = write_package(registry, name, tmp_path, flavour)
    for own in written.glob(f"{name.replace('-', '_')}*"):  # the installed module is tested
        shutil.rmtree(own) if own.is_dir() else own.unlink()
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(written)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, cwd=written, env=os.environ | {"PYTHONPATH": str(site)}
    )
    assert done.returncode == 0, done.stdout
    assert f"{passed} passed" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_suite_runs_on_an_engine_that_the_harness_does_not_know(site, tmp_path):
    suite = write_package(ENGINES, "plain-torch", tmp_path) / "suite.yaml"
    short = ["--set", "training.steps=2", "--set", "evaluation.limit=8", "--results", str(tmp_path / "results")]
    ok(site, "run", suite, *short, timeout=500)
    for manifest in (tmp_path / "results").glob("*/*/manifest.json"):
        versions = json.loads(manifest.read_text())["identity"]["versions"]
        assert sorted(name for name in versions if name.startswith("engine")) == ["engine plain-torch", "engines"]
        assert versions["engine plain-torch"].startswith("syntax ")
    for wrong, words in {
        "engine_options.rows=0": "rows",
        "engine_options.width=3": "width",
        "engine=plain-touch": "plain-torch",
    }.items():
        refused(site, words, "plan", str(suite), "--set", wrong)


@pytest.mark.slow
def test_tasks_are_listed_and_broken_ones_with_their_error(site):
    tasks = {t["name"]: t for t in document(site, "tasks")["tasks"]}
    assert tasks["near-sums"]["origin"] == "harness-task-near-sums 0.1.0 (near_sums:NearSums)"
    assert (tasks["near-sums"]["perfect"], tasks["near-sums"]["empty"]) == (1.0, 0.0)
    for name, words in {
        "broken-task": "No module named 'a_module_that_nobody_has'",
        "no-task": "not a subclass of harness.tasks.source.TaskSource",
        "unmade-task": "cannot be made: OSError: no such place",
        "wordless-task": "unknown scorer 'nobodys'",
    }.items():
        assert words in tasks[name]["error"], name
    assert ok(site, "tasks").count("BROKEN") == 4
    scorers = {s["name"]: s["error"] for s in document(site, "tasks", "--scorers")["scorers"]}
    assert (scorers["near-sums"], "does not load" in scorers["broken-scorer"]) == ("", True)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_suite_runs_on_a_task_and_a_scorer_that_the_harness_does_not_know(site, tmp_path):
    suite = write_package(TASKS, "near-sums", tmp_path) / "suite.yaml"
    short = ["--set", "training.steps=2", "--set", "evaluation.limit=24", "--results", str(tmp_path / "results")]
    ok(site, "run", suite, *short)
    for manifest in (tmp_path / "results").glob("*/*/manifest.json"):
        versions = json.loads(manifest.read_text())["identity"]["versions"]
        assert all(versions[f"{what} near-sums"].startswith("syntax ") for what in ("task", "scorer"))
    asked = "SELECT CAST(s.gold AS INT) - TRY_CAST(s.extracted AS INT) AS off, s.verdict FROM samples s"
    here = "--results", str(tmp_path / "results")
    rows = document(site, "sql", asked, *here)["rows"]
    assert {(off in (-1, 0, 1), verdict) for off, verdict in rows} == {(True, "right"), (False, "wrong")}
    assert document(site, "rescore", "near-sums", *here)["changes"] == []
    strictly = document(site, "rescore", "near-sums", "--scorer", "math", *here)
    assert len(strictly["changes"]) == sum(off in (-1, 1) for off, _ in rows)
    for wrong, words in {
        "training.task=near-sumz": "near-sums",
        "training.task=near-sums.x": "has no part 'x'",
        "evaluation.tasks=[broken-task]": "does not load",
        "evaluation.tasks=[wordless-task]": "unknown scorer 'nobodys'",
    }.items():
        refused(site, words, "plan", str(suite), "--set", wrong)


@pytest.mark.slow
def test_a_record_type_that_the_harness_does_not_know_arrives(site, tmp_path):
    check = "from harness.learning.conformance import check_regime; check_regime('hints', {})"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=100, env=os.environ | {"PYTHONPATH": str(site)})
    suite = tmp_path / "hints.yaml"
    suite.write_text(SUITE.replace("NAME", "hints") + "training: {steps: 2, prompts: 8}\n")
    short = ["--set", "evaluation.limit=8", "--set", "evaluation.curve_every=0", "--results", str(tmp_path / "results")]
    ok(site, "run", suite, *short)
    query = "SELECT kind, accepted, count(*) FROM exchanges GROUP BY ALL"
    ((kind, accepted, count),) = document(site, "sql", query, "--results", str(tmp_path / "results"))["rows"]
    assert (kind, accepted, count > 8) == ("witness.hint", True, True)


def test_the_scaffold_is_short_and_clean(tmp_path):
    for name, flavour in (("best_of_peers", ""), ("likely", "scores"), ("drafts", "hints")):
        written = write_package(REGIMES, name.replace("_", "-"), tmp_path, flavour)
        assert len((written / f"{name}.py").read_text().splitlines()) < 62
    check = [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length", "120", tmp_path]
    subprocess.run(check, check=True, timeout=60)


def test_the_command_writes_or_refuses_in_one_line(site, tmp_path):
    ok(site, "new-regime", "scored", "--kind", "scores", "--into", tmp_path)
    assert "Need.SCORES" in (tmp_path / "scored" / "scored.py").read_text()
    refused(site, "installed already", "new-regime", "shortest-success", "--into", tmp_path)
    refused(site, "one of answers, hints, scores", "new-regime", "more", "--kind", "dreams", "--into", tmp_path)


def test_existing_folders_and_unwritable_places_are_refused(tmp_path):
    folder = write_package(REGIMES, "mine", tmp_path)
    (folder / "mine.py").write_text("precious")
    with pytest.raises(UsageError, match="exists already"):
        write_package(REGIMES, "mine", tmp_path)
    assert (folder / "mine.py").read_text() == "precious"
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="Not a directory"):
        write_package(REGIMES, "other", tmp_path / "file")
