"""Runs a program, then the steps of its tests one by one, without site packages and our code.

    python -I -S sandbox.py CPU_SECONDS MEMORY

A step is a message whose first byte says what to do: `x` runs statements, `e` tells the value of an expression, `t` says the
token that follows. Whatever this process says may be the program's word (programs.py).
"""

import ctypes
import decimal
import fractions
import json
import os
import resource
import signal
import struct
import sys
import types
from typing import Any

_SETS: Any = (set, frozenset, type({}.keys()), type({}.items()))
# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
# linux/sched.h
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000


def main() -> None:
    """Take the program and then steps from standard input, and answer on standard output, until the asking side is gone.

    Both are moved to other numbers first, so that the program's own reading and printing goes nowhere.
    """
    seconds, memory = map(int, sys.argv[1:])
    asked = os.dup(0)
    says = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    _give_up_rights()
    _set_limits(seconds, memory)
    del sys.argv[1:]
    _write_message(says, b"ready")
    module = types.ModuleType("__main__")  # the program's own: that name must not lead to this file
    sys.modules["__main__"] = module
    _run_source(says, _read_message(asked), "answer", module.__dict__)
    _write_message(says, b"ran")
    while True:
        step = _read_message(asked)
        kind = step[:1]
        source = step[1:]
        if kind == b"t":
            _write_message(says, source)
        elif kind == b"e":
            _write_message(says, _run_source(says, source, "tests", module.__dict__, "eval"))
        else:
            _run_source(says, source, "tests", module.__dict__)
            _write_message(says, b"ran")


def _give_up_rights() -> None:
    """End with the parent, gain no rights by starting programs, and leave the network, as far as this kernel can."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if hasattr(libc, "unshare"):
        # A user namespace of its own gives the right to a network namespace, which is empty. Where the kernel refuses, the network
        # stays: `programs.has_no_network` tells
        libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)


def _set_limits(seconds: int, memory: int) -> None:
    """Limit what this process may use: CPU-seconds, bytes of memory and of a file, open files; no core file, no new process.

    A limit is never raised above the one that the parent has set.
    """
    for limit, soft, hard in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_FSIZE, 1 << 20, 1 << 20),
        (resource.RLIMIT_NOFILE, 32, 32),
        (resource.RLIMIT_NPROC, 0, 0),
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_CPU, seconds, seconds + 1),  # SIGXCPU, and SIGKILL a second later
    ):
        allowed = resource.getrlimit(limit)[1]
        most = hard if allowed == resource.RLIM_INFINITY else min(hard, allowed)
        resource.setrlimit(limit, (min(soft, most), most))


def _run_source(says: int, source: bytes, name: str, space: dict[str, object], mode: str = "exec") -> bytes:
    """Run a source and return the words for an expression's value, empty for statements.

    Whatever it raises is said, by the name of its class alone, and ends the process. mode: `eval` for an expression.
    """
    try:
        code = compile(source, name, mode)
        if mode == "exec":
            exec(code, space)  # what this process is for; its limits are set before
            return b""
        return json.dumps(_describe_value(eval(code, space))).encode()  # limited as above
    except BaseException as error:
        _write_message(
            says, b"failed in the " + name.encode() + b": " + type(error).__name__.encode("ascii", "replace")[:40]
        )
        os._exit(0)


def _describe_value(value: Any) -> list[object]:
    """Return a value as its kind and plain data. A subclass's value is that of its base: its own comparisons do not count."""
    if value is None or value is ...:
        return ["None" if value is None else "...", None]
    if isinstance(value, bool):
        return ["bool", value]
    if isinstance(value, int):
        return ["int", int.__repr__(value)]
    if isinstance(value, float):
        return ["float", float.__repr__(value)]
    if isinstance(value, complex):
        return ["complex", [repr(value.real), repr(value.imag)]]
    if isinstance(value, str):
        return ["str", str.__str__(value)]
    if isinstance(value, bytes | bytearray):
        return ["bytes", value.hex()]
    if isinstance(value, list):
        return ["list", [_describe_value(item) for item in list.__iter__(value)]]
    if isinstance(value, tuple):
        return ["tuple", [_describe_value(item) for item in tuple.__iter__(value)]]
    if isinstance(value, _SETS):
        return ["set", [_describe_value(item) for item in value]]
    if isinstance(value, dict):
        return ["dict", [[_describe_value(key), _describe_value(item)] for key, item in dict.items(value)]]
    if isinstance(value, fractions.Fraction):
        return ["fraction", [str(value.numerator), str(value.denominator)]]
    if isinstance(value, decimal.Decimal):
        return ["decimal", str(value)]
    return ["other", None]


def _write_message(says: int, message: bytes) -> None:
    """Write a message behind its length, four bytes."""
    os.write(says, struct.pack("<I", len(message)) + message)


def _read_message(asked: int) -> bytes:
    """Read the next message."""
    (size,) = struct.unpack("<I", _read_exactly(asked, 4))
    return _read_exactly(asked, size)


def _read_exactly(asked: int, size: int) -> bytes:
    """Read so many bytes; where the asking side is gone, end the process with the exit status 3."""
    parts = b""
    while len(parts) < size:
        chunk = os.read(asked, size - len(parts))
        if not chunk:
            os._exit(3)
        parts += chunk
    return parts


if __name__ == "__main__":
    main()
