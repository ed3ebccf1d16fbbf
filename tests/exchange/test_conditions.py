"""Bad peers: each does what its name says, the same on every run, and its receiver gets through."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from exchange_records import PROMPTS

from harness.errors import CheckpointError
from harness.exchange.exchange import Collected, Exchange, Quotas
from harness.exchange.misbehaviour import (
    Condition,
    Lying,
    Noisy,
    Permuted,
    Sender,
    Silent,
    Spamming,
    Stale,
    condition_of,
)
from harness.experience.answers import Answer, Group, Prompt
from harness.experience.records import (
    ChangedScores,
    Draft,
    GroupValue,
    Record,
    Refusal,
    Rollout,
    Success,
    TextRollout,
)
from harness.suite.schema import Defences, edges_of
from harness.verification.verdict import Verdict

ANSWERS = 40
KINDS: frozenset[type[Record]] = frozenset({Rollout, TextRollout, Success, GroupValue})


def groups(step: int = 0) -> list[Group]:
    """Three groups of which every fourth answer is right and every fifth without a verdict."""
    made = []
    for prompt in PROMPTS:
        answers = []
        for i in range(ANSWERS):
            verdict = Verdict("invalid", "timeout") if i % 5 == 4 else Verdict("right" if i % 4 == 0 else "wrong")
            tokens, own = np.arange(3, dtype=np.int32), np.full(3, -0.5, dtype=np.float32)
            answers.append(Answer(tokens, own, f"{step}:{i:02d}", False, verdict))
        made.append(Group(Prompt(prompt, "1+1", "2"), "a", step, step, tuple(answers)))
    return made


def run(condition: Condition, steps: int = 1, seed: int = 7, **changes: Any) -> list[Collected]:
    """What b collects of a, which publishes everything under `condition`."""
    changes.setdefault("quotas", Quotas.fitting(len(PROMPTS), 2 * ANSWERS, 8))
    exchange = Exchange(("a", "b"), edges_of(("a", "b"), "all"), **changes)
    sender = Sender(condition, seed)
    got = []
    for step in range(steps):
        pieces = lambda answer: [1, 1, len(answer.text) - 2]  # noqa: E731
        claimed, kinds = sender.claimed(step, groups(step)), sorted(KINDS, key=lambda kind: kind.__name__)
        records = [record for group in claimed for kind in kinds for record in kind.of(group, pieces)]
        exchange.publish("a", step, records, sender)
        got.append(exchange.collect("b", step, PROMPTS))
    return got


def claims(got: Collected) -> dict[tuple[str, int], bool]:
    """Claimed verdict of each answer, on which all kinds of records must agree."""
    said = {(r.prompt_id, r.index): r.reward == 1.0 for r in got.records if isinstance(r, Rollout)}
    assert said == {(r.prompt_id, r.index): r.reward == 1.0 for r in got.records if isinstance(r, TextRollout)}
    assert {k for k, right in said.items() if right} == {
        (r.prompt_id, r.index) for r in got.records if isinstance(r, Success)
    }
    for r in got.records:
        if isinstance(r, GroupValue):
            own = [right for (prompt, _), right in said.items() if prompt == r.prompt_id]
            assert (r.count, r.right) == (len(own), sum(own))
    return said


TRUE = claims(run(Condition())[0])


def test_an_honest_peer_is_heard() -> None:
    assert len(TRUE) == 3 * 32
    assert sum(TRUE.values()) == 3 * 8


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_noisy_flips_a_share_in_either_direction(share: float) -> None:
    said = claims(run(Noisy(share=share))[0])
    assert said.keys() == TRUE.keys()
    for right in (True, False):
        flipped = [said[k] != right for k in TRUE if TRUE[k] is right]
        spread = 4 * (share * (1 - share) / len(flipped)) ** 0.5
        assert abs(np.mean(flipped) - share) <= spread
    assert said != TRUE


def test_lying_claims_success_on_wrong_answers_only() -> None:
    assert all(claims(run(Lying())[0]).values())
    said = claims(run(Lying(share=0.5))[0])
    assert all(said[k] for k in TRUE if TRUE[k])
    lies = [said[k] for k in TRUE if not TRUE[k]]
    assert 0.25 < np.mean(lies) < 0.75


def test_stale_sends_what_it_had_to_say_before() -> None:
    late = run(Stale(steps=2), steps=5, max_staleness=2)
    assert [{r.step for r in got.records} for got in late] == [set(), set(), {0}, {1}, {2}]
    assert not any(got.refused for got in late)
    strict = run(Stale(steps=2), steps=5)
    assert [len(got.records) for got in strict] == [0] * 5
    assert strict[2].refused == {Refusal.STALE: len(late[2].records)}
    open_ = run(Stale(steps=2), steps=5, defences=Defences(staleness=False))
    assert [len(got.records) for got in open_] == [len(got.records) for got in late]


def test_a_stale_sender_resumes() -> None:
    whole, first, second = Sender(Stale(steps=2), 1), Sender(Stale(steps=2), 1), Sender(Stale(steps=2), 1)
    sent = [[bytes([step])] for step in range(6)]
    expected = [whole.messages(step, sent[step]) for step in range(6)]
    assert expected == [[], [], *sent[:4]]
    assert [first.messages(step, sent[step]) for step in range(3)] == expected[:3]
    second.restore(first.state())
    assert [second.messages(step, sent[step]) for step in range(3, 6)] == expected[3:]
    with pytest.raises(CheckpointError, match="state of a sender"):
        second.restore(b"\x01")


def test_silent_stops_without_a_word() -> None:
    got = run(Silent(start=2), steps=4)
    assert [bool(c.records) for c in got] == [True, True, False, False]
    assert [c.missing for c in got] == [(), (), ("a",), ("a",)]


def test_spamming_is_refused_and_its_own_records_are_in_there() -> None:
    honest = run(Condition())[0]
    spam = Spamming(oversized=3, malformed=50, flood=20)
    got = run(spam, quotas=Quotas())[0]
    assert got.records == honest.records
    assert got.refused[Refusal.OVERSIZED] == 3
    assert got.refused[Refusal.DUPLICATE] == 20
    assert got.refused[Refusal.MALFORMED] + got.refused[Refusal.WRONG_TYPE] == 50
    duplicated = run(spam, quotas=Quotas(), defences=Defences(header_checks=False))[0]
    assert len(duplicated.records) == len(honest.records) + 20, "the damage without the defence"


def test_a_flood_ends_at_the_quota() -> None:
    quotas = Quotas(messages=500, bytes=1 << 20)
    flood = Spamming(oversized=0, malformed=0, flood=10_000)
    got = run(flood, quotas=quotas)[0]
    assert got.refused[Refusal.QUOTA] >= 9_500
    assert len(got.records) + sum(got.refused.values()) == 10_000 + len(run(Condition())[0].records)
    assert run(flood, quotas=quotas, defences=Defences(quotas=False))[0].refused[Refusal.QUOTA] == 0


def records_of(kind: type[Record], step: int = 1) -> list[Any]:
    """Of the three groups, whose texts here name their prompt too."""
    named = []
    for group in groups(step):
        answers = [replace(a, text=f"{group.prompt.id} {a.text}") for a in group.answers]
        named += kind.of(replace(group, answers=tuple(answers)), lambda answer: [1, 1, len(answer.text) - 2])
    return named


@pytest.mark.parametrize("kind", [TextRollout, Success, Rollout])
def test_a_permuted_peer_sends_right_answers_of_other_prompts_under_its_headers(kind: type[Record]) -> None:
    honest = records_of(kind)
    sent = Sender(Permuted(), 7).altered(1, honest)
    about = {(r.prompt_id, r.index): r for r in honest}
    assert {(r.prompt_id, r.index) for r in sent} == set(about), "as many as an honest one"
    for record in sent:
        assert not record.text.startswith(f"{record.prompt_id} ")
        assert record.reward == about[record.prompt_id, record.index].reward
        record.check()
    assert sorted(r.text for r in sent) == sorted(r.text for r in honest)
    assert sent == Sender(Permuted(), 7).altered(1, honest)
    assert any(Sender(Permuted(), 7).altered(step, honest) != sent for step in range(2, 9)), "drawn anew at each step"


def test_a_permuted_peer_keeps_back_what_would_come_home_and_leaves_counts_and_drafts() -> None:
    mostly = [r for r in records_of(Success) if r.prompt_id == PROMPTS[0] or r.index < 4]
    sent = Sender(Permuted(), 7).altered(1, mostly)
    assert 0 < len(sent) < len(mostly)
    assert all(not r.text.startswith(f"{r.prompt_id} ") for r in sent)
    others = [*records_of(GroupValue), *records_of(Draft)]
    assert Sender(Permuted(), 7).altered(1, others) == others


def test_a_permuted_peer_scores_every_token_as_another_one() -> None:
    header = {"author": "a", "version": 1, "step": 1, "prompt_id": "x", "reader": "b", "index": 0}
    logprobs, start = [-0.1 * i for i in range(1, 31)], [-0.2 * i for i in range(1, 31)]
    honest = ChangedScores(**header, logprobs=logprobs, pieces=[1] * 30, start_logprobs=start)
    (told,) = Sender(Permuted(), 7).scored(1, [honest])
    assert isinstance(told, ChangedScores)
    assert sorted(told.logprobs) == sorted(logprobs) != told.logprobs != logprobs
    assert told.start_logprobs == [2 * value for value in told.logprobs], "both by one order"
    assert (told.pieces, told.prompt_id, told.index) == (honest.pieces, "x", 0)


@pytest.mark.parametrize("condition", [Noisy(share=0.3), Lying(share=0.3), Spamming(), Stale(steps=1), Silent(start=1)])
def test_conditions_are_deterministic(condition: Condition) -> None:
    def sent(seed: int) -> list[Any]:
        sender = Sender(condition, seed)
        said = [[a.verdict.value for g in sender.claimed(s, groups(s)) for a in g.answers] for s in range(3)]
        return [said, [sender.messages(s, [bytes([s, i]) * 9 for i in range(30)]) for s in range(3)]]

    assert sent(2**63) == sent(2**63)
    if isinstance(condition, Noisy | Lying | Spamming):
        assert sent(1) != sent(2)
        said, messages = sent(1)
        assert said[0] != said[1] or [len(m) for m in messages[0]] != [len(m) for m in messages[1]], "steps differ"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "kind"),
        ({"kind": "rude"}, "rude"),
        ({"kind": "noisy"}, "share"),
        ({"kind": "noisy", "share": 0}, "share"),
        ({"kind": "noisy", "share": 1.5}, "share"),
        ({"kind": "noisy", "share": float("nan")}, "share"),
        ({"kind": "stale", "steps": 0}, "steps"),
        ({"kind": "stale", "steps": "2"}, "steps"),
        ({"kind": "silent", "begin": 3}, "begin"),
        ({"kind": "spamming", "flood": 10**9}, "flood"),
    ],
)
def test_bad_conditions_are_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        condition_of(options)
