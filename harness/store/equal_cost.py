"""Does a gain hold against independent training that costs as much, and at the learning rate that suits independent training best?

A regime that learns from a peer's answers trains on twice as many. The baseline at the same rollout budget is cheaper, and may have
a learning rate that does not suit it. A gain is *found* only where three comparisons agree: with the baseline at the same rollout
budget, with the baseline of nearest cost, and with the baseline at its best rate. Rivals are chosen on the seeds on which they are
compared, which favours them: what is found is found in spite of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import TypeVar

import numpy as np

from harness.statistics import Estimate, correct_by_holm
from harness.statistics.comparison import ALPHA, GAINS

Line = TypeVar("Line", bound=Hashable)

FOUND = "found"
NOT_AT_COST, NOT_AT_RATE, NOT_CORRECTED = "not at equal cost", "not at the baseline's best rate", "not after correction"
NO_EQUAL = "no baseline of equal cost"
# A baseline that costs less than this share of a line says nothing of equal cost; a dearer one does, against the line
LEAST_COST = 0.8


@dataclass(frozen=True, slots=True)
class Candidate:
    """A line of independent training that others may be compared with. rate: learning rate, None where unknown. multiple: rollout
    budget as a multiple of the suite's. cost: mean over seeds, in sampled tokens. accuracy: mean over seeds. dynamic: whether it
    replaces prompts."""

    name: str
    rate: float | None
    multiple: float
    cost: float
    accuracy: float
    dynamic: bool = False


@dataclass(frozen=True, slots=True)
class Rivals:
    """A line against independent training. nearest: the line of nearest cost; nearest_cost: its cost over the line's own;
    over_nearest: the gain over it. best_rate: the line with the same rollouts at its best learning rate; over_best_rate likewise.
    rates: how many learning rates of independent training the suite has at these rollouts. found: FOUND, or why not; empty for a
    line that does not gain."""

    nearest: str
    nearest_cost: float
    over_nearest: Estimate
    best_rate: str
    over_best_rate: Estimate
    rates: int
    found: str = ""


def choose_equal_cost(cost: float, candidates: Sequence[Candidate]) -> Candidate:
    """Choose the candidate of nearest cost, as a ratio, among those of at least LEAST_COST of the line's; of equals the dearer.

    Where every candidate is cheaper than that, the nearest is returned, and the line has no baseline of equal cost.
    """
    dear_enough = [one for one in candidates if one.cost >= LEAST_COST * cost]
    return min(dear_enough or candidates, key=lambda one: (abs(log(one.cost / cost)), -one.cost))


def choose_best_rate(multiple: float, candidates: Sequence[Candidate]) -> tuple[Candidate | None, int]:
    """Choose the candidate with these rollouts whose learning rate gave the best accuracy, and count the rates.

    A suite that lacks the budget has the rates of the smallest one it has. None where there is no candidate.
    """
    plain = [one for one in candidates if not one.dynamic]
    if not plain:
        return None, 0
    budget = multiple if any(one.multiple == multiple for one in plain) else min(one.multiple for one in plain)
    alike = [one for one in plain if one.multiple == budget]
    return max(alike, key=lambda one: one.accuracy), len({one.rate for one in alike})


def judge_found(
    verdicts: Mapping[Line, str], gains: Mapping[Line, Estimate], rivals: Mapping[Line, Rivals]
) -> dict[Line, str]:
    """Say of each line whether its gain is found, or why not; all are one family of tests.

    verdicts, gains: over the baseline at the same rollout budget. A line's p-value is the largest of its three (intersection-union,
    Berger, Technometrics 24, 1982), and is corrected by Holm's method for all lines. Lines that do not gain are absent.
    """
    lines = [line for line in rivals if gains[line].n > 1]
    largest = []
    for line in lines:
        three = (gains[line], rivals[line].over_nearest, rivals[line].over_best_rate)
        largest.append(max(_p_of_a_gain(one) for one in three))
    corrected, _ = correct_by_holm(np.array(largest))
    said: dict[Line, str] = {}
    for line, p in zip(lines, corrected, strict=True):
        if verdicts[line] != GAINS:
            continue
        if rivals[line].nearest_cost < LEAST_COST:
            said[line] = NO_EQUAL
        elif p <= ALPHA:
            said[line] = FOUND
        elif _p_of_a_gain(rivals[line].over_nearest) > ALPHA:
            said[line] = NOT_AT_COST
        elif _p_of_a_gain(rivals[line].over_best_rate) > ALPHA:
            said[line] = NOT_AT_RATE
        else:
            said[line] = NOT_CORRECTED
    return said


def _p_of_a_gain(gain: Estimate) -> float:
    """Return the two-sided p-value of a gain; 1 for a loss, and where there are too few seeds."""
    if not gain.mean > 0 or np.isnan(gain.p):
        return 1.0
    return float(gain.p)
