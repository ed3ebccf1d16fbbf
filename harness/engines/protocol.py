"""What every engine offers a session, whatever trains the weights underneath."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    """One sampled answer.

    Attributes
    ----------
    tokens
        (T,) ids, with the final EOS when `finished`.
    logprobs
        (T,) nats, of the sampling distribution (temperature applied).
    text
        Decoded without EOS.
    finished
        Whether it ended by itself; else it was cut off.
    """

    tokens: Int32[np.ndarray, "T"]
    logprobs: Float32[np.ndarray, "T"]
    text: str
    finished: bool


@dataclass(frozen=True, slots=True)
class TermReport:
    """What the updates of one step did with one term.

    Attributes
    ----------
    name
        The term's.
    source
        `own` or `peer`.
    moved
        Of each of the term's answers, in its order, the tokens with a nonzero gradient; an answer is *used* if it has any.
    tokens
        Of all its answers, masked ones left out.
    clipped_tokens
        That would have a gradient if a bound of the ratio or of its log had not taken it away.
    loss
        The term's contribution.
    ratios, ratio_mean, ratio_second
        Number, mean and mean square of the importance weights before clipping, of the answers whose advantage and weight are
        not 0: one per token, or one per answer for `sequence` and `cross` ratios and for `nll`, where it is 1; none for `kl`.
    gradient_norm
        Of this term alone; NaN where it was not measured.
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

    Attributes
    ----------
    mean, p99
        Mean and 99th percentile of |trainer - sampler| over tokens, nats.
    outside
        Share of the answers of which a first ratio to the sampler (the one of a sequence, any token's otherwise) lies outside
        the bounds of their own term.
    """

    mean: float = float("nan")
    p99: float = float("nan")
    outside: float = float("nan")


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What one step's updates did.

    Attributes
    ----------
    terms
        One report per term, in the terms' order.
    loss
        Mean over the updates of their mini-batches' losses; the terms' own add up to it.
    gradient_norm
        Before clipping, mean over updates.
    updates
        Made.
    trained_tokens
        That went through forward and backward, prompts included.
    own_gradient_norm, peer_gradient_norm
        Of all own and of all peer terms alone; NaN where not measured.
    own_peer_cosine
        Between the gradients of own and peer terms; NaN where one is absent or it was not measured.
    drift
        Of the sampler from the trainer.
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
    """Decoding settings.

    Attributes
    ----------
    temperature
        0 is greedy (log-probabilities then are those at temperature 1).
    max_new_tokens
        Longest answer, EOS included.
    """

    temperature: float = 1.0
    max_new_tokens: int = 48


@dataclass(frozen=True, slots=True)
class Optimisation:
    """A step's updates: AdamW (arXiv 1711.05101) on as many mini-batches, terms in their `order`.

    Attributes
    ----------
    learning_rate, betas, weight_decay
        AdamW's.
    clip_norm
        Largest norm of an update's gradient; longer ones are scaled down to it.
    updates
        Mini-batches, each one update.
    max_tokens
        Longest answer (the constant of the `constant` aggregation).
    measure
        Report the gradient norms of own and peer terms alone, and their cosine.
    old_logprobs
        Whose log-probabilities OLD denominators are.
    sampler_correction
        C of `learning.minibatches.settle`.
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
    """A policy that can be sampled, scored, updated and stored. Every call is bounded in time: a dead back end raises EngineError.

    Attributes
    ----------
    name
        The policy's.
    """

    name: str

    @property
    def version(self) -> int:
        """Optimiser updates made so far."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Of the policy."""

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
        """G answers per prompt. Answer (p, g) depends on its seed and the weights only, not on what it is batched with.

        Parameters
        ----------
        prompts
            P of them.
        seeds
            (P, G), one per answer.
        sampling
            Settings for all.

        Returns
        -------
        :
            P lists of G samples.
        """

    def score(
        self, prompts: Sequence[Prompt], answers: Sequence[Int32[np.ndarray, "T"]]
    ) -> list[Float32[np.ndarray, "T"]]:
        """Log-probabilities of given answers under the current weights.

        Parameters
        ----------
        prompts
            One per answer.
        answers
            Each (T,) ids; may be empty.

        Returns
        -------
        :
            Of each answer after its prompt (T,) log-probabilities, nats, at the training temperature.
        """

    def update(self, prompts: Sequence[Prompt], terms: Sequence[Term], optimisation: Optimisation) -> UpdateReport:
        """One step's optimiser updates on the terms.

        Parameters
        ----------
        prompts
            All that a term's answers name.
        terms
            Of one step.
        optimisation
            Settings.

        Raises
        ------
        TrainingError
            A gradient is not finite (`gradients.check_norm`).
        """

    def save(self, folder: Path) -> None:
        """Write weights and tokenizer as a Hugging Face folder, and the optimiser's state beside them."""

    def restore(self, folder: Path) -> None:
        """Continue exactly where `save` left off.

        Raises
        ------
        CheckpointError
            The folder is incomplete, altered or of another policy; the engine is as before.
        """

    def close(self) -> None:
        """Free everything. Idempotent."""
