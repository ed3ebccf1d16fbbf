"""Another regime's update under GRAFT's selection of prompts and peers (the comparison of arXiv 2609.37868, table 2b)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness.experience.answers import Group, Inbox
from harness.experience.records import Rollout
from harness.learning.regime import Context, Regime
from harness.learning.terms import Term
from regimes.graft import GRAFT
from regimes.hacpo import HACPO
from regimes.luffy import LUFFY
from regimes.sgt import SGT

UPDATES: Mapping[str, type[Regime]] = {"luffy": LUFFY, "sgt": SGT, "hacpo": HACPO}


@dataclass(frozen=True)
class GraftedOptions:
    """update: of the chosen peer answers, with its regime's defaults."""

    update: Literal["luffy", "sgt", "hacpo"] = "luffy"


class Grafted(Regime):
    """GRAFT's prompts and peers, the update of LUFFY, SGT or HACPO.

    Our reading: of the peers' answers only the chosen groups reach the update, own answers are learnt as by the update's
    regime; HACPO measures capabilities on all that arrived.
    """

    Options = GraftedOptions
    shares = frozenset({Rollout})

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._graft, self._update = GRAFT(), UPDATES[self.options.update]()

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """Of own groups and the chosen peer groups."""
        chosen = {prompt: tuple(group) for prompt, group in self._graft.choose(own, inbox, context.policies).items()}
        right = {prompt: tuple(a for a in group if a.reward > 0) for prompt, group in chosen.items()}
        if isinstance(self._update, HACPO):
            self._update.observe(own, inbox, context)
            return self._update.terms(own, Inbox(answers=chosen), context)
        return self._update.learn(own, Inbox(successes=right), context)

    def state(self) -> Mapping[str, Any]:
        return self._update.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._update.restore(state)
