"""Peers as conditions: one policy misbehaves towards the others while its own learning goes on untouched.

A condition changes what is claimed (verdicts, before records are made of them) or what is sent (messages, after). All of
it is [ours]; the published papers assume honest peers. Deterministic: draws depend on the seed and the step alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
import numpy as np
from jaxtyping import Bool
from msgspec import Meta

from harness.errors import CheckpointError
from harness.exchange.wire import MAX_MESSAGE_BYTES
from harness.experience.answers import Answer, Group

Share = Annotated[float, Meta(gt=0.0, le=1.0)]
Steps = Annotated[int, Meta(ge=1, le=1000)]
Flood = Annotated[int, Meta(ge=0, le=1_000_000)]


class Condition(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """What is wrong with a peer. A subclass overrides what it changes."""

    @property
    def lag(self) -> int:
        """Steps by which its messages are late."""
        return 0

    def claim(self, right: Bool[np.ndarray, "A"], rng: np.random.Generator) -> Bool[np.ndarray, "A"]:
        """The verdicts it claims for its answers, given the true ones."""
        return right

    def transmit(self, step: int, messages: list[bytes], rng: np.random.Generator) -> list[bytes] | None:
        """What it sends instead of `messages`; None is silence."""
        return messages


class Noisy(Condition, frozen=True, kw_only=True, tag="noisy"):
    """Flips a share of its verdicts, in either direction."""

    share: Share

    def claim(self, right: Bool[np.ndarray, "A"], rng: np.random.Generator) -> Bool[np.ndarray, "A"]:
        return right ^ (rng.random(right.size) < self.share)


class Lying(Condition, frozen=True, kw_only=True, tag="lying"):
    """Claims success on a share of its wrong answers."""

    share: Share = 1.0

    def claim(self, right: Bool[np.ndarray, "A"], rng: np.random.Generator) -> Bool[np.ndarray, "A"]:
        return right | (rng.random(right.size) < self.share)


class Stale(Condition, frozen=True, kw_only=True, tag="stale"):
    """Sends what it had to say `steps` steps ago, with true headers; nothing before that."""

    steps: Steps

    @property
    def lag(self) -> int:
        return self.steps


class Silent(Condition, frozen=True, kw_only=True, tag="silent"):
    """Sends nothing from step `start` on, not even that it has nothing to say."""

    start: Annotated[int, Meta(ge=0)] = 0

    def transmit(self, step: int, messages: list[bytes], rng: np.random.Generator) -> list[bytes] | None:
        return None if step >= self.start else messages


class Spamming(Condition, frozen=True, kw_only=True, tag="spamming"):
    """Hides its honest messages among others, each step: `oversized` ones, `malformed` ones, and a `flood` of copies."""

    oversized: Annotated[int, Meta(ge=0, le=1000)] = 1
    malformed: Flood = 32
    flood: Flood = 2000

    def transmit(self, step: int, messages: list[bytes], rng: np.random.Generator) -> list[bytes] | None:
        junk = [bytes(MAX_MESSAGE_BYTES + 1)] * self.oversized
        for _ in range(self.malformed):
            whole = messages[rng.integers(len(messages))] if messages and rng.random() < 0.5 else rng.bytes(256)
            junk.append(whole[: rng.integers(1, len(whole))])
        if messages:
            junk += [messages[i] for i in rng.integers(len(messages), size=self.flood)]
        mixed = messages + junk
        return [mixed[i] for i in rng.permutation(len(mixed))]


AnyCondition = Noisy | Lying | Stale | Silent | Spamming


def condition_of(options: Mapping[str, Any]) -> AnyCondition:
    """From a suite's ``{kind: noisy, share: 0.2}``. Raises ValueError that names the place and the problem."""
    try:
        condition: AnyCondition = msgspec.convert(dict(options), AnyCondition)
    except msgspec.ValidationError as error:
        raise ValueError(str(error).replace("$.", "")) from None
    return condition


def _claim(answer: Answer, right: bool) -> Answer:
    verdict = answer.verdict
    if not verdict.valid or right == (verdict.value == "right"):
        return answer
    said = msgspec.structs.replace(verdict, value="right" if right else "wrong", reason="claimed")
    return replace(answer, verdict=said)


class Sender:
    """The sending side of one policy under a condition. seed: of this policy, never of the regime."""

    def __init__(self, condition: Condition, seed: int) -> None:
        self.condition, self.seed = condition, seed
        self._waiting: deque[list[bytes]] = deque()

    def claimed(self, step: int, groups: Sequence[Group]) -> list[Group]:
        """The groups with the verdicts it claims, to publish from. Invalid ones stay; own learning uses the true groups."""
        answers = [answer for group in groups for answer in group.answers]
        right = np.array([answer.verdict.value == "right" for answer in answers], dtype=bool)
        claims = iter(self.condition.claim(right, np.random.default_rng([self.seed, step, 0])).tolist())
        return [
            replace(group, answers=tuple(_claim(answer, next(claims)) for answer in group.answers)) for group in groups
        ]

    def messages(self, step: int, honest: Sequence[bytes]) -> list[bytes] | None:
        """What goes out at `step` instead of the honest messages; None is silence."""
        self._waiting.append(list(honest))
        due = self._waiting.popleft() if len(self._waiting) > self.condition.lag else []
        return self.condition.transmit(step, due, np.random.default_rng([self.seed, step, 1]))

    def state(self) -> bytes:
        """Messages that are still to be sent (a stale peer's), to checkpoint."""
        return msgspec.msgpack.encode(list(self._waiting))

    def restore(self, state: bytes) -> None:
        """Take up `state` again. Raises CheckpointError."""
        try:
            self._waiting = deque(msgspec.msgpack.decode(state, type=list[list[bytes]]))
        except (msgspec.DecodeError, RecursionError) as error:
            raise CheckpointError(f"state of a sender: {error}") from None
