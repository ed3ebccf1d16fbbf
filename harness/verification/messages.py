"""What the pool and its workers say to each other: length-prefixed msgpack, decoded against these types."""

from __future__ import annotations

import struct
from typing import BinaryIO

import msgspec

HEADER = struct.Struct("<I")
MAX_FRAME = 1 << 20
KEPT = 512
"""Characters of an extracted answer that a verdict carries."""


class Limits(msgspec.Struct, frozen=True):
    """Per pair: CPU seconds, beyond which an answer is wrong, and wall-clock seconds for a worker that waits instead of computing.
    Per worker: bytes of memory."""

    cpu_seconds: float = 0.7
    wall_seconds: float = 60.0
    memory_bytes: int = 1 << 30


class Question(msgspec.Struct, frozen=True):
    """answer: what was extracted, or for a scorer the whole response. scorer: `module:Class` of one, empty for mathematics.
    cpu_seconds, wall_seconds: of this pair; None as in `Limits`."""

    gold: str
    answer: str
    scorer: str = ""
    cpu_seconds: float | None = None
    wall_seconds: float | None = None


class Reply(msgspec.Struct, frozen=True):
    """`right` is None when the worker could not decide; `reason` then says why. cpu_seconds: that the worker and all that it
    started have used since its start."""

    right: bool | None
    reason: str = ""
    extracted: str = ""
    cpu_seconds: float = 0.0

    @property
    def killed(self) -> bool:
        """Whether the process that was to decide was killed by a signal that is not the answer's doing."""
        return self.reason.startswith("crash: SIG")


def write(stream: BinaryIO, message: msgspec.Struct) -> None:
    body = msgspec.msgpack.encode(message)
    stream.write(HEADER.pack(len(body)) + body)
    stream.flush()


def read_exactly(stream: BinaryIO, size: int) -> bytes | None:
    """`size` bytes, or None at the end of the stream."""
    parts = bytearray()
    while len(parts) < size:
        chunk = stream.read(size - len(parts))
        if not chunk:
            return None
        parts += chunk
    return bytes(parts)
