"""XGRPO, Cross-Policy GRPO Advantage Sharing: sharing at the level of values (Mutual RL, arXiv 2605.07244)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from harness.experience.answers import Group, Inbox
from harness.experience.records import GroupValue
from harness.learning.advantages import EPSILON, GRPO, Rewards, deviation_of, own_term, rewards_of
from harness.learning.regime import Context, Regime
from harness.learning.terms import Term
from harness.suite.space import Choice, Range


@dataclass(frozen=True)
class XGRPOOptions:
    """baseline: `pooled` b = mean over all answers; `mixed` b = (1 - beta) leave-one-out own mean + beta peers' mean (unbiased
    for `normalise: none`). normalise: by the pooled deviation or not."""

    baseline: Annotated[Literal["pooled", "mixed"], Choice("pooled", "mixed")] = "pooled"
    beta: Annotated[float, Range(0.0, 1.0), Meta(ge=0, le=1)] = 0.5
    normalise: Annotated[Literal["std", "none"], Choice("std", "none")] = "std"


class XGRPO(Regime):
    """Peers send only statistics, which change the baseline of own answers.

    Paper. Our reading: A_i = (R_i - b) / (std_U + 1e-6).
    """

    Options = XGRPOOptions
    shares = frozenset({GroupValue})

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """Make GRPO's term with the peers' baseline."""
        return [
            own_term(
                own, lambda g: self._compute_advantages(rewards_of(g.valid), inbox.values.get(g.prompt.id, ())), GRPO
            )
        ]

    def _compute_advantages(self, rewards: Rewards, values: Sequence[GroupValue]) -> Rewards:
        """Compute advantages over a baseline of own and peers' rewards to one prompt.

        The baseline is the mean of all of them; with `mixed`, beta of the peers' mean and the rest of the mean of the other own
        rewards, which leaves the answer's own one out. values: peers' counts, taken for rewards of 0 and 1."""
        peers = np.concatenate([_binary_rewards(v) for v in values]) if values else np.empty(0)
        pool = np.concatenate([rewards, peers])
        baseline: Rewards | float = pool.mean()
        if self.options.baseline == "mixed" and peers.size:
            beta = self.options.beta
            n = rewards.size
            others = (rewards.sum() - rewards) / (n - 1) if n > 1 else peers.mean()
            baseline = (1 - beta) * others + beta * peers.mean()
        if self.options.normalise == "std":
            return (rewards - baseline) / (deviation_of(pool) + EPSILON)
        return rewards - baseline


def _binary_rewards(value: GroupValue) -> Rewards:
    return np.concatenate([np.ones(value.right), np.zeros(value.count - value.right)])
