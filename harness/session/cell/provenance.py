"""Where a result came from: commit, packages, machine. Imports without torch."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata, resources
from pathlib import Path

import psutil

import harness
from harness.allocation.inventory import visible
from harness.engines import catalogue
from harness.session.cell.processor import processor
from harness.store.manifest import Provenance
from harness.suite.cells import digest

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "lm-eval", "math-verify", "sympy", "datasets", "duckdb")
"""Recorded besides those of the engines."""
ENVIRONMENT = (
    "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED", "TOKENIZERS_PARALLELISM", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND",
)  # fmt: skip
"""Variables that are recorded: what decides threads and devices. Nothing else of the environment is written anywhere, for tokens
and passwords stand there."""
_LONGEST = 100


def stamp(versions: Mapping[str, str], started: str, finished: str = "") -> Provenance:
    """The provenance of a cell that runs here and now. versions: results versions of what computes it."""
    commit, dirty = _commit()
    return Provenance(
        code_version=f"{harness.__version__}+{digest(dict(versions))[:12]}",
        commit=commit,
        dirty=dirty,
        packages=packages(),
        machine=_machine(),
        environment={name: os.environ[name][:_LONGEST] for name in ENVIRONMENT if name in os.environ},
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
def packages() -> dict[str, str]:
    """Versions of the installed libraries that results depend on."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {**found, **catalogue.packages()}


@functools.cache
def _machine() -> dict[str, str]:
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1),
        "memory_gib": f"{psutil.virtual_memory().total / 2**30:.0f}",
        **({"gpu": ", ".join(kinds)} if (kinds := sorted({card.kind for card in visible()})) else {}),
    }
