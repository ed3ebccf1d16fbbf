"""An exact softmax bandit: expectations over every outcome of a step, through each regime's real code.

One prompt, K enumerable answers of one token each, n softmax policies over them, G answers per policy. A step's outcome is
the K^(nG) joint draw; every outcome goes through the regime's own `learn` and the one surrogate loss, and is weighted by
its exact probability. So bias, variance and support are computed, not estimated. Our construction.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Float64

from harness.exchange.records import GroupValue, Rollout, Success, TextRollout
from harness.learning.experience import Answer, Group, Inbox, PeerAnswer, PeerValue, Prompt
from harness.learning.minibatches import minibatches
from harness.learning.packing import Packed, pack
from harness.learning.regime import Context, Need, Regime
from harness.learning.surrogate import surrogate
from harness.learning.terms import Term
from harness.verification.verdict import Verdict

PROMPT = Prompt("x", "x", "1")
MAX_OUTCOMES = 1_000_000
Vector = Float64[np.ndarray, "K"]


@dataclass(frozen=True, slots=True)
class Bandit:
    """logits: one row per policy, the learner first. rewards: 0 or 1 per answer. rollouts: answers per policy (G)."""

    logits: Float64[np.ndarray, "n K"]
    rewards: Vector
    rollouts: int

    def __post_init__(self) -> None:
        n, k = self.logits.shape
        if self.rewards.shape != (k,) or not np.isin(self.rewards, (0.0, 1.0)).all() or self.rollouts < 1:
            raise ValueError("a bandit needs a reward of 0 or 1 per answer, and at least one rollout")
        if k ** (n * self.rollouts) > MAX_OUTCOMES:
            raise ValueError(f"{k}^{n * self.rollouts} outcomes are more than {MAX_OUTCOMES:,}")

    @property
    def policies(self) -> Float64[np.ndarray, "n K"]:
        """Probabilities of the answers."""
        shifted = np.exp(self.logits - self.logits.max(axis=1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))

    @property
    def success(self) -> Float64[np.ndarray, "n"]:
        """p_k = E over pi_k of R."""
        return np.asarray(self.policies @ self.rewards)

    def policy_gradient(self) -> Vector:
        """Gradient of the learner's expected reward in its logits: pi (R - p)."""
        pi = self.policies[0]
        return np.asarray(pi * (self.rewards - pi @ self.rewards))

    def chi_squared(self, peer: int = 1) -> float:
        """chi^2(pi_learner || pi_peer) = sum pi_k^2 / pi_j - 1."""
        pi = self.policies
        return float((pi[0] ** 2 / pi[peer]).sum() - 1)

    def outcomes(self) -> Iterator[tuple[float, tuple[tuple[int, ...], ...]]]:
        """(probability, the answers of each policy) of every joint draw with positive probability."""
        pi = self.policies
        per_policy = [list(itertools.product(range(pi.shape[1]), repeat=self.rollouts)) for _ in pi]
        weights = [[float(np.prod(p[list(draw)])) for draw in draws] for p, draws in zip(pi, per_policy, strict=True)]
        for choice in itertools.product(*(range(len(d)) for d in per_policy)):
            probability = float(np.prod([weights[j][c] for j, c in enumerate(choice)]))
            yield probability, tuple(per_policy[j][c] for j, c in enumerate(choice))


@dataclass(frozen=True, slots=True)
class Outcome:
    """One joint draw after the regime's `learn`: its terms and the surrogate's ascent direction in the learner's logits."""

    probability: float
    draws: tuple[tuple[int, ...], ...]
    terms: tuple[Term, ...]
    gradient: Vector
    weights: tuple[float, ...]
    """Ratios of the peer answers that take part."""


def enumerate_outcomes(bandit: Bandit, regime: Callable[[], Regime], updates: int = 1) -> list[Outcome]:
    """Every outcome through a fresh instance of the regime; the step's updates at the weights of its start.

    All outcomes go through the surrogate at once: its gradient in each answer's log-probability, times that
    log-probability's own gradient in the logits (1 at the answer, less pi), is the outcome's gradient.
    """
    learnt = [(p, draws, _learn(bandit, regime(), draws, updates)) for p, draws in bandit.outcomes()]
    packs: list[Packed] = []
    owner: list[int] = []
    chosen: list[int] = []
    peer: list[bool] = []
    for i, (_, _, terms) in enumerate(learnt):
        for batch in minibatches(terms, updates, 1):
            live = list(batch.live())
            if live:
                packs.append(pack(batch, live))
                owner += [i] * len(live)
                chosen += [int(a.tokens[0]) for _, a in live]
                peer += [terms[t].source == "peer" for t, _ in live]
    gradients = np.zeros((len(learnt), bandit.logits.shape[1]))
    weights: list[list[float]] = [[] for _ in learnt]
    if packs:
        pi = bandit.policies[0]
        logp = torch.tensor(np.log(pi)[chosen], requires_grad=True)
        loss, statistics = surrogate(logp, _joined(packs))
        slope = -torch.autograd.grad(loss, logp)[0].numpy()
        np.add.at(gradients, (owner, chosen), slope)
        np.add.at(gradients, owner, -slope[:, None] * pi)
        for i, is_peer, ratio in zip(owner, peer, statistics.ratio_sum, strict=True):
            if is_peer:
                weights[i].append(float(ratio))
    return [
        Outcome(p, draws, terms, g, tuple(w))
        for (p, draws, terms), g, w in zip(learnt, gradients, weights, strict=True)
    ]


def _joined(packs: Sequence[Packed]) -> Packed:
    return Packed(*(np.concatenate([getattr(p, f.name) for p in packs]) for f in fields(Packed)))


def mean_gradient(outcomes: Sequence[Outcome]) -> Vector:
    """E[g]."""
    return np.asarray(sum(o.probability * o.gradient for o in outcomes))


def gradient_variance(outcomes: Sequence[Outcome]) -> float:
    """Trace of Cov[g]."""
    mean = mean_gradient(outcomes)
    return float(sum(o.probability * ((o.gradient - mean) ** 2).sum() for o in outcomes))


def expectation(outcomes: Sequence[Outcome], of: Callable[[Outcome], float]) -> float:
    """E of any number that an outcome has."""
    return float(sum(o.probability * of(o) for o in outcomes))


def experience(bandit: Bandit, regime: Regime, draws: Sequence[Sequence[int]]) -> tuple[Group, Inbox]:
    """The learner's group and inbox as the substrate would deliver them, by what the regime shares and needs."""
    logs = np.log(bandit.policies)
    own = Group(PROMPT, _name(0), 0, 1, tuple(_answer(bandit, logs[0], a) for a in draws[0]))
    answers: list[PeerAnswer] = []
    values: list[PeerValue] = []
    for j, drawn in enumerate(draws[1:], start=1):
        right = int(sum(bandit.rewards[a] for a in drawn))
        values.append(PeerValue(_name(j), PROMPT.id, len(drawn), right))
        for index, a in enumerate(drawn):
            source = float(logs[j][a])
            answers.append(
                PeerAnswer(
                    author=_name(j),
                    version=0,
                    step=1,
                    prompt_id=PROMPT.id,
                    index=index,
                    tokens=np.array([a], dtype=np.int32),
                    text=str(a),
                    finished=False,
                    verdict=_verdict(bandit, a),
                    aligned=np.array([source]),
                    source_logprob=source,
                    source_tokens=1,
                    receiver_old=logs[0][[a]] if Need.RECEIVER_OLD in regime.needs else None,
                )
            )
    shares = regime.shares
    sent = tuple(answers) if shares & {Rollout, TextRollout} else ()
    successes = tuple(a for a in answers if a.reward > 0) if Success in shares else ()
    return own, Inbox(
        {PROMPT.id: sent} if sent else {},
        {PROMPT.id: successes} if successes else {},
        {PROMPT.id: tuple(values)} if GroupValue in shares and values else {},
    )


def _learn(bandit: Bandit, regime: Regime, draws: tuple[tuple[int, ...], ...], updates: int) -> tuple[Term, ...]:
    own, inbox = experience(bandit, regime, draws)
    names = tuple(_name(j) for j in range(len(draws)))
    rng = np.random.default_rng(0)  # the same choice for all outcomes: exact, because draws are exchangeable
    return tuple(regime.learn([own], inbox, Context(names[0], names, 1, rng, max_tokens=1, updates=updates)))


def _answer(bandit: Bandit, logs: Vector, a: int) -> Answer:
    return Answer(np.array([a], dtype=np.int32), np.array([logs[a]]), str(a), False, _verdict(bandit, a))


def _verdict(bandit: Bandit, a: int) -> Verdict:
    return Verdict("right" if bandit.rewards[a] > 0 else "wrong")


def _name(j: int) -> str:
    return f"p{j}"
