"""What one receiver lets in: decoding, header checks, staleness, duplicates and quotas, one message at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from harness.errors import ExchangeError
from harness.exchange.wire import MAX_MESSAGE_BYTES, decode
from harness.experience.records import Record
from harness.experience.refusal import Refusal
from harness.suite.schema import Defences

MEMORY_STEPS = 64
"""How far back prompts and duplicates are remembered where the staleness limit is switched off."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """What one author may send to one receiver in one step. message: bytes of a single message."""

    messages: int = 1 << 14
    bytes: int = 64 << 20
    message: int = MAX_MESSAGE_BYTES

    def __post_init__(self) -> None:
        if min(self.messages, self.bytes, self.message) < 1 or self.message > MAX_MESSAGE_BYTES:
            raise ValueError(f"quotas are positive and a message has at most {MAX_MESSAGE_BYTES} bytes: {self}")

    @classmethod
    def fitting(cls, prompts: int, answers: int, max_tokens: int, steps: int = 1) -> Quotas:
        """Twice what an honest author of `prompts` groups of `answers` each can need over `steps` steps."""
        records = prompts * (2 * answers + 1) * steps
        record = 1024 + 64 * (max_tokens + 1)
        return cls(2 * records, 2 * records * record, min(MAX_MESSAGE_BYTES, max(1 << 16, 4 * record)))


class StepMemory(msgspec.Struct):
    """What a gate remembers of one step: its prompts' positions, the records let in, and each author's policy version."""

    prompts: dict[str, int] = {}
    seen: set[tuple[str, str, str, int]] = set()
    versions: dict[str, int] = {}


class AdmissionState(msgspec.Struct, frozen=True):
    """What a gate remembers, to checkpoint. absent: authors that missed their last deadline."""

    steps: list[tuple[int, StepMemory]]
    absent: set[str]


class Admission:
    """One receiver's memory: prompts, versions and duplicates of the steps inside the staleness window.

    authors: that have an edge to the receiver. kinds: the record types which the regime shares.
    """

    def __init__(
        self,
        receiver: str,
        authors: Sequence[str],
        policies: Sequence[str],
        kinds: frozenset[type[Record]],
        max_staleness: int,
        quotas: Quotas,
        defences: Defences,
    ) -> None:
        self.receiver, self.authors, self.policies = receiver, frozenset(authors), frozenset(policies)
        self.kinds, self.quotas, self.defences = kinds, quotas, defences
        self.window = max_staleness if defences.staleness else max(max_staleness, MEMORY_STEPS)
        self.step = -1
        self._steps: defaultdict[int, StepMemory] = defaultdict(StepMemory)
        self._spent: dict[str, tuple[int, int]] = {}
        self.absent: set[str] = set()

    def open(self, step: int, prompts: Sequence[str]) -> None:
        """Begin a step, or go on with it; what lies outside the window is forgotten."""
        if step != self.step:
            self._spent = {}
        self.step = step
        for at in [at for at in self._steps if not step - self.window <= at <= step]:
            del self._steps[at]
        self._steps[step].prompts = {prompt: position for position, prompt in enumerate(prompts)}

    def _position(self, record: Record) -> int | None:
        """Of the record's prompt among those of its step. Future records are measured by the present."""
        return self._steps[min(record.step, self.step)].prompts.get(record.prompt_id)

    def within_quota(self, sender: str, size: int) -> bool:
        """Count a message of `size` bytes. Without the defence always true."""
        messages, total = self._spent.get(sender, (0, 0))
        self._spent[sender] = messages, total = messages + 1, total + size
        return not self.defences.quotas or (messages <= self.quotas.messages and total <= self.quotas.bytes)

    def admit(self, sender: str, message: bytes) -> Record:
        """The record, if it is let in. Raises ExchangeError with the reason; `Unfit` once the header is known."""
        if sender not in self.authors:
            raise ExchangeError(Refusal.NOT_SUBSCRIBED if sender in self.policies else Refusal.UNKNOWN_AUTHOR, sender)
        record = decode(message, self.quotas.message if self.defences.quotas else MAX_MESSAGE_BYTES, self.kinds)
        reason = self._unfit(sender, record)
        if reason is not None:
            raise Unfit(reason, record)
        return record

    def _unfit(self, sender: str, record: Record) -> Refusal | None:
        """Reason against the header. A record that passes is remembered."""
        if type(record) not in self.kinds:
            return Refusal.WRONG_TYPE
        if record.author not in self.authors:
            return Refusal.UNKNOWN_AUTHOR
        if record.author != sender and self.defences.header_checks:
            return Refusal.FORGED
        age = self.step - record.step
        if age < (0 if self.defences.staleness else -self.window):
            return Refusal.FUTURE
        if age > self.window:
            return Refusal.STALE
        if self._position(record) is None:
            return Refusal.UNKNOWN_PROMPT
        if self.defences.header_checks:
            if not self._version_fits(record):
                return Refusal.VERSION
            index = getattr(record, "index", 0)
            key = record.author, type(record).__name__, record.prompt_id, index
            seen = self._steps[record.step].seen
            if key in seen:
                return Refusal.DUPLICATE
            seen.add(key)
        return None

    def _version_fits(self, record: Record) -> bool:
        """One version per author and step, and never a lower one at a later step."""
        version = record.version
        for at, memory in self._steps.items():
            known = memory.versions.get(record.author, version)
            if (at <= record.step and known > version) or (at >= record.step and known < version):
                return False
        self._steps[record.step].versions[record.author] = version
        return True

    def order(self, record: Record) -> tuple[int, int, int, str]:
        """Sort key within one author: step, prompt order of that step, index, kind."""
        return record.step, self._position(record) or 0, getattr(record, "index", 0), type(record).__name__

    def state(self) -> AdmissionState:
        """What matters to the next step."""
        oldest = self.step + 1 - self.window
        return AdmissionState([(at, memory) for at, memory in sorted(self._steps.items()) if at >= oldest], self.absent)

    def restore(self, state: AdmissionState) -> None:
        self._steps, self.absent = defaultdict(StepMemory, state.steps), set(state.absent)
        self.step = max(self._steps, default=-1)


class Unfit(ExchangeError):
    """A well-formed record that is refused for its header; `record` goes into the ledger."""

    def __init__(self, reason: Refusal, record: Record) -> None:
        super().__init__(reason, f"{record.author}, step {record.step}, prompt {record.prompt_id}")
        self.record = record
