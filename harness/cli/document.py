"""The one JSON document of a command, alone on stdout.

Libraries that a command imports may print there too: DeepSpeed, which transformers imports where it is installed, logs to stdout.
Whatever reads the document would take such a line for a part of it. So while a command runs that is to print JSON, everything else
goes to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TextIO

_kept: TextIO | None = None
"""The process's stdout while everything else goes to stderr."""


def wants_json() -> bool:
    """Say whether the command line asks for JSON."""
    words = sys.argv[1:]
    return not {"--json", "--format=json"}.isdisjoint(words) or ("--format", "json") in pairwise(words)


def write_document(text: str) -> None:
    """Write to the process's stdout, also within `reserve_stdout`."""
    (_kept or sys.stdout).write(text)


@contextmanager
def reserve_stdout() -> Iterator[None]:
    """Keep stdout for `write_document` where the command line asks for JSON: what else is printed goes to stderr."""
    global _kept
    if not wants_json():
        yield
        return
    _kept = sys.stdout
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = _kept
        _kept = None
