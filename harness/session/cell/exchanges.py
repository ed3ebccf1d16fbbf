"""A cell's exchange: edges, bad peers, recording and replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from harness.errors import CellError, StoreError
from harness.exchange.exchange import Exchange, Quotas
from harness.exchange.misbehaviour import Sender, condition_of
from harness.exchange.replay import ReplaySource, ReplayWriter
from harness.experience.answers import Group
from harness.experience.records import ChangedScores, Draft, Record, Rollout, Scores
from harness.learning.regime import Need
from harness.learning.terms import Schedule
from harness.session.cell.learners import Learner
from harness.session.cell.manifests import label_of
from harness.store.manifest import read_manifests, read_suite, suite_files
from harness.store.rows import ExchangeRow
from harness.suite.cells import Cell
from harness.suite.schema import Edge, Replay
from harness.suite.seeds import derive_seed
from harness.tokenization.retokenise import noncanonical_shares

_MEMORY_WITHOUT_LIMIT = 8
RECORDING = "exchange.replay"
ASKS = "/asks"  # behind a draft sender's name


class ExchangeState(msgspec.Struct, frozen=True):
    """The receivers' memory, and what bad peers hold back."""

    exchange: bytes
    senders: dict[str, bytes]
    asks: bytes = b""


def _senders_of_bad_peers(cell: Cell, learners: Sequence[Learner], asks: bool) -> dict[str, Sender]:
    """Return what stands between a bad peer and its receivers, by the name that it sends under. asks: it also sends drafts, under
    a name of their own, so that each line keeps its own memory and draws."""
    lines = ("", ASKS) if asks else ("",)
    senders = {}
    for learner in learners:
        if learner.policy.condition is None:
            continue
        seed = derive_seed(cell.seed, "condition", cell.group.name, learner.name)
        for line in lines:
            senders[learner.name + line] = Sender(condition_of(learner.policy.condition), seed)
    return senders


def _kinds_that_arrive(shares: frozenset[type[Record]], learners: Sequence[Learner]) -> frozenset[type[Record]]:
    """Return the kinds of records that learners collect: what regimes share, and in place of drafts the scores that come back."""
    kinds = shares - {Draft}
    if Draft in shares:
        started = any(Need.START_SCORES in learner.regime.needs for learner in learners)
        kinds |= {ChangedScores if started else Scores}
    return kinds


class CellExchange:
    """The way between a cell's policies: live peers, bad peers and recordings, with the lines for drafts where a regime asks."""

    def __init__(
        self,
        cell: Cell,
        folder: Path,
        learners: Sequence[Learner],
        strengths: Callable[[], Mapping[str, float]],
        done: int,
        lockstep: bool = True,
    ) -> None:
        """Open the lines. strengths: measures who is strong, where the direction depends on it. done: steps already in the
        recording. lockstep: all publish before the first collects."""
        sharing = cell.sharing
        training = cell.training
        replay = cell.variant.replay
        names = [learner.name for learner in learners]
        self._names = names
        self._steps = training.steps
        self._seed = cell.seed
        self._source = _replay_source(replay, cell, folder) if replay else None
        share = replay.share if replay else (1.0, 1.0)
        self._share = Schedule(*share)
        # The recording stands for the live peers, which then send nothing.
        self._stored = replay is not None and replay.peers == "all"
        authors = self._source.authors if self._source else ()
        self._replayed = [author for author in authors if self._stored or author not in names]
        if self._source and not self._replayed:
            heard = ", ".join(authors) or "nobody"
            raise CellError(
                f"the recording is of {heard}; it serves only authors that the group {cell.group.name} lacks"
            )
        kinds = frozenset[type[Record]]().union(*(learner.regime.shares for learner in learners))
        has_drafts = Draft in kinds
        self._writer = ReplayWriter(folder / RECORDING, done if done else -1) if sharing.record and kinds else None
        self._senders = _senders_of_bad_peers(cell, learners, asks=has_drafts)
        open_line = partial(self._open_line, cell, learners, lockstep)
        joined = self._join_policies(cell, strengths)
        edges = joined if kinds else []
        record = self._writer.record if self._writer else None
        self.exchange = open_line(edges, _kinds_that_arrive(kinds, learners), record)
        self.asks: Exchange | None = None
        if has_drafts:  # who listens to a peer asks it
            asked = [(reader, author) for author, reader in self.exchange.edges]
            self.asks = open_line(asked, frozenset({Draft}))
        # Steps back from which answers may still arrive
        self.memory = sharing.max_staleness
        if not sharing.defences.staleness:
            self.memory = max(sharing.max_staleness, _MEMORY_WITHOUT_LIMIT)

    def _open_line(
        self,
        cell: Cell,
        learners: Sequence[Learner],
        lockstep: bool,
        edges: Sequence[Edge],
        kinds: frozenset[type[Record]],
        record: Callable[[int, str, Sequence[bytes]], None] | None = None,
    ) -> Exchange:
        """Open a line between the cell's policies and replayed authors, with the cell's quotas, deadline and defences.

        edges: who sends to whom. kinds: of the records that travel. record: is told all that is sent."""
        sharing = cell.sharing
        training = cell.training
        open_steps = sharing.max_staleness + 1
        rollouts = self._most_rollouts(cell, learners)
        # In lockstep everything has been sent before the first learner collects: to wait would only lose time.
        has_deadline = sharing.defences.deadline or lockstep
        absent = [author for author in self._replayed if author not in self._names]
        return Exchange(
            [*self._names, *absent],
            edges,
            max_staleness=sharing.max_staleness,
            quotas=Quotas.fitting(training.prompts, rollouts, training.max_new_tokens, open_steps),
            defences=sharing.defences.model_copy(update={"deadline": has_deadline}),
            deadline=0.0 if lockstep else sharing.deadline_seconds,
            kinds=kinds,
            record=record,
        )

    def _join_policies(self, cell: Cell, strengths: Callable[[], Mapping[str, float]]) -> list[Edge]:
        """Return who sends to whom: live peers as the suite says, and each replayed author to all but itself."""
        edges: list[Edge] = []
        if not self._stored:
            edges += cell.sharing.among(self._names, strengths)
        for author in self._replayed:
            edges += [(author, reader) for reader in self._names if author != reader]
        return edges

    def _most_rollouts(self, cell: Cell, learners: Sequence[Learner]) -> int:
        """Return the most answers that an author has to a prompt: another run's authors may have more than the learners."""
        rollouts = max(learner.rollouts for learner in learners)
        if self._source:
            rollouts = max(rollouts, self._source.most // cell.training.prompts)
        return rollouts

    def begin(self, step: int) -> None:
        """Send what the recording has of this step, at the share that the schedule gives it."""
        if self._source is not None:
            share = self._share.at(step, self._steps)
            self._source.serve(self.exchange, step, self._replayed, share, self._seed)

    def records(self, learner: Learner, groups: Sequence[Group], step: int, measure: bool = False) -> list[Record]:
        """Make what the regime shares; of a bad peer what it claims. measure: also the share of rollouts' tokens that is not
        canonical (THL)."""
        lines = [line for line in (self.exchange, self.asks) if line is not None]
        if self._stored or not any(line.receivers(learner.name) for line in lines):
            return []
        sender = self._senders.get(learner.name)
        with learner.clock.phase("exchange"):
            claimed = groups if sender is None else sender.claimed(step, groups)
            records = learner.regime.publish(claimed, learner.pieces(claimed))
            records = records if sender is None else sender.altered(step, records)
            return _with_canonical(records, learner) if measure else records

    def publish(self, learner: Learner, records: Sequence[Record], step: int, drafts: bool = False) -> None:
        """Send a learner's records of the step. drafts: those alone, on their own line; else all the others."""
        line: Exchange | None = self.exchange
        name = learner.name
        if drafts:
            line = self.asks
            name += ASKS
        if self._stored or line is None or not line.receivers(learner.name):
            return
        sender = self._senders.get(name)
        with learner.clock.phase("exchange"):
            sent = [record for record in records if isinstance(record, Draft) == drafts]
            if sender is not None:
                sent = sender.scored(step, sent)
            line.publish(learner.name, step, sent, sender)

    def ledger(self) -> list[ExchangeRow]:
        """Take the step's entries by receiver; the ledger forgets them."""
        entries: list[ExchangeRow] = []
        for line in filter(None, (self.asks, self.exchange)):
            entries = entries + line.ledger
            line.ledger = []
        return sorted(entries, key=lambda entry: self._names.index(entry.receiver))

    def state(self) -> ExchangeState:
        """Return what is to be saved; the recording is brought to the disk first."""
        if self._writer is not None:
            self._writer.flush()
        senders = {name: sender.state() for name, sender in self._senders.items()}
        asks = self.asks.state() if self.asks else b""
        return ExchangeState(self.exchange.state(), senders, asks)

    def restore(self, state: ExchangeState) -> None:
        """Take up `state` again. Raises CheckpointError."""
        self.exchange.restore(state.exchange)
        if self.asks is not None:
            self.asks.restore(state.asks)
        for name in self._senders.keys() & state.senders.keys():
            self._senders[name].restore(state.senders[name])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _with_canonical(records: Sequence[Record], learner: Learner) -> list[Record]:
    """Return the records, rollouts with the share of their tokens that encoding the text would not make."""
    answers = [np.array(record.tokens, dtype=np.int32) for record in records if isinstance(record, Rollout)]
    shares = iter(noncanonical_shares(learner.codec, answers))
    measured: list[Record] = []
    for record in records:
        if isinstance(record, Rollout):
            record = msgspec.structs.replace(record, noncanonical=next(shares))
        measured.append(record)
    return measured


def _replay_source(replay: Replay, cell: Cell, folder: Path) -> ReplaySource:
    """Find the finished cell whose recording a cell replays. Raises CellError where there is none, or where it is damaged."""
    recorded = folder.parent.parent / replay.suite
    wanted = f"{cell.group.name}/{replay.regime}/{cell.seed}"
    current: list[Path] = []
    for file in suite_files(recorded):
        current += [recorded / key for key in read_suite(recorded, file).cells]
    for place, manifest in read_manifests(current):
        if label_of(manifest) == wanted and manifest.state == "done" and (place / RECORDING).exists():
            try:
                return ReplaySource(place / RECORDING)
            except StoreError as error:
                raise CellError(str(error)) from None
    raise CellError(
        f"no finished recording of {wanted} in suite {replay.suite!r} (run it with `sharing: {{record: true}}`)"
    )
