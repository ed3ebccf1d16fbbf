"""The lock on a file, and what a full disk is read as."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.errors import DiskFullError, StoreError
from harness.files import disk_errors
from harness.locks import lock

HOLDER = """
import os, sys; from harness.locks import lock
print(lock(os.open(sys.argv[1], os.O_RDWR), 0), flush=True); sys.stdin.read()
"""


def test_a_holder_is_waited_for_and_its_death_frees_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        file, told = os.open(path, os.O_RDWR), []
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            lock(file, 0.3, look=0.05, waiting=lambda: told.append(1))
        assert 0.3 <= time.monotonic() - began < 5.0
        assert told
        holder.kill()
        holder.wait()
    assert lock(file, 5.0)
    os.close(file)


def test_what_cannot_be_locked_is_said(tmp_path: Path) -> None:
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.close(file)
    with pytest.raises(OSError, match="Bad file descriptor"):
        lock(file, 0.0)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_one_thing(code: int, tmp_path: Path) -> None:
    with pytest.raises(DiskFullError, match="cannot be written"), disk_errors(tmp_path):
        raise OSError(code, os.strerror(code))


def test_any_other_fault_is_not(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read: Input/output error"), disk_errors(tmp_path, "cannot be read"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
