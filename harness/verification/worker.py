"""One killable verifier process: reads questions on stdin, answers on stdout, dies rather than overrun its limits.

Run by `pool` as ``python -m harness.verification.worker LIMITS``, LIMITS being JSON. CPU time is bounded by RLIMIT_CPU, moved
ahead before each pair; memory by RLIMIT_AS. A dead worker tells the pool by its exit status which limit it met.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys

import msgspec
import psutil

from harness.verification.equivalence import Algebra, OverLimit, Unreadable, compare
from harness.verification.messages import HEADER, MAX_FRAME, Limits, Question, Reply, read_exactly, write


def serve(limits: Limits) -> None:
    """Answer questions until stdin closes."""
    for ignored in (signal.SIGINT, signal.SIGTERM):  # meant for whoever asks, who closes stdin or kills
        signal.signal(ignored, signal.SIG_IGN)
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library's print must not end up in the replies
    sys.set_int_max_str_digits(4_300)
    from harness.verification.algebra import equivalent  # imports sympy: a second, and only here

    equivalent("\\frac{x}{2}", "0.5x")  # builds the parser's tables before limits apply
    gc.freeze()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    base = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (base + limits.memory_bytes, base + limits.memory_bytes))
    write(replies, Reply(right=True, reason="ready"))
    while (header := read_exactly(requests, HEADER.size)) is not None:
        (size,) = HEADER.unpack(header)
        body = read_exactly(requests, size) if size <= MAX_FRAME else None
        if body is None:
            return
        question = msgspec.msgpack.decode(body, type=Question)
        _allow_cpu(limits.cpu_seconds)
        reply = decide(question, equivalent)
        write(replies, reply)
        if reply.reason == "memory":
            return


def decide(question: Question, algebra: Algebra) -> Reply:
    """Right, wrong, or None with ``memory`` or ``crash`` when the algebra system failed on a pair within the limits."""
    try:
        return Reply(right=compare(question.gold, question.answer, algebra))
    except OverLimit as limit:
        return Reply(right=False, reason=f"over-limit: {limit}")
    except Unreadable as fault:
        return Reply(right=False, reason=f"unreadable: {fault}")
    except MemoryError:
        return Reply(right=None, reason="memory")
    except RecursionError:
        return Reply(right=None, reason="crash: recursion")
    except Exception as error:  # sympy raises anything; what it was is reported, and the pair counts as undecided
        return Reply(right=None, reason=f"crash: {type(error).__name__}")


def _allow_cpu(seconds: float) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(usage.ru_utime + usage.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


if __name__ == "__main__":
    serve(msgspec.json.decode(sys.argv[1], type=Limits))
