"""LUFFY: peers' right answers in the group, their unlikely tokens favoured (arXiv 2504.14945, with its released code)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from msgspec import Meta

from harness.experience.answers import Group, Inbox
from harness.experience.records import Success
from harness.learning.advantages import GRPO, own_answers, peer_answer, rewards_of, standardise
from harness.learning.regime import Context, Regime
from harness.learning.terms import Objective, Term
from harness.suite.space import Range


@dataclass(frozen=True)
class LUFFYOptions:
    """gamma: of the shaping f(p) = p / (p + gamma) (published 0.1). gradient: of the objective f(p) A, so that a token weighs
    gamma p / (p + gamma)^2 (`objective`, published), or f(p) itself as the weight of the score function (`weight`, ours)."""

    gamma: Annotated[float, Range(0.01, 1.0, "log"), Meta(gt=0)] = 0.1
    gradient: Literal["objective", "weight"] = "objective"


class LUFFY(Regime):
    """GRPO over own answers and peers' right ones, whose ratio is shaped.

    Paper: the advantage over the union of both, the peers' probability taken as 1, f(pi(y_t)) A in the ratio's place, no clip.
    Our reading: all peers' right answers instead of one demonstration; own answers as our GRPO, with its deviation, clip and
    token mean, which the authors' scripts leave out.
    """

    Options = LUFFYOptions
    published = "arXiv 2504.14945"
    shares = frozenset({Success})

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """Learn by GRPO's ratio, peers' shaped probability, one token normaliser."""
        mine = []
        theirs = []
        for group in own:
            right = inbox.right(group.prompt.id)
            if group.valid:
                rewards = rewards_of([*group.valid, *right])
                advantages = standardise(rewards, rewards)
                mine += own_answers(group, advantages[: len(group.valid)])
                theirs += [peer_answer(y, a, None) for y, a in zip(right, advantages[len(group.valid) :], strict=True)]
        return [Term("own", "own", GRPO, tuple(mine)), Term("peer", "peer", self.shaped, tuple(theirs))]

    @property
    def shaped(self) -> Objective:
        """Of peers' tokens: f(p) A in the ratio's place."""
        weight: Literal["slope", "shaped"] = "slope" if self.options.gradient == "objective" else "shaped"
        return replace(GRPO, token_weight=weight, gamma=self.options.gamma)
