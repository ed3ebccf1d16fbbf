"""SGT, Success-Gated Transfer: sharing at the level of outcomes (Mutual RL, arXiv 2605.07244; details from GRAFT, 2609.37868)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from harness.experience.answers import Group, Inbox
from harness.experience.records import Success
from harness.learning.advantages import GRPO, grpo_advantages, own_term, peer_answer
from harness.learning.regime import Context, Regime
from harness.learning.terms import Objective, Term
from harness.suite.space import Range

IMITATION = Objective(form="nll", aggregation="prompt")


@dataclass(frozen=True)
class SGTOptions:
    """lambda_ (`lambda` in a suite): weight of the imitation term; 0.1 is published (GRAFT's re-run)."""

    lambda_: Annotated[float, Range(0.01, 3.0, "log"), Meta(ge=0)] = 0.1


class SGT(Regime):
    """Where all own answers fail, imitate one verified success of a peer.

    Rescue set and gate: paper. L = L_GRPO + 0.1 NLL(y+ | x), y+ uniform over all peers' successes: GRAFT's paper. NLL is the
    token mean, averaged over the mini-batch's prompts, and the learner verifies y+ itself: our reading.
    """

    Options = SGTOptions
    published = "arXiv 2605.07244, 2609.37868"
    shares = frozenset({Success})
    peer_share = 0.1  # one success, on rescue prompts alone

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """Learn by GRPO on own answers, then one success per rescue prompt."""
        imitated = []
        for group in own:
            if not group.valid or any(a.reward > 0 for a in group.valid):
                continue
            successes = inbox.right(group.prompt.id)
            if successes:
                imitated.append(peer_answer(successes[int(context.rng.integers(len(successes)))], 1.0, None))
        return [
            own_term(own, grpo_advantages, GRPO),
            Term("imitation", "peer", IMITATION, tuple(imitated), weight=self.options.lambda_),
        ]
