"""CHORD: GRPO and imitation of peers' right answers in a balance that moves over the run (arXiv 2508.11408, with its code)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import Meta

from harness.experience.answers import Group, Inbox
from harness.experience.records import Success
from harness.learning.advantages import GRPO, grpo_advantages, own_term, peer_answer
from harness.learning.regime import Context, Regime
from harness.learning.terms import Objective, Schedule, Term
from harness.suite.space import Choice, Range

Share = Annotated[float, Range(0.0, 1.0), Meta(ge=0, le=1)]


@dataclass(frozen=True)
class CHORDOptions:
    """mu_first, mu_last: imitation's weight at the first and last step, half a cosine between (published 0.9 and 0.05 for
    CHORD-mu, 0.1 throughout for CHORD-phi). phi: tokens weigh p (1 - p) in it (CHORD-phi), or 1 (CHORD-mu)."""

    mu_first: Share = 0.9
    mu_last: Share = 0.05
    phi: Annotated[bool, Choice(True, False)] = True


class CHORD(Regime):
    """GRPO, and the NLL of peers' right answers by their uncertainty.

    Published: (1 - mu) GRPO + mu NLL whose tokens weigh p (1 - p) without gradient; loss, phi, the cosine, the token mean of
    either part. Our reading: mu's fall together with phi, over the whole run (the paper: 30 or 200 steps); mu is 0 at a step
    without a peer's right answer; own answers as our GRPO.
    """

    Options = CHORDOptions
    shares = frozenset({Success})

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """Learn where own answers weigh 1 - mu, all verified successes mu."""
        given = [peer_answer(y, 1.0, None) for group in own for y in inbox.right(group.prompt.id)]
        grpo = own_term(own, grpo_advantages, GRPO)
        if not given:
            return [grpo]
        first = self.options.mu_first
        last = self.options.mu_last
        imitation = Objective(form="nll", aggregation="token", token_weight="unsure" if self.options.phi else "one")
        return [
            replace(grpo, schedule=Schedule(1 - first, 1 - last)),
            Term("imitation", "peer", imitation, tuple(given), schedule=Schedule(first, last)),
        ]
