"""Limits of this process: threads, garbage collection, and memory for what it did not make."""

from __future__ import annotations

import atexit
import gc
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ONE_THREAD = {
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "0",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Cells share the machine by processes; OpenMP threads that spin against each other cost up to fifty times the CPU."""
LARGE_BLOCKS = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
"""For worker processes: glibc keeps freed tensors instead of returning their pages, 13 to 29 % fewer CPU-seconds in stage 0."""
GROUPS = Path("/sys/fs/cgroup")
GROUP = Path("/proc/self/cgroup")
UNUSED = ("pandas", "scipy", "sklearn")
"""What transformers takes along where it is installed, and no model uses."""

atexit.register(gc.unfreeze)  # DuckDB tells of every object that is frozen at the end


def count_cores() -> int:
    """That this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _control_groups():
        with suppress(OSError, ValueError):  # the other: no limit
            quota, period = map(int, (group / "cpu.max").read_text("ascii").split())
            allowed = max(1, min(allowed, -(-quota // period)))
    return allowed


def available_memory() -> int:
    """Bytes of memory that this process may still have."""
    import psutil

    left = int(psutil.virtual_memory().available)
    for group in _control_groups():
        with suppress(OSError, ValueError):
            limit, used = (int((group / f"memory.{name}").read_text("ascii")) for name in ("max", "current"))
            stat = dict(line.split() for line in (group / "memory.stat").read_text("ascii").splitlines())
            left = max(0, min(left, limit - used + int(stat.get("inactive_file", 0))))
    return left


def _control_groups() -> list[Path]:
    """Control groups (Linux, version 2) around this process."""
    with suppress(OSError):
        own = GROUPS / GROUP.read_text().rpartition("0::")[2].strip().lstrip("/")
        return [folder for folder in (own, *own.parents) if folder.is_relative_to(GROUPS)]
    return []


def use_one_thread() -> None:
    """One thread, where nothing else is set; before torch is imported."""
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)


def collect_garbage_seldom() -> None:
    """Search for garbage after 100,000 new objects, not after 700: a command reads tables into as many, and nearly all are kept.

    Each search goes through what is kept: a table of 10,000 cells took an eighth longer.
    """
    gc.set_threshold(100_000, 50, 100)


@contextmanager
def without_collection(*hidden: str) -> Iterator[None]:
    """No garbage collection: of thousands of modules little is garbage, and the search for it takes up to a quarter of the time.
    hidden: packages that are not found meanwhile."""
    absent = [name for name in hidden if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None: not to be found
    gc.disable()
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
        gc.freeze()
        gc.enable()


class _WithoutPandas:
    """Finder of modules by which pandas is not there."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        """Find nothing. Raises ModuleNotFoundError for pandas."""
        if name == "pandas":
            raise ModuleNotFoundError(name)


def keep_arrow_from_pandas() -> None:
    """Let Arrow, where it is in use and pandas is not, find no pandas: it looks once, when a first list becomes an array, and
    imports it, a fifth of the time of a short command. `to_pandas` still makes a data frame. Not for the board: afterwards Arrow
    takes a pandas Series for any other sequence."""
    arrow = sys.modules.get("pyarrow")
    if arrow is None or "pandas" in sys.modules:
        return
    finder: Any = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        arrow.array([])
    finally:
        sys.meta_path.remove(finder)


@contextmanager
def every_core() -> Iterator[None]:
    """For a command that computes alone: torch's threads on all cores that this process may use."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count_cores())
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def limit_memory(more: int) -> Iterator[None]:
    """So many more bytes may be had; the system refuses the rest. Counts private writable pages (Linux; elsewhere the
    address space)."""
    kind = resource.RLIMIT_DATA
    now = 0
    with suppress(OSError):
        status = Path("/proc/self/status").read_text("ascii").splitlines()
        now = 1024 * sum(int(line.split()[1]) for line in status if line.startswith("VmData:"))
    if not now:
        import psutil

        kind = resource.RLIMIT_AS
        now = psutil.Process().memory_info().vms
    soft, hard = resource.getrlimit(kind)
    limits = [limit for limit in (soft, now + more) if limit != resource.RLIM_INFINITY]
    with suppress(ValueError, OSError):  # a system that knows no such limit
        resource.setrlimit(kind, (min(limits), hard))
    try:
        yield
    finally:
        with suppress(ValueError, OSError):
            resource.setrlimit(kind, (soft, hard))
