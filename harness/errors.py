"""Every exception the harness raises on purpose.

HarnessError                 exit code 1 unless a subclass says otherwise
├── UsageError               exit code 2: the caller can mend it
│   ├── SuiteError           a suite file; the message starts with `file: path.inside.it:`
│   ├── PluginError          a regime, task or engine that is unknown or does not load
│   └── DataError            a benchmark set that is absent, altered or unreadable
├── InfeasibleError          the machine or cluster cannot hold what was asked for
├── CellError                one cell failed; the others go on
│   ├── EngineError          an engine died, hung or returned nonsense
│   ├── VerificationError    the verifier failed on more answers than the suite allows
│   └── CheckpointError      a checkpoint is incomplete, altered or of another cell
├── DiskFullError            no room left; what was finished is kept
├── ExchangeError            a record was refused; `reason` is one of `exchange.Refusal`
├── TokenizationError        a text that a tokenizer cannot represent
└── StoreError               the result store cannot be read or written
"""

from __future__ import annotations


class HarnessError(Exception):
    """Base of all harness errors. `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(HarnessError):
    """The request itself is wrong; nothing was written."""

    exit_code = 2


class SuiteError(UsageError):
    """A suite file is invalid. `path` is the place inside the file, e.g. ``groups[1].policies[0].model``."""

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


class EngineError(CellError):
    """An engine died, missed its deadline or returned something unusable."""


class VerificationError(CellError):
    """Too many verdicts are invalid: the verifier, not the model, is at fault."""


class CheckpointError(CellError):
    """A checkpoint is incomplete, altered or belongs to another cell."""


class DiskFullError(HarnessError):
    """The disk filled up on the way. Finished work is intact."""


class ExchangeError(HarnessError):
    """A peer's record was refused. `reason` is a short machine-readable word, used as a counter's name."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        super().__init__(f"{reason}: {detail}" if detail else reason)


class TokenizationError(HarnessError):
    """A text cannot be carried over to another tokenizer. `reason` as in `ExchangeError`."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        super().__init__(f"{reason}: {detail}" if detail else reason)


class StoreError(HarnessError):
    """The result store is missing, corrupt or locked by another writer."""
