"""How likely a comparison of so many seeds is to find an effect of a given size."""

from __future__ import annotations

from math import sqrt


def find_power(spread: float, seeds: int, effect: float, level: float = 0.95) -> float:
    """Return the probability with which a paired t test over the seeds finds the effect, with its sign.

    spread: standard deviation of the seeds' differences, in the unit of `effect`. level: of the test's interval. The statistic has
    a noncentral t distribution; a significant result of the wrong sign does not count. 0 for fewer than two seeds.
    """
    from scipy.special import nctdtr, stdtrit

    if seeds < 2:
        return 0.0
    if spread == 0:
        return 1.0 if effect else 0.0
    freedom = seeds - 1
    critical = stdtrit(freedom, 0.5 + level / 2)
    noncentrality = abs(effect) * sqrt(seeds) / spread
    missed = nctdtr(freedom, noncentrality, critical)
    return float(1 - missed)
