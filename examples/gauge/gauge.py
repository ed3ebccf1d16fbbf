"""Gauge: a regime that sets the weight of what peers teach by measured gradients instead of an option (docs/ours.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from harness.experience.answers import Group, Inbox
from harness.experience.records import TextRollout
from harness.learning.advantages import (
    GRPO,
    by_author,
    grpo_advantages,
    own_term,
    peer_answer,
    rewards_of,
    standardise,
)
from harness.learning.regime import Context, Measured, Need, Regime
from harness.learning.terms import Objective, Term, TermAnswer

FIRST = 0.1
"""Weight of the peer term until its gradient was measured once: SGT's published one."""
MEMORY = 0.8
"""Of the running means of what is measured."""
PATIENCE = 5
"""Measured cosines below 0 in a row before the peer term is off, and steps from one further try to the next."""
IMITATION = Objective(form="nll", aggregation="prompt")


@dataclass(frozen=True)
class GaugeOptions:
    """teach: one success, or a peer's whole group. share: norm of the peer terms' gradient, at its most, over that of the own."""

    teach: Literal["one", "group"] = "one"
    share: float = 1.0

    def __post_init__(self) -> None:
        if self.share <= 0:
            raise ValueError(f"share: must be above 0, got {self.share}")


class Gauge(Regime):
    """Where all own answers fail, learn from a peer, as much as its gradient's norm and direction allow.

    `one`: the negative log-likelihood of one success, drawn uniformly. `group`: all answers of one peer with a success,
    standardised together with the own failures; ratio to the learner's old log-probabilities. With r the share of prompts so
    taught, the norm is `share` times the own terms' where r is at its highest running mean, and in proportion to r from there:
    it fades as own successes come. Off after `PATIENCE` cosines below 0, but for a try every so many steps.
    """

    Options = GaugeOptions
    shares = frozenset({TextRollout})

    def __init__(self, options: GaugeOptions | None = None) -> None:
        super().__init__(options)
        self._seen = {"own": 0.0, "unit": 0.0, "taught": 0.0, "peak": 0.0, "below": 0.0, "weight": 0.0, "now": 0.0}
        """Running means of the own norm, the peer norm for weight 1 and r = 1, and r; r's highest; cosines below 0 in a row; the
        last step's weight and r."""

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({Need.GRADIENTS, *([Need.RECEIVER_OLD] if self.options.teach == "group" else [])})

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """GRPO on own answers, and the peer term."""
        failed = [g for g in own if g.valid and not any(a.reward > 0 for a in g.valid)]
        taught = [answers for group in failed if (answers := self._teach(group, inbox, context))]
        seen, groups = self._seen, sum(bool(g.valid) for g in own)
        seen["now"] = len(taught) / groups if groups else 0.0
        seen["taught"] = _mean(seen["taught"], seen["now"])
        seen["peak"] = max(seen["peak"], seen["taught"])
        resting = seen["below"] >= PATIENCE and context.step % PATIENCE != 0
        seen["weight"] = 0.0 if resting or not taught else self._weight()
        objective = IMITATION if self.options.teach == "one" else GRPO
        answers = tuple(answer for each in taught for answer in each) if seen["weight"] else ()
        return [own_term(own, grpo_advantages, GRPO), Term("taught", "peer", objective, answers, weight=seen["weight"])]

    def _teach(self, group: Group, inbox: Inbox, context: Context) -> list[TermAnswer]:
        received = inbox.valid(group.prompt.id)
        if self.options.teach == "one":
            right = [p for p in received if p.reward > 0]
            return [peer_answer(right[int(context.rng.integers(len(right)))], 1.0, None)] if right else []
        able = [peers for peers in by_author(received) if any(p.reward > 0 for p in peers)]
        if not able:
            return []
        peers = able[int(context.rng.integers(len(able)))]
        advantages = standardise(rewards_of(peers), rewards_of([*peers, *group.valid]))
        return [peer_answer(p, a, p.receiver_old) for p, a in zip(peers, advantages, strict=True)]

    def _weight(self) -> float:
        seen = self._seen
        if not seen["own"] or not seen["unit"]:
            return FIRST
        return self.options.share * seen["own"] / (seen["unit"] * seen["peak"])

    def learnt(self, measured: Measured) -> None:
        """Norms and cosine of the step."""
        seen, taught = self._seen, self._seen["weight"] * self._seen["now"]
        if isfinite(measured.own):
            seen["own"] = _mean(seen["own"], measured.own)
        if isfinite(measured.peer) and taught:
            seen["unit"] = _mean(seen["unit"], measured.peer / taught)
            seen["below"] = seen["below"] + 1 if measured.cosine < 0 else 0.0

    def state(self) -> Mapping[str, Any]:
        return dict(self._seen)

    def restore(self, state: Mapping[str, Any]) -> None:
        self._seen.update(state)


def _mean(before: float, now: float) -> float:
    """A running one, which begins with the first value."""
    return MEMORY * before + (1 - MEMORY) * now if before else now
