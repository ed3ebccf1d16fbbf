"""What this process does and how far it is, for logs and heartbeats (docs/recovery.md)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

log = logging.getLogger("harness")


class Interrupted(Exception):
    """Asked to stop; what is finished is kept."""


@dataclass(slots=True)
class RunningPhase:
    """total: of its counts; 1 for a share, 0 where nothing is counted."""

    name: str
    total: float = 0.0
    quiet: bool = False
    done: float = 0.0
    inner: str = ""

    def count(self, done: float) -> None:
        """So much of `total`; counts as progress."""
        self.done = done
        self.inner = ""
        report_progress()

    def __str__(self) -> str:
        inner = f" ({self.inner})" if self.inner else ""
        if not self.total:
            return self.name + inner
        share = f"{self.done:.0%}" if self.total <= 1 else f"{self.done:,.0f}/{self.total:,.0f}"
        return f"{self.name} {share}{inner}"


class _Board:
    def __init__(self) -> None:
        self.beats = 0
        self.running: dict[int, list[RunningPhase]] = {}
        self.stopped: Callable[[], bool] = bool  # no request to stop


_board = _Board()


@contextmanager
def announce_phase(name: str, total: float = 0.0, *, quiet: bool = False) -> Iterator[RunningPhase]:
    """Announce a phase of the calling thread. quiet: logged at DEBUG, shown only while nothing runs inside it."""
    level = logging.DEBUG if quiet else logging.INFO
    thread = threading.get_ident()
    began = time.monotonic()
    now = RunningPhase(name, total, quiet)
    _board.running.setdefault(thread, []).append(now)
    report_progress()
    log.log(level, "%s", name)
    how = "broken off after"
    try:
        yield now
        how = "took"
    finally:
        _board.running[thread].pop()
        if not _board.running[thread]:
            _board.running.pop(thread)
        report_progress()
        log.log(level, "%s: %s %.1f s", name, how, time.monotonic() - began)


def show_inside_phase(words: str) -> None:
    """Progress of the thread's innermost phase between counts, e.g. ``token 13/44``."""
    stack = _board.running.get(threading.get_ident())
    if stack:
        stack[-1].inner = words
    report_progress()


def report_progress() -> None:
    """Note progress without a count."""
    _board.beats += 1


def progress_count() -> int:
    return _board.beats


def describe_phases() -> str:
    """Running phases of all threads, e.g. ``evaluating a: micro 120/240``."""
    stacks = [list(stack) for stack in list(_board.running.values())]
    shown = [": ".join(str(p) for i, p in enumerate(s) if not p.quiet or i == len(s) - 1) for s in stacks]
    return "; ".join(dict.fromkeys(filter(None, shown)))


def set_stop_check(stopped: Callable[[], bool]) -> None:
    """`stop_if_asked` raises once `stopped` says so."""
    _board.stopped = stopped


def stop_if_asked() -> None:
    """Work that the next start repeats may end here. Raises Interrupted if asked to."""
    if _board.stopped():
        raise Interrupted
