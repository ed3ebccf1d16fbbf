"""Who may write into a cell's folder: the newest start of the cell alone.

A worker that was stopped, or cut off from its driver, may wake up after its cell was given to another. So each start takes
the folder: it writes its own token into `<cell>/.fence`, and whatever it makes visible later (a rename, a removal) it does
under that file's lock, after it has seen that the token is still its own. Where the file system knows no locks, the token
is compared all the same, and a start that was stopped between that and the rename is the one case that remains.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import msgspec

from harness.errors import FencedError, StoreError
from harness.files import disk_errors
from harness.locks import lock

FENCE = ".fence"
PATIENCE_SECONDS = 30.0
"""The lock is held for a rename or the removal of old files; longer only by a process that was stopped just then."""
Guard = Callable[[], AbstractContextManager[None]]
"""Makes the context in which a change of a folder becomes visible. Raises FencedError where it must not."""


class Owner(msgspec.Struct, frozen=True):
    """A start of a cell. token: drawn anew for each."""

    attempt: int = 0
    token: str = ""
    process: int = 0
    host: str = ""

    def __str__(self) -> str:
        return f"start {self.attempt}, process {self.process} on {self.host}"


class Fence:
    """One start's right to write into `folder`. Calling it gives the context of one change."""

    def __init__(self, folder: Path, attempts: int = 0, patience: float = PATIENCE_SECONDS) -> None:
        """Take the folder from whoever has it. attempts: starts known of otherwise; the new one is the next.

        Raises StoreError (nobody lets go of the lock for `patience` seconds), DiskFullError.
        """
        self.folder, self._path, self._patience = folder, folder / FENCE, patience
        with disk_errors(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            with self._locked(file):
                attempt = max(attempts, _owner(file).attempt) + 1
                self.owner = Owner(attempt, secrets.token_hex(8), os.getpid(), socket.gethostname())
                data = msgspec.json.encode(self.owner)
                os.pwrite(file, data, 0)
                os.ftruncate(file, len(data))
                os.fsync(file)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Raises FencedError where another start has taken the folder, StoreError."""
        with disk_errors(self._path):
            try:
                file = os.open(self._path, os.O_RDONLY)
            except FileNotFoundError:
                raise FencedError(f"{self.folder}: removed while {self.owner} was at work") from None
        with self._locked(file):
            if (now := _owner(file)) != self.owner:
                raise FencedError(f"{self.folder}: taken over by {now}; {self.owner} writes nothing more")
            yield

    @contextmanager
    def _locked(self, file: int) -> Iterator[None]:
        try:
            try:
                lock(file, self._patience)
            except TimeoutError:
                raise StoreError(
                    f"{self.folder}: {_owner(file)} holds it and does not let go (stopped? kill it, and run again)"
                ) from None
            yield
        finally:
            os.close(file)


def _owner(file: int) -> Owner:
    """What the file says; nobody where it is empty or damaged."""
    try:
        return msgspec.json.decode(os.pread(file, 4096, 0), type=Owner)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Owner()
