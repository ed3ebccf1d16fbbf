"""Verdicts."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["RIGHT_AS_IT_STANDS", "TRUNCATED", "Verdict", "of_unfinished"]

KEPT = 512  # characters


class Verdict(msgspec.Struct, frozen=True):
    """A decision on one answer.

    Missing, unreadable and over-limit answers are wrong. `invalid`: the verifier failed; left out of statistics and losses.
    """

    value: Literal["right", "wrong", "invalid"]
    reason: str = ""
    extracted: str = ""

    @property
    def valid(self) -> bool:
        """Whether the verifier could decide."""
        return self.value != "invalid"

    @property
    def reward(self) -> float:
        """1.0, 0.0, or NaN for invalid."""
        return {"right": 1.0, "wrong": 0.0}.get(self.value, float("nan"))


TRUNCATED = Verdict("wrong", "truncated")
"""Of an answer that was cut off: it has no last word, so it is wrong and no vote, in training, curves, evaluation and rescoring
alike."""
RIGHT_AS_IT_STANDS = "truncated: right as it stands"
"""The reason where its text would be right: `lenient` shares count it, as lm-eval does."""


def of_unfinished(as_it_stands: Verdict) -> Verdict:
    """Return the verdict of a cut off answer whose text alone has the verdict `as_it_stands`."""
    return Verdict("wrong", RIGHT_AS_IT_STANDS) if as_it_stands.value == "right" else TRUNCATED
