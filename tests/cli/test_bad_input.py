"""What a user gets wrong, and an output that takes nothing."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import duckdb
import msgspec
import pytest
from running import here
from synthetic_results import Regime, write_results

from harness.cli import refuse
from harness.cli.results import check_address
from harness.session.cell.manifests import label_of
from harness.store.manifest import read_manifest, write_manifest
from harness.tasks.registry import PLUGINS

PROGRAM = Path(sys.executable).with_name("harness")
LONG = "x" * 300
SET = f"--results {Path(__file__).parents[2] / 'results'} --set training.steps=1"
KINDS = (Regime("independent", "independent", 0.0, shares=""), Regime("sgt", "sgt", 0.1, shares="success"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lab")
    write_results(root / "results", "pair", {"ab": ("a", "b")}, KINDS, exchanges=0)
    (root / "results" / "pair" / "suite.json").unlink()  # its settings cannot be read, which would be said each time
    (root / "pair.txt").write_text("mine")
    (root / "ck").mkdir()
    (root / "ck" / "config.json").write_text('{"model_type": "llama"}')
    for place in (root, root / "ck"):
        (place / "t.jsonl").write_text('{"question": "1+1?", "answer": 2}')
    return root


@pytest.fixture(autouse=True)
def _there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def refused(said: tuple[int, str, str], words: str, code: int = 2) -> str:
    """The one line of a refusal, which holds these words."""
    assert (said[0], said[2].count("\n"), words in said[2]) == (code, 1, True), said
    return said[2]


REFUSED = [
    *((f"logs '{cell}'", "no cell") for cell in ("**", "a**b", "*", "[a-z]", "nobody/sgt/1")),
    ("logs ''", "CELL is empty"),
    ("logs ab/sgt/1 'p?ir'", "no cell"),
    ("logs ab/sgt/1 pair", "there is no such log"),  # results made here have none
    *(
        (f"export pair --out {out or repr(out)}", f"--out {out[:40] or '.'}")
        for out in (".", "", "/", "pair.txt/x.html", LONG)
    ),
    ("export pair --format cards --out pair.txt", "--out pair.txt"),
    *(
        (f"{command} --results nothing", "nothing: no results yet (run a suite first")
        for command in ("show pair", "sql 'SELECT 1'", "export")
    ),
    *(
        (f"{command} --results {__file__}", f"--results {__file__}: is a file, not a folder")
        for command in ("show pair", "sql 'SELECT 1'", "export")
    ),
    *(
        (f"{command} nope", "results: no results of a suite 'nope' (there are: pair)")
        for command in ("show", "export", "export --format parquet")
    ),
    *(
        (f"leaderboard --address '{address}'", f"--address {address!r}: not an IP address")
        for address in ("a b", "", "300.1.1.1", "x" * 70, "host/path")
    ),
    *(
        (f"import {source} --results results", "are the results of --results themselves")
        for source in ("results", "results/../results")
    ),
    (f"status quickstart@reference {SET}", "quickstart@reference: these results have no suite"),
    (f"status {SET}", "--set: name the suite too"),
    *(
        (f"tasks {option}", f"{option.partition('=')[0]}: works only with --calibrate")
        for option in ("--levels=foo", "--prompts=200", "--plain")
    ),
    ("doctor --nodes 3", "--nodes: works only with --address"),
    ("doctor pair --models ck", "--models: works only with --address"),
    ("doctor pair --address a:1", "--address: works only without RUN"),
    ("doctor --address a:1 --models nowhere", "--models nowhere: no such folder"),
    ("show pair --models nowhere", "nowhere: no such folder"),
    ("show pair --models ~nobodyhere/models", "~nobodyhere/models: no such folder"),
    ("eval ck --tasks ~nobodyhere/t.jsonl", "~nobodyhere/t.jsonl"),
    ("eval ~nobodyhere/model --tasks micro", "~nobodyhere/model"),
    ("show pair --against hacpo2026 --format csv", "--format csv: not with --against"),
    ("tasks --scorers --calibrate micro/llama", "--scorers: works only without --calibrate"),
    ("submit-check pair.txt --seed 3", "--seed: works only with --re-execute"),
    ("import results --minutes 1", "--minutes: works only with --re-execute"),
    ("submit quickstart --slurm --dry-run --nodes 3", "--nodes: has no effect on the embedded engine"),
    ("submit openrlhf_cpu --slurm --dry-run --shards 1", "--shards: has no effect on the openrlhf engine"),
    ("plan quickstart --inventory 1xL4-24G --address a:1", "--address: works only without --inventory"),
    ("track pair --every 5", "--every: works only with --live"),
    ("new-suite --models ck ck --no-trial --minutes 5", "--minutes: works only with a trial"),
    ("new-suite --models ck ck --out nowhere/a.yaml", "--out nowhere/a.yaml: there is no folder nowhere"),
    ("bandit nope", "no such file of bandits (shipped: bandit)"),
    ("bandit quickstart", "a suite, for `harness run`"),
    *(
        (f"plan smoke --set '{setting}={value}'", f"harness: --set {setting}")
        for setting, value in (
            ("regimes[1]", "{regime: sgt, x: 1}"),
            ("groups[0].policies[0].model", "."),
            ("engine_options", "{x: 1}"),
        )
    ),
    ("run quickstart --shard ''", "--shard '': expected i/n"),
    ("plan quickstart --inventory ''", "inventory ``: expected for example"),
    ("new-engine A", "'A' cannot name an engine"),
    ("eval ck --tasks nope", "'nope'"),
    ("eval ck --tasks no.jsonl", "no.jsonl"),
    ("eval ck --tasks micro,micro", "--tasks: the task 'micro' occurs twice"),
    ("eval ck --tasks t.jsonl,ck/t.jsonl:exact", "--tasks: the task 't' occurs twice"),
    ("eval ck --tasks lm_eval:x,lm_eval:x", "--tasks: the task 'lm_eval:x' occurs twice"),
    (f"eval ck --seed {2**63}", "'--seed'"),
    ("eval ck --backend foo", "--backend foo: one of embedded, hf, vllm"),
    ("eval ck", "harness: ck: there are no weights (model.safetensors)\n"),
]


@pytest.mark.parametrize(("line", "words"), REFUSED)
def test_it_is_refused_in_one_line_and_nothing_is_written(folder: Path, line: str, words: str) -> None:
    before = sorted(folder.iterdir())
    refused(here(*shlex.split(line)), words)
    assert (sorted(folder.iterdir()), (folder / "pair.txt").read_text()) == (before, "mine")


def test_what_does_not_fit_names_no_suite_that_is_a_file() -> None:
    """`harness plan` takes shipped suites' names alone."""
    said = here("run", "quickstart", "--set", "name=mine", "--set", "engine_options.threads=1000")
    refused(said, "`harness plan SUITE --inventory 8xH100-80G` shows", 1)


def test_an_address_that_is_one() -> None:
    for ours in ("localhost", "127.0.0.1", "0.0.0.0"):
        check_address(ours)


def test_ctrl_c_while_the_program_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.cli._call", pressed)
    said = None
    with suppress(KeyboardInterrupt):
        said = here("status")
    assert said == (130, "", "")


def test_ctrl_c_during_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    store = duckdb.connect(config={"threads": 1})

    def refresh(_: Path) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        store.execute("SELECT count(*) FROM range(100000000000)")

    monkeypatch.setattr("harness.cli.tables.refresh_store", refresh)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        assert here("show", "pair") == (130, "", "")
    finally:
        signal.signal(signal.SIGALRM, before)


EMPTY = dict.fromkeys(("run", "plan"), "no such suite")


@pytest.mark.parametrize(
    "command", ["status", "show", "logs ab", "export", "bundle", "track", "doctor", "rescore", "run", "plan"]
)
@pytest.mark.parametrize("suite", [LONG, f"{LONG}.yaml", f"a/{LONG}", ""])
def test_a_name_longer_than_names_are_or_none(command: str, suite: str) -> None:
    refused(here(*command.split(), suite), "x" * 30 if suite else EMPTY.get(command, "not the name of a suite"))


def started(
    folder: Path, *words: str, out: int = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *words], cwd=folder, stdout=out, stderr=subprocess.PIPE, text=True, timeout=100,
        env=os.environ | environment,
    )  # fmt: skip


@pytest.mark.slow_but("words0")
@pytest.mark.parametrize("words", [["--version"], ["sql", "SELECT * FROM samples"]])
def test_a_full_disk_and_a_closed_pipe_behind_stdout(folder: Path, words: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = started(folder, *words, out=full.fileno())
    assert (done.returncode, done.stderr) == (1, "harness: standard output: No space left on device\n")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = started(folder, *words, out=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_the_exit_code_stays_where_stderr_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", open("/dev/full", "w", buffering=1))  # noqa: SIM115, its close fails
    with pytest.raises(SystemExit, match="130"):
        refuse("interrupted", 130)


def test_a_terminal_without_the_characters(folder: Path) -> None:
    done = started(folder, "show", "pair", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr[:12]) == (0, "harness show")
    assert r"\u2013" in done.stdout


def test_a_run_with_settings_that_is_not_here_is_no_reference_results(tmp_path: Path) -> None:
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "elicit").symlink_to(Path(__file__).parents[2] / "results" / "reference" / "elicit")
    said = here("show", "elicit", "--set", "training.steps=1", "--results", tmp_path)
    refused(said, f"{tmp_path}: elicit was not run here with --set training.steps=1")


def test_show_as_json() -> None:
    shown = here("show", "pair", "--json")
    assert shown == here("show", "pair", "--format", "json") == here("show", "pair", "--json", "--format", "json")
    assert json.loads(shown[1])["rows"]
    for words in (["--json"], ["--format", "json"], ["--format=json"]):
        said = here("show", "nope", *words)
        assert json.loads(said[1]) == {"error": refused(said, "nope")[len("harness: ") : -1], "exit_code": 2}
    refused(here("show", "pair", "--json", "--format", "csv"), "--json and --format csv")


def test_numbers_that_are_none() -> None:
    words = (
        "SELECT 'nan'::DOUBLE AS a, '-inf'::DOUBLE AS b, NULL AS c, INTERVAL '3 days' AS d, TIMESTAMP '2026-01-02' AS e"
    )
    shown = here("sql", words)[1].split("\n")[1].split()
    assert shown == ["nan", "-inf", "NULL", "3", "days", "2026-01-02T00:00:00"]
    rows = json.loads(here("sql", words, "--json")[1])["rows"]
    assert rows == [[None, None, None, "3 days", "2026-01-02T00:00:00"]]


def test_a_pipe_or_device_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    refused(here("export", "pair", "--out", pipe), f"{pipe}: cannot be written: not a regular file", code=1)
    assert pipe.is_fifo()


def test_an_export_says_what_it_lacks(tmp_path: Path) -> None:
    results = tmp_path / "results"
    write_results(results, "pair", {"ab": ("a", "b")}, KINDS, exchanges=0)
    words = ("export", "pair", "--results", results, "--format", "parquet", "--out", tmp_path / "out")
    assert "missing" not in here(*words)[2]
    failed, damaged = (m.parent for m in sorted(results.glob("pair/[0-9a-f]*/manifest.json"))[:2])
    write_manifest(failed, msgspec.structs.replace(read_manifest(failed), state="failed", reason="lost\nits power"))
    (damaged / "manifest.json").write_bytes(b"{")
    line, problem = here(*words)[2].splitlines()[1:3]  # behind that the suite, made by hand, cannot be prepared
    assert line.startswith("pair: missing from these numbers: 2 cells: ")
    assert f"{label_of(read_manifest(failed))} failed (lost its power)" in line
    assert f"{damaged.name}/manifest.json: not a manifest" in problem


def test_printed_commands_name_the_results(tmp_path: Path) -> None:
    results = tmp_path / "results"
    for suite in ("pair", "other"):
        write_results(results, suite, {"ab": ("a", "b")}, KINDS, exchanges=0)
    failed = next(m.parent for m in sorted(results.glob("pair/[0-9a-f]*/manifest.json")))
    write_manifest(failed, msgspec.structs.replace(read_manifest(failed), state="failed", reason="lost"))
    commands = {
        "show pair": f"harness show 'pair' --full --results {results}: ",
        "show": f"harness show SUITE --results {results}: ",
        "doctor pair": f"harness logs {failed.name} --results {results}",
        "logs ab/sgt/1": f"harness logs ab/sgt/1 SUITE --results {results}",
    }
    for words, command in commands.items():
        assert command in " ".join("".join(here(*words.split(), "--results", results)[1:]).split())


def test_printed_commands_are_quoted(tmp_path: Path) -> None:
    code, out, _ = here("new-task", "near-sums", "--into", tmp_path / "my tasks")
    assert (code, f"pip install -e '{tmp_path}/my tasks/near-sums[test]'" in out) == (0, True)


def test_it_is_refused_before_libraries_are_imported(folder: Path) -> None:
    code = """
import atexit, sys
from harness.cli import main
sys.argv = ["harness", "eval", "ck"]
atexit.register(lambda: print([m for m in ("torch", "transformers", "lm_eval") if m in sys.modules]))
main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (2, "[]\n"), done


FAULTY = b'''# coding: latin-1
"""Plugins with faults of their own: \xe9."""
from dataclasses import dataclass
from harness.engines.backend import Backend
from harness.experience.records import TextRollout
from harness.tasks.source import Generated, Prompt
from harness.tasks.task import Task
from harness.verification.scorer import Scorer
from regimes.independent import Independent

@dataclass(frozen=True)
class Options:
    below: "Nowhere" = 0.5

class Typed(Independent):
    Options = Options

class Torn(Independent):
    shares = {TextRollout}

class Task0(Generated):
    def invent(self, random):
        number = str(random.random())
        return Prompt(id=number, text=number, gold=number)
    def evaluation(self):
        if self.name == "t-evaluation":
            raise KeyError("nothing")
        if self.name != "t-none":
            return Task(self.name, "Title", self.held_out, ("raw",), scorer="remarks" if self.name == "t-remark" else "math")
    def draw(self, *given, **named):
        if self.name == "t-draw":
            raise KeyError("nothing")
        return super().draw(*given, **named)

class Pool(Task0):
    generated = False
    def pool(self, *given):
        raise KeyError("nothing")

class Remarks(Scorer):
    def remark(self):
        raise KeyError("nothing")
    def score(self, gold, text):
        raise AssertionError

class Parted(Backend):
    packages = ("nowhere.part",)
'''
OWN_FAULTS = {
    "regimes typed": "regime 'typed' cannot be built: NameError: name 'Nowhere' is not defined",
    "regimes torn": "must declare `shares` as a frozenset",
    "t-evaluation": "evaluation.tasks[0]: task t-evaluation: KeyError: 'nothing'",
    "t-none": "evaluation.tasks[0]: task t-none: TypeError: `evaluation` returned None, not a Task",
    "t-draw": "training.task: task t-draw: KeyError: 'nothing'",
    "t-pool": "task t-pool: KeyError: 'nothing'",
    "t-remark": "scorer 'remarks': `remark`: KeyError: 'nothing'",
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    (site / "faulty.py").write_bytes(FAULTY)
    (about := site / "faulty-1.0.dist-info").mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    tasks = "".join(f"t-{name} = faulty:Task0\n" for name in ("evaluation", "none", "draw", "remark"))
    (about / "entry_points.txt").write_text(
        f"[harness.regimes]\ntyped = faulty:Typed\ntorn = faulty:Torn\n[harness.tasks]\n{tasks}t-pool = faulty:Pool\n"
        "[harness.scorers]\nremarks = faulty:Remarks\n[harness.engines]\nparted = faulty:Parted\n"
    )
    return site


@pytest.mark.parametrize("asked", OWN_FAULTS)
def test_what_a_plugins_own_code_raises_is_one_line(faulty: Path, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(faulty)
    plan = f"plan smoke --set training.task={asked} --set evaluation.tasks=[{asked}]"
    refused(here(*(asked if " " in asked else plan).split()), OWN_FAULTS[asked])


def test_lists_go_on_beyond_a_plugin_with_a_fault(faulty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(faulty)
    for words, fault in (
        ("tasks --scorers", "`remark`: KeyError: 'nothing'"),
        ("engines", "nowhere.part: pip install"),
    ):
        code, out, _ = here(*words.split(), "--json")
        assert (code, fault in out) == (0, True), out
    assert PLUGINS.results_version("t-none")[1].startswith("syntax ")  # of a source that is not UTF-8
