"""F-TIS: peers' groups by truncated importance sampling, far failures filtered out (arXiv 2605.22537)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from harness.experience.answers import Group, Inbox, PeerAnswer
from harness.experience.records import Rollout
from harness.learning.advantages import GRPO, Rewards, by_author, own_answers, peer_answer, rewards_of, standardise
from harness.learning.regime import Context, Need, Regime
from harness.learning.terms import Objective, Term
from harness.suite.space import Choice, Range


@dataclass(frozen=True)
class FTISOptions:
    """truncation: C, the largest importance weight of a peer's token (2, published).

    filter_kl: gamma, nats; a peer answer that is no better than its group's mean is kept only where the estimated divergence
        between the policies on it is smaller (50, published).
    groups: statistics inside the group that one author sampled (`vertical`, published as the better one) or over own and peer
        answers together (`union`).
    beyond: gradient of a token whose ratio exceeds C: that of log pi with the constant weight C (`weight`), or none (`none`).
    divergence: of which the estimate is: KL(learner || author) (`learner`), or KL(author || learner), which the author's own
        samples estimate without bias (`author`).
    """

    truncation: Annotated[float, Range(0.5, 10.0, "log")] = 2.0
    filter_kl: Annotated[float, Range(0.5, 500.0, "log")] = 50.0
    groups: Annotated[Literal["vertical", "union"], Choice("vertical", "union")] = "vertical"
    beyond: Literal["weight", "none"] = "weight"
    divergence: Literal["learner", "author"] = "learner"

    def __post_init__(self) -> None:
        if self.truncation <= 0:
            raise ValueError(f"truncation: must be above 0, got {self.truncation}")
        if self.filter_kl < 0:
            raise ValueError(f"filter_kl: must not be negative, got {self.filter_kl}")


class FTIS(Regime):
    """Whole peer groups enter with importance weights min(pi_k / pi_j, C); failures that are far from the learner do not.

    Published (abstract and the authors' summary; the full text was not at hand): tokens travel with their log-probabilities;
    token ratio truncated above at C = 2, no clip below; a peer answer is kept if its advantage is positive or its estimated
    KL is below gamma = 50; advantages relative to the group that its author sampled.
    Our reading: a weight that is truncated stays as a constant (`beyond`); the estimate is k3 summed over the answer's tokens
    at pi_old (`divergence`); answers that are filtered out leave the normaliser too; across tokenizers the author's
    log-probabilities are those aligned onto the learner's tokens, its sampler's; own answers are GRPO's, old_k the trainer's.
    """

    Options = FTISOptions
    shares = frozenset({Rollout})

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({Need.ALIGNED, Need.RECEIVER_OLD})

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """GRPO on own answers, truncated importance sampling on the peers' that pass the filter; one token normaliser."""
        mine, theirs = [], []
        for group in own:
            peers = inbox.valid(group.prompt.id)
            union = rewards_of([*group.valid, *peers])
            if group.valid:
                mine += own_answers(group, self._advantages(rewards_of(group.valid), union))
            for source in by_author(peers):
                advantages = self._advantages(rewards_of(source), union)
                kept = [(p, a) for p, a in zip(source, advantages, strict=True) if self._keeps(p, a)]
                theirs += [peer_answer(p, a, p.aligned) for p, a in kept]
        form: Literal["truncated", "hard"] = "truncated" if self.options.beyond == "weight" else "hard"
        truncated = Objective(ratio="token", form=form, low=0.0, high=self.options.truncation, aggregation="token")
        return [Term("own", "own", GRPO, tuple(mine)), Term("peer", "peer", truncated, tuple(theirs))]

    def _advantages(self, rewards: Rewards, union: Rewards) -> Rewards:
        return standardise(rewards, rewards if self.options.groups == "vertical" else union)

    def _keeps(self, answer: PeerAnswer, advantage: float) -> bool:
        return bool(advantage > 0 or self.divergence(answer) < self.options.filter_kl)

    def divergence(self, answer: PeerAnswer) -> float:
        """k3 = exp(d) - 1 - d summed over the answer's tokens, nats; d = log(pi_j / pi_k), its negative for `author`."""
        assert answer.receiver_old is not None
        assert answer.aligned is not None
        log_ratio = answer.aligned.astype(np.float64) - answer.receiver_old
        log_ratio = log_ratio if self.options.divergence == "learner" else -log_ratio
        with np.errstate(over="ignore"):
            return float((np.expm1(log_ratio) - log_ratio).sum())
