"""What a cell asks for: bytes per policy and role, by formulas with their sources.

Psi is the number of parameters (`ModelShape.parameters`). All results are bytes on one device unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from harness.allocation.models import FAMILIES, ModelShape

Precision = Literal["bf16", "fp32"]
KV_BLOCK = 16
"""Tokens per block of the paged KV cache: vLLM's `CacheConfig.DEFAULT_BLOCK_SIZE`."""
CONTEXT_BYTES = 2 * 10**9
"""CUDA context, communication buffers and allocator slack of one process on a GPU: a prior, not measured here."""

REDUCE_BUCKET_BYTES = 10**9
"""What ZeRO 3 keeps beside the states: DeepSpeed's default reduce bucket of 5e8 elements (benchmarks/zero_memory.py)."""


@dataclass(frozen=True, slots=True)
class PolicyDemand:
    """One policy as the planner sees it. reference: a frozen copy scores own answers (KL). rollouts: answers per prompt.
    devices: on how many it runs, where that is not for the planner to choose."""

    name: str
    model: ModelShape
    rollouts: int
    precision: Precision = "bf16"
    reference: bool = False
    devices: int | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """One step and what surrounds it.

    prompts: per step. prompt_tokens, answer_tokens: longest; mean_answer_tokens: expected. trained, scored: answers that go
    through an optimiser update, and through a forward pass only, per own rollout (the regime's factors). staleness: steps that
    experience may lag; 0 is lockstep. evaluated: answers generated for evaluation, per policy.
    """

    steps: int
    prompts: int
    prompt_tokens: int
    answer_tokens: int
    mean_answer_tokens: float
    trained: float = 1.0
    scored: float = 0.0
    staleness: int = 0
    evaluated: int = 0

    @property
    def sequence(self) -> int:
        """Longest prompt and answer together, tokens."""
        return self.prompt_tokens + self.answer_tokens

    @property
    def mean_sequence(self) -> float:
        return self.prompt_tokens + self.mean_answer_tokens


@dataclass(frozen=True, slots=True)
class CellDemand:
    """One cell: its policies and their work. kind: cells of one kind take equally long (regime, group, engine)."""

    key: str
    kind: str
    policies: tuple[PolicyDemand, ...]
    workload: Workload
    pending: bool = True


class Memory(msgspec.Struct, frozen=True):
    """Bytes on one device by part; `train` and `rollout` are the two phases' sums. context: of the trainer's process, with its
    buffers; rollout_context: of the rollout engine's."""

    weights: int = 0
    gradients: int = 0
    optimiser: int = 0
    activations: int = 0
    reference: int = 0
    rollout_weights: int = 0
    kv_cache: int = 0
    context: int = 0
    rollout_context: int = 0

    @property
    def train(self) -> int:
        return self.weights + self.gradients + self.optimiser + self.activations + self.reference + self.context

    @property
    def rollout(self) -> int:
        return self.rollout_weights + self.kv_cache + self.rollout_context


def weight_bytes(model: ModelShape, precision: Precision) -> int:
    """2 Psi in bf16, 4 Psi in fp32."""
    return model.parameters * (2 if precision == "bf16" else 4)


def trainer_states(model: ModelShape, precision: Precision, zero: int, ranks: int, offload: bool = False) -> Memory:
    """Weights, gradients and Adam states of one rank under ZeRO.

    Mixed precision: 2 Psi weights, 2 Psi gradients, 12 Psi optimiser (fp32 master, momentum, variance); fp32: 4, 4 and 8 Psi.
    Stage 1 divides the optimiser's part by the ranks, stage 2 the gradients' too, stage 3 the weights' too. Source: Rajbhandari
    et al., ZeRO (arXiv 1910.02054), section 3.1 and figure 1; DeepSpeed 0.19.6 allocates just these bytes
    (benchmarks/zero_memory.py). `offload` keeps the optimiser's part in the host's memory
    (ZeRO-Offload, arXiv 2101.06840).
    """
    half = precision == "bf16"
    psi = model.parameters
    optimiser = (12 if half else 8) * psi // (ranks if zero >= 1 else 1)
    return Memory(
        weights=weight_bytes(model, precision) // (ranks if zero >= 3 else 1),
        gradients=weight_bytes(model, precision) // (ranks if zero >= 2 else 1),
        optimiser=0 if offload else optimiser,
    )


def activation_bytes(
    model: ModelShape, answers: int, tokens: int, checkpointing: bool, precision: Precision = "bf16"
) -> int:
    """What the backward pass of a micro-batch of `answers` x `tokens` needs kept, logits included.

    Counted over a pre-norm block of transformers' own modules, in the manner of Korthikanti et al. (arXiv 2205.05198), section
    4.1, without dropout and with an attention kernel that stores no scores (their 5as/h part falls away). Per token and layer:
    each of the two norms keeps its input (h) in fp32 and, at the training precision, its normalised and its scaled output (2h);
    attention keeps queries, repeated keys and values, and its output (4q); norms of queries and keys, where there are any, as
    the others; the MLP keeps gate, up, activation and product (4f; 2f without a gate). With checkpointing only each layer's
    input (h) is kept and one layer is recomputed at a time. The head adds, per token, the vocabulary's logits in fp32 with
    their gradient, and once at the training precision.
    """
    size = 2 if precision == "bf16" else 4
    family = FAMILIES[model.family]
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    mlp = (4 if family.gated else 2) * model.intermediate
    layer = size * (4 * model.hidden + 4 * queries + mlp) + 8 * model.hidden
    layer += (4 + size) * (queries + keys) if family.qk_norm else 0
    kept = model.layers * size * model.hidden + layer if checkpointing else model.layers * layer
    head = model.vocab * (4 + 4 + size)
    return int(answers * tokens * (kept + head))


def kv_cache_bytes(
    model: ModelShape,
    sequences: int,
    tokens: int,
    tensor_parallel: int = 1,
    value_bytes: int = 2,
    block: int = KV_BLOCK,
) -> int:
    """KV cache of so many sequences of so many tokens, in whole blocks, on one of `tensor_parallel` devices.

    2 (keys and values) x layers x KV heads x head size per token; KV heads are divided over the devices, and repeated where
    there are more devices than heads. Source: Kwon et al., PagedAttention (arXiv 2309.06180), sections 3 and 4.
    """
    blocks = -(-tokens // block)
    split = min(tensor_parallel, model.kv_heads)
    return sequences * blocks * block * model.kv_bytes_per_token(value_bytes) // split
