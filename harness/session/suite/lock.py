"""Who writes which cells of results/<suite>: one writer per cell, also over file systems without locks.

A run lays a claim, `results/<suite>/.runs/<name>.json`: where it runs, and the keys of its cells. Claims need an atomic rename and
file times, nothing else, so they hold where `flock` is refused, or known to one machine only; a lock on a file (`harness.locks`,
or the library filelock) holds in neither case. Two runs whose keys are disjoint, such as two shards, go on side by side.

Whether a claim's holder lives is asked of the system where it is the same one, and is then exact. Of another machine it is told
by the claim's time, which the holder renews every BEAT_SECONDS: without renewal for LEASE_SECONDS it is dead. A holder that was
stopped for longer finds its claim gone when it wakes up, and gives up.
"""

from __future__ import annotations

import os
import platform
import secrets
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import psutil

from harness.errors import UsageError
from harness.files import write_atomic

RUNS = ".runs"
PATIENCE_SECONDS = 2.0
"""For a run that is just ending, or one that began at the same moment and steps back."""
BEAT_SECONDS = 10.0
LEASE_SECONDS = 90.0
_LOOK_SECONDS = 0.1


class Claim(msgspec.Struct, frozen=True):
    """A run and the keys of what it writes. system: a boot of a machine and a space of process ids in it; born: when the process
    started, in the system's own count."""

    host: str
    system: str
    pid: int
    born: str
    keys: tuple[str, ...]


class Held:
    """A claim that is ours."""

    def __init__(self, file: Path) -> None:
        self._file, self._lost, self._ended = file, threading.Event(), threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def lost(self) -> bool:
        """Whether others took us for dead: nothing may be written any more."""
        return self._lost.is_set()

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                os.utime(self._file)
            except FileNotFoundError:
                self._lost.set()
                return
            except OSError:
                continue  # the file system does not answer: in time, or others will have taken over

    def end(self) -> None:
        self._ended.set()
        self._file.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path, keys: Collection[str]) -> Iterator[Held]:
    """Be the one writer of `keys` in results/<suite>.

    Raises UsageError where a living run has some of them; a claim from another machine is watched for at most LEASE_SECONDS.
    """
    mine = folder / RUNS / f"{time.time_ns():020d}-{secrets.token_hex(4)}.json"
    try:
        _alone(mine, Claim(platform.node(), _system(), os.getpid(), _born(os.getpid()), tuple(sorted(keys))))
        held = Held(mine)
    except BaseException:
        mine.unlink(missing_ok=True)
        raise
    try:
        yield held
    finally:
        held.end()


def holding(folder: Path) -> set[str]:
    """The keys that living runs write."""
    now = time.time()
    return {key for _, claim, renewed in _claims(folder) if _lives(claim, now - renewed) for key in claim.keys}


def _alone(mine: Path, claim: Claim) -> None:
    """Lay the claim and wait until no living run has its keys.

    Of two that come at once each sees the other: the one of the higher name steps back, and claims nothing meanwhile.
    """
    end, seen, laid = time.monotonic() + PATIENCE_SECONDS, dict[Path, float](), True
    write_atomic(mine, msgspec.json.encode(claim))
    while True:
        os.utime(mine)
        now = _renewed(mine)  # the file system's own clock: those of the machines may differ
        rivals = []
        for file, other, renewed in _claims(mine.parent.parent):
            if file == mine or not {*other.keys} & {*claim.keys}:
                continue
            if not _lives(other, now - renewed):
                file.unlink(missing_ok=True)
                continue
            rivals.append(file)
            if time.monotonic() >= end and (other.system == claim.system or renewed > seen.get(file, renewed)):
                who = f"process {other.pid} on {other.host}"
                raise UsageError(f"{mine.parent.parent}: another `harness run` is writing these results ({who})")
            if file not in seen and other.system != claim.system:
                words = f"last sign of life of a run on {other.host} {now - renewed:.0f} s ago: waiting to see whether it lives"
                print(f"{mine.parent.parent}: {words}", file=sys.stderr)
            seen.setdefault(file, renewed)
        if laid and not rivals:
            return
        if (back := any(file < mine for file in rivals)) is laid:
            write_atomic(mine, msgspec.json.encode(msgspec.structs.replace(claim, keys=() if back else claim.keys)))
            laid = not back
        if back or (laid and rivals):
            time.sleep(_LOOK_SECONDS)


def _claims(folder: Path) -> list[tuple[Path, Claim, float]]:
    """All claims, with the time of their last renewal."""
    found = []
    for file in sorted((folder / RUNS).glob("*.json")):
        with suppress(OSError, msgspec.MsgspecError):  # it has just ended, or is no claim
            found.append((file, msgspec.json.decode(file.read_bytes(), type=Claim), _renewed(file)))
    return found


def _renewed(file: Path) -> float:
    """Opened first: network file systems ask the server about a file's times then, and otherwise remember them."""
    with file.open("rb") as handle:
        return os.fstat(handle.fileno()).st_mtime


def _lives(claim: Claim, age: float) -> bool:
    if claim.system == _system():
        return _born(claim.pid) == claim.born
    return age < LEASE_SECONDS


def _system() -> str:
    """What process ids belong to: this boot of the machine, and the name space of processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{platform.node()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def _born(pid: int) -> str:
    """When a process started, which tells it from a later one of the same number; empty where there is none."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    except OSError:
        with suppress(psutil.Error):
            return "" if Path("/proc/self/stat").exists() else f"{psutil.Process(pid).create_time():.0f}"
    return ""
