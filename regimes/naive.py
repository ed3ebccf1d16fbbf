"""Naive pooling: every policy's answers as if they were one's own."""

from __future__ import annotations

from collections.abc import Sequence

from harness.experience.answers import Group, Inbox
from harness.experience.records import TextRollout
from harness.learning.advantages import GRPO, own_answers, peer_answer, rewards_of, standardise
from harness.learning.regime import Context, Need, Regime
from harness.learning.terms import Term


class Naive(Regime):
    """Peers' answers as if they were own ones.

    Joint group mean and std, token ratio to the learner's own old log-probabilities, no correction. Our reading: the papers'
    "Naive" (arXiv 2603.02604, Table 1) is not defined exactly.
    """

    shares = frozenset({TextRollout})
    needs = frozenset({Need.RECEIVER_OLD})

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """Make the term of GRPO's objective, with one token normaliser."""
        mine = []
        theirs = []
        for group in own:
            peers = inbox.valid(group.prompt.id)
            pool = rewards_of([*group.valid, *peers])
            if pool.size == 0:
                continue
            advantages = standardise(pool, pool)
            mine += own_answers(group, advantages[: len(group.valid)])
            theirs += [
                peer_answer(p, a, p.receiver_old) for p, a in zip(peers, advantages[len(group.valid) :], strict=True)
            ]
        return [Term("own", "own", GRPO, tuple(mine)), Term("peer", "peer", GRPO, tuple(theirs))]
