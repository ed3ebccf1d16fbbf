"""SEE, the exchange of one cell: publish and admit records, lose nothing uncounted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Condition
from time import monotonic
from types import MappingProxyType

import msgspec

from harness.errors import CheckpointError, ExchangeError
from harness.exchange.misbehaviour import Sender
from harness.experience.records import (
    MAX_MESSAGE_BYTES,
    SHIPPED,
    Record,
    Refusal,
    Rollout,
    Scores,
    decode_record,
    encode_record,
)
from harness.phases import report_progress
from harness.store.rows import ExchangeRow
from harness.suite.schema import Defences, Edge, edges_of

CEILING_SECONDS = 3600.0  # for runs that switch the deadline off
BEAT_SECONDS = 5.0
MEMORY_STEPS = 64  # remembered where the staleness limit is switched off


@dataclass(frozen=True, slots=True)
class Delivery:
    """Messages sent together. sender: the true one, not that of the headers; step: as the sender states it."""

    sender: str
    step: int
    messages: tuple[bytes, ...]


Admitted = tuple[Record, ExchangeRow, bytes]
"""A record that was let in, its entry, and its message."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """What an author may send to one receiver in one step. message: bytes of a single message."""

    messages: int = 1 << 14
    bytes: int = 64 << 20
    message: int = MAX_MESSAGE_BYTES

    @classmethod
    def fitting(cls, prompts: int, answers: int, max_tokens: int, steps: int = 1) -> Quotas:
        """Allow twice what an honest author can need over `steps` steps."""
        records = prompts * (2 * answers + 1) * steps
        record = 1024 + 64 * (max_tokens + 1)
        return cls(2 * records, 2 * records * record, min(MAX_MESSAGE_BYTES, max(1 << 16, 4 * record)))


class StepMemory(msgspec.Struct):
    """Of one step: prompts' positions, records let in, authors' policy versions."""

    prompts: dict[str, int] = {}
    seen: set[tuple[str, str, str, int]] = set()
    versions: dict[str, int] = {}


class AdmissionState(msgspec.Struct, frozen=True):
    """A receiver's memory. absent: authors that missed their last deadline."""

    steps: list[tuple[int, StepMemory]]
    absent: set[str]


class Admission:
    """What one receiver lets in, by its memory of the steps inside the staleness window. authors: those it hears.
    kinds: those its regime shares."""

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
        self.receiver = receiver
        self.authors = tuple(authors)
        self.policies = frozenset(policies)
        self.kinds = kinds
        self.quotas = quotas
        self.defences = defences
        self.window = max_staleness if defences.staleness else max(max_staleness, MEMORY_STEPS)
        self.step = -1
        self._steps: defaultdict[int, StepMemory] = defaultdict(StepMemory)
        self._spent: dict[str, tuple[int, int]] = {}
        self.absent: set[str] = set()

    def open(self, step: int, prompts: Sequence[str]) -> None:
        """Begin a step: quotas are full again, and steps outside the window are forgotten. prompts: ids, in order."""
        if step != self.step:
            self._spent = {}
        self.step = step
        outside = [at for at in self._steps if not step - self.window <= at <= step]
        for at in outside:
            del self._steps[at]
        self._steps[step].prompts = {prompt: position for position, prompt in enumerate(prompts)}

    def admit(self, delivery: Delivery) -> tuple[list[Admitted], list[ExchangeRow]]:
        """Return the records let in, and the rows of what was refused; never raises for what a peer sent. What has no readable
        header is summed up by reason."""
        sender = delivery.sender
        limit = self.quotas.message if self.defences.quotas else MAX_MESSAGE_BYTES
        admitted: list[Admitted] = []
        refused: list[ExchangeRow] = []
        unread: dict[str, ExchangeRow] = {}
        for message in delivery.messages:
            size = len(message)
            try:
                self._spend_quota(sender, size)
                record = decode_record(message, limit, self.kinds)
            except ExchangeError as error:
                alike = unread.setdefault(error.reason, entry_of(self.step, sender, self.receiver, 0, error.reason))
                alike.messages += 1
                alike.bytes += size
                continue
            reason = self._reason_to_refuse(sender, record)
            entry = entry_of(self.step, sender, self.receiver, size, reason, record)
            if reason:
                refused.append(entry)
            else:
                admitted.append((record, entry, message))
        return admitted, refused + list(unread.values())

    def _spend_quota(self, sender: str, size: int) -> None:
        """Count a message against its sender's quota. Raises ExchangeError."""
        messages, total = self._spent.get(sender, (0, 0))
        messages += 1
        total += size
        self._spent[sender] = messages, total
        if self.defences.quotas and (messages > self.quotas.messages or total > self.quotas.bytes):
            raise ExchangeError(Refusal.QUOTA, sender)
        if sender not in self.authors:
            raise ExchangeError(Refusal.NOT_SUBSCRIBED if sender in self.policies else Refusal.UNKNOWN_AUTHOR, sender)

    def _reason_to_refuse(self, sender: str, record: Record) -> str:
        """Return the reason, or empty for a record that passes, which is remembered."""
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
        if self._position_of_prompt(record) is None:
            return Refusal.UNKNOWN_PROMPT
        if not self.defences.header_checks:
            return ""
        if self._contradicts_known_version(record):
            return Refusal.VERSION
        memory = self._steps[record.step]
        memory.versions[record.author] = record.version
        key = record.author, type(record).__name__, record.prompt_id, getattr(record, "index", 0)
        if key in memory.seen:
            return Refusal.DUPLICATE
        memory.seen.add(key)
        return ""

    def _contradicts_known_version(self, record: Record) -> bool:
        """Whether its author sent another version at that step, a higher one before or a lower one after it."""
        for at, memory in self._steps.items():
            known = memory.versions.get(record.author, record.version)
            is_above = at <= record.step and known > record.version
            is_below = at >= record.step and known < record.version
            if is_above or is_below:
                return True
        return False

    def _position_of_prompt(self, record: Record) -> int | None:
        """Find the position of a prompt among the prompts of its step; of a future record, of the present one."""
        return self._steps[min(record.step, self.step)].prompts.get(record.prompt_id)

    def order(self, record: Record) -> tuple[int, int, int, int, str]:
        """Sort key: author in suite order, step, prompt, index, kind."""
        rank = self.authors.index(record.author)
        kind = type(record).__name__
        return rank, record.step, self._position_of_prompt(record) or 0, getattr(record, "index", 0), kind

    def state(self) -> AdmissionState:
        """Return what matters to the next step."""
        oldest = self.step + 1 - self.window
        kept = [(at, memory) for at, memory in sorted(self._steps.items()) if at >= oldest]
        return AdmissionState(kept, self.absent)

    def restore(self, state: AdmissionState) -> None:
        self._steps = defaultdict(StepMemory, state.steps)
        self.absent = set(state.absent)
        self.step = max(self._steps, default=-1)


@dataclass(frozen=True, slots=True)
class Collected:
    """What one receiver got, in `Admission.order`. entries: of the records. missing: authors not heard of by the
    deadline. refused: messages by reason. waited: seconds."""

    records: tuple[Record, ...] = ()
    entries: tuple[ExchangeRow, ...] = ()
    missing: tuple[str, ...] = ()
    refused: Counter[str] = field(default_factory=Counter)
    waited: float = 0.0


class Exchange:
    """policies: in suite order. edges: (author, receiver) pairs. kinds: that the regime shares. max_staleness: steps
    that a record may be old. deadline: seconds that `collect` waits. record: takes (step, author, accepted messages)
    for a replay. ledger: rows of the running step."""

    def __init__(
        self,
        policies: Sequence[str],
        edges: Iterable[Edge],
        *,
        kinds: frozenset[type[Record]] = SHIPPED,
        max_staleness: int = 0,
        deadline: float = 0.0,
        quotas: Quotas | None = None,
        defences: Defences | None = None,
        record: Callable[[int, str, Sequence[bytes]], None] | None = None,
    ) -> None:
        self.policies = tuple(policies)
        self.edges = edges_of(policies, edges)
        self.defences = defences or Defences()
        self.deadline = min(deadline, CEILING_SECONDS) if self.defences.deadline else CEILING_SECONDS
        self._arrived = Condition()
        self._boxes: dict[str, list[Delivery]] = {policy: [] for policy in policies}
        self.ledger: list[ExchangeRow] = []
        self._record = record
        # per receiver and author, the last step known to be finished
        self._reached: dict[str, dict[str, int]] = {receiver: {} for receiver in policies}
        self._early: dict[str, dict[tuple[str, int], Delivery]] = defaultdict(dict)
        self._rank = {policy: rank for rank, policy in enumerate(policies)}
        limits = max_staleness, quotas or Quotas(), self.defences
        self._gates = {to: Admission(to, self.authors(to), policies, kinds, *limits) for to in policies}

    def receivers(self, author: str) -> tuple[str, ...]:
        return tuple(receiver for sender, receiver in self.edges if sender == author)

    def authors(self, receiver: str) -> tuple[str, ...]:
        return tuple(author for author, to in self.edges if to == receiver)

    def publish(self, author: str, step: int, records: Sequence[Record], sender: Sender | None = None) -> None:
        """Send to all receivers of `author`, also nothing; scores only to their reader. sender: for an author under a
        condition. A record that cannot be encoded is refused once per receiver."""
        messages: list[bytes] = []
        addressed: dict[bytes, str] = {}
        for record in records:
            try:
                messages.append(encode_record(record))
                if isinstance(record, Scores):
                    addressed[messages[-1]] = record.reader
            except ExchangeError as error:
                self.ledger += [entry_of(step, author, to, 0, error.reason, record) for to in self.receivers(author)]
        outgoing = messages if sender is None else sender.messages(step, messages)
        if outgoing is not None:
            self.post(author, step, outgoing, addressed)

    def post(
        self, author: str, step: int, messages: Sequence[bytes], addressed: Mapping[bytes, str] = MappingProxyType({})
    ) -> None:
        """Send ready-made messages. addressed: some messages' only receiver."""
        for to in self.receivers(author):
            own = [message for message in messages if addressed.get(message, to) == to]
            self.deliver(Delivery(author, step, tuple(own)), to)

    def deliver(self, delivery: Delivery, receiver: str) -> None:
        """Hand over without waiting; thread-safe."""
        with self._arrived:
            self._boxes[receiver].append(delivery)
            self._arrived.notify_all()

    def _take_deliveries(self, receiver: str, timeout: float) -> list[Delivery]:
        """Take deliveries in each sender's order; waits at most `timeout` seconds for the first."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._boxes[receiver], timeout)
            taken = self._boxes[receiver]
            self._boxes[receiver] = []
        return taken

    def collect(self, receiver: str, step: int, prompts: Sequence[str], behind: int = 0) -> Collected:
        """Return what peers sent up to `step`; never raises for what a peer did. prompts: ids, in order. behind: steps that an
        author may be behind before it is waited for; what is sent ahead by at most one step more is kept."""
        started = monotonic()
        deliveries, missing = self._receive_until(receiver, step, behind)
        waited = monotonic() - started
        gate = self._gates[receiver]
        gate.open(step, prompts)
        admitted: list[Admitted] = []
        refused: list[ExchangeRow] = []
        last = len(self._rank)  # of senders that nobody knows
        for delivery in sorted(deliveries, key=lambda delivery: self._rank.get(delivery.sender, last)):
            admitted_records, refused_rows = gate.admit(delivery)
            admitted += admitted_records
            refused += refused_rows
        admitted.sort(key=lambda item: gate.order(item[0]))
        refused += [entry_of(step, author, receiver, 0, Refusal.LATE) for author in missing]
        entries = tuple(entry for _, entry, _ in admitted)
        self.ledger += [*entries, *refused]
        if self._record is not None:
            for author in self.authors(receiver):
                messages = [message for _, entry, message in admitted if entry.author == author]
                self._record(step, author, messages)
        counts: Counter[str] = Counter()
        for entry in refused:
            counts[entry.reason] += max(1, entry.messages)
        return Collected(tuple(record for record, _, _ in admitted), entries, missing, counts, waited)

    def _receive_until(self, receiver: str, step: int, behind: int) -> tuple[list[Delivery], tuple[str, ...]]:
        """Receive deliveries until every author has finished or the time is up; return them, and who had not finished."""
        gate = self._gates[receiver]
        end = monotonic() + self.deadline
        reached = self._reached[receiver]
        arrived = [*self._early.pop(receiver, {}).values(), *self._take_deliveries(receiver, 0.0)]
        early = self._early[receiver]
        deliveries = list[Delivery]()
        while True:
            for delivery in arrived:
                claimed = min(delivery.step, step + behind)
                reached[delivery.sender] = max(reached.get(delivery.sender, -1), claimed)
                # a peer that has collected what was sent `behind` steps before publishes at once
                ahead = behind > 0 and step < delivery.step <= step + behind + 1
                # one an author and step: a flood is not worth keeping
                if not ahead or early.setdefault((delivery.sender, delivery.step), delivery) is not delivery:
                    deliveries.append(delivery)
            done = {author for author in gate.authors if reached.get(author, -1) >= step - behind}
            missing = tuple(author for author in gate.authors if author not in done)
            awaited = set(missing) - (gate.absent if self.defences.deadline else set())
            left = end - monotonic()
            if not awaited or left <= 0:
                gate.absent = (gate.absent | set(missing)) - done
                return deliveries, missing
            arrived = self._take_deliveries(receiver, min(left, BEAT_SECONDS))
            report_progress()  # waiting for a peer is no silence

    def state(self) -> bytes:
        """Return the receivers' memory between steps, without messages under way."""
        states = {to: gate.state() for to, gate in self._gates.items()}
        return msgspec.msgpack.encode(states, order="deterministic")

    def restore(self, state: bytes) -> None:
        """Take up `state` again. Raises CheckpointError."""
        try:
            states = msgspec.msgpack.decode(state, type=dict[str, AdmissionState])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CheckpointError(f"state of the exchange: {error}") from None
        if set(states) != set(self._gates):
            raise CheckpointError(f"state of the exchange: of {', '.join(states)}, not of {', '.join(self.policies)}")
        for receiver, gate in self._gates.items():
            gate.restore(states[receiver])


def entry_of(
    step: int, author: str, receiver: str, size: int, reason: str = "", record: Record | None = None
) -> ExchangeRow:
    """Make the ledger's entry of one message. size: in bytes. reason: of its refusal, "" where it is accepted. record: None
    where none could be read; then `messages` starts at 0."""
    kind = ""
    prompt_id = ""
    index = version = messages = source_tokens = 0
    made = -1
    if record is not None:
        kind = str(record.__struct_config__.tag)
        prompt_id = record.prompt_id
        index = getattr(record, "index", 0)
        made = record.step
        version = record.version
        messages = 1
        if isinstance(record, Rollout | Scores):
            source_tokens = len(record.logprobs)
    return ExchangeRow(
        step=step,
        author=author,
        receiver=receiver,
        kind=kind,
        prompt_id=prompt_id,
        index=index,
        made=made,
        version=version,
        messages=messages,
        bytes=size,
        source_tokens=source_tokens,
        accepted=not reason,
        reason=str(reason),
    )
