"""Experience as a learner sees it: its own groups, and peers' answers in its own tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float32, Int32

from harness.verification.verdict import Verdict

if TYPE_CHECKING:
    from harness.experience.records import GroupValue, Record

__all__ = ["Answer", "AnswerId", "Group", "Inbox", "PeerAnswer", "PeerScores", "Prompt"]


@dataclass(frozen=True, slots=True)
class AnswerId:
    """Names an answer of a step from admission to the loss: who gave it, to which prompt, and its place in its author's group."""

    author: str
    prompt_id: str
    index: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """text: before the chat template. labels: what results are broken down by, such as skill or level. hint: where a
    question is asked again with one, the peer's answer. task: of mixed training, the one that asks; else empty."""

    id: str
    text: str
    gold: str
    labels: Mapping[str, str] = field(default_factory=dict)
    hint: AnswerId | None = None
    task: str = ""

    @property
    def of(self) -> str:
        """Id of the question that this one repeats with a hint, or empty."""
        return self.hint.prompt_id if self.hint else ""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """An answer in the learner's own tokens, with its end when `finished`; text without it. logprobs: nats, of the
    sampling distribution. closed: the harness ended it at a string, not the policy. ending: tokens of the end, one in
    most models; together they are one action."""

    tokens: Int32[np.ndarray, "T"]
    logprobs: Float32[np.ndarray, "T"]
    text: str
    finished: bool
    verdict: Verdict
    closed: bool = False
    ending: int = 1

    @property
    def content(self) -> Int32[np.ndarray, "C"]:
        """(C,) the tokens before the end."""
        if self.finished:
            return self.tokens[: self.tokens.size - self.ending]
        return self.tokens

    @property
    def reward(self) -> float:
        """1, 0, or NaN where the verdict is invalid."""
        return self.verdict.reward

    @property
    def chosen(self) -> Bool[np.ndarray, "T"] | None:
        """(T,) tokens that the policy chose and learns from; None for all."""
        if self.closed:
            return np.arange(self.tokens.size) < self.tokens.size - 1
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """One policy's answers to one prompt at one step; records name one by its index here. version: optimiser updates
    made."""

    prompt: Prompt
    policy: str
    version: int
    step: int
    answers: tuple[Answer, ...]

    @property
    def named(self) -> list[tuple[AnswerId, Answer]]:
        """The answers with their ids, in order."""
        return [(AnswerId(self.policy, self.prompt.id, index), answer) for index, answer in enumerate(self.answers)]

    @property
    def valid(self) -> tuple[Answer, ...]:
        """Answers on which the verifier could decide."""
        return tuple(a for a in self.answers if a.verdict.valid)

    @property
    def rewards(self) -> Float32[np.ndarray, "G"]:
        """(G,) rewards of the valid answers, in order."""
        return np.array([a.reward for a in self.valid], dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class PeerAnswer:
    """In the learner's tokens, verified by the learner. index: in the author's group. aligned: (T,) the peer's
    log-probabilities (nats) on these tokens; source_logprob, source_tokens: their sum and number over its own, EOS left
    out. receiver_old: (T,) the learner's before the step's first update, where `needs` asks. ending: tokens of the end of
    a finished answer, as `Answer.ending`. exact: (T,) which tokens of `aligned` take part under `sharing.alignment: strict`;
    None for all. lead: ids that the learner reads between the prompt and these tokens, and does not learn: the mark that closes a
    thought which its prompt opens."""

    author: str
    version: int
    step: int
    prompt_id: str
    index: int
    tokens: Int32[np.ndarray, "T"]
    text: str
    finished: bool
    verdict: Verdict
    aligned: Float32[np.ndarray, "T"] | None = None
    source_logprob: float = float("nan")
    source_tokens: int = 0
    receiver_old: Float32[np.ndarray, "T"] | None = None
    ending: int = 1
    exact: Bool[np.ndarray, "T"] | None = None
    lead: tuple[int, ...] = ()

    @property
    def id(self) -> AnswerId:
        """Its author's answer."""
        return AnswerId(self.author, self.prompt_id, self.index)

    @property
    def content(self) -> Int32[np.ndarray, "C"]:
        """(C,) the tokens before the end."""
        if self.finished:
            return self.tokens[: self.tokens.size - self.ending]
        return self.tokens

    @property
    def reward(self) -> float:
        """1, 0, or NaN where the verdict is invalid."""
        return self.verdict.reward


@dataclass(frozen=True, slots=True, eq=False)
class PeerScores:
    """A peer's log-probabilities of one of the learner's own answers. index: in the own group's `answers`. aligned:
    (T,) nats, on the answer's tokens; source_logprob, source_tokens: their sum and number over the peer's, EOS left
    out. exact: as of `PeerAnswer`. start, own_start: (T,) nats, the peer's and the learner's under the weights that each
    started from, with `Need.START_SCORES`."""

    author: str
    version: int
    prompt_id: str
    index: int
    aligned: Float32[np.ndarray, "T"]
    source_logprob: float
    source_tokens: int
    exact: Bool[np.ndarray, "T"] | None = None
    start: Float32[np.ndarray, "T"] | None = None
    own_start: Float32[np.ndarray, "T"] | None = None


@dataclass(frozen=True, slots=True)
class Inbox:
    """What a learner received for one step, by prompt id, in suite order of the authors. successes: only those that the
    learner's verifier finds right."""

    answers: Mapping[str, tuple[PeerAnswer, ...]] = field(default_factory=dict)
    successes: Mapping[str, tuple[PeerAnswer, ...]] = field(default_factory=dict)
    values: Mapping[str, tuple[GroupValue, ...]] = field(default_factory=dict)
    records: Mapping[str, tuple[Record, ...]] = field(default_factory=dict)
    scores: Mapping[str, tuple[PeerScores, ...]] = field(default_factory=dict)

    def valid(self, prompt_id: str) -> tuple[PeerAnswer, ...]:
        """Return peers' answers on which the learner's verifier could decide."""
        return tuple(a for a in self.answers.get(prompt_id, ()) if a.verdict.valid)

    def right(self, prompt_id: str) -> tuple[PeerAnswer, ...]:
        """Return peers' successes whose verdict is right."""
        return tuple(a for a in self.successes.get(prompt_id, ()) if a.verdict.value == "right")
