"""Whole files or none; a lock on a file; who may change a folder."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from harness.errors import DiskFullError, StoreError

TEMPORARY = ".tmp"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF}
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}
_guards: dict[Path, Callable[[], AbstractContextManager[None]]] = {}


def is_full(error: OSError) -> bool:
    return error.errno in _FULL


@contextmanager
def disk_errors(path: Path, failed: str = "cannot be written") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = DiskFullError if is_full(error) else StoreError
        raise kind(f"{path}: {failed}: {error.strerror or error}") from error


@contextmanager
def guard_changes(folder: Path, guard: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Inside, each `about_to_change` below `folder` happens in a context of `guard`, which may refuse."""
    _guards[folder] = guard
    try:
        yield
    finally:
        del _guards[folder]


def about_to_change(path: Path) -> AbstractContextManager[None]:
    """Where `path` becomes visible or is removed. Raises what the guard raises."""
    guards = (guard for folder, guard in _guards.items() if path.is_relative_to(folder))
    return next(guards, nullcontext)()


def flush_to_disk(path: Path) -> None:
    """Flush a file or, where the file system can, a folder's entries."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_SYNC or not path.is_dir():
            raise
    finally:
        os.close(handle)


def write_atomic(path: Path, data: bytes) -> None:
    """Temporary name, flush, rename. Raises DiskFullError, StoreError; `path` is then as it was."""

    def fill(temporary: Path) -> None:
        temporary.write_bytes(data)
        flush_to_disk(temporary)

    replace_atomic(path, fill)


def replace_atomic(path: Path, fill: Callable[[Path], None]) -> None:
    """`fill` makes a file or folder under a unique name, which is renamed."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(6)}{TEMPORARY}")
    try:
        with disk_errors(path):
            if path.exists() and not (path.is_file() or path.is_dir()):  # a rename would remove /dev/null
                raise OSError(errno.EINVAL, "not a regular file")
            path.parent.mkdir(parents=True, exist_ok=True)
            fill(temporary)
            with about_to_change(path):
                os.replace(temporary, path)
                flush_to_disk(path.parent)
    except BaseException:
        with suppress(OSError):  # where nothing may be written nothing may be removed, not even what is not there
            remove_path(temporary)
        raise


def remove_path(path: Path) -> None:
    """A file or folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(FileNotFoundError, NotADirectoryError):  # the other: a parent is a file
            path.unlink()


def lock_file(
    file: int, patience: float, look: float = 0.02, waiting: Callable[[], None] = lambda: None, shared: bool = False
) -> bool:
    """Lock an open file until it is closed or the process dies. Returns whether its file system knows locks (Lustre and some
    NFS do not).

    patience: seconds for another holder. look: between two looks, each followed by `waiting`. Raises TimeoutError, OSError
    where it cannot be locked.
    """
    end = time.monotonic() + patience
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(errno.ETIMEDOUT, f"locked by another process for over {patience:.0f} s") from None
            waiting()
            time.sleep(min(look, left))
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            raise
        else:
            return True
