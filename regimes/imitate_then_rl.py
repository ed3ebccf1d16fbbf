"""Imitate, then RL: peers' right answers alone for the first steps, own GRPO alone afterwards (arXiv 2604.23747, 2609.04108)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import Meta

from harness.experience.answers import Group, Inbox
from harness.experience.records import Pieces, Record, Success
from harness.learning.advantages import GRPO, grpo_advantages, own_term, peer_answer
from harness.learning.regime import Context, Regime
from harness.learning.terms import Objective, Phase, Term
from harness.suite.space import Range

IMITATION = Objective(form="nll", aggregation="token")


@dataclass(frozen=True)
class ImitateThenRLOptions:
    """share: S, of the run's steps that imitate."""

    share: Annotated[float, Range(0.0, 0.8), Meta(ge=0, le=1)] = 0.3


class ImitateThenRL(Regime):
    """NLL on peers' right answers for a share of the steps, then GRPO.

    Published (notes on both papers): supervised steps on others' solutions, then plain RL, beat methods that mix the two. Our
    reading: S 0.3; every right answer that peers send at a step is imitated, with one mean over their tokens; own answers are
    sampled in all steps, so that rollouts and steps are as many as in the baseline; an imitating step at which no right answer
    arrived is GRPO's.
    """

    Options = ImitateThenRLOptions
    shares = frozenset({Success})

    def publish(self, groups: Sequence[Group], pieces: Pieces) -> list[Record]:
        """Send successes in the steps that imitate."""
        imitating = [group for group in groups if not self.run_steps or self._first.at(group.step, self.run_steps)]
        return super().publish(imitating, pieces)

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """Make one term for each phase."""
        right = [peer_answer(answer, 1.0, None) for group in own for answer in inbox.right(group.prompt.id)]
        grpo = own_term(own, grpo_advantages, GRPO)
        if not right:
            return [grpo]
        return [
            replace(grpo, schedule=Phase(self.options.share, 1.0)),
            Term("imitation", "peer", IMITATION, tuple(right), schedule=self._first),
        ]

    @property
    def _first(self) -> Phase:
        return Phase(0.0, self.options.share)
