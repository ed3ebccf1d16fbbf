"""Borrow: peers' right answers join the group where a policy is mostly wrong."""

from dataclasses import dataclass

from harness.experience.records import TextRollout
from harness.learning.advantages import GRPO, own_answers, peer_answer, rewards_of, standardise
from harness.learning.regime import Need, Regime
from harness.learning.terms import Term


@dataclass(frozen=True)
class BorrowOptions:
    """below: peers help where less than this share of own answers is right."""

    below: float = 0.5


class Borrow(Regime):
    """GRPO over own answers and, on hard prompts, peers' right ones."""

    Options = BorrowOptions
    shares = frozenset({TextRollout})
    needs = frozenset({Need.RECEIVER_OLD})

    def learn(self, own, inbox, context):
        mine, theirs = [], []
        for group in own:
            if not group.valid:
                continue
            hard = group.rewards.mean() < self.options.below
            right = [p for p in inbox.valid(group.prompt.id) if hard and p.reward > 0]
            pool = rewards_of([*group.valid, *right])
            advantages = standardise(pool, pool)
            n = len(group.valid)
            mine += own_answers(group, advantages[:n])
            theirs += [peer_answer(p, a, p.receiver_old) for p, a in zip(right, advantages[n:], strict=True)]
        return [Term("own", "own", GRPO, tuple(mine)), Term("peer", "peer", GRPO, tuple(theirs))]
