"""Programs as answers, unit-tested in a process with limits (docs/tasks.md).

A test calls the program, so it runs in the program's process, whose words the program can write itself. Two things stand
against that. Where every test is `assert EXPRESSION == LITERAL`, the process is asked for values and this one compares them:
what is expected never enters the program's process. Other tests run there whole, and then once more with an exception of a
random name behind them, which an honest process must report: a program that says "passed" whatever happens is wrong. One that
searches its process for the tests and tells the two runs apart can still pass.
"""

from __future__ import annotations

import ast
import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from io import FileIO
from pathlib import Path
from typing import cast

from harness.verification.compared import Step, is_as_expected, steps_of
from harness.verification.processes import read_frame, write_frame
from harness.verification.response import text_behind_thinking
from harness.verification.scorer import Score, Scorer, Undecided, digest_if_long

SANDBOX = Path(__file__).with_name("sandbox.py")
CPU_SECONDS = 4
WALL_SECONDS = 12.0
START_SECONDS = 20.0
MEMORY = 512 << 20
KILLED = "over-limit: killed"
FORGED = "failed: says that it passes tests that must fail"
_FAILED_COMPARISON = "failed in the tests: AssertionError"
_FENCE = re.compile(r"^[ \t]*```[ \t]*(\w*)[ \t]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
# linux/sched.h
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000


class Python(Scorer):
    """A Python program that passes the task's unit tests, in a process with limits and without network where the kernel allows

    Where all tests compare values with literals, that happens outside the program's process. Other tests are not held apart from a
    program that looks for them (docs/tasks.md).
    """

    cpu_seconds = 2.0  # of the waiting scorer
    wall_seconds = 4 * (START_SECONDS + WALL_SECONDS) + 20.0
    examples = (
        ("assert f(2) == 4", "```python\ndef f(x):\n    return x * x\n```", True),
        ("assert f(3) == 9", "def f(x):\n    return x * x", True),
        ("assert f(3) == 9", "```python\ndef f(x):\n    return x + x\n```", False),
        ("assert f(3) == 9", "```python\nimport sys\nsys.exit(0)\n```", False),
        ("assert f(3) == 9", "no program", False),
    )

    def fault(self, gold: str) -> str:
        try:
            ast.parse(gold)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return f"the tests are no Python: {error}"
        return super().fault(gold)

    def perfect(self, gold: str) -> str | None:
        return None

    def remark(self) -> str:
        return "" if has_no_network() else "this kernel lets no process give up its network: programs may use it"

    def judge(self, text: str, gold: str) -> Score:
        """Judge the program of a response. One that was killed runs once more, as the machine's lack of memory may have
        killed it."""
        program = program_in(text_behind_thinking(text))
        if not program:
            return Score(False, reason="missing")
        why = run_program(program, gold)
        if why == KILLED:  # if it happens again, not by the machine's lack of memory
            why = run_program(program, gold)
        return Score(not why, digest_if_long(program), why)


def program_in(text: str) -> str:
    """Return the last Python block, else the last block, else the text."""
    blocks = [(kind.lower(), code) for kind, code in _FENCE.findall(text)]
    own = [code for kind, code in blocks if kind in ("python", "py", "python3")] or [code for _, code in blocks]
    return (own[-1] if own else text).strip("\n").rstrip()


def run_program(program: str, tests: str) -> str:
    """Return why a program fails its tests, empty where it passes.

    Raises Undecided where the sandbox fails before the program, or where tests that pass take too long when they run again.
    """
    steps = steps_of(tests)
    if steps:
        return _run_steps(program, steps)
    why = _run_steps(program, [Step(tests)])
    if why:
        return why
    name = "E" + os.urandom(8).hex()
    must_fail = Step(f"{tests}\nraise type({name!r}, (BaseException,), {{}})")
    for _ in range(2):
        why = _run_steps(program, [must_fail])
        if not why.startswith("over-limit"):
            return "" if why == f"failed in the tests: {name}" else FORGED
    raise Undecided(f"the tests passed once; again: {why}")


def _run_steps(program: str, steps: list[Step]) -> str:
    """Return why the program or a step fails in a process of its own, else empty. Raises Undecided where the sandbox does not
    start."""
    with tempfile.TemporaryDirectory(prefix="harness-python-", ignore_cleanup_errors=True) as folder:
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SANDBOX), str(CPU_SECONDS), str(MEMORY)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0, cwd=folder, env={"PATH": ""},
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise Undecided(f"no process: {error.strerror}") from None
        try:
            return _watch_program(process, cast(FileIO, process.stdout), cast(FileIO, process.stdin), program, steps)
        finally:
            _kill_program(process)


def _watch_program(
    process: subprocess.Popen[bytes], heard: FileIO, asking: FileIO, program: str, steps: list[Step]
) -> str:
    """Hand the program and the steps to the sandbox one by one, and return why one fails, else empty.

    All steps together have `WALL_SECONDS`. heard, asking: the sandbox's output and input.
    """
    if read_frame(heard, START_SECONDS) != b"ready":
        raise Undecided("the sandbox does not start")
    try:
        write_frame(asking, program.encode("utf-8", "replace"))
        reply = read_frame(heard, WALL_SECONDS)
        if reply != b"ran":
            return _explain_end(process, reply)
        deadline = time.monotonic() + WALL_SECONDS
        for step in steps:
            write_frame(asking, (b"e" if step.compared else b"x") + step.source.encode("utf-8", "replace"))
            reply = read_frame(heard, max(0.0, deadline - time.monotonic()))
            if step.compared and reply and not reply.startswith(b"failed "):
                if not is_as_expected(step.expected, reply):
                    return _FAILED_COMPARISON
            elif reply != b"ran":
                return _explain_end(process, reply)
        # made only now: a "ran" that the program wrote ahead is no answer to it
        token = os.urandom(16).hex().encode()
        write_frame(asking, b"t" + token)
        reply = read_frame(heard, max(0.0, deadline - time.monotonic()))
    except BrokenPipeError:
        return _explain_end(process, b"")
    return "" if reply == token else _explain_end(process, reply)


def _explain_end(process: subprocess.Popen[bytes], reply: bytes | None) -> str:
    """Return why a program has failed, by the last words of its process or by how that ended. reply: None where time was up."""
    if reply is None:
        return "over-limit: time"
    if reply.startswith(b"failed "):
        return reply[:80].decode("ascii", "replace")
    try:
        status = process.wait(timeout=5.0)
    except subprocess.TimeoutExpired:
        return "failed: gave up its pipe"
    known = {-signal.SIGXCPU: "over-limit: time", -signal.SIGKILL: KILLED}
    return known.get(status, f"failed: exit status {status}")


def _kill_program(process: subprocess.Popen[bytes]) -> None:
    """End a program's process with all that it has started, and close its pipes."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait(timeout=10.0)
    for stream in (process.stdin, process.stdout):
        cast(FileIO, stream).close()


@cache
def has_no_network() -> bool:
    """Return whether a process here can give up its network."""
    code = f"import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare({_CLONE_NEWUSER | _CLONE_NEWNET}) != 0)"
    try:
        done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return hasattr(ctypes.CDLL(None), "unshare") and done.returncode == 0
