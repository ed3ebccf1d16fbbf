"""Whose settings a suite's regimes have."""

from __future__ import annotations

import pytest

from harness.submission.check import category
from harness.suite.load import load


@pytest.mark.parametrize(
    ("suite", "words"),
    [
        ("elicit", "the baseline alone"),
        ("quickstart", "published defaults: sgt, hacpo; defaults that nobody published: prp, xgrpo"),
        (
            "reference",
            "published defaults: sgt, hacpo, graft, sapo; defaults that nobody published: naive, prp, xgrpo, ftis",
        ),
        ("controls", "defaults that nobody published: naive; settings of their own: sgt-1, hacpo-wide"),
    ],
)
def test_published_defaults_stand_on_published_regimes_alone(suite: str, words: str) -> None:
    """The badge stood on naive pooling, F-TIS as we read it, and the baseline."""
    assert category(load(suite)) == words
