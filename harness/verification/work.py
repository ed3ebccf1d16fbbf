"""A limit on the work of one verdict that does not depend on how busy the machine is.

Time does: beside six busy processes a computation takes twice the CPU time, and a limit of time alone gave two verdicts on one
answer. Calls of Python functions are counted instead. The count of a computation is the same on every machine as long as it begins
in the same state, so `processes` gives every question a process forked anew. Counting costs 1.5 to 2.2 times the bare
computation; few answers need it (`equivalence` decides the others without the algebra system).
"""

from __future__ import annotations

import cProfile
import signal
from types import FrameType, TracebackType
from typing import Self

__all__ = ["OverWork", "WorkLimit"]

_LOOK_SECONDS = 0.05  # of CPU time between two looks at the count


class OverWork(BaseException):
    """More calls than allowed; no `Exception`, which the libraries that are called swallow."""


class WorkLimit:
    """Counts the calls of Python functions in its block, in the main thread of a process.

    The block raises OverWork some time after the limit was passed; `passed` tells exactly, also of a block that ended before.
    """

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self._profile = cProfile.Profile(builtins=False, subcalls=False)

    @property
    def passed(self) -> bool:
        """Whether more calls were made than allowed."""
        return sum(entry.callcount for entry in self._profile.getstats()) > self.calls

    def __enter__(self) -> Self:
        signal.signal(signal.SIGVTALRM, self._check_passed)
        signal.setitimer(signal.ITIMER_VIRTUAL, _LOOK_SECONDS, _LOOK_SECONDS)
        self._profile.enable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        self._profile.disable()

    def _check_passed(self, number: int, frame: FrameType | None) -> None:
        """Stop the work where the limit was passed."""
        if self.passed:
            raise OverWork
