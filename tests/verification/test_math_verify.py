"""What we rely on in math-verify and its parser: a new version that behaves otherwise must be noticed."""

from __future__ import annotations

import threading
from importlib.metadata import version

import pytest
from math_verify import parse, verify


def test_versions_are_pinned() -> None:
    assert version("math-verify") == "0.9.0"
    assert version("antlr4-python3-runtime") == "4.13.2"


def test_gold_comes_first() -> None:
    """`verify` is not symmetric: an equation answers a value, a value does not answer an equation in general."""
    gold, answer = parse(r"\boxed{2x+1=0}"), parse(r"\boxed{0}")
    assert verify(answer, gold) != verify(gold, answer)


def test_percent_needs_the_pinned_antlr() -> None:
    assert verify(parse("44"), parse(r"\boxed{44\%}"))


def test_time_limits_do_not_work_in_a_thread() -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            parse(r"\boxed{1}", raise_on_error=True)
        except ValueError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert len(failures) == 1


def test_without_time_limits_it_works_anywhere() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("signal.signal", lambda *_: pytest.fail("a signal was used"))
        assert verify(
            parse(r"\boxed{\frac12}", parsing_timeout=None),
            parse(r"\boxed{0.5}", parsing_timeout=None),
            timeout_seconds=None,
        )
