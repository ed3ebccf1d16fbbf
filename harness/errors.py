"""Every exception the harness raises on purpose.

HarnessError                 exit code 1
├── UsageError               exit code 2: the caller can mend it
│   ├── SuiteError           a suite file: `file: path.inside.it: ...`
│   ├── PluginError          a regime, task or engine is unknown or does not load
│   └── DataError            a benchmark set is absent, altered or unreadable
├── InfeasibleError          the machine or cluster cannot hold it
├── CellError                one cell failed; the others go on
│   ├── TrainingError        `fault` says why what was learnt is of no use
│   ├── EngineError          an engine died, hung or returned nonsense
│   ├── VerificationError    the verifier failed on too many answers
│   ├── CheckpointError      incomplete, altered or of another cell
│   └── FencedError          another run has taken the cell over
├── DiskFullError            what was finished is kept
├── ExchangeError            a refused record; `reason`: `experience.records.Refusal`
├── TokenizationError        a text that a tokenizer cannot represent
└── StoreError               the result store cannot be read or written
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
    "StoreError",
    "SuiteError",
    "TokenizationError",
    "TrainingError",
    "UsageError",
    "VerificationError",
]


class Fault(StrEnum):
    """Why a cell is missing: in its manifest and the store's `cells` (docs/recovery.md)."""

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
    """Nothing was written."""

    exit_code = 2


class SuiteError(UsageError):
    """source: the file as named. path: the place inside, e.g. `groups[1].policies[0].model`, or empty."""

    def __init__(self, source: str, path: str, problem: str) -> None:
        self.source, self.path, self.problem = source, path, problem
        super().__init__(f"{source}: {path}: {problem}" if path else f"{source}: {problem}")


class PluginError(UsageError): ...


class DataError(UsageError): ...


class InfeasibleError(HarnessError):
    """The message says what is short and by how much."""


class CellError(HarnessError):
    """The message is the reason shown by `harness status`."""


class TrainingError(CellError):
    """Trained again the cell would do the same."""

    def __init__(self, fault: Fault, words: str) -> None:
        self.fault = fault
        super().__init__(words)


class EngineError(CellError): ...


class VerificationError(CellError): ...


class CheckpointError(CellError): ...


class FencedError(CellError):
    """This process must write nothing more into the cell."""


class DiskFullError(HarnessError): ...


class _Refused(HarnessError):
    """reason: one of `Refusal`, a counter's name."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        super().__init__(f"{reason}: {detail}" if detail else reason)


class ExchangeError(_Refused): ...


class TokenizationError(_Refused): ...


class StoreError(HarnessError): ...
