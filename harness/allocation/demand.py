"""One cell in figures: its policies and their work, which memory, seconds and disk are counted from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from harness.allocation.shapes import ModelShape, Precision

MEAN_ANSWER = 0.5
"""Expected answer length as a share of the longest: a prior."""


@dataclass(frozen=True, slots=True)
class PolicyDemand:
    """rollouts: answers per prompt. reference: answers are scored under its base too; penalised:
    at every step (KL). measured: gradients of own and of peer answers are kept apart.
    devices: on how many it runs, where that is not for the planner to choose. lora: rank of its adapters, if these alone are
    trained. checkpointing: activations are made again in the backward pass."""

    name: str
    model: ModelShape
    rollouts: int
    precision: Precision = "bf16"
    reference: bool = False
    penalised: bool = False
    measured: bool = False
    devices: int | None = None
    lora: int = 0
    checkpointing: bool = False

    @property
    def value_bytes(self) -> int:
        """Of a number that the model computes with."""
        return 2 if self.precision == "bf16" else 4

    @property
    def adapters(self) -> int:
        """Parameters beside the model's own: as if all linear layers were as narrow as the hidden state."""
        return 2 * self.lora * (self.model.matmul - self.model.vocab * self.model.hidden) // self.model.hidden

    @property
    def trained(self) -> int:
        """Parameters that an optimiser moves."""
        return self.adapters or self.model.parameters


@dataclass(frozen=True, slots=True)
class Workload:
    """A cell's steps and what surrounds them.

    prompts: per step. prompt_tokens, answer_tokens: longest in training. longest: prompt and answer together that are sampled, in
    evaluation too. trained, scored: answers that go through an optimiser update, and through a forward pass only, per own rollout;
    again: that are sampled in a second round.
    staleness: steps that experience may lag; 0 is lockstep. measured: steps with measurements. Per policy: evaluated, answers
    generated for evaluation, of at most evaluation_tokens; curves, points of the learning curve, of curve answers together; saves,
    checkpoints written.
    """

    steps: int
    prompts: int
    prompt_tokens: int
    answer_tokens: int
    longest: int
    trained: float = 1.0
    scored: float = 0.0
    again: float = 0.0
    staleness: int = 0
    measured: int = 0
    evaluated: int = 0
    evaluation_tokens: int = 0
    curves: int = 0
    curve: int = 0
    saves: int = 0

    @property
    def sequence(self) -> int:
        """Longest prompt and answer together that are trained on, tokens."""
        return self.prompt_tokens + self.answer_tokens

    @property
    def mean_sequence(self) -> float:
        return self.prompt_tokens + MEAN_ANSWER * self.answer_tokens


@dataclass(frozen=True, slots=True)
class CellDemand:
    """shared: whether the policies take turns on the same GPUs, where that is not for the planner to choose."""

    policies: tuple[PolicyDemand, ...]
    workload: Workload
    shared: bool | None = None


class Lengths(NamedTuple):
    """Tokens. prompt: longest in training; longest: prompt and answer together of all that is asked, in evaluation too."""

    prompt: int
    longest: int
