"""Every command that README and docs print is one."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import typer
from running import ok

from harness.cli.app import app
from harness.suite.load import shipped_suites

ROOT = Path(__file__).parents[1]
PAGES = [
    *(
        ROOT / name
        for name in (
            "README.md",
            "CONTRIBUTING.md",
            "SECURITY.md",
            "results/README.md",
            "results/hardware/README.md",
            "tools/results_page.md",
        )
    ),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*.md")),
]
PROGRAMS = ("harness", "make", "python", "pip")
SHORT = (
    "harness --version", "harness regimes", "harness regimes hacpo", "harness tasks", "harness engines",
    "harness new-regime best-of-peers", "harness new-task near-sums", "harness new-engine plain-torch",
    "harness submit quickstart --slurm --dry-run",
)  # fmt: skip
"""Run as printed, in an empty folder. docs/submit.md runs as a whole in tests/submission/test_page.py."""


def blocks(page: str) -> list[str]:
    """Commands that stand on lines of their own, without remarks."""
    lines = re.findall(rf"(?m)^ {{4}}(?:\S*/)?((?:{'|'.join(PROGRAMS)}) \S.*)$", re.sub(r"\\\n\s*", "", page))
    return [re.split(r"\s+#\s|\s{2,}", line)[0].rstrip() for line in lines]


def inline(page: str) -> list[str]:
    return re.findall(r"`((?:harness|make) [^`\n]+)`", page)


def one_by_one(command: str) -> list[str]:
    """`make a | b` is two."""
    program, _, rest = command.partition(" ")
    several = re.fullmatch(r"[a-z-]+( \| [a-z-]+)+", rest)
    return [f"{program} {one}" for one in rest.split(" | ")] if several else [command]


COMMANDS = sorted({(c, p) for p in PAGES for b in blocks(p.read_text("utf-8")) for c in one_by_one(b)})
PHRASES = sorted({(c, p) for p in PAGES for i in inline(p.read_text("utf-8")) for c in one_by_one(i)})


@cache
def options_of(script: str) -> str:
    done = subprocess.run(
        [sys.executable, script, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=100, check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return done.stdout


def parsed(words: list[str]) -> None:
    program = typer.main.get_command(app)
    if words[0] in {option for p in program.params for option in p.opts}:
        return
    name, *rest = words
    try:
        program.commands[name].make_context(name, list(rest))  # type: ignore[attr-defined]
    except Exception as error:  # whichever click typer has
        raise AssertionError(f"harness {shlex.join(words)}: {error!r}") from error
    if name in ("run", "plan", "submit", "rehearse") and re.fullmatch(r"[a-z_0-9]+", rest[0]):
        assert rest[0] in shipped_suites(), f"no suite {rest[0]} is shipped"


def right(command: str) -> None:
    program, *words = shlex.split(command)
    if program == "harness":
        parsed(words)
    elif program == "make":
        subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, timeout=60, check=True)
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = [e for word in words for group in re.findall(r"\[([a-z,]+)\]", word) for e in group.split(",")]
        assert set(named) <= set(extras)
    elif words[0] != "-m":
        assert (ROOT / words[0]).is_file()
        missing = [w for w in words[1:] if w.startswith("--") and w.split("=")[0] not in options_of(words[0])]
        assert not missing


@pytest.mark.parametrize(("command", "page"), COMMANDS, ids=[f"{p.name}: {c}" for c, p in COMMANDS])
def test_a_printed_command_is_taken(command: str, page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HARNESS_DATA", "HARNESS_MODELS"):  # what options set for their process
        monkeypatch.setenv(name, os.environ.get(name, ""))
    right(command)


@pytest.mark.parametrize(("command", "page"), PHRASES, ids=[f"{p.name}: {c}" for c, p in PHRASES])
def test_a_command_inside_a_sentence_exists(command: str, page: Path) -> None:
    program, name, *words = command.split()
    if program == "make":
        right(f"make {name}")
    elif not name.startswith("-"):
        known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
        assert name in known, f"no command {name}"
        options = {o for p in known[name].params for o in (*p.opts, *p.secondary_opts)}
        assert {w.split("=")[0].rstrip(".,;)") for w in words if w.startswith("--")} <= options


@pytest.mark.parametrize("command", SHORT)
@pytest.mark.timeout(200)
def test_a_short_command_runs_as_printed(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command in {c for c, _ in (*COMMANDS, *PHRASES)}, "printed nowhere"
    monkeypatch.chdir(tmp_path)
    ok(*shlex.split(command)[1:])


@pytest.mark.parametrize("name", sorted(shipped_suites()))
def test_commands_in_the_heads_of_suites_are_taken(name: str) -> None:
    for command in re.findall(
        r"(?m)^#   ((?:harness|make) .*?)(?:\s+#.*|\s{2,}.*)?$", shipped_suites()[name].read_text("utf-8")
    ):
        for one in command.split(" && "):
            right(one)


def test_commands_were_found_and_a_wrong_one_is_refused() -> None:
    assert len(COMMANDS) > 80
    assert len(PHRASES) > 60
    for wrong in ("harness frobnicate", "harness show --frobnicate", "harness run nosuchsuite",
                  "make frobnicate", "python tools/results_versions.py --frobnicate",
                  "pip install 'experience-sharing-harness[frobnicate]'"):  # fmt: skip
        with pytest.raises((AssertionError, subprocess.CalledProcessError)):
            right(wrong)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_names_its_purpose_in_its_first_line(page: Path) -> None:
    """Below the title a whole sentence, before any heading, table, list or command."""
    title, first, *_ = page.read_text("utf-8").split("\n\n")
    assert re.fullmatch(r"# [^\n]+", title)
    assert re.match(r"[A-Z`*][^|]*?\.(\s|$)", first.replace("\n", " ")), first
    assert not first.startswith(("    ", "#", "|", "- ", "!"))


def test_the_readme_is_read_in_a_few_minutes() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 1300
