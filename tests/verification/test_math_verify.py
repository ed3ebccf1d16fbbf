"""What we rely on in math-verify and its parser."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from math_verify import parse, verify


def test_versions_are_pinned() -> None:
    assert version("math-verify") == "0.9.0"
    assert version("antlr4-python3-runtime") == "4.13.2"


def test_without_time_limits_it_works_anywhere() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("signal.signal", lambda *_: pytest.fail("a signal was used"))
        assert verify(
            parse(r"\boxed{\frac12}", parsing_timeout=None),
            parse(r"\boxed{0.5}", parsing_timeout=None),
            timeout_seconds=None,
        )
