"""The command line. Exit codes: 0 done, 1 a cell failed or the disk filled up, 2 usage or invalid suite, 130 interrupted."""

from __future__ import annotations

import sys

import typer

from harness.errors import HarnessError


def main() -> None:
    """Entry point of `harness`. An expected error is one line on stderr."""
    from harness.cli.app import app

    try:
        code = app(standalone_mode=False)
    except typer.Exit as leave:
        code = leave.exit_code
    except typer.Abort:
        code = 130
    except KeyboardInterrupt:
        code = 130
    except HarnessError as error:
        print(f"harness: {error}", file=sys.stderr)
        code = error.exit_code
    except BrokenPipeError:
        sys.stderr.close()
        code = 0
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        error.show()  # a usage error of the command line itself
        code = error.exit_code  # type: ignore[attr-defined]
    sys.exit(code or 0)
