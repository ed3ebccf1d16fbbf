"""HACPO: capability-aware advantages and clipped cross-policy ratios (arXiv 2603.02604, with its released code)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from harness.experience.answers import Group, Inbox, PeerAnswer
from harness.experience.records import Rollout
from harness.learning.advantages import EPSILON, GSPO, Rewards, deviation_of, own_answers, peer_answer, rewards_of
from harness.learning.regime import Context, Regime
from harness.learning.terms import Objective, Term, TermAnswer
from harness.suite.space import Range

FLOOR = 1e-8


@dataclass(frozen=True)
class HACPOOptions:
    """Published defaults; the paper's table prints 1 - delta. The peer ratio's lower bound is min(1, 1 - delta + m delta_step).
    alpha: exponent of the frozen ratio. window: steps of the capability average (K). clip_low, clip_high: of own GSPO.
    length_normalisation: by own tokens (paper) or bytes (ours). capability_*, stepwise_clip: the paper's ablations. omega_*,
    guards: in the code only."""

    delta: Annotated[float, Range(0.05, 0.95), Meta(ge=0, le=1)] = 0.2
    delta_step: Annotated[float, Range(0.0, 0.1), Meta(ge=0)] = 0.025
    alpha: Annotated[float, Range(0.0, 3.0), Meta(ge=0)] = 1.0
    window: Annotated[int, Range(1, 20, "log", whole=True), Meta(ge=1)] = 5
    clip_low: Annotated[float, Range(1e-4, 0.3, "log"), Meta(ge=0)] = 3e-4
    clip_high: Annotated[float, Range(1e-4, 0.3, "log"), Meta(ge=0)] = 4e-4
    length_normalisation: Literal["own_tokens", "bytes"] = "own_tokens"
    capability_advantage: bool = True
    capability_gradient: bool = True
    stepwise_clip: bool = True
    omega_min: float = 0.1
    omega_max: float = 10.0
    guards: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.omega_min <= self.omega_max:
            raise ValueError(f"omega_min: must lie in (0, omega_max], got {self.omega_min}")


class HACPO(Regime):
    """Peers' answers by clipped sequence ratios and capability weights.

    Paper and code: omega, mu, advantages over all nG answers, own GSPO, peer ratios by each side's length without EOS, own
    mini-batches first. Our reading: capability of what arrived and could be decided; a prompt without own valid answers still
    teaches; one update a step shares its mini-batch. Own ratios are to the trainer's old (code), a source mean is the sampler's
    (paper).
    """

    Options = HACPOOptions
    published = "arXiv 2603.02604"
    shares = frozenset({Rollout})

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        o = self.options
        self._own = replace(GSPO, low=1 - o.clip_low, high=1 + o.clip_high)
        self._cross = Objective(
            ratio="cross",
            form="hard",
            low=1 - o.delta,
            high=1.0,
            low_step=o.delta_step if o.stepwise_clip else 0.0,
            exponent=o.alpha,
            log_bound=10.0,
            aggregation="answer",
        )
        self._shares: list[dict[str, float]] = []

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """Learn from own answers by GSPO, from peers' by the cross ratio, in later mini-batches."""
        self.observe(own, inbox, context)
        return self.terms(own, inbox, context)

    def terms(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """Make terms by the capabilities observed so far."""
        omega_of = cache(self.omega)  # few pairs, thousands of answers
        mine: list[TermAnswer] = []
        theirs: list[TermAnswer] = []
        for group in own:
            peers = inbox.valid(group.prompt.id)
            sources = [context.learner] * len(group.valid) + [p.author for p in peers]
            if not sources:
                continue
            omega = np.array([omega_of(context.learner, s) for s in sources])
            advantages = self.advantages(rewards_of([*group.valid, *peers]), omega, len(group.valid))
            mine += own_answers(group, advantages[: len(group.valid)])
            theirs += [
                self._peer_term(p, a, omega_of(p.author, context.learner) if self.options.capability_gradient else 1.0)
                for p, a in zip(peers, advantages[len(group.valid) :], strict=True)
            ]
        return [Term("own", "own", self._own, tuple(mine)), Term("peer", "peer", self._cross, tuple(theirs), order=1)]

    def advantages(self, rewards: Rewards, omega: Rewards, own: int) -> Rewards:
        """Compute A_i = (R_i - mu) / (std + 1e-6), the first `own` of them the learner's."""
        return (rewards - self.baseline(rewards, omega, own)) / (deviation_of(rewards) + EPSILON)

    def baseline(self, rewards: Rewards, omega: Rewards, own: int) -> float:
        """Compute mu = mean_i omega_i R_i. Guards (code): equal rewards: the plain mean; mu > 1: the learner's own."""
        mu = float((omega * rewards).mean()) if self.options.capability_advantage else float(rewards.mean())
        if not self.options.guards:
            return mu
        if (rewards == rewards[0]).all():
            return float(rewards.mean())
        if mu > 1 and own:
            return float(rewards[:own].mean())
        return mu

    def omega(self, a: str, b: str) -> float:
        """Compute clamp(P_a / P_b, omega_min, omega_max); exactly 1 for a = b."""
        if a == b:
            return 1.0
        ratio = self.capability(a) / self.capability(b)
        return float(min(max(ratio, self.options.omega_min), self.options.omega_max))

    def remarks(self, updates: int) -> Sequence[str]:
        if updates == 1 and self.options.stepwise_clip and self.options.delta_step:
            return ("one update a step: own and peer answers share it, so the stepwise clip stays at its first bound",)
        return ()

    def state(self) -> Mapping[str, Any]:
        return {"shares": self._shares}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._shares = [dict(step) for step in state.get("shares", [])]

    def capability(self, policy: str) -> float:
        """Compute P, the share of right answers over the window, at least 1e-8."""
        known = [step[policy] for step in self._shares if policy in step]
        return max(float(np.mean(known)) if known else 0.0, FLOOR)

    def observe(self, own: Sequence[Group], inbox: Inbox, context: Context) -> None:
        """Observe the step's capabilities. A silent policy keeps its other steps."""
        rewards: dict[str, list[float]] = {context.learner: [a.reward for g in own for a in g.valid]}
        for group in own:
            for answer in inbox.valid(group.prompt.id):
                rewards.setdefault(answer.author, []).append(answer.reward)
        step = {policy: float(np.mean(values)) for policy, values in rewards.items() if values}
        self._shares = [*self._shares, step][-self.options.window :]

    def _peer_term(self, answer: PeerAnswer, advantage: float, weight: float) -> TermAnswer:
        """Make a peer's answer a term's, whose cross ratio compares the learner's mean log-probability with the author's: of each
        by its own tokens, or of both by the bytes of the text."""
        mean = answer.source_logprob / answer.source_tokens
        term = peer_answer(answer, advantage, mean, weight=weight, without_eos=True)
        if self.options.length_normalisation == "own_tokens":
            return term
        size = len(answer.text.encode())
        return replace(term, denominator=answer.source_logprob / term.counted, scale=term.counted / size)
