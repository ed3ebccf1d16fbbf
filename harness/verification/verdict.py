"""What a verifier says of one answer."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Decision", "Verdict"]

Decision = Literal["right", "wrong", "invalid"]


class Verdict(msgspec.Struct, frozen=True):
    """A verifier's decision on one answer.

    `right` and `wrong` are decisions about the answer: a missing, unreadable, truncated or over-limit answer is wrong.
    So is one that takes more time or memory than a pair has: its author would else choose which failures count.
    `invalid` means that the verifier itself failed; such an answer is left out of every statistic and of every loss, and
    counted. It is never a zero.

    Attributes
    ----------
    value
        The decision.
    reason
        Of a wrong or invalid one: `missing`, `over-limit: ...`, `timeout` of a stopped process, `crash`.
    extracted
        What was taken for the answer, cut short.
    """

    value: Decision
    reason: str = ""
    extracted: str = ""

    @property
    def valid(self) -> bool:
        """Whether the verifier could decide."""
        return self.value != "invalid"

    @property
    def reward(self) -> float:
        """1.0 for right, 0.0 for wrong, NaN for invalid: an invalid verdict used as a number poisons the sum visibly."""
        return {"right": 1.0, "wrong": 0.0}.get(self.value, float("nan"))
