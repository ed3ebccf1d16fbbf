"""Answers to what was claimed before a run: supported, refuted, undecided, or not identified.

A claim says on which side of a bound a number lies. Its p-value is that of the two-sided test at which the number is told from
the bound; those of a suite are one family, corrected by Holm's method among themselves alone. A claim is answered from the suite's
first seeds, in order. Before all of them are there it is answered at a level of INTERIM only, and the last look has what earlier
looks may have spent less (Haybittle, Brit. J. Radiol. 44, 1971; the sum of the levels bounds the error of all looks together).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import Literal

import numpy as np

from harness.statistics.comparison import ALPHA, correct_by_holm

Relation = Literal["above", "below", "within"]
SUPPORTED, REFUTED, UNDECIDED, UNIDENTIFIED = "supported", "refuted", "undecided", "not identified"
# The level of a look before all seeds are there, and the fewest seeds that one can look at
INTERIM, FIRST_LOOK = 0.001, 3


@dataclass(frozen=True, slots=True)
class MeasuredClaim:
    """A number that a claim is about. error: standard error, with `freedom` degrees of freedom. problem: why it is not known."""

    value: float
    error: float
    freedom: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a number lies if the claim holds: between both, one of which may be infinite; in the number's own unit."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class TestedClaim:
    """answer: one of SUPPORTED, REFUTED, UNDECIDED, UNIDENTIFIED. p: corrected among the claims; NaN where not identified."""

    answer: str
    p: float


def bounds_of(relation: Relation, low: float, high: float) -> Bounds:
    """Return the bounds of a claim. low, high: equal for `above` and `below`, the ends for `within`."""
    if relation == "above":
        return Bounds(high, inf)
    if relation == "below":
        return Bounds(-inf, low)
    return Bounds(low, high)


def level_of_look(done: int, planned: int) -> float:
    """Return the level at which claims are answered after `done` of `planned` seeds."""
    if done < planned:
        return INTERIM
    return ALPHA - INTERIM * max(0, planned - FIRST_LOOK)


def answer_claims(
    measured: Sequence[MeasuredClaim], bounds: Sequence[Bounds], levels: Sequence[float]
) -> list[TestedClaim]:
    """Answer the claims of one suite, corrected among themselves. levels: of each claim's look (`level_of_look`).

    A corrected p-value at most ALPHA is an answer: p-values of an earlier look are raised by ALPHA over its level before.
    """
    p = np.full(len(measured), np.nan)
    for place, (one, within) in enumerate(zip(measured, bounds, strict=True)):
        if not one.problem and not isnan(one.error):
            own_p = _p_of_claim(one, within)
            raised = own_p * ALPHA / levels[place]
            p[place] = min(1.0, raised)
    corrected, _ = correct_by_holm(p)
    answers = []
    for one, within, own in zip(measured, bounds, corrected, strict=True):
        if isnan(own):
            answers.append(TestedClaim(UNIDENTIFIED, float(own)))
        elif own > ALPHA:
            answers.append(TestedClaim(UNDECIDED, float(own)))
        else:
            holds = within.low < one.value < within.high
            answers.append(TestedClaim(SUPPORTED if holds else REFUTED, float(own)))
    return answers


def _p_of_claim(measured: MeasuredClaim, bounds: Bounds) -> float:
    """Return the two-sided p-value at which the number is told from the nearest bound.

    For `within` the number must be told from both bounds to lie inside (two one-sided tests), from one of them to lie outside.
    """
    from scipy.special import stdtr

    if measured.error == 0:
        return 1.0 if measured.value in (bounds.low, bounds.high) else 0.0
    to_low = (measured.value - bounds.low) / measured.error
    to_high = (bounds.high - measured.value) / measured.error
    nearest = abs(min(to_low, to_high))
    return float(2 * stdtr(measured.freedom, -nearest))
