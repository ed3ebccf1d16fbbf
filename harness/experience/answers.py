"""Experience as a learner sees it: its own groups, and what came in from peers in the learner's own tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32, Int32

from harness.verification.verdict import Verdict

if TYPE_CHECKING:
    from harness.experience.records import Record


@dataclass(frozen=True, slots=True)
class Prompt:
    """A training or evaluation question. `text` is what a policy reads (before its chat template), `gold` the reference."""

    id: str
    text: str
    gold: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One answer in the learner's own tokens.

    tokens: (T,) including the final EOS when `finished`.
    logprobs: (T,) nats, of the distribution that sampled the answer: the policy's own for its own answers.
    """

    tokens: Int32[np.ndarray, "T"]
    logprobs: Float32[np.ndarray, "T"]
    text: str
    finished: bool
    verdict: Verdict

    @property
    def reward(self) -> float:
        return self.verdict.reward


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """All answers of one policy to one prompt at one step. Answers with an invalid verdict are still here;
    regimes use `valid`."""

    prompt: Prompt
    policy: str
    version: int
    step: int
    answers: tuple[Answer, ...]

    @property
    def valid(self) -> tuple[Answer, ...]:
        return tuple(a for a in self.answers if a.verdict.valid)

    @property
    def rewards(self) -> Float32[np.ndarray, "G"]:
        """Rewards of the valid answers, in order."""
        return np.array([a.reward for a in self.valid], dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class PeerAnswer:
    """A peer's answer after THL: in the learner's tokens, re-verified by the learner.

    tokens: (T,) the learner's, including the learner's EOS when the peer finished its answer.
    aligned: (T,) the peer's log-probabilities carried onto the learner's tokens; None where the record held none.
    source_logprob, source_tokens: sum of the peer's log-probabilities over its own tokens and their number, final EOS left out.
    receiver_old: (T,) the learner's log-probabilities before the step's first update; None unless the regime `needs` them.
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
        return self.verdict.reward


@dataclass(frozen=True, slots=True)
class PeerValue:
    """Statistics of one peer group: `count` valid answers of which `right` are right."""

    author: str
    prompt_id: str
    count: int
    right: int


@dataclass(frozen=True, slots=True)
class Inbox:
    """What one learner received for one step, by prompt. Order: suite order of the authors, then answer index."""

    answers: Mapping[str, tuple[PeerAnswer, ...]] = field(default_factory=dict)
    successes: Mapping[str, tuple[PeerAnswer, ...]] = field(default_factory=dict)
    values: Mapping[str, tuple[PeerValue, ...]] = field(default_factory=dict)
    records: Mapping[str, tuple[Record, ...]] = field(default_factory=dict)
    """Of the types that the regime has declared itself: checked, and otherwise as their author sent them."""

    def valid(self, prompt_id: str) -> tuple[PeerAnswer, ...]:
        """Peers' answers to one prompt on which the learner's own verifier could decide."""
        return tuple(a for a in self.answers.get(prompt_id, ()) if a.verdict.valid)
