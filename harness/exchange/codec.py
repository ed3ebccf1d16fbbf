"""Records to bytes and back. Bytes from a peer are hostile until `decode` has returned.

Memory is bounded by the message's size: it is checked before anything is parsed, element counts are checked against the
type before a list is allocated, and nesting deeper than the type fails at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from harness.errors import ExchangeError
from harness.experience.records import MAX_TEXT_BYTES, AnyRecord, GroupValue, Record, Rollout, Success, TextRollout
from harness.experience.refusal import Refusal

MAX_MESSAGE_BYTES = 4 << 20
"""The largest record that the types allow (text and three lists at their limits) fits in it."""
LOGPROB_SLACK = 1e-6
"""Rounding may lift the log-probability of a sure token a little above 0."""
LOGPROB_FLOOR = -1e4
"""No token was ever sampled at exp(-1e4); a claim of less is an attack on the ratio's denominator."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyRecord)


def encode(record: Record) -> bytes:
    """One record as msgpack. Raises ExchangeError (`malformed`, `oversized`) if it cannot be carried."""
    try:
        message = _encoder.encode(record)
    except (UnicodeEncodeError, OverflowError, TypeError, RecursionError) as error:
        raise ExchangeError(Refusal.MALFORMED, str(error)) from None
    if len(message) > MAX_MESSAGE_BYTES:
        raise ExchangeError(Refusal.OVERSIZED, f"{len(message)} bytes")
    return message


def decode(message: bytes, limit: int = MAX_MESSAGE_BYTES) -> AnyRecord:
    """One checked record. Raises ExchangeError (`oversized`, `malformed`, `wrong_type`, and all that `check` raises)."""
    if not isinstance(message, bytes):
        raise ExchangeError(Refusal.WRONG_TYPE, f"expected bytes, got {type(message).__name__}")
    if len(message) > limit:
        raise ExchangeError(Refusal.OVERSIZED, f"{len(message)} bytes, at most {limit}")
    try:
        record: AnyRecord = _decoder.decode(message)
    except msgspec.ValidationError as error:
        raise ExchangeError(Refusal.WRONG_TYPE, str(error)[:200]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise ExchangeError(Refusal.MALFORMED, str(error)[:200]) from None
    check(record)
    return record


class StepDecoder:
    """`decode` for several receivers in one process, which get the very same bytes: each message is decoded once a step.

    room: bytes of messages that are remembered at most.
    """

    def __init__(self, room: int = 64 << 20) -> None:
        self._room, self._step = room, -1
        self._left, self._records = room, dict[bytes, AnyRecord]()

    def decode(self, step: int, message: bytes, limit: int) -> AnyRecord:
        """As `decode`. A new step forgets the one before."""
        if step != self._step:
            self._step, self._left, self._records = step, self._room, {}
        record = self._records.get(message)
        if record is None or len(message) > limit:
            record = decode(message, limit)
            if len(message) <= self._left:
                self._records[message] = record
                self._left -= len(message)
        return record


def check(record: AnyRecord) -> None:
    """What the type cannot say. Raises ExchangeError (`empty`, `inconsistent`, `not_finite`, `not_logprob`, `oversized`)."""
    if isinstance(record, GroupValue):
        if record.count == 0:
            raise ExchangeError(Refusal.EMPTY, "a group without a valid answer")
        if record.right > record.count:
            raise ExchangeError(Refusal.INCONSISTENT, f"{record.right} right of {record.count}")
        return
    size = _text_bytes(record)
    if isinstance(record, Rollout):
        _check_tokens(record, size)


def _text_bytes(record: Rollout | TextRollout | Success) -> int:
    text = record.text
    if not text:
        raise ExchangeError(Refusal.EMPTY, "no text")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise ExchangeError(Refusal.MALFORMED, str(error)) from None
    if size > MAX_TEXT_BYTES:
        raise ExchangeError(Refusal.OVERSIZED, f"text of {size} bytes")
    return size


def _check_tokens(record: Rollout, size: int) -> None:
    count = len(record.tokens)
    if count == 0:
        raise ExchangeError(Refusal.EMPTY, "no tokens")
    if not count == len(record.logprobs) == len(record.pieces):
        raise ExchangeError(
            Refusal.INCONSISTENT,
            f"{count} tokens, {len(record.logprobs)} log-probabilities, {len(record.pieces)} pieces",
        )
    if sum(record.pieces) != size:
        raise ExchangeError(Refusal.INCONSISTENT, f"pieces of {sum(record.pieces)} bytes, text of {size}")
    _check_logprobs(record.logprobs)
    _check_logprobs((record.eos_logprob,))


def _check_logprobs(values: Sequence[float]) -> None:
    # A sum is finite only if every summand is; NaN would escape min and max.
    if not math.isfinite(sum(values)) or min(values) < LOGPROB_FLOOR:
        raise ExchangeError(Refusal.NOT_FINITE, "a log-probability is not finite")
    if max(values) > LOGPROB_SLACK:
        raise ExchangeError(Refusal.NOT_LOGPROB, f"log-probability {max(values):.3g}")
