"""Which answers, advantages, weights, denominators and objectives each regime asks for, against plain loops."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import formulas
import numpy as np
import pytest
from worlds import make_world

from harness.errors import PluginError
from harness.experience.answers import Inbox
from harness.experience.records import GroupValue, Rollout, Success, TextRollout
from harness.learning.regime import Need
from harness.learning.registry import build
from harness.learning.terms import OLD, Objective

WORLDS = {
    "pair": {"policies": 2},
    "three": {"policies": 3},
    "invalid": {"policies": 3, "invalid": 0.4, "rollouts": 3},
    "unequal": {"policies": 3, "rollouts": (2, 5, 4)},
    "single rollout": {"policies": 2, "rollouts": 1},
}
TOKEN = Objective(ratio="token", form="ppo", low=0.8, high=1.28, aggregation="token")
SEQUENCE = Objective(ratio="sequence", form="ppo", low=0.9997, high=1.0004, aggregation="answer")


@pytest.fixture(params=[(name, seed) for name in WORLDS for seed in range(2)], ids=lambda p: f"{p[0]}-{p[1]}")
def world(request):
    name, seed = request.param
    return make_world(seed, **WORLDS[name])


def learnt(world, terms):
    """Every answer of the terms with its key."""
    return {
        (world.key_of(a.tokens), t.order): (t, a)
        for t in terms
        for a in t.answers
    }  # fmt: skip


def check(world, terms, rows, denominator):
    """Terms and rows hold the same answers in the same order with equal numbers; returns the peer answers."""
    found = learnt(world, terms)
    assert len(found) == sum(len(t.answers) for t in terms)
    assert sorted(found) == sorted((r.key, int(r.late)) for r in rows)
    for row in rows:
        term, answer = found[row.key, int(row.late)]
        assert term.source == ("own" if row.own else "peer")
        assert answer.prompt_id == row.key[1]
        assert answer.advantage == pytest.approx(row.advantage, rel=1e-9, abs=1e-12)
        assert answer.weight == pytest.approx(row.weight, rel=1e-9)
        assert answer.origin == (None if row.own else (row.key[0], row.key[2]))
        assert term.weight == 1.0
        expected = denominator(row.key)
        if row.own:
            assert answer.denominator is OLD
            assert answer.sampled is expected
            continue
        assert answer.sampled is None
        assert answer.denominator is expected or (
            np.ndim(expected) == 0 and answer.denominator == pytest.approx(expected)
        )


def by_old(world):
    """own: sampling log-probabilities; peer: the learner's own old ones."""
    return lambda k: world.answers[k].logprobs if k[0] == "p0" else world.answers[k].receiver_old


def by_behaviour(world):
    return lambda k: world.answers[k].logprobs if k[0] == "p0" else world.answers[k].aligned


@pytest.mark.parametrize("objective", ["grpo", "gspo", "dr_grpo"])
def test_independent(world, objective):
    terms = build("independent", {"objective": objective}).learn(world.own, Inbox(), world.context())
    check(world, terms, formulas.independent(world, dr=objective == "dr_grpo"), by_old(world))
    (term,) = terms
    assert term.objective == {
        "grpo": TOKEN, "gspo": SEQUENCE, "dr_grpo": replace(TOKEN, aggregation="constant")
    }[objective]  # fmt: skip


def test_naive(world):
    terms = build("naive", {}).learn(world.own, world.inbox, world.context())
    check(world, terms, formulas.pooled(world), by_old(world))
    assert [t.objective for t in terms] == [TOKEN, TOKEN]


@pytest.mark.parametrize("ratio", ["behaviour", "receiver_old", "none"])
def test_prp(world, ratio):
    for groups, normalise in product(("union", "per_source"), ("std", "none")):
        check_prp(world, ratio, groups, normalise)


def check_prp(world, ratio, groups, normalise):
    regime = build("prp", {"ratio": ratio, "groups": groups, "normalise": normalise})
    terms = regime.learn(world.own, world.inbox, world.context())
    behaviour, old = by_behaviour(world), by_old(world)
    denominator = {"behaviour": behaviour, "receiver_old": old, "none": lambda k: old(k) if k[0] == "p0" else None}
    check(world, terms, formulas.pooled(world, groups == "union", normalise == "std"), denominator[ratio])
    assert [t.objective for t in terms] == [TOKEN, TOKEN]
    needs = {"behaviour": {Need.ALIGNED}, "receiver_old": {Need.RECEIVER_OLD}, "none": set()}
    assert regime.needs == needs[ratio]


def test_prp_clip_bounds_are_options():
    (own, peer) = build("prp", {"clip_low": 0.1, "clip_high": 2.0}).learn(
        make_world(0).own, Inbox(), make_world(0).context()
    )
    assert (own.objective.low, own.objective.high) == (peer.objective.low, peer.objective.high) == (0.9, 3.0)


@pytest.mark.parametrize("baseline", ["pooled", "mixed"])
def test_xgrpo(world, baseline):
    for beta, normalise in product((0.0, 0.3, 1.0), ("std", "none")):
        regime = build("xgrpo", {"baseline": baseline, "beta": beta, "normalise": normalise})
        terms = regime.learn(world.own, world.inbox, world.context())
        check(world, terms, formulas.xgrpo(world, baseline, beta, normalise == "std"), by_old(world))
        assert [t.objective for t in terms] == [TOKEN]


def test_xgrpo_defaults_and_its_two_new_signals():
    """Own all wrong, peer partly right: all pushed down. Own all right, peer partly wrong: all pushed up."""
    assert build("xgrpo", {}).options == build("xgrpo", {"baseline": "pooled", "beta": 0.5, "normalise": "std"}).options
    signs = set()
    for seed in range(20):
        world = make_world(seed)
        (term,) = build("xgrpo", {}).learn(world.own, world.inbox, world.context())
        for x in world.prompts:
            mine, theirs = ({world.reward(k) for k in world.group(p, x)} for p in ("p0", "p1"))
            if len(mine) == 1 and len(theirs) == 2:
                here = [a.advantage for a in term.answers if a.prompt_id == x]
                assert all(a < 0 for a in here) if mine == {0.0} else all(a > 0 for a in here)
                signs |= mine
    assert signs == {0.0, 1.0}


def test_sgt(world):
    own, imitation = build("sgt", {}).learn(world.own, world.inbox, world.context())
    check(world, [own], formulas.independent(world), by_old(world))
    rescues = formulas.rescues(world)
    assert [a.prompt_id for a in imitation.answers] == list(rescues)
    for answer in imitation.answers:
        key = world.key_of(answer.tokens)
        assert key in rescues[answer.prompt_id]
        assert (answer.advantage, answer.weight, answer.denominator, answer.mask) == (1.0, 1.0, None, None)
        assert answer.origin == (key[0], key[2])
    assert (imitation.weight, imitation.order, imitation.source) == (0.1, 0, "peer")
    assert (imitation.objective.form, imitation.objective.aggregation) == ("nll", "prompt")


def test_sgt_draws_uniformly_from_all_peers_successes():
    world = next(w for w in (make_world(s, policies=3, prompts=1) for s in range(99)) if any(
        len(k) == 4 and len({a for a, _, _ in k}) == 2 for k in formulas.rescues(w).values()))  # fmt: skip
    (keys,) = formulas.rescues(world).values()
    drawn = [
        world.key_of(build("sgt", {}).learn(world.own, world.inbox, world.context(seed=s))[1].answers[0].tokens)
        for s in range(2000)
    ]
    shares = [drawn.count(k) / len(drawn) for k in keys]
    assert sum(shares) == 1
    assert all(abs(share - 1 / 4) < 5 * math.sqrt(3 / 16 / 2000) for share in shares)


def test_sapo(world):
    """Own groups as GRPO; as many external groups of mixed outcome as own ones, each with its own statistics."""
    mixed = [
        (p, x)
        for x in world.prompts
        for p in world.policies[1:]
        if len({world.reward(k) for k in world.group(p, x)}) == 2
    ]
    for external, due in ((None, len(world.own)), (0, 0), (2, 2)):
        own, peer = build("sapo", {"external": external}).learn(world.own, world.inbox, world.context())
        drawn = list(dict.fromkeys(world.key_of(a.tokens)[:2] for a in peer.answers))
        assert len(drawn) == min(due, len(mixed))
        assert set(drawn) <= set(mixed)
        rows = [r for p, x in drawn for r in formulas.grpo(world, world.group(p, x))]
        check(world, [own, peer], formulas.independent(world) + rows, by_old(world))
        assert own.objective == peer.objective == TOKEN


def test_sapo_draws_uniformly_and_without_repeats():
    world = make_world(4, policies=3, prompts=8)
    counts: dict[tuple[str, str], int] = {}
    for seed in range(1000):
        _, peer = build("sapo", {"external": 2}).learn(world.own, world.inbox, world.context(seed=seed))
        drawn = {world.key_of(a.tokens)[:2] for a in peer.answers}
        assert len(drawn) == 2
        for key in drawn:
            counts[key] = counts.get(key, 0) + 1
    share = 2 / len(counts)
    assert len(counts) > 4
    assert all(abs(n / 1000 - share) < 5 * math.sqrt(share * (1 - share) / 1000) for n in counts.values())


def test_graft(world):
    terms = build("graft", {}).learn(world.own, world.inbox, world.context())
    check(world, terms, formulas.graft(world), by_old(world))
    own, peer = terms
    assert own.objective == peer.objective == TOKEN
    assert (own.order, peer.order) == (0, 1)


def test_graft_replaces_something_in_these_worlds():
    """The worlds above do exercise replacement, refusal by threshold, and weights that are cut at 1."""
    rows = [r for s in range(60) for r in formulas.graft(make_world(s, policies=3)) if r.late]
    assert {0.0, 1.0} < {r.weight for r in rows}
    for seed in range(60):
        world = make_world(seed, policies=3)
        terms = build("graft", {}).learn(world.own, world.inbox, world.context())
        check(world, terms, formulas.graft(world), by_old(world))


def test_hacpo(world):
    terms = build("hacpo", {}).learn(world.own, world.inbox, world.context())

    def denominator(key):
        a = world.answers[key]
        return a.logprobs if key[0] == "p0" else a.source_logprob / a.source_tokens

    check(world, terms, formulas.hacpo([world]), denominator)
    own, peer = terms
    assert own.objective == replace(SEQUENCE, low=1 - 3e-4, high=1 + 4e-4)
    assert peer.objective == Objective(
        ratio="cross",
        form="hard",
        low=0.8,
        high=1.0,
        low_step=0.025,
        exponent=1.0,
        log_bound=10.0,
        aggregation="answer",
    )
    assert (own.order, peer.order) == (0, 1)
    assert all(a.scale == 1.0 for t in terms for a in t.answers)
    for answer in peer.answers:
        finished = world.answers[world.key_of(answer.tokens)].finished
        assert answer.counted == answer.tokens.size - finished
        assert answer.mask is None or (not answer.mask[-1] and answer.mask[:-1].all())


@pytest.mark.parametrize("groups", ["vertical", "union"])
@pytest.mark.parametrize(
    ("divergence", "gamma"), [("learner", 50.0), ("learner", 3.0), ("author", 3.0), ("author", 0.0)]
)
def test_ftis(world, groups, divergence, gamma):
    options = {"groups": groups, "divergence": divergence, "filter_kl": gamma, "truncation": 1.5}
    for beyond, form in (("weight", "truncated"), ("none", "hard")):
        terms = build("ftis", {**options, "beyond": beyond}).learn(world.own, world.inbox, world.context())
        rows = formulas.ftis(world, gamma, groups == "union", divergence == "author")
        check(world, terms, rows, by_behaviour(world))
        own, peer = terms
        assert own.objective == TOKEN
        o = peer.objective
        assert (o.ratio, o.form, o.low, o.high, o.exponent, o.aggregation) == ("token", form, 0.0, 1.5, 0.0, "token")
        assert (own.order, peer.order) == (0, 0)
        assert all(a.mask is None for a in peer.answers)


def test_ftis_defaults_and_that_these_worlds_exercise_the_filter():
    defaults = {"truncation": 2.0, "filter_kl": 50.0, "groups": "vertical", "beyond": "weight", "divergence": "learner"}
    assert build("ftis", {}).options == build("ftis", defaults).options
    assert build("ftis", {}).needs == {Need.ALIGNED, Need.RECEIVER_OLD}
    for name, value in (("truncation", 0.0), ("filter_kl", -1.0)):
        with pytest.raises(PluginError, match=f"^{name}: "):
            build("ftis", {name: value})
    kept, dropped, by_advantage, differs = 0, 0, 0, 0
    for seed in range(30):
        world = make_world(seed, policies=3)
        rows = [r for r in formulas.pooled(world, union=False) if not r.own]
        near = [formulas.far(world, r.key) < 3.0 for r in rows]
        kept += sum(n and r.advantage <= 0 for n, r in zip(near, rows, strict=True))
        dropped += sum(not n and r.advantage <= 0 for n, r in zip(near, rows, strict=True))
        by_advantage += sum(not n and r.advantage > 0 for n, r in zip(near, rows, strict=True))
        differs += sum(n != (formulas.far(world, r.key, True) < 3.0) for n, r in zip(near, rows, strict=True))
    assert min(kept, dropped, by_advantage, differs) > 20


def test_what_is_shared():
    names = ("independent", "naive", "prp", "xgrpo", "sgt", "hacpo", "graft", "sapo", "ftis")
    shares = {n: build(n, {}).shares for n in names}
    assert shares == {
        "independent": set(), "naive": {TextRollout}, "prp": {Rollout}, "xgrpo": {GroupValue}, "sgt": {Success},
        "hacpo": {Rollout}, "graft": {Rollout}, "sapo": {TextRollout}, "ftis": {Rollout},
    }  # fmt: skip
