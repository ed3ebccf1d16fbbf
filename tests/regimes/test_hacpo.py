"""HACPO's own parts: capability window, omega and its clamp, mu and its guards, the ablation switches."""

from __future__ import annotations

import formulas
import numpy as np
import pytest
from worlds import MAX_TOKENS, make_world

from harness.experience.answers import Inbox
from harness.learning.minibatches import cut_into_minibatches
from harness.learning.registry import build

HISTORY = [make_world(s, policies=3, prompts=4) for s in range(20, 29)]


def numbers(terms):
    return [(a.advantage, a.weight) for t in terms for a in t.answers]


@pytest.mark.parametrize(
    ("options", "formula"),
    [
        ({"window": 1}, {"window": 1}),
        ({"window": 2}, {"window": 2}),
        ({}, {"window": 5}),
        ({"capability_advantage": False}, {"in_advantage": False}),
        ({"capability_gradient": False}, {"in_gradient": False}),
        ({"guards": False}, {"guards": False}),
        ({"omega_min": 0.9, "omega_max": 1.1}, {"clamp": (0.9, 1.1)}),
    ],
    ids=str,
)
def test_capabilities_are_averaged_over_the_last_steps_the_current_one_included(options, formula):
    regime, learnt = build("hacpo", options), []
    for step, world in enumerate(HISTORY):
        learnt.append(numbers(regime.learn(world.own, world.inbox, world.context(step))))
        rows = formulas.hacpo(HISTORY[: step + 1], **formula)
        expected = [(r.advantage, r.weight) for r in sorted(rows, key=lambda r: r.late)]
        assert learnt[-1] == [pytest.approx(e, rel=1e-9) for e in expected]
    if options:
        plain = [sorted(formulas.hacpo(HISTORY[: n + 1]), key=lambda r: r.late) for n in range(len(HISTORY))]
        assert learnt != [[pytest.approx((r.advantage, r.weight), rel=1e-9) for r in rows] for rows in plain]


def test_omega_is_learner_over_source_in_mu_and_source_over_learner_in_the_weight():
    regime = build("hacpo", {})
    regime.restore({"shares": [{"p0": 0.2, "p1": 0.8, "p2": 0.01}]})
    assert regime.omega("p0", "p1") == pytest.approx(0.25)
    assert regime.omega("p1", "p0") == pytest.approx(4.0)
    assert (regime.omega("p0", "p2"), regime.omega("p2", "p0"), regime.omega("p2", "p2")) == (10.0, 0.1, 1.0)
    regime.restore({"shares": [{"p0": 0.4, "p1": 0.2}, {"p0": 0.6}]})
    assert regime.omega("p1", "p0") == pytest.approx(0.2 / 0.5), "a silent step leaves the other steps to speak"


def test_a_policy_without_any_success_is_clamped_and_not_divided_by():
    regime, wide = build("hacpo", {}), build("hacpo", {"omega_min": 1e-12, "omega_max": 1e12})
    for one in (regime, wide):
        one.restore({"shares": [{"p0": 0.0, "p1": 0.5}]})
    assert (regime.omega("p0", "p1"), regime.omega("p1", "p0"), regime.omega("p0", "stranger")) == (0.1, 10.0, 1.0)
    assert wide.omega("p1", "p0") == pytest.approx(0.5 / 1e-8)


@pytest.mark.parametrize(
    ("rewards", "omega", "expected"),
    [
        ([1, 0, 1, 0], [1, 1, 0.5, 0.5], 0.375),  # mean of omega R
        ([1, 1, 1, 1], [1, 1, 0.5, 0.5], 1.0),  # all equal: the plain mean
        ([0, 0, 0, 0], [1, 1, 3.0, 3.0], 0.0),
        ([0, 1, 1, 1], [1, 1, 3.0, 3.0], 0.5),  # mu = 7/4 > 1: the learner's own mean
        ([0, 0, 1, 0], [1, 1, 4.0, 4.0], 1.0),  # mu = 1 exactly is not above 1
        ([0, 0, 1, 0], [1, 1, 4.1, 4.1], 0.0),
    ],
)
def test_mu_and_its_guards(rewards, omega, expected):
    r, o = np.array(rewards, dtype=float), np.array(omega, dtype=float)
    assert build("hacpo", {}).baseline(r, o, 2) == pytest.approx(expected)
    assert build("hacpo", {"guards": False}).baseline(r, o, 2) == pytest.approx((r * o).mean())
    assert build("hacpo", {"capability_advantage": False}).baseline(r, o, 2) == pytest.approx(r.mean())


def test_prompts_without_own_valid_answers_still_teach_from_peers():
    world = make_world(1, policies=2, prompts=40, rollouts=2, invalid=0.6)
    empty = [x for x in world.prompts if not world.group("p0", x) and len(world.group("p1", x)) > 1]
    assert empty
    own, peer = build("hacpo", {}).learn(world.own, world.inbox, world.context())
    assert not {a.prompt_id for a in own.answers} & set(empty)
    assert {a.prompt_id for a in peer.answers} >= set(empty)
    assert [t.answers for t in build("hacpo", {}).learn([], Inbox(), world.context())] == [(), ()]


def test_peers_share_the_only_mini_batch_and_its_bound():
    world = make_world(0)
    terms = build("hacpo", {}).learn(world.own, world.inbox, world.context())
    (batch,) = cut_into_minibatches(terms, 1, MAX_TOKENS)
    assert all(t.answers for t in batch.terms)
    assert batch.terms[1].objective.bounds(batch.update) == (0.8, 1.0)
    first, second, third, fourth = cut_into_minibatches(terms, 4, MAX_TOKENS)
    assert not first.terms[1].answers + second.terms[1].answers
    assert [b.terms[1].objective.bounds(b.update)[0] for b in (third, fourth)] == pytest.approx([0.85, 0.875])
    assert terms[1].objective.bounds(50) == (1.0, 1.0)
