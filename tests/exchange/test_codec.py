"""Bytes to records: whatever comes in, a checked record or a typed refusal comes out, within bounded memory."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from exchange_records import rollout, success, value
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import ExchangeError
from harness.experience.records import (
    MAX_MESSAGE_BYTES,
    MAX_TEXT_BYTES,
    MAX_TOKENS,
    Record,
    Refusal,
    Rollout,
    TextRollout,
    decode_record,
    encode_record,
)

pack = msgspec.msgpack.encode
NESTED = b"\x91" * 200_000
PLAIN = {"type": "success", "author": "a", "version": 1, "step": 1, "prompt_id": "p", "index": 0, "text": "42"}


def raw(record: Record, **changes: Any) -> bytes:
    """The record's bytes with fields that its type would not allow."""
    return pack({**msgspec.to_builtins(record), **changes})


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
logprobs = st.floats(-100.0, 0.0)


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    text = draw(texts)
    size = len(text.encode())
    cuts = sorted(draw(st.lists(st.integers(0, size), max_size=20)))
    pieces = [b - a for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
    count = len(pieces)
    tokens = draw(st.lists(st.integers(0, 2**31 - 1), min_size=count, max_size=count))
    own = draw(st.lists(logprobs, min_size=count, max_size=count))
    changes = {"text": text, "tokens": tokens, "logprobs": own, "pieces": pieces, "eos_logprob": draw(logprobs)}
    return rollout(index=draw(st.integers(0, 9999)), **changes)


@given(rollouts())
@settings(max_examples=100, deadline=None)
def test_rollout_survives_the_way(record: Rollout) -> None:
    assert decode_record(encode_record(record)) == record


@pytest.mark.parametrize(
    "record", [success(text="≈ 😀\u0000"), success(prompt="é" * 200), value(), value(count=3, right=3)]
)
def test_other_records_survive_the_way(record: Record) -> None:
    assert decode_record(encode_record(record)) == record
    text = TextRollout(**{k: v for k, v in PLAIN.items() if k != "type"}, finished=False, reward=1.0)
    assert decode_record(encode_record(text)) == text


ROLLOUT = rollout()
COUNT = len(ROLLOUT.tokens)
REFUSED: list[tuple[Refusal, bytes]] = [
    (Refusal.OVERSIZED, b"\x00" * (MAX_MESSAGE_BYTES + 1)),
    (Refusal.OVERSIZED, raw(success(), text="é" * (MAX_TEXT_BYTES // 2 + 1))),
    (Refusal.WRONG_TYPE, raw(success(), text="x" * (MAX_TEXT_BYTES + 1))),
    (Refusal.MALFORMED, b""),
    (Refusal.MALFORMED, encode_record(ROLLOUT)[:-1]),
    (Refusal.MALFORMED, encode_record(ROLLOUT) + b"\x00"),
    (Refusal.MALFORMED, b"\x82\xa1x" + NESTED),
    (Refusal.MALFORMED, pack(PLAIN).replace(b"\xa242", b"\xa2\xff\xfe")),
    (Refusal.MALFORMED, pack(PLAIN).replace(b"\xa242", b"\xa3\xed\xa0\x80")),
    (Refusal.MALFORMED, b"\xdf\xff\xff\xff\xff" + pack(PLAIN)[1:]),
    (Refusal.WRONG_TYPE, NESTED),
    (Refusal.WRONG_TYPE, b"\x81\xa4type" + NESTED),
    (Refusal.WRONG_TYPE, pack(42)),
    (Refusal.WRONG_TYPE, pack([PLAIN])),
    (Refusal.WRONG_TYPE, pack({**PLAIN, "type": "pickle"})),
    (Refusal.WRONG_TYPE, pack({**PLAIN, "extra": 1})),
    (Refusal.WRONG_TYPE, pack({k: v for k, v in PLAIN.items() if k != "step"})),
    (Refusal.WRONG_TYPE, pack({**PLAIN, "text": b"42"})),
    (Refusal.WRONG_TYPE, pack({**PLAIN, "author": ""})),
    (Refusal.WRONG_TYPE, pack({**PLAIN, "author": "a" * 129})),
    (Refusal.WRONG_TYPE, pack({**PLAIN, "version": -1})),
    (Refusal.WRONG_TYPE, pack({**PLAIN, "step": 2**31})),
    (Refusal.WRONG_TYPE, pack({**PLAIN, "step": 2**63 + 1})),
    (Refusal.WRONG_TYPE, pack({**PLAIN, "step": 1.5})),
    (Refusal.WRONG_TYPE, pack({**PLAIN, "step": True})),
    (Refusal.WRONG_TYPE, raw(ROLLOUT, tokens=[2**31] * COUNT)),
    (Refusal.WRONG_TYPE, raw(ROLLOUT, tokens=[1] * (MAX_TOKENS + 1))),
    (Refusal.WRONG_TYPE, raw(ROLLOUT, pieces=[-1] * COUNT)),
    (Refusal.WRONG_TYPE, raw(ROLLOUT, reward=1.5)),
    (Refusal.WRONG_TYPE, raw(ROLLOUT, reward=float("nan"))),
    (Refusal.WRONG_TYPE, raw(ROLLOUT, logprobs="x")),
    (Refusal.NOT_FINITE, raw(ROLLOUT, logprobs=[float("nan")] * COUNT)),
    (Refusal.NOT_FINITE, raw(ROLLOUT, logprobs=[-1.0] * (COUNT - 1) + [float("nan")])),
    (Refusal.NOT_FINITE, raw(ROLLOUT, logprobs=[-1.0] * (COUNT - 1) + [float("-inf")])),
    (Refusal.NOT_FINITE, raw(ROLLOUT, logprobs=[float("inf"), float("-inf")] + [-1.0] * (COUNT - 2))),
    (Refusal.NOT_FINITE, raw(ROLLOUT, logprobs=[-1e30] * COUNT)),
    (Refusal.NOT_FINITE, raw(ROLLOUT, eos_logprob=float("nan"))),
    (Refusal.NOT_LOGPROB, raw(ROLLOUT, logprobs=[-1.0] * (COUNT - 1) + [0.01])),
    (Refusal.NOT_LOGPROB, raw(ROLLOUT, eos_logprob=3.0)),
    (Refusal.INCONSISTENT, raw(ROLLOUT, logprobs=[-1.0] * (COUNT - 1))),
    (Refusal.INCONSISTENT, raw(ROLLOUT, tokens=[1] * (COUNT + 1))),
    (Refusal.INCONSISTENT, raw(ROLLOUT, pieces=[1] * (COUNT - 1))),
    (Refusal.INCONSISTENT, raw(ROLLOUT, pieces=[1] * (COUNT - 1) + [2])),
    (Refusal.INCONSISTENT, raw(ROLLOUT, pieces=[1] * (COUNT - 1) + [0])),
    (Refusal.INCONSISTENT, raw(ROLLOUT, pieces=[1] * COUNT + [0])),
    (Refusal.INCONSISTENT, raw(ROLLOUT, pieces=[2**31 - 1] * COUNT)),
    (Refusal.WRONG_TYPE, raw(value(), count=2**31 - 1)),
    (Refusal.INCONSISTENT, raw(value(), right=5)),
    (Refusal.EMPTY, raw(value(), count=0, right=0)),
    (Refusal.EMPTY, raw(ROLLOUT, tokens=[], logprobs=[], pieces=[])),
    (Refusal.EMPTY, raw(success(), text="")),
]


@pytest.mark.parametrize(("reason", "message"), REFUSED, ids=[f"{i}-{r}" for i, (r, _) in enumerate(REFUSED)])
def test_refusal_names_the_reason(reason: Refusal, message: bytes) -> None:
    with pytest.raises(ExchangeError) as caught:
        decode_record(message)
    assert caught.value.reason == reason
    assert len(str(caught.value)) < 300


def test_what_a_plugins_check_raises_is_a_refusal() -> None:
    class Even(Record, frozen=True, kw_only=True, tag="even"):
        number: int

        def check(self) -> None:
            raise ValueError(f"number: {self.number} is odd")

    message = encode_record(Even(author="a", version=1, step=1, prompt_id="p", number=3))
    with pytest.raises(ExchangeError, match="inconsistent: number: 3 is odd"):
        decode_record(message, kinds=frozenset({Even}))


def test_the_largest_record_fits_and_rounding_above_zero_is_no_lie() -> None:
    pieces = [MAX_TEXT_BYTES // MAX_TOKENS] * MAX_TOKENS
    tokens, own = [2**31 - 1] * MAX_TOKENS, [-1.2345] * MAX_TOKENS
    largest = rollout(text="x" * MAX_TEXT_BYTES, tokens=tokens, logprobs=own, pieces=pieces)
    assert decode_record(encode_record(largest)) == largest
    assert decode_record(raw(ROLLOUT, logprobs=[1e-7] * COUNT)).logprobs[0] == 1e-7


@pytest.mark.parametrize("bad", [{"text": "\ud800"}, {"version": 2**70}, {"finished": object()}])
def test_what_cannot_be_encoded_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ExchangeError) as caught:
        encode_record(rollout(**bad))
    assert caught.value.reason == Refusal.MALFORMED


def fuzzed(count: int, seed: int) -> list[bytes]:
    """Messages that are broken in one of a dozen ways; a few come out valid."""
    rng = np.random.default_rng(seed)
    honest = [
        encode_record(record)
        for record in (rollout(index=3), rollout(text="é" * 40, pieces=[2] * 40), success(), value())
    ]
    keys = list(msgspec.to_builtins(ROLLOUT))
    values: list[Any] = [
        None, True, -1, 2**31, 2**64 - 1, 1e308, float("nan"), float("-inf"), "", "x" * 5000, b"\x00", [], {},
        [None] * 50, [[]] * 50, {"a": 1}, [float("nan")] * COUNT, [-1.0] * COUNT, ["1"] * COUNT,
    ]  # fmt: skip

    def bits(message: bytes) -> bytes:
        flipped = bytearray(message)
        for _ in range(rng.integers(1, 9)):
            flipped[rng.integers(len(flipped))] ^= 1 << rng.integers(8)
        return bytes(flipped)

    def counts(message: bytes) -> bytes:
        at = rng.integers(len(message))
        head = bytes([rng.choice([0xDD, 0xDF, 0xDB, 0xC6, 0xC9])])
        return message[:at] + head + b"\xff\xff\xff\xff" + message[at + 1 :]

    ways = [
        bits,
        counts,
        lambda m: m[: rng.integers(len(m))],
        lambda m: m + rng.bytes(rng.integers(1, 20)),
        lambda m: rng.bytes(rng.integers(0, 600)),
        lambda m: bytes(MAX_MESSAGE_BYTES + int(rng.integers(1, 9))),
        lambda m: bytes([rng.choice([0x91, 0x81])]) * int(rng.integers(1, 20_000)),
        lambda m: m[:6] + b"\x91" * int(rng.integers(1, 20_000)) + m[6:],
        lambda m: raw(ROLLOUT, **{keys[rng.integers(len(keys))]: values[rng.integers(len(values))]}),
        lambda m: pack({keys[rng.integers(len(keys))]: values[rng.integers(len(values))] for _ in range(9)}),
        lambda m: raw(ROLLOUT, tokens=[1] * int(rng.integers(0, 2000))),
        lambda m: m[: (cut := rng.integers(len(m)))] + honest[rng.integers(len(honest))][cut:],
    ]
    return [ways[i % len(ways)](honest[rng.integers(len(honest))]) for i in range(count)]


def test_thousands_of_fuzzed_messages() -> None:
    outcomes: Counter[str] = Counter()
    peak = 0
    for seed in range(4):
        messages = fuzzed(500, seed)
        tracemalloc.start()
        try:
            for message in messages:
                try:
                    (decode_record(message)).check()
                    outcomes["accepted"] += 1
                except ExchangeError as error:
                    outcomes[Refusal(error.reason)] += 1
            peak = max(peak, tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert sum(outcomes.values()) == 2_000
    assert peak < MAX_MESSAGE_BYTES, f"{peak} bytes"
    reached = {Refusal.OVERSIZED, Refusal.MALFORMED, Refusal.WRONG_TYPE, Refusal.NOT_FINITE, Refusal.INCONSISTENT}
    assert reached <= set(outcomes)
    assert outcomes["accepted"] < 400


@pytest.mark.parametrize(
    "message",
    [
        raw(ROLLOUT, tokens=[1] * MAX_TOKENS, logprobs=[-1.0] * MAX_TOKENS, pieces=[1] * MAX_TOKENS),
        raw(ROLLOUT, tokens=[[]] * 4_000_000),
        raw(ROLLOUT, text="😀" * (MAX_TEXT_BYTES - 2000)),
        b"\x81\xa4type\xdd\x00\x3f\xff\xff" + b"\x80" * 4_000_000,
        b"\xde\xff\xff" + b"\xa1a\x01" * 65_535,
    ],
    ids=["tokens", "lists", "astral", "type", "keys"],
)
def test_small_messages_do_not_grow_large(message: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ExchangeError):
            decode_record(message)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * MAX_MESSAGE_BYTES
