"""Stored experience, served later as if the peers sent it again (GRAFT's "stored logs").

File: frames of length (4 bytes, big-endian), digest (16 bytes), msgpack payload; a digest covers its payload and the
last digest.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import msgspec

from harness.errors import StoreError
from harness.exchange.exchange import Exchange
from harness.files import disk_errors, replace_atomic
from harness.reading import open_regular
from harness.suite.seeds import generator_of

DIGEST_BYTES = 16
MAX_FRAME_BYTES = 512 << 20
READ = "cannot be read"
MEMORY_STEPS = 64  # how far apart receivers' steps may be


class Frame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An author's messages that at least one receiver accepted at one step."""

    step: int
    author: str
    messages: list[bytes]


class ReplayWriter:
    """Appends to `path` behind step `resume`; -1 begins anew. Raises StoreError if the frames to keep are damaged,
    DiskFullError, FencedError."""

    def __init__(self, path: Path, resume: int = -1) -> None:
        self.path = path
        self._digest = bytes(DIGEST_BYTES)
        self._recording = threading.Lock()
        self._written: dict[tuple[int, str], set[bytes]] = {}
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            end = 0
            if resume >= 0 and path.exists():
                end, self._digest = _find_resume(path, resume)

        def fill(new: Path) -> None:
            if end:
                shutil.copyfile(path, new)
            self._file = new.open("r+b" if end else "w+b")
            self._file.truncate(end)
            self._file.seek(end)
            os.fsync(self._file.fileno())

        replace_atomic(path, fill)  # a start of the cell that wakes up late writes on in the old file

    def record(self, step: int, author: str, messages: Sequence[bytes]) -> None:
        """Store what no other receiver has stored yet. Thread-safe."""
        with self._recording, disk_errors(self.path):
            self._written = {key: kept for key, kept in self._written.items() if key[0] > step - MEMORY_STEPS}
            written = self._written.setdefault((step, author), set())
            new = [message for message in messages if message not in written]
            if new:
                written.update(new)
                payload = msgspec.msgpack.encode(Frame(step, author, new))
                self._digest = _chain_digest(self._digest, payload)
                length = len(payload).to_bytes(4, "big")
                self._file.write(length + self._digest + payload)

    def flush(self) -> None:
        with disk_errors(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self.flush()
        self._file.close()


class ReplaySource:
    """A stored exchange. Raises StoreError if it is missing, altered or cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._spans: dict[tuple[int, str], list[tuple[int, int]]] = {}
        sizes = Counter[tuple[int, str]]()
        with disk_errors(path, READ), open_regular(path) as file:
            begin = 0
            for frame, end, _ in _read_frames(file, path):
                place = frame.step, frame.author
                self._spans.setdefault(place, []).append((begin, end))
                sizes[place] += len(frame.messages)
                begin = end
        self.most = max(sizes.values(), default=0)
        """Messages of one author at one step."""

    @property
    def authors(self) -> tuple[str, ...]:
        return tuple(sorted({author for _, author in self._spans}))

    def messages(self, step: int, author: str) -> list[bytes]:
        """Return what an author sent at a step. Raises StoreError."""
        stored: list[bytes] = []
        with disk_errors(self.path, READ), open_regular(self.path) as file:
            for begin, end in self._spans.get((step, author), []):
                file.seek(begin + 4 + DIGEST_BYTES)
                stored += _decode_frame(file.read(end - file.tell()), self.path).messages
        return stored

    def serve(self, exchange: Exchange, step: int, authors: Sequence[str], share: float = 1.0, seed: int = 0) -> None:
        """Send the step's messages in place of absent `authors`: a share of each one's, drawn by `seed`."""
        for author in authors:
            messages = self.messages(step, author)
            order = generator_of(seed, "replay", author, step).permutation(len(messages))  # (M,)
            count = int(share * len(messages) + 0.5)
            kept = sorted(order[:count])
            exchange.post(author, step, [messages[place] for place in kept])


def _find_resume(path: Path, step: int) -> tuple[int, bytes]:
    """Find where the frames up to a step end, in bytes, and the digest up to there. Raises StoreError."""
    end = 0
    digest = bytes(DIGEST_BYTES)
    with path.open("rb") as file:
        for frame, end_of_frame, digest_so_far in _read_frames(file, path):
            if frame.step > step:
                break
            end = end_of_frame
            digest = digest_so_far
    return end, digest


def _read_frames(file: BinaryIO, path: Path) -> Iterator[tuple[Frame, int, bytes]]:
    """Yield the frames of a recording, with the offset where each ends, and the digest so far."""
    size = os.fstat(file.fileno()).st_size
    digest = bytes(DIGEST_BYTES)
    offset = 0
    while offset < size:
        head = file.read(4 + DIGEST_BYTES)
        length = int.from_bytes(head[:4], "big")
        end = offset + 4 + DIGEST_BYTES + length
        if length > MAX_FRAME_BYTES or end > size:
            raise StoreError(f"{path}: cut off or altered at byte {offset}")
        payload = file.read(length)
        digest = _chain_digest(digest, payload)
        if digest != head[4:]:
            raise StoreError(f"{path}: altered at byte {offset}")
        yield _decode_frame(payload, path), end, digest
        offset = end


def _decode_frame(payload: bytes, path: Path) -> Frame:
    """Decode a frame. Raises StoreError for what is no frame."""
    try:
        return msgspec.msgpack.decode(payload, type=Frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{path}: not a stored exchange: {error}") from None


def _chain_digest(digest: bytes, payload: bytes) -> bytes:
    return blake2b(digest + payload, digest_size=DIGEST_BYTES).digest()
