"""The command line. Exit codes: 0 done, 1 a cell failed or the disk filled up, 2 usage or invalid suite, 130 interrupted."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

from harness.errors import HarnessError
from harness.threads import settle


def _end(*_: object) -> NoReturn:
    """SIGTERM, which schedulers send before they kill, ends a command as Ctrl-C does; its repetitions change nothing."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> None:
    """Entry point of `harness`. An expected error is one line on stderr."""
    settle()
    signal.signal(signal.SIGTERM, _end)
    from harness.cli.app import app

    try:
        app()
    except HarnessError as error:
        print(f"harness: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
