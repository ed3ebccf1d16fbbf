"""One cell's sharing: records out, and peers' records in as the learner's own experience, re-verified and retokenised."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.engines.protocol import TermReport
from harness.exchange.exchange import Exchange
from harness.exchange.ledger import Entry
from harness.experience.answers import Inbox, PeerAnswer, PeerValue, Prompt
from harness.experience.records import SHIPPED, GroupValue, Record, Rollout, Success, Text, TextRollout
from harness.experience.refusal import Refusal
from harness.learning.regime import Need
from harness.learning.terms import Term
from harness.session.cell.members import Member, verdicts
from harness.suite.schema import Sharing
from harness.tokenization.carry import Carried, Refused, carry_over, carry_text
from harness.tokenization.residuals import Budget
from harness.verification.verdict import Verdict
from harness.verification.verifier import Verifier

Key = tuple[str, str, int]
"""(author, prompt id, answer index): names one answer of a step."""


@dataclass(frozen=True, slots=True)
class Received:
    """What one member may learn from in one step.

    entries: the ledger's, of the answers that it may learn from. answers: let in by the exchange; accepted: of them, not
    refused by THL or the verifier either; tokens: of the accepted ones, the learner's, EOS included. bytes: on the wire, of
    all records that the exchange let in. records, refused: that were sent, and those refused by whomever.
    """

    inbox: Inbox
    entries: Mapping[Key, Entry]
    originals: Mapping[Key, Text]
    prompts: frozenset[str]
    answers: int
    accepted: int
    tokens: int
    bytes: int
    records: int
    refused: int


NOTHING = Received(Inbox(), {}, {}, frozenset(), 0, 0, 0, 0, 0, 0)


def collect(
    exchange: Exchange,
    member: Member,
    prompts: Sequence[Prompt],
    earlier: Sequence[Prompt],
    step: int,
    sharing: Sharing,
    verifier: Verifier,
    longest: int,
    behind: int = 0,
) -> Received:
    """Receive, retokenise, verify and score. Refusals by THL and by the verifier go into the same ledger.

    behind: steps that a peer may be behind before it is waited for.
    """
    if not exchange.authors(member.name):
        return NOTHING
    with member.clock.phase("exchange"):
        collected = exchange.collect(member.name, step, [p.id for p in prompts], behind=behind)
        by_id = {p.id: p for p in (*earlier, *prompts)}
        pairs = list(zip(collected.records, collected.entries, strict=True))
        carried = _carry(pairs, member, by_id, sharing, longest)
        values = _values(pairs)
    with member.clock.phase("verify"):
        answers = _verified(carried, by_id, sharing, verifier)
    if Need.RECEIVER_OLD in member.regime.needs and answers:
        with member.clock.phase("score"):
            scores = member.engine.score([by_id[a.prompt_id] for a, _ in answers], [a.tokens for a, _ in answers])
            answers = [(replace(a, receiver_old=s), e) for (a, e), s in zip(answers, scores, strict=True)]
    rollouts, successes = _by_prompt(answers, {"rollout", "text"}), _by_prompt(answers, {"success"})
    sent = [e for r, e in pairs if isinstance(r, Text)]
    kept_out = sum(n for reason, n in collected.refused.items() if reason != Refusal.LATE)  # who is late sent nothing
    return Received(
        Inbox(rollouts, successes, values, _declared(pairs)),
        {(a.author, a.prompt_id, a.index): e for a, e in answers},
        {(r.author, r.prompt_id, r.index): r for r in collected.records if isinstance(r, Text)},
        frozenset(r.prompt_id for r in collected.records),
        answers=len(sent),
        accepted=len(answers),
        tokens=sum(a.tokens.size for a, _ in answers),
        bytes=sum(e.bytes for _, e in pairs),
        records=len(pairs) + kept_out,
        refused=sum(not e.accepted for _, e in pairs) + kept_out,
    )


def _carry(
    pairs: Sequence[tuple[Record, Entry]],
    member: Member,
    prompts: Mapping[str, Prompt],
    sharing: Sharing,
    longest: int,
) -> list[tuple[Text, Entry, Carried]]:
    budget = None
    if sharing.defences.residual_budget:
        budget = Budget(text=sharing.max_text_residual, boundary=sharing.max_boundary_residual)
    kept = []
    for (record, entry), result in _carried(pairs, member, prompts, sharing, budget):
        if isinstance(result, Refused):
            entry.refuse(result.reason)
            continue
        entry.receiver_tokens = result.tokens.size - result.finished
        entry.marks_spelled = result.letters
        for name in ("text", "boundary", "mass", "length", "canonical"):
            setattr(entry, f"residual_{name}", getattr(result.residuals, name))
        if result.tokens.size > longest:
            entry.refuse(Refusal.TOO_LONG)
        else:
            kept.append((record, entry, result))
    return kept


def _carried(
    pairs: Sequence[tuple[Record, Entry]],
    member: Member,
    prompts: Mapping[str, Prompt],
    sharing: Sharing,
    budget: Budget | None,
) -> list[tuple[tuple[Text, Entry], Carried | Refused]]:
    def score(records: Sequence[Rollout], tokens: Sequence[np.ndarray]) -> list[np.ndarray]:
        return member.engine.score([prompts[r.prompt_id] for r in records], tokens)

    rollouts = [(r, e) for r, e in pairs if isinstance(r, Rollout)]
    texts = [(r, e) for r, e in pairs if isinstance(r, TextRollout | Success)]
    carried = carry_over([r for r, _ in rollouts], member.codec, how=sharing.spread, budget=budget, score=score)
    carried += carry_text([r for r, _ in texts], member.codec, budget=budget)
    return list(zip([*rollouts, *texts], carried, strict=True))


def _verified(
    carried: Sequence[tuple[Text, Entry, Carried]],
    prompts: Mapping[str, Prompt],
    sharing: Sharing,
    verifier: Verifier,
) -> list[tuple[PeerAnswer, Entry]]:
    if sharing.defences.reverify:
        said = verdicts(
            verifier,
            [prompts[r.prompt_id].gold for r, _, _ in carried],
            [r.text for r, _, _ in carried],
            [c.finished for _, _, c in carried],
        )
    else:
        said = [Verdict("right" if getattr(r, "reward", 1.0) > 0 else "wrong", "claimed") for r, _, _ in carried]
    answers = []
    for (record, entry, result), verdict in zip(carried, said, strict=True):
        entry.verdict = verdict.value
        if not verdict.valid:
            entry.refuse(Refusal.INVALID)
        elif isinstance(record, Success) and verdict.value != "right":
            entry.refuse(Refusal.UNVERIFIED)
        else:
            answers.append((_peer_answer(record, result, verdict), entry))
    return answers


def _peer_answer(record: Text, carried: Carried, verdict: Verdict) -> PeerAnswer:
    return PeerAnswer(
        author=record.author,
        version=record.version,
        step=record.step,
        prompt_id=record.prompt_id,
        index=record.index,
        tokens=carried.tokens,
        text=record.text,
        finished=carried.finished,
        verdict=verdict,
        aligned=carried.aligned,
        source_logprob=carried.source_logprob,
        source_tokens=carried.source_tokens,
    )


def _values(pairs: Sequence[tuple[Record, Entry]]) -> dict[str, tuple[PeerValue, ...]]:
    found: dict[str, list[PeerValue]] = defaultdict(list)
    for record, _ in pairs:
        if isinstance(record, GroupValue):
            found[record.prompt_id].append(PeerValue(record.author, record.prompt_id, record.count, record.right))
    return {k: tuple(v) for k, v in found.items()}


def _declared(pairs: Sequence[tuple[Record, Entry]]) -> dict[str, tuple[Record, ...]]:
    found: dict[str, list[Record]] = defaultdict(list)
    for record, _ in pairs:
        if type(record) not in SHIPPED:
            found[record.prompt_id].append(record)
    return {k: tuple(v) for k, v in found.items()}


def _by_prompt(answers: Sequence[tuple[PeerAnswer, Entry]], kinds: set[str]) -> dict[str, tuple[PeerAnswer, ...]]:
    found: dict[str, list[PeerAnswer]] = defaultdict(list)
    for answer, entry in answers:
        if entry.kind in kinds:
            found[answer.prompt_id].append(answer)
    return {k: tuple(v) for k, v in found.items()}


def mark_used(received: Received, terms: Sequence[Term], reports: Sequence[TermReport]) -> None:
    """Note in the ledger which peer answers gave a nonzero gradient, as the update's reports of these terms say."""
    for term, report in zip(terms, reports, strict=True):
        for answer, tokens in zip(term.answers, report.moved, strict=True):
            if term.source == "peer" and answer.origin is not None and tokens:
                author, index = answer.origin
                entry = received.entries.get((author, answer.prompt_id, index))
                if entry is not None:
                    entry.used = True
