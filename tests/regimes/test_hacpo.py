"""HACPO's own parts: capability window, omega and its clamp, mu and its guards, the ablation switches."""

from __future__ import annotations

import math
from dataclasses import replace

import formulas
import msgspec
import numpy as np
import pytest
import torch
from worlds import MAX_TOKENS, make_world

from harness.errors import PluginError
from harness.experience.answers import Inbox
from harness.learning.minibatches import minibatches, pack
from harness.learning.registry import build
from harness.learning.surrogate import surrogate

HISTORY = [make_world(s, policies=3, prompts=4) for s in range(20, 29)]


def numbers(terms):
    return [(a.advantage, a.weight) for t in terms for a in t.answers]


@pytest.mark.parametrize("window", [1, 2, 5])
def test_capabilities_are_averaged_over_the_last_steps_the_current_one_included(window):
    regime = build("hacpo", {"window": window})
    for step, world in enumerate(HISTORY):
        found = numbers(regime.learn(world.own, world.inbox, world.context(step)))
        rows = formulas.hacpo(HISTORY[: step + 1], window=window)
        expected = [(r.advantage, r.weight) for r in sorted(rows, key=lambda r: r.late)]
        assert found == [pytest.approx(e, rel=1e-9) for e in expected]


def test_the_window_is_five_by_default_and_shorter_ones_differ():
    assert build("hacpo", {}).options.window == 5
    weights = {w: [r.weight for r in formulas.hacpo(HISTORY, window=w) if r.late] for w in (4, 5, 6)}
    assert weights[4] != weights[5] != weights[6]


def test_omega_is_learner_over_source_in_mu_and_source_over_learner_in_the_weight():
    regime = build("hacpo", {})
    regime.restore({"shares": [{"p0": 0.2, "p1": 0.8, "p2": 0.01}]})
    assert regime.omega("p0", "p1") == pytest.approx(0.25)
    assert regime.omega("p1", "p0") == pytest.approx(4.0)
    assert regime.omega("p0", "p2") == 10.0
    assert regime.omega("p2", "p0") == 0.1
    assert regime.omega("p2", "p2") == 1.0


def test_a_policy_without_any_success_is_clamped_and_not_divided_by():
    regime = build("hacpo", {})
    regime.restore({"shares": [{"p0": 0.0, "p1": 0.5}]})
    assert (regime.omega("p0", "p1"), regime.omega("p1", "p0"), regime.omega("p0", "stranger")) == (0.1, 10.0, 1.0)
    wide = build("hacpo", {"omega_min": 1e-12, "omega_max": 1e12})
    wide.restore({"shares": [{"p0": 0.0, "p1": 0.5}]})
    assert wide.omega("p1", "p0") == pytest.approx(0.5 / 1e-8)


def test_a_silent_step_leaves_the_other_steps_to_speak():
    regime = build("hacpo", {})
    regime.restore({"shares": [{"p0": 0.4, "p1": 0.2}, {"p0": 0.6}]})
    assert regime.omega("p1", "p0") == pytest.approx(0.2 / 0.5)


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


def test_equal_rewards_give_no_advantage_whatever_omega_is():
    regime = build("hacpo", {})
    assert not regime.advantages(np.ones(6), np.array([1, 1, 7, 7, 0.2, 0.2]), 2).any()


@pytest.mark.parametrize("advantage", [True, False])
@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("guards", [True, False])
def test_ablation_switches(advantage, gradient, guards):
    regime = build("hacpo", {"capability_advantage": advantage, "capability_gradient": gradient, "guards": guards})
    for step, world in enumerate(HISTORY):
        found = numbers(regime.learn(world.own, world.inbox, world.context(step)))
    rows = formulas.hacpo(HISTORY, in_advantage=advantage, in_gradient=gradient, guards=guards)
    assert found == [pytest.approx((r.advantage, r.weight), rel=1e-9) for r in sorted(rows, key=lambda r: r.late)]


def test_stepwise_clip_off_keeps_the_bound():
    world = make_world(0)
    on, off = (
        build("hacpo", {"stepwise_clip": s}).learn(world.own, world.inbox, world.context())[1] for s in (True, False)
    )
    assert [on.objective.bounds(m)[0] for m in (0, 1, 4, 8, 9)] == pytest.approx([0.8, 0.825, 0.9, 1.0, 1.0])
    assert [off.objective.bounds(m)[0] for m in (0, 1, 9)] == [0.8, 0.8, 0.8]
    assert on.objective.bounds(9)[1] == off.objective.bounds(9)[1] == 1.0


def test_byte_normalisation_divides_both_sides_by_the_text_length():
    world = make_world(0)
    _, peer = build("hacpo", {"length_normalisation": "bytes"}).learn(world.own, world.inbox, world.context())
    for a in peer.answers:
        source = world.answers[world.key_of(a.tokens)]
        size = len(source.text.encode())
        lp = -0.3 * a.counted
        log_s = a.scale * (lp / a.counted - a.denominator)
        assert log_s == pytest.approx((lp - source.source_logprob) / size)
        assert size == 3 * source.tokens.size


def test_state_survives_json():
    first, second = build("hacpo", {}), build("hacpo", {})
    for step, world in enumerate(HISTORY[:6]):
        first.learn(world.own, world.inbox, world.context(step))
    second.restore(msgspec.json.decode(msgspec.json.encode(first.state())))
    world = HISTORY[7]
    one, other = (numbers(r.learn(world.own, world.inbox, world.context(7))) for r in (first, second))
    assert one == other
    assert one != numbers(build("hacpo", {}).learn(world.own, world.inbox, world.context(7)))


def test_prompts_without_own_valid_answers_still_teach_from_peers():
    world = make_world(1, policies=2, prompts=40, rollouts=2, invalid=0.6)
    empty = [x for x in world.prompts if not world.group("p0", x) and len(world.group("p1", x)) > 1]
    assert empty
    own, peer = build("hacpo", {}).learn(world.own, world.inbox, world.context())
    assert not {a.prompt_id for a in own.answers} & set(empty)
    assert {a.prompt_id for a in peer.answers} >= set(empty)


def test_nothing_at_all():
    own, peer = build("hacpo", {}).learn([], Inbox(), make_world(0).context())
    assert own.answers == peer.answers == ()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"delta": 1.5}, "delta"), ({"window": 0}, "window"), ({"alpha": -1.0}, "alpha"), ({"omega_min": 0.0}, "omega_min"),
        ({"omega_min": 11.0}, "omega_min"), ({"length_normalisation": "chars"}, "length_normalisation"),
    ],
)  # fmt: skip
def test_bad_options_are_refused_by_name(options, word):
    with pytest.raises(PluginError, match=word):
        build("hacpo", options)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("log_s", [-1.0, -0.23, -0.2, -0.1, -0.01, 0.01, 0.5])
def test_gradient_of_a_peer_answer(log_s, alpha):
    """omega A s^(1 + alpha) mean_t grad lp for s in [0.8, 1], nothing outside; no gradient on the EOS."""
    world = make_world(3)
    _, peer = build("hacpo", {"alpha": alpha}).learn(world.own, world.inbox, world.context())
    answer = next(a for a in peer.answers if a.mask is not None and a.advantage)
    (batch,) = minibatches([replace(peer, answers=(answer,))], 1, MAX_TOKENS)
    mean = answer.denominator + log_s
    logp = torch.full((answer.counted,), mean, dtype=torch.float64, requires_grad=True)
    loss, _ = surrogate(logp, pack(batch, list(batch.live())))
    loss.backward()
    s = math.exp(log_s)
    expected = answer.weight * answer.advantage * s ** (1 + alpha) / answer.counted if 0.8 <= s <= 1 else 0.0
    assert answer.counted == answer.tokens.size - 1
    assert (-logp.grad).tolist() == pytest.approx([expected] * answer.counted, rel=1e-12)
