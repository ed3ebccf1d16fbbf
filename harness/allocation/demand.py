"""What a cell asks for, as the planner sees it: its policies and their work."""

from __future__ import annotations

from dataclasses import dataclass

from harness.allocation.precision import Precision
from harness.allocation.shapes import ModelShape


@dataclass(frozen=True, slots=True)
class PolicyDemand:
    """One policy as the planner sees it. rollouts: answers per prompt. reference: answers are scored under its base too; penalised:
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
    def trained(self) -> int:
        """Parameters that an optimiser moves. Adapters are counted as if all linear layers were as narrow as the hidden state."""
        model = self.model
        inside = model.matmul - model.vocab * model.hidden
        return 2 * self.lora * inside // model.hidden if self.lora else model.parameters

    @property
    def adapters(self) -> int:
        """Parameters beside the model's own."""
        return self.trained if self.lora else 0


@dataclass(frozen=True, slots=True)
class Workload:
    """One step and what surrounds it.

    prompts: per step. prompt_tokens, answer_tokens: longest in training; mean_answer_tokens: expected. longest: prompt and answer
    together that are sampled, in evaluation too; 0 where training has them. trained, scored: answers that go
    through an optimiser update, and through a forward pass only, per own rollout (the regime's factors). staleness: steps that
    experience may lag; 0 is lockstep. measured: steps with measurements. Per policy: evaluated, answers generated for evaluation,
    of at most evaluation_tokens; curves, points of the learning curve, of curve answers together; saves, checkpoints written.
    """

    steps: int
    prompts: int
    prompt_tokens: int
    answer_tokens: int
    mean_answer_tokens: float
    trained: float = 1.0
    scored: float = 0.0
    staleness: int = 0
    measured: int = 0
    evaluated: int = 0
    evaluation_tokens: int = 0
    curves: int = 0
    curve: int = 0
    saves: int = 0
    longest: int = 0

    @property
    def sequence(self) -> int:
        """Longest prompt and answer together that are trained on, tokens."""
        return self.prompt_tokens + self.answer_tokens

    @property
    def sampled(self) -> int:
        """The same that a rollout engine must hold."""
        return max(self.sequence, self.longest)

    @property
    def mean_sequence(self) -> float:
        return self.prompt_tokens + self.mean_answer_tokens


@dataclass(frozen=True, slots=True)
class CellDemand:
    """One cell: its policies and their work. kind: cells of one kind take equally long (regime, group, engine). shared: whether
    its policies take turns on the same GPUs, where that is not for the planner to choose."""

    key: str
    kind: str
    policies: tuple[PolicyDemand, ...]
    workload: Workload
    pending: bool = True
    shared: bool | None = None
