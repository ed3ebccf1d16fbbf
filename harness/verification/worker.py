"""One verifier process: questions on stdin, answers on stdout.

It imports the algebra system once and forks a child that decides under limits of CPU time and memory; the next one takes
milliseconds. A child ended by its limits or a library's fault is a wrong answer; one ended from outside is no verdict.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import pkgutil
import resource
import signal
import sys
from contextlib import suppress
from functools import cache
from io import FileIO

import msgspec
import psutil

from harness.verification.messages import KEPT, Question, hear, say
from harness.verification.scorer import MATH, Math, Scorer, Undecided
from harness.verification.verdict import Verdict

_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}
_RENEW = 3  # exit status of a child that has answered and whose memory is spent
_PR_SET_PDEATHSIG = 1
_MEMORY = 1 << 30  # bytes of an answer


def serve() -> None:
    """Answer questions until stdin closes."""
    for ignored in (signal.SIGINT, signal.SIGTERM):  # the parent gets them too; it closes stdin or kills
        signal.signal(ignored, signal.SIG_IGN)
    requests, replies = FileIO(os.dup(0)), FileIO(os.dup(1), "wb")
    os.dup2(2, 1)  # a library's print must not end up in the replies
    sys.set_int_max_str_digits(4_300)
    Math().prepare()
    gc.freeze()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = psutil.Process().memory_info().vms + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    _reply(replies, Verdict("right", "ready"))
    busy = mmap.mmap(-1, 1)  # shared with the child: whether a question waits for a reply
    while True:
        busy[0] = 0
        before = _used()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = _answer(requests, replies, busy, before)
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            return
        if busy[0]:
            _reply(replies, _cause(status))


def _reply(replies: FileIO, verdict: Verdict, before: float = 0.0) -> None:
    say(replies, msgspec.msgpack.encode((verdict, before + _used())))


def _used() -> float:
    books = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(book.ru_utime + book.ru_stime for book in books)


def _answer(requests: FileIO, replies: FileIO, busy: mmap.mmap, before: float) -> int:
    """The exit status. `busy` falls before the reply is written: one reply too many would answer the next question."""
    with suppress(AttributeError, OSError):  # Linux only
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    while body := hear(requests):
        busy[0] = 1
        question = msgspec.msgpack.decode(body, type=Question)
        scorer = _scorer(question.scorer.reference)
        signal.setitimer(signal.ITIMER_PROF, max(question.scorer.cpu_seconds, 1e-6))
        verdict = judge(question, scorer)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        busy[0] = 0
        _reply(replies, verdict, before)
        if verdict.reason == "over-limit: memory":
            return _RENEW
    return 0


def _cause(status: int) -> Verdict:
    if status == -signal.SIGPROF:
        return Verdict("wrong", "over-limit: time")
    name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    if -status in _FAULTS:
        return Verdict("wrong", f"unreadable: {name}")
    return Verdict("invalid", f"crash: {name}")


@cache
def _scorer(reference: str) -> Scorer | str:
    try:
        found: Scorer = pkgutil.resolve_name(reference)()
        found.prepare()
    except (Exception, SystemExit) as error:  # whatever a plugin's import raises
        return f"crash: {reference} does not load: {type(error).__name__}"
    return found


def judge(question: Question, scorer: Scorer | str) -> Verdict:
    """What ran out is the answer's doing; a scorer that fails leaves it undecided."""
    if isinstance(scorer, str):
        return Verdict("invalid", scorer)
    try:
        if question.scorer.reference == MATH.reference:
            from harness.verification.algebra import equivalent
            from harness.verification.equivalence import decide

            score = decide(question.gold, question.answer, equivalent)
        else:
            score = scorer.score(question.gold, question.answer)
        if not isinstance(score.right, bool):
            return Verdict("invalid", "crash: neither right nor wrong")
        return Verdict("right" if score.right else "wrong", str(score.reason)[:KEPT], str(score.extracted)[:KEPT])
    except Undecided as error:
        return Verdict("invalid", f"undecided: {error}"[:KEPT])
    except MemoryError:
        return Verdict("wrong", "over-limit: memory")
    except RecursionError:
        return Verdict("wrong", "over-limit: recursion")
    except Exception as error:  # sympy and plugins raise anything; the answer counts as undecided
        return Verdict("invalid", f"crash: {type(error).__name__}")


if __name__ == "__main__":
    serve()
