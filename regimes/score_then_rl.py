"""Score, then RL: distillation from peers' scores alone for the first steps, own GRPO alone afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import Meta

from harness.experience.answers import Group, Inbox
from harness.experience.records import Draft, Pieces, Record
from harness.learning.advantages import GRPO, grpo_advantages, own_term
from harness.learning.regime import Context, Need, Regime
from harness.learning.terms import Phase, Term
from harness.suite.space import Range
from regimes.copd import distillation_term


@dataclass(frozen=True)
class ScoreThenRLOptions:
    """share: S, of the run's steps that distil. beta: of the distillation's advantages."""

    share: Annotated[float, Range(0.0, 0.8), Meta(ge=0, le=1)] = 0.3
    beta: Annotated[float, Range(0.1, 3.0, "log"), Meta(gt=0)] = 1.0


class ScoreThenRL(Regime):
    """CoPD's distillation for a share of the steps, then GRPO.

    Our reading: the switch of `imitate-then-rl` (arXiv 2609.04108, a note) with A_t = beta (log pi_peer(y_t) - log pi_old(y_t))
    on own answers in the first phase (arXiv 2604.27083); a distilling step without any score is GRPO's.
    """

    Options = ScoreThenRLOptions
    shares = frozenset({Draft})
    needs = frozenset({Need.SCORES})
    peer_share = 0.0

    def publish(self, groups: Sequence[Group], pieces: Pieces) -> list[Record]:
        """Ask for scores in the steps that distil."""
        distilling = [group for group in groups if not self.run_steps or self._first.at(group.step, self.run_steps)]
        return super().publish(distilling, pieces)

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """Make one term for each phase."""
        grpo = own_term(own, grpo_advantages, GRPO)
        if not any(inbox.scores.values()):
            return [grpo]
        distilled = replace(distillation_term(own, inbox, self.options.beta), schedule=self._first)
        return [replace(grpo, schedule=Phase(self.options.share, 1.0)), distilled]

    @property
    def _first(self) -> Phase:
        return Phase(0.0, self.options.share)
