"""PRP, Peer Rollout Pooling: sharing at the level of data (Mutual RL, arXiv 2605.07244)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from harness.experience.answers import Group, Inbox, PeerAnswer
from harness.experience.records import Rollout
from harness.learning.advantages import GRPO, Rewards, by_author, own_answers, peer_answer, rewards_of, standardise
from harness.learning.regime import Context, Need, Regime
from harness.learning.terms import Term
from harness.suite.space import Choice, Range


@dataclass(frozen=True)
class PRPOptions:
    """ratio of peer tokens: to the aligned peer log-probabilities (`behaviour`), to the learner's old ones (`receiver_old`), or
    `none`: the score function. groups: statistics over the union, or inside each source's group. normalise: by the deviation or
    not."""

    ratio: Annotated[Literal["behaviour", "receiver_old", "none"], Choice("behaviour", "receiver_old", "none")] = (
        "behaviour"
    )
    groups: Annotated[Literal["union", "per_source"], Choice("union", "per_source")] = "union"
    normalise: Annotated[Literal["std", "none"], Choice("std", "none")] = "std"
    clip_low: Annotated[float, Range(0.05, 1.0), Meta(ge=0, le=1)] = 0.2
    clip_high: Annotated[float, Range(0.05, 5.0, "log"), Meta(ge=0)] = 0.28


class PRP(Regime):
    """Peers' answers as extra trajectories, corrected by density ratios.

    Published: raw rollouts are pooled, peer rows keep (r, A) or have advantages over the union group, with either denominator
    (paper and figure). Our reading: A = (R - mean_U) / (std_U + 1e-6), ppo clip 0.2 / 0.28; old_k is the trainer's, a peer's
    behaviour its sampler's.
    """

    Options = PRPOptions
    shares = frozenset({Rollout})

    @property
    def needs(self) -> frozenset[Need]:
        return {
            "behaviour": frozenset({Need.ALIGNED}),
            "receiver_old": frozenset({Need.RECEIVER_OLD}),
            "none": frozenset[Need](),
        }[self.options.ratio]

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """Learn by token ratios with one token normaliser."""
        mine = []
        theirs = []
        for group in own:
            peers = inbox.valid(group.prompt.id)
            union = rewards_of([*group.valid, *peers])
            if group.valid:
                mine += own_answers(group, self._compute_advantages(rewards_of(group.valid), union))
            for source in by_author(peers):
                advantages = self._compute_advantages(rewards_of(source), union)
                theirs += [
                    peer_answer(p, a, self._compute_denominator(p)) for p, a in zip(source, advantages, strict=True)
                ]
        objective = replace(GRPO, low=1 - self.options.clip_low, high=1 + self.options.clip_high)
        return [Term("own", "own", objective, tuple(mine)), Term("peer", "peer", objective, tuple(theirs))]

    def _compute_advantages(self, rewards: Rewards, union: Rewards) -> Rewards:
        pool = union if self.options.groups == "union" else rewards
        return standardise(rewards, pool, self.options.normalise == "std")

    def _compute_denominator(self, answer: PeerAnswer) -> np.ndarray | None:
        return {"behaviour": answer.aligned, "receiver_old": answer.receiver_old, "none": None}[self.options.ratio]
