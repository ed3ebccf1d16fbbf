"""`harness sql`: a user's statement in a process of its own. Its memory is bounded by the operating system and its time by the
caller, for the database's own limits do not reach into every function (`repeat`, `range`, `levenshtein`).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from harness import limits
from harness.errors import HarnessError, StoreError, UsageError
from harness.store.read import Answer, Limits, Snapshot

START_SECONDS = 5.0
"""What the process may take besides its statement."""
_ROOM = 128 << 20
"""Memory beside the database's, for its threads and for the answer's text."""


class _Question(msgspec.Struct, frozen=True):
    results: str
    statement: str
    limits: Limits


class _Reply(msgspec.Struct, frozen=True):
    answer: Answer = Answer()
    refused: str = ""
    usage: bool = True


def ask(results: Path, statement: str, limits: Limits) -> Answer:
    """The answer of one SELECT statement. Raises UsageError (also where it takes more than its limits), StoreError."""
    question = msgspec.json.encode(_Question(str(results), statement, limits))
    with subprocess.Popen(
        [sys.executable, "-P", "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            said, complaint = process.communicate(question, limits.seconds + START_SECONDS)
        except subprocess.TimeoutExpired:
            raise UsageError(f"the statement took longer than {limits.seconds:g} s") from None
        finally:
            process.kill()
    try:
        reply = msgspec.msgpack.decode(said, type=_Reply)  # JSON would lack NaN and infinities
    except msgspec.MsgspecError:
        if process.returncode > 0 and b"MemoryError" not in complaint and b"bad_alloc" not in complaint:
            raise StoreError(f"the statement's process failed: {complaint.decode(errors='replace')[-400:]}") from None
        raise UsageError(_too_large(limits)) from None
    if reply.refused:
        raise (UsageError if reply.usage else StoreError)(reply.refused)
    return reply.answer


def _too_large(limits: Limits) -> str:
    return f"the statement needs more than {limits.memory >> 20:,} MiB of memory"


def _serve() -> None:
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=_Question)
    try:
        with (
            Snapshot(Path(question.results), memory=question.limits.memory) as snapshot,
            limits.memory(question.limits.memory + _ROOM),
        ):
            reply = _Reply(snapshot.sql(question.statement, question.limits))
    except HarnessError as error:
        reply = _Reply(refused=str(error), usage=isinstance(error, UsageError))
    except MemoryError:
        reply = _Reply(refused=_too_large(question.limits))
    sys.stdout.buffer.write(msgspec.msgpack.encode(msgspec.to_builtins(reply, enc_hook=str)))


if __name__ == "__main__":
    _serve()
