"""`harness` as people start it: what runs cells in a process of its own, what only reads in this one."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from harness.cli import main

Run = tuple[int, str, str]
"""Exit code, stdout, stderr."""


def start(*arguments: object, env: Mapping[str, str] | None = None, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from harness.cli import main; main()", *map(str, arguments)]
    environment = {**os.environ, **(env or {})}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options
    )  # type: ignore[call-overload]


def harness(*arguments: object, env: Mapping[str, str] | None = None, timeout: float = 240) -> Run:
    """env: what is to be set for it; a process of its own sees packages that are installed there."""
    if env is None and arguments[0] != "run":
        return _here(*arguments)
    process = start(*arguments, env=env)
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def _here(*arguments: object) -> Run:
    before, out, err = signal.getsignal(signal.SIGTERM), io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["harness", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
    signal.signal(signal.SIGTERM, before)
    return int(left.value.code or 0), out.getvalue(), err.getvalue()


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 180) -> None:
    """Fails when the process ends or the time is over before `holds` does."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def said(results: Path, words: str) -> list[Path]:
    """The logs of cells and bases that hold these words."""
    return [log for log in results.glob("*/*/log") if words in log.read_text(errors="replace")]
