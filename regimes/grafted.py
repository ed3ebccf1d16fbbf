"""Another regime's update under GRAFT's selection of prompts and peers (the comparison of arXiv 2609.37868, table 2b)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from harness.experience.answers import Group, Inbox
from harness.experience.records import Rollout
from harness.learning.advantages import GRPO, grpo_advantages, own_term, peer_answer, rewards_of, standardise
from harness.learning.regime import Context, Regime
from harness.learning.terms import Term
from regimes.graft import GRAFT, Chosen
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

    Paper (appendix G): LUFFY learns the whole chosen group, failures included, with its author's advantages and f(pi) A in place
    of the own group, peers' mini-batches last. HACPO is as it is, own advantages over the pool on every prompt; the peers' loss
    alone is restricted: elsewhere their advantage is 0, and they stay in the mean. SGT imitates on the chosen prompts. Our
    reading: no update removes answers by the floor; SGT imitates the chosen peer alone; of three policies a peer that was not
    chosen has advantage 0 in HACPO.
    """

    Options = GraftedOptions
    shares = frozenset({Rollout})

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._graft, self._update = GRAFT(), UPDATES[self.options.update]()

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """Make the update's terms, with the chosen peer groups."""
        chosen = self._graft.choose(own, inbox, context)
        if isinstance(self._update, HACPO):
            return _restrict_to_chosen(self._update.learn(own, inbox, context), chosen)
        if isinstance(self._update, LUFFY):
            return _replace_groups(self._update, own, chosen)
        right = {prompt: tuple(a for a in group if a.reward > 0) for prompt, group in chosen.items()}
        return self._update.learn(own, Inbox(successes=right), context)

    def state(self) -> Mapping[str, Any]:
        return self._update.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._update.restore(state)


def _restrict_to_chosen(terms: Sequence[Term], chosen: Chosen) -> list[Term]:
    """Set the advantage of peer answers outside the chosen groups to 0; they stay in the mean."""
    origins = {peer.id for group in chosen.values() for peer in group}
    restricted = []
    for term in terms:
        if term.source == "peer":
            answers = [
                answer if answer.origin in origins else replace(answer, advantage=0.0) for answer in term.answers
            ]
            term = replace(term, answers=tuple(answers))
        restricted.append(term)
    return restricted


def _replace_groups(luffy: LUFFY, own: Sequence[Group], chosen: Chosen) -> list[Term]:
    """Make terms of LUFFY's objective on whole peer groups, which stand in place of the own ones."""
    theirs = []
    for group in chosen.values():
        rewards = rewards_of(group)
        advantages = standardise(rewards, rewards)
        theirs += [peer_answer(answer, advantage, None) for answer, advantage in zip(group, advantages, strict=True)]
    kept = [group for group in own if group.prompt.id not in chosen]
    mine = own_term(kept, grpo_advantages, GRPO)
    return [mine, Term("peer", "peer", luffy.shaped, tuple(theirs), order=1)]
