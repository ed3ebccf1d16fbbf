"""What a user gets wrong, and a terminal that cannot take what is printed: one clear line, and the exit code that says whose fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic_results import Regime, write_results

from harness.cli import main

PROGRAM = Path(sys.executable).with_name("harness")
LONG = "x" * 300
Said = tuple[int, str, str]
Harness = Callable[..., Said]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with results/pair, a finished suite."""
    root = tmp_path_factory.mktemp("lab")
    kinds = (Regime("independent", "independent", 0.0, shares=""), Regime("sgt", "sgt", 0.1, shares="success"))
    write_results(root / "results", "pair", {"ab": ("a", "b")}, kinds, exchanges=0)
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


@pytest.mark.parametrize("suite", ["*", "", "p?ir", ".."])
def test_nor_is_its_suite(harness: Harness, suite: str) -> None:
    refused(harness("logs", "ab/sgt/1", suite), "no cell" if suite.strip(".") else "not the name of a suite")
    refused(harness("logs", "ab/sgt/1", "pair"), "there is no such log")  # results made here have none


@pytest.mark.parametrize("command", ["status", "show", "logs ab", "export", "bundle", "track", "doctor", "rescore", "run", "plan"])
@pytest.mark.parametrize("suite", [LONG, f"{LONG}.yaml", f"a/{LONG}"])
def test_a_name_longer_than_names_are(harness: Harness, command: str, suite: str) -> None:
    refused(harness(*command.split(), suite), "x" * 30)


def test_an_empty_name_is_not_every_suite(harness: Harness) -> None:
    for command in ("status", "show", "export", "rescore"):
        refused(harness(command, ""), "not the name of a suite")


def started(folder: Path, *words: str, out: int = subprocess.PIPE, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *words], cwd=folder, stdout=out, stderr=subprocess.PIPE, text=True, timeout=100,
        env=os.environ | environment,
    )  # fmt: skip


@pytest.mark.parametrize("words", [["--version"], ["show", "pair"], ["sql", "SELECT * FROM samples"], ["regimes", "--json"]])
def test_a_full_disk_behind_stdout(folder: Path, words: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = started(folder, *words, out=full.fileno())
    assert (done.returncode, done.stderr) == (1, "harness: standard output: No space left on device\n")


@pytest.mark.parametrize("words", [["--version"], ["show", "pair"], ["sql", "SELECT * FROM samples"]])
def test_a_closed_pipe(folder: Path, words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = started(folder, *words, out=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_terminal_without_the_characters(folder: Path) -> None:
    done = started(folder, "show", "pair", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\xb12" in done.stdout
