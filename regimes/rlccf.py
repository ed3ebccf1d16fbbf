"""RLCCF and Co-RL: rewards without labels, by the vote of all policies (arXiv 2508.12338) or of one peer (arXiv 2608.17253); of
both only the abstract was at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from harness.experience.answers import Answer, Group, Inbox, PeerAnswer
from harness.experience.records import TextRollout
from harness.learning.advantages import GRPO, Rewards, by_author, own_term, rewards_of, standardise
from harness.learning.regime import Context, Regime
from harness.learning.terms import Term
from harness.verification.scorer import Same


@dataclass(frozen=True)
class RLCCFOptions:
    """vote: of all policies, weighted by self-consistency (`all`, RLCCF), or of the next policy of the group alone, the first's
    for the last (`peer`, Co-RL)."""

    younger: ClassVar[Mapping[str, Any]] = {"vote": "all"}

    vote: Literal["all", "peer"] = "all"


class RLCCF(Regime):
    """GRPO on own answers, rewarded by the vote of all policies.

    Abstracts: RLCCF: collective consistency as the reward, votes weighted by self-consistency. Co-RL: reward 1 for the answers
    that equal the majority answer of a designated peer. Our reading: a policy's votes are the shares of its answers, times the
    largest of them; reward 1 for the winner, the first of equals; a ring of policies in their order; on a prompt to which no
    voting peer has an answer the verifier's verdict stands, so that alone it is GRPO.
    """

    Options = RLCCFOptions
    shares = frozenset({TextRollout})
    peer_share = 0.0

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """Learn from own answers alone, with the vote's rewards."""

        def advantages(group: Group) -> Rewards:
            same = context.same_of(group.prompt)
            peers = by_author(inbox.valid(group.prompt.id))
            if self.options.vote == "peer":
                peers = [answers for answers in peers if answers[0].author == next_in_ring(context)]
                rewards = vote_rewards(group.valid, peers, same, own_votes=False) if peers else rewards_of(group.valid)
            else:
                rewards = vote_rewards(group.valid, peers, same) if peers else rewards_of(group.valid)
            return standardise(rewards, rewards)

        return [own_term(own, advantages, GRPO)]


def next_in_ring(context: Context) -> str:
    """Return the policy behind the learner in the suite's order, the first behind the last."""
    place = context.policies.index(context.learner)
    return context.policies[(place + 1) % len(context.policies)]


def vote_rewards(
    own: Sequence[Answer], peers: Sequence[Sequence[PeerAnswer]], same: Same, own_votes: bool = True
) -> Rewards:
    """Give 1 for own answers that agree with the winner of the vote; 0 for others, cut off or empty ones. same: the task's
    scorer's rule. own_votes: whether own answers have a vote."""
    kinds: list[str] = []

    def kind(said: str) -> int:
        """Return which of the different answers this is, -1 for none."""
        index = next((i for i, other in enumerate(kinds) if same(other, said)), len(kinds))
        if said and index == len(kinds):
            kinds.append(said)
        return index if said else -1

    voters: list[Sequence[Answer | PeerAnswer]] = [own, *peers] if own_votes else [*peers]
    ballots = [[kind(answer.verdict.extracted) for answer in answers] for answers in voters]
    mine = [kind(answer.verdict.extracted) for answer in own]
    votes = np.zeros(len(kinds))
    for ballot in ballots:
        counts = np.array([ballot.count(i) for i in range(len(kinds))])
        votes += counts * max(counts, default=0) / len(ballot) ** 2
    winner = int(votes.argmax()) if votes.any() else None
    return np.array([float(said == winner) for said in mine])
