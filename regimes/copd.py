"""CoPD: steps of RLVR alternate with steps of mutual distillation (arXiv 2604.27083, as a reader's note has it); without the
offset between models as CompassOPD has it (arXiv 2609.10154)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor
from typing import Annotated, Any, ClassVar, Literal

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
    advantages. offset: a peer teaches by its log-probabilities themselves (`kept`), or by what training has changed in them
    (`removed`), less alpha times what it has changed in the learner's (CompassOPD's 0.5)."""

    younger: ClassVar[Mapping[str, Any]] = {"offset": "kept", "alpha": 0.5}

    ratio: Annotated[float, Choice(0.5, 1.5, 4.0), Meta(ge=0)] = 1.5
    beta: Annotated[float, Range(0.1, 3.0, "log"), Meta(gt=0)] = 1.0
    offset: Literal["kept", "removed"] = "kept"
    alpha: Annotated[float, Meta(ge=0)] = 0.5


class CoPD(Regime):
    """GRPO, and every few steps distillation from peers' scores.

    Published: the advantage A_t = beta (log pi_peer(y_t) - log pi_old(y_t)), token by token on the learner's own rollouts
    (reverse KL, on-policy), and 1.5 : 1. Our reading: which steps distil, beta 1, GRPO's clip and token mean, the mean over
    peers; log pi_old as sampled. Across tokenizers the peer's come by chunks of bytes (as in 2605.07711). Answers that no peer
    scored are left out; without any score the step is GRPO's. `offset: removed` is A_t = beta (D_peer - alpha D_own), D what RL
    has changed in a policy's log-probability of y_t since its start: CompassOPD's with the peer's own start as the checkpoint
    before, so that what two families' tokenizers and texts differ by falls out (our reading of it among peers).
    """

    Options = CoPDOptions
    shares = frozenset({Draft})
    peer_share = 0.0

    @property
    def needs(self) -> frozenset[Need]:
        """With the offset removed also scores under the weights that policies started from."""
        started = frozenset({Need.START_SCORES}) if self.options.offset == "removed" else frozenset[Need]()
        return frozenset({Need.SCORES}) | started

    def publish(self, groups: Sequence[Group], pieces: Pieces) -> list[Record]:
        """Publish drafts, in the steps that distil."""
        return super().publish([g for g in groups if self._distils_at(g.step)], pieces)

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        if not (self._distils_at(context.step) and any(inbox.scores.values())):
            return [own_term(own, grpo_advantages, GRPO)]
        o = self.options
        return [distillation_term(own, inbox, o.beta, o.alpha if o.offset == "removed" else None)]

    def _distils_at(self, step: int) -> bool:
        period: float = self.options.ratio + 1
        return floor(step / period) > floor((step - 1) / period)


def distillation_term(own: Sequence[Group], inbox: Inbox, beta: float, alpha: float | None = None) -> Term:
    """Make the term of own answers that peers scored: A_t = beta (mean over peers of log pi_j(y_t) - log pi_old(y_t)).

    alpha: A_t = beta (mean over peers of D_j - alpha D_own), D a policy's log-probability less that under its start weights.
    Tokens that some peer's scores do not reach exactly (`sharing.alignment: strict`) take no part."""
    answers: list[TermAnswer] = []
    for group in own:
        by_answer: dict[int, list[PeerScores]] = {}
        for scores in inbox.scores.get(group.prompt.id, ()):
            by_answer.setdefault(scores.index, []).append(scores)
        chosen = replace(group, answers=tuple(group.answers[i] for i in by_answer))
        terms = own_answers(chosen, [0.0] * len(by_answer))
        for term, answer, peers in zip(terms, chosen.answers, by_answer.values(), strict=True):
            taught = np.mean([_taught_logprobs(scores, alpha) for scores in peers], axis=0, dtype=np.float64)
            if alpha is None:
                advantage = taught - answer.logprobs
            else:
                own_start = peers[0].own_start
                assert own_start is not None
                advantage = taught - alpha * (answer.logprobs.astype(np.float64) - own_start)
            answers.append(replace(term, advantage=beta * advantage, mask=_tokens_reached(term, peers)))
    return Term("distil", "own", GRPO, tuple(answers))


def _taught_logprobs(scores: PeerScores, alpha: float | None) -> np.ndarray:
    """Return a peer's log-probabilities (T,), nats; with an alpha less those under its start weights."""
    if alpha is None:
        return scores.aligned
    assert scores.start is not None
    return np.asarray(scores.aligned.astype(np.float64) - scores.start)


def _tokens_reached(term: TermAnswer, peers: Sequence[PeerScores]) -> np.ndarray | None:
    """Mark the tokens (T,) that take part, None for all: those of the answer that every peer's scores reach exactly."""
    masks = [mask for mask in (term.mask, *(scores.exact for scores in peers)) if mask is not None]
    return np.asarray(np.logical_and.reduce(masks)) if masks else None
