"""Every exception the harness raises on purpose.

HarnessError                 exit code 1 unless a subclass says otherwise
├── UsageError               exit code 2: the caller can mend it
│   ├── SuiteError           a suite file; the message starts with `file: path.inside.it:`
│   ├── PluginError          a regime, task or engine that is unknown or does not load
│   └── DataError            a benchmark set that is absent, altered or unreadable
├── InfeasibleError          the machine or cluster cannot hold what was asked for
├── CellError                one cell failed; the others go on
│   ├── TrainingError        what was learnt is of no use: `fault` says why
│   ├── EngineError          an engine died, hung or returned nonsense
│   ├── VerificationError    the verifier failed on more answers than the suite allows
│   ├── CheckpointError      a checkpoint is incomplete, altered or of another cell
│   └── FencedError          another run has taken the cell over
├── DiskFullError            no room left; what was finished is kept
├── ExchangeError            a record was refused; `reason` is one of `experience.records.Refusal`
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
    """Why a cell is missing: `fault` of a manifest and of the store's `cells` (docs/recovery.md says when each holds)."""

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
    """source: the file, as the user named it; path: the place inside it, e.g. `groups[1].policies[0].model`, or empty."""

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
