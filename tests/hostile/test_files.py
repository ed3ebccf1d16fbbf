# ruff: noqa: E501
"""Files and settings that mean harm."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from running import within

from harness import cli
from harness.session.suite.files import VARIABLE

SECONDS = 2.0
"""Of this process's CPU: the clock of a machine that does other things says little."""
GOOD = """
groups:
  - name: pair
    policies:
      - {name: a, model: micro/llama}
      - {name: b, model: micro/qwen}
regimes: [independent, sgt]
seeds: [1]
training: {steps: 1}
"""
BIG = "1" + "0" * 400
ESC = "\x1b]0;owned\x07"

CONTENTS: dict[str, bytes] = {
    # encodings
    "nul": b"name: a\x00b\n", "nul at the end": GOOD.encode() + b"\x00", "escape": b"title: \x1b[31m\n", "bell": b"# \x07\n",
    "delete": b"title: \x7f\n", "c1": "title: \x9b31m\n".encode(), "carriage return": b"name: a\rname: b\n", "form feed": b"\x0c",
    "utf-16": ("\ufeff" + GOOD).encode("utf-16-le"), "utf-32": GOOD.encode("utf-32"), "latin-1": "title: \xe9\n".encode("latin-1"),
    "overlong": b"title: \xc0\x80\n", "surrogate": b"title: \xed\xa0\x80\n", "cut utf-8": b"title: \xe2\x82", "noncharacter": "title: \uffff\n".encode(),
    "png": b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "gzip": b"\x1f\x8b\x08\x00" + bytes(60), "pickle": b"\x80\x04\x95\x10cos\nsystem\n.",
    "elf": b"\x7fELF" + bytes(100), "bom alone": "\ufeff".encode(), "invalid in a comment": GOOD.encode() + b"# \xff",
    # sizes
    "empty": b"", "blank": b" " * 1000, "only comments": b"# x\n" * 1000, "1 MiB": b"# " + b"x" * (1 << 20), "many newlines": b"\n" * 250_000,
    "many keys": b"".join(b"k%d: 1\n" % i for i in range(25_000)), "wide list": b"a: [" + b"1," * 100_000 + b"]", "long word": b"title: " + b"x" * 200_000,
    "long key": b"x" * 100_000 + b": 1\n", "many documents": b"--- " * 50_000, "long tag": b"!" * 200_000, "many words": b"a: " + b"z " * 100_000,
    "folded blank lines": b"a: >\n" + b"\n" * 200_000, "escapes": b'a: "' + rb"\x41" * 50_000 + b'"', "sexagesimal": b"a: 1" + b":1" * 100_000,
    "huge hexadecimal": b"a: 0x" + b"f" * 100_000, "5000 digits": b"seeds: [" + b"9" * 5000 + b"]", "huge float": b"a: 1." + b"1" * 100_000,
    # depth and aliases
    "deep lists": b"a: " + b"[" * 5000, "deep mappings": b"a: " + b"{a: " * 5000, "deep block": b"".join(b" " * i + b"a:\n" for i in range(300)),
    "deep dashes": b"- " * 5000, "deep keys": b"? " * 5000, "anchor": b"a: &a 1\n", "alias": b"a: *a\n", "cycle": b"a: &a [*a]\n",
    "billion laughs": b"a: &a [x,x]\n" + b"".join(b"b%d: &b%d [*a, *a]\n" % (i, i) for i in range(30)), "merge": b"a: &a {x: 1}\nb: {<<: *a}\n",
    "merge without alias": GOOD.encode() + b"<<: {title: x}\n",
    # what is no plain data
    "python object": b"a: !!python/object/apply:os.system [true]\n", "python name": b"a: !!python/name:os.system\n", "binary": b"a: !!binary AAAA\n",
    "set": b"a: !!set {x}\n", "own tag": b"a: !x 1\n", "key list": b"[1, 2]: 3\n", "key mapping": b"{a: 1}: 3\n", "key null": b"~: 3\n" + GOOD.encode(),
    "key number": b"1: 3\n" + GOOD.encode(), "key bool": b"true: 3\n" + GOOD.encode(), "key nan": b".nan: 3\n" + GOOD.encode(),
    "scalar": b"42\n", "list": b"- 1\n", "string": b"'suite'\n", "null": b"~\n", "two documents": GOOD.encode() + b"---\n" + GOOD.encode(),
    "duplicate key": b"name: a\nname: b\n" + GOOD.encode(), "duplicate inner key": GOOD.encode() + b"evaluation: {k: 1, k: 2}\n",
    "unclosed": b"name: [1\n", "unclosed quote": b"name: 'x\n", "tab": b"a:\n\tb: 1\n", "bad indent": b"a: 1\n  b: 2\n", "directive": b"%YAML 9.9\n---\na: 1\n",
    "closing": b"}" * 200_000, "colons": b":" * 200_000, "json with a nul escape": b'{"name": "a\\u0000b"}', "escaped escape": b'title: "\\x1b[31m"\n' + GOOD.encode(),
    "escaped surrogate": b'title: "\\ud800"\n' + GOOD.encode(), "escaped nul": b'name: "\\0"\n' + GOOD.encode(),
}  # fmt: skip


def _refused(capsys: pytest.CaptureFixture[str], place: Path, *arguments: str) -> str:
    """The one line with which the program refuses, in this process."""
    line, spent = _said(capsys, place, *arguments)
    if spent >= SECONDS:  # it may have imported torch for the first time
        line, spent = _said(capsys, place, *arguments)
    assert within(spent, SECONDS)
    return line


def _said(capsys: pytest.CaptureFixture[str], place: Path, *arguments: str) -> tuple[str, float]:
    before = _tree(place)
    spent = time.process_time()
    sys.argv = ["harness", *arguments]
    with pytest.raises(SystemExit) as left:
        cli.main()
    spent = time.process_time() - spent
    said = capsys.readouterr()
    line = said.err.removesuffix("\n")
    assert (left.value.code, line.startswith("harness: "), line.isprintable(), len(line) < 2500) == (
        2,
        True,
        True,
        True,
    ), line
    told = {"error": line.removeprefix("harness: "), "exit_code": 2} if "--json" in arguments else None
    assert (json.loads(said.out) if said.out else None) == told
    assert _tree(place) == before
    return said.err, spent


def _tree(place: Path) -> set[str]:
    return {str(path) for path in place.rglob("*")}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder; what the command changes of this process is undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr("harness.cli.use_one_thread", lambda: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path


@pytest.mark.parametrize("content", CONTENTS.values(), ids=list(CONTENTS))
def test_a_suite_of_hostile_content(place: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    (place / "x.yaml").write_bytes(content)
    assert "x.yaml: " in _refused(capsys, place, "plan", "x.yaml")


NO_FILES: dict[str, Callable[[Path], object]] = {
    "pipe": lambda f: os.mkfifo(f), "endless device": lambda f: f.symlink_to("/dev/zero"), "random device": lambda f: f.symlink_to("/dev/urandom"),
    "no device": lambda f: f.symlink_to("/dev/null"), "terminal": lambda f: f.symlink_to("/dev/tty"), "folder": lambda f: f.mkdir(),
    "link to a folder": lambda f: f.symlink_to("/"), "dangling link": lambda f: f.symlink_to("nowhere"), "loop of links": lambda f: f.symlink_to(f.name), "sparse terabyte": lambda f: (f.touch(), os.truncate(f, 1 << 40)),
    "link to a pipe": lambda f: (os.mkfifo(f.with_name("pipe")), f.symlink_to("pipe")), "link to the kernel's log": lambda f: f.symlink_to("/proc/kmsg"),
    "all of memory": lambda f: f.symlink_to("/proc/kcore"), "own memory": lambda f: f.symlink_to("/proc/self/mem"), "standard input": lambda f: f.symlink_to("/proc/self/fd/0"),
}  # fmt: skip


@pytest.mark.parametrize("make", NO_FILES.values(), ids=list(NO_FILES))
@pytest.mark.parametrize("verb", ["plan", "bandit"])
def test_what_is_no_file(
    place: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], object], verb: str
) -> None:
    make(place / "x.yaml")
    assert "x.yaml: " in _refused(capsys, place, verb, "x.yaml")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read what nobody may")
def test_a_file_that_nobody_may_read(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "x.yaml").write_text(GOOD)
    (place / "x.yaml").chmod(0)
    assert "permission denied" in _refused(capsys, place, "plan", "x.yaml")


@pytest.mark.parametrize("name", ["a" * 300 + ".yaml", "a" * 5000, "/dev/null/x.yaml", "x.yaml/", "\udcff.yaml", "a\nb.yaml", f"{ESC}.yaml", "", " ", "..", "/", "~"])  # fmt: skip
def test_a_name_of_nothing(place: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    _refused(capsys, place, "plan", name)


WRONG = [
    "[]",
    "{}",
    "[1]",
    "{a: 1}",
    ".nan",
    "-.inf",
    BIG,
    "-" + BIG,
    "0x" + "f" * 200,
    "nope",
    "2001-01-01",
    '"\\x1b[2J"',
    '"\\0"',
    "''",
    "x" * 5000,
]
PLACES = {
    "training.steps", "training.prompts", "training.rollouts", "training.learning_rate", "training.clip_norm", "training.measure_every",
    "training.max_new_tokens", "training.betas", "evaluation.k", "evaluation.limit", "evaluation.curve_every", "seeds", "seeds[0]",
    "sharing.deadline_seconds", "sharing.max_staleness", "engine_options.micro_tokens", "engine_options.device", "regimes[1].lambda",
    "regimes[1].budget", "groups[0].policies[0].model", "groups[0].policies[0].rollouts", "groups[0].policies[0].condition", "engine", "baseline", "name",
}  # fmt: skip
FINE = {
    ("seeds", "[1]"),
    ("engine_options.device", "nope"),
    ("groups[0].policies[0].model", "nope"),
    ("groups[0].policies[0].model", "2001-01-01"),
    ("name", "nope"),
    ("name", "2001-01-01"),
    ("groups[0].policies[0].condition", "''"),
}
"""Said by other tests, or names that the hub may have."""


@pytest.mark.slow_but("evaluation.k", "training.betas", "sharing.max_staleness", "groups[0].policies[0].rollouts")
@pytest.mark.parametrize("key", sorted(PLACES))
def test_values_that_no_setting_has(place: Path, capsys: pytest.CaptureFixture[str], key: str) -> None:
    (place / "x.yaml").write_text(GOOD)
    for value in (value for value in WRONG if (key, value) not in FINE):
        said = _refused(capsys, place, "plan", "x.yaml", "--set", f"{key}={value}")
        assert key.partition("[")[0].partition(".")[0] in said or "--set" in said, said


NONSENSE = {
    "regimes[1].lambda=.nan": "regimes[1].lambda: line 1, column 1: must be a finite number", "regimes[1].lambda=.inf": "regimes[1].lambda: line 1, column 1: must be a finite number",
    f"training.measure_every={BIG}": "training.measure_every: line 1, column 1: must be a number of at most 63 bits", f"seeds=[{BIG}]": "seeds: line 1, column 2: must be a number",
    "groups[0].policies[0].model=micro/none": "groups[0].policies[0].model: unknown micro model", "engine_options.device=nope": "engine_options.device: ",
    "groups[0].policies[1].stage0.preset=none": "groups[0].policies[1].stage0.preset: unknown preset 'none'", "engine_options.device=2001-01-01": "engine_options.device",
    f"title={ESC}": r"--set title: the character '\x1b' is not allowed", 'title="\\x1b"': r"--set title: line 1, column 1: the control character '\x1b'",
    "title=a\x00b": r"the character '\x00'", "title=\ud800": "is not allowed", f"{ESC}=1": "not the path of a setting", "=1": "expected key=value", "title": "expected key=value",
    f"seeds[{'9' * 5000}]=1": "not the path of a setting", "seeds[99]=1": "the suite has no such setting", "a" * 10_000 + "=1": "not the path of a setting",
    "a." * 90 + "a=1": "unknown key", "groups[0][0][0]=1": "no such setting", "training.steps.x=1": "no such setting", "seeds[-1]=1": "not the path",
    "training.steps=&a 1": "anchors", "training.steps=!!int 3": "tag", "training={steps: 1, steps: 2}": "twice", "sharing.max_text_residual=2": "less than or equal to 1",
    "training.steps=1e3": "training.steps", "training.prompts=true": "training.prompts", "groups[0].name=../x": "groups[0].name", "name=..": "name", "name=/etc": "name",
    "engine=../../x": "engine", "regimes[0].name=a/b": "regimes[0].name", "regimes[0].replay={suite: ../x, regime: a}": "replay.suite", "baseline=nope": "baseline",
}  # fmt: skip


@pytest.mark.parametrize("setting", list(NONSENSE), ids=lambda s: ascii(s)[:40])
def test_settings_that_are_nonsense(place: Path, capsys: pytest.CaptureFixture[str], setting: str) -> None:
    (place / "x.yaml").write_text(GOOD)
    assert NONSENSE[setting] in _refused(capsys, place, "plan", "x.yaml", "--set", setting, "--json")


ARGUMENTS: dict[str, list[str]] = {
    "no such command": ["nothing"], "no such option": ["plan", "--nothing"], "no suite": ["plan"], "jobs": ["run", "x.yaml", "--jobs", "0"],
    "jobs of 400 digits": ["run", "x.yaml", "--jobs", BIG], "jobs no number": ["run", "x.yaml", "--jobs", "nan"], "silence": ["run", "x.yaml", "--silence", "-1"],
    "only": ["plan", "x.yaml", "--only", "[" * 1000], "inventory": ["plan", "x.yaml", "--inventory", f"{BIG}xH100-80G"],
    "engine": ["plan", "x.yaml", "--engine", "nope"], "engine that is no word": ["plan", "x.yaml", "--engine", "[1]"], "engine with an escape": ["plan", "x.yaml", "--engine", ESC],
    "eval of nothing": ["eval", "nowhere"], "eval of a file": ["eval", "x.yaml"], "format": ["show", "--format", "nope"], "import of nothing": ["import", "nowhere"],
    "import of a file": ["import", "x.yaml"], "bandit of a suite": ["bandit", "x.yaml"], "port": ["leaderboard", "--port", "0"], "rows": ["sql", "SELECT 1", "--rows", "0"],
    "new regime": ["new-regime", "../x"], "regime's name": ["new-regime", ESC],
    "logs of nothing": ["logs", "../../etc/passwd"], "status of nothing": ["status", "../.."],
    "results in a loop of links": ["show", "--results", "loop"], "import of a loop of links": ["import", "loop"], "model in a loop of links": ["eval", "loop"],
}  # fmt: skip


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=list(ARGUMENTS))
def test_arguments_that_are_nonsense(place: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    (place / "x.yaml").write_text(GOOD)
    (place / "loop").symlink_to("loop")
    _refused(capsys, place, *arguments)


CONFIGS: dict[str, tuple[str, bytes]] = {
    "a list": ("a model's config is a JSON object", b"[1, 2]"), "a number": ("JSON object", b"3"), "empty": ("cannot be read", b""),
    "hidden size of 1e9": ("hidden_size: must be a whole number from 0 to 131,072 (got 1000000000)", b'{"model_type": "llama", "hidden_size": 1000000000}'),
    "hidden size as a float": ("hidden_size", b'{"hidden_size": 1e9}'), "hidden size as a word": ("hidden_size", b'{"hidden_size": "wide"}'),
    "negative": ("num_hidden_layers", b'{"num_hidden_layers": -1}'), "inner": ("text_config.vocab_size", b'{"text_config": {"vocab_size": 1000000000000}}'),
    "layers": ("num_hidden_layers", b'{"num_hidden_layers": 1000000}'), "400 digits": ("vocab_size", b'{"vocab_size": ' + BIG.encode() + b"}"),
    "5000 digits": ("cannot be read", b'{"vocab_size": ' + b"9" * 5000 + b"}"), "nan": ("x: must be a finite number", b'{"x": NaN}'),
    "infinite": ("x: must be a finite number", b'{"x": 1e999}'), "deep": ("", b"[" * 100_000), "deep and closed": ("nested", b'{"a":' * 50 + b"1" + b"}" * 50),
    "nul": ("control character", b'{"a": "\x00"}'), "not utf-8": ("UTF-8", b'{"a": "\xff"}'), "cut off": ("cannot be read", b'{"model_type": "llama"'),
    "bool": ("vocab_size", b'{"vocab_size": true}'), "large": ("larger than", b'"' + b"x" * (5 << 20) + b'"'),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGS)
@pytest.mark.parametrize("verb", ["eval", "plan"])
def test_a_models_config(place: Path, capsys: pytest.CaptureFixture[str], case: str, verb: str) -> None:
    words, content = CONFIGS[case]
    (place / "model").mkdir()
    (place / "model" / "config.json").write_bytes(content)
    (place / "x.yaml").write_text(GOOD.replace("micro/llama", "./model"))
    arguments = ("eval", "model", "--tasks", "micro") if verb == "eval" else ("plan", "x.yaml")
    if verb == "plan":
        import harness.engines.vocabulary  # noqa: F401  its libraries' import is no part of the time
    assert words in _refused(capsys, place, *arguments, "--json")


@pytest.mark.parametrize("make", NO_FILES.values(), ids=list(NO_FILES))
def test_a_models_config_that_is_no_file(
    place: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], object]
) -> None:
    (place / "model").mkdir()
    make(place / "model" / "config.json")
    assert "config.json: " in _refused(capsys, place, "eval", "model", "--json")


@pytest.mark.parametrize("way", ["absolute", "dots", "link", "home", "inner link", "root"])
def test_an_imported_suite_reaches_no_folder_that_nobody_declared(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    outside, own = place / "outside", place / "own"
    (own / "model").mkdir(parents=True)
    (own / "submission.json").write_text("{}")  # the suite came with others' results
    outside.mkdir()
    (outside / "config.json").write_text("{}")
    (own / "link").symlink_to(outside)
    (own / "model" / "config.json").symlink_to(outside / "config.json")
    monkeypatch.setenv("HOME", str(place))
    names = {
        "absolute": str(outside),
        "dots": "../outside",
        "link": "link",
        "home": "~/outside",
        "inner link": "./model",
        "root": "/",
    }
    (own / "x.yaml").write_text(GOOD.replace("micro/llama", names[way]))
    monkeypatch.chdir(own)
    said = _refused(capsys, place, "plan", "x.yaml")
    assert "groups[0].policies[0].model: " in said
    assert "outside the folders that a suite may name" in said
    if way != "root":
        declared = _refused(capsys, place, "plan", "x.yaml", "--models", str(outside))
        assert "outside the folders" not in declared
        assert "no tokenizer" in declared or "config.json" in declared
        monkeypatch.delenv(VARIABLE, raising=False)
