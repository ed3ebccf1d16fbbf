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
│   └── FencedError          a newer start of the cell has taken its folder over
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
    """Why a cell is missing: `fault` of a manifest and of the store's `cells`, NULL there for a cell that has not failed.

    The first four are the training's own; `harness.session.cell.health` says when each holds.
    """

    NOT_FINITE = "not finite"
    """A loss or a gradient is NaN or infinite."""
    EXPLODED = "exploded"
    """The loss is far out."""
    COLLAPSED = "collapsed"
    """No answer is right any more."""
    TRUNCATED = "all truncated"
    """No answer ends by itself any more."""
    MEMORY = "out of memory"
    """Of the machine or of a GPU."""
    KILLED = "killed"
    """The worker process ended without a word."""
    SILENT = "hung"
    """The worker process gave no sign of life."""
    ENGINE = "engine"
    """An EngineError."""
    VERIFIER = "verifier"
    """A VerificationError."""
    DAMAGED = "damaged"
    """A file of the cell is torn or altered, or cannot be read or written."""
    BASE = "base failed"
    """The base checkpoint that it starts from could not be made."""
    ERROR = "error"
    """Of a plugin, or of ours."""


class HarnessError(Exception):
    """Base of all harness errors. `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(HarnessError):
    """The request itself is wrong; nothing was written."""

    exit_code = 2


class SuiteError(UsageError):
    """A suite file is invalid.

    Parameters
    ----------
    source
        The file, as the user named it.
    path
        The place inside it, e.g. `groups[1].policies[0].model`; empty for the file as a whole.
    problem
        What is wrong there.
    """

    def __init__(self, source: str, path: str, problem: str) -> None:
        self.source, self.path, self.problem = source, path, problem
        super().__init__(f"{source}: {path}: {problem}" if path else f"{source}: {problem}")


class PluginError(UsageError):
    """A named regime, task or engine is unknown, or its module failed to import."""


class DataError(UsageError):
    """A benchmark set cannot be had or is not what its checksum says."""


class InfeasibleError(HarnessError):
    """What was asked for does not fit; the message says what is short and by how much."""


class CellError(HarnessError):
    """One cell could not be finished. The message is the reason shown by `harness status`."""


class TrainingError(CellError):
    """The cell has trained itself into a state in which there is nothing left to measure; again it would do the same.

    Parameters
    ----------
    fault
        Which state.
    words
        What was seen, for `harness status`.
    """

    def __init__(self, fault: Fault, words: str) -> None:
        self.fault = fault
        super().__init__(words)


class EngineError(CellError):
    """An engine died, missed its deadline or returned something unusable."""


class VerificationError(CellError):
    """Too many verdicts are invalid: the verifier, not the model, is at fault."""


class CheckpointError(CellError):
    """A checkpoint is incomplete, altered or belongs to another cell."""


class FencedError(CellError):
    """A newer start of the cell has taken its folder over: this one must write nothing more."""


class DiskFullError(HarnessError):
    """The disk filled up on the way. Finished work is intact."""


class ExchangeError(HarnessError):
    """A peer's record was refused.

    Parameters
    ----------
    reason
        One of `Refusal`; a counter's name.
    detail
        What was found.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        super().__init__(f"{reason}: {detail}" if detail else reason)


class TokenizationError(HarnessError):
    """A text cannot be carried over to another tokenizer.

    Parameters
    ----------
    reason
        As in `ExchangeError`.
    detail
        What was found.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        super().__init__(f"{reason}: {detail}" if detail else reason)


class StoreError(HarnessError):
    """The result store is missing, corrupt or locked by another writer."""
