"""GRAFT: whole peer groups replace groups that carry no signal (arXiv 2609.37868)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from harness.experience.answers import Group, Inbox, PeerAnswer
from harness.experience.records import Rollout
from harness.learning.advantages import (
    GRPO,
    by_author,
    grpo_advantages,
    own_answers,
    peer_answer,
    rewards_of,
    standardise,
)
from harness.learning.regime import Context, Need, Regime
from harness.learning.terms import Term
from harness.suite.space import Range


@dataclass(frozen=True)
class GRAFTOptions:
    """threshold: cross ratio above which a peer answer is compatible (0.8, paper)."""

    threshold: Annotated[float, Range(0.0, 0.98), Meta(ge=0, lt=1)] = 0.8


class GRAFT(Regime):
    """Where all own answers fail, a peer's group that is right in part.

    Paper: C(j->k) = prompts with 0 of G right for k and 1 <= right_j < G; of them the q = min(|C(j->k)|, |C(k->j)|) with most
    right, ties kept; the peer's own advantages; weight 1[s > 0.8] min(s, 1), s the cross ratio at pi_old; token ratio to old_k;
    peer groups last. Our reading: of several peers the one with most right, then policy order; old_k is the trainer's.
    """

    Options: ClassVar[type] = GRAFTOptions
    published = "arXiv 2609.37868"
    shares = frozenset({Rollout})
    needs = frozenset({Need.RECEIVER_OLD})

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """GRPO on the kept own groups, then on the replacing ones."""
        chosen = self.choose(own, inbox, context.policies)
        mine = [t for g in own if g.valid and g.prompt.id not in chosen for t in own_answers(g, grpo_advantages(g))]
        theirs = []
        for group in chosen.values():
            rewards = rewards_of(group)
            for answer, advantage in zip(group, standardise(rewards, rewards), strict=True):
                weight = self._compatibility(answer)
                theirs.append(peer_answer(answer, advantage, answer.receiver_old, weight=weight))
        return [Term("own", "own", GRPO, tuple(mine)), Term("peer", "peer", GRPO, tuple(theirs), order=1)]

    def choose(self, own: Sequence[Group], inbox: Inbox, order: Sequence[str]) -> Mapping[str, list[PeerAnswer]]:
        """The peer group that replaces the learner's, by prompt."""
        candidates: dict[str, dict[str, tuple[int, list[PeerAnswer]]]] = {}
        returned: dict[str, int] = {}
        for group in own:
            right = sum(a.reward > 0 for a in group.valid)
            for peers in by_author(inbox.valid(group.prompt.id)):
                author, peers_right = peers[0].author, sum(p.reward > 0 for p in peers)
                if group.valid and right == 0 and 1 <= peers_right < len(peers):
                    candidates.setdefault(author, {})[group.prompt.id] = (peers_right, peers)
                if peers_right == 0 and 1 <= right < len(group.valid):
                    returned[author] = returned.get(author, 0) + 1
        best: dict[str, tuple[int, list[PeerAnswer]]] = {}
        for author in sorted(candidates, key=lambda a: order.index(a) if a in order else len(order)):
            prompts = candidates[author]
            quota = min(len(prompts), returned.get(author, 0))
            if quota == 0:
                continue
            edge = sorted((n for n, _ in prompts.values()), reverse=True)[quota - 1]
            for prompt_id, (n, peers) in prompts.items():
                if n >= edge and n > best.get(prompt_id, (0, []))[0]:
                    best[prompt_id] = (n, peers)
        return {g.prompt.id: best[g.prompt.id][1] for g in own if g.prompt.id in best}

    def _compatibility(self, answer: PeerAnswer) -> float:
        assert answer.receiver_old is not None
        mine = answer.receiver_old[: answer.content.size]
        ratio = float(np.exp(min(mine.mean(dtype=np.float64) - answer.source_logprob / answer.source_tokens, 0.0)))
        return ratio if ratio > self.options.threshold else 0.0
