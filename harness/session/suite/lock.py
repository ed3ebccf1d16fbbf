"""One run a cell, also over file systems without locks. A run lays a claim, `.runs/<name>.json`, with its cells' keys.
Its holder lives if the system says so, on another machine while it renews the file time; after LEASE_SECONDS its claim
is removed. A cell changes under a shared lock on the claim's file, and a claim is removed only under an exclusive one:
a stopped worker changes nothing once its cell has gone to another."""

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
from harness.files import disk_errors, lock_file, write_atomic

RUNS = ".runs"
# For a run that is just ending or steps back
PATIENCE_SECONDS = 2.0
# For a change being made
CHANGE_SECONDS = 30.0
BEAT_SECONDS = 10.0
LEASE_SECONDS = 90.0
_LOOK_SECONDS = 0.1


class Holder(msgspec.Struct, frozen=True):
    """The process that laid a claim. system: a boot of a machine and a space of process ids; born: when the process started.
    keys: of the cells that it writes."""

    host: str
    system: str
    pid: int
    born: str
    keys: tuple[str, ...]

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def is_alive(self, age: float) -> bool:
        """Return whether the process still runs. age: seconds since its claim was renewed, which tell it of another machine."""
        if self.system == _system_id():
            return _start_of_process(self.pid) == self.born
        return age < LEASE_SECONDS


class CellsClaim:
    """A claim that was laid: a file whose time is renewed until it is withdrawn."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._ended = threading.Event()
        threading.Thread(target=self._renew_until_end, daemon=True).start()

    def is_lost(self) -> bool:
        """Return whether another run has removed the claim, because it was not renewed in time."""
        return not self.file.exists()

    def _renew_until_end(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with suppress(OSError):  # the file system does not answer, or others have taken over
                os.utime(self.file)

    def withdraw(self) -> None:
        """Give the cells free. Idempotent."""
        self._ended.set()
        self.file.unlink(missing_ok=True)


@contextmanager
def claim_cells(folder: Path, keys: Collection[str]) -> Iterator[CellsClaim]:
    """Be the one writer of the cells `keys` in a suite's folder. Raises UsageError where a living run has some of them."""
    mine = folder / RUNS / f"{time.time_ns():020d}-{secrets.token_hex(4)}.json"
    try:
        _lay_claim(
            mine,
            Holder(platform.node(), _system_id(), os.getpid(), _start_of_process(os.getpid()), tuple(sorted(keys))),
        )
        claim = CellsClaim(mine)
    except BaseException:
        mine.unlink(missing_ok=True)
        raise
    try:
        yield claim
    finally:
        claim.withdraw()


@contextmanager
def hold_for_change(claim: Path, cell: Path) -> Iterator[None]:
    """Hold the run's claim while a worker changes the folder of `cell`. Raises FencedError where another run has taken over,
    StoreError."""
    try:
        file = os.open(claim, os.O_RDONLY)
    except FileNotFoundError:
        raise FencedError(_taken_over(cell)) from None
    try:
        with disk_errors(claim, "cannot be locked"):
            lock_file(file, CHANGE_SECONDS, shared=True)
        if not claim.exists():
            raise FencedError(_taken_over(cell))
        yield
    finally:
        os.close(file)


def keys_held(folder: Path, claim: CellsClaim | None = None) -> set[str]:
    """Return the keys of cells that living runs write. claim: one's own, whose time is by the file system's clock, which may not
    be ours."""
    now = time.time() if claim is None else _renewal_time(claim.file)
    keys = set[str]()
    for _, holder, renewed in _read_claims(folder):
        if holder.is_alive(now - renewed):
            keys |= {*holder.keys}
    return keys


def _taken_over(cell: Path) -> str:
    others = [holder for _, holder, _ in _read_claims(cell.parent) if cell.name in holder.keys]
    by = f" by {others[-1]}" if others else ""
    return f"{cell}: taken over{by}; process {os.getpid()} on {platform.node()} writes nothing more"


def _lay_claim(mine: Path, holder: Holder) -> None:
    """Lay the claim `mine` once no living run has a cell of it. Of two runs that begin at once the one with the higher name steps
    back: it claims no cells until the other is done or gives up."""
    folder = mine.parent.parent
    end = time.monotonic() + PATIENCE_SECONDS
    seen = dict[Path, float]()
    laid = True
    write_atomic(mine, msgspec.json.encode(holder))
    while True:
        os.utime(mine)
        now = _renewal_time(mine)  # the file system's own clock: those of the machines may differ
        rivals = []
        for file, other, renewed in _read_claims(folder):
            if file == mine or not {*other.keys} & {*holder.keys}:
                continue
            if not other.is_alive(now - renewed):
                _remove_dead(file, other)
                continue
            rivals.append(file)
            is_here = other.system == holder.system
            if time.monotonic() >= end and (is_here or renewed > seen.get(file, renewed)):
                raise UsageError(f"{folder}: another `harness run` is writing these results ({other})")
            if file not in seen and not is_here:
                words = f"a run on {other.host} last renewed its claim {now - renewed:.0f} s ago; checking whether it still runs"
                print(f"{folder}: {words}", file=sys.stderr)
            seen.setdefault(file, renewed)
        if laid and not rivals:
            return
        steps_back = any(file < mine for file in rivals)
        if steps_back is laid:
            keys = () if steps_back else holder.keys
            write_atomic(mine, msgspec.json.encode(msgspec.structs.replace(holder, keys=keys)))
            laid = not steps_back
        if steps_back or (laid and rivals):
            time.sleep(_LOOK_SECONDS)


def _remove_dead(claim: Path, holder: Holder) -> None:
    """Remove the claims of runs that have ended. Raises UsageError where one of its processes is stopped amid a change."""
    with suppress(FileNotFoundError):
        file = os.open(claim, os.O_RDWR)
        try:
            lock_file(file, CHANGE_SECONDS)
            claim.unlink()
        except TimeoutError:
            words = f"a worker of the ended run ({holder}) still has a lock on these results"
            raise UsageError(f"{claim.parent.parent}: {words} (stopped? kill it, and run again)") from None
        finally:
            os.close(file)


def _read_claims(folder: Path) -> list[tuple[Path, Holder, float]]:
    """Return all claims with their holders and the times of their renewal, the oldest first."""
    claims = []
    for file in sorted((folder / RUNS).glob("*.json")):
        with suppress(OSError, msgspec.MsgspecError):  # it has just ended, or is no claim
            claims.append((file, msgspec.json.decode(file.read_bytes(), type=Holder), _renewal_time(file)))
    return claims


def _renewal_time(file: Path) -> float:
    """Say when a claim was last renewed, in seconds. It is opened, for that asks network file systems' servers."""
    with file.open("rb") as handle:
        return os.fstat(handle.fileno()).st_mtime


def _system_id() -> str:
    """Identify this boot of this machine, and this space of process ids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{platform.node()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def _start_of_process(pid: int) -> str:
    """Say when a process started, which tells it from a later one of its number; empty where it has ended."""
    import psutil

    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    except OSError:
        with suppress(psutil.Error):
            if Path("/proc/self/stat").exists():
                return ""
            return f"{psutil.Process(pid).create_time():.0f}"
    return ""
