"""Writing files so that a reader sees the old or the new one, never half of it."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from harness.errors import DiskFullError, StoreError

TEMPORARY = ".tmp"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF}


def is_full(error: OSError) -> bool:
    """Whether there is no room left: on the disk, in the user's quota, or for a file so large."""
    return error.errno in _FULL


@contextmanager
def disk_errors(path: Path, failed: str = "cannot be written") -> Iterator[None]:
    """Turn an OSError of writing `path` into DiskFullError or StoreError."""
    try:
        yield
    except OSError as error:
        kind = DiskFullError if is_full(error) else StoreError
        raise kind(f"{path}: {failed}: {error.strerror or error}") from error


def sync(path: Path) -> None:
    """Flush a file or a folder's entries to the disk; some network file systems cannot flush a folder, and write it at once."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_SYNC or not path.is_dir():
            raise
    finally:
        os.close(handle)


def write_atomic(path: Path, data: bytes, guard: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
    """Write to a temporary name, flush, rename. Raises DiskFullError, StoreError; `path` is then as it was."""

    def fill(temporary: Path) -> None:
        temporary.write_bytes(data)
        sync(temporary)

    replace_atomic(path, fill, guard)


def replace_atomic(
    path: Path, fill: Callable[[Path], None], guard: Callable[[], AbstractContextManager[None]] = nullcontext
) -> None:
    """Let `fill` make a file or folder under a temporary name, which no other machine chooses, then rename it to `path`, in the
    context that `guard` makes."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(6)}{TEMPORARY}")
    try:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            fill(temporary)
            with guard():
                os.replace(temporary, path)
                sync(path.parent)
    except BaseException:
        with suppress(
            OSError
        ):  # where nothing may be written nothing may be removed either, not even what is not there
            remove(temporary)
        raise


def remove(path: Path) -> None:
    """Remove a file or folder if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(FileNotFoundError, NotADirectoryError):  # the other: a parent is a file
            path.unlink()
