"""A few exchanged answers a step, kept in full: what a reader needs to see how text and log-probabilities were carried over."""

from __future__ import annotations

from collections.abc import Sequence

from harness.exchange.receiving import Received
from harness.experience.answers import Group, PeerAnswer
from harness.experience.records import Rollout
from harness.session.cell.learners import Learner
from harness.store.rows import TraceRow

PER_STEP = 2


def trace_rows(learner: Learner, step: int, own: Sequence[Group], received: Received) -> list[TraceRow]:
    """`PER_STEP` of the received answers, those that were learnt from first."""
    groups = {g.prompt.id: g for g in own if g.answers}
    inbox = received.inbox
    answers = [a for box in (inbox.answers, inbox.successes) for found in box.values() for a in found]
    known = [(a, received.entries[a.author, a.prompt_id, a.index]) for a in answers if a.prompt_id in groups]
    chosen = sorted(known, key=lambda pair: not pair[1].used)[:PER_STEP]
    return [_row(learner, step, groups[a.prompt_id], a, entry.used, received) for a, entry in chosen]


def _row(learner: Learner, step: int, group: Group, answer: PeerAnswer, used: bool, received: Received) -> TraceRow:
    record = received.originals[answer.author, answer.prompt_id, answer.index]
    content = answer.tokens[: answer.tokens.size - answer.finished]
    source = record if isinstance(record, Rollout) else None
    return TraceRow(
        step=step,
        author=answer.author,
        receiver=learner.name,
        prompt_id=answer.prompt_id,
        prompt=group.prompt.text,
        gold=group.prompt.gold,
        own_text=group.answers[0].text,
        own_verdict=group.answers[0].verdict.value,
        peer_text=answer.text,
        peer_verdict=answer.verdict.value,
        used=used,
        index=answer.index,
        source_pieces=source.pieces if source else [],
        source_logprobs=source.logprobs if source else [],
        receiver_pieces=learner.codec.read([content])[0].pieces.tolist(),
        aligned=[] if answer.aligned is None else answer.aligned[: content.size].tolist(),
        receiver_logprobs=[] if answer.receiver_old is None else answer.receiver_old[: content.size].tolist(),
    )
