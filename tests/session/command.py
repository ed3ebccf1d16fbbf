"""`harness` as people start it: a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

Run = tuple[int, str, str]
"""Exit code, stdout, stderr."""


def start(*arguments: object, env: Mapping[str, str] | None = None, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from harness.cli import main; main()", *map(str, arguments)]
    environment = {**os.environ, **(env or {})}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options
    )  # type: ignore[call-overload]


def harness(*arguments: object, env: Mapping[str, str] | None = None, timeout: float = 240) -> Run:
    process = start(*arguments, env=env)
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


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
