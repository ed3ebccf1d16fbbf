"""What travels: records as bytes, and the transport. Bytes from a peer are hostile until `decode` has returned, whose memory is
bounded by the message's size."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Protocol, Union

import msgspec

from harness.errors import ExchangeError
from harness.experience.records import SHIPPED, Record, Refusal

__all__ = ["Delivery", "InProcess", "Transport", "decode", "encode"]

MAX_MESSAGE_BYTES = 4 << 20  # the largest record that the types allow (text and three lists at their limits) fits in it
MAILBOX_BYTES = 256 << 20  # that wait from one sender to one receiver
MAILBOX_MESSAGES = 1 << 18  # likewise
_encoder = msgspec.msgpack.Encoder()


@cache
def _decoder(kinds: frozenset[type[Record]]) -> msgspec.msgpack.Decoder[Any]:
    every = sorted(SHIPPED | kinds, key=lambda kind: str(kind.__struct_config__.tag))
    return msgspec.msgpack.Decoder(Union[tuple(every)])  # noqa: UP007  # the types are known only now


def encode(record: Record) -> bytes:
    """One record as msgpack. Raises ExchangeError (`malformed`, `oversized`) if it cannot be carried."""
    try:
        message = _encoder.encode(record)
    except (UnicodeEncodeError, OverflowError, TypeError, RecursionError) as error:
        raise ExchangeError(Refusal.MALFORMED, str(error)) from None
    if len(message) > MAX_MESSAGE_BYTES:
        raise ExchangeError(Refusal.OVERSIZED, f"{len(message)} bytes")
    return message


def decode(message: bytes, limit: int = MAX_MESSAGE_BYTES, kinds: frozenset[type[Record]] = SHIPPED) -> Record:
    """One checked record, of a shipped type or one of `kinds`. Raises ExchangeError."""
    if not isinstance(message, bytes):
        raise ExchangeError(Refusal.WRONG_TYPE, f"expected bytes, got {type(message).__name__}")
    if len(message) > limit:
        raise ExchangeError(Refusal.OVERSIZED, f"{len(message)} bytes, at most {limit}")
    try:
        record: Record = _decoder(kinds).decode(message)
    except msgspec.ValidationError as error:
        raise ExchangeError(Refusal.WRONG_TYPE, str(error)[:200]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise ExchangeError(Refusal.MALFORMED, str(error)[:200]) from None
    record.check()
    return record


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one author sent in one go. sender: the transport's word; step: the sender's. dropped, dropped_bytes: messages that
    found its mailbox full."""

    sender: str
    step: int
    messages: tuple[bytes, ...]
    dropped: int = 0
    dropped_bytes: int = 0


class Transport(Protocol):
    """Carries bytes between policies. It vouches for the sender's name, is thread-safe, and never blocks for ever."""

    def send(self, sender: str, receiver: str, step: int, messages: Sequence[bytes]) -> None:
        """Hand over without waiting. Raises ExchangeError (`unknown_author`)."""

    def receive(self, receiver: str, timeout: float) -> list[Delivery]:
        """All that has arrived, each sender's in order; waits up to `timeout` seconds for a first delivery."""


@dataclass(slots=True)
class _Box:
    """One sender's part of a mailbox, so that a flood crowds out its sender only."""

    deliveries: list[Delivery] = field(default_factory=list)
    messages: int = 0
    size: int = 0

    def put(self, new: Delivery, max_messages: int, max_bytes: int) -> None:
        """Keep what fits and count the rest; a delivery itself counts as one message."""
        fits, kept = self.messages < max_messages or not self.deliveries, 0
        self.messages += fits
        for message in new.messages if fits else ():
            if self.messages >= max_messages or self.size + len(message) > max_bytes:
                break
            kept, self.messages, self.size = kept + 1, self.messages + 1, self.size + len(message)
        base = replace(new, messages=new.messages[:kept]) if fits else self.deliveries.pop()
        rest = new.messages[kept:]
        dropped, size = base.dropped + len(rest), base.dropped_bytes + sum(map(len, rest))
        self.deliveries.append(replace(base, dropped=dropped, dropped_bytes=size))


class InProcess:
    """Mailboxes in this process, bounded per sender and receiver; the rest is dropped and counted."""

    def __init__(
        self, endpoints: Sequence[str], max_bytes: int = MAILBOX_BYTES, max_messages: int = MAILBOX_MESSAGES
    ) -> None:
        self.max_bytes, self.max_messages = max_bytes, max_messages
        self._arrived = threading.Condition()
        self._boxes = {receiver: {sender: _Box() for sender in endpoints} for receiver in endpoints}

    def send(self, sender: str, receiver: str, step: int, messages: Sequence[bytes]) -> None:
        """As `Transport.send`."""
        if sender not in self._boxes or receiver not in self._boxes:
            raise ExchangeError(Refusal.UNKNOWN_AUTHOR, f"{sender} -> {receiver}")
        with self._arrived:
            self._boxes[receiver][sender].put(
                Delivery(sender, step, tuple(messages)), self.max_messages, self.max_bytes
            )
            self._arrived.notify_all()

    def receive(self, receiver: str, timeout: float) -> list[Delivery]:
        """As `Transport.receive`."""
        boxes = self._boxes[receiver]
        with self._arrived:
            self._arrived.wait_for(lambda: any(box.deliveries for box in boxes.values()), timeout)
            deliveries = [delivery for box in boxes.values() for delivery in box.deliveries]
            boxes.update({sender: _Box() for sender in boxes})
        return deliveries
