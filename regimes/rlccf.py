"""RLCCF: rewards without labels, by the vote of all policies (arXiv 2508.12338, of which only the abstract was at hand)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.experience.answers import Answer, Group, Inbox, PeerAnswer
from harness.experience.records import TextRollout
from harness.learning.advantages import GRPO, Rewards, by_author, own_term, rewards_of, standardise
from harness.learning.regime import Context, Regime
from harness.learning.terms import Term
from harness.verification.scorer import Same


class RLCCF(Regime):
    """GRPO on own answers, rewarded by the vote of all policies.

    Abstract: collective consistency as the reward, votes weighted by self-consistency. Our reading: a policy's votes are the
    shares of its answers, times the largest of them; reward 1 for the winner, the first of equals; on a prompt that no peer
    answered the verifier's verdict stands, so that alone it is GRPO.
    """

    shares = frozenset({TextRollout})
    peer_share = 0.0

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """Own answers alone, with the vote's rewards."""

        def advantages(group: Group) -> Rewards:
            peers = by_author(inbox.valid(group.prompt.id))
            rewards = voted(group.valid, peers, context.same) if peers else rewards_of(group.valid)
            return standardise(rewards, rewards)

        return [own_term(own, advantages, GRPO)]


def voted(own: Sequence[Answer], peers: Sequence[Sequence[PeerAnswer]], same: Same) -> Rewards:
    """1 for own answers that agree with the winner of the vote; 0 for others, cut off or empty ones. same: the task's scorer's
    rule."""
    kinds: list[str] = []

    def kind(said: str) -> int:
        """Which of the different answers, -1 for none."""
        index = next((i for i, other in enumerate(kinds) if same(other, said)), len(kinds))
        if said and index == len(kinds):
            kinds.append(said)
        return index if said else -1

    everyone: list[Sequence[Answer | PeerAnswer]] = [own, *peers]
    ballots = [[kind(answer.verdict.extracted) for answer in answers] for answers in everyone]
    votes = np.zeros(len(kinds))
    for ballot in ballots:
        counts = np.array([ballot.count(i) for i in range(len(kinds))])
        votes += counts * max(counts, default=0) / len(ballot) ** 2
    winner = int(votes.argmax()) if kinds else None
    return np.array([float(said == winner) for said in ballots[0]])
