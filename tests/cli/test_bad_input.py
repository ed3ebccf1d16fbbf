"""What a user gets wrong, and an output that takes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from synthetic_results import Regime, write_results

from harness.cli import main
from harness.cli.results import check_address
from harness.session.cell.manifests import label_of
from harness.store.manifest import read_manifest, write_manifest

PROGRAM = Path(sys.executable).with_name("harness")
LONG = "x" * 300
Said = tuple[int, str, str]
Harness = Callable[..., Said]
KINDS = (Regime("independent", "independent", 0.0, shares=""), Regime("sgt", "sgt", 0.1, shares="success"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lab")
    write_results(root / "results", "pair", {"ab": ("a", "b")}, KINDS, exchanges=0)
    (root / "results" / "pair" / "suite.json").unlink()  # its settings cannot be read, which would be said each time
    (root / "ck").mkdir()
    (root / "ck" / "config.json").write_text('{"model_type": "llama"}')
    return root


@pytest.fixture
def harness(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Harness:
    """The command line in this process: exit code, stdout, stderr."""

    def call(*words: object) -> Said:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["harness", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return call


def refused(said: Said, words: str, code: int = 2) -> str:
    """The one line of a refusal, which holds these words."""
    assert (said[0], said[2].count("\n"), words in said[2]) == (code, 1, True), said
    return said[2]


@pytest.mark.parametrize("cell", ["**", "a**b", "*", "", "[a-z]", "nobody/sgt/1"])
def test_a_cell_is_no_pattern(harness: Harness, cell: str) -> None:
    refused(harness("logs", cell), "no cell" if cell else "CELL is empty")
    refused(harness("logs", "ab/sgt/1", "p?ir"), "no cell")
    refused(harness("logs", "ab/sgt/1", "pair"), "there is no such log")  # results made here have none


EMPTY = dict.fromkeys(("run", "plan"), "no such suite")


@pytest.mark.parametrize(
    "command", ["status", "show", "logs ab", "export", "bundle", "track", "doctor", "rescore", "run", "plan"]
)
@pytest.mark.parametrize("suite", [LONG, f"{LONG}.yaml", f"a/{LONG}", ""])
def test_a_name_longer_than_names_are_or_none(harness: Harness, command: str, suite: str) -> None:
    refused(harness(*command.split(), suite), "x" * 30 if suite else EMPTY.get(command, "not the name of a suite"))


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


def test_a_terminal_without_the_characters(folder: Path) -> None:
    done = started(folder, "show", "pair", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr[:12]) == (0, "harness show")
    assert r"\u2013" in done.stdout


OUTS = [
    ("html", "."),
    ("html", ""),
    ("html", "/"),
    ("html", "pair.txt/x.html"),
    ("lm-eval", "pair.txt"),
    ("html", LONG),
]


@pytest.mark.parametrize(("form", "out"), OUTS)
def test_a_place_that_cannot_be_written(harness: Harness, folder: Path, form: str, out: str) -> None:
    (folder / "pair.txt").write_text("mine")
    before = sorted(folder.iterdir())
    refused(harness("export", "pair", "--format", form, "--out", out), f"--out {out[:40] or '.'}")
    assert (sorted(folder.iterdir()), (folder / "pair.txt").read_text()) == (before, "mine")


COMMANDS = [["show", "pair"], ["sql", "SELECT 1"], ["export"]]


@pytest.mark.parametrize("command", COMMANDS)
def test_results_that_are_not_there(harness: Harness, folder: Path, command: list[str]) -> None:
    refused(harness(*command, "--results", "nothing"), "nothing: no results yet (run a suite first")
    refused(harness(*command, "--results", __file__), f"--results {__file__}: is a file, not a folder")
    assert not (folder / "nothing").exists()


@pytest.mark.parametrize("command", [["show"], ["export"], ["export", "--format", "parquet"]])
def test_a_suite_that_is_not_there(harness: Harness, command: list[str]) -> None:
    refused(harness(*command, "nope"), "results: no results of a suite 'nope' (there are: pair)")


@pytest.mark.parametrize("address", ["a b", "", "300.1.1.1", "x" * 70, "host/path"])
def test_an_address_that_is_none(harness: Harness, address: str) -> None:
    refused(harness("leaderboard", "--address", address), f"--address {address!r}: not an IP address")
    for ours in ("localhost", "127.0.0.1", "0.0.0.0"):
        check_address(ours)


def test_show_as_json(harness: Harness) -> None:
    shown = harness("show", "pair", "--json")
    assert shown == harness("show", "pair", "--format", "json") == harness("show", "pair", "--json", "--format", "json")
    assert json.loads(shown[1])["rows"]
    for words in (["--json"], ["--format", "json"], ["--format=json"]):
        said = harness("show", "nope", *words)
        assert json.loads(said[1]) == {"error": refused(said, "nope")[len("harness: ") : -1], "exit_code": 2}
    refused(harness("show", "pair", "--json", "--format", "csv"), "--json and --format csv")


def test_numbers_that_are_none(harness: Harness) -> None:
    words = (
        "SELECT 'nan'::DOUBLE AS a, '-inf'::DOUBLE AS b, NULL AS c, INTERVAL '3 days' AS d, TIMESTAMP '2026-01-02' AS e"
    )
    shown = harness("sql", words)[1].split("\n")[1].split()
    assert shown == ["nan", "-inf", "NULL", "3", "days", "2026-01-02T00:00:00"]
    rows = json.loads(harness("sql", words, "--json")[1])["rows"]
    assert rows == [[None, None, None, "3 days", "2026-01-02T00:00:00"]]


def test_an_export_says_what_it_lacks(harness: Harness, tmp_path: Path) -> None:
    results = tmp_path / "results"
    write_results(results, "pair", {"ab": ("a", "b")}, KINDS, exchanges=0)
    words = ("export", "pair", "--results", results, "--format", "parquet", "--out", tmp_path / "out")
    assert "missing" not in harness(*words)[2]
    failed, damaged = (m.parent for m in sorted(results.glob("pair/[0-9a-f]*/manifest.json"))[:2])
    write_manifest(failed, msgspec.structs.replace(read_manifest(failed), state="failed", reason="lost\nits power"))
    (damaged / "manifest.json").write_bytes(b"{")
    line, problem = harness(*words)[2].splitlines()[1:3]  # behind that the suite, made by hand, cannot be prepared
    assert line.startswith("pair: missing from these numbers: 2 cells: ")
    assert f"{label_of(read_manifest(failed))} failed (lost its power)" in line
    assert f"{damaged.name}/manifest.json: not a manifest" in problem


def test_ones_own_results_are_not_another_labs(harness: Harness, folder: Path) -> None:
    for source in ("results", folder / "results", "results/../results"):
        refused(harness("import", source, "--results", "results"), "are the results of --results themselves")


def test_options_that_would_be_ignored(harness: Harness) -> None:
    words = ["--results", Path(__file__).parents[2] / "results", "--set", "training.steps=1"]
    refused(harness("status", "quickstart@reference", *words), "quickstart@reference: these results have no suite")
    refused(harness("status", *words), "--set: name the suite too")
    for option in ("--levels=foo", "--prompts=200", "--plain"):
        refused(harness("tasks", option), f"{option.partition('=')[0]}: works only with --calibrate")


def test_a_laboratory_names_its_own_file(harness: Harness) -> None:
    assert refused(harness("bandit", "nope"), "no such file of bandits (shipped: bandit)").count("quickstart") == 0
    refused(harness("bandit", "quickstart"), "a suite, for `harness run`")


@pytest.mark.parametrize(
    ("file", "words"), [("results", "is a directory"), ("/dev/zero", "not a regular file"), ("no", "no such file")]
)
def test_what_is_no_file_of_a_model(harness: Harness, file: str, words: str) -> None:
    refused(harness("convert", file, "folder"), f"{file}: {words}")


def test_printed_commands_are_quoted(harness: Harness, tmp_path: Path) -> None:
    code, out, _ = harness("new-task", "near-sums", "--into", tmp_path / "my tasks")
    assert (code, f"pip install -e '{tmp_path}/my tasks/near-sums'" in out) == (0, True)
    refused(harness("new-engine", "A"), "'A' cannot name an engine")


REFUSED = [
    (["--tasks", "nope"], "'nope'"),
    (["--tasks", "no.jsonl"], "no.jsonl"),
    (["--backend", "foo"], "--backend foo: one of embedded, hf, vllm"),
    ([], "harness: ck: there are no weights (model.safetensors)\n"),
]


@pytest.mark.parametrize(("words", "line"), REFUSED)
def test_an_evaluation_is_refused(harness: Harness, words: list[str], line: str) -> None:
    refused(harness("eval", "ck", *words), line)


def test_it_is_refused_before_libraries_are_imported(folder: Path) -> None:
    code = "import sys; sys.argv = ['harness', 'eval', 'ck']; import atexit; from harness.cli import main\n"
    code += (
        "atexit.register(lambda: print([m for m in ('torch', 'transformers', 'lm_eval') if m in sys.modules]))\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (2, "[]\n"), done
