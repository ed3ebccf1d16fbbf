"""One step of one learner as journal rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from harness.engines.protocol import TermReport, UpdateReport
from harness.exchange.receiving import Received
from harness.experience.answers import AnswerId, Group, PeerAnswer
from harness.experience.records import AnswerRecord, Rollout, Scores
from harness.learning.terms import Term
from harness.session.cell.learners import Learner
from harness.store.rows import ExchangeRow, StepRow, TermRow, TraceRow
from harness.store.symptoms import is_empty, is_unboxed

NAN = float("nan")


def step_row(
    learner: Learner,
    step: int,
    own: Sequence[Group],
    others: Sequence[Sequence[Group]],
    received: Received,
    terms: Sequence[Term],
    report: UpdateReport,
    kl_step: float,
    kl_base: float,
    again: Sequence[Group] = (),
    dropped: Sequence[Group] = (),
) -> StepRow:
    """`received` has used answers marked. again: the second round; dropped: groups that dynamic sampling replaced. Both are
    counted as rollouts and generated tokens alone."""
    sampled = _count_answers(own)
    hinted = _count_answers(again)
    replaced = _count_answers(dropped)
    rewards = np.concatenate([group.rewards for group in own]) if own else np.empty(0)
    failed = _failed(own)
    of_peers = [term for term in report.terms if term.source == "peer"]
    mean, second = _moments(of_peers)
    sent = len(received.admitted) + received.refused_count
    refused = sum(not entry.accepted for _, entry in received.admitted) + received.refused_count
    used = sum(entry.used for _, entry in (*received.learnable, *received.scored))
    return StepRow(
        policy=learner.name,
        step=step,
        version=learner.engine.version,
        reward_mean=float(rewards.mean()) if rewards.size else NAN,
        right=sampled.right,
        wrong=sampled.wrong,
        invalid=sampled.invalid,
        truncated=sampled.truncated,
        empty=sampled.empty,
        unboxed=sampled.unboxed,
        answers=sampled.answers,
        answer_tokens_mean=sampled.tokens / sampled.answers if sampled.answers else NAN,
        entropy=sampled.surprise / sampled.tokens if sampled.tokens else NAN,
        loss=report.loss,
        gradient_norm=report.gradient_norm,
        updates=report.updates,
        own_gradient_norm=report.own_gradient_norm,
        peer_gradient_norm=report.peer_gradient_norm,
        own_peer_cosine=report.own_peer_cosine,
        kl_step=kl_step,
        kl_base=kl_base,
        sampler_drift=report.drift.mean,
        sampler_drift_p99=report.drift.p99,
        sampler_drift_outside=report.drift.outside,
        weight_second_moment=second,
        effective_sample_size=mean**2 / second if second > 0 else NAN,
        clipped_share=_clipped(of_peers),
        refused_share=refused / sent if sent else NAN,
        peer_received=sum(isinstance(r, AnswerRecord | Scores) for r, _ in received.admitted),
        peer_used=used,
        prompts=sum(bool(g.answers) for g in own),  # with `sampling: split` others answer the rest
        prompts_all_wrong=len(failed),
        prompts_rescued=rescued(own, others),
        hinted_prompts=len(again),
        hinted_answers=hinted.answers,
        hinted_right=hinted.right,
        peer_only_support_share=_peer_only(terms, report.terms, failed),
        rollouts=sampled.answers + hinted.answers + replaced.answers,
        generated_tokens=sampled.tokens + hinted.tokens + replaced.tokens,
        trained_tokens=report.trained_tokens,
        exchanged_tokens=sum(a.tokens.size for a, _ in received.learnable),
        exchanged_bytes=sum(e.bytes for _, e in received.admitted),
        generate_seconds=learner.clock.cpu("generate"),
        verify_seconds=learner.clock.cpu("verify"),
        exchange_seconds=learner.clock.cpu("exchange"),
        score_seconds=learner.clock.cpu("score"),
        train_seconds=learner.clock.cpu("train"),
    )


class _CountedAnswers(NamedTuple):
    """Answers of some groups by what became of them. tokens: in all. surprise: minus the sum of their log-probabilities, nats."""

    answers: int
    right: int
    wrong: int
    invalid: int
    truncated: int
    empty: int
    unboxed: int
    tokens: int
    surprise: float


def _count_answers(groups: Sequence[Group]) -> _CountedAnswers:
    answers = [answer for group in groups for answer in group.answers]
    verdicts = [answer.verdict.value for answer in answers]
    return _CountedAnswers(
        answers=len(answers),
        right=verdicts.count("right"),
        wrong=verdicts.count("wrong"),
        invalid=sum(not answer.verdict.valid for answer in answers),
        truncated=sum(not answer.finished for answer in answers),
        empty=sum(is_empty(answer.text) for answer in answers),
        unboxed=sum(is_unboxed(answer.text) for answer in answers),
        tokens=sum(answer.tokens.size for answer in answers),
        surprise=-float(sum(answer.logprobs.sum(dtype=np.float64) for answer in answers)),
    )


def rescued(own: Sequence[Group], others: Sequence[Sequence[Group]]) -> int:
    """Prompts that only peers solved at this step."""
    return len(_failed(own) & {g.prompt.id for groups in others for g in groups if (g.rewards > 0).any()})


def _failed(own: Sequence[Group]) -> set[str]:
    return {g.prompt.id for g in own if g.valid and not (g.rewards > 0).any()}


def mark_used(
    received: Received, terms: Sequence[Term], reports: Sequence[TermReport], again: Sequence[Group] = ()
) -> None:
    """Peer answers, hints and scores behind a nonzero gradient."""
    behind = defaultdict[AnswerId, list[ExchangeRow]](list)
    for scored, entry in received.scored:
        behind[scored].append(entry)
    for group in again:
        if group.prompt.hint and (hinted := received.entries.get(group.prompt.hint)):
            for own, _ in group.named:
                behind[own].append(hinted)
    for term, report in zip(terms, reports, strict=True):
        moved = [answer for answer, tokens in zip(term.answers, report.moved, strict=True) if tokens]
        for origin in (answer.origin for answer in moved if answer.origin is not None):
            if term.source == "peer":
                used = [received.entries[origin]] if origin in received.entries else []
            else:
                used = behind[origin] if term.objective.form != "kl" else []
            for entry in used:
                entry.used = True


def term_rows(policy: str, step: int, report: UpdateReport) -> list[TermRow]:
    return [
        TermRow(
            policy=policy, step=step, name=t.name, source=t.source, answers=t.answers, active=t.active, tokens=t.tokens,
            active_tokens=t.active_tokens, clipped_tokens=t.clipped_tokens, loss=t.loss, ratios=t.ratios,
            ratio_mean=t.ratio_mean, ratio_second=t.ratio_second, gradient_norm=t.gradient_norm,
        )
        for t in report.terms
    ]  # fmt: skip


def k3(old: Sequence[np.ndarray], new: Sequence[np.ndarray]) -> float:
    """Mean of exp(new - old) - 1 - (new - old) over tokens: KL(old || new) from samples of old, nats per token."""
    if not old:
        return NAN
    difference = np.concatenate(new).astype(np.float64) - np.concatenate(old).astype(np.float64)
    return float((np.expm1(difference) - difference).mean()) if difference.size else NAN


def _moments(terms: Sequence[TermReport]) -> tuple[float, float]:
    known = [t for t in terms if t.ratios]
    count = sum(t.ratios for t in known) or NAN
    return sum(t.ratios * t.ratio_mean for t in known) / count, sum(t.ratios * t.ratio_second for t in known) / count


def _clipped(terms: Sequence[TermReport]) -> float:
    pushed = sum(t.clipped_tokens + t.active_tokens for t in terms)
    return sum(t.clipped_tokens for t in terms) / pushed if pushed else NAN


def _peer_only(terms: Sequence[Term], reports: Sequence[TermReport], failed: set[str]) -> float:
    total = only = 0
    for term, report in zip(terms, reports, strict=True):
        if term.objective.form == "kl":
            continue
        total += report.active_tokens
        for answer, tokens in zip(term.answers, report.moved, strict=True) if term.source == "peer" else ():
            push = 1.0 if term.objective.form == "nll" else float(np.sum(answer.advantage))
            only += tokens * (answer.prompt_id in failed and term.weight * answer.weight * push > 0)
    return only / total if total else NAN


PER_STEP = 2


def trace_rows(learner: Learner, step: int, own: Sequence[Group], received: Received) -> list[TraceRow]:
    """Those that were learnt from first."""
    groups = {g.prompt.id: g for g in own if g.answers}
    inbox = received.inbox
    answers = [a for box in (inbox.answers, inbox.successes) for peers in box.values() for a in peers]
    known = [(a, received.entries[a.id]) for a in answers if a.prompt_id in groups]
    chosen = sorted(known, key=lambda pair: not pair[1].used)[:PER_STEP]
    return [_row(learner, step, groups[a.prompt_id], a, entry.used, received) for a, entry in chosen]


def _row(learner: Learner, step: int, group: Group, answer: PeerAnswer, used: bool, received: Received) -> TraceRow:
    record = received.originals[answer.id]
    content = answer.content
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
