"""GRAFT: whole peer groups replace groups that carry no signal (arXiv 2609.37868, algorithm 1 and appendix G)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

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
from harness.learning.terms import Term, TermAnswer
from harness.suite.space import Range

Chosen = Mapping[str, list[PeerAnswer]]
"""The peer group that replaces the learner's own, by prompt."""
# (order of the own term, order of the peers' term): the lower one is learnt first.
ORDERS: Mapping[str, tuple[int, int]] = {"last": (0, 1), "first": (1, 0), "uniform": (0, 0)}


@dataclass(frozen=True)
class GRAFTOptions:
    """The defaults are published; the others are the switches of tables 2a and 2b.

    threshold: the floor of the cross ratio s, at or below which a peer answer is removed (0.8; 0 is the paper's "no floor").
    admission: by the floor (`ratio`); as many answers drawn at random (`random`); all of them at weight 1 (`none`: "no gate").
    selection: of the prompts that qualify, as many in each direction, those with most right answers (`most_right`); as many
    drawn at random (`random`); all of them (`all`: "no balancing"). ratio: of a peer's tokens, one each or one an answer.
    groups: a peer group has its author's advantages and replaces the own group (`peer`); or both are one group (`pooled`).
    answers: of a peer group, all or the right ones alone. order: when mini-batches with peer groups are learnt."""

    threshold: Annotated[float, Range(0.0, 0.98), Meta(ge=0, lt=1)] = 0.8
    admission: Literal["ratio", "random", "none"] = "ratio"
    selection: Literal["most_right", "random", "all"] = "most_right"
    ratio: Literal["token", "sequence"] = "token"
    groups: Literal["peer", "pooled"] = "peer"
    answers: Literal["all", "right"] = "all"
    order: Literal["last", "first", "uniform"] = "last"


class GRAFT(Regime):
    """Where all own answers fail, a peer's group that is right in part.

    Paper: C(j->k) = prompts with 0 of G right for k and 1 <= right_j < G; of them the q = min(|C(j->k)|, |C(k->j)|) with most
    right, ties kept; the peer's own advantages; answers with s <= 0.8, s the cross ratio at pi_old, are removed before
    optimisation, so that the token mean divides by admitted tokens alone; the others weigh min(s, 1); token ratio to old_k;
    peer groups last. Our reading: of several peers the one with most right, then policy order; old_k is the trainer's; what the
    switches `none`, `random`, `sequence`, `pooled` and `right` compute exactly.
    """

    Options: ClassVar[type] = GRAFTOptions
    published = "arXiv 2609.37868"
    shares = frozenset({Rollout})
    needs = frozenset({Need.RECEIVER_OLD})

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """Learn by GRPO on the kept own groups, and on what is admitted of the replacing ones."""
        chosen = self.choose(own, inbox, context)
        mine: list[TermAnswer] = []
        offered: list[tuple[PeerAnswer, float]] = []
        for group in own:
            peers = chosen.get(group.prompt.id)
            if peers is None:
                mine += own_answers(group, grpo_advantages(group)) if group.valid else []
                continue
            pool = rewards_of(peers)
            if self.options.groups == "pooled":
                pool = rewards_of([*group.valid, *peers])
                mine += own_answers(group, standardise(rewards_of(group.valid), pool))
            offered += zip(peers, standardise(rewards_of(peers), pool), strict=True)
        first, then = ORDERS[self.options.order]
        prompts = tuple(group.prompt.id for group in own)
        learnt_from = replace(GRPO, ratio=self.options.ratio)
        return [
            Term("own", "own", GRPO, tuple(mine), order=first, prompts=prompts),
            Term(
                "peer", "peer", learnt_from, tuple(self._admit_answers(offered, context)), order=then, prompts=prompts
            ),
        ]

    def choose(self, own: Sequence[Group], inbox: Inbox, context: Context) -> Chosen:
        """Select the prompts of every direction, and on each prompt one peer."""
        candidates: dict[str, dict[str, list[PeerAnswer]]] = {}
        returned: dict[str, int] = {}
        for group in own:
            right = sum(a.reward > 0 for a in group.valid)
            for peers in by_author(inbox.valid(group.prompt.id)):
                author = peers[0].author
                peers_right = _count_right(peers)
                if group.valid and right == 0 and 1 <= peers_right < len(peers):
                    candidates.setdefault(author, {})[group.prompt.id] = peers
                if peers_right == 0 and 1 <= right < len(group.valid):
                    returned[author] = returned.get(author, 0) + 1
        order = context.policies
        best: dict[str, list[PeerAnswer]] = {}
        for author in sorted(candidates, key=lambda a: order.index(a) if a in order else len(order)):
            for prompt_id, peers in self._balance_directions(
                candidates[author], returned.get(author, 0), context
            ).items():
                if _count_right(peers) > _count_right(best.get(prompt_id, [])):
                    best[prompt_id] = peers
        return {g.prompt.id: best[g.prompt.id] for g in own if g.prompt.id in best}

    def _balance_directions(self, candidates: Chosen, returned: int, context: Context) -> Chosen:
        """Keep as many prompts of one direction as the learner can return. returned: prompts of the other direction."""
        quota = min(len(candidates), returned)
        if self.options.selection == "all":
            return candidates
        if quota == 0:
            return {}
        if self.options.selection == "random":
            names = list(candidates)
            drawn = context.rng.choice(len(names), size=quota, replace=False)
            return {names[i]: candidates[names[i]] for i in sorted(drawn)}
        edge = sorted(map(_count_right, candidates.values()), reverse=True)[quota - 1]
        return {prompt_id: peers for prompt_id, peers in candidates.items() if _count_right(peers) >= edge}

    def _admit_answers(self, offered: Sequence[tuple[PeerAnswer, float]], context: Context) -> list[TermAnswer]:
        """Remove what the floor refuses; the others carry their advantage and weight."""
        if self.options.answers == "right":
            offered = [(answer, advantage) for answer, advantage in offered if answer.reward > 0]
        if self.options.admission == "none":
            return [peer_answer(answer, advantage, answer.receiver_old) for answer, advantage in offered]
        ratios = [cross_ratio(answer) for answer, _ in offered]
        kept = [i for i, ratio in enumerate(ratios) if ratio > self.options.threshold]
        if self.options.admission == "random" and kept:
            kept = sorted(context.rng.choice(len(offered), size=len(kept), replace=False))
        admitted = []
        for i in kept:
            answer, advantage = offered[i]
            admitted.append(peer_answer(answer, advantage, answer.receiver_old, weight=min(ratios[i], 1.0)))
        return admitted


def cross_ratio(answer: PeerAnswer) -> float:
    """Compute s = exp(mean log pi_k - mean log pi_j) at pi_old, each mean over a policy's own tokens, the end left out, cut at 1
    before it could overflow."""
    assert answer.receiver_old is not None
    mine = answer.receiver_old[: answer.content.size]
    return float(np.exp(min(mine.mean(dtype=np.float64) - answer.source_logprob / answer.source_tokens, 0.0)))


def _count_right(answers: Sequence[PeerAnswer]) -> int:
    return sum(answer.reward > 0 for answer in answers)
