"""What a regime is worth in rollouts of one's own: as many as give independent training the same pace [our definition].

Independent training at several budgets makes a ladder of paces, on the clock of the smallest budget. A regime's pace is placed
between its rungs, both on logarithmic scales: twice the rollouts are one step up wherever one begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Literal

import numpy as np
from jaxtyping import Float

from harness.statistics.acceleration import Acceleration, jackknife_error, student_quantile


@dataclass(frozen=True, slots=True)
class Worth:
    """rollouts: of one's own that give the same pace, as a multiple of the baseline's, with the ends of its interval. beyond: on
    which side of the ladder the pace lies; then `rollouts` is the ladder's last rung there, and there is no interval."""

    rollouts: float
    low: float = nan
    high: float = nan
    beyond: Literal["", "<", ">"] = ""


def estimate_worth(regime: Acceleration, ladder: Mapping[float, Acceleration], level: float = 0.95) -> Worth | None:
    """Place a regime's pace on the ladder of independent training.

    ladder: by budget, as a multiple of the baseline's, the pace of independent training on the baseline's own clock; 1 is added
    with pace 1. All are of the same seeds. level: of the interval, Student t over the jackknife of seeds. None where a fit was
    refused, or where more rollouts are not seen to be faster: then there is no scale.
    """
    rungs = {}
    for budget, fit in ladder.items():
        if budget != 1 and not fit.problem and fit.n == regime.n:
            rungs[budget] = fit
    if regime.problem or not rungs:
        return None
    budgets = sorted([1.0, *rungs])
    paces = np.array([rungs[budget].kappa if budget in rungs else 1.0 for budget in budgets])
    if not _always_rise(paces):
        return None
    if regime.kappa < paces[0]:
        return Worth(budgets[0], beyond="<")
    if regime.kappa > paces[-1]:
        return Worth(budgets[-1], beyond=">")
    doublings = _place_on_ladder(regime.kappa, paces, budgets)
    left_out = []
    for seed, pace in enumerate(regime.paces):
        without = np.array([rungs[budget].paces[seed] if budget in rungs else 1.0 for budget in budgets])
        if not _always_rise(without):
            # a ladder that one seed overturns gives no interval
            return Worth(2.0**doublings)
        left_out.append(_place_on_ladder(pace, without, budgets))
    error = jackknife_error(np.array(left_out))
    half = student_quantile(level, regime.n - 1) * error
    low = 2.0 ** (doublings - half)
    high = 2.0 ** (doublings + half)
    return Worth(2.0**doublings, low, high)


def _always_rise(paces: Float[np.ndarray, "rungs"]) -> bool:
    """Say whether each budget of the ladder is faster than the one below it."""
    return not np.any(np.diff(paces) <= 0)


def _place_on_ladder(pace: float, paces: Float[np.ndarray, "rungs"], budgets: Sequence[float]) -> float:
    """Return the base-2 logarithm of the budget at a pace, linear between rungs and, for a left-out seed, a little beyond them."""
    known = np.log(paces)
    doublings = np.log2(budgets)
    sought = np.log(pace)
    place = np.searchsorted(known, sought)
    above = int(np.clip(place, 1, len(known) - 1))
    below = above - 1
    slope = (doublings[above] - doublings[below]) / (known[above] - known[below])
    beyond = sought - known[below]
    return float(doublings[below] + slope * beyond)
