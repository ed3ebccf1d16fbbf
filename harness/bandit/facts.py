"""What theory says of each regime, beside what the regime's own code does, on one bandit."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from harness.bandit.laboratory import (
    Bandit,
    Delivery,
    JointDraw,
    Vector,
    enumerate_outcomes,
    expectation,
    mean_gradient,
)
from harness.learning.advantages import rewards_of
from harness.learning.regime import Regime
from harness.learning.registry import build, load


@dataclass(frozen=True, slots=True)
class Fact:
    """One equation: `predicted` by theory, `measured` by enumeration; distances should be 0.

    `predicted` is None for an observation: a number that no theory states beforehand.
    """

    statement: str
    predicted: float | None
    measured: float

    @property
    def holds(self) -> bool | None:
        """None for an observation."""
        if self.predicted is None:
            return None
        return bool(abs(self.predicted - self.measured) <= 1e-6 * max(1.0, abs(self.predicted)))


def facts(bandit: Bandit) -> list[Fact]:
    """All facts of ALGORITHMS.md that concern expectations."""
    return [*_independent(bandit), *_naive(bandit), *_xgrpo(bandit), *_prp(bandit), *_sgt(bandit), *_hacpo(bandit)]


def distance(a: Vector, b: Vector) -> float:
    """Largest difference of two gradients."""
    return float(np.abs(a - b).max())


def _run(bandit: Bandit, name: str, **options: object) -> list[JointDraw]:
    return enumerate_outcomes(bandit, build(name, options))


def _independent(bandit: Bandit) -> list[Fact]:
    shrunk = (1 - 1 / bandit.rollouts) * bandit.policy_gradient()
    measured = mean_gradient(_run(bandit, "independent", objective="dr_grpo"))
    return [Fact("independent: E[g] = (1 - 1/G) policy gradient", 0.0, distance(measured, shrunk))]


def _naive(bandit: Bandit) -> list[Fact]:
    """E[g] = (1/n) sum_j E_{pi_j}[A grad log pi_k], with A as the union's statistics make it."""
    pi = bandit.policies
    direct = np.zeros(pi.shape[1])
    for probability, draws in bandit.outcomes:
        pool = np.array([bandit.rewards[a] for drawn in draws for a in drawn])
        advantage = (pool - pool.mean()) / (pool.std(ddof=1) + 1e-6)
        for a, each in zip((a for drawn in draws for a in drawn), advantage, strict=True):
            direct += probability * each / pool.size * (np.eye(pi.shape[1])[a] - pi[0])
    toward, own = mean_gradient(_run(bandit, "naive")), bandit.policy_gradient()
    predicted, measured = (distance(g, (g @ own) / (own @ own) * own) for g in (direct, toward))
    return [
        Fact("naive: E[g] = (1/n) sum_j E_j[A grad log pi_k]", 0.0, distance(toward, direct)),
        Fact("naive: distance of E[g] from the policy gradient's direction", predicted, measured),
    ]


def _xgrpo(bandit: Bandit) -> list[Fact]:
    means = {b: mean_gradient(_run(bandit, "xgrpo", baseline="mixed", normalise="none", beta=b)) for b in (0.25, 1.0)}
    return [
        Fact(f"xgrpo: unbiased with leave-one-out baselines, beta {b}", 0.0, distance(g, bandit.policy_gradient()))
        for b, g in means.items()
    ]


def _prp(bandit: Bandit) -> list[Fact]:
    size = bandit.logits.shape[0] * bandit.rollouts
    outcomes = _run(bandit, "prp", normalise="none", clip_low=1.0, clip_high=1e8)
    unbiased = (1 - 1 / size) * bandit.policy_gradient()
    facts = [
        Fact("prp: E[g] = (1 - 1/|U|) policy gradient, unclipped", 0.0, distance(mean_gradient(outcomes), unbiased))
    ]
    if bandit.logits.shape[0] == 2:
        logs = np.log(bandit.policies[0])

        def squared_weight(o: JointDraw) -> float:
            """Of the peer's first answer, from the denominator in PRP's own term."""
            answer = o.terms[1].answers[0]
            assert isinstance(answer.denominator, np.ndarray)
            return float(np.exp(2 * (logs[answer.tokens[0]] - answer.denominator[0])))

        moment = expectation(outcomes, squared_weight)
        facts.append(Fact("prp: second moment of the weight = 1 + chi^2", 1 + bandit.chi_squared(), moment))
    return facts


def _sgt(bandit: Bandit) -> list[Fact]:
    success, g = bandit.success, bandit.rollouts
    predicted = (1 - success[0]) ** g * (1 - np.prod((1 - success[1:]) ** g))
    outcomes = _run(bandit, "sgt")
    fires = expectation(outcomes, lambda o: float(bool(o.terms[1].answers)))
    outside = max((len(o.terms[1].answers) for o in outcomes if any(bandit.rewards[a] for a in o.draws[0])), default=0)
    return [
        Fact("sgt: fires with (1-p_k)^G (1 - prod_j (1-p_j)^G)", float(predicted), fires),
        Fact("sgt: imitated answers outside the rescue set", 0.0, float(outside)),
    ]


def _hacpo(bandit: Bandit) -> list[Fact]:
    """E[mu] = p_k where omega is the true capability ratio and guards and clamps are off."""
    true = {f"p{j}": float(p) for j, p in enumerate(bandit.success)}
    base: type[Regime] = load("hacpo")

    class TrueCapability(base):  # type: ignore[misc, valid-type]
        def capability(self, policy: str) -> float:
            return true[policy]

    if min(true.values()) <= 0:
        return []
    options = replace(base.Options(), guards=False, omega_min=1e-12, omega_max=1e12)
    regime, guarded = TrueCapability(options), TrueCapability(replace(options, guards=True))
    delivery = Delivery(bandit, regime)
    expected = {"off": 0.0, "on": 0.0}
    for probability, draws in bandit.outcomes:
        own, inbox = delivery.experience(draws)
        peers = inbox.valid("x")
        rewards = rewards_of([*own.valid, *peers])
        omega = np.array([1.0] * len(own.valid) + [regime.omega("p0", p.author) for p in peers])
        expected["off"] += probability * regime.baseline(rewards, omega, len(own.valid))
        expected["on"] += probability * guarded.baseline(rewards, omega, len(own.valid))
    bias = Fact("hacpo: bias of E[mu] by the code's two guards", None, expected["on"] - true["p0"])
    return [Fact("hacpo: E[mu] = p_k under true capability ratios", true["p0"], expected["off"]), bias]
