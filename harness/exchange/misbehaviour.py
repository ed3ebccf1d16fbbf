"""Peers as conditions (ours): a policy misbehaves towards others, not itself. A condition changes what is claimed
(verdicts) or sent (messages)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from jaxtyping import Bool
from msgspec import Meta

from harness.errors import CheckpointError
from harness.experience.answers import Answer, Group
from harness.experience.records import MAX_MESSAGE_BYTES, AnswerRecord, ChangedScores, Draft, Record, Scores
from harness.verification.verdict import Verdict

Share = Annotated[float, Meta(gt=0.0, le=1.0)]
Flood = Annotated[int, Meta(ge=0, le=1_000_000)]


class Condition(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """What is wrong with a peer on purpose. This one does nothing: each kind overrides what it changes."""

    def claim(self, right: Bool[np.ndarray, "A"], rng: np.random.Generator) -> Bool[np.ndarray, "A"]:
        """Return the verdicts it claims, given the true ones."""
        return right

    def score(self, record: Scores, rng: np.random.Generator) -> Scores:
        """Return what it says of an answer, given what it finds."""
        return record

    def alter(self, records: Sequence[Record], rng: np.random.Generator) -> list[Record]:
        """Return what it makes of its own records of a step before they are sent."""
        return list(records)

    def transmit(self, step: int, messages: list[bytes], rng: np.random.Generator) -> list[bytes] | None:
        """Return what it sends instead of `messages`; None is silence."""
        return messages


class Noisy(Condition, frozen=True, kw_only=True, tag="noisy"):
    """Flips a share of its verdicts, in either direction."""

    share: Share

    def claim(self, right: Bool[np.ndarray, "A"], rng: np.random.Generator) -> Bool[np.ndarray, "A"]:
        return right ^ (rng.random(right.size) < self.share)


class Lying(Condition, frozen=True, kw_only=True, tag="lying"):
    """Claims success on a share of its wrong answers, and that it finds a share of the answers that it scores certain."""

    share: Share = 1.0

    def claim(self, right: Bool[np.ndarray, "A"], rng: np.random.Generator) -> Bool[np.ndarray, "A"]:
        return right | (rng.random(right.size) < self.share)

    def score(self, record: Scores, rng: np.random.Generator) -> Scores:
        certain = {"logprobs": [0.0] * len(record.logprobs), "eos_logprob": 0.0}
        if rng.random() < self.share:
            return msgspec.structs.replace(record, **certain)
        return record


class Permuted(Condition, frozen=True, kw_only=True, tag="permuted"):
    """Sends answers of other prompts of the step, and scores permuted over an answer's tokens: a control. What a regime still
    gains from it is not what peers say. Answers pass only where receivers do not verify (`defences: {reverify: false}`)."""

    def score(self, record: Scores, rng: np.random.Generator) -> Scores:
        order = rng.permutation(len(record.logprobs))
        moved = {"logprobs": [record.logprobs[i] for i in order]}
        if isinstance(record, ChangedScores):
            moved["start_logprobs"] = [record.start_logprobs[i] for i in order]
        return msgspec.structs.replace(record, **moved)

    def alter(self, records: Sequence[Record], rng: np.random.Generator) -> list[Record]:
        """Let answers of one type and claimed reward go round among their prompts, drawn anew at each step; one that would come
        back to its own prompt is not sent."""
        kept: list[Record] = []
        alike: dict[tuple[str, float], list[AnswerRecord]] = {}
        for record in records:
            if isinstance(record, AnswerRecord) and not isinstance(record, Draft):
                kind = type(record).__name__, record.reward
                alike.setdefault(kind, []).append(record)
            else:
                kept.append(record)
        for group in alike.values():
            kept += _sent_round(group, rng)
        return kept


def _sent_round(records: Sequence[AnswerRecord], rng: np.random.Generator) -> list[AnswerRecord]:
    """Return each record's header with the content of one to another prompt."""
    counts = Counter(record.prompt_id for record in records)
    prompts = sorted(counts)
    order = rng.permutation(len(prompts))
    rank = {prompts[drawn]: place for place, drawn in enumerate(order)}
    ordered = sorted(records, key=lambda record: rank[record.prompt_id])
    shift = max(counts.values())  # beyond a prompt's own answers, wherever they begin
    names = ("version", "step", "prompt_id", "index")
    moved = []
    for place, header in enumerate(ordered):
        content = ordered[(place + shift) % len(ordered)]
        if content.prompt_id != header.prompt_id:
            own_header = {name: getattr(header, name) for name in names}
            moved.append(msgspec.structs.replace(content, **own_header))
    return moved


class Stale(Condition, frozen=True, kw_only=True, tag="stale"):
    """Sends what it had to say `steps` steps ago, with true headers."""

    steps: Annotated[int, Meta(ge=1, le=1000)]


class Silent(Condition, frozen=True, kw_only=True, tag="silent"):
    """Sends nothing at all from step `start` on."""

    start: Annotated[int, Meta(ge=0)] = 0

    def transmit(self, step: int, messages: list[bytes], rng: np.random.Generator) -> list[bytes] | None:
        return None if step >= self.start else messages


class Spamming(Condition, frozen=True, kw_only=True, tag="spamming"):
    """Hides its honest messages among oversized and malformed ones and a flood of copies."""

    oversized: Annotated[int, Meta(ge=0, le=1000)] = 1
    malformed: Flood = 32
    flood: Flood = 2000

    def transmit(self, step: int, messages: list[bytes], rng: np.random.Generator) -> list[bytes] | None:
        """Send malformed, oversized and repeated messages among the honest ones, in any order."""
        junk = [bytes(MAX_MESSAGE_BYTES + 1)] * self.oversized
        for _ in range(self.malformed):
            cuts_an_honest_one = bool(messages) and rng.random() < 0.5
            whole = messages[rng.integers(len(messages))] if cuts_an_honest_one else rng.bytes(256)
            junk.append(whole[: rng.integers(1, len(whole))])
        if messages:
            copied = rng.integers(len(messages), size=self.flood)  # (F,)
            junk += [messages[place] for place in copied]
        mixed = messages + junk
        return [mixed[i] for i in rng.permutation(len(mixed))]


AnyCondition = Noisy | Lying | Permuted | Stale | Silent | Spamming


def condition_of(options: Mapping[str, Any]) -> AnyCondition:
    """Make a condition of a suite's ``{kind: noisy, share: 0.2}``. Raises ValueError."""
    try:
        condition: AnyCondition = msgspec.convert(dict(options), AnyCondition)
    except msgspec.ValidationError as error:
        raise ValueError(str(error).replace("$.", "")) from None
    return condition


class Sender:
    """Sends for one policy under a condition. seed: never of the regime."""

    def __init__(self, condition: Condition, seed: int) -> None:
        self.condition = condition
        self.seed = seed
        self._waiting: deque[list[bytes]] = deque()

    def claimed(self, step: int, groups: Sequence[Group]) -> list[Group]:
        """Return the groups with claimed verdicts; invalid ones stay."""
        answers = [answer for group in groups for answer in group.answers]
        right = np.array([answer.verdict.value == "right" for answer in answers], dtype=bool)  # (A,)
        rng = np.random.default_rng([self.seed, step, 0])
        claims = iter(self.condition.claim(right, rng).tolist())

        def claimed(answer: Answer) -> Answer:
            value: Literal["right", "wrong"] = "right" if next(claims) else "wrong"
            if value == answer.verdict.value or not answer.verdict.valid:
                return answer
            return replace(answer, verdict=Verdict(value, "claimed"))

        return [replace(group, answers=tuple(map(claimed, group.answers))) for group in groups]

    def scored(self, step: int, records: Sequence[Record]) -> list[Record]:
        """Return the records with what it says of answers."""
        rng = np.random.default_rng([self.seed, step, 2])
        return [self.condition.score(r, rng) if isinstance(r, Scores) else r for r in records]

    def altered(self, step: int, records: Sequence[Record]) -> list[Record]:
        """Return the records as it makes them before they are sent."""
        rng = np.random.default_rng([self.seed, step, 3])
        return self.condition.alter(records, rng)

    def messages(self, step: int, honest: Sequence[bytes]) -> list[bytes] | None:
        """Return what it sends at this step in place of its honest messages; None is silence."""
        self._waiting.append(list(honest))
        lag = self.condition.steps if isinstance(self.condition, Stale) else 0
        due = self._waiting.popleft() if len(self._waiting) > lag else []
        rng = np.random.default_rng([self.seed, step, 1])
        return self.condition.transmit(step, due, rng)

    def state(self) -> bytes:
        return msgspec.msgpack.encode(list(self._waiting))

    def restore(self, state: bytes) -> None:
        """Take up `state` again. Raises CheckpointError."""
        try:
            self._waiting = deque(msgspec.msgpack.decode(state, type=list[list[bytes]]))
        except (msgspec.DecodeError, RecursionError) as error:
            raise CheckpointError(f"state of a sender: {error}") from None
