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
from harness.clusters.nodes import Check
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
    ok = sys.version_info >= (3, 11)
    yield Check("python", ok, platform.python_version(), "" if ok else "3.11 or newer", needed=True)
    memory = psutil.virtual_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ok = memory.available > 1.5 * GIB
    found = f"{cores} cores, {memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    yield Check("machine", ok, found, "" if ok else "a micro cell needs about 1 GiB", needed=True)
    name = cpu_bf16()
    found = f"{name}: pretrained policies in bf16, fp32 masters" if name else "emulated here"
    yield Check("bf16", bool(name), found, "" if name else f"a CPU without AMX or AVX512-BF16: {EMULATED}")
    free = shutil.disk_usage(Path.cwd()).free
    ok = free > 2 * GIB
    yield Check("disk", ok, f"{free / GIB:.1f} GiB free here", "" if ok else "the quickstart needs about 1 GiB")
    yield _store(results)
    yield _gpu()
    for e in catalogue.listing():
        found, needed = e.version or "not installed", e.name == DEFAULT_ENGINE
        yield Check(f"engine {e.name}", e.available, found, e.missing, needed=needed)
    regimes = registry.listing()
    broken = [f"{r.name}: {r.error}" for r in regimes if r.error]
    yield Check("regimes", not broken, f"{len(regimes) - len(broken)} load", "; ".join(broken))
    folder = cache_folder()
    ok = os.access(next(p for p in (folder, *folder.parents) if p.exists()), os.W_OK)
    advice = "" if ok else "set HARNESS_CACHE to a folder that can be written"
    yield Check("cache", ok, str(folder), advice, needed=True)
    yield _data()
    ok = all(importlib.util.find_spec(p) is not None for p in ("streamlit", "altair"))
    advice = "" if ok else "pip install -e '.[leaderboard]' -c constraints.txt"
    yield Check("leaderboard", ok, "installed" if ok else "not installed", advice)


def _store(results: Path) -> Check:
    """Where the tables of these results are kept, and why there."""
    kind = kind_of_mount(results) or "an unknown file system"
    try:
        place = store_path(results)
    except StoreError as error:
        return Check("store", False, str(error), "needed by `harness show` and the leaderboard")
    why = "local" if place.parent == results else "its store is this machine's own"
    return Check("store", True, f"{results} on {kind}, {why}: {place}")


def _gpu() -> Check:
    found = "; ".join(f"{card.name}: {card.kind} of {card.memory / 1e9:.0f} GB" for card in visible())
    chosen = f" that {VISIBLE}={os.environ[VISIBLE]!r} leaves" if VISIBLE in os.environ else ""
    return Check(
        "gpu", bool(found), found or f"none{chosen}", "" if found else "not needed: micro models train on the CPU"
    )


def _data() -> Check:
    sets = inventory()
    present = sum(one.state == "present" for one in sets)
    altered = [one.name for one in sets if one.state == "altered"]
    found = f"{present} of {len(sets)} sets in {folder_in_use(None) or cache_folder()}"
    found += f", altered: {', '.join(altered)}" if altered else ""
    advice = "the rest is fetched when first used; without a network set HARNESS_DATA to a folder of JSONL files"
    return Check("benchmark data", present == len(sets), found, "" if present == len(sets) else advice)
