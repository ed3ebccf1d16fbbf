"""results/<suite>/<cell>/log, of the newest attempt; `log.1`, ... are earlier."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.reading import open_regular

LOG = "log"
EARLIER_LOGS = 3
# Bytes; a longer log keeps its beginning and end
LIMIT = 4 << 20
_HEAD = 256 << 10


def log_of(folder: Path, earlier: int = 0) -> Path:
    return folder / (f"{LOG}.{earlier}" if earlier else LOG)


@contextmanager
def log_output(folder: Path) -> Iterator[Path]:
    """Open a new log, to which stdout and stderr go meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    for earlier in range(EARLIER_LOGS, 0, -1):
        with suppress(FileNotFoundError):
            os.replace(log_of(folder, earlier - 1), log_of(folder, earlier))
    before = [(stream, os.dup(stream)) for stream in (1, 2)]
    file = os.open(log_of(folder), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    for stream, _ in before:
        os.dup2(file, stream)
    os.close(file)
    try:
        yield log_of(folder)
    finally:
        with suppress(OSError):  # the disk may be full
            sys.stderr.flush()
        for stream, old in before:
            os.dup2(old, stream)
            os.close(old)


def trim_log(log: Path) -> None:
    """Cut the middle out; writers append."""
    with suppress(OSError):
        if log.stat().st_size <= LIMIT:
            return
        with log.open("r+b") as file:
            head = file.read(_HEAD).rpartition(b"\n")[0]
            file.seek(-LIMIT // 2, os.SEEK_END)
            tail = file.read().partition(b"\n")[2]
            file.seek(0)
            file.write(head + b"\n... cut: this log was over its limit ...\n" + tail)
            file.truncate()


def append_note(folder: Path, text: str) -> None:
    with suppress(OSError), log_of(folder).open("a", encoding="utf-8") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} DRIVER  {text}\n")


def read_tail(log: Path, lines: int) -> list[str]:
    """Read the last lines of a log, of at most 1 MiB; empty where there is no log."""
    try:
        with open_regular(log) as file:
            file.seek(max(0, log.stat().st_size - (1 << 20)))
            if lines:
                return file.read().decode(errors="replace").splitlines()[-lines:]
            return []
    except OSError:
        return []
