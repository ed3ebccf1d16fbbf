"""The receiving half of the exchange: peers' records in as the learner's own experience, retokenised, re-verified, scored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np
from jaxtyping import Float32, Int32

from harness.exchange.exchange import Exchange
from harness.exchange.ledger import Entry
from harness.experience.answers import Inbox, PeerAnswer, PeerValue, Prompt
from harness.experience.records import SHIPPED, GroupValue, Record, Rollout, Success, Text, TextRollout
from harness.experience.refusal import Refusal
from harness.suite.schema import Sharing
from harness.tokenization.codec import TokenCodec
from harness.tokenization.residuals import Budget
from harness.tokenization.retokenise import Refused, Retokenised, retokenise, retokenise_text
from harness.verification.verdict import Verdict

Key = tuple[str, str, int]
"""(author, prompt id, answer index): names one answer of a step."""
Verify = Callable[[Sequence[str], Sequence[str], Sequence[bool]], Sequence[Verdict]]
"""Golds, texts and whether each answer was finished, to verdicts."""


class Scorer(Protocol):
    """What receiving needs of an engine."""

    def score(
        self, prompts: Sequence[Prompt], answers: Sequence[Int32[np.ndarray, "T"]], /
    ) -> list[Float32[np.ndarray, "T"]]:
        """Log-probabilities of given answers, nats."""


class Phases(Protocol):
    """Where time is accounted."""

    def phase(self, name: str, /) -> AbstractContextManager[object]:
        """The context of one phase."""


class Learner(Protocol):
    """Who receives."""

    @property
    def name(self) -> str: ...

    @property
    def codec(self) -> TokenCodec: ...

    @property
    def engine(self) -> Scorer: ...

    @property
    def clock(self) -> Phases: ...


@dataclass(frozen=True)
class Received:
    """What one learner may learn from in one step.

    admitted: all records that the exchange let in, with the ledger's entries. learnable: of their answers those that neither THL
    nor the verifier refused. kept_out: records that the exchange did not let in, those of authors who were late left out.
    """

    inbox: Inbox = field(default_factory=Inbox)
    admitted: Sequence[tuple[Record, Entry]] = ()
    learnable: Sequence[tuple[PeerAnswer, Entry]] = ()
    kept_out: int = 0

    @cached_property
    def entries(self) -> Mapping[Key, Entry]:
        """The ledger's, of the answers that may be learnt from."""
        return {(a.author, a.prompt_id, a.index): e for a, e in self.learnable}

    @cached_property
    def originals(self) -> Mapping[Key, Text]:
        """Records with an answer, as their authors sent them."""
        return {(r.author, r.prompt_id, r.index): r for r, _ in self.admitted if isinstance(r, Text)}

    @property
    def prompts(self) -> frozenset[str]:
        """Ids of the prompts that a record speaks of."""
        return frozenset(r.prompt_id for r, _ in self.admitted)

    @property
    def answers(self) -> int:
        """Answers that the exchange let in."""
        return sum(isinstance(r, Text) for r, _ in self.admitted)

    @property
    def tokens(self) -> int:
        """Of the answers that may be learnt from, the learner's, EOS included."""
        return sum(a.tokens.size for a, _ in self.learnable)

    @property
    def bytes(self) -> int:
        """On the wire, of all records that the exchange let in."""
        return sum(e.bytes for _, e in self.admitted)

    @property
    def records(self) -> int:
        """That were sent."""
        return len(self.admitted) + self.kept_out

    @property
    def refused(self) -> int:
        """Records refused by whomever."""
        return sum(not e.accepted for _, e in self.admitted) + self.kept_out


@dataclass(frozen=True, slots=True)
class Receiver:
    """How a cell's learners take in what arrives. longest: an answer's tokens at most. scored: whether the learner's own
    log-probabilities of peers' answers are wanted (`Need.RECEIVER_OLD`)."""

    exchange: Exchange
    sharing: Sharing
    verify: Verify
    longest: int
    scored: bool = False

    def collect(
        self, learner: Learner, step: int, prompts: Sequence[Prompt], earlier: Sequence[Prompt] = (), behind: int = 0
    ) -> Received:
        """Receive, retokenise, verify and score. Refusals by THL and by the verifier go into the exchange's ledger.

        earlier: prompts of earlier steps of which stale records may speak. behind: steps that a peer may be behind before it is
        waited for.
        """
        if not self.exchange.authors(learner.name):
            return Received()
        with learner.clock.phase("exchange"):
            collected = self.exchange.collect(learner.name, step, [p.id for p in prompts], behind=behind)
            by_id = {p.id: p for p in (*earlier, *prompts)}
            admitted = list(zip(collected.records, collected.entries, strict=True))
            carried = self.carry(admitted, learner, by_id)
            values = _by_prompt(
                PeerValue(r.author, r.prompt_id, r.count, r.right) for r, _ in admitted if isinstance(r, GroupValue)
            )
        with learner.clock.phase("verify"):
            answers = self._verified(carried, by_id)
        if self.scored and answers:
            with learner.clock.phase("score"):
                scores = learner.engine.score([by_id[a.prompt_id] for a, _ in answers], [a.tokens for a, _ in answers])
                answers = [(replace(a, receiver_old=s), e) for (a, e), s in zip(answers, scores, strict=True)]
        inbox = Inbox(
            _by_prompt(a for a, e in answers if e.kind in {"rollout", "text"}),
            _by_prompt(a for a, e in answers if e.kind == "success"),
            values,
            _by_prompt(r for r, _ in admitted if type(r) not in SHIPPED),
        )
        kept_out = sum(n for reason, n in collected.refused.items() if reason != Refusal.LATE)  # the late sent nothing
        return Received(inbox, admitted, answers, kept_out)

    def carry(
        self, admitted: Sequence[tuple[Record, Entry]], learner: Learner, prompts: Mapping[str, Prompt]
    ) -> list[tuple[Text, Entry, Retokenised]]:
        """Answers in the learner's tokens, those with log-probabilities first; each one's residuals go into its entry."""

        def score(records: Sequence[Rollout], tokens: Sequence[np.ndarray]) -> list[np.ndarray]:
            return learner.engine.score([prompts[r.prompt_id] for r in records], tokens)

        s = self.sharing
        budget = Budget(s.max_text_residual, s.max_boundary_residual) if s.defences.residual_budget else None
        rollouts = [(r, e) for r, e in admitted if isinstance(r, Rollout)]
        texts = [(r, e) for r, e in admitted if isinstance(r, TextRollout | Success)]
        carried = retokenise([r for r, _ in rollouts], learner.codec, how=s.spread, budget=budget, score=score)
        carried += retokenise_text([r for r, _ in texts], learner.codec, budget=budget)
        kept: list[tuple[Text, Entry, Retokenised]] = []
        for (record, entry), result in zip([*rollouts, *texts], carried, strict=True):
            if isinstance(result, Refused):
                entry.refuse(result.reason)
                continue
            entry.receiver_tokens = result.tokens.size - result.finished
            entry.marks_spelled = result.spelled_tags
            for name in ("text", "boundary", "mass", "length", "canonical"):
                setattr(entry, f"residual_{name}", getattr(result.residuals, name))
            if result.tokens.size > self.longest:
                entry.refuse(Refusal.TOO_LONG)
            else:
                kept.append((record, entry, result))
        return kept

    def _verified(
        self, carried: Sequence[tuple[Text, Entry, Retokenised]], prompts: Mapping[str, Prompt]
    ) -> list[tuple[PeerAnswer, Entry]]:
        said: Sequence[Verdict]
        if self.sharing.defences.reverify:
            said = self.verify(
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
                answer = PeerAnswer(
                    author=record.author,
                    version=record.version,
                    step=record.step,
                    prompt_id=record.prompt_id,
                    index=record.index,
                    tokens=result.tokens,
                    text=record.text,
                    finished=result.finished,
                    verdict=verdict,
                    aligned=result.aligned,
                    source_logprob=result.source_logprob,
                    source_tokens=result.source_tokens,
                )
                answers.append((answer, entry))
        return answers


T = TypeVar("T", PeerAnswer, PeerValue, Record)


def _by_prompt(items: Iterable[T]) -> dict[str, tuple[T, ...]]:
    grouped: dict[str, list[T]] = defaultdict(list)
    for one in items:
        grouped[one.prompt_id].append(one)
    return {prompt: tuple(ones) for prompt, ones in grouped.items()}
