"""The laboratory's expectations against sums over all joint draws, written from the formulas."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from harness.bandit import (
    Bandit,
    Fact,
    enumerate_outcomes,
    every_choice,
    gradient_variance,
    list_facts,
    mean_gradient,
    measure_point,
)
from harness.experience.records import Record
from harness.learning.registry import build
from regimes.graft import GRAFT
from regimes.naive import Naive

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

    def half(self, drawn):
        own, *peers = self.split(drawn)
        kept = [own, *(p[: int(len(p) / 2 + 0.5)] for p in peers)]
        return self.naive([(j, a) for j, answers in enumerate(kept) for a in answers])

    def sgt(self, drawn, weight=0.1):
        own, *peers = self.split(drawn)
        right = [a for p in peers for a in p if self.r[a]]
        (base,) = self.grpo(drawn)
        return [[*base, (a, weight)] for a in right] if right and not any(self.rewards(own)) else [base]


# by their terms all regimes are proven in tests/regimes; here it is the enumeration, its weights and its choices that are
CASES = {
    "gspo": ("independent", {"objective": "gspo"}, lambda r: r.grpo),
    "naive": ("naive", {}, lambda r: r.naive),
    "prp": ("prp", {}, lambda r: r.prp),
    "prp unclipped": ("prp", {"normalise": "none", "clip_low": 1.0, "clip_high": 1e8, "groups": "per_source"},
                      lambda r: lambda d: r.prp(d, scale=False, clip=(0, 1e9), per_source=True)),
    "sgt": ("sgt", {}, lambda r: r.sgt),
    "replay, annealed": ("naive", {}, lambda r: r.half),
    "graft": ("graft", {}, lambda r: r.grpo),  # one prompt: no exchange in both directions, so nothing is replaced
}  # fmt: skip


@pytest.mark.slow_but("pair")
@pytest.mark.parametrize("case", CASES)
def test_mean_and_variance_of_the_gradient(bandit, case):
    name, options, rule = CASES[case]
    outcomes = enumerate_outcomes(bandit, build(name, options), share=0.5 if "annealed" in case else 1.0)
    first, variance = moments(bandit, rule(Rules(bandit)))
    assert mean_gradient(outcomes) == pytest.approx(first, rel=1e-6, abs=1e-9)
    assert gradient_variance(outcomes) == pytest.approx(variance, rel=1e-6)
    assert sum(o.probability for o in outcomes) == pytest.approx(1)


def test_what_facts_are_predicted_from(bandit):
    pi, r = np.array([softmax(row) for row in bandit.logits]), bandit.rewards
    gradient = pi[0] * (r - pi[0] @ r)
    assert bandit.policy_gradient() == pytest.approx(gradient)
    assert bandit.success == pytest.approx(pi @ r)
    for j in range(1, len(pi)):
        assert bandit.chi_squared(j) == pytest.approx(((pi[0] - pi[j]) ** 2 / pi[j]).sum())


@pytest.mark.slow_but("pair")
def test_every_fact_holds_and_a_false_one_would_not(bandit):
    checks = list_facts(replace(bandit, rollouts=2))
    known = {
        "independent",
        "naive",
        "xgrpo",
        "prp",
        "sgt",
        "hacpo",
        "luffy",
        "chord",
        "copd",
        "core",
        "imitate-then-rl",
        "score-then-rl",
        "rlccf",
    }
    assert {f.statement.split(":")[0].split(",")[0] for f in checks} == known
    assert all(f.holds is not False for f in checks)
    assert not Fact("", 1.0, 1.00001).holds
    apart = [f for f in checks if f.statement.startswith("naive: distance")]
    assert apart[0].measured > 0.001, "naive is biased where PRP is not"


def test_every_fact_holds_of_policies_far_apart():
    far = Bandit(np.array([[0.0, 8.0], [8.0, 0.0]]), np.array([1.0, 0.0]), 2)
    assert all(f.holds is not False for f in list_facts(far))


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

    choices = list(every_choice(pick))
    assert sum(p for p, _ in choices) == pytest.approx(1)
    assert sorted(map(tuple, (r for _, r in choices))) == [
        (0,), *((i, *pair) for i in (1, 2) for pair in itertools.permutations(range(4), 2))
    ]  # fmt: skip
    assert {p for p, r in choices if len(r) == 1} == {1 / 3}
    for draw in (lambda r: r.random(), lambda r: r.integers(5, size=2), lambda r: r.choice(4, size=2)):
        with pytest.raises(ValueError, match="can be enumerated"):
            list(every_choice(draw))


class Renamed(GRAFT):
    """Its own term has a name of its own."""

    def learn(self, own, inbox, context):
        return [replace(t, name=f"{t.name}s") for t in super().learn(own, inbox, context)]


def test_a_terms_source_says_what_is_a_peers_not_its_name():
    bandit = BANDITS["rescue"]
    one, other = (enumerate_outcomes(bandit, kind()) for kind in (GRAFT, Renamed))
    assert [o.raised for o in one] == [o.raised for o in other]
    assert measure_point("x", "x", bandit, one) == measure_point("x", "x", bandit, other)


def test_peers_send_what_the_regime_publishes():
    """Fewer answers, and record types of its own."""

    class Said(Record, frozen=True, kw_only=True, tag="said"):
        number: int

        @classmethod
        def of(cls, group, pieces):
            return [cls.about(group, number=len(group.answers))]

    class Right(Naive):
        def publish(self, groups, pieces):
            sent = super().publish(groups, pieces)
            return [*(r for r in sent if r.reward > 0), *(r for g in groups for r in Said.of(g, pieces))]

        def learn(self, own, inbox, context):
            assert [r.number for r in inbox.records["x"]] == [2]
            assert all(p.reward > 0 for p in inbox.valid("x"))
            return super().learn(own, inbox, context)

    assert any(o.weights for o in enumerate_outcomes(BANDITS["pair"], Right()))
