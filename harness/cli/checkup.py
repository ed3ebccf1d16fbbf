"""What `harness doctor` looks at. Imports neither torch nor an engine into this process."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from harness.allocation.inventory import VISIBLE, visible
from harness.allocation.shapes import EMULATED, cpu_bf16
from harness.cache import cache_folder
from harness.clusters.nodes import Check, check
from harness.engines import catalogue
from harness.errors import StoreError
from harness.learning import registry
from harness.store.database import kind_of_mount, store_path
from harness.suite.schema import Suite
from harness.tasks.data import folder_in_use, inventory

GIB = 2**30
DEFAULT_ENGINE = Suite.model_fields["engine"].default


def examine(results: Path) -> Iterator[Check]:
    """All checks of this machine, in seconds."""
    yield check("python", sys.version_info >= (3, 11), platform.python_version(), "3.11 or newer", needed=True)
    memory = psutil.virtual_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = f"{cores} cores, {memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    yield check("machine", memory.available > 1.5 * GIB, found, "a micro cell needs about 1 GiB", needed=True)
    name = cpu_bf16()
    found = f"{name}: pretrained policies in bf16, fp32 masters" if name else "emulated here"
    yield check("bf16", name, found, f"a CPU without AMX or AVX512-BF16: {EMULATED}")
    free = shutil.disk_usage(Path.cwd()).free
    yield check("disk", free > 2 * GIB, f"{free / GIB:.1f} GiB free here", "the quickstart needs about 1 GiB")
    yield _store(results)
    yield _gpu()
    for e in catalogue.listing():
        needed = e.name == DEFAULT_ENGINE
        yield Check(f"engine {e.name}", e.available, e.version or "not installed", e.missing, needed=needed)
    regimes = registry.listing()
    broken = [f"{r.name}: {r.error}" for r in regimes if r.error]
    yield check("regimes", not broken, f"{len(regimes) - len(broken)} load", "; ".join(broken))
    folder = cache_folder()
    writable = os.access(next(p for p in (folder, *folder.parents) if p.exists()), os.W_OK)
    yield check("cache", writable, str(folder), "set HARNESS_CACHE to a folder that can be written", needed=True)
    yield _data()
    there = all(importlib.util.find_spec(p) is not None for p in ("streamlit", "altair"))
    advice = "pip install -e '.[leaderboard]' -c constraints.txt"
    yield check("leaderboard", there, "installed" if there else "not installed", advice)


def _store(results: Path) -> Check:
    """Where the tables of these results are kept, and why there."""
    try:
        place = store_path(results)
    except StoreError as error:
        return Check("store", False, str(error), "needed by `harness show` and the leaderboard")
    why = "local" if place.parent == results else "its store is this machine's own"
    return Check("store", True, f"{results} on {kind_of_mount(results) or 'an unknown file system'}, {why}: {place}")


def _gpu() -> Check:
    found = "; ".join(f"{card.name}: {card.kind} of {card.memory / 1e9:.0f} GB" for card in visible())
    chosen = f" that {VISIBLE}={os.environ[VISIBLE]!r} leaves" if VISIBLE in os.environ else ""
    return check("gpu", found, found or f"none{chosen}", "not needed: micro models train on the CPU")


def _data() -> Check:
    sets = inventory()
    states = [one.state for one in sets]
    found = f"{states.count('present')} of {len(sets)} sets in {folder_in_use(None) or cache_folder()}"
    if altered := [one.name for one in sets if one.state == "altered"]:
        found += f", altered: {', '.join(altered)}"
    advice = "the rest is fetched when first used; without a network set HARNESS_DATA to a folder of JSONL files"
    return check("benchmark data", {*states} == {"present"}, found, advice)
