"""GRAFT's choice of prompts and peers, on groups written out by hand, and its compatibility weight."""

from __future__ import annotations

import math
from collections import Counter

import formulas
import numpy as np
import pytest
from worlds import make_world

from harness.experience.answers import Answer, Group, Inbox, PeerAnswer, Prompt
from harness.learning.minibatches import cut_into_minibatches
from harness.learning.regime import Context
from harness.learning.registry import build
from harness.verification.verdict import Verdict

POLICIES = ("k", "a", "b")


def verdict(letter: str) -> Verdict:
    return Verdict({"1": "right", "0": "wrong", "?": "invalid"}[letter])


def learn(prompts: dict[str, dict[str, str]], policies=POLICIES, log_s=0.0, seed=0, **options):
    """Outcomes per prompt and policy, e.g. {"x": {"k": "00", "a": "10"}}; '?' is invalid. Returns the peer term."""
    own, sent, tag = [], {}, iter(range(10_000))
    for prompt, outcomes in prompts.items():
        tokens = lambda: np.array([next(tag), 0], dtype=np.int32)  # noqa: E731
        answers = tuple(Answer(tokens(), np.zeros(2, np.float32), "t", True, verdict(c)) for c in outcomes.get("k", ""))
        own.append(Group(Prompt(prompt, prompt, ""), "k", 0, 1, answers))
        sent[prompt] = tuple(
            PeerAnswer(p, 0, 1, prompt, i, tokens(), "t", True, verdict(c), source_logprob=-2.0, source_tokens=2,
                       receiver_old=np.array([-1.0 + log_s, -50.0], dtype=np.float32))
            for p in policies[1:] for i, c in enumerate(outcomes.get(p, ""))
        )  # fmt: skip
    context = Context("k", policies, 1, np.random.default_rng(seed), 4)
    return build("graft", options).learn(own, Inbox(sent), context)


def replaced(terms):
    return {a.prompt_id: a.origin.author for a in terms[1].answers}


RETURN = {"r": {"k": "10", "a": "00", "b": "00"}}
"""A prompt on which the learner can help both peers: allows one replacement from each."""


def test_a_whole_group_replaces_a_failed_one():
    terms = learn({"x": {"k": "000", "a": "100"}, **RETURN})
    assert replaced(terms) == {"x": "a"}
    assert [a.prompt_id for a in terms[0].answers] == ["r", "r"]
    advantages = [a.advantage for a in terms[1].answers]
    std = math.sqrt(1 / 3)
    assert advantages == pytest.approx([(2 / 3) / (std + 1e-6), (-1 / 3) / (std + 1e-6), (-1 / 3) / (std + 1e-6)])


@pytest.mark.parametrize(
    ("own", "peer"), [("000", "000"), ("000", "111"), ("100", "100"), ("111", "100"), ("???", "100"), ("000", "1")]
)
def test_other_groups_stay(own, peer):
    assert replaced(learn({"x": {"k": own, "a": peer}, **RETURN})) == {}


def test_invalid_answers_count_neither_as_failure_nor_as_success():
    assert replaced(learn({"x": {"k": "0??", "a": "10?"}, **RETURN})) == {"x": "a"}
    assert replaced(learn({"x": {"k": "00", "a": "1?"}, **RETURN})) == {}


def test_quota_is_the_smaller_of_both_directions_and_zero_keeps_none():
    failed = {"x": {"k": "0000", "a": "1000"}, "y": {"k": "0000", "a": "1110"}, "z": {"k": "0000", "a": "1100"}}
    returns = {f"r{i}": {"k": "1000", "a": "0000"} for i in range(5)}
    for n, kept in ((0, set()), (1, {"y"}), (2, {"y", "z"}), (3, {"x", "y", "z"}), (5, {"x", "y", "z"})):
        assert set(replaced(learn({**failed, **dict(list(returns.items())[:n])}))) == kept
    all_right = {"r": {"k": "1111", "a": "0000"}}
    assert replaced(learn({**failed, **all_right})) == {}


def test_ties_at_the_edge_are_kept():
    tied = {"x": {"k": "000", "a": "100"}, "y": {"k": "000", "a": "110"}, "z": {"k": "000", "a": "100"}}
    returns = {f"r{i}": {"k": "100", "a": "000"} for i in range(2)}
    assert set(replaced(learn({**tied, **returns}))) == {"x", "y", "z"}
    assert set(replaced(learn({**tied, "r": returns["r0"]}))) == {"y"}


def test_quotas_are_counted_per_pair():
    terms = learn({"x": {"k": "00", "a": "10"}, "y": {"k": "00", "b": "10"}, "r": {"k": "10", "a": "00", "b": "11"}})
    assert replaced(terms) == {"x": "a"}


def test_the_peer_with_most_right_answers_then_policy_order():
    assert replaced(learn({"x": {"k": "000", "a": "100", "b": "110"}, **RETURN})) == {"x": "b"}
    assert replaced(learn({"x": {"k": "000", "a": "100", "b": "100"}, **RETURN})) == {"x": "a"}
    # The order is the suite's, not that in which peers first qualified.
    earlier = {"w": {"k": "000", "b": "100"}}
    assert replaced(learn({**earlier, "x": {"k": "000", "a": "100", "b": "100"}, **RETURN})) == {"w": "b", "x": "a"}


@pytest.mark.parametrize(
    ("log_s", "weights"),
    [(0.0, [1.0] * 2), (0.5, [1.0] * 2), (math.log(0.9), [0.9] * 2), (math.log(0.81), [0.81] * 2), (math.log(0.79), []),
     (-40.0, [])],
)  # fmt: skip
def test_the_weight_is_the_frozen_cross_ratio_and_what_the_floor_refuses_is_in_no_term(log_s, weights):
    """The EOS at -50 would make every ratio 0 if it counted."""
    terms = learn({"x": {"k": "00", "a": "10"}, **RETURN}, log_s=log_s)
    assert [a.weight for a in terms[1].answers] == pytest.approx(weights, rel=1e-6)
    assert all(a.mask is None for a in terms[1].answers)
    (batch,) = cut_into_minibatches(terms, 1, 4)
    assert batch.normaliser(terms[0].objective) == 4 + 2 * len(weights), (
        "tokens of the own group and of admitted answers"
    )


def test_the_switches_of_admission():
    two = {"x": {"k": "00", "a": "10"}, **RETURN}
    assert [a.weight for a in learn(two, log_s=math.log(0.5), threshold=0.0)[1].answers] == pytest.approx([0.5] * 2)
    assert [a.weight for a in learn(two, log_s=-9.0, admission="none")[1].answers] == [1.0] * 2
    assert learn(two, log_s=-9.0, admission="random")[1].answers == ()
    assert [a.weight for a in learn(two, log_s=math.log(0.9), admission="random")[1].answers] == pytest.approx(
        [0.9] * 2
    )
    assert [a.advantage > 0 for a in learn(two, answers="right")[1].answers] == [True]


def test_random_admission_takes_as_many_answers_as_the_floor_and_each_equally_often():
    """Of a world's offered answers; their weights stay min(s, 1)."""
    world = next(w for w in (make_world(s, policies=3) for s in range(99)) if 2 < len(late(w)) < len(late(w, False)))
    offered, counts = {r.key for r in late(world, False)}, Counter()
    for seed in range(400):
        peers = (
            build("graft", {"admission": "random"}).learn(world.own, world.inbox, world.context(seed=seed))[1].answers
        )
        counts.update(world.key_of(a.tokens) for a in peers)
        assert len({world.key_of(a.tokens) for a in peers}) == len(peers) == len(late(world))
    share = len(late(world)) / len(offered)
    assert set(counts) == offered
    assert all(abs(n / 400 - share) < 5 * (share * (1 - share) / 400) ** 0.5 for n in counts.values())


def late(world, gate=True):
    return [row for row in formulas.graft(world, gate=gate) if row.late]


def test_random_prompts_are_as_many_and_no_balancing_takes_all():
    failed = {"x": {"k": "0000", "a": "1000"}, "y": {"k": "0000", "a": "1110"}, "z": {"k": "0000", "a": "1100"}}
    drawn = Counter(frozenset(replaced(learn({**failed, **RETURN}, selection="random", seed=s))) for s in range(300))
    assert set(drawn) == {frozenset("x"), frozenset("y"), frozenset("z")}
    assert all(60 < n < 140 for n in drawn.values())
    assert set(replaced(learn(failed, selection="all"))) == {"x", "y", "z"}
    assert replaced(learn(failed, selection="random")) == {}


@pytest.mark.parametrize(
    ("order", "expected"),
    [("last", ["o", "r", "x", "y"]), ("first", ["x", "y", "o", "r"]), ("uniform", ["x", "o", "y", "r"])],
)
def test_mini_batches_of_peer_groups_come_last_first_or_in_their_place(order, expected):
    """One prompt a mini-batch."""
    step = {"x": {"k": "00", "a": "10"}, "o": {"k": "10"}, "y": {"k": "00", "a": "10"}, "r": {"k": "10", "a": "00"}}
    batches = cut_into_minibatches(learn({**step, "r2": RETURN["r"]}, order=order), 5, 4)
    learnt = [{a.prompt_id for t in batch.terms for a in t.answers} for batch in batches]
    assert [prompt for (prompt,) in learnt if prompt != "r2"] == expected
