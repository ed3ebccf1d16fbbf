"""A ceiling on this process's memory while it handles what it did not make."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil


@contextmanager
def memory(more: int) -> Iterator[None]:
    """So many bytes may be had beyond what the process has now; the operating system refuses the rest (MemoryError, or a library's
    own error). Counted are its private writable pages, not files mapped in (Linux; elsewhere the address space)."""
    kind, now = resource.RLIMIT_DATA, _private()
    if not now:
        kind, now = resource.RLIMIT_AS, psutil.Process().memory_info().vms
    soft, hard = resource.getrlimit(kind)
    limits = [limit for limit in (soft, now + more) if limit != resource.RLIM_INFINITY]
    with suppress(ValueError, OSError):  # a system that knows no such limit
        resource.setrlimit(kind, (min(limits), hard))
    try:
        yield
    finally:
        with suppress(ValueError, OSError):
            resource.setrlimit(kind, (soft, hard))


def _private() -> int:
    """Bytes that count for RLIMIT_DATA; 0 where nobody says."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text("ascii").splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0
