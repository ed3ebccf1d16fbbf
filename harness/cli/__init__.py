"""The command line. Exit codes: 0 done, 1 a cell failed, the disk filled up, a suite does not fit or `doctor` found something,
2 usage or invalid suite, 130 interrupted."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from contextlib import suppress
from typing import Any, NoReturn

from harness.cli.document import reserve_stdout, wants_json
from harness.errors import HarnessError
from harness.limits import collect_garbage_seldom, use_one_thread

_LONGEST = 2000
_OF_WRITING = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def _end(*_: object) -> NoReturn:
    """End a command on SIGTERM as Ctrl-C does, once."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> None:
    """Run a command. An expected error is one line on stderr and, where JSON is wanted, a document on stdout."""
    use_one_thread()
    collect_garbage_seldom()
    signal.signal(signal.SIGTERM, _end)
    _settle_output()
    with reserve_stdout():
        try:
            _call()
        except OSError as error:
            _told(error)
        except RuntimeError as error:
            if str(error) == "Query interrupted":  # DuckDB's word for KeyboardInterrupt
                sys.exit(130)
            if not isinstance(loop := error.__context__, OSError) or loop.errno != errno.ELOOP:  # of Path.resolve
                raise
            _told(loop)
        except KeyboardInterrupt:  # while libraries are imported
            sys.exit(130)


def _call() -> NoReturn:
    """Run the command line, and end the process: an expected error by its own exit code, a wrong option by 2."""
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
    finally:  # at the interpreter's end it would fail with a traceback
        (sys.__stdout__ or sys.stdout).flush()


def _settle_output() -> None:
    """Settle how output is written: escape characters that the encoding lacks; a closed stdout takes all."""
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, until the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _told(error: OSError) -> NoReturn:
    """Say which file failed and why, and end; without a message where a reader has closed the pipe."""
    if error.filename is None and sys.__stdout__ is not None:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.__stdout__.fileno())
    if error.errno == errno.EPIPE:
        sys.exit(1)
    where = error.filename or ("standard output" if error.errno in _OF_WRITING else "")
    problem = ": ".join(str(part)[:200] for part in (where, error.strerror or error) if part)
    refuse(problem, 2 if error.errno in (errno.ENAMETOOLONG, errno.ELOOP) else 1)


def refuse(message: str, code: int) -> NoReturn:
    """Say on stderr in one line why a command ends, and end it with this code; where JSON is wanted, also on stdout."""
    from harness.store.text import visible

    line = visible(" ".join(message.splitlines()), _LONGEST)
    with suppress(OSError):  # the code tells
        print(f"harness: {line}", file=sys.stderr)
    if wants_json():
        from harness.cli.arguments import print_json

        print_json({"error": line, "exit_code": code})
    sys.exit(code)
