"""SAPO: swarm sampling, peers' groups learnt as if sampled here (arXiv 2509.08721, with its released code)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from harness.experience.answers import Group, Inbox, PeerAnswer
from harness.experience.records import TextRollout
from harness.learning.advantages import GRPO, by_author, grpo_advantages, own_term, peer_answer, rewards_of, standardise
from harness.learning.regime import Context, Need, Regime
from harness.learning.terms import Term, TermAnswer
from harness.suite.space import Choice


@dataclass(frozen=True)
class SAPOOptions:
    """external: peer groups a step (J); by default as many as own ones (best in the paper)."""

    external: Annotated[Annotated[int, Meta(ge=0)] | None, Choice(None, 4, 8, 32)] = None


class SAPO(Regime):
    """Each peer group stays a separate GRPO group; only text is sent.

    J external groups are drawn uniformly from those of nonzero advantage; denominators are the learner's own old
    log-probabilities (paper and code).
    """

    Options = SAPOOptions
    published = "arXiv 2509.08721"
    shares = frozenset({TextRollout})
    needs = frozenset({Need.RECEIVER_OLD})

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """Learn by GRPO on own and drawn groups."""
        external = []
        for group in own:
            for peers in by_author(inbox.valid(group.prompt.id)):
                right = sum(peer.reward > 0 for peer in peers)
                if 0 < right < len(peers):  # else every advantage is zero
                    external.append(peers)
        mine = sum(bool(group.answers) for group in own)  # earlier prompts' groups are empty
        count = min(len(external), mine if self.options.external is None else self.options.external)
        drawn = sorted(context.rng.choice(len(external), size=count, replace=False)) if count else []
        theirs: list[TermAnswer] = []
        for place in drawn:
            theirs += _as_group(external[place])
        return [own_term(own, grpo_advantages, GRPO), Term("peer", "peer", GRPO, tuple(theirs))]


def _as_group(peers: Sequence[PeerAnswer]) -> list[TermAnswer]:
    """Take a peer's answers with GRPO's advantages among themselves."""
    rewards = rewards_of(peers)
    return [peer_answer(p, a, p.receiver_old) for p, a in zip(peers, standardise(rewards, rewards), strict=True)]
