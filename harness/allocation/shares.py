"""Shares of GPUs: unequal policies should finish a step together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Seconds = Callable[[str, int], float]
"""Seconds of a step of a policy on so many GPUs; infinite where it does not fit."""


def apportion(policies: Mapping[str, int], gpus: int, seconds: Seconds) -> dict[str, int] | None:
    """GPUs per policy that minimise the slowest policy's step, or None if even the least does not fit.

    policies: name to the least number of GPUs it fits on. One GPU after the other goes to the policy that is slowest at
    that moment; where a policy's next useful size is further off (a size that is no faster), it takes the whole jump. For
    seconds that never rise with GPUs this greedy is optimal: in any better division the slowest policy here would have more
    GPUs, so another would have fewer than when it was itself the slowest. GPUs that help nobody stay unused.
    """
    share = dict(policies)
    left = gpus - sum(share.values())
    if left < 0:
        return None
    while left > 0:
        slowest = max(share, key=lambda name: (seconds(name, share[name]), name))
        now = seconds(slowest, share[slowest])
        jump = next((n for n in range(1, left + 1) if seconds(slowest, share[slowest] + n) < now), 0)
        if not jump:
            break
        share[slowest] += jump
        left -= jump
    return share
