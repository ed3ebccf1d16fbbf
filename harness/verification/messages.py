"""Messages of the verifier's processes: a length, then so many bytes; no wait without a deadline."""

from __future__ import annotations

import select
import struct
import time
from io import FileIO

import msgspec

_LONGEST = 1 << 20
KEPT = 512


class Limits(msgspec.Struct, frozen=True):
    """CPU and wall-clock seconds of a pair, bytes of a worker. More CPU time is wrong, more waiting invalid."""

    cpu_seconds: float = 0.7
    wall_seconds: float = 60.0
    memory_bytes: int = 1 << 30


class Question(msgspec.Struct, frozen=True):
    """answer: the extracted one, or for a scorer the whole response. scorer: `module:Class`, empty for mathematics."""

    gold: str
    answer: str
    scorer: str = ""
    cpu_seconds: float | None = None
    wall_seconds: float | None = None


class Reply(msgspec.Struct, frozen=True):
    """right: None where the worker could not decide. cpu_seconds: of the worker and all that it started."""

    right: bool | None
    reason: str = ""
    extracted: str = ""
    cpu_seconds: float = 0.0


def say(stream: FileIO, message: bytes) -> None:
    """Raises BrokenPipeError where nobody listens."""
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
