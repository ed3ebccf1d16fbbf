"""What is computed from the store stays as long as the store does: kept beside it for whoever asks next.

A kept value is taken only where all that it was made from is what it is now: the store's state, the suite's own line, what was
asked, and the code that computes; nothing is kept where a statistic is not of our own code. Anything else in its place, torn or
foreign, is as good as nothing, and is written anew where it can be. So nothing is lost with these files, and nothing in them can
be out of date.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import msgspec

import harness
from harness.errors import DiskFullError, StoreError
from harness.files import write_atomic
from harness.reading import read_bytes
from harness.store.read import Snapshot
from harness.store.statistic import STATISTICS

KEPT = ".harness.*.kept"
"""Files beside the store."""
MAX_BYTES = 256 << 20
_DIGEST = 32
_OURS = "harness.store."

Value = TypeVar("Value")


def kept(
    snapshot: Snapshot, suite: str, name: str, kind: type[Value], make: Callable[[], Value], *asked: float | str
) -> Value:
    """What `make` finds in the snapshot on a suite, or found when the store was the same.

    Parameters
    ----------
    name
        Of what is found; with the suite it has one file, which holds what was asked last.
    kind
        A type that msgspec encodes and decodes to equal values.
    make
        Nothing but the snapshot, the suite and `asked` may decide what it returns.
    asked
        Its parameters.
    """
    if not (snapshot.state and all(s.of.__module__.startswith(_OURS) for s in STATISTICS.values())):
        return make()
    place = hashlib.blake2b(f"{suite}/{name}".encode(), digest_size=8).hexdigest()
    file = snapshot.path.with_name(KEPT.replace("*", place))
    line = snapshot.query(
        "SELECT md5(s::VARCHAR) AS line FROM (SELECT * EXCLUDE fingerprint FROM suites WHERE suite = ?) s", [suite]
    )
    key = _digest(msgspec.json.encode([_code(), snapshot.state, line["line"].to_pylist(), suite, name, asked]))
    data = _read(file, key)
    if data is None:
        data = msgspec.msgpack.encode(make())
        with suppress(DiskFullError, StoreError):  # the next one computes it again
            write_atomic(file, _digest(data, key) + data)
    return msgspec.msgpack.decode(data, type=kind)


def _read(file: Path, key: bytes) -> bytes | None:
    """None for what is not there, is of another key or is damaged."""
    with suppress(OSError):
        found = read_bytes(file, MAX_BYTES)
        if found[:_DIGEST] == _digest(found[_DIGEST:], key):
            return found[_DIGEST:]
    return None


def _digest(data: bytes, key: bytes = b"") -> bytes:
    return hashlib.blake2b(data, key=key, digest_size=_DIGEST).digest()


@lru_cache(maxsize=1)
def _code() -> str:
    """A digest of all that computes, the libraries by their versions."""
    libraries = [platform.python_version(), harness.__version__, *map(version, ("numpy", "scipy", "duckdb"))]
    found = hashlib.blake2b(repr(libraries).encode())
    for file in code_files():
        text = file.read_bytes()
        found.update(f"{file.name} {len(text)} ".encode() + text)
    return found.hexdigest()


def code_files() -> list[Path]:
    """The modules by which what is kept is computed."""
    root = Path(harness.__file__).parent
    return [root / "errors.py", *sorted(root.glob("statistics/*.py")), *sorted(root.glob("store/*.py"))]
