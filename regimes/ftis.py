"""F-TIS: peers' groups by truncated importance sampling, far failures filtered out (arXiv 2605.22537)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from harness.experience.answers import Group, Inbox, PeerAnswer
from harness.experience.records import Rollout
from harness.learning.advantages import GRPO, Rewards, by_author, own_answers, peer_answer, rewards_of, standardise
from harness.learning.regime import Context, Need, Regime
from harness.learning.terms import Objective, Term, TermAnswer
from harness.suite.space import Choice, Range


@dataclass(frozen=True)
class FTISOptions:
    """truncation: C, a peer token's largest weight (published 2). filter_kl: gamma, nats (published 50). groups: statistics
    inside one author's group (`vertical`, published) or over all answers. filtered: answers beyond gamma keep advantage 0 and
    stay in the mean (`stay`, published), or leave it. aggregation: the token mean of an answer, then the mean over answers
    (`answer`, published), or one mean over all tokens. clip: none below C (`none`), or GRPO's clip of pi_k / old_k inside the
    truncated weight of old_k / pi_j (`inner`). beyond: a token over C keeps the constant weight C, or has no gradient.
    divergence: by k3 of log(pi_j / pi_k), or of its negative, the unbiased KL(author || learner)."""

    truncation: Annotated[float, Range(0.5, 10.0, "log"), Meta(gt=0)] = 2.0
    filter_kl: Annotated[float, Range(0.5, 500.0, "log"), Meta(ge=0)] = 50.0
    groups: Annotated[Literal["vertical", "union"], Choice("vertical", "union")] = "vertical"
    filtered: Literal["stay", "leave"] = "stay"
    aggregation: Literal["answer", "token"] = "answer"
    clip: Literal["none", "inner"] = "none"
    beyond: Literal["weight", "none"] = "weight"
    divergence: Literal["learner", "author"] = "learner"


class FTIS(Regime):
    """Peer groups, ratios cut off at C, unlikely failures without advantage.

    Published (abstract, the authors' summary, a note on the full text): weights min(pi_k / pi_j, C), truncation above only; a
    peer answer is kept if its advantage is positive or its estimated KL is below gamma, else its advantage is 0 and it stays in
    the mean; the mean over an answer's tokens, then over answers; advantages relative to the author's group. Our reading:
    `beyond` and the form of `clip: inner`; the estimate is k3 summed over tokens at pi_old; pi_j is the sampler's, aligned; own
    answers are GRPO's with the same mean. The published protocol, one policy's group for each prompt, is `sampling: split`.
    """

    Options = FTISOptions
    shares = frozenset({Rollout})
    needs = frozenset({Need.ALIGNED, Need.RECEIVER_OLD})

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """Learn by GRPO on own answers, truncated importance sampling on peers'."""
        mine: list[TermAnswer] = []
        theirs: list[TermAnswer] = []
        for group in own:
            peers = inbox.valid(group.prompt.id)
            union = rewards_of([*group.valid, *peers])
            if group.valid:
                mine += own_answers(group, self._compute_advantages(rewards_of(group.valid), union))
            for source in by_author(peers):
                for answer, advantage in zip(source, self._compute_advantages(rewards_of(source), union), strict=True):
                    if self._keeps_answer(answer, advantage):
                        theirs.append(self._weigh_answer(answer, advantage))
                    elif self.options.filtered == "stay":
                        theirs.append(peer_answer(answer, 0.0, answer.aligned))
        grpo = replace(GRPO, aggregation=self.options.aggregation)
        return [
            Term("own", "own", grpo, tuple(mine)),
            Term("peer", "peer", self._truncated_objective(grpo), tuple(theirs)),
        ]

    def _truncated_objective(self, grpo: Objective) -> Objective:
        """Make the objective of peers' tokens; with an inner clip the truncated weight is part of their advantages."""
        if self.options.clip == "inner":
            return grpo
        form: Literal["truncated", "hard"] = "truncated" if self.options.beyond == "weight" else "hard"
        return replace(grpo, form=form, low=0.0, high=self.options.truncation)

    def _weigh_answer(self, answer: PeerAnswer, advantage: float) -> TermAnswer:
        """Weigh a kept answer: its ratio is to pi_j, or with an inner clip to old_k and weighed by min(old_k / pi_j, C)
        before."""
        if self.options.clip == "none":
            return peer_answer(answer, advantage, answer.aligned)
        weights = np.minimum(np.exp(-self._log_ratio(answer)), self.options.truncation)
        term = peer_answer(answer, advantage, answer.receiver_old)
        return replace(term, advantage=advantage * weights, mask=answer.exact)

    def _compute_advantages(self, rewards: Rewards, union: Rewards) -> Rewards:
        return standardise(rewards, rewards if self.options.groups == "vertical" else union)

    def _keeps_answer(self, answer: PeerAnswer, advantage: float) -> bool:
        return bool(advantage > 0 or self.divergence(answer) < self.options.filter_kl)

    def divergence(self, answer: PeerAnswer) -> float:
        """Compute k3 = exp(d) - 1 - d summed over tokens, nats; d = log(pi_j / pi_k) or its negative."""
        log_ratio = self._log_ratio(answer)
        log_ratio = log_ratio if answer.exact is None else log_ratio[answer.exact]
        log_ratio = log_ratio if self.options.divergence == "learner" else -log_ratio
        with np.errstate(over="ignore"):
            return float((np.expm1(log_ratio) - log_ratio).sum())

    @staticmethod
    def _log_ratio(answer: PeerAnswer) -> np.ndarray:
        """Compute (T,) log(pi_j / pi_k) at the step's start, nats."""
        assert answer.receiver_old is not None
        assert answer.aligned is not None
        return np.asarray(answer.aligned.astype(np.float64) - answer.receiver_old)
