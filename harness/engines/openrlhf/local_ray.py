"""One Ray cluster for all of a run's cells. Imports without Ray."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from harness.errors import EngineError

START_SECONDS = 120.0
END_SECONDS = 30.0


@contextmanager
def local_ray(address: str | None = None) -> Iterator[str]:
    """Give the address of a Ray cluster: `address` or `RAY_ADDRESS`, else that of an own cluster, in a process that ends when its
    stdin closes. Raises EngineError."""
    address = address or os.environ.get("RAY_ADDRESS")
    if address:
        yield address
        return
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "harness.engines.openrlhf.local_ray"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            said, _, _ = select.select([process.stdout], [], [], START_SECONDS)
            address = process.stdout.readline().decode().strip() if said else ""
            if not address:
                errors.seek(0)
                lines = errors.read()[-2000:].decode(errors="replace").splitlines() or ["it said nothing"]
                raise EngineError(f"Ray did not start within {START_SECONDS:g} s: {lines[-1][:300]}")
            yield address
        finally:
            with suppress(OSError):
                process.stdin.close()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def main() -> None:
    """Start a Ray cluster, print its address on stdout, and keep it until stdin closes."""
    for ignored in (signal.SIGINT, signal.SIGTERM):  # the run decides what they mean, and closes stdin
        signal.signal(ignored, signal.SIG_IGN)
    out = os.dup(1)
    os.dup2(2, 1)  # what Ray prints is not for the reader of the address
    import ray

    from harness.engines.openrlhf.cluster import connect_to_cluster

    connect_to_cluster()
    os.write(out, f"{ray.get_runtime_context().gcs_address}\n".encode())
    sys.stdin.read()
    ray.shutdown()


if __name__ == "__main__":
    main()
