"""CoPD and CoRe against their formulas written out, and the exact facts of peers that score and peers that hint."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from formulas import mean, std
from worlds import MAX_TOKENS, make_world

from harness.experience.answers import AnswerId, Group, Inbox, PeerScores
from harness.learning.advantages import grpo_advantages
from harness.learning.minibatches import cut_into_minibatches, from_sampler, pack_answers
from harness.learning.registry import build
from harness.learning.surrogate import surrogate_loss
from harness.learning.terms import OLD


def gradients(world, terms):
    """By answer, in float32, of the first update at the sampler's weights."""
    (batch,) = from_sampler(cut_into_minibatches(terms, 1, MAX_TOKENS))
    live = list(batch.live())
    flat = torch.tensor(np.concatenate([a.sampled for _, a in live]), dtype=torch.float32, requires_grad=True)
    surrogate_loss(flat, pack_answers(batch, live))[0].backward()
    parts = np.split(flat.grad.numpy(), np.cumsum([a.tokens.size for _, a in live])[:-1])
    return {world.key_of(a.tokens): part for (_, a), part in zip(live, parts, strict=True)}


@pytest.mark.parametrize(("policies", "invalid"), [(2, 0.0), (3, 0.3)])
def test_copd_is_beta_times_the_difference_of_log_probabilities_token_by_token(policies, invalid):
    world = make_world(policies, policies=policies, invalid=invalid)
    terms = build("copd", {"ratio": 0.0, "beta": 0.7}).learn(world.own, world.inbox, world.context())
    measured = gradients(world, terms)
    given = {}
    for scores in (s for every in world.inbox.scores.values() for s in every):
        given.setdefault(("p0", scores.prompt_id, scores.index), []).append(scores.aligned)
    assert {world.key_of(a.tokens) for a in terms[0].answers} == set(given)
    tokens = sum(world.answers[key].tokens.size for key in given)
    for key, peers in given.items():
        own = world.answers[key].logprobs
        for t in range(own.size):
            expected = -0.7 * (mean([float(p[t]) for p in peers]) - float(own[t])) / tokens
            assert measured[key][t] == pytest.approx(expected, abs=1e-6), (key, t)


@pytest.mark.parametrize(("policies", "invalid", "alpha"), [(2, 0.0, 0.5), (3, 0.3, 1.5)])
def test_copd_without_offset_is_what_training_changed_there_less_what_it_changed_here(policies, invalid, alpha):
    world = make_world(policies, policies=policies, invalid=invalid)
    options = {"ratio": 0.0, "beta": 0.7, "offset": "removed", "alpha": alpha}
    terms = build("copd", options).learn(world.own, world.inbox, world.context())
    measured = gradients(world, terms)
    given = {}
    for scores in (s for every in world.inbox.scores.values() for s in every):
        given.setdefault(("p0", scores.prompt_id, scores.index), []).append(scores)
    tokens = sum(world.answers[key].tokens.size for key in given)
    assert set(measured) == set(given)
    for key, peers in given.items():
        own = world.answers[key].logprobs
        for t in range(own.size):
            theirs = mean([float(p.aligned[t]) - float(p.start[t]) for p in peers])
            mine = float(own[t]) - float(peers[0].own_start[t])
            assert measured[key][t] == pytest.approx(-0.7 * (theirs - alpha * mine) / tokens, abs=1e-6), (key, t)


def test_copd_learns_only_tokens_that_all_peers_scores_reach_exactly():
    world = make_world(3, policies=3)
    rng = np.random.default_rng(0)
    exact = {}
    given = {
        prompt: tuple(replace(s, exact=rng.random(s.aligned.size) < 0.6) for s in scores)
        for prompt, scores in world.inbox.scores.items()
    }
    for scores in (s for every in given.values() for s in every):
        exact.setdefault(("p0", scores.prompt_id, scores.index), []).append(scores.exact)
    (whole,) = build("copd", {"ratio": 0.0}).learn(world.own, world.inbox, world.context())
    (term,) = build("copd", {"ratio": 0.0}).learn(world.own, Inbox(scores=given), world.context())
    for answer, before in zip(term.answers, whole.answers, strict=True):
        masks = exact[world.key_of(answer.tokens)]
        assert answer.mask.tolist() == [all(mask[t] for mask in masks) for t in range(answer.tokens.size)]
        assert np.array_equal(answer.advantage, before.advantage)
    assert 0 < sum(a.counted for a in term.answers) < sum(a.counted for a in whole.answers)


@pytest.mark.parametrize(("name", "masked"), [("prp", True), ("ftis", True), ("naive", False), ("hacpo", False)])
def test_a_ratio_to_aligned_log_probabilities_leaves_inexact_tokens_out(name, masked):
    world = make_world(3, policies=3)
    rng = np.random.default_rng(0)
    sent = {
        prompt: tuple(replace(a, exact=rng.random(a.tokens.size) < 0.5) for a in answers)
        for prompt, answers in world.inbox.answers.items()
    }
    exact = {a.id: a.exact for answers in sent.values() for a in answers}
    peer = build(name, {}).learn(world.own, replace(world.inbox, answers=sent), world.context())[1]
    assert peer.answers
    alike = [answer.mask is not None and np.array_equal(answer.mask, exact[answer.origin]) for answer in peer.answers]
    assert all(alike) == masked


def test_copd_of_a_peer_like_the_learner_has_no_gradient():
    """Exact fact: same weights, same tokenizer."""
    world = make_world(3)
    alike = {
        g.prompt.id: tuple(PeerScores("p1", 2, g.prompt.id, i, a.logprobs, 0.0, 1) for i, a in enumerate(g.answers))
        for g in world.own
    }
    (term,) = build("copd", {"ratio": 0.0}).learn(world.own, Inbox(scores=alike), world.context())
    assert term.answers
    assert all(not a.advantage.any() for a in term.answers)
    assert not gradients_exist(term)


def gradients_exist(term):
    (batch,) = from_sampler(cut_into_minibatches([term], 1, MAX_TOKENS))
    return list(batch.live())


@pytest.mark.parametrize(
    ("ratio", "distils"), [(1.5, {3, 5, 8, 10}), (0.0, set(range(1, 11))), (4.0, {5, 10}), (1.0, {2, 4, 6, 8, 10})]
)
def test_copd_alternates_and_asks_only_where_it_distils(ratio, distils):
    world = make_world(3)
    regime = build("copd", {"ratio": ratio})
    names = {s: regime.learn(world.own, world.inbox, world.context(step=s))[0].name for s in range(1, 11)}
    assert {step for step, name in names.items() if name == "distil"} == distils
    asked = {s for s in range(1, 11) if regime.publish([replace(g, step=s) for g in world.own], lambda a: [])}
    assert asked == distils


def again(world, only):
    """A second round: the answers of another world's own groups, to hinted questions."""
    other = make_world(17, policies=2)
    groups = []
    for group, theirs in zip(world.own, other.own, strict=True):
        if group.prompt.id in only:
            prompt = replace(group.prompt, id=f"{group.prompt.id}/hinted", hint=AnswerId("p1", group.prompt.id, 0))
            groups.append(Group(prompt, "p0", 3, 1, theirs.answers))
    return groups


@pytest.mark.parametrize("train_on", ["hinted", "plain"])
@pytest.mark.parametrize(("policies", "invalid"), [(2, 0.0), (3, 0.3)])
def test_core_pools_both_rounds_and_the_peers_first(policies, invalid, train_on):
    world = make_world(11 * policies, policies=policies, invalid=invalid)
    second = again(world, {"x1", "x4", "x6"})
    regime = build("core", {"train_on": train_on, "bonus": 0.15})
    own, hinted = regime.learn([*world.own, *second], world.inbox, world.context())
    answers = {id(a.tokens): a for term in (own, hinted) for a in term.answers}
    checked = 0
    for group in world.own:
        later = next((g for g in second if g.prompt.of == group.prompt.id), None)
        mine = [a for a in group.answers if a.verdict.valid]
        rewards = [(a, 1.0 if a.verdict.value == "right" else 0.0) for a in mine]
        rewards += [(a, 1.15 if a.verdict.value == "right" else 0.0) for a in (later.valid if later and mine else ())]
        peers = [world.reward(k) for p in world.policies[1:] for k in world.group(p, group.prompt.id)]
        pool = [*(r for _, r in rewards), *peers]
        for answer, reward in rewards:
            term = answers.pop(id(answer.tokens))
            assert term.advantage == pytest.approx((reward - mean(pool)) / (std(pool) + 1e-6), abs=1e-6)
            assert term.prompt_id == (
                later.prompt.id if later and answer in later.answers and train_on == "hinted" else group.prompt.id
            )
            assert term.denominator is (None if term in hinted.answers and train_on == "plain" else OLD)
            checked += 1
    assert checked
    assert not answers


def test_core_without_a_second_round_is_grpo_with_joint_statistics():
    """Exact fact: hint probability 0; and no hint is asked for."""
    world = make_world(3)
    regime = build("core", {"probability": 0.0})
    assert regime.hints(world.own, world.inbox, world.context()) == []
    own, hinted = regime.learn(world.own, world.inbox, world.context())
    (joint,) = build("xgrpo", {}).learn(world.own, joined(world), world.context())
    assert [a.advantage for a in own.answers] == pytest.approx([a.advantage for a in joint.answers], abs=1e-6)
    assert hinted.answers == ()
    assert any((grpo_advantages(g) != 0).any() for g in world.own)


def joined(world):
    return Inbox(values=world.inbox.values)


def test_core_asks_where_only_peers_were_right_with_the_shortest_right_answer():
    world = make_world(3, policies=3, prompts=40)
    qualifying = {
        g.prompt.id for g in world.own
        if not g.rewards.any() and any(p.reward > 0 for p in world.inbox.valid(g.prompt.id))
    }  # fmt: skip
    every = build("core", {"probability": 1.0}).hints(world.own, world.inbox, world.context())
    assert {h.prompt_id for h in every} == qualifying
    for hint in every:
        right = [p for p in world.inbox.valid(hint.prompt_id) if p.reward > 0]
        assert hint.answer is min(right, key=lambda p: p.tokens.size)
    counts = [len(build("core", {}).hints(world.own, world.inbox, world.context(seed=seed))) for seed in range(200)]
    assert np.mean(counts) / len(qualifying) == pytest.approx(0.75, abs=0.03)
