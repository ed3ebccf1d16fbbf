"""Each scorer: what is right, what is wrong, what is neither."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import psutil
import pytest

from harness.errors import PluginError
from harness.verification import programs
from harness.verification.catalogue import PLUGINS, list_scorers, scorer_called, scorer_of
from harness.verification.conformance import CHECKS, HOSTILE
from harness.verification.scorer import MATH, Called, Score, Scorer, Undecided
from harness.verification.verdict import Verdict
from harness.verification.verifier import Verifier

SHIPPED = ("math", "exact", "choice", "countdown", "python", "math_verify_plain", "qwen_grader")


def ask(verifier: Verifier, scorer: str, gold: str, text: str) -> Verdict:
    return verifier.by(scorer_called(scorer)).verify([(gold, text)])[0]


@pytest.mark.slow_but("math-")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "check"), itertools.product(SHIPPED, CHECKS), ids=lambda v: getattr(v, "__name__", v))
def test_conformance(name: str, check) -> None:  # type: ignore[no-untyped-def]
    check(name)


def test_all_are_listed_and_an_unknown_one_is_not() -> None:
    scorers = {info.name: info for info in list_scorers()}
    assert set(SHIPPED) <= set(scorers)
    assert all(info.summary and info.origin and not info.error for info in scorers.values() if info.name in SHIPPED)
    with pytest.raises(PluginError, match="did you mean 'exact'"):
        scorer_called("exakt")
    assert scorer_called("math") == MATH
    assert {PLUGINS.results_version(name)[0] for name in SHIPPED} == {"verification", "scoring"}


@pytest.mark.parametrize(
    ("scorer", "gold", "text", "value"),
    [
        ("exact", "1/2", r"\boxed{0.5}", "wrong"),
        ("exact", "a  b", "so\n a b\n\n", "right"),
        ("exact", "x", r"\boxed{x", "wrong"),
        ("exact", "x", r"\boxed{} x" + "\nx", "right"),
        ("choice", "C", r"A. B. C? The correct option is C.", "right"),
        ("choice", "C", "Answer: (C) because", "right"),
        ("choice", "C", "The correct option is: C. Because", "right"),
        ("choice", "C", r"The answer is \text{(C)} Rome", "right"),
        ("choice", "C", r"\boxed{\text{c}}", "right"),
        ("choice", "C", r"\boxed{C and D}", "wrong"),
        ("choice", "A", "Answer: A's", "wrong"),
        ("choice", "C", "A or C?\n(C)\n", "right"),
        ("choice", "C", "A or C?\n(C).", "right"),
        ("choice", "B", "answer is B\nThe answer is A.", "wrong"),
        ("math_verify_plain", "10", "the answer is 10.", "right"),
        ("math_verify_plain", "10", "no number", "wrong"),
        ("math", "3.14159", r"\boxed{3.1416}", "wrong"),
        ("exact", "3.14159", r"\boxed{3.1416}", "wrong"),
        ("qwen_grader", "3.14159", r"\boxed{3.1416}", "right"),
        ("qwen_grader", "0.333333", r"\boxed{\frac13}", "right"),
        ("qwen_grader", "5", "5 apples", "right"),
        ("qwen_grader", "1800", "It is 1,800, so", "right"),
        ("qwen_grader", "35", "It is 3,5", "right"),
        ("qwen_grader", "5", r"\boxed{500\%}", "right"),
        ("qwen_grader", "(1,2)", r"\boxed{(1, 2)}", "right"),
        ("qwen_grader", "(1,2)", r"\boxed{(2, 1)}", "wrong"),
        ("qwen_grader", r"\text{blue}", r"\boxed{Blue}", "right"),
        ("qwen_grader", "x^2-1", r"\boxed{(x-1)(x+1)}", "right"),
        ("qwen_grader", "2", "twelve", "wrong"),
    ],
)
def test_right_and_wrong(verifier: Verifier, scorer: str, gold: str, text: str, value: str) -> None:
    assert ask(verifier, scorer, gold, text).value == value
    assert scorer_of(scorer).score(gold, text).right == (value == "right"), "in its own process or in this one"


def test_a_gold_that_cannot_be_read_is_the_scorers_fault_not_a_zero(verifier: Verifier) -> None:
    verdict = ask(verifier, "math_verify_plain", "", r"\boxed{1}")
    assert (verdict.value, verdict.valid) == ("invalid", False)
    assert verdict.reward != verdict.reward


TESTS = "assert f(2) == 4\nassert f(3) == 9"


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        pytest.param("while True: pass", "over-limit: time", marks=pytest.mark.slow),
        ("x = [0] * (1 << 40)", "failed in the answer: MemoryError"),
        ("import os; os._exit(0)", "failed: exit status 0"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "over-limit: killed"),
        pytest.param(
            "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "over-limit: time", marks=pytest.mark.slow
        ),
        ("raise SystemExit(0)", "failed in the answer: SystemExit"),
        ("def f(x): return 1 / 0", "failed in the tests: ZeroDivisionError"),
        ("def f(x): raise KeyboardInterrupt", "failed in the tests: KeyboardInterrupt"),
        ("open('/proc/self/mem/x', 'w')", "failed in the answer: "),
        ("open('big', 'w').write('x' * (1 << 22))", ""),
        ("import socket; socket.create_connection(('127.0.0.1', 1), 1)", "failed in the answer: "),
        pytest.param("import sys; sys.setrecursionlimit(10**8)\ndef f(x): return f(x)", "", marks=pytest.mark.slow),
        ("(" * 5000, "failed in the answer: "),
        ("import os\nfor fd in range(3, 40):\n    try: os.close(fd)\n    except OSError: pass", "failed: "),
    ],
)
def test_programs_fail_and_take_nothing_with_them(verifier: Verifier, program: str, reason: str) -> None:
    verdict = ask(verifier, "python", TESTS, f"```python\n{program}\n```")
    assert verdict.value == "wrong"
    assert verdict.reason.startswith(reason)
    assert ask(verifier, "python", TESTS, "def f(x): return x * x").value == "right"


def test_the_last_python_block_counts_and_its_name_space_is_the_tests() -> None:
    text = "```python\na = 1\n```\nthen\n```\nshell\n```\n```py\nb = 2\n```"
    assert programs.program_in(text) == "b = 2"
    assert programs.run_program("import math\nf = math.floor", "assert f(2.5) == 2") == ""
    assert programs.run_program("f = abs", "assert f(-1) == 2") != ""


def test_a_program_has_no_network_where_the_kernel_allows() -> None:
    if not programs.has_no_network():
        assert "network" in programs.Python().remark()
        pytest.skip("this kernel keeps the network")
    look = "names = open('/proc/self/net/dev').read()\nassert 'lo:' in names and names.count(':') == 1, names"
    assert programs.run_program(look, "") == ""
    assert programs.Python().remark() == ""


def test_a_program_finds_an_empty_folder_that_is_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert programs.run_program("import os\nassert os.listdir('.') == []\nopen('left', 'w').write('x')", "") == ""
    assert list(tmp_path.iterdir()) == []


def test_a_sandbox_that_does_not_start_is_no_answers_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(programs, "SANDBOX", tmp_path / "nowhere.py")
    with pytest.raises(Undecided, match="does not start"):
        programs.run_program("f = abs", "")


def test_no_process_is_left(verifier: Verifier) -> None:
    ask(verifier, "python", TESTS, "import subprocess\nsubprocess.Popen(['sleep', '1000'])")
    time.sleep(0.2)
    running = [p.as_dict(["cmdline"], ad_value=[])["cmdline"] for p in psutil.Process().children(recursive=True)]
    assert not [words for words in running if "sandbox.py" in " ".join(words)]


class Faulty(Scorer):
    """Does what the gold says"""

    def score(self, gold: str, text: str) -> Score:
        exec(gold)
        return Score("yes" if gold == "'neither'" else True)  # type: ignore[arg-type]


FAULTS = [
    ("raise KeyError('x')", "invalid", "crash: KeyError"),
    ("'neither'", "invalid", "crash: neither"),
    ("raise Undecided('who knows')", "invalid", "undecided: who knows"),
    ("while True: pass", "invalid", "timeout: CPU time"),
    ("time.sleep(100)", "invalid", "timeout"),
    ("raise SystemExit(3)", "invalid", "crash: exit status"),
    ("'works'", "right", ""),
]


def test_a_plugin_that_fails_is_never_a_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    with Verifier(workers=1) as own:
        for gold, value, reason in FAULTS:
            here = Called(f"{__name__}:Faulty", 0.5, 1.5 if "sleep" in gold else 30.0)
            verdict = own.by(here).verify([(gold, "an answer")])[0]
            assert (verdict.value, verdict.reason[: len(reason)]) == (value, reason), gold


def test_a_scorer_that_does_not_load_is_no_answers_fault(verifier: Verifier) -> None:
    verdict = verifier.by(Called("no_such_module:Nothing", 1.0, 5.0)).verify([("1", "1")])[0]
    assert verdict.value == "invalid"
    assert "does not load" in verdict.reason


def test_texts_of_any_length_are_answered(verifier: Verifier) -> None:
    assert ask(verifier, "exact", "x", "y" * (1 << 18)).reason == "over-limit: text"
    assert ask(verifier, "exact", "\U0001f600" * 65_000, "\U0001f600" * 131_000).value == "wrong"
    assert ask(verifier, "exact", "x", "\ud800 x\nx").value == "right"
    assert len(HOSTILE) == len(verifier.by(scorer_called("exact")).verify([("x", text) for text in HOSTILE]))
