"""The command line. Exit codes: 0 done, 1 a cell failed, the disk filled up, a suite does not fit or `doctor` found something,
2 usage or invalid suite, 130 interrupted."""

from __future__ import annotations

import signal
import sys
from typing import Any, NoReturn

from harness.errors import HarnessError
from harness.threads import settle

_LONGEST = 2000


def _end(*_: object) -> NoReturn:
    """SIGTERM, which schedulers send before they kill, ends a command as Ctrl-C does; its repetitions change nothing."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> None:
    """Entry point of `harness`. An expected error is one line on stderr and, with `--json`, a document on stdout."""
    settle()
    signal.signal(signal.SIGTERM, _end)
    import typer

    from harness.cli.app import app

    # typer's own copy of click is not public, its subclasses are
    usage: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except HarnessError as error:
        refuse(str(error), error.exit_code)
    except usage as error:
        if len(sys.argv) < 2:  # the help
            error.show()
            sys.exit(error.exit_code)
        refuse(error.format_message(), error.exit_code)
    except typer.Abort:
        refuse("aborted", 1)


def refuse(message: str, code: int) -> NoReturn:
    """Say in one line why the command ends, what came from files made safe for a terminal, and leave."""
    from harness.store.text import visible

    line = visible(" ".join(message.splitlines()), _LONGEST)
    print(f"harness: {line}", file=sys.stderr)
    if "--json" in sys.argv[1:]:
        from harness.cli.arguments import print_json

        print_json({"error": line, "exit_code": code})
    sys.exit(code)
