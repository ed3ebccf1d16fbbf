"""CoPD: steps of RLVR alternate with steps of mutual distillation (arXiv 2604.27083, as a reader's note has it)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor
from typing import Annotated

import numpy as np
from msgspec import Meta

from harness.experience.answers import Group, Inbox, PeerScores
from harness.experience.records import Draft, Pieces, Record
from harness.learning.advantages import GRPO, grpo_advantages, own_answers, own_term
from harness.learning.regime import Context, Need, Regime
from harness.learning.terms import Term, TermAnswer
from harness.suite.space import Choice, Range


@dataclass(frozen=True)
class CoPDOptions:
    """ratio: steps of RLVR to one of distillation (1.5, published); 0 distils at every step. beta: of the distillation's
    advantages."""

    ratio: Annotated[float, Choice(0.5, 1.5, 4.0), Meta(ge=0)] = 1.5
    beta: Annotated[float, Range(0.1, 3.0, "log"), Meta(gt=0)] = 1.0


class CoPD(Regime):
    """GRPO, and every few steps distillation from peers' scores.

    Published: the advantage A_t = beta (log pi_peer(y_t) - log pi_old(y_t)), token by token on the learner's own rollouts
    (reverse KL, on-policy), and 1.5 : 1. Our reading: which steps distil, beta 1, GRPO's clip and token mean, the mean over
    peers; log pi_old as sampled. Across tokenizers the peer's come by chunks of bytes (as in 2605.07711). Answers that no peer
    scored are left out; without any score the step is GRPO's.
    """

    Options = CoPDOptions
    shares = frozenset({Draft})
    needs = frozenset({Need.SCORES})
    peer_share = 0.0

    def publish(self, groups: Sequence[Group], pieces: Pieces) -> list[Record]:
        """Drafts, in the steps that distil."""
        return super().publish([g for g in groups if self._distils(g.step)], pieces)

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        if not (self._distils(context.step) and any(inbox.scores.values())):
            return [own_term(own, grpo_advantages, GRPO)]
        return [distil(own, inbox, self.options.beta)]

    def _distils(self, step: int) -> bool:
        period: float = self.options.ratio + 1
        return floor(step / period) > floor((step - 1) / period)


def distil(own: Sequence[Group], inbox: Inbox, beta: float) -> Term:
    """Make the term of own answers that peers scored: A_t = beta (mean over peers of log pi_j(y_t) - log pi_old(y_t))."""
    answers: list[TermAnswer] = []
    for group in own:
        by_answer: dict[int, list[PeerScores]] = {}
        for scores in inbox.scores.get(group.prompt.id, ()):
            by_answer.setdefault(scores.index, []).append(scores)
        chosen = replace(group, answers=tuple(group.answers[i] for i in by_answer))
        terms = own_answers(chosen, [0.0] * len(by_answer))
        for term, answer, peers in zip(terms, chosen.answers, by_answer.values(), strict=True):
            theirs = np.mean([s.aligned for s in peers], axis=0, dtype=np.float64)
            answers.append(replace(term, advantage=beta * (theirs - answer.logprobs)))
    return Term("distil", "own", GRPO, tuple(answers))
