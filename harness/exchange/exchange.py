"""SEE, the exchange of one cell: publish records, collect what peers published, lose nothing uncounted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

import msgspec

from harness.errors import CheckpointError, ExchangeError
from harness.exchange.admission import Admission, AdmissionState, Quotas, Unfit
from harness.exchange.ledger import Entry, Ledger
from harness.exchange.misbehaviour import Sender
from harness.exchange.transport import Delivery, InProcess, Transport
from harness.exchange.wire import encode
from harness.experience.records import SHIPPED, Record, Rollout
from harness.experience.refusal import Refusal
from harness.suite.edges import Edge, edges_of
from harness.suite.schema import Defences

CEILING_SECONDS = 3600.0
"""The longest wait of all, for runs that switch the deadline off."""


class Recorder(Protocol):
    """Keeps accepted messages, for a replay."""

    def record(self, step: int, author: str, messages: Sequence[bytes]) -> None: ...


@dataclass(frozen=True, slots=True)
class Collected:
    """What one receiver got. `entries[i]` is the ledger's entry of `records[i]`: the receiver fills it in.

    Order: suite order of the authors, then step, prompt, index. missing: authors not heard of by the deadline.
    """

    records: tuple[Record, ...] = ()
    entries: tuple[Entry, ...] = ()
    missing: tuple[str, ...] = ()
    refused: Counter[str] = field(default_factory=Counter)
    waited: float = 0.0


class Exchange:
    """The policies of one cell, and who listens to whom.

    policies: names in suite order. edges: (author, receiver) pairs, see `edges_of`. kinds: the types the regime shares.
    max_staleness: steps that a record may be old; 0 is lockstep. deadline: seconds that `collect` waits by default; in one
    process, where every policy has published before the first collects, there is nothing to wait for. ceiling: the wait
    when the deadline is switched off.
    """

    def __init__(
        self,
        policies: Sequence[str],
        edges: Iterable[Edge],
        *,
        kinds: frozenset[type[Record]] = SHIPPED,
        max_staleness: int = 0,
        deadline: float = 0.0,
        ceiling: float = CEILING_SECONDS,
        quotas: Quotas | None = None,
        defences: Defences | None = None,
        transport: Transport | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        if len(set(policies)) != len(policies):
            raise ValueError(f"policies share a name: {', '.join(policies)}")
        if max_staleness < 0 or not 0 <= deadline <= ceiling:
            raise ValueError(f"max_staleness {max_staleness} and deadline {deadline} must lie in [0, {ceiling}]")
        self.policies = tuple(policies)
        self.edges = edges_of(policies, edges)
        self.deadline, self.ceiling = deadline, ceiling
        self.defences = defences or Defences()
        self.transport = transport or InProcess(policies)
        self.ledger = Ledger()
        self._recorder = recorder
        self._reached: dict[str, dict[str, int]] = {receiver: {} for receiver in policies}
        """Per receiver and author, the last step that the author is known to have finished."""
        self._early: dict[str, dict[tuple[str, int], Delivery]] = defaultdict(dict)
        self._rank = {policy: rank for rank, policy in enumerate(policies)}
        self._gates = {
            receiver: Admission(
                receiver,
                [author for author, to in self.edges if to == receiver],
                policies,
                kinds,
                max_staleness,
                quotas or Quotas(),
                self.defences,
            )
            for receiver in policies
        }

    def publish(self, author: str, step: int, records: Sequence[Record], sender: Sender | None = None) -> int:
        """Send to all receivers of `author`, also when there is nothing to say. Returns the bytes sent to each.

        sender: where the author is under a condition. A record that cannot be encoded is refused here and stands in the
        ledger once per receiver.
        """
        messages, failed = [], []
        for record in records:
            try:
                messages.append(encode(record))
            except ExchangeError as error:
                failed.append((record, error.reason))
        for receiver in self.receivers(author):
            self.ledger.extend(_entry(step, author, receiver, 0, reason, record) for record, reason in failed)
        outgoing = messages if sender is None else sender.messages(step, messages)
        return 0 if outgoing is None else self.post(author, step, outgoing)

    def post(self, author: str, step: int, messages: Sequence[bytes]) -> int:
        """Send ready-made messages: a condition's, or a replay's."""
        for receiver in self.receivers(author):
            self.transport.send(author, receiver, step, messages)
        return sum(len(message) for message in messages)

    def receivers(self, author: str) -> tuple[str, ...]:
        return tuple(receiver for sender, receiver in self.edges if sender == author)

    def authors(self, receiver: str) -> tuple[str, ...]:
        return tuple(author for author, to in self.edges if to == receiver)

    def collect(
        self,
        receiver: str,
        step: int,
        prompts: Sequence[str],
        authors: Sequence[str] | None = None,
        deadline: float | None = None,
        behind: int = 0,
    ) -> Collected:
        """What peers sent to `receiver` up to `step`. Never raises for what a peer did.

        prompts: ids of the step's prompts, in order. authors: to wait for; all that have an edge to the receiver unless
        given. deadline: seconds from now, the exchange's own unless given. behind: steps that an awaited author may be behind;
        what a peer sends ahead, by no more steps than that, is kept until its step.
        """
        started = monotonic()
        wait = self.deadline if deadline is None else deadline
        if not self.defences.deadline:
            wait = self.ceiling
        expected = self.authors(receiver) if authors is None else tuple(authors)
        deliveries, missing = self._receive(receiver, step, behind, expected, min(wait, self.ceiling))
        waited = monotonic() - started
        gate = self._gates[receiver]
        gate.open(step, prompts)
        accepted: list[tuple[Record, Entry, bytes]] = []
        entries: list[Entry] = []
        for delivery in sorted(deliveries, key=lambda delivery: self._rank.get(delivery.sender, len(self._rank))):
            admitted, refused = _admit(gate, delivery)
            accepted += admitted
            entries += refused
        accepted.sort(key=lambda item: (self._rank[item[0].author], *gate.order(item[0])))
        entries += [_entry(step, author, receiver, 0, Refusal.LATE) for author in missing]
        self.ledger.extend([entry for _, entry, _ in accepted] + entries)
        if self._recorder is not None:
            for author in self.authors(receiver):
                self._recorder.record(step, author, [m for _, entry, m in accepted if entry.author == author])
        counts: Counter[str] = Counter()
        for entry in entries:
            counts[entry.reason] += max(1, entry.messages)
        return Collected(
            records=tuple(record for record, _, _ in accepted),
            entries=tuple(entry for _, entry, _ in accepted),
            missing=missing,
            refused=counts,
            waited=waited,
        )

    def state(self) -> bytes:
        """What the receivers remember of earlier steps, to checkpoint between steps. Messages under way are not in it."""
        return msgspec.msgpack.encode({to: gate.state() for to, gate in self._gates.items()}, order="deterministic")

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

    def _receive(
        self, receiver: str, step: int, behind: int, expected: Sequence[str], wait: float
    ) -> tuple[list[Delivery], tuple[str, ...]]:
        """Deliveries until every expected author has finished the step or the time is up; authors that had not."""
        gate, end, reached = self._gates[receiver], monotonic() + wait, self._reached[receiver]
        deliveries: list[Delivery] = []
        arrived = [*self._early.pop(receiver, {}).values(), *self.transport.receive(receiver, 0.0)]
        while True:
            for delivery in arrived:
                claimed = min(delivery.step, step + behind)
                reached[delivery.sender] = max(reached.get(delivery.sender, -1), claimed)
                ahead = step < delivery.step <= step + behind
                # One delivery an author and step: a flood is not worth keeping.
                if (
                    not ahead
                    or self._early[receiver].setdefault((delivery.sender, delivery.step), delivery) is not delivery
                ):
                    deliveries.append(delivery)
            done = {author for author in expected if reached.get(author, -1) >= step - behind}
            missing = tuple(author for author in expected if author not in done)
            awaited = set(missing) - (gate.absent if self.defences.deadline else set())
            left = end - monotonic()
            if not awaited or left <= 0:
                gate.absent = (gate.absent | set(missing)) - done
                return deliveries, missing
            arrived = self.transport.receive(receiver, left)


def _admit(gate: Admission, delivery: Delivery) -> tuple[list[tuple[Record, Entry, bytes]], list[Entry]]:
    """Records let in with their entries and bytes, and the entries of what was refused.

    Messages without a readable header are summed up by reason, so that a flood does not become a flood of entries.
    """
    accepted: list[tuple[Record, Entry, bytes]] = []
    refused: list[Entry] = []
    unread: dict[str, Entry] = {}

    def entry(size: int, reason: str = "", record: Record | None = None) -> Entry:
        return _entry(gate.step, delivery.sender, gate.receiver, size, reason, record)

    def sum_up(reason: str, messages: int, size: int) -> None:
        alike = unread.setdefault(reason, entry(0, reason))
        alike.messages += messages
        alike.bytes += size

    for message in delivery.messages:
        size = len(message)
        if not gate.within_quota(delivery.sender, size):
            sum_up(Refusal.QUOTA, 1, size)
            continue
        try:
            record = gate.admit(delivery.sender, message)
        except Unfit as error:
            refused.append(entry(size, error.reason, error.record))
        except ExchangeError as error:
            sum_up(error.reason, 1, size)
        else:
            accepted.append((record, entry(size, record=record), message))
    if delivery.dropped:
        sum_up(Refusal.QUOTA, delivery.dropped, delivery.dropped_bytes)
    return accepted, refused + list(unread.values())


def _entry(step: int, author: str, receiver: str, size: int, reason: str = "", record: Record | None = None) -> Entry:
    """record: None where none could be read; then `messages` starts at 0."""
    entry = Entry(
        step=step, author=author, receiver=receiver, bytes=size, accepted=not reason, reason=str(reason), messages=0
    )
    if record is not None:
        entry.messages, entry.kind = 1, str(record.__struct_config__.tag)
        entry.prompt_id, entry.index = record.prompt_id, getattr(record, "index", 0)
        entry.made, entry.version = record.step, record.version
        entry.source_tokens = len(record.tokens) if isinstance(record, Rollout) else 0
    return entry
