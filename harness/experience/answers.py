"""Experience as a learner sees it: its own groups, and what came in from peers in the learner's own tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float32, Int32

from harness.verification.verdict import Verdict

if TYPE_CHECKING:
    from harness.experience.records import Record

__all__ = ["Answer", "Group", "Inbox", "PeerAnswer", "PeerValue", "Prompt"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A training or evaluation question.

    Attributes
    ----------
    id
        Unique in its task.
    text
        What a policy reads (before its chat template).
    gold
        The reference answer.
    labels
        What results are broken down by: skill, level, subject.
    """

    id: str
    text: str
    gold: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One answer in the learner's own tokens.

    Attributes
    ----------
    tokens
        (T,) including the final EOS when `finished`.
    logprobs
        (T,) nats, of the distribution that sampled the answer: the policy's own for its own answers.
    text
        Decoded, without EOS.
    finished
        Whether it ended by itself; else it was cut off.
    verdict
        The learner's verifier's.
    closed
        Its EOS stands for a string at which the harness ended it (`training.answer_ends`): the policy did not choose it.
    """

    tokens: Int32[np.ndarray, "T"]
    logprobs: Float32[np.ndarray, "T"]
    text: str
    finished: bool
    verdict: Verdict
    closed: bool = False

    @property
    def reward(self) -> float:
        """1, 0, or NaN where the verdict is invalid."""
        return self.verdict.reward

    @property
    def chosen(self) -> Bool[np.ndarray, "T"] | None:
        """(T,) tokens that the policy chose and learns from; None for all."""
        return np.arange(self.tokens.size) < self.tokens.size - 1 if self.closed else None


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """All answers of one policy to one prompt at one step. Answers with an invalid verdict are still here; regimes use `valid`.

    Attributes
    ----------
    prompt
        As asked.
    policy
        Whose answers.
    version
        Optimiser updates that it had made.
    step
        Training step.
    answers
        In the order of their samples; records name an answer by its index here.
    """

    prompt: Prompt
    policy: str
    version: int
    step: int
    answers: tuple[Answer, ...]

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
    """A peer's answer after THL: in the learner's tokens, verified again by the learner.

    Attributes
    ----------
    author
        Who gave it.
    version
        Optimiser updates that the author had made.
    step
        At which the author gave it.
    prompt_id
        Of the prompt that it answers.
    index
        In the author's group.
    tokens
        (T,) the learner's, including the learner's EOS when the peer finished its answer.
    text
        As sent.
    finished
        As the author says.
    verdict
        The learner's own; the author's claim where a suite has switched `reverify` off.
    aligned
        (T,) the peer's log-probabilities (nats) carried onto the learner's tokens; None where the record held none.
    source_logprob
        Sum of the peer's log-probabilities (nats) over its own tokens, final EOS left out; NaN where the record held none.
    source_tokens
        Their number.
    receiver_old
        (T,) the learner's log-probabilities (nats) before the step's first update; None unless the regime `needs` them.
    """

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

    @property
    def reward(self) -> float:
        """1, 0, or NaN where the verdict is invalid."""
        return self.verdict.reward


@dataclass(frozen=True, slots=True)
class PeerValue:
    """Statistics of one peer group.

    Attributes
    ----------
    author
        Whose group.
    prompt_id
        Of its prompt.
    count
        Valid answers.
    right
        Those of them that are right.
    """

    author: str
    prompt_id: str
    count: int
    right: int


@dataclass(frozen=True, slots=True)
class Inbox:
    """What one learner received for one step, by prompt id. Order: suite order of the authors, then answer index.

    Attributes
    ----------
    answers
        From `Rollout` and `TextRollout` records; those that the learner's own verifier could not decide on are refused.
    successes
        From `Success` records; only those that the learner's own verifier finds right.
    values
        From `GroupValue` records.
    """

    answers: Mapping[str, tuple[PeerAnswer, ...]] = field(default_factory=dict)
    successes: Mapping[str, tuple[PeerAnswer, ...]] = field(default_factory=dict)
    values: Mapping[str, tuple[PeerValue, ...]] = field(default_factory=dict)
    records: Mapping[str, tuple[Record, ...]] = field(default_factory=dict)
    """Of the types that the regime has declared itself: checked, and otherwise as their author sent them."""

    def valid(self, prompt_id: str) -> tuple[PeerAnswer, ...]:
        """Peers' answers to one prompt on which the learner's own verifier could decide."""
        return tuple(a for a in self.answers.get(prompt_id, ()) if a.verdict.valid)
