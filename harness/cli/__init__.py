"""The command line. Exit codes: 0 done, 1 a cell failed or the disk filled up, 2 usage or invalid suite, 130 interrupted."""

from __future__ import annotations

import sys

from harness.errors import HarnessError
from harness.threads import settle


def main() -> None:
    """Entry point of `harness`. An expected error is one line on stderr."""
    settle()
    from harness.cli.app import app

    try:
        app()
    except HarnessError as error:
        print(f"harness: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
