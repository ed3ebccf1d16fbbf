"""How messages reach other policies. A transport carries bytes, vouches for the sender's name, and never blocks for ever."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Protocol

from harness.errors import ExchangeError
from harness.experience.refusal import Refusal

__all__ = ["MAILBOX_BYTES", "MAILBOX_MESSAGES", "Delivery", "InProcess", "Transport"]

MAILBOX_BYTES = 256 << 20
"""That wait from one sender to one receiver."""
MAILBOX_MESSAGES = 1 << 18
"""That wait from one sender to one receiver."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one author sent in one go.

    Attributes
    ----------
    sender
        The transport's word.
    step
        The sender's word.
    messages
        Encoded records, one each.
    dropped, dropped_bytes
        Messages of this sender that found its mailbox full, and their size.
    """

    sender: str
    step: int
    messages: tuple[bytes, ...]
    dropped: int = 0
    dropped_bytes: int = 0


class Transport(Protocol):
    """Endpoints are policies' names. Safe to call from several threads; a process may hold only some of the endpoints."""

    def send(self, sender: str, receiver: str, step: int, messages: Sequence[bytes]) -> None:
        """Hand over without waiting for the receiver.

        Parameters
        ----------
        sender, receiver
            Endpoints.
        step
            Of the sender.
        messages
            Encoded records, one each.

        Raises
        ------
        ExchangeError
            `unknown_author`: there is no such endpoint.
        """

    def receive(self, receiver: str, timeout: float) -> list[Delivery]:
        """All that has arrived, each sender's in order.

        Parameters
        ----------
        receiver
            An endpoint of this process.
        timeout
            Seconds to wait for a first delivery; then there is none.
        """


@dataclass(slots=True)
class _Box:
    """One sender's part of a mailbox, so that a flood crowds out its own sender only."""

    deliveries: list[Delivery] = field(default_factory=list)
    messages: int = 0
    size: int = 0

    def put(self, new: Delivery, max_messages: int, max_bytes: int) -> None:
        """Keep as many messages as there is room for and count the rest. A delivery itself takes the room of one."""
        if self.messages >= max_messages and self.deliveries:
            last = self.deliveries[-1]
            size = sum(len(message) for message in new.messages)
            self.deliveries[-1] = replace(
                last, dropped=last.dropped + len(new.messages), dropped_bytes=last.dropped_bytes + size
            )
            return
        kept, self.messages = 0, self.messages + 1
        for message in new.messages:
            if self.messages >= max_messages or self.size + len(message) > max_bytes:
                break
            kept, self.messages, self.size = kept + 1, self.messages + 1, self.size + len(message)
        rest = new.messages[kept:]
        size = sum(len(message) for message in rest)
        self.deliveries.append(replace(new, messages=new.messages[:kept], dropped=len(rest), dropped_bytes=size))


class InProcess:
    """Mailboxes in this process, bounded per sender and receiver.

    Parameters
    ----------
    endpoints
        Policies' names.
    max_bytes, max_messages
        That wait from one sender to one receiver; more are dropped and counted.
    """

    def __init__(
        self, endpoints: Sequence[str], max_bytes: int = MAILBOX_BYTES, max_messages: int = MAILBOX_MESSAGES
    ) -> None:
        self.max_bytes, self.max_messages = max_bytes, max_messages
        self._arrived = threading.Condition()
        self._boxes = {receiver: {sender: _Box() for sender in endpoints} for receiver in endpoints}

    def send(self, sender: str, receiver: str, step: int, messages: Sequence[bytes]) -> None:
        """As `Transport.send`.

        Parameters
        ----------
        sender, receiver
            Endpoints.
        step
            Of the sender.
        messages
            Encoded records, one each.
        """
        if sender not in self._boxes or receiver not in self._boxes:
            raise ExchangeError(Refusal.UNKNOWN_AUTHOR, f"{sender} -> {receiver}")
        with self._arrived:
            self._boxes[receiver][sender].put(
                Delivery(sender, step, tuple(messages)), self.max_messages, self.max_bytes
            )
            self._arrived.notify_all()

    def receive(self, receiver: str, timeout: float) -> list[Delivery]:
        """As `Transport.receive`.

        Parameters
        ----------
        receiver
            An endpoint.
        timeout
            Seconds.
        """
        boxes = self._boxes[receiver]
        end = monotonic() + timeout
        with self._arrived:
            while not any(box.deliveries for box in boxes.values()):
                left = end - monotonic()
                if left <= 0:
                    return []
                self._arrived.wait(left)
            deliveries = [delivery for box in boxes.values() for delivery in box.deliveries]
            for sender in boxes:
                boxes[sender] = _Box()
        return deliveries
