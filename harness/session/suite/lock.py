"""Who writes which cells of results/<suite>: one run a cell, also over file systems without locks.

A run lays a claim, `results/<suite>/.runs/<name>.json`: where it runs, and the keys of its cells. Two runs whose keys are
disjoint, such as two shards, go on side by side. Claims need an atomic rename and file times, nothing else. Whether a claim's
holder lives is asked of the system where it is the same one, and is then exact; of another machine it is told by the claim's
time, which the holder renews every BEAT_SECONDS: without renewal for LEASE_SECONDS it is dead, and its claim is removed.

Every process of a run makes its changes of a cell (a rename, a removal) under a shared lock on the claim's file, after it has
seen that the file is still there; whoever removes a claim has that lock alone. So a worker that was stopped, or has lost its
driver, changes nothing once its cell was given to another. Where the file system knows no locks the file is looked for all the
same, and a process that was stopped between that look and its change is the one case that remains.
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

from harness.errors import FencedError, UsageError
from harness.files import disk_errors, lock, write_atomic

RUNS = ".runs"
PATIENCE_SECONDS = 2.0
"""For a run that is just ending, or one that began at the same moment and steps back."""
CHANGE_SECONDS = 30.0
"""For a change of a cell that is being made; one takes longer only if its process was stopped just then."""
BEAT_SECONDS = 10.0
LEASE_SECONDS = 90.0
_LOOK_SECONDS = 0.1


class Holder(msgspec.Struct, frozen=True):
    """A run and the keys of what it writes. system: a boot of a machine and a space of process ids in it; born: when the process
    started, in the system's own count."""

    host: str
    system: str
    pid: int
    born: str
    keys: tuple[str, ...]

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def lives(self, age: float) -> bool:
        """age: seconds since its claim was renewed."""
        return _born(self.pid) == self.born if self.system == _system() else age < LEASE_SECONDS


class Claim:
    """One that is ours, renewed until it ends."""

    def __init__(self, file: Path) -> None:
        self.file, self._ended = file, threading.Event()
        threading.Thread(target=self._renew, daemon=True).start()

    def lost(self) -> bool:
        """Whether others took us for dead: nothing may be written any more."""
        return not self.file.exists()

    def _renew(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with suppress(OSError):  # the file system does not answer, or others have taken over
                os.utime(self.file)

    def end(self) -> None:
        self._ended.set()
        self.file.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path, keys: Collection[str]) -> Iterator[Claim]:
    """Be the one writer of `keys` in results/<suite>.

    Raises UsageError where a living run has some of them; a claim from another machine is watched for at most LEASE_SECONDS.
    """
    mine = folder / RUNS / f"{time.time_ns():020d}-{secrets.token_hex(4)}.json"
    try:
        _lay(mine, Holder(platform.node(), _system(), os.getpid(), _born(os.getpid()), tuple(sorted(keys))))
        claim = Claim(mine)
    except BaseException:
        mine.unlink(missing_ok=True)
        raise
    try:
        yield claim
    finally:
        claim.end()


@contextmanager
def held(claim: Path, cell: Path) -> Iterator[None]:
    """The context of one change of `cell`'s folder by a process of the run that laid `claim`. Raises FencedError, StoreError."""
    try:
        file = os.open(claim, os.O_RDONLY)
    except FileNotFoundError:
        raise FencedError(_taken_over(cell)) from None
    try:
        with disk_errors(claim, "cannot be locked"):
            lock(file, CHANGE_SECONDS, shared=True)
        if not claim.exists():
            raise FencedError(_taken_over(cell))
        yield
    finally:
        os.close(file)


def holding(folder: Path) -> set[str]:
    """The keys that living runs write."""
    now = time.time()
    return {key for _, holder, renewed in _claims(folder) if holder.lives(now - renewed) for key in holder.keys}


def _taken_over(cell: Path) -> str:
    others = [holder for _, holder, _ in _claims(cell.parent) if cell.name in holder.keys]
    by = f" by {others[-1]}" if others else ""
    return f"{cell}: taken over{by}; process {os.getpid()} on {platform.node()} writes nothing more"


def _lay(mine: Path, holder: Holder) -> None:
    """Lay the claim and wait until no living run has its keys.

    Of two that come at once each sees the other: the one of the higher name steps back, and claims nothing meanwhile.
    """
    folder, end = mine.parent.parent, time.monotonic() + PATIENCE_SECONDS
    seen, laid = dict[Path, float](), True
    write_atomic(mine, msgspec.json.encode(holder))
    while True:
        os.utime(mine)
        now = _renewed(mine)  # the file system's own clock: those of the machines may differ
        rivals = []
        for file, other, renewed in _claims(folder):
            if file == mine or not {*other.keys} & {*holder.keys}:
                continue
            if not other.lives(now - renewed):
                _remove_dead(file, other)
                continue
            rivals.append(file)
            if time.monotonic() >= end and (other.system == holder.system or renewed > seen.get(file, renewed)):
                raise UsageError(f"{folder}: another `harness run` is writing these results ({other})")
            if file not in seen and other.system != holder.system:
                words = f"last sign of life of a run on {other.host} {now - renewed:.0f} s ago: waiting to see whether it lives"
                print(f"{folder}: {words}", file=sys.stderr)
            seen.setdefault(file, renewed)
        if laid and not rivals:
            return
        if (back := any(file < mine for file in rivals)) is laid:
            write_atomic(mine, msgspec.json.encode(msgspec.structs.replace(holder, keys=() if back else holder.keys)))
            laid = not back
        if back or (laid and rivals):
            time.sleep(_LOOK_SECONDS)


def _remove_dead(claim: Path, holder: Holder) -> None:
    """From now on no process of that run can change its cells. Raises UsageError where one is stopped in the middle of a change."""
    with suppress(FileNotFoundError):
        file = os.open(claim, os.O_RDWR)
        try:
            lock(file, CHANGE_SECONDS)
            claim.unlink()
        except TimeoutError:
            words = f"a worker of the run that was {holder} holds these results and does not let go"
            raise UsageError(f"{claim.parent.parent}: {words} (stopped? kill it, and run again)") from None
        finally:
            os.close(file)


def _claims(folder: Path) -> list[tuple[Path, Holder, float]]:
    """All claims, with the time of their last renewal."""
    found = []
    for file in sorted((folder / RUNS).glob("*.json")):
        with suppress(OSError, msgspec.MsgspecError):  # it has just ended, or is no claim
            found.append((file, msgspec.json.decode(file.read_bytes(), type=Holder), _renewed(file)))
    return found


def _renewed(file: Path) -> float:
    """Opened first: network file systems ask the server about a file's times then, and otherwise remember them."""
    with file.open("rb") as handle:
        return os.fstat(handle.fileno()).st_mtime


def _system() -> str:
    """What process ids belong to: this boot of the machine, and the name space of processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{platform.node()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def _born(pid: int) -> str:
    """When a process started, which tells it from a later one of the same number; empty where there is none."""
    import psutil

    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    except OSError:
        with suppress(psutil.Error):
            return "" if Path("/proc/self/stat").exists() else f"{psutil.Process(pid).create_time():.0f}"
    return ""
