"""Regimes whose declarations contradict themselves."""

from harness.experience.records import Success
from harness.learning.regime import Need, Regime


class Greedy(Regime):
    """Needs log-probabilities that no peer sends."""

    shares = frozenset({Success})
    needs = frozenset({Need.ALIGNED})


class Careless(Regime):
    """Cannot be built."""

    def __init__(self, options=None):
        raise KeyError("forgot something")
