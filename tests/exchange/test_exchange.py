"""SEE between policies: order, header checks, quotas, deadlines, a ledger that counts everything, resume."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pytest
from exchange_records import PROMPTS, rollout, shuffled, step_records, success, value
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import phases
from harness.errors import CheckpointError
from harness.exchange import exchange as see
from harness.exchange.exchange import Collected, Delivery, Exchange, Quotas
from harness.experience.records import Record, Refusal, Success, encode_record
from harness.suite.schema import Defences, edges_of

POLICIES = ("b", "a", "c")


def pair(**changes: Any) -> Exchange:
    return Exchange(("a", "b"), edges_of(("a", "b"), "all"), **changes)


def among(policies: tuple[str, ...] = POLICIES, edges: Any = "all", **changes: Any) -> Exchange:
    return Exchange(policies, edges_of(policies, edges), **changes)


def refusals(exchange: Exchange) -> Counter[tuple[str, str, str]]:
    return Counter((e.receiver, e.author, e.reason) for e in exchange.ledger if not e.accepted)


def heard(exchange: Exchange, records: list[Any], step: int = 0) -> Collected:
    """What b makes of `records`, sent by a as they are."""
    exchange.post("a", step, [record if isinstance(record, bytes) else encode_record(record) for record in records])
    return exchange.collect("b", step, PROMPTS)


def test_directions() -> None:
    assert edges_of(POLICIES, "none") == ()
    assert len(edges_of(POLICIES, "all")) == 6
    assert edges_of(POLICIES, [("c", "b"), ("a", "b")]) == (("a", "b"), ("c", "b"))
    for wrong in ([("a", "a")], [("a", "z")]):
        with pytest.raises(ValueError, match="no edge"):
            edges_of(POLICIES, wrong)


@pytest.mark.parametrize("seed", range(3))
def test_order_is_that_of_the_suite_whatever_comes_first(seed: int) -> None:
    exchange = among()
    for author in shuffled(list(POLICIES), seed):
        exchange.publish(author, 0, shuffled(step_records(author, 0), seed))
    got = exchange.collect("a", 0, PROMPTS)
    expected = [(author, p, i) for author in ("b", "c") for p in PROMPTS for i in range(4)]
    assert [(r.author, r.prompt_id, r.index) for r in got.records] == expected
    assert [(e.author, e.prompt_id, e.index) for e in got.entries] == expected
    assert not got.missing
    assert not got.refused


def test_only_edges_carry() -> None:
    exchange = among(edges=[("a", "b")])
    for author in POLICIES:
        exchange.publish(author, 0, step_records(author, 0))
    assert {r.author for r in exchange.collect("b", 0, PROMPTS).records} == {"a"}
    assert exchange.collect("a", 0, PROMPTS) == Collected(waited=pytest.approx(0, abs=60))
    exchange.deliver(Delivery("c", 1, (encode_record(rollout("c", 1)),)), "b")
    assert exchange.collect("b", 1, PROMPTS).refused == {Refusal.NOT_SUBSCRIBED: 1, Refusal.LATE: 1}


OTHER_VERSION = msgspec.structs.replace(rollout("a", 3, index=9), version=99)
HEADERS: list[tuple[Refusal, list[Record]]] = [
    (Refusal.FORGED, [rollout("c", 3)]),
    (Refusal.UNKNOWN_AUTHOR, [rollout("z", 3)]),
    (Refusal.UNKNOWN_PROMPT, [rollout("a", 3, "elsewhere")]),
    (Refusal.STALE, [rollout("a", 2)]),
    (Refusal.FUTURE, [rollout("a", 4)]),
    (Refusal.DUPLICATE, [rollout("a", 3), rollout("a", 3, reward=1.0)]),
    (Refusal.DUPLICATE, [value("a", 3), value("a", 3, right=2)]),
    (Refusal.VERSION, [rollout("a", 3), OTHER_VERSION]),
    (Refusal.VERSION, [OTHER_VERSION, rollout("a", 3)]),
    (Refusal.WRONG_TYPE, [rollout("a", 3), success("a", 3)]),
]


@pytest.mark.parametrize(("reason", "records"), HEADERS, ids=[str(r) for r, _ in HEADERS])
def test_headers_are_checked(reason: Refusal, records: list[Record]) -> None:
    exchange = among(("a", "b", "c"), kinds=see.SHIPPED - {Success})
    exchange.publish("c", 3, [])
    got = heard(exchange, records, 3)
    assert got.refused == {reason: 1}
    assert len(got.records) == len(records) - 1
    (entry,) = [entry for entry in exchange.ledger if not entry.accepted]
    assert (entry.author, entry.receiver, entry.reason, entry.step) == ("a", "b", reason, 3)
    assert entry.made == records[-1].step
    assert entry.bytes == len(encode_record(records[-1]))


def test_switched_off_defences_let_through() -> None:
    exchange = among(("a", "b", "c"), defences=Defences(header_checks=False, staleness=False))
    exchange.collect("b", 2, PROMPTS)
    records = [rollout("c", 3), rollout("a", 3), rollout("a", 3), OTHER_VERSION, rollout("a", 2), rollout("a", 4)]
    assert len(heard(exchange, records, 3).records) == len(records)
    got = heard(exchange, [rollout("a", 4, "elsewhere"), rollout("z", 4), rollout("a", 900)], 4)
    assert got.refused == {
        Refusal.UNKNOWN_PROMPT: 1,
        Refusal.UNKNOWN_AUTHOR: 1,
        Refusal.FUTURE: 1,
        Refusal.LATE: 1,
    }, "what a receiver cannot use is refused whatever is switched off"
    exchange = among(edges=[("a", "b")], defences=Defences(header_checks=False))
    assert heard(exchange, [rollout("c")]).refused == {Refusal.UNKNOWN_AUTHOR: 1}, (
        "only those may be named who may send"
    )


def test_version_never_goes_back() -> None:
    exchange = pair(max_staleness=2)
    heard(exchange, [msgspec.structs.replace(rollout("a", 5), version=8)], 5)
    assert heard(exchange, [msgspec.structs.replace(rollout("a", 6), version=7)], 6).refused == {Refusal.VERSION: 1}
    assert heard(exchange, [msgspec.structs.replace(rollout("a", 7), version=9)], 7).refused == {}


def test_staleness_window() -> None:
    exchange = pair(max_staleness=2)
    for step in range(5):
        exchange.collect("b", step, [f"at{step}"])
    got = heard(exchange, [rollout("a", step, f"at{step}") for step in range(5)], 4)
    assert [r.step for r in got.records] == [2, 3]
    assert got.refused == {Refusal.STALE: 2, Refusal.UNKNOWN_PROMPT: 1}, "the step's own prompts are PROMPTS here"
    again = heard(exchange, [rollout("a", 3, "at3")], 5)
    assert again.refused == {Refusal.DUPLICATE: 1}


def test_quotas_count_messages_and_bytes_per_step() -> None:
    records = [rollout(index=i) for i in range(10)]
    size = len(encode_record(records[0]))
    for quotas in (Quotas(messages=6), Quotas(bytes=6 * size + size // 2)):
        exchange = pair(quotas=quotas)
        got = heard(exchange, records)
        assert [r.index for r in got.records] == list(range(6))
        assert got.refused == {Refusal.QUOTA: 4}
        (over,) = [entry for entry in exchange.ledger if not entry.accepted]
        assert (over.messages, over.bytes) == (4, 4 * size), "one entry sums them up"
        assert len(heard(exchange, [rollout(step=1)], 1).records) == 1, "the next step has its own quota"
    assert len(heard(pair(quotas=Quotas(messages=6), defences=Defences(quotas=False)), records).records) == 10
    assert heard(pair(quotas=Quotas(message=size - 1)), records).refused == {Refusal.OVERSIZED: 10}


def test_fitting_quotas_fit_an_honest_author_whose_records_arrive_as_they_were_sent() -> None:
    records: list[Record] = [*step_records("a", 0), *(success(prompt=p, index=i) for p in PROMPTS for i in range(4))]
    records += [value(prompt=p) for p in PROMPTS]
    got = heard(pair(quotas=Quotas.fitting(prompts=3, answers=4, max_tokens=48)), records)
    assert not got.refused
    assert set(map(encode_record, got.records)) == set(map(encode_record, records))


def test_silence_costs_one_deadline_and_no_more() -> None:
    exchange = pair(deadline=0.1)
    first = exchange.collect("b", 0, PROMPTS)
    assert first.waited >= 0.1
    assert first.missing == ("a",)
    assert first.refused == {Refusal.LATE: 1}
    (entry,) = exchange.ledger
    assert (entry.reason, entry.messages, entry.author) == (Refusal.LATE, 0, "a")
    exchange.deadline = 60.0
    second = exchange.collect("b", 1, PROMPTS)
    assert second.missing == ("a",)
    assert second.waited < 30
    exchange.deadline = 0.1
    assert len(heard(exchange, [rollout("a", 2)], 2).records) == 1, "it is heard again as soon as it speaks"
    assert exchange.collect("b", 3, PROMPTS).waited >= 0.1, "and waited for again"


def test_without_the_deadline_the_ceiling_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(see, "CEILING_SECONDS", 0.1)
    for exchange in (pair(defences=Defences(deadline=False)), pair(deadline=9.0)):
        assert 0.1 <= exchange.collect("b", 0, PROMPTS).waited < 5


def test_waiting_for_a_peer_is_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(see, "BEAT_SECONDS", 0.02)
    before = phases.progress_count()
    assert pair(deadline=0.2).collect("b", 0, PROMPTS).waited >= 0.2
    assert phases.progress_count() - before >= 2


def test_collect_waits_for_those_who_are_slow_and_nothing_to_say_is_not_silence() -> None:
    exchange = among(deadline=60.0)
    exchange.publish("b", 0, [])
    slow = threading.Timer(0.1, exchange.publish, ("c", 0, step_records("c", 0)))
    slow.start()
    got = exchange.collect("a", 0, PROMPTS)
    slow.join()
    assert [r.author for r in got.records] == ["c"] * 12
    assert not got.missing
    assert got.waited < 50


def test_an_older_delivery_is_no_sign_of_being_done() -> None:
    exchange = pair()
    exchange.publish("a", 0, [rollout("a", 0)])
    got = exchange.collect("b", 1, PROMPTS)
    assert got.missing == ("a",)
    assert got.refused == {Refusal.STALE: 1, Refusal.LATE: 1}


def test_what_cannot_be_encoded_is_counted_at_the_sender() -> None:
    exchange = among()
    exchange.publish("a", 0, [rollout("a", text="\ud800"), rollout("a", index=1)])
    assert refusals(exchange) == {(to, "a", "malformed"): 1 for to in ("b", "c")}
    assert len(exchange.collect("b", 0, PROMPTS).records) == 1


moves = st.lists(
    st.tuples(
        st.sampled_from(POLICIES), st.sampled_from(POLICIES), st.integers(0, 6), st.sampled_from([*PROMPTS, "p9"]),
        st.integers(0, 2), st.integers(0, 1),
    ),
    max_size=40,
)  # fmt: skip


@given(st.lists(moves, min_size=1, max_size=5), st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_whatever_is_sent_is_accounted_for(
    steps: list[list[tuple[str, str, int, str, int, int]]], staleness: int
) -> None:
    exchange = among(edges=[("a", "b"), ("c", "b")], max_staleness=staleness)
    accepted: list[tuple[str, int, str, int]] = []
    for now, sends in enumerate(steps):
        sent: Counter[str] = Counter()
        for sender, claimed, made, prompt, index, bump in sends:
            if sender != "b":
                record = msgspec.structs.replace(rollout(claimed, made, prompt, index), version=made + bump)
                exchange.deliver(Delivery(sender, now, (encode_record(record),)), "b")
                sent[sender] += 1
        got = exchange.collect("b", now, PROMPTS)
        counted: Counter[str] = Counter()
        for entry in exchange.ledger:
            counted[entry.author] += entry.messages
        exchange.ledger.clear()
        assert +counted == +sent
        assert list(got.missing) == [author for author in ("a", "c") if not sent[author]]
        for record, entry in zip(got.records, got.entries, strict=True):
            assert entry.author == record.author
            assert now - staleness <= record.step <= now
            assert record.prompt_id in PROMPTS
            accepted.append((record.author, record.step, record.prompt_id, record.index))
        keys = [(POLICIES.index(r.author), r.step, PROMPTS.index(r.prompt_id)) for r in got.records]
        assert keys == sorted(keys)
    assert len(set(accepted)) == len(accepted)


def test_a_restored_exchange_goes_on_as_if_nothing_had_happened() -> None:
    def run(cut: bool) -> list[tuple[Any, ...]]:
        exchange, outcomes = pair(max_staleness=2), []
        for step in range(5):
            made = max(0, step - 2)
            exchange.post("a", step, [encode_record(rollout("a", made, f"at{made}", i)) for i in (0, step)])
            got = exchange.collect("b", step, [f"at{step}"])
            outcomes.append((sorted(got.refused.items()), [(r.step, r.prompt_id) for r in got.records]))
            if cut:
                state = exchange.state()
                exchange = pair(max_staleness=2)
                exchange.restore(state)
                assert exchange.state() == state
        return outcomes

    assert run(cut=True) == run(cut=False)
    assert any(refused for refused, _ in run(cut=False))
    for bad in (b"", b"\x81\xa1a\x01", Exchange(POLICIES, ()).state()):
        with pytest.raises(CheckpointError, match="state of the exchange"):
            pair().restore(bad)


# Not in lockstep: peers may be some steps behind, or ahead


def test_an_author_within_the_staleness_is_not_waited_for() -> None:
    exchange = pair(max_staleness=2, deadline=30.0)
    exchange.publish("a", 3, step_records("a", 3))
    began = time.monotonic()
    for step in (4, 5):
        assert not exchange.collect("b", step, PROMPTS, behind=2).missing
    assert time.monotonic() - began < 5
    exchange.deadline = 0.1
    got = exchange.collect("b", 6, PROMPTS, behind=2)
    assert got.missing == ("a",)
    assert got.waited >= 0.1


def test_what_comes_ahead_of_its_step_is_kept_until_then() -> None:
    exchange = pair(max_staleness=1)
    for step in (1, 2, 3, 4):
        exchange.publish("a", step, step_records("a", step))
    for step in (1, 2, 3):
        got = exchange.collect("b", step, PROMPTS, behind=1)
        assert {r.step for r in got.records} == {step}
        # Three ahead of the first collect: beyond what is kept, and never of use again.
        assert dict(got.refused) == ({Refusal.FUTURE: len(step_records("a", 4))} if step == 1 else {})
    assert not exchange.collect("b", 4, PROMPTS, behind=1).records


def test_of_a_flood_ahead_one_delivery_a_step_is_kept_and_its_step_counts_no_further_than_the_staleness() -> None:
    exchange = pair(max_staleness=1)
    for _ in range(50):
        exchange.publish("a", 2, step_records("a", 2))
    got = exchange.collect("b", 1, PROMPTS, behind=1)
    assert got.refused[Refusal.FUTURE] == 49 * len(step_records("a", 2))
    assert len(exchange.collect("b", 2, PROMPTS, behind=1).records) == len(step_records("a", 2))
    exchange.post("a", 1 << 40, [])
    assert [exchange.collect("b", step, PROMPTS, behind=1).missing for step in (3, 5, 6)] == [(), (), ("a",)]


def test_receivers_at_steps_of_their_own_hear_everything_once() -> None:
    steps, exchange = 12, among(max_staleness=2, deadline=20.0)
    heard_by: dict[str, Counter[tuple[str, int, str, int]]] = {policy: Counter() for policy in POLICIES}
    spans: list[int] = []

    def walk(policy: str) -> None:
        rng = np.random.default_rng(POLICIES.index(policy))
        for step in range(1, steps + 1):
            time.sleep(float(rng.uniform(0, 0.005)))
            exchange.publish(policy, step, step_records(policy, step))
            got = exchange.collect(policy, step, PROMPTS, behind=2)
            assert not got.missing
            assert not got.refused
            heard_by[policy].update((r.author, r.step, r.prompt_id, r.index) for r in got.records)
            spans.extend(step - r.step for r in got.records)

    with ThreadPoolExecutor(3) as pool:
        for running in [pool.submit(walk, policy) for policy in POLICIES]:
            running.result(60)
    for policy, counts in heard_by.items():
        assert set(counts.values()) == {1}
        # Whoever ends first does not hear what the others say about the last steps.
        assert {(a, s) for a, s, _, _ in counts} >= {
            (a, s) for a in POLICIES if a != policy for s in range(1, steps - 1)
        }
    assert 0 <= min(spans) <= max(spans) <= 2


def test_every_reason_of_refusal_is_explained() -> None:
    explained = set(re.findall(r"`(\w+)`", Refusal.__doc__ or ""))
    assert explained == {reason.value for reason in Refusal}
