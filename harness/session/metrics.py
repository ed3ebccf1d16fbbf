"""From one step of one member to the rows that the journal keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.engines.protocol import TermReport, UpdateReport
from harness.exchange.ledger import Entry
from harness.learning.experience import Group
from harness.learning.terms import Term
from harness.session.members import Member
from harness.session.sharing import Received
from harness.store.rows import ExchangeRow, StepRow, TermRow

NAN = float("nan")


def step_row(
    member: Member,
    step: int,
    own: Sequence[Group],
    others: Sequence[Sequence[Group]],
    received: Received,
    terms: Sequence[Term],
    report: UpdateReport,
    kl_step: float,
    kl_base: float,
) -> StepRow:
    """Everything that one row says. Entropy is the mean negative log-probability of the sampled tokens, an unbiased estimate."""
    answers = [a for g in own for a in g.answers]
    tokens = sum(a.tokens.size for a in answers)
    rewards = np.concatenate([g.rewards for g in own]) if own else np.empty(0)
    failed = _failed(own)
    peer = [t for t in report.terms if t.source == "peer"]
    return StepRow(
        policy=member.name,
        step=step,
        version=member.engine.version,
        reward_mean=float(rewards.mean()) if rewards.size else NAN,
        right=sum(a.verdict.value == "right" for a in answers),
        wrong=sum(a.verdict.value == "wrong" for a in answers),
        invalid=sum(not a.verdict.valid for a in answers),
        truncated=sum(not a.finished for a in answers),
        answers=len(answers),
        answer_tokens_mean=tokens / len(answers) if answers else NAN,
        entropy=-float(sum(a.logprobs.sum(dtype=np.float64) for a in answers)) / tokens if tokens else NAN,
        loss=report.loss,
        gradient_norm=report.gradient_norm,
        updates=report.updates,
        own_gradient_norm=report.own_gradient_norm,
        peer_gradient_norm=report.peer_gradient_norm,
        own_peer_cosine=report.own_peer_cosine,
        kl_step=kl_step,
        kl_base=kl_base,
        weight_second_moment=_pooled(peer, "ratio_second"),
        effective_sample_size=_effective(peer),
        clipped_share=_clipped(peer),
        refused_share=received.refused / received.records if received.records else NAN,
        peer_received=received.answers,
        peer_used=sum(t.active for t in peer),
        prompts=len(own),
        prompts_all_wrong=len(failed),
        prompts_rescued=rescued(own, others),
        peer_only_support_share=_peer_only(terms, failed),
        rollouts=len(answers),
        generated_tokens=tokens,
        trained_tokens=report.trained_tokens,
        exchanged_tokens=received.tokens,
        exchanged_bytes=received.bytes,
        generate_seconds=member.clock.cpu("generate"),
        verify_seconds=member.clock.cpu("verify"),
        exchange_seconds=member.clock.cpu("exchange"),
        score_seconds=member.clock.cpu("score"),
        train_seconds=member.clock.cpu("train"),
    )


def rescued(own: Sequence[Group], others: Sequence[Sequence[Group]]) -> int:
    """Prompts without a success of one's own that somebody else solved at the same step."""
    return len(_failed(own) & {g.prompt.id for groups in others for g in groups if (g.rewards > 0).any()})


def _failed(own: Sequence[Group]) -> set[str]:
    return {g.prompt.id for g in own if g.valid and not (g.rewards > 0).any()}


def term_rows(policy: str, step: int, report: UpdateReport) -> list[TermRow]:
    return [
        TermRow(
            policy=policy, step=step, name=t.name, source=t.source, answers=t.answers, active=t.active, tokens=t.tokens,
            active_tokens=t.active_tokens, loss=t.loss, ratio_mean=t.ratio_mean, ratio_second=t.ratio_second,
            gradient_norm=t.gradient_norm,
        )
        for t in report.terms
    ]  # fmt: skip


def exchange_rows(entries: Sequence[Entry]) -> list[ExchangeRow]:
    """The ledger's entries as rows; the two structs agree by name."""
    names = [n for n in ExchangeRow.__struct_fields__ if n in Entry.__struct_fields__]
    return [ExchangeRow(**{n: getattr(e, n) for n in names}) for e in entries]


def k3(old: Sequence[np.ndarray], new: Sequence[np.ndarray]) -> float:
    """Mean over tokens of exp(new - old) - 1 - (new - old): an estimate of KL(old || new) from samples of old, in nats."""
    difference = np.concatenate(new).astype(np.float64) - np.concatenate(old).astype(np.float64)
    return float((np.expm1(difference) - difference).mean()) if difference.size else NAN


def _pooled(terms: Sequence[TermReport], name: str) -> float:
    weighted = [(getattr(t, name), t.answers) for t in terms if t.answers and not np.isnan(getattr(t, name))]
    return float(np.average([v for v, _ in weighted], weights=[n for _, n in weighted])) if weighted else NAN


def _effective(terms: Sequence[TermReport]) -> float:
    """(mean r)^2 / mean r^2: the share of the peer data that equally weighted data would need to be as informative."""
    mean, second = _pooled(terms, "ratio_mean"), _pooled(terms, "ratio_second")
    return mean**2 / second if second > 0 else NAN


def _clipped(terms: Sequence[TermReport]) -> float:
    tokens = sum(t.tokens for t in terms)
    return 1 - sum(t.active_tokens for t in terms) / tokens if tokens else NAN


def _peer_only(terms: Sequence[Term], failed: set[str]) -> float:
    """Tokens of peers' answers that are reinforced on prompts without any own success, over all tokens in the loss."""
    total = sum(a.counted for t in terms for a in t.answers if t.objective.form != "kl")
    only = sum(
        a.counted for t in terms if t.source == "peer" for a in t.answers if a.prompt_id in failed and a.advantage > 0
    )
    return only / total if total else NAN
