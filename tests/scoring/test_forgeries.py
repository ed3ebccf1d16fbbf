"""Programs that say that they pass the tests, and honest ones that must not be taken for them."""

from __future__ import annotations

import pytest

from harness.verification import programs
from harness.verification.compared import is_as_expected, steps_of
from harness.verification.scorer import Undecided

_SAYS = """
def say(words):
    for place in range(3, 32):
        try:
            os.write(place, struct.pack('<I', len(words)) + words)
        except OSError:
            pass
"""
FORGERIES = {
    "replaces what runs the tests": "import __main__\n__main__._run_source = lambda *_: None\ndef f(x): return 0",
    "replaces it by way of the frames": (
        "import sys\nsys._getframe(1).f_globals['_run_source'] = lambda *_: b'[\"int\", \"0\"]'\ndef f(x): return 0"
    ),
    "replaces exec": "import builtins\nbuiltins.exec = lambda *_: None\ndef f(x): return 0",
    "replaces compile": (
        "import builtins\nreal = compile\ndef empty(source, name, mode):\n"
        "    return real('pass' if mode == 'exec' else '0', name, mode)\nbuiltins.compile = empty\ndef f(x): return 0"
    ),
    "skips the tests' lines": (
        "import sys\ndef f(x):\n    raise KeyError\nfor name in ('AssertionError', 'BaseException'):\n"
        "    __builtins__[name] = type(name, (Exception,), {})"
    ),
    "says a token that lies in the frames": (
        "import os, struct, sys\n" + _SAYS + "def f(x):\n    frame = sys._getframe()\n    while frame:\n"
        "        for value in list(frame.f_locals.values()):\n            if isinstance(value, bytes) and len(value) == 32:\n"
        "                say(value)\n        frame = frame.f_back\n    os._exit(0)"
    ),
    "answers itself whatever is asked": (
        "import os, struct, sys\n" + _SAYS + "def hear():\n    (size,) = struct.unpack('<I', os.read(asked, 4))\n"
        "    return os.read(asked, size)\n"
        "def is_pipe(p): return os.path.exists(f'/proc/self/fd/{p}') and 'pipe' in os.readlink(f'/proc/self/fd/{p}')\n"
        "asked = next(p for p in range(3, 32) if is_pipe(p))\n"
        "say(b'ran')\nwhile True:\n    heard = hear()\n    say(heard[1:] if heard[:1] == b't' else b'ran' if heard[:1] == b'x' else"
        " b'[\"bool\", true]')"
    ),
    "says that everything went well, ahead": (
        "import os, struct\n" + _SAYS + "for _ in range(9): say(b'ran')\nos._exit(0)"
    ),
    "says that everything went well, from a thread": (
        "import os, struct, threading\n" + _SAYS + "def f(x):\n    for _ in range(9): say(b'ran')\n    os._exit(0)"
    ),
}  # fmt: skip
LITERALS = "assert f(2) == 4\nassert f(3) == 9"
OTHERS = "def check(f):\n    assert f(2) > 3\n    assert 8 < f(3) < 10\ncheck(f)"


@pytest.mark.parametrize("tests", [LITERALS, OTHERS], ids=["literals", "others"])
@pytest.mark.parametrize("name", FORGERIES)
def test_a_program_that_says_that_it_passes_does_not(name: str, tests: str) -> None:
    assert programs.run_program(FORGERIES[name], tests).startswith("failed")
    assert programs.run_program("def f(x): return x * x", tests) == ""


def test_a_value_that_claims_to_equal_everything_does_not_equal_a_literal() -> None:
    body = "    def __eq__(self, other): return True\n    __hash__ = None\ndef f(x): return Same()"
    for base in ("", "(int)", "(float)"):
        assert programs.run_program(f"class Same{base}:\n{body}", LITERALS) == "failed in the tests: AssertionError"
    claims = "class Same(list):\n    def __eq__(self, other): return True\ndef f(x): return Same()"
    assert programs.run_program(claims, "assert f(2) == [4]") == "failed in the tests: AssertionError"


def test_what_is_expected_never_enters_the_programs_process() -> None:
    """It reads all that it is sent, and finds the question alone."""
    steps = steps_of("import math\nx = 3\nassert f(x) == 'a secret', 'why'\nassert {1: [2]} == f(-x)")
    assert steps is not None
    assert [step.source for step in steps] == ["import math", "x = 3", "f(x)", "f(-x)"]
    assert [step.expected for step in steps if step.compared] == ["a secret", {1: [2]}]


@pytest.mark.parametrize(
    "tests",
    ["", "x = 1", OTHERS, "assert f(2)", "assert f(2) == g(2)", "assert f(2) == 4 == 4", "assert f(2) == 4\nassert f(3) > 4",
     "assert f(2) == 4\nif f(3) != 9: raise ValueError", "from __future__ import annotations\nassert f(2) == 4"],
)  # fmt: skip
def test_tests_of_another_form_run_whole(tests: str) -> None:
    assert steps_of(tests) is None


@pytest.mark.parametrize(
    ("value", "literal"),
    [("None", "None"), ("True", "1"), ("1", "1.0"), ("0.1 + 0.2", "0.30000000000000004"), ("1j * 1j", "-1"),
     ("'\\ud800é'", "'\\ud800é'"),
     ("b'a'", "b'a'"), ("bytearray(b'a')", "b'a'"), ("[1, (2, [None])]", "[1, (2, [None])]"), ("{1, (2, 'a')}", "{(2, 'a'), 1}"),
     ("{'a': [1], (1, 2): {}}", "{(1, 2): {}, 'a': [1]}"), ("frozenset([1])", "{1}"), ("{1: 2}.keys()", "{1}"), ("...", "..."),
     ("__import__('collections').Counter('aab')", "{'a': 2, 'b': 1}"), ("__import__('collections').OrderedDict(a=1)", "{'a': 1}"),
     ("__import__('collections').namedtuple('P', 'x y')(1, 2)", "(1, 2)"), ("__import__('fractions').Fraction(1, 2)", "0.5"),
     ("__import__('decimal').Decimal('2.5')", "2.5"), ("2 ** 200", str(2**200)), ("float('inf')", "1e999"),
     ("[1] * 5000", str([1] * 5000))],
)  # fmt: skip
def test_values_that_python_calls_equal_are(value: str, literal: str) -> None:
    program = f"def f(x): return {value}"
    assert eval(f"({value}) == ({literal})")
    assert programs.run_program(program, f"assert f(0) == {literal}") == ""
    assert programs.run_program(program, f"assert {literal} == f(0)") == ""


@pytest.mark.parametrize(
    ("value", "literal"),
    [("(1, 2)", "[1, 2]"), ("[1, 2]", "[1, 2, 3]"), ("[1, 3]", "[1, 2]"), ("'1'", "1"), ("None", "0"), ("{1}", "{2}"),
     ("{1: 2}", "{1: 3}"),
     ("{1: 2, 3: 4}", "{1: 2}"), ("[1]", "{1}"), ("float('nan')", "4"), ("lambda: 4", "4"), ("b'a'", "'a'"),
     ("range(2)", "[0, 1]")],
)  # fmt: skip
def test_values_that_python_calls_unequal_are(value: str, literal: str) -> None:
    assert not eval(f"({value}) == ({literal})")
    assert (
        programs.run_program(f"def f(x): return {value}", f"assert f(0) == {literal}")
        == "failed in the tests: AssertionError"
    )


def test_steps_share_names_and_state() -> None:
    program = "class Stack(list):\n    def push(self, x): self.append(x)\nseen = []\ndef f(x): seen.append(x); return len(seen)"
    tests = "s = Stack()\ns.push(4)\nassert s.pop() == 4\nfor i in range(3): f(i)\nassert seen == [0, 1, 2]\n"
    tests += "assert [f(i) for i in s] == []"
    assert programs.run_program(program, tests) == ""
    assert programs.run_program(program, tests.replace("[0, 1, 2]", "[0, 1]")) == "failed in the tests: AssertionError"
    assert (
        programs.run_program(program, tests.replace("s.push(4)", "s.shove(4)")) == "failed in the tests: AttributeError"
    )


@pytest.mark.parametrize(
    "told",
    [b"", b"{", b"4", b"[]", b'["int", "' + b"9" * 9_000 + b'"]', b"[" * 100_000, b'["list", 4]', b'["set", [["list", []]]]',
     b'["nothing", 1]', b'["decimal", "x"]', b'["fraction", ["1", "0"]]', b'["int", null]', b"\xff", b'["dict", [[1]]]'],
)  # fmt: skip
def test_words_for_a_value_that_are_none_equal_nothing(told: bytes) -> None:
    for expected in (4, [4], {4}, {4: 4}, "4", None):
        assert not is_as_expected(expected, told)


def test_tests_that_pass_once_and_then_take_too_long_are_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    again = iter(["", "over-limit: time", "over-limit: time"])
    monkeypatch.setattr(programs, "_run_steps", lambda *_: next(again))
    with pytest.raises(Undecided, match="passed once"):
        programs.run_program("def f(x): return x * x", OTHERS)
