"""Verdicts."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Verdict"]

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
