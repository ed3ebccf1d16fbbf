"""Golds that allow an error, written `4.2 (within 0.1)`.

OlympiadBench states such an error beside the answers that it rounded. It stands in the gold itself, so that the row of an answer
shows by what it was judged, and a set's digest changes with it.
"""

from __future__ import annotations

import re
from fractions import Fraction

_TOLERANT = re.compile(r"(?P<gold>.+) \(within (?P<error>\d+(?:\.\d+)?)\)", re.DOTALL)


def with_tolerance(gold: str, error: Fraction) -> str:
    """Return the gold that every number within `error` of `gold` answers. error: positive, with a finite decimal.

    Raises ValueError where the error is not positive or has no finite decimal of twelve places.
    """
    decimal = f"{float(error):.12f}".rstrip("0").rstrip(".")
    if error <= 0 or Fraction(decimal) != error:
        raise ValueError(f"an error of {error} is not a positive decimal number")
    return f"{gold} (within {decimal})"


def split_tolerance(gold: str) -> tuple[str, Fraction | None]:
    """Split a gold into the bare gold and its tolerance; None where it states none."""
    match = _TOLERANT.fullmatch(gold)
    if match is None:
        return gold, None
    return match["gold"], Fraction(match["error"])


def without_tolerance(gold: str) -> str:
    """Return a gold as readings without tolerance compare it."""
    return split_tolerance(gold)[0]
