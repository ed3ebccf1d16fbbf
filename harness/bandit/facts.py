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
        """Say whether both agree to a millionth, of the prediction or of 1; None for an observation."""
        if self.predicted is None:
            return None
        tolerance = 1e-6 * max(1.0, abs(self.predicted))
        distance = abs(self.predicted - self.measured)
        return bool(distance <= tolerance)


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
    facts = [_of_independent(bandit, run)]
    facts += _of_naive(bandit, run)
    facts += _of_xgrpo(bandit, run)
    facts += _of_prp(bandit, run)
    facts += _of_shaped_weights(bandit, run)
    facts += _of_sgt(bandit, run, rescued)
    facts += _facts_of_hacpo(bandit)
    facts += _of_copd(bandit, run)
    facts += _of_core(run, rescued)
    facts += _in_phases(bandit, run)
    facts.append(_by_a_peers_vote(bandit, run))
    return facts


def _largest_difference(one: Vector, other: Vector) -> float:
    return _largest_size(one - other)


def _largest_size(vector: Vector) -> float:
    return float(np.abs(vector).max())


def _probability_of_rescue(bandit: Bandit) -> float:
    """Return (1-p_k)^G (1 - prod_j (1-p_j)^G): the learner's G answers are all wrong, and at least one peer has a right one."""
    all_wrong = (1 - bandit.success) ** bandit.rollouts  # (n,)
    some_peer_right = 1 - np.prod(all_wrong[1:])
    return float(all_wrong[0] * some_peer_right)


def _score_function(bandit: Bandit, answer: int) -> Vector:
    """Return the gradient of the learner's log-probability of an answer in its logits: e_a - pi."""
    pi = bandit.policies[0]
    unit = np.eye(pi.size)[answer]
    return np.asarray(unit - pi)


def _of_independent(bandit: Bandit, run: _Runs) -> Fact:
    """Compare training alone with its formula: dividing by a group's mean that holds the answer itself shortens the gradient, and
    nothing else."""
    alone = mean_gradient(run("independent", objective="dr_grpo"))
    shortened = 1 - 1 / bandit.rollouts
    expected = shortened * bandit.policy_gradient()
    distance = _largest_difference(alone, expected)
    return Fact("independent: E[g] = (1 - 1/G) policy gradient", 0.0, distance)


def _of_naive(bandit: Bandit, run: _Runs) -> list[Fact]:
    """Compare the naive mean with its formula: it uses peers' answers as if they were own ones, so its expectation is another
    direction."""
    gradient = bandit.policy_gradient()
    direct = np.zeros(gradient.size)  # A as the union's statistics make it
    for probability, draws in bandit.outcomes:
        union = [answer for drawn in draws for answer in drawn]
        rewards = np.array([bandit.rewards[answer] for answer in union])
        spread = rewards.std(ddof=1) + 1e-6
        advantages = (rewards - rewards.mean()) / spread
        for answer, advantage in zip(union, advantages, strict=True):
            share = probability * advantage / rewards.size
            direct += share * _score_function(bandit, answer)
    toward = mean_gradient(run("naive"))

    def distance_from_gradient(vector: Vector) -> float:
        """Return how far a vector lies beside the policy gradient's direction."""
        length = (vector @ gradient) / (gradient @ gradient)
        return _largest_difference(vector, length * gradient)

    predicted = distance_from_gradient(direct)
    measured = distance_from_gradient(toward)
    return [
        Fact("naive: E[g] = (1/n) sum_j E_j[A grad log pi_k]", 0.0, _largest_difference(toward, direct)),
        Fact("naive: distance of E[g] from the policy gradient's direction", predicted, measured),
    ]


def _of_xgrpo(bandit: Bandit, run: _Runs) -> Iterator[Fact]:
    """Compare joint statistics with their formula: without a division by the spread they leave the policy gradient as it is,
    whatever the peers' share."""
    gradient = bandit.policy_gradient()
    for beta in (0.25, 1.0):
        mixed = mean_gradient(run("xgrpo", baseline="mixed", normalise="none", beta=beta))
        distance = _largest_difference(mixed, gradient)
        yield Fact(f"xgrpo: unbiased with leave-one-out baselines, beta {beta}", 0.0, distance)


def _of_prp(bandit: Bandit, run: _Runs) -> list[Fact]:
    """Compare peers' answers under an importance weight with own ones: the weight is exact here, so nothing but its second moment
    costs."""
    pi = bandit.policies
    union = len(pi) * bandit.rollouts
    outcomes = run("prp", normalise="none", clip_low=1.0, clip_high=1e8)
    shortened = 1 - 1 / union
    expected = shortened * bandit.policy_gradient()
    distance = _largest_difference(mean_gradient(outcomes), expected)
    unbiased = Fact("prp: E[g] = (1 - 1/|U|) policy gradient, unclipped", 0.0, distance)
    if len(pi) != 2:
        return [unbiased]

    def squared_weight(outcome: JointDraw) -> float:
        """Return the squared weight of the peer's first answer, as in PRP's term."""
        answer = outcome.terms[1].answers[0]
        assert isinstance(answer.denominator, np.ndarray)
        own_logs = np.log(pi[0])
        log_weight = own_logs[answer.tokens[0]] - answer.denominator[0]
        return float(np.exp(2 * log_weight))

    moment = expected_value(outcomes, squared_weight)
    expected_moment = 1 + bandit.chi_squared()
    return [unbiased, Fact("prp: second moment of the weight = 1 + chi^2", expected_moment, moment)]


def _shaped_gradient(bandit: Bandit, weight: Callable[[float], float]) -> Vector:
    """Return LUFFY's E[g] with peers' right answers weighed by `weight` of the learner's probability."""
    pi = bandit.policies[0]
    total = np.zeros(pi.size)
    for probability, (own, *theirs) in bandit.outcomes:
        right = [answer for drawn in theirs for answer in drawn if bandit.rewards[answer]]
        pool = [*own, *right]
        rewards = np.array([bandit.rewards[answer] for answer in pool])
        own_weights = [1.0] * bandit.rollouts
        weights = [*own_weights, *(weight(pi[answer]) for answer in right)]
        advantages = standardise(rewards, rewards)
        for answer, factor, advantage in zip(pool, weights, advantages, strict=True):
            share = probability * factor * advantage / rewards.size
            total += share * _score_function(bandit, answer)
    return total


def _of_shaped_weights(bandit: Bandit, run: _Runs) -> list[Fact]:
    """Compare LUFFY's shaping with its formula, as a gradient and as a weight, at both ends of gamma; CHORD without its share of
    imitation."""
    tiny_gamma = 1e-9 * float(bandit.policies[0].min())
    small = mean_gradient(run("luffy", gamma=tiny_gamma, gradient="weight"))
    large = mean_gradient(run("luffy", gamma=1e6, gradient="weight"))
    shaping = _shaped_gradient(bandit, lambda p: 0.1 * p / (p + 0.1) ** 2)
    score_function = _shaped_gradient(bandit, lambda p: 1.0)
    own_part = _shaped_gradient(bandit, lambda p: 0.0)
    by_probability = _shaped_gradient(bandit, lambda p: p) - own_part
    luffy = mean_gradient(run("luffy"))
    slope = _largest_difference(luffy, shaping)
    peers_part = (large - own_part) * 1e6
    proportional = _largest_difference(peers_part, by_probability)
    chord = mean_gradient(run("chord", mu_first=0.0))
    grpo = mean_gradient(run("independent"))
    apart = _largest_difference(chord, grpo)
    near_zero = _largest_difference(small, score_function)
    return [
        Fact("luffy: E[g] is the gradient of p / (p + gamma) A on peers' right answers", 0.0, slope),
        Fact("luffy, as a weight: gamma -> 0 is the score function", 0.0, near_zero),
        Fact("luffy, as a weight: gamma -> infinity is proportional to p", 0.0, proportional),
        Fact("chord: mu = 0 is GRPO", 0.0, apart),
    ]


def _has_second_term(outcome: JointDraw) -> float:
    """Return 1 where the term after the learner's own one has answers, else 0."""
    return float(bool(outcome.terms[1].answers))


def _of_sgt(bandit: Bandit, run: _Runs, rescued: float) -> list[Fact]:
    """Compare SGT with its formula: it imitates where only peers have a right answer, and nowhere else. rescued: as
    `_probability_of_rescue`."""
    outcomes = run("sgt")
    fires = expected_value(outcomes, _has_second_term)
    imitated_although_right = []
    for outcome in outcomes:
        own_draw = outcome.draws[0]
        if any(bandit.rewards[answer] for answer in own_draw):
            imitated_although_right.append(len(outcome.terms[1].answers))
    outside = max(imitated_although_right, default=0)
    return [
        Fact("sgt: fires with (1-p_k)^G (1 - prod_j (1-p_j)^G)", rescued, fires),
        Fact("sgt: imitated answers outside the rescue set", 0.0, float(outside)),
    ]


def _by_a_peers_vote(bandit: Bandit, run: _Runs) -> Fact:
    """Compare Co-RL's gradient with that from the next policy's majority answer, the first drawn of equals."""
    pi = bandit.policies[0]
    size = bandit.rollouts
    direct = np.zeros(pi.size)
    for probability, (own, peer, *_) in bandit.outcomes:
        winner = max(peer, key=peer.count)
        rewards = np.array([float(answer == winner) for answer in own])
        advantages = standardise(rewards, rewards)
        for answer, advantage in zip(own, advantages, strict=True):
            direct += probability * advantage / size * _score_function(bandit, answer)
    toward_vote = mean_gradient(run("rlccf", vote="peer"))
    far = _largest_difference(toward_vote, direct)
    return Fact("rlccf, vote of a peer: E[g] is GRPO's toward its majority answer", 0.0, far)


def _in_phases(bandit: Bandit, run: _Runs) -> list[Fact]:
    """Return the regimes that learn from peers first: a run's first step is of the first phase, if there is one."""
    all_wrong = (1 - bandit.success[1:]) ** bandit.rollouts
    someone_right = 1 - float(np.prod(all_wrong))
    outcomes = run("imitate-then-rl")
    imitates = expected_value(outcomes, _learns_from_peers)
    facts = [Fact("imitate-then-rl: imitates with 1 - prod_j (1-p_j)^G", someone_right, imitates)]
    alone = mean_gradient(run("independent"))
    for name in ("imitate-then-rl", "score-then-rl"):
        without_first_phase = mean_gradient(run(name, share=0.0))
        apart = _largest_difference(without_first_phase, alone)
        facts.append(Fact(f"{name}: share 0 is GRPO", 0.0, apart))
    first_phase = mean_gradient(run("score-then-rl"))
    distilled = mean_gradient(run("copd", ratio=0.0))
    scored = _largest_difference(first_phase, distilled)
    return [*facts, Fact("score-then-rl: its first phase is copd's distillation", 0.0, scored)]


def _learns_from_peers(outcome: JointDraw) -> float:
    """Return 1 where some answer of a peer is learnt from, else 0."""
    return float(any(term.answers for term in outcome.terms if term.source == "peer"))


def _of_copd(bandit: Bandit, run: _Runs) -> list[Fact]:
    """Compare distillation from peers' scores with its formula: the gradient is that of the mean log-ratio of the peers to the
    learner, (K,)."""
    pi = bandit.policies
    own = pi[0]
    beta = 0.5
    peers = np.log(pi[1:]).mean(axis=0)

    def pull_toward(scores: Vector) -> Vector:
        """Return beta E_k[scores grad log pi_k]."""
        centred = scores - own @ scores
        return np.asarray(beta * own * centred)

    with_offset = pull_toward(peers - np.log(own))
    distilled = mean_gradient(run("copd", ratio=0.0, beta=beta))
    far = _largest_difference(distilled, with_offset)

    like_the_learner = replace(bandit, logits=np.tile(bandit.logits[0], (len(pi), 1)))
    alone = mean_gradient(enumerate_outcomes(like_the_learner, build("copd", {"ratio": 0.0})))

    without_offset = pull_toward(peers - 0.3 * np.log(own))
    distilled_without = mean_gradient(run("copd", ratio=0.0, beta=beta, offset="removed", alpha=0.3))
    removed = _largest_difference(distilled_without, without_offset)
    return [
        Fact("copd: E[g] = beta E_k[(mean log pi_j - log pi_k) grad log pi_k]", 0.0, far),
        Fact("copd: peers like the learner give no gradient", 0.0, _largest_size(alone)),
        Fact("copd: without offset E[g] = beta E_k[(mean D_j - alpha D_k) grad log pi_k]", 0.0, removed),
    ]


def _of_core(run: _Runs, rescued: float) -> list[Fact]:
    """Compare CORE with its formula: it asks again with a peer's answer as a hint. rescued: as `_probability_of_rescue`."""
    never_asked = mean_gradient(run("core", probability=0.0))
    joint = mean_gradient(run("xgrpo"))
    apart = _largest_difference(never_asked, joint)
    fires = expected_value(run("core"), _has_second_term)
    return [
        Fact("core: without a second round GRPO with joint statistics", 0.0, apart),
        Fact("core: asks again with 3/4 (1-p_k)^G (1 - prod_j (1-p_j)^G)", 0.75 * rescued, fires),
    ]


def _facts_of_hacpo(bandit: Bandit) -> list[Fact]:
    """Compare HACPO's baseline with its formula: E[mu] = p_k where omega is the true capability ratio and guards and clamps are
    off."""
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
        own_count = len(own.valid)
        of_peers = [regime.omega("p0", peer.author) for peer in peers]
        omega = np.array([1.0] * own_count + of_peers)
        off += probability * regime.baseline(rewards, omega, own_count)
        on += probability * guarded.baseline(rewards, omega, own_count)
    bias = Fact("hacpo: bias of E[mu] by the code's two guards", None, on - true["p0"])
    return [Fact("hacpo: E[mu] = p_k under true capability ratios", true["p0"], off), bias]
