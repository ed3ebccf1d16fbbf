"""Fixtures for all tests; threads that spin against each other would make them up to fifty times slower."""

from __future__ import annotations

import fcntl
import gc
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from zlib import crc32

import pytest

from harness.limits import UNUSED, count_cores, without_collection

LONGEST = (
    "cli/test_commands",
    "session/test_cells",
    "portable/test_digests",
    "session/test_resume",
    "leaderboard/test_first_screen",
    "verification/test_battery",
)
"""Files that begin first: those after them find what two of these train for all, and no worker ends long after the others."""

for name, value in (
    ("OMP_NUM_THREADS", "1"),
    ("OMP_WAIT_POLICY", "passive"),
    ("GOMP_SPINCOUNT", "0"),
    ("HF_HUB_OFFLINE", "1"),
    ("HARNESS_MODELS", tempfile.gettempdir()),
):
    os.environ[name] = value


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="1/1", help="2/4: the second of four parts into which the tests are divided.")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    if "PYTEST_XDIST_WORKER" in os.environ or not session.config.getoption("numprocesses"):  # else workers collect
        with without_collection(*UNUSED):
            import harness.session.cell.cell  # noqa: F401  so that no test file loads it slowly
    with without_collection():
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Return one worker more than cores, as tests wait for processes and deadlines; None where the environment says how many."""
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else count_cores() + 1


def pytest_unconfigure() -> None:
    gc.unfreeze()
    gc.collect()  # else DuckDB tells of leaks


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("slow_but"):
            if not any(part in item.name.partition("[")[2] for part in mark.args):
                item.add_marker("slow")
    part, parts = map(int, config.getoption("--part").split("/"))
    of_part: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        of_part[crc32(item.nodeid.encode()) % parts == part - 1].append(item)
    config.hook.pytest_deselected(items=of_part[False])
    order = {f"tests/{name}.py": place for place, name in enumerate(LONGEST)}
    items[:] = sorted(of_part[True], key=lambda item: order.get(item.location[0], len(order)))


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


LAB = """
title: A lab's own suite
groups:
  - name: llama-qwen
    policies:
      - {name: llama, model: micro/llama, stage0: {preset: trap, strong: add}}
      - {name: qwen, model: micro/qwen, stage0: {preset: trap, strong: mul}}
regimes:
  - independent
  - {regime: independent, name: independent-aa, sampling_stream: 1}
  - sgt
seeds: [1, 2, 3]
training: {steps: 2, prompts: 6, checkpoint_every: 2, measure_every: 2}
evaluation: {k: 2, limit: 24, curve_every: 2, curve_prompts: 12}
"""


@pytest.fixture(scope="session")
def lab(shared: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """labs.yaml and its results: micro models trained for two steps by `harness run`, with an A/A control and three seeds."""

    from running import SECRETS, harness

    def make(root: Path) -> None:
        (root / "labs.yaml").write_text(LAB)
        code, _, err = harness("run", root / "labs.yaml", "--results", root / "results", "--jobs", 1, env=SECRETS)
        assert code == 0, err
        assert harness("show", "labs", "--results", root / "results")[0] == 0, "its store is made, too"

    return shared("lab", make)


@pytest.fixture(scope="session")
def verifier() -> Iterator[object]:
    from harness.verification.verifier import Verifier

    with Verifier(workers=2) as started:
        yield started


@pytest.fixture(scope="session")
def untrained(shared: Callable[[str, Callable[[Path], object]], Path]) -> Callable[[str], Path]:
    """The folder of a micro family's model as it begins."""
    from harness.engines.embedded.families import build_model, build_tokenizer

    def make(family: str, folder: Path) -> None:
        tokenizer = build_tokenizer(family)
        build_model(family, 7, tokenizer).save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return lambda family: shared(f"untrained-{family}", partial(make, family))


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
