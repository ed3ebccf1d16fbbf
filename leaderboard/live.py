"""Keeps the page up to date while a suite runs, without hindering the run."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import streamlit as st

from harness.errors import HarnessError
from harness.store.ingest import ingest
from leaderboard.data import Store, open_store

_LOOK_EVERY = 5.0
"""Seconds between two looks of an open page."""
_SHARE = 0.05
"""At most this share of the time is spent on bringing the store up to date."""
_LEAVE_SECONDS = 5.0
"""How long a process that ends waits for a running refresh: DuckDB does not take it well to be cut off in its work."""


@dataclass(slots=True)
class _Refresher:
    """One per results folder and process: brings the store up to date in the background, never two at a time."""

    results: Path
    lock: threading.Lock = field(default_factory=threading.Lock)
    rest_until: float = 0.0

    def __post_init__(self) -> None:
        atexit.register(self.leave)

    def leave(self) -> None:
        """Begin nothing more, and let what runs come to its end."""
        self.rest_until = float("inf")
        self.lock.acquire(timeout=_LEAVE_SECONDS)

    def poke(self) -> None:
        if time.monotonic() >= self.rest_until and self.lock.acquire(blocking=False):
            threading.Thread(target=self._work, daemon=True).start()

    def work(self) -> None:
        """In the foreground, where there is no store to show yet."""
        with self.lock:
            self._ingest()

    def _work(self) -> None:
        try:
            self._ingest()
        finally:
            self.lock.release()

    def _ingest(self) -> None:
        started = time.monotonic()
        # another writer at work, or a results folder that cannot be written: readers keep what they have
        with contextlib.suppress(HarnessError):
            ingest(self.results, deadline=0.0)
        spent = time.monotonic() - started
        self.rest_until = max(self.rest_until, time.monotonic() + max(_LOOK_EVERY, spent / _SHARE))


@st.cache_resource(max_entries=8, show_spinner=False)
def refresher(results: str) -> _Refresher:
    """The process's one refresher of a results folder."""
    return _Refresher(Path(results))


@st.fragment(run_every=_LOOK_EVERY)
def live_status(results: Path, store: Store, suite: str | None) -> None:
    """How many cells of the suite are done and running; draws the page anew when the store has changed."""
    refresher(str(results)).poke()
    if open_store(results).stamp != store.stamp:
        st.rerun()
    if suite is None:
        return
    st.caption(f"Cells: {store.states(suite)}")
