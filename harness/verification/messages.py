"""Messages of the verifier's processes: a length, then so many bytes."""

from __future__ import annotations

import select
import struct
import time
from io import FileIO

import msgspec

from harness.verification.scorer import Called
from harness.verification.verdict import Verdict

_LONGEST = 1 << 20
KEPT = 512


class Question(msgspec.Struct, frozen=True):
    """answer: for mathematics the extracted one, else the whole response."""

    gold: str
    answer: str
    scorer: Called


Reply = tuple[Verdict, float]
"""And the CPU-seconds of the worker and all that it started."""


def say(stream: FileIO, message: bytes) -> None:
    """Raises BrokenPipeError where the reader is gone."""
    data = memoryview(struct.pack("<I", len(message)) + message)
    while data:
        data = data[stream.write(data) :]


def hear(stream: FileIO, seconds: float | None = None) -> bytes | None:
    """The next message; empty where the other side is gone or talks nonsense, None after the deadline."""
    deadline = None if seconds is None else time.monotonic() + seconds
    if not (head := _read(stream, 4, deadline)):
        return head
    (size,) = struct.unpack("<I", head)
    return _read(stream, size, deadline) if size <= _LONGEST else b""


def _read(stream: FileIO, size: int, deadline: float | None) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        patience = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not select.select([stream], [], [], patience)[0]:
            return None
        if not (chunk := stream.read(size - len(parts))):
            return b""
        parts += chunk
    return bytes(parts)
