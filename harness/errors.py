"""Every exception the harness raises on purpose.

```
HarnessError (exit code 1)
    UsageError (exit code 2)
        SuiteError
        PluginError
        DataError
    InfeasibleError
    CellError (the other cells go on)
        TrainingError
        EngineError
            RoomError (exit code 2)
        VerificationError
        CheckpointError
        FencedError
    DiskFullError
    ExchangeError
    TokenizationError
    StoreError
```
"""

from __future__ import annotations

from enum import StrEnum

__all__ = [
    "CellError",
    "CheckpointError",
    "DataError",
    "DiskFullError",
    "EngineError",
    "ExchangeError",
    "Fault",
    "FencedError",
    "HarnessError",
    "InfeasibleError",
    "PluginError",
    "RoomError",
    "StoreError",
    "SuiteError",
    "TokenizationError",
    "TrainingError",
    "UsageError",
    "VerificationError",
]


class Fault(StrEnum):
    """Why a cell is missing (docs/recovery.md)."""

    NOT_FINITE = "not finite"
    EXPLODED = "exploded"
    COLLAPSED = "collapsed"
    TRUNCATED = "all truncated"
    MEMORY = "out of memory"
    KILLED = "killed"
    SILENT = "hung"
    ENGINE = "engine"
    VERIFIER = "verifier"
    DAMAGED = "damaged"
    BASE = "base failed"
    ERROR = "error"


class HarnessError(Exception):
    """`exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(HarnessError):
    """The caller can mend it; nothing was written."""

    exit_code = 2


class SuiteError(UsageError):
    """source: the file as named. path: the place inside, e.g. `groups[1].policies[0].model`, or empty."""

    def __init__(self, source: str, path: str, problem: str) -> None:
        self.source = source
        self.path = path
        self.problem = problem
        super().__init__(f"{source}: {path}: {problem}" if path else f"{source}: {problem}")


class PluginError(UsageError):
    """A regime, task or engine is unknown or does not load."""


class DataError(UsageError):
    """A benchmark set is absent, altered or unreadable."""


class InfeasibleError(HarnessError):
    """The machine or cluster cannot hold it; the message says what is short."""


class CellError(HarnessError):
    """`harness status` shows the message."""


class TrainingError(CellError):
    """What was learnt is of no use, and would be again."""

    def __init__(self, fault: Fault, words: str) -> None:
        self.fault = fault
        super().__init__(words)


class EngineError(CellError):
    """An engine died, hung or returned nonsense."""


class RoomError(EngineError):
    """A question and its answer are longer than the model's positions; nothing was sampled."""

    exit_code = 2


class VerificationError(CellError):
    """The verifier failed on too many answers."""


class CheckpointError(CellError):
    """Incomplete, altered or of another cell."""


class FencedError(CellError):
    """Another run has taken the cell over; this process must not write into it."""


class DiskFullError(HarnessError):
    """What was finished is kept."""


class _Refused(HarnessError):
    """reason: one of `Refusal`, a counter's name."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        super().__init__(f"{reason}: {detail}" if detail else reason)


class ExchangeError(_Refused):
    """A refused record."""


class TokenizationError(_Refused):
    """A text that a tokenizer cannot represent."""


class StoreError(HarnessError):
    """The result store cannot be read or written."""
