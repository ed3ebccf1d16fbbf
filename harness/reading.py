"""Reading what others made: regular files of a stated size, UTF-8 without control characters; never waits on pipes and devices.
Faults are OSErrors with a short `strerror`."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from pathlib import Path

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that no text of ours needs and terminals obey; line feeds and tabs are none of them."""


def open_regular(path: Path | str) -> io.BufferedReader:
    """Opened for reading. Raises OSError for anything else."""
    try:
        return io.BufferedReader(io.FileIO(path, opener=_open_regular))
    except ValueError:  # a NUL in the name
        raise OSError(errno.EINVAL, "no file has such a name", str(path)) from None


def _open_regular(path: str, flags: int) -> int:
    """The kind is checked before and after opening, which some devices take for an order."""
    _check_kind(os.stat(path).st_mode, path)
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _check_kind(os.fstat(handle).st_mode, path)
    except OSError:
        os.close(handle)
        raise
    return handle


def _check_kind(mode: int, path: str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a directory", path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", path)


def read_bytes(path: Path | str, limit: int) -> bytes:
    """At most `limit` bytes. Raises OSError."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(size + 1) if size <= limit else b""
        if data and len(data) > size:  # it grows, or states no size (/proc)
            data += file.read(limit + 1 - len(data)) or b""
    if data is None:
        raise OSError(errno.EINVAL, "a file that one would have to wait for", str(path))
    if max(size, len(data)) > limit:
        raise OSError(errno.EINVAL, f"larger than {limit:,} bytes", str(path))
    return data


def read_text(path: Path, limit: int) -> str:
    """As text, without carriage returns. Raises OSError."""
    try:
        return as_text(read_bytes(path, limit))
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), str(path)) from None


def in_words(error: OSError) -> str:
    words = error.strerror or str(error)
    return words[:1].lower() + words[1:]


def as_text(data: bytes) -> str:
    """Raises ValueError naming line and column."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not a text file (invalid UTF-8{_place_in(data[: error.start].decode('utf-8'))})") from None
    text = text.replace("\r\n", "\n")
    control = CONTROLS.search(text)
    if control:
        raise ValueError(f"not a text file (the control character {control[0]!a}{_place_in(text[: control.start()])})")
    return text


def _place_in(before: str) -> str:
    return f", line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"
