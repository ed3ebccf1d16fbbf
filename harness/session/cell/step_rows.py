"""One step of one learner as journal rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from harness.engines.protocol import TermReport, UpdateReport
from harness.exchange.receiving import Received
from harness.experience.answers import AnswerId, Group, PeerAnswer
from harness.experience.records import AnswerRecord, Rollout, Scores
from harness.learning.terms import Term
from harness.session.cell.learners import Learner
from harness.store.rows import ExchangeRow, StepRow, TaskCurveRow, TaskRow, TermRow, TraceRow
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
    """Make the journal's row of one learner at one step.

    own, others: the step's groups of the learner and of each other policy. received: what came from peers, with used answers
    marked (`mark_used`). again: the second round; dropped: groups that dynamic sampling replaced; both are counted as rollouts
    and generated tokens alone. kl_step, kl_base: nats per token from the policy before the step and from its base; NaN where
    they were not measured."""
    sampled = _count_answers(own)
    hinted = _count_answers(again)
    replaced = _count_answers(dropped)
    failed = _all_wrong_prompts(own)
    asked_prompts = sum(bool(group.answers) for group in own)  # with `sampling: split` others answer the rest
    mean_tokens = sampled.tokens / sampled.answers if sampled.answers else NAN
    entropy = sampled.surprise / sampled.tokens if sampled.tokens else NAN
    rollouts = sampled.answers + hinted.answers + replaced.answers
    generated_tokens = sampled.tokens + hinted.tokens + replaced.tokens
    peer_terms = [term for term in report.terms if term.source == "peer"]
    mean_ratio, second_moment = _ratio_moments(peer_terms)
    # Kish's effective size, as a share of the answers or tokens that have a ratio
    effective_size = mean_ratio**2 / second_moment if second_moment > 0 else NAN
    arrived = _count_arrivals(received)
    drift = report.drift
    clock = learner.clock
    return StepRow(
        policy=learner.name,
        step=step,
        version=learner.engine.version,
        reward_mean=_mean_reward(own),
        right=sampled.right,
        wrong=sampled.wrong,
        invalid=sampled.invalid,
        truncated=sampled.truncated,
        empty=sampled.empty,
        unboxed=sampled.unboxed,
        answers=sampled.answers,
        answer_tokens_mean=mean_tokens,
        entropy=entropy,
        loss=report.loss,
        gradient_norm=report.gradient_norm,
        updates=report.updates,
        own_gradient_norm=report.own_gradient_norm,
        peer_gradient_norm=report.peer_gradient_norm,
        own_peer_cosine=report.own_peer_cosine,
        kl_step=kl_step,
        kl_base=kl_base,
        sampler_drift=drift.mean,
        sampler_drift_p99=drift.p99,
        sampler_drift_outside=drift.outside,
        weight_second_moment=second_moment,
        effective_sample_size=effective_size,
        clipped_share=_clipped_share(peer_terms),
        refused_share=arrived.refused_share,
        peer_received=arrived.messages,
        peer_used=arrived.used,
        prompts=asked_prompts,
        prompts_all_wrong=len(failed),
        prompts_rescued=count_rescued(own, others),
        hinted_prompts=len(again),
        hinted_answers=hinted.answers,
        hinted_right=hinted.right,
        peer_only_support_share=_peer_only(terms, report.terms, failed),
        rollouts=rollouts,
        generated_tokens=generated_tokens,
        trained_tokens=report.trained_tokens,
        exchanged_tokens=arrived.tokens,
        exchanged_bytes=arrived.bytes,
        generate_seconds=clock.cpu("generate"),
        verify_seconds=clock.cpu("verify"),
        exchange_seconds=clock.cpu("exchange"),
        score_seconds=clock.cpu("score"),
        train_seconds=clock.cpu("train"),
    )


def _mean_reward(own: Sequence[Group]) -> float:
    """Return the mean reward of all valid answers; NaN where there is none."""
    if not own:
        return NAN
    rewards = np.concatenate([group.rewards for group in own])  # (A,) of the valid answers
    return float(rewards.mean()) if rewards.size else NAN


class _Arrivals(NamedTuple):
    """What reached a learner in a step. refused_share: of all that was sent to it, NaN where nothing was. messages: answers and
    scores that were let in; used: those behind a gradient. tokens: of answers to learn from, in the learner's tokens. bytes: of
    all records let in."""

    refused_share: float
    messages: int
    used: int
    tokens: int
    bytes: int


def _count_arrivals(received: Received) -> _Arrivals:
    """Count what came from peers, with used entries marked before."""
    entries = [entry for _, entry in received.admitted]
    sent = len(entries) + received.refused_count
    refused = sum(not entry.accepted for entry in entries) + received.refused_count
    messages = [record for record, _ in received.admitted if isinstance(record, AnswerRecord | Scores)]
    to_learn_from = (*received.learnable, *received.scored)
    return _Arrivals(
        refused_share=refused / sent if sent else NAN,
        messages=len(messages),
        used=sum(entry.used for _, entry in to_learn_from),
        tokens=sum(answer.tokens.size for answer, _ in received.learnable),
        bytes=sum(entry.bytes for entry in entries),
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
    """Count a step's answers by verdict, and sum what means are taken of."""
    answers = [answer for group in groups for answer in group.answers]
    verdicts = [answer.verdict.value for answer in answers]
    undecided = [answer for answer in answers if not answer.verdict.valid]
    cut_off = [answer for answer in answers if not answer.finished]
    texts = [answer.text for answer in answers]
    # Summed in doubles, answer by answer: another order would change the last digits
    logprobs = [answer.logprobs.sum(dtype=np.float64) for answer in answers]
    return _CountedAnswers(
        answers=len(answers),
        right=verdicts.count("right"),
        wrong=verdicts.count("wrong"),
        invalid=len(undecided),
        truncated=len(cut_off),
        empty=sum(map(is_empty, texts)),
        unboxed=sum(map(is_unboxed, texts)),
        tokens=sum(answer.tokens.size for answer in answers),
        surprise=-float(sum(logprobs)),
    )


def task_rows(policy: str, step: int, own: Sequence[Group], others: Sequence[Sequence[Group]]) -> list[TaskRow]:
    """Make, in mixed training, a row for each task that the step asks the policy; else none."""
    rows = []
    asked_tasks = [group.prompt.task for group in own if group.prompt.task and group.answers]
    for task in dict.fromkeys(asked_tasks):
        groups = [group for group in own if group.prompt.task == task]
        counted = _count_answers(groups)
        row = TaskRow(
            policy=policy,
            step=step,
            task=task,
            prompts=sum(bool(group.answers) for group in groups),
            answers=counted.answers,
            right=counted.right,
            wrong=counted.wrong,
            invalid=counted.invalid,
            truncated=counted.truncated,
            prompts_all_wrong=len(_all_wrong_prompts(groups)),
            prompts_rescued=count_rescued(groups, others),
        )
        rows.append(row)
    return rows


def task_curve_rows(policy: str, step: int, probed: Mapping[str, tuple[float, int]]) -> list[TaskCurveRow]:
    """Make, in mixed training, a point of each task's learning curve; else none. probed: accuracy and answers by task."""
    return [
        TaskCurveRow(policy=policy, step=step, task=task, accuracy=accuracy, answers=answers)
        for task, (accuracy, answers) in probed.items()
        if task
    ]


def count_rescued(own: Sequence[Group], others: Sequence[Sequence[Group]]) -> int:
    """Count the prompts that only peers solved at this step."""
    solved_by_peers: set[str] = set()
    for groups in others:
        solved_by_peers.update(group.prompt.id for group in groups if _is_solved(group))
    return len(_all_wrong_prompts(own) & solved_by_peers)


def _all_wrong_prompts(own: Sequence[Group]) -> set[str]:
    """Return the ids of all-wrong prompts: at least one answer could be judged, and none is right."""
    return {group.prompt.id for group in own if group.valid and not _is_solved(group)}


def _is_solved(group: Group) -> bool:
    return bool((group.rewards > 0).any())


def mark_used(
    received: Received, terms: Sequence[Term], reports: Sequence[TermReport], again: Sequence[Group] = ()
) -> None:
    """Mark the ledger's entries of peer answers, hints and scores that stand behind a nonzero gradient.

    reports: one for each term; `moved` has the number of tokens with a gradient for each of its answers. A penalty to the base
    policy moves own answers without anything from a peer, so it marks nothing."""
    helped = _entries_that_helped(received, again)
    for term, report in zip(terms, reports, strict=True):
        for answer, moved_tokens in zip(term.answers, report.moved, strict=True):
            origin = answer.origin
            if not moved_tokens or origin is None:
                continue
            if term.source == "peer":
                if origin in received.entries:
                    received.entries[origin].used = True
            elif term.objective.form != "kl":
                for entry in helped.get(origin, ()):
                    entry.used = True


def _entries_that_helped(received: Received, again: Sequence[Group]) -> dict[AnswerId, list[ExchangeRow]]:
    """List by own answer the entries of scores that it got from peers, and of the hint under which it was sampled."""
    helped = defaultdict[AnswerId, list[ExchangeRow]](list)
    for scored, entry in received.scored:
        helped[scored].append(entry)
    for group in again:
        hint = group.prompt.hint
        hinted = received.entries.get(hint) if hint else None
        if hinted is None:
            continue
        for own, _ in group.named:
            helped[own].append(hinted)
    return helped


def term_rows(policy: str, step: int, report: UpdateReport) -> list[TermRow]:
    """Make a row of each term of the step."""
    return [_term_row(policy, step, term) for term in report.terms]


def _term_row(policy: str, step: int, term: TermReport) -> TermRow:
    return TermRow(
        policy=policy,
        step=step,
        name=term.name,
        source=term.source,
        answers=term.answers,
        active=term.active,
        tokens=term.tokens,
        active_tokens=term.active_tokens,
        clipped_tokens=term.clipped_tokens,
        loss=term.loss,
        ratios=term.ratios,
        ratio_mean=term.ratio_mean,
        ratio_second=term.ratio_second,
        gradient_norm=term.gradient_norm,
    )


def k3_divergence(old: Sequence[np.ndarray], new: Sequence[np.ndarray]) -> float:
    """Compute the mean of exp(new - old) - 1 - (new - old) over tokens: KL(old || new) from samples of old, nats per token."""
    if not old:
        return NAN
    before = np.concatenate(old).astype(np.float64)  # (N,)
    after = np.concatenate(new).astype(np.float64)  # (N,)
    difference = after - before
    if not difference.size:
        return NAN
    k3 = np.expm1(difference) - difference
    return float(k3.mean())


def _ratio_moments(terms: Sequence[TermReport]) -> tuple[float, float]:
    """Return the mean and second moment of the ratios of all terms together; NaN where no term has a ratio."""
    known = [term for term in terms if term.ratios]
    count = sum(term.ratios for term in known) or NAN
    total = sum(term.ratios * term.ratio_mean for term in known)
    total_of_squares = sum(term.ratios * term.ratio_second for term in known)
    return total / count, total_of_squares / count


def _clipped_share(terms: Sequence[TermReport]) -> float:
    """Return the share of clipped tokens among those that would move the policy without clipping."""
    clipped = sum(term.clipped_tokens for term in terms)
    active = sum(term.active_tokens for term in terms)
    pushed = clipped + active
    return clipped / pushed if pushed else NAN


def _peer_only(terms: Sequence[Term], reports: Sequence[TermReport], failed: set[str]) -> float:
    """Return the share of tokens with a gradient that make a peer's answer likelier at a prompt which the learner failed: support
    that it has from peers alone."""
    moved_in_all = 0
    moved_by_peers = 0
    for term, report in zip(terms, reports, strict=True):
        if term.objective.form == "kl":
            continue
        moved_in_all += report.active_tokens
        if term.source != "peer":
            continue
        for answer, tokens in zip(term.answers, report.moved, strict=True):
            push = 1.0 if term.objective.form == "nll" else float(np.sum(answer.advantage))
            made_likelier = term.weight * answer.weight * push > 0
            if made_likelier and answer.prompt_id in failed:
                moved_by_peers += tokens
    return moved_by_peers / moved_in_all if moved_in_all else NAN


PER_STEP = 2


def trace_rows(learner: Learner, step: int, own: Sequence[Group], received: Received) -> list[TraceRow]:
    """Make rows of at most `PER_STEP` peer answers beside an own one; those that were learnt from come first."""
    groups = {group.prompt.id: group for group in own if group.answers}
    answers: list[PeerAnswer] = []
    for box in (received.inbox.answers, received.inbox.successes):
        for peers in box.values():
            answers += peers
    known = [(answer, received.entries[answer.id]) for answer in answers if answer.prompt_id in groups]
    learnt_first = sorted(known, key=lambda pair: not pair[1].used)
    rows = []
    for answer, entry in learnt_first[:PER_STEP]:
        rows.append(_trace_row(learner, step, groups[answer.prompt_id], answer, entry.used, received))
    return rows


def _trace_row(
    learner: Learner, step: int, group: Group, answer: PeerAnswer, used: bool, received: Received
) -> TraceRow:
    """Make the row of one peer answer beside the learner's first own one, with both sides' tokens in bytes."""
    own = group.answers[0]
    record = received.originals[answer.id]
    source_pieces: list[int] = []
    source_logprobs: list[float] = []
    if isinstance(record, Rollout):
        source_pieces = record.pieces
        source_logprobs = record.logprobs
    content = answer.content
    receiver_pieces = learner.codec.read([content])[0].pieces
    return TraceRow(
        step=step,
        author=answer.author,
        receiver=learner.name,
        prompt_id=answer.prompt_id,
        prompt=group.prompt.text,
        gold=group.prompt.gold,
        own_text=own.text,
        own_verdict=own.verdict.value,
        peer_text=answer.text,
        peer_verdict=answer.verdict.value,
        used=used,
        index=answer.index,
        source_pieces=source_pieces,
        source_logprobs=source_logprobs,
        receiver_pieces=receiver_pieces.tolist(),
        aligned=_logprobs_of_content(answer.aligned, content.size),
        receiver_logprobs=_logprobs_of_content(answer.receiver_old, content.size),
    )


def _logprobs_of_content(logprobs: Float32[np.ndarray, "T"] | None, size: int) -> list[float]:
    """Return the log-probabilities (nats) of the tokens before the end; none where there are none."""
    if logprobs is None:
        return []
    values: list[float] = logprobs[:size].tolist()
    return values
