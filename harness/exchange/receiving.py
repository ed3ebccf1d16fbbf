"""The receiving half of the exchange: peers' records as the learner's own experience."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float32, Int32

from harness.errors import ExchangeError
from harness.exchange import opening
from harness.exchange.exchange import Exchange
from harness.experience.answers import Answer, AnswerId, Group, Inbox, PeerAnswer, PeerScores, Prompt
from harness.experience.records import AnswerRecord, ChangedScores, Record, Refusal, Scores, answers_to_send
from harness.store.rows import ExchangeRow
from harness.suite.schema import Sharing
from harness.tokenization.codec import TokenCodec, closes_thought, leaves_thought_open
from harness.tokenization.retokenise import Retokenised, align_logprobs, explain_excess, retokenise_answers
from harness.verification.verdict import Verdict

Verify = Callable[[Sequence[Prompt], Sequence[str], Sequence[bool]], Sequence[Verdict]]
"""Questions, texts and whether each answer was finished, to verdicts."""


class LogprobScorer(Protocol):
    @property
    def version(self) -> int:
        """Optimiser updates made."""

    def score(
        self, prompts: Sequence[Prompt], answers: Sequence[Int32[np.ndarray, "T"]], /
    ) -> list[Float32[np.ndarray, "T"]]:
        """Log-probabilities of given answers, nats."""

    def reads(self, prompt: Prompt, /) -> str:
        """Return a prompt's text as the policy reads it."""


class PhaseTimer(Protocol):
    def phase(self, name: str, /) -> AbstractContextManager[object]:
        """Return the context of one phase."""


class ReceivingLearner(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def codec(self) -> TokenCodec: ...

    @property
    def engine(self) -> LogprobScorer: ...

    @property
    def clock(self) -> PhaseTimer: ...


@dataclass(frozen=True)
class Received:
    """What one learner may learn from in one step. admitted: records let in, with their rows. learnable: their answers that
    neither THL nor the verifier refused. scored: ids of own answers with the rows of their scores. refused_count: records that
    admission refused, but for late ones."""

    inbox: Inbox = field(default_factory=Inbox)
    admitted: Sequence[tuple[Record, ExchangeRow]] = ()
    learnable: Sequence[tuple[PeerAnswer, ExchangeRow]] = ()
    scored: Sequence[tuple[AnswerId, ExchangeRow]] = ()
    refused_count: int = 0

    @cached_property
    def entries(self) -> Mapping[AnswerId, ExchangeRow]:
        return {answer.id: entry for answer, entry in self.learnable}

    @cached_property
    def leads(self) -> Mapping[AnswerId, tuple[int, ...]]:
        """What stands between prompt and answer, where something does."""
        return {answer.id: answer.lead for answer, _ in self.learnable if answer.lead}

    @cached_property
    def originals(self) -> Mapping[AnswerId, AnswerRecord]:
        """Records with an answer, as their authors sent them."""
        return {AnswerId(r.author, r.prompt_id, r.index): r for r, _ in self.admitted if isinstance(r, AnswerRecord)}


def _score_behind(
    leads: Sequence[tuple[int, ...]],
    scorer: LogprobScorer,
    prompts: Sequence[Prompt],
    answers: Sequence[Int32[np.ndarray, "T"]],
) -> list[Float32[np.ndarray, "T"]]:
    """Log-probabilities of answers' tokens, nats, each read behind its lead (`PeerAnswer.lead`)."""
    whole = []
    for lead, tokens in zip(leads, answers, strict=True):
        if lead:
            tokens = np.concatenate([np.array(lead, np.int32), tokens])  # (L + T,)
        whole.append(tokens)
    logprobs = scorer.score(prompts, whole)
    return [values[len(lead) :] for lead, values in zip(leads, logprobs, strict=True)]


@dataclass(frozen=True, slots=True)
class _Room:
    """What a learner's prompts leave for an answer. Each is read once."""

    learner: ReceivingLearner
    prompts: Mapping[str, Prompt]
    _read: dict[str, str] = field(default_factory=dict)

    def lead_of(self, record: AnswerRecord) -> tuple[int, ...] | None:
        """Return the ids that the learner reads between its prompt and this answer: those that close a thought which the prompt
        opens, by what it says behind the question, and the answer does not close. None where the learner's tokenizer cannot close
        it."""
        question = self.prompts[record.prompt_id].text
        behind = self._text(record.prompt_id).rpartition(question)[2]
        if not leaves_thought_open(behind) or closes_thought(record.text):
            return ()
        return self.learner.codec.closing_of_thought(behind) or None

    def holds(self, prompt_id: str, tokens: int) -> bool:
        """Whether the model has positions for the prompt and so many tokens."""
        positions: int | None = getattr(self.learner.engine, "positions", None)
        text = self._text(prompt_id)
        if positions is None or len(text.encode()) + tokens <= positions:  # a token is at least one byte long
            return True
        return self.learner.codec.count(text) + tokens <= positions

    def _text(self, prompt_id: str) -> str:
        if prompt_id not in self._read:
            self._read[prompt_id] = self.learner.engine.reads(self.prompts[prompt_id])
        return self._read[prompt_id]


def _scores_of_draft(
    learner: ReceivingLearner, record: AnswerRecord, text: Retokenised, logprobs: Float32[np.ndarray, "T"]
) -> Scores:
    """Return what a learner sends back for a draft. logprobs: nats, of the text's tokens and then of its end."""
    size = text.ends.size
    pieces = np.diff(text.ends, prepend=0).tolist()
    return Scores(
        author=learner.name,
        version=learner.engine.version,
        step=record.step,
        prompt_id=record.prompt_id,
        reader=record.author,
        index=record.index,
        logprobs=logprobs[:size].tolist(),
        pieces=opening.as_sent(pieces, record.text, text.space),
        eos_logprob=float(logprobs[size:].sum()) if record.finished else 0.0,
    )


def _with_start_scores(
    scores: Scores, record: AnswerRecord, text: Retokenised, started: Float32[np.ndarray, "T"]
) -> ChangedScores:
    """Return the same scores beside those under the weights that the learner started from."""
    size = text.ends.size
    return ChangedScores(
        **{name: getattr(scores, name) for name in Scores.__struct_fields__},
        start_logprobs=started[:size].tolist(),
        start_eos_logprob=float(started[size:].sum()) if record.finished else 0.0,
    )


def _make_peer_answer(record: AnswerRecord, result: Retokenised, verdict: Verdict) -> PeerAnswer:
    """Return a peer's answer as the learner has it: in its own tokens, by its own verdict."""
    end_tokens = result.tokens.size - result.ends.size
    return PeerAnswer(
        author=record.author,
        version=record.version,
        step=record.step,
        prompt_id=record.prompt_id,
        index=record.index,
        tokens=result.tokens,
        text=record.text,
        finished=record.finished,
        verdict=verdict,
        aligned=result.aligned,
        source_logprob=result.source_logprob,
        source_tokens=result.source_tokens,
        ending=end_tokens or 1,
        exact=result.exact,
        lead=result.lead,
    )


def _with_receiver_scores(
    answers: Sequence[tuple[AnswerRecord, PeerAnswer, ExchangeRow]],
    learner: ReceivingLearner,
    prompts: Mapping[str, Prompt],
) -> list[tuple[AnswerRecord, PeerAnswer, ExchangeRow]]:
    """Return the answers with the learner's own log-probabilities of them (`Need.RECEIVER_OLD`)."""
    given = [answer for _, answer, _ in answers]
    asked_of = [prompts[answer.prompt_id] for answer in given]
    leads = [answer.lead for answer in given]
    scores = _score_behind(leads, learner.engine, asked_of, [answer.tokens for answer in given])
    scored = []
    for (record, answer, entry), logprobs in zip(answers, scores, strict=True):
        answer = replace(answer, receiver_old=logprobs)
        scored.append((record, answer, entry))
    return scored


def _match_scores(
    admitted: Sequence[tuple[Record, ExchangeRow]], reader: str, step: int, own: Sequence[Group]
) -> list[tuple[Scores, ExchangeRow, Answer]]:
    """Find the own answer that each record of scores is about; refuse those that fit none, in their rows. reader: the learner."""
    answers: dict[tuple[str, int], Answer] = {}
    for group in own:
        for index, answer in answers_to_send(group):
            answers[group.prompt.id, index] = answer
    fitting: list[tuple[Scores, ExchangeRow, Answer]] = []
    for record, entry in admitted:
        if not isinstance(record, Scores):
            continue
        scored = answers.get((record.prompt_id, record.index)) if record.reader == reader else None
        if record.step != step:  # that number is another answer now
            entry.refuse(Refusal.STALE)
        elif scored is None or sum(record.pieces) != len(scored.text.encode()):
            entry.refuse(Refusal.INCONSISTENT)
        else:
            fitting.append((record, entry, scored))
    return fitting


def _fill_inbox(contents: Iterable[tuple[Record, Any]]) -> Inbox:
    """Put what came of each record into the box that its kind names, by prompt."""
    boxes: dict[str, dict[str, tuple[Any, ...]]] = defaultdict(lambda: defaultdict(tuple))
    for record, content in contents:
        boxes[record.inbox][record.prompt_id] += (content,)
    return Inbox(**{box: dict(by_prompt) for box, by_prompt in boxes.items()})


@dataclass(frozen=True, slots=True)
class Receiver:
    """Admission, retokenising and verification for a cell's learners. longest: tokens of an answer at most. scored:
    score peers' answers (`Need.RECEIVER_OLD`). asks: the exchange of drafts. starts: by policy, what scores under the weights
    that it started from (`Need.START_SCORES`); empty without."""

    exchange: Exchange
    sharing: Sharing
    verify: Verify
    longest: int
    scored: bool = False
    asks: Exchange | None = None
    starts: Mapping[str, LogprobScorer] = field(default_factory=dict)

    def scores(
        self, learner: ReceivingLearner, step: int, prompts: Sequence[Prompt], own: Sequence[Group] = ()
    ) -> list[Scores]:
        """Score the drafts that reach a learner: its log-probabilities of them, as records to send back. Refusals go into the
        rows.

        prompts: the step's. own: the learner's groups of the step, whose manner of beginning an answer drafts are given."""
        assert self.asks is not None
        with learner.clock.phase("exchange"):
            collected = self.asks.collect(learner.name, step, [prompt.id for prompt in prompts])
            by_id = {prompt.id: prompt for prompt in prompts}
            admitted = list(zip(collected.records, collected.entries, strict=True))
            for record, entry in admitted:
                if record.step != step:  # its author no longer waits
                    entry.refuse(Refusal.STALE)
            asked = [(record, entry) for record, entry in admitted if entry.accepted]
            carried = self.carry(asked, learner, by_id, own)
        if not carried:
            return []
        leads = [text.lead for _, text, _ in carried]
        tokens = [text.tokens for _, text, _ in carried]
        asked_of = [by_id[record.prompt_id] for record, _, _ in carried]
        with learner.clock.phase("score"):
            logprobs_of = _score_behind(leads, learner.engine, asked_of, tokens)
            started_of = _score_behind(leads, self.starts[learner.name], asked_of, tokens) if self.starts else []
        scores: list[Scores] = []
        for (record, text, _), logprobs in zip(carried, logprobs_of, strict=True):
            scores.append(_scores_of_draft(learner, record, text, logprobs))
        if not self.starts:
            return scores
        changed: list[Scores] = []
        for one, (record, text, _), started in zip(scores, carried, started_of, strict=True):
            changed.append(_with_start_scores(one, record, text, started))
        return changed

    def collect(
        self,
        learner: ReceivingLearner,
        step: int,
        prompts: Sequence[Prompt],
        earlier: Sequence[Prompt] = (),
        behind: int = 0,
        own: Sequence[Group] = (),
    ) -> Received:
        """Take what peers sent: retokenise, verify and score it. Refusals go into the rows.

        prompts: the step's. earlier: prompts of earlier steps, for stale records. behind: as `Exchange.collect`. own: the
        step's groups."""
        if not self.exchange.authors(learner.name):
            return Received()
        with learner.clock.phase("exchange"):
            collected = self.exchange.collect(learner.name, step, [prompt.id for prompt in prompts], behind)
            by_id = {prompt.id: prompt for prompt in (*earlier, *prompts)}
            admitted = list(zip(collected.records, collected.entries, strict=True))
            carried = self.carry(admitted, learner, by_id, own)
            placed = self._place_scores(admitted, learner, step, own)
        placed = self._with_own_start(placed, learner, by_id)
        with learner.clock.phase("verify"):
            answers = self._verify_answers(carried, by_id)
        if self.scored and answers:
            with learner.clock.phase("score"):
                answers = _with_receiver_scores(answers, learner, by_id)
        contents: list[tuple[Record, Any]] = [(record, answer) for record, answer, _ in answers]
        contents += [(record, record) for record, _ in admitted if not isinstance(record, AnswerRecord | Scores)]
        contents += [(record, scores) for record, scores, _, _ in placed]
        # A record that never arrived was not refused.
        refused_count = sum(count for reason, count in collected.refused.items() if reason != Refusal.LATE)
        scored = [(AnswerId(learner.name, record.prompt_id, record.index), entry) for record, _, _, entry in placed]
        learnable = [(answer, entry) for _, answer, entry in answers]
        return Received(_fill_inbox(contents), admitted, learnable, scored, refused_count)

    def carry(
        self,
        admitted: Sequence[tuple[Record, ExchangeRow]],
        learner: ReceivingLearner,
        prompts: Mapping[str, Prompt],
        own: Sequence[Group] = (),
    ) -> list[tuple[AnswerRecord, Retokenised, ExchangeRow]]:
        """Carry answers into the learner's tokens; residuals go into the rows."""
        texts = [(record, entry) for record, entry in admitted if isinstance(record, AnswerRecord)]
        room = _Room(learner, prompts)
        results = self._retokenise_or_refuse([record for record, _ in texts], room, own)
        kept: list[tuple[AnswerRecord, Retokenised, ExchangeRow]] = []
        for (record, entry), result in zip(texts, results, strict=True):
            if not isinstance(result, Retokenised):
                entry.refuse(result.reason)
                continue
            entry.receiver_tokens = result.ends.size
            entry.marks_spelled = result.spelled_tags
            entry.measured(result.residuals)
            size = len(result.lead) + result.tokens.size
            if size > self.longest or not room.holds(record.prompt_id, size):
                entry.refuse(Refusal.TOO_LONG)
            else:
                kept.append((record, result, entry))
        return kept

    def _retokenise_or_refuse(
        self, records: Sequence[AnswerRecord], room: _Room, own: Sequence[Group]
    ) -> list[Retokenised | ExchangeError]:
        """Return each answer in the learner's tokens, or why it is refused. What a text begins with differs between answers that
        follow the prompt and those that follow a thought which was closed, so each kind is compared with own answers of its
        kind."""
        why = "the prompt opens a thought, which neither the answer nor the tokenizer closes"
        results: list[Retokenised | ExchangeError] = [ExchangeError(Refusal.OPEN_THOUGHT, why) for _ in records]
        places_of: dict[tuple[int, ...], list[int]] = {}
        for place, record in enumerate(records):
            lead = room.lead_of(record)
            if lead is not None:
                places_of.setdefault(lead, []).append(place)
        for lead, places in places_of.items():
            behind = self._retokenised_behind(lead, [records[place] for place in places], room, own)
            for place, result in zip(places, behind, strict=True):
                results[place] = result
        return results

    def _retokenised_behind(
        self, lead: tuple[int, ...], records: Sequence[AnswerRecord], room: _Room, own: Sequence[Group]
    ) -> list[Retokenised | ExchangeError]:
        """Retokenise answers of one lead."""
        learner = room.learner
        prompts = room.prompts
        alike = opening.behind_thought(own, lead, learner.codec) if lead else own

        def score(asked: Sequence[AnswerRecord], tokens: Sequence[np.ndarray]) -> list[np.ndarray]:
            asked_of = [prompts[record.prompt_id] for record in asked]
            return _score_behind([lead] * len(asked), learner.engine, asked_of, tokens)

        def prompt_end() -> str:
            return "" if lead else learner.engine.reads(next(iter(prompts.values())))

        space_of = opening.by_author(alike, records)
        opened = [opening.open_with(record, space_of[record.author]) for record in records]
        results = retokenise_answers(
            opened,
            learner.codec,
            budget=self._budget,
            score=score if self.sharing.spread == "receiver" else None,
            closing=opening.usual_closing(own),
            joined=opening.begins_without_blank(alike, learner.codec, prompt_end),
            strict=self._strict,
        )
        placed: list[Retokenised | ExchangeError] = []
        for record, result in zip(records, results, strict=True):
            if isinstance(result, Retokenised):
                result = replace(result, lead=lead, space=space_of[record.author])
            placed.append(result)
        return placed

    def _place_scores(
        self, admitted: Sequence[tuple[Record, ExchangeRow]], learner: ReceivingLearner, step: int, own: Sequence[Group]
    ) -> list[tuple[Scores, PeerScores, Answer, ExchangeRow]]:
        """Place scores on the learner's sampled tokens, each chunk's sum by bytes; residuals go into the rows."""
        fitting = _match_scores(admitted, learner.name, step, own)
        read = learner.codec.read([answer.content for _, _, answer in fitting])
        placed = []
        for (record, entry, answer), content in zip(fitting, read, strict=True):
            edges = np.cumsum(content.pieces, dtype=np.int32)  # (T,) bytes at which tokens end
            ending = answer.tokens.size - answer.content.size
            residuals, source = align_logprobs(record, edges, ending, strict=self._strict)
            entry.receiver_tokens = answer.content.size
            entry.measured(residuals)
            if explain_excess(residuals, self._budget):
                entry.refuse(Refusal.RESIDUAL)
            else:
                start = None
                if isinstance(record, ChangedScores):
                    _, (start, *_) = align_logprobs(record.start, edges, ending)
                scores = PeerScores(record.author, record.version, record.prompt_id, record.index, *source, start)
                placed.append((record, scores, answer, entry))
        return placed

    def _with_own_start(
        self,
        placed: Sequence[tuple[Scores, PeerScores, Answer, ExchangeRow]],
        learner: ReceivingLearner,
        prompts: Mapping[str, Prompt],
    ) -> list[tuple[Scores, PeerScores, Answer, ExchangeRow]]:
        """Score each answer once under the weights that the learner started from."""
        if not self.starts or not placed:
            return list(placed)
        answers = {(record.prompt_id, record.index): answer.tokens for record, _, answer, _ in placed}
        asked_of = [prompts[prompt_id] for prompt_id, _ in answers]
        with learner.clock.phase("score"):
            logprobs = self.starts[learner.name].score(asked_of, list(answers.values()))
        own_start = dict(zip(answers, logprobs, strict=True))
        with_start = []
        for record, scores, answer, entry in placed:
            scores = replace(scores, own_start=own_start[record.prompt_id, record.index])
            with_start.append((record, scores, answer, entry))
        return with_start

    @property
    def _strict(self) -> bool:
        return self.sharing.alignment == "strict"

    @property
    def _budget(self) -> Mapping[str, float]:
        sharing = self.sharing
        if not sharing.defences.residual_budget:
            return {}
        return {"text": sharing.max_text_residual, "boundary": sharing.max_boundary_residual}

    def _verify_answers(
        self, carried: Sequence[tuple[AnswerRecord, Retokenised, ExchangeRow]], prompts: Mapping[str, Prompt]
    ) -> list[tuple[AnswerRecord, PeerAnswer, ExchangeRow]]:
        """Return the answers as the learner judges them; those that are not admitted are refused in their rows. Without the
        defence `reverify` a peer's claim is its verdict."""
        records = [record for record, _, _ in carried]
        if self.sharing.defences.reverify:
            asked = [prompts[record.prompt_id] for record in records]
            texts = [record.text for record in records]
            finished = [record.finished for record in records]
            said: Sequence[Verdict] = self.verify(asked, texts, finished)
        else:
            said = [Verdict("right" if record.reward > 0 else "wrong", "claimed") for record in records]
        answers = []
        for (record, result, entry), verdict in zip(carried, said, strict=True):
            entry.verdict = verdict.value
            if not verdict.valid:
                entry.refuse(Refusal.INVALID)
            elif record.inbox == "successes" and verdict.value != "right":
                entry.refuse(Refusal.UNVERIFIED)
            else:
                answers.append((record, _make_peer_answer(record, result, verdict), entry))
        return answers
