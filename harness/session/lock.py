"""One run at a time per results/<suite>: a lock that dies with the process that holds it, so that it also tells who is alive."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import UsageError

LOCK = ".lock"
PATIENCE_SECONDS = 2.0
"""Whoever asks whether it is held holds it for a moment."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of results/<suite>. Raises UsageError where another run does."""
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + PATIENCE_SECONDS
    with (folder / LOCK).open("w") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= end:
                    raise UsageError(f"{folder}: another `harness run` is writing these results") from None
                time.sleep(0.1)
        yield


def held(folder: Path) -> bool:
    """Whether a run is going on in results/<suite>."""
    try:
        with (folder / LOCK).open() as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
