"""F-TIS: peers' groups by truncated importance sampling, far failures filtered out (arXiv 2605.22537)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from harness.experience.answers import Group, Inbox, PeerAnswer
from harness.experience.records import Rollout
from harness.learning.advantages import GRPO, Rewards, by_author, own_answers, peer_answer, rewards_of, standardise
from harness.learning.regime import Context, Need, Regime
from harness.learning.terms import Objective, Term
from harness.suite.space import Choice, Range


@dataclass(frozen=True)
class FTISOptions:
    """truncation: C, a peer token's largest weight (published 2). filter_kl: gamma, nats (published 50). groups: statistics
    inside one author's group (`vertical`, published) or over all answers. beyond: a token over C keeps the constant weight C,
    or has no gradient. divergence: by k3 of log(pi_j / pi_k), or of its negative, the unbiased KL(author || learner)."""

    truncation: Annotated[float, Range(0.5, 10.0, "log"), Meta(gt=0)] = 2.0
    filter_kl: Annotated[float, Range(0.5, 500.0, "log"), Meta(ge=0)] = 50.0
    groups: Annotated[Literal["vertical", "union"], Choice("vertical", "union")] = "vertical"
    beyond: Literal["weight", "none"] = "weight"
    divergence: Literal["learner", "author"] = "learner"


class FTIS(Regime):
    """Peer groups, ratios cut off at C, unlikely failures left out.

    Published (abstract and the authors' summary): weights min(pi_k / pi_j, C), truncation above only; a peer answer is kept if
    its advantage is positive or its estimated KL is below gamma; advantages relative to the author's group. Our reading:
    `beyond`; the estimate is k3 summed over tokens at pi_old; filtered answers leave the normaliser; pi_j is the sampler's,
    aligned; own answers are GRPO's.
    """

    Options = FTISOptions
    shares = frozenset({Rollout})
    needs = frozenset({Need.ALIGNED, Need.RECEIVER_OLD})

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """GRPO on own answers, truncated importance sampling on peers'."""
        mine, theirs = [], []
        for group in own:
            peers = inbox.valid(group.prompt.id)
            union = rewards_of([*group.valid, *peers])
            if group.valid:
                mine += own_answers(group, self._advantages(rewards_of(group.valid), union))
            for source in by_author(peers):
                advantages = self._advantages(rewards_of(source), union)
                kept = [(p, a) for p, a in zip(source, advantages, strict=True) if self._keeps(p, a)]
                theirs += [peer_answer(p, a, p.aligned) for p, a in kept]
        form: Literal["truncated", "hard"] = "truncated" if self.options.beyond == "weight" else "hard"
        truncated = Objective(ratio="token", form=form, low=0.0, high=self.options.truncation, aggregation="token")
        return [Term("own", "own", GRPO, tuple(mine)), Term("peer", "peer", truncated, tuple(theirs))]

    def _advantages(self, rewards: Rewards, union: Rewards) -> Rewards:
        return standardise(rewards, rewards if self.options.groups == "vertical" else union)

    def _keeps(self, answer: PeerAnswer, advantage: float) -> bool:
        return bool(advantage > 0 or self.divergence(answer) < self.options.filter_kl)

    def divergence(self, answer: PeerAnswer) -> float:
        """k3 = exp(d) - 1 - d summed over tokens, nats; d = log(pi_j / pi_k) or its negative."""
        assert answer.receiver_old is not None
        assert answer.aligned is not None
        log_ratio = answer.aligned.astype(np.float64) - answer.receiver_old
        log_ratio = log_ratio if self.options.divergence == "learner" else -log_ratio
        with np.errstate(over="ignore"):
            return float((np.expm1(log_ratio) - log_ratio).sum())
