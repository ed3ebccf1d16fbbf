"""The laboratory's expectations of every regime against sums over all joint draws, written from the formulas."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from harness.bandit.facts import Fact, facts
from harness.bandit.laboratory import (
    Bandit,
    enumerate_outcomes,
    every_choice,
    expectation,
    gradient_variance,
    mean_gradient,
)
from harness.learning.registry import build

BANDITS = {
    "pair": Bandit(np.array([[1.0, 0.0, -1.0], [-0.5, 0.2, 0.6]]), np.array([0.0, 1.0, 1.0]), 2),
    "rescue": Bandit(np.array([[1.5, 1.0, -1.5], [0.0, 0.3, 1.0]]), np.array([0.0, 0.0, 1.0]), 3),
    "three": Bandit(np.array([[0.6, 0.0, 0.2], [0.0, 0.5, -0.5], [0.3, 0.1, 0.9]]), np.array([0.0, 1.0, 0.0]), 2),
}


@pytest.fixture(params=BANDITS)
def bandit(request):
    return BANDITS[request.param]


def softmax(logits):
    weights = [math.exp(v) for v in logits]
    return [w / sum(weights) for w in weights]


def joint(bandit):
    """(probability, [(policy, answer), ...]) of every joint draw, the learner's answers first."""
    pi = [softmax(row) for row in bandit.logits]
    size = bandit.rollouts
    who = [j for j in range(len(pi)) for _ in range(size)]
    for drawn in itertools.product(range(len(pi[0])), repeat=len(who)):
        yield math.prod(pi[j][a] for j, a in zip(who, drawn, strict=True)), list(zip(who, drawn, strict=True))


def moments(bandit, rule):
    """E[g] and trace Cov[g] for g = sum of coefficient x grad log pi(answer); `rule` may mix several equally likely ones."""
    pi = np.array(softmax(bandit.logits[0]))
    first, second = np.zeros(pi.size), 0.0
    for probability, drawn in joint(bandit):
        choices = rule(drawn)
        for pairs in choices:
            g = sum((c * (np.eye(pi.size)[a] - pi) for a, c in pairs), np.zeros(pi.size))
            first += probability / len(choices) * g
            second += probability / len(choices) * (g @ g)
    return first, second - first @ first


def mean(xs):
    return sum(xs) / len(xs)


def std(xs):
    return math.sqrt(sum((x - mean(xs)) ** 2 for x in xs) / (len(xs) - 1))


def z(r, pool):
    return (r - mean(pool)) / (std(pool) + 1e-6)


class Rules:
    """Coefficients of the answers of one joint draw at the first update, where every ratio to old_k is 1."""

    def __init__(self, bandit):
        self.r = bandit.rewards.tolist()
        self.pi = [softmax(row) for row in bandit.logits]
        self.n = len(self.pi)

    def split(self, drawn):
        return [[a for j, a in drawn if j == k] for k in range(self.n)]

    def rewards(self, answers):
        return [self.r[a] for a in answers]

    def grpo(self, drawn):
        own = self.split(drawn)[0]
        pool = self.rewards(own)
        return [[(a, z(self.r[a], pool) / len(own)) for a in own]]

    def dr_grpo(self, drawn):
        own = self.split(drawn)[0]
        return [[(a, (self.r[a] - mean(self.rewards(own))) / len(own)) for a in own]]

    def naive(self, drawn):
        pool = [self.r[a] for _, a in drawn]
        return [[(a, z(self.r[a], pool) / len(pool)) for _, a in drawn]]

    def prp(self, drawn, scale=True, clip=(0.8, 1.28), per_source=False):
        pairs = []
        for j, a in drawn:
            pool = [self.r[b] for i, b in drawn if i == j or not per_source]
            advantage = z(self.r[a], pool) if scale else self.r[a] - mean(pool)
            w = self.pi[0][a] / self.pi[j][a]
            clipped = (advantage > 0 and w > clip[1]) or (advantage < 0 and w < clip[0])
            pairs.append((a, 0.0 if clipped else w * advantage / len(drawn)))
        return [pairs]

    def xgrpo(self, drawn, beta=None, scale=True):
        own, *peers = self.split(drawn)
        mine, theirs = self.rewards(own), [self.r[a] for p in peers for a in p]
        pairs = []
        for i, a in enumerate(own):
            loo = mean(mine[:i] + mine[i + 1 :])
            b = mean(mine + theirs) if beta is None else (1 - beta) * loo + beta * mean(theirs)
            pairs.append((a, (self.r[a] - b) / ((std(mine + theirs) + 1e-6) if scale else 1) / len(own)))
        return [pairs]

    def sgt(self, drawn, weight=0.1):
        own, *peers = self.split(drawn)
        right = [a for p in peers for a in p if self.r[a]]
        (base,) = self.grpo(drawn)
        return [[*base, (a, weight)] for a in right] if right and not any(self.rewards(own)) else [base]

    def sapo(self, drawn):
        _, *peers = self.split(drawn)
        (base,) = self.grpo(drawn)
        mixed = [p for p in peers if 0 < sum(self.rewards(p)) < len(p)]
        return [
            [(a, c / 2) for a, c in base] + [(a, z(self.r[a], self.rewards(p)) / len(p) / 2) for a in p] for p in mixed
        ] or [base]

    def ftis(self, drawn, cap=2.0, gamma=50.0, weighs=True):
        own, *peers = self.split(drawn)
        kept = [(0, a, z(self.r[a], self.rewards(own))) for a in own]
        for j, p in enumerate(peers, 1):
            for a in p:
                advantage, d = z(self.r[a], self.rewards(p)), math.log(self.pi[j][a] / self.pi[0][a])
                if advantage > 0 or math.exp(d) - 1 - d < gamma:
                    kept.append((j, a, advantage))
        pairs = []
        for j, a, advantage in kept:
            w = self.pi[0][a] / self.pi[j][a]
            w = 1.0 if j == 0 else min(w, cap) if weighs or w <= cap else 0.0
            pairs.append((a, w * advantage / len(kept)))
        return [pairs]

    def hacpo(self, drawn, low=0.8, alpha=1.0):
        groups = self.split(drawn)
        share = [max(mean(self.rewards(g)), 1e-8) for g in groups]
        omega = [[min(max(a / b, 0.1), 10) if a is not b else 1.0 for b in share] for a in share]
        raw = [self.r[a] for _, a in drawn]
        mu = mean([omega[0][j] * self.r[a] if j else self.r[a] for j, a in drawn])
        if len(set(raw)) == 1:
            mu = raw[0]
        elif mu > 1:
            mu = mean(self.rewards(groups[0]))
        pairs = []
        for j, a in drawn:
            advantage, s = (self.r[a] - mu) / (std(raw) + 1e-6), self.pi[0][a] / self.pi[j][a]
            weight = 1.0 if j == 0 else omega[j][0] * s ** (1 + alpha) * (low <= s <= 1)
            pairs.append((a, weight * advantage / len(drawn)))
        return [pairs]


CASES = {
    "independent": ("independent", {}, lambda r: r.grpo),
    "gspo": ("independent", {"objective": "gspo"}, lambda r: r.grpo),
    "dr_grpo": ("independent", {"objective": "dr_grpo"}, lambda r: r.dr_grpo),
    "naive": ("naive", {}, lambda r: r.naive),
    "prp": ("prp", {}, lambda r: r.prp),
    "prp per source": ("prp", {"groups": "per_source"}, lambda r: lambda d: r.prp(d, per_source=True)),
    "prp receiver_old": ("prp", {"ratio": "receiver_old"}, lambda r: r.naive),
    "prp score": ("prp", {"ratio": "none"}, lambda r: r.naive),
    "prp unclipped": ("prp", {"normalise": "none", "clip_low": 1.0, "clip_high": 1e8},
                      lambda r: lambda d: r.prp(d, scale=False, clip=(0, 1e9))),
    "xgrpo": ("xgrpo", {}, lambda r: r.xgrpo),
    "xgrpo mixed": ("xgrpo", {"baseline": "mixed", "beta": 0.3, "normalise": "none"},
                    lambda r: lambda d: r.xgrpo(d, beta=0.3, scale=False)),
    "sgt": ("sgt", {}, lambda r: r.sgt),
    "graft": ("graft", {}, lambda r: r.grpo),  # one prompt: no exchange in both directions, so nothing is replaced
    "hacpo": ("hacpo", {}, lambda r: r.hacpo),
    "hacpo wide": ("hacpo", {"delta": 0.9, "alpha": 3.0}, lambda r: lambda d: r.hacpo(d, low=0.1, alpha=3.0)),
    "sapo": ("sapo", {}, lambda r: r.sapo),
    "ftis": ("ftis", {}, lambda r: r.ftis),
    "ftis narrow": ("ftis", {"truncation": 0.8, "filter_kl": 0.1}, lambda r: lambda d: r.ftis(d, cap=0.8, gamma=0.1)),
    "ftis cut": ("ftis", {"truncation": 0.8, "beyond": "none"}, lambda r: lambda d: r.ftis(d, cap=0.8, weighs=False)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_mean_and_variance_of_the_gradient(bandit, case):
    name, options, rule = CASES[case]
    outcomes = enumerate_outcomes(bandit, build(name, options))
    first, variance = moments(bandit, rule(Rules(bandit)))
    assert mean_gradient(outcomes) == pytest.approx(first, rel=1e-6, abs=1e-9)
    assert gradient_variance(outcomes) == pytest.approx(variance, rel=1e-6)
    assert sum(o.probability for o in outcomes) == pytest.approx(1)


def policy_gradient(bandit):
    pi, r = np.array(softmax(bandit.logits[0])), bandit.rewards
    return pi * (r - pi @ r)


def run(bandit, name, **options):
    return mean_gradient(enumerate_outcomes(bandit, build(name, options)))


def test_the_group_mean_shrinks_the_policy_gradient(bandit):
    shrunk = (1 - 1 / bandit.rollouts) * policy_gradient(bandit)
    assert run(bandit, "independent", objective="dr_grpo") == pytest.approx(shrunk, abs=1e-12)
    assert bandit.policy_gradient() == pytest.approx(policy_gradient(bandit))


@pytest.mark.parametrize("beta", [0.0, 0.25, 0.5, 1.0])
def test_xgrpo_with_leave_one_out_is_unbiased_for_any_beta(bandit, beta):
    found = run(bandit, "xgrpo", baseline="mixed", normalise="none", beta=beta)
    assert found == pytest.approx(policy_gradient(bandit), abs=1e-12)


def test_prp_is_unbiased_up_to_the_union_mean_and_its_weight_has_the_chi_squared_moment(bandit):
    size = len(bandit.logits) * bandit.rollouts
    found = run(bandit, "prp", normalise="none", clip_low=1.0, clip_high=1e8)
    assert found == pytest.approx((1 - 1 / size) * policy_gradient(bandit), abs=1e-12)
    pi = [softmax(row) for row in bandit.logits]
    for j in range(1, len(pi)):
        chi = sum((p - q) ** 2 / q for p, q in zip(pi[0], pi[j], strict=True))
        assert bandit.chi_squared(j) == pytest.approx(chi)


def test_naive_is_biased_where_prp_is_not():
    bandit = BANDITS["pair"]
    direction = policy_gradient(bandit) / np.linalg.norm(policy_gradient(bandit))
    found = run(bandit, "naive")
    assert np.linalg.norm(found - (found @ direction) * direction) > 0.01


def test_sgt_fires_as_often_as_theory_says_and_only_on_rescue_prompts(bandit):
    outcomes = enumerate_outcomes(bandit, build("sgt", {}))
    plain = {o.draws: o.gradient for o in enumerate_outcomes(bandit, build("independent", {}))}
    p = [sum(q * r for q, r in zip(softmax(row), bandit.rewards, strict=True)) for row in bandit.logits]
    rate = (1 - p[0]) ** bandit.rollouts * (1 - math.prod(1 - q for q in p[1:]) ** bandit.rollouts)
    assert expectation(outcomes, lambda o: float(bool(o.terms[1].answers))) == pytest.approx(rate)
    for o in outcomes:
        rescued = not any(bandit.rewards[list(o.draws[0])]) and any(bandit.rewards[a] for d in o.draws[1:] for a in d)
        assert (o.gradient - plain[o.draws]).any() == rescued


def test_hacpo_baseline_is_unbiased_under_the_true_capabilities_and_its_guards_bias_is_reported(bandit):
    found = {f.statement: f for f in facts(bandit) if f.statement.startswith("hacpo")}
    p = [sum(q * r for q, r in zip(softmax(row), bandit.rewards, strict=True)) for row in bandit.logits]
    unbiased = found["hacpo: E[mu] = p_k under true capability ratios"]
    assert unbiased.holds
    assert unbiased.predicted == pytest.approx(p[0])
    guarded = 0.0
    for probability, drawn in joint(bandit):
        raw = [bandit.rewards[a] for _, a in drawn]
        mu = mean([p[0] / p[j] * bandit.rewards[a] for j, a in drawn])
        if len(set(raw)) == 1:
            mu = raw[0]
        elif mu > 1:
            mu = mean(raw[: bandit.rollouts])
        guarded += probability * mu
    bias = found["hacpo: bias of E[mu] by the code's two guards"]
    assert bias.predicted is None
    assert bias.holds is None
    assert bias.measured == pytest.approx(guarded - p[0], abs=1e-12)
    assert bias.measured != 0


def test_every_fact_holds_and_a_false_one_would_not(bandit):
    found = facts(bandit)
    assert {f.statement.split(":")[0] for f in found} == {"independent", "naive", "xgrpo", "prp", "sgt", "hacpo"}
    assert all(f.holds is not False for f in found)
    assert not Fact("", 1.0, 1.00001).holds


def test_later_updates_see_the_same_outcomes_cut_into_mini_batches():
    bandit = BANDITS["pair"]
    one, two = (enumerate_outcomes(bandit, build("hacpo", {"delta": 0.9}), updates) for updates in (1, 2))
    assert [o.draws for o in one] == [o.draws for o in two]
    # Apart, own and peer answers are each divided by their own number.
    assert not np.allclose(mean_gradient(one), mean_gradient(two))


def test_a_regimes_own_choices_are_enumerated_too():
    def pick(rng):
        first = rng.integers(3)
        return first, *(rng.choice(4, size=2, replace=False) if first else ())

    found = list(every_choice(pick))
    assert sum(p for p, _ in found) == pytest.approx(1)
    assert sorted(map(tuple, (r for _, r in found))) == [
        (0,), *((i, *pair) for i in (1, 2) for pair in itertools.permutations(range(4), 2))
    ]  # fmt: skip
    assert {p for p, r in found if len(r) == 1} == {1 / 3}
    for draw in (lambda r: r.random(), lambda r: r.integers(5, size=2), lambda r: r.choice(4, size=2)):
        with pytest.raises(ValueError, match="can be enumerated"):
            list(every_choice(draw))
