"""Which settings of a bundle may differ from the shipped suite's."""

from __future__ import annotations

import pytest

from harness.submission.proofs import comparable_suite
from harness.suite.load import load_suite


@pytest.mark.parametrize(
    ("setting", "same"),
    [
        ("engine_options.numerics=fast", True),
        ("engine_options.dtype=bf16", False),
        ("training.steps=3", False),
    ],
)
def test_numerics_alone_differ_between_machines(setting: str, same: bool) -> None:
    shipped = comparable_suite(load_suite("quickstart"))
    assert (comparable_suite(load_suite("quickstart", overrides=[setting])) == shipped) == same
