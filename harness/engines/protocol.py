"""What every engine offers a session, whatever trains the weights underneath."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from jaxtyping import Float32, Int32, UInt64

from harness.experience.answers import Prompt
from harness.learning.denominators import OldLogprobs
from harness.learning.terms import Term

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One sampled answer: tokens (T,) with the final EOS when `finished`, log-probabilities (T,) of the sampling
    distribution (temperature applied), and the text decoded without EOS."""

    tokens: Int32[np.ndarray, "T"]
    logprobs: Float32[np.ndarray, "T"]
    text: str
    finished: bool


@dataclass(frozen=True, slots=True)
class TermReport:
    """What the updates of one step did with one term.

    moved: of each of the term's answers, in its order, the tokens with a nonzero gradient; an answer is *used* if it has any.
    tokens: of all its answers, masked ones left out. clipped_tokens: that would have a gradient if a bound of the ratio or of
    its log had not taken it away. loss: the term's contribution.
    ratios, ratio_mean, ratio_second: number, mean and mean square of the importance weights before clipping, of the answers
    whose advantage and weight are not 0: one per token, or one per answer for `sequence` and `cross` ratios and for `nll`,
    where it is 1; none for `kl`. gradient_norm: of this term alone; NaN where it was not measured.
    """

    name: str
    source: str
    moved: tuple[int, ...]
    tokens: int
    clipped_tokens: int
    loss: float
    ratios: int = 0
    ratio_mean: float = float("nan")
    ratio_second: float = float("nan")
    gradient_norm: float = float("nan")

    @property
    def answers(self) -> int:
        """Answers of the term."""
        return len(self.moved)

    @property
    def active(self) -> int:
        """Answers with a nonzero gradient."""
        return sum(tokens > 0 for tokens in self.moved)

    @property
    def active_tokens(self) -> int:
        """Tokens with a nonzero gradient."""
        return sum(self.moved)


@dataclass(frozen=True, slots=True)
class Drift:
    """Of the sampler from the trainer at the step's start, over the own answers learnt in the first update; NaN without any.

    mean, p99: mean and 99th percentile of |trainer - sampler| over tokens, nats. outside: share of the answers of which a
    first ratio to the sampler (the one of a sequence, any token's otherwise) lies outside the bounds of their own term.
    """

    mean: float = float("nan")
    p99: float = float("nan")
    outside: float = float("nan")


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What one step's updates did: one report per term, in the terms' order, and the totals.

    gradient_norm: before clipping, mean over updates. trained_tokens: tokens that went through forward and backward.
    own_gradient_norm, peer_gradient_norm: of all own and of all peer terms alone; NaN where not measured.
    own_peer_cosine: cosine between the gradients of own and peer terms; NaN where one is absent or it was not measured.
    """

    terms: tuple[TermReport, ...]
    loss: float
    gradient_norm: float
    updates: int
    trained_tokens: int
    own_gradient_norm: float = float("nan")
    peer_gradient_norm: float = float("nan")
    own_peer_cosine: float = float("nan")
    drift: Drift = Drift()


@dataclass(frozen=True, slots=True)
class Sampling:
    """Decoding settings. temperature 0 is greedy (log-probabilities then are those at temperature 1)."""

    temperature: float = 1.0
    max_new_tokens: int = 48


@dataclass(frozen=True, slots=True)
class Optimisation:
    """Optimiser settings of a step; `updates` mini-batches a step, terms in their `order`.

    measure: also report the gradient norms of own and peer terms alone, and their cosine.
    old_logprobs, sampler_correction: how OLD denominators are filled in, and the C of `learning.denominators.settle`.
    """

    learning_rate: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    updates: int = 1
    max_tokens: int = 48
    measure: bool = False
    old_logprobs: OldLogprobs = "trainer"
    sampler_correction: float = 0.0


class PolicyEngine(Protocol):
    """A policy that can be sampled, scored, updated and stored.

    `version` counts optimiser updates. Every call is bounded in time: a dead back end raises EngineError.
    """

    name: str

    @property
    def version(self) -> int: ...

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast: ...

    @property
    def stop(self) -> tuple[int, ...]:
        """Ids that end an answer; the first is the one that the policy would write itself."""

    @property
    def gpus(self) -> int:
        """GPUs that the policy holds."""

    def reads(self, prompt: Prompt) -> str:
        """A prompt's text as the policy reads it: through its chat template, where it is asked so."""

    def sample(
        self, prompts: Sequence[Prompt], seeds: UInt64[np.ndarray, "P G"], sampling: Sampling
    ) -> list[list[Sample]]:
        """G answers per prompt. Answer (p, g) depends on its seed and the weights only, not on what it is batched with."""

    def score(
        self, prompts: Sequence[Prompt], answers: Sequence[Int32[np.ndarray, "T"]]
    ) -> list[Float32[np.ndarray, "T"]]:
        """Log-probabilities (nats, at the training temperature) of `answers[i]` after `prompts[i]`, under the current weights."""

    def update(self, prompts: Sequence[Prompt], terms: Sequence[Term], optimisation: Optimisation) -> UpdateReport:
        """One step's optimiser updates on the terms; `prompts` holds every prompt that a term's answers name."""

    def save(self, folder: Path) -> None:
        """Write weights and tokenizer as a Hugging Face folder, and the optimiser's state beside them."""

    def restore(self, folder: Path) -> None:
        """Continue exactly where `save` left off. Raises CheckpointError."""

    def close(self) -> None:
        """Free everything. Idempotent."""
