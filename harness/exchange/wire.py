"""Records as bytes. A peer's bytes are hostile until `decode_record` has returned, whose memory is bounded by the message's
size."""

from __future__ import annotations

from functools import cache
from typing import Any, Union

import msgspec

from harness.errors import ExchangeError
from harness.experience.records import SHIPPED, Record, Refusal

__all__ = ["decode_record", "encode_record"]

MAX_MESSAGE_BYTES = 4 << 20  # fits the largest record that the types allow
_encoder = msgspec.msgpack.Encoder()


@cache
def _make_decoder(kinds: frozenset[type[Record]]) -> msgspec.msgpack.Decoder[Any]:
    """A decoder of these kinds of records and no others."""
    every = sorted(SHIPPED | kinds, key=lambda kind: str(kind.__struct_config__.tag))
    return msgspec.msgpack.Decoder(Union[tuple(every)])  # noqa: UP007  # the types are known only now


def encode_record(record: Record) -> bytes:
    """One record as msgpack. Raises ExchangeError (`malformed`, `oversized`) if it cannot be carried."""
    try:
        message = _encoder.encode(record)
    except (UnicodeEncodeError, OverflowError, TypeError, RecursionError) as error:
        raise ExchangeError(Refusal.MALFORMED, str(error)) from None
    if len(message) > MAX_MESSAGE_BYTES:
        raise ExchangeError(Refusal.OVERSIZED, f"{len(message)} bytes")
    return message


def decode_record(message: bytes, limit: int = MAX_MESSAGE_BYTES, kinds: frozenset[type[Record]] = SHIPPED) -> Record:
    """One checked record, of a shipped type or one of `kinds`. Raises ExchangeError."""
    if not isinstance(message, bytes):
        raise ExchangeError(Refusal.WRONG_TYPE, f"expected bytes, got {type(message).__name__}")
    if len(message) > limit:
        raise ExchangeError(Refusal.OVERSIZED, f"{len(message)} bytes, at most {limit}")
    try:
        record: Record = _make_decoder(kinds).decode(message)
    except msgspec.ValidationError as error:
        raise ExchangeError(Refusal.WRONG_TYPE, str(error)[:200]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise ExchangeError(Refusal.MALFORMED, str(error)[:200]) from None
    try:
        record.check()
    except ValueError as error:
        raise ExchangeError(Refusal.INCONSISTENT, str(error)[:200]) from None
    return record
