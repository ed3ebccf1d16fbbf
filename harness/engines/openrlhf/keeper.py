"""One Ray cluster for all of a run's cells, so that Ray itself shares the devices out among them. Imports without Ray."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from harness.errors import EngineError

START_SECONDS = 120.0
END_SECONDS = 30.0


@contextmanager
def cluster(address: str | None = None) -> Iterator[str]:
    """Address of the cluster: that of `address` or of `RAY_ADDRESS`, else of one of our own, whatever else runs on this machine.

    A cluster of our own lives in a process that ends when its stdin closes, so it cannot outlive the run.

    Raises
    ------
    EngineError
        Ray does not start within its deadline.
    """
    if address := address or os.environ.get("RAY_ADDRESS"):
        yield address
        return
    with tempfile.TemporaryFile() as errors:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "harness.engines.openrlhf.cluster"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
        try:
            address = _address(keeper)
            if not address:
                errors.seek(0)
                lines = errors.read()[-2000:].decode(errors="replace").splitlines() or ["it said nothing"]
                raise EngineError(f"Ray did not start within {START_SECONDS:g} s: {lines[-1][:300]}")
            yield address
        finally:
            assert keeper.stdin is not None
            with suppress(OSError):
                keeper.stdin.close()
            try:
                keeper.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                keeper.kill()
                keeper.wait()


def _address(keeper: subprocess.Popen[bytes]) -> str:
    """What it prints as its only line; empty if it dies or the deadline passes first."""
    said: queue.Queue[str] = queue.Queue()
    assert keeper.stdout is not None
    listen = keeper.stdout.readline
    threading.Thread(target=lambda: said.put(listen().decode().strip()), daemon=True).start()
    with suppress(queue.Empty):
        return said.get(timeout=START_SECONDS)
    return ""
