"""The interface of every engine for a session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from jaxtyping import Float32, Int32, UInt64

from harness.experience.answers import Prompt
from harness.learning.terms import OldLogprobs, Term

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["Drift", "Optimisation", "PolicyEngine", "Sample", "Sampling", "TermReport", "UpdateReport"]


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One answer. tokens: with the EOS where `finished`. logprobs: nats, of the sampling distribution. text: without EOS."""

    tokens: Int32[np.ndarray, "T"]
    logprobs: Float32[np.ndarray, "T"]
    text: str
    finished: bool


def cut_at(sample: Sample, stops: Sequence[str]) -> Sample:
    """Cut a sample at the first of these strings, where a base model asks itself more; the same sample without one."""
    end = min((at for stop in stops if (at := sample.text.find(stop)) >= 0), default=None)
    if end is None:
        return sample
    return replace(sample, text=sample.text[:end], finished=True)


@dataclass(frozen=True, slots=True)
class TermReport:
    """One term over a step. moved: tokens with a nonzero gradient, by answer. tokens: without masked ones.
    clipped_tokens: that lost their gradient to a bound. ratios, ratio_mean, ratio_second: number, mean and mean square of
    importance weights before clipping, of answers of nonzero advantage and weight: one per token, or per answer for
    `sequence`, `cross` and `nll` (where it is 1); none for `kl`. gradient_norm: of this term alone; NaN where not
    measured."""

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
    """Of the sampler from the trainer in the first update's own answers. mean, p99: of |trainer - sampler| a token, nats.
    outside: share of answers with a first ratio beyond their term's bounds. NaN without any."""

    mean: float = float("nan")
    p99: float = float("nan")
    outside: float = float("nan")


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """One step's updates. loss, gradient_norm (before clipping): means over updates. trained_tokens: with prompts. Other
    norms and the cosine: NaN where not measured."""

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
    """Decoding settings. temperature: 0 is greedy (log-probabilities then are those at 1). max_new_tokens: EOS included. top_p:
    sample among the likeliest tokens that together have this probability (arXiv 1904.09751, section 3.1); 1: among all. Training
    and its curves sample among all, for the tokens left out would have ratios of 0; evaluation may not."""

    temperature: float = 1.0
    max_new_tokens: int = 48
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Optimisation:
    """AdamW (arXiv 1711.05101) on `updates` mini-batches. max_tokens: of the longest answer (`constant` aggregation). measure:
    norms of own and peer gradients, and their cosine. old_logprobs: whose OLD denominators are. sampler_correction: C of
    `learning.minibatches.MiniBatch`."""

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
    """One policy. A dead back end raises EngineError in bounded time."""

    name: str

    @property
    def version(self) -> int:
        """Optimiser updates made so far."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Of the policy."""

    @property
    def stop(self) -> tuple[int, ...]:
        """Ids that end an answer; first the one that the policy writes itself."""

    @property
    def gpus(self) -> int:
        """GPUs that the policy holds."""

    def reads(self, prompt: Prompt) -> str:
        """Return a prompt's text as the policy reads it, its chat template applied."""

    def sample(
        self, prompts: Sequence[Prompt], seeds: UInt64[np.ndarray, "P G"], sampling: Sampling
    ) -> list[list[Sample]]:
        """Sample G answers per prompt. Answer (p, g) depends on its seed and the weights only, not on its batch."""

    def score(
        self, prompts: Sequence[Prompt], answers: Sequence[Int32[np.ndarray, "T"]]
    ) -> list[Float32[np.ndarray, "T"]]:
        """Log-probabilities (T,) of each answer, nats, at the training temperature."""

    def update(self, prompts: Sequence[Prompt], terms: Sequence[Term], optimisation: Optimisation) -> UpdateReport:
        """Make one step's optimiser updates. Raises TrainingError where a gradient is not finite."""

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder, the optimiser's state beside it."""

    def restore(self, folder: Path) -> None:
        """Continue exactly where `save` left off. Raises CheckpointError, the engine as before, for a folder that is incomplete,
        altered or another policy's."""

    def close(self) -> None:
        """Free everything. Idempotent."""
