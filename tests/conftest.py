"""Set before torch is imported anywhere: threads that spin against each other make tests up to fifty times slower."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

for name, value in (
    ("OMP_NUM_THREADS", "1"),
    ("OMP_WAIT_POLICY", "passive"),
    ("GOMP_SPINCOUNT", "0"),
    ("HF_HUB_OFFLINE", "1"),
    ("HARNESS_MODELS", tempfile.gettempdir()),
):
    os.environ[name] = value


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The cases that `slow_but` does not name are slow."""
    for item in items:
        for mark in item.iter_markers("slow_but"):
            if not any(part in item.name.partition("[")[2] for part in mark.args):
                item.add_marker("slow")


@pytest.fixture(autouse=True)
def _own_main() -> Iterator[None]:
    """A page that is drawn in a test leaves itself as the main module, which a process spawned later would run."""
    own = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = own


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Makes a folder of this name once for all workers of the run; nobody writes into it afterwards."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def get(name: str, make: Callable[[Path], object]) -> Path:
        place, made = root / name, root / f"{name}.made"
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                place.mkdir()
                make(place)
                made.touch()
        return place

    return get


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts an `nvidia-smi` on the path that knows so many GPUs of a name and size (MiB), and of each its MIG parts' profiles.

    Their UUIDs are GPU-0a, GPU-1a, ... and MIG-0a0, MIG-0a1, ...
    """

    def put(count: int, name: str = "NVIDIA H100 80GB HBM3", size: int = 81559, parts: tuple[str, ...] = ()) -> Path:
        mode = "Enabled" if parts else "Disabled"
        rows, listed = [], []
        for i in range(count):
            rows.append(f"{name}, {size}, {mode}")
            listed.append(f"GPU {i}: {name} (UUID: GPU-{i}a)")
            listed += [f"  MIG {part}     Device  {k}: (UUID: MIG-{i}a{k})" for k, part in enumerate(parts)]
        table, names = "\n".join(rows), "\n".join(listed)
        folder = tmp_path / "driver"
        folder.mkdir(exist_ok=True)
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\n[ $1 = -L ] && echo '{names}' || echo '{table}'\n")
        (folder / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return folder

    return put
