"""Exact facts of LUFFY, CHORD and their like ("Beyond rollouts"), in fp32 where a gradient is meant."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from formulas import graft_chosen, successes
from test_zero_peers import bits
from worlds import make_world

from harness.experience.answers import Answer, Group, Inbox, PeerAnswer, Prompt
from harness.learning.regime import Context
from harness.learning.registry import build
from harness.learning.terms import Schedule, Term, with_step_weights
from harness.verification.verdict import Verdict
from regimes.rlccf import next_in_ring

WORLD = make_world(3, policies=3)


def test_chord_at_mu_zero_is_grpo_bit_for_bit_whatever_peers_send():
    """Its mini-batches too, which imitated answers of weight 0 would cut elsewhere."""
    for seed in range(3, 9):
        world = make_world(seed, policies=3)
        grpo = build("independent", {}).learn(world.own, Inbox(), world.context())
        chord = build("chord", {"mu_first": 0.0, "mu_last": 0.0}).learn(world.own, world.inbox, world.context())
        for step, updates, old in ((1, 1, "sampler"), (7, 3, "trainer"), (20, 2, "trainer")):
            assert bits(world, with_step_weights(chord, step, 20), updates, old) == bits(world, grpo, updates, old)
    moved = build("chord", {}).learn(WORLD.own, WORLD.inbox, WORLD.context())
    assert [bool(t.answers) and t.weight > 0 for t in with_step_weights(moved, 20, 20)] == [True, True], (
        "the comparison can fail"
    )


def test_mu_falls_along_half_a_cosine_from_the_first_step_to_the_last():
    terms = build("chord", {}).learn(WORLD.own, WORLD.inbox, WORLD.context())
    weights = [[t.weight for t in with_step_weights(terms, step, 45)] for step in range(1, 46)]
    for step, (own, imitation) in enumerate(weights):
        mu = 0.05 + 0.85 * 0.5 * (1 + math.cos(math.pi * step / 44))
        assert (own, imitation) == pytest.approx((1 - mu, mu), rel=1e-12)
    assert [t.weight for t in with_step_weights(terms, 1, 1)] == pytest.approx([0.1, 0.9])
    plain = Term("own", "own", terms[0].objective, (), weight=0.3)
    assert with_step_weights([plain], 2, 3) == [plain]
    half = with_step_weights([replace(plain, schedule=Schedule(1.0, 0.0))], 2, 3)[0]
    assert (half.weight, half.schedule) == (pytest.approx(0.15), None)


@pytest.mark.parametrize("name", ["luffy", "chord"])
def test_every_right_answer_is_learnt_and_a_lying_peers_claims_are_not(name):
    peer = build(name, {}).learn(WORLD.own, WORLD.inbox, WORLD.context())[1]
    with_own = {x for x in WORLD.prompts if name == "chord" or WORLD.group("p0", x)}
    right = [k for x in WORLD.prompts if x in with_own for k in successes(WORLD, x)]
    assert sorted(WORLD.key_of(a.tokens) for a in peer.answers) == sorted(right)
    claimed = sum(len(given) for given in WORLD.inbox.successes.values())
    assert claimed > len(right), "some claims of this world are false"


@pytest.mark.parametrize("update", ["luffy", "sgt", "hacpo"])
def test_under_grafts_selection_only_the_chosen_groups_move(update):
    """GRAFT's Table 2b; the losses are in test_losses."""
    seen = set()
    for seed in range(30):
        world = make_world(seed, policies=3)
        groups = graft_chosen(world)
        chosen = {key for key in world.answers if key[:2] in groups}
        terms = build("grafted", {"update": update}).learn(world.own, world.inbox, world.context())
        peers = [a for t in terms if t.source == "peer" for a in t.answers]
        moved = {world.key_of(a.tokens) for a in peers if a.advantage != 0}
        own = {world.key_of(a.tokens)[1] for t in terms if t.source == "own" for a in t.answers}
        if update == "luffy":  # whole groups, failures included, in place of the own ones
            assert moved == chosen
            assert own == set(world.prompts) - {prompt for _, prompt in groups}
            assert [t.order for t in terms] == [0, 1]
        if update == "sgt":  # one success on each chosen prompt
            assert moved <= {key for key in chosen if world.reward(key) == 1}
            assert sorted(key[1] for key in moved) == sorted(prompt for _, prompt in groups)
        if update == "hacpo":  # the others stay in the mean
            assert moved <= chosen
            assert len(peers) == sum(key[0] != "p0" for key in world.answers)
        if update != "luffy":
            assert own == set(world.prompts)
        seen |= {len(moved) > 0}
    assert seen == {True, False}


def test_annealed_shares_are_refused_outside_zero_and_one():
    from harness.suite.schema import Replay

    assert "share" not in Replay(suite="s", regime="r").model_dump(), "stored cells keep their keys"
    assert Replay(suite="s", regime="r", share=[1.0, 0.0]).model_dump()["share"] == [1.0, 0.0]
    for share in ([1.0], [1.0, -0.1], [2.0, 0.0]):
        with pytest.raises(ValueError, match="share"):
            Replay(suite="s", regime="r", share=share)
    assert np.isclose(Schedule(1.0, 0.0).at(23, 45), 0.5)


VOTES = [
    # own answers, one list per peer, rewards. "" says nothing, "8.0" is 8.
    (["7", "8", "8"], [["8.0", "9", "7"]], [0, 1, 1]),  # 8: 2/3 * 2/3 + 1/3 * 1/3
    (["7", "8", "9"], [["9", "9", "9"]], [0, 0, 1]),  # consistent peers count more
    (["7", "7", "8"], [["8", "9", "8"], ["7", "7", "7"]], [1, 1, 0]),
    (["7", "", ""], [["", "", "8"]], [1, 0, 0]),  # equal: the first
    (["", ""], [["", ""]], [0, 0]),
    (["7", "8"], [["8"] * 3 + ["7"] * 3], [1, 0]),  # 1/2 * 1/2 each: equal again
    (["1", "2", "2"], [["1"] * 9], [1, 0, 0]),
    # by shares alone 7 wins, 0.4 + 0.4 to 0.75; by the weights 8, 0.75 * 0.75 to 0.4 * 0.4 twice
    (["7", "7", "1", "2", "3"], [["7", "7", "4", "5", "6"], ["8", "8", "8", "9"]], [0, 0, 0, 0, 0]),
]


OF_A_PEER = [
    # own answers, those of p1 and p2, rewards by the majority of p1
    (["7", "8", "8"], [["8.0", "9", "8"], ["7", "7", "7"]], [0, 1, 1]),
    (["7", "7", "7"], [["8", "8", "7"], ["7", "7", "7"]], [0, 0, 0]),  # own votes do not count
    (["8", "9", "9"], [["9", "8"], ["8", "8"]], [0, 1, 1]),  # equal: the peer's first
    (["7", ""], [["", "", ""], ["7", "7", "7"]], [0, 0]),
    (["7", "", "1000"], [[], ["7", "7", "7"]], [0, 0, 1]),  # it has no answer: the verifier's verdict
]


@pytest.mark.parametrize(("own", "peers", "rewards"), OF_A_PEER)
def test_co_rl_rewards_agreement_with_the_next_policys_majority_answer(own, peers, rewards):
    check_votes(own, peers, rewards, vote="peer")


def test_the_ring_goes_round():
    order = ("p0", "p1", "p2")
    contexts = [Context(name, order, 1, np.random.default_rng(0), 4) for name in order]
    assert [next_in_ring(context) for context in contexts] == ["p1", "p2", "p0"]


@pytest.mark.parametrize(("own", "peers", "rewards"), VOTES)
def test_rlccf_rewards_agreement_with_the_weighted_vote_and_never_the_gold(own, peers, rewards):
    check_votes(own, peers, rewards)


def check_votes(own, peers, rewards, **options):
    def said(text: str) -> Verdict:
        return Verdict("right" if text == "1000" else "wrong", extracted=text)

    tokens = np.array([1, 0], dtype=np.int32)
    answers = tuple(Answer(tokens.copy(), np.zeros(2, np.float32), "t", True, said(text)) for text in own)
    sent = tuple(
        PeerAnswer(f"p{j + 1}", 0, 1, "x", i, tokens, "t", True, said(text))
        for j, group in enumerate(peers)
        for i, text in enumerate(group)
    )
    group = Group(Prompt("x", "x", "1000"), "p0", 0, 1, answers)
    (term,) = build("rlccf", options).learn([group], Inbox({"x": sent}), WORLD.context())
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    assert [a.advantage for a in term.answers] == pytest.approx([(r - mean) / (std + 1e-6) for r in rewards])


def test_on_an_earlier_prompt_only_imitation_learns_from_a_stale_answer():
    """It stands as a group without own answers."""
    right = next(a for given in WORLD.inbox.successes.values() for a in given if a.verdict.value == "right")
    late, inbox = Group(Prompt("old", "old", "1"), "p0", 3, 1, ()), Inbox({"old": (right,)}, {"old": (right,)})
    learnt = {
        name: [a for t in build(name, {}).learn([late], inbox, WORLD.context()) for a in t.answers]
        for name in ("luffy", "chord", "rlccf", "grafted")
    }
    assert [a.tokens is right.tokens for a in learnt.pop("chord")] == [True]
    assert not any(learnt.values())
