"""What is proven of the regimes' expected updates, beside what enumeration finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from harness.bandit.enumeration import (
    Bandit,
    BanditDelivery,
    JointDraw,
    Vector,
    enumerate_outcomes,
    expected_value,
    mean_gradient,
)
from harness.learning.advantages import rewards_of, standardise
from harness.learning.regime import Regime
from harness.learning.registry import build, load


@dataclass(frozen=True, slots=True)
class Fact:
    """predicted: by theory, None for an observation. measured: by enumeration. Distances should be 0."""

    statement: str
    predicted: float | None
    measured: float

    @property
    def holds(self) -> bool | None:
        if self.predicted is None:
            return None
        return bool(abs(self.predicted - self.measured) <= 1e-6 * max(1.0, abs(self.predicted)))


class _Runs:
    """Enumerates a bandit's outcomes under an installed regime, by its name and options."""

    def __init__(self, bandit: Bandit) -> None:
        self._bandit = bandit

    def __call__(self, name: str, **options: object) -> list[JointDraw]:
        return enumerate_outcomes(self._bandit, build(name, options))


def list_facts(bandit: Bandit) -> list[Fact]:
    """List what is proven of the regimes' expected updates, each beside what the enumeration of this bandit gives.

    docs/formulas.md has the formulas and their sources."""
    run = _Runs(bandit)
    rescued = _probability_of_rescue(bandit)
    return [
        _of_independent(bandit, run),
        *_of_naive(bandit, run),
        *_of_xgrpo(bandit, run),
        *_of_prp(bandit, run),
        *_of_shaped_weights(bandit, run),
        *_of_sgt(bandit, run, rescued),
        *_facts_of_hacpo(bandit),
        *_scored_and_hinted(bandit, run, rescued),
        *_in_phases(bandit, run),
        _by_a_peers_vote(bandit, run),
    ]


def _largest_difference(one: Vector, other: Vector) -> float:
    return float(np.abs(one - other).max())


def _probability_of_rescue(bandit: Bandit) -> float:
    """That the learner's G answers are all wrong and at least one peer has a right one: (1-p_k)^G (1 - prod_j (1-p_j)^G)."""
    all_wrong = (1 - bandit.success) ** bandit.rollouts
    return float(all_wrong[0] * (1 - np.prod(all_wrong[1:])))


def _score_function(bandit: Bandit, answer: int) -> Vector:
    """The gradient of the learner's log-probability of an answer in its logits: e_a - pi."""
    pi = bandit.policies[0]
    return np.asarray(np.eye(pi.size)[answer] - pi)


def _of_independent(bandit: Bandit, run: _Runs) -> Fact:
    alone = mean_gradient(run("independent", objective="dr_grpo"))
    expected = (1 - 1 / bandit.rollouts) * bandit.policy_gradient()
    return Fact("independent: E[g] = (1 - 1/G) policy gradient", 0.0, _largest_difference(alone, expected))


def _of_naive(bandit: Bandit, run: _Runs) -> list[Fact]:
    """The naive mean uses peers' answers as if they were own ones, so its expectation is another direction."""
    gradient = bandit.policy_gradient()
    direct = np.zeros(gradient.size)  # A as the union's statistics make it
    for probability, draws in bandit.outcomes:
        union = [answer for drawn in draws for answer in drawn]
        rewards = np.array([bandit.rewards[answer] for answer in union])
        advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
        for answer, advantage in zip(union, advantages, strict=True):
            direct += probability * advantage / rewards.size * _score_function(bandit, answer)
    toward = mean_gradient(run("naive"))

    def distance_from_gradient(vector: Vector) -> float:
        along = (vector @ gradient) / (gradient @ gradient) * gradient
        return _largest_difference(vector, along)

    return [
        Fact("naive: E[g] = (1/n) sum_j E_j[A grad log pi_k]", 0.0, _largest_difference(toward, direct)),
        Fact(
            "naive: distance of E[g] from the policy gradient's direction",
            distance_from_gradient(direct),
            distance_from_gradient(toward),
        ),
    ]


def _of_xgrpo(bandit: Bandit, run: _Runs) -> Iterator[Fact]:
    gradient = bandit.policy_gradient()
    for beta in (0.25, 1.0):
        mixed = mean_gradient(run("xgrpo", baseline="mixed", normalise="none", beta=beta))
        distance = _largest_difference(mixed, gradient)
        yield Fact(f"xgrpo: unbiased with leave-one-out baselines, beta {beta}", 0.0, distance)


def _of_prp(bandit: Bandit, run: _Runs) -> list[Fact]:
    """The importance weight of a peer's answer is exact here, so nothing but its second moment costs."""
    pi = bandit.policies
    union = len(pi) * bandit.rollouts
    outcomes = run("prp", normalise="none", clip_low=1.0, clip_high=1e8)
    distance = _largest_difference(mean_gradient(outcomes), (1 - 1 / union) * bandit.policy_gradient())
    unbiased = Fact("prp: E[g] = (1 - 1/|U|) policy gradient, unclipped", 0.0, distance)
    if len(pi) != 2:
        return [unbiased]

    def squared_weight(outcome: JointDraw) -> float:
        """Of the peer's first answer, as in PRP's term."""
        answer = outcome.terms[1].answers[0]
        assert isinstance(answer.denominator, np.ndarray)
        log_weight = np.log(pi[0])[answer.tokens[0]] - answer.denominator[0]
        return float(np.exp(2 * log_weight))

    moment = expected_value(outcomes, squared_weight)
    return [unbiased, Fact("prp: second moment of the weight = 1 + chi^2", 1 + bandit.chi_squared(), moment)]


def _shaped_gradient(bandit: Bandit, weight: Callable[[float], float]) -> Vector:
    """LUFFY's E[g] with peers' right answers weighed by `weight` of the learner's probability."""
    pi = bandit.policies[0]
    total = np.zeros(pi.size)
    for probability, (own, *theirs) in bandit.outcomes:
        right = [answer for drawn in theirs for answer in drawn if bandit.rewards[answer]]
        pool = [*own, *right]
        rewards = np.array([bandit.rewards[answer] for answer in pool])
        weights = [*[1.0] * bandit.rollouts, *(weight(pi[answer]) for answer in right)]
        for answer, factor, advantage in zip(pool, weights, standardise(rewards, rewards), strict=True):
            total += probability * factor * advantage / rewards.size * _score_function(bandit, answer)
    return total


def _of_shaped_weights(bandit: Bandit, run: _Runs) -> list[Fact]:
    """LUFFY's shaping as a gradient and as a weight, at both ends of gamma; CHORD without its share of imitation."""
    tiny_gamma = 1e-9 * float(bandit.policies[0].min())
    small = mean_gradient(run("luffy", gamma=tiny_gamma, gradient="weight"))
    large = mean_gradient(run("luffy", gamma=1e6, gradient="weight"))
    shaping = _shaped_gradient(bandit, lambda p: 0.1 * p / (p + 0.1) ** 2)
    score_function = _shaped_gradient(bandit, lambda p: 1.0)
    own_part = _shaped_gradient(bandit, lambda p: 0.0)
    by_probability = _shaped_gradient(bandit, lambda p: p) - own_part
    slope = _largest_difference(mean_gradient(run("luffy")), shaping)
    proportional = _largest_difference((large - own_part) * 1e6, by_probability)
    apart = _largest_difference(mean_gradient(run("chord", mu_first=0.0)), mean_gradient(run("independent")))
    near_zero = _largest_difference(small, score_function)
    return [
        Fact("luffy: E[g] is the gradient of p / (p + gamma) A on peers' right answers", 0.0, slope),
        Fact("luffy, as a weight: gamma -> 0 is the score function", 0.0, near_zero),
        Fact("luffy, as a weight: gamma -> infinity is proportional to p", 0.0, proportional),
        Fact("chord: mu = 0 is GRPO", 0.0, apart),
    ]


def _of_sgt(bandit: Bandit, run: _Runs, rescued: float) -> list[Fact]:
    """rescued: as `_probability_of_rescue`."""
    outcomes = run("sgt")
    fires = expected_value(outcomes, lambda outcome: float(bool(outcome.terms[1].answers)))
    imitated_although_right = [
        len(outcome.terms[1].answers)
        for outcome in outcomes
        if any(bandit.rewards[answer] for answer in outcome.draws[0])
    ]
    outside = max(imitated_although_right, default=0)
    return [
        Fact("sgt: fires with (1-p_k)^G (1 - prod_j (1-p_j)^G)", rescued, fires),
        Fact("sgt: imitated answers outside the rescue set", 0.0, float(outside)),
    ]


def _by_a_peers_vote(bandit: Bandit, run: _Runs) -> Fact:
    """Co-RL's gradient from the next policy's majority answer, the first drawn of equals."""
    pi = bandit.policies[0]
    size = bandit.rollouts
    direct = np.zeros(pi.size)
    for probability, (own, peer, *_) in bandit.outcomes:
        winner = max(peer, key=peer.count)
        rewards = np.array([float(a == winner) for a in own])
        for a, each in zip(own, standardise(rewards, rewards), strict=True):
            direct += probability * each / size * (np.eye(pi.size)[a] - pi)
    far = float(np.abs(mean_gradient(run("rlccf", vote="peer")) - direct).max())
    return Fact("rlccf, vote of a peer: E[g] is GRPO's toward its majority answer", 0.0, far)


def _in_phases(bandit: Bandit, run: _Runs) -> list[Fact]:
    """The regimes that learn from peers first: a run's first step is of the first phase, if there is one."""
    someone_right = 1 - float(np.prod((1 - bandit.success[1:]) ** bandit.rollouts))
    alone = mean_gradient(run("independent"))
    outcomes = run("imitate-then-rl")
    imitates = expected_value(outcomes, lambda o: float(any(t.answers for t in o.terms if t.source == "peer")))
    without = {name: mean_gradient(run(name, share=0.0)) for name in ("imitate-then-rl", "score-then-rl")}
    scored = mean_gradient(run("score-then-rl")) - mean_gradient(run("copd", ratio=0.0))
    return [
        Fact("imitate-then-rl: imitates with 1 - prod_j (1-p_j)^G", someone_right, imitates),
        *(Fact(f"{name}: share 0 is GRPO", 0.0, float(np.abs(g - alone).max())) for name, g in without.items()),
        Fact("score-then-rl: its first phase is copd's distillation", 0.0, float(np.abs(scored).max())),
    ]


def _scored_and_hinted(bandit: Bandit, run: _Runs, rescued: float) -> list[Fact]:
    """rescued: probability that only peers have a right answer."""
    pi = bandit.policies
    beta = 0.5
    peers = np.log(pi[1:]).mean(axis=0)
    toward = beta * pi[0] * (peers - np.log(pi[0]) - pi[0] @ (peers - np.log(pi[0])))
    itself = replace(bandit, logits=np.tile(bandit.logits[0], (len(pi), 1)))
    alone = mean_gradient(enumerate_outcomes(itself, build("copd", {"ratio": 0.0})))
    far = float(np.abs(mean_gradient(run("copd", ratio=0.0, beta=beta)) - toward).max())
    apart = {"offset": "removed", "alpha": 0.3}
    changed = peers - 0.3 * np.log(pi[0])
    less = beta * pi[0] * (changed - pi[0] @ changed)
    removed = float(np.abs(mean_gradient(run("copd", ratio=0.0, beta=beta, **apart)) - less).max())
    never = mean_gradient(run("core", probability=0.0)) - mean_gradient(run("xgrpo"))
    fires = expected_value(run("core"), lambda o: float(bool(o.terms[1].answers)))
    return [
        Fact("copd: E[g] = beta E_k[(mean log pi_j - log pi_k) grad log pi_k]", 0.0, far),
        Fact("copd: peers like the learner give no gradient", 0.0, float(np.abs(alone).max())),
        Fact("copd: without offset E[g] = beta E_k[(mean D_j - alpha D_k) grad log pi_k]", 0.0, removed),
        Fact("core: without a second round GRPO with joint statistics", 0.0, float(np.abs(never).max())),
        Fact("core: asks again with 3/4 (1-p_k)^G (1 - prod_j (1-p_j)^G)", 0.75 * rescued, fires),
    ]


def _facts_of_hacpo(bandit: Bandit) -> list[Fact]:
    """E[mu] = p_k where omega is the true capability ratio and guards and clamps are off."""
    true = {f"p{j}": float(p) for j, p in enumerate(bandit.success)}
    base: type[Regime] = load("hacpo")

    class TrueCapability(base):  # type: ignore[misc, valid-type]  # a base found at run time
        def capability(self, policy: str) -> float:
            return true[policy]

    if min(true.values()) <= 0:
        return []
    options = replace(base.Options(), guards=False, omega_min=1e-12, omega_max=1e12)
    regime = TrueCapability(options)
    guarded = TrueCapability(replace(options, guards=True))
    delivery = BanditDelivery(bandit, regime)
    off = on = 0.0
    for probability, draws in bandit.outcomes:
        own, inbox, _ = delivery.experience(draws)
        peers = inbox.valid("x")
        rewards = rewards_of([*own.valid, *peers])
        omega = np.array([1.0] * len(own.valid) + [regime.omega("p0", p.author) for p in peers])
        off += probability * regime.baseline(rewards, omega, len(own.valid))
        on += probability * guarded.baseline(rewards, omega, len(own.valid))
    bias = Fact("hacpo: bias of E[mu] by the code's two guards", None, on - true["p0"])
    return [Fact("hacpo: E[mu] = p_k under true capability ratios", true["p0"], off), bias]
