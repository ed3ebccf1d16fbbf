"""Messages of `programs` and its sandbox: a length, then so many bytes; waited for no longer than a deadline."""

from __future__ import annotations

import select
import struct
import time
from io import FileIO

_LONGEST = 1 << 20


def say(stream: FileIO, message: bytes) -> None:
    """Raises BrokenPipeError where nobody listens."""
    data = memoryview(struct.pack("<I", len(message)) + message)
    while data:
        data = data[stream.write(data) :]


def hear(stream: FileIO, seconds: float) -> bytes | None:
    """The next message; empty where the other side is gone or talks nonsense, None after so many seconds."""
    deadline = time.monotonic() + seconds
    if not (head := _read(stream, 4, deadline)):
        return head
    (size,) = struct.unpack("<I", head)
    return _read(stream, size, deadline) if size <= _LONGEST else b""


def _read(stream: FileIO, size: int, deadline: float) -> bytes | None:
    parts = b""
    while len(parts) < size:
        if not select.select([stream], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return None
        chunk = stream.read(size - len(parts))
        if not chunk:
            return b""
        parts += chunk
    return parts
