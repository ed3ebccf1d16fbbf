"""How long a step takes: operations and bytes moved, over what a device can do.

The rates are data-sheet peaks times an efficiency that is a prior. `Estimates` replaces the prediction by measurements as soon
as there are any, so what matters here are ratios between policies, layouts and regimes more than seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from harness.allocation.demand import PolicyDemand, Workload
from harness.allocation.shapes import ModelShape
from harness.allocation.size import kv_cache_bytes, weight_bytes

TRAIN_EFFICIENCY = 0.35
"""Share of the peak that training reaches: model FLOPs utilisation of dense models of 1 to 8 B, a prior."""
SCORE_EFFICIENCY = 0.45
BANDWIDTH_EFFICIENCY = 0.6
"""Share of the memory bandwidth that decoding reaches, a prior."""
HOST_LINK = 20e9
"""Bytes per second between a GPU and the host's memory (PCIe 5 x16, pinned), a prior."""
SYNC_LINK = 50e9
"""Bytes per second of the weight sync between trainer and rollout engine, a prior."""
DISK = 1e9
"""Bytes per second that a checkpoint is written with, a prior."""


@dataclass(frozen=True, slots=True)
class Device:
    """peak: dense bf16 FLOP/s; bandwidth: bytes/s of its memory."""

    peak: float
    bandwidth: float


DEVICES: Mapping[str, Device] = {
    "B200": Device(2250e12, 8.0e12),
    "GH200": Device(989e12, 4.0e12),
    "H200": Device(989e12, 4.8e12),
    "H100": Device(989e12, 3.35e12),
    "H20": Device(148e12, 4.0e12),
    "A100": Device(312e12, 2.0e12),
    "L40S": Device(362e12, 0.864e12),
    "L4": Device(121e12, 0.3e12),
    "A10": Device(125e12, 0.6e12),
    "A6000": Device(155e12, 0.768e12),
    "RTX4090": Device(165e12, 1.0e12),
    "V100": Device(125e12, 0.9e12),
    "T4": Device(65e12, 0.3e12),
    "LOGICAL": Device(0.05e12, 0.02e12),
    "CORE": Device(0.14e12, 0.02e12),
}
"""Makers' data sheets (SXM variants, no sparsity); LOGICAL is one core of a CPU under Ray, CORE one of its own."""
UNKNOWN = Device(100e12, 1.0e12)


def device(kind: str) -> Device:
    """The device of that name (`A100-80G` counts as A100); a modest one where the name is unknown."""
    name = kind.upper()
    found = [known for known in DEVICES if name.startswith(known)]
    return DEVICES[max(found, key=len)] if found else UNKNOWN


class Phases(msgspec.Struct, frozen=True):
    """Seconds of one whole cell by phase, of its slowest policy in each; what the policies do side by side counts once."""

    start: float = 0.0
    generate: float = 0.0
    score: float = 0.0
    train: float = 0.0
    move: float = 0.0
    measure: float = 0.0
    curve: float = 0.0
    evaluate: float = 0.0
    save: float = 0.0

    @property
    def total(self) -> float:
        return float(sum(msgspec.structs.astuple(self)))


class StepSeconds(msgspec.Struct, frozen=True):
    """Seconds of one step of one policy by phase; `move` is weight sync and waking or putting to sleep."""

    rollout: float = 0.0
    score: float = 0.0
    train: float = 0.0
    move: float = 0.0

    @property
    def total(self) -> float:
        return self.rollout + self.score + self.train + self.move


def training_flops(model: ModelShape, tokens: float, sequence: float, checkpointing: bool) -> float:
    """6 N per token for forward and backward (8 N with full recomputation) plus three times the attention's (four).

    Source: Chowdhery et al., PaLM (arXiv 2204.02311), appendix B; recomputation: Korthikanti et al. (arXiv 2205.05198).
    N counts the parameters of matrix products, the head included, of experts those that a token takes. Causal masking halves
    the attention's part, a window bounds it.
    """
    return 3 * tokens * (2 * model.matmul + model.attention_flops(sequence)) * (4 / 3 if checkpointing else 1.0)


def scoring_flops(model: ModelShape, tokens: float, sequence: float) -> float:
    """A forward pass alone: a third of `training_flops`."""
    return training_flops(model, tokens, sequence, checkpointing=False) / 3


def rollout_seconds(
    policy: PolicyDemand,
    work: Workload,
    answers: float,
    engines: int,
    tensor_parallel: int,
    concurrent: int,
    on: Device,
) -> float:
    """Generating `answers` answers by `engines` engines that hold `concurrent` sequences each.

    Prefill by its FLOPs; each decoding step reads the weights once and the KV cache of all that run, or does 2 N FLOPs per
    sequence, whichever takes longer. The last of a wave are as long as the longest answer.
    """
    model = policy.model
    each = answers / engines
    batch = max(1.0, min(each, concurrent))
    waves = max(1.0, each / batch)
    steps = (waves - 1) * work.mean_answer_tokens + work.answer_tokens
    kv = kv_cache_bytes(model, 1, int(work.mean_sequence), tensor_parallel, 2 if policy.precision == "bf16" else 4)
    weights = weight_bytes(model, policy.precision) * model.read(batch) / model.parameters
    read = weights / tensor_parallel + batch * kv
    flops = 2 * model.matmul * batch / tensor_parallel
    decode = steps * max(read / (on.bandwidth * BANDWIDTH_EFFICIENCY), flops / (on.peak * SCORE_EFFICIENCY))
    prompts = answers / policy.rollouts
    prefill = scoring_flops(model, prompts * work.prompt_tokens, work.prompt_tokens)
    return decode + prefill / (engines * tensor_parallel * on.peak * SCORE_EFFICIENCY)


def train_seconds(policy: PolicyDemand, work: Workload, gpus: int, checkpointing: bool, on: Device) -> float:
    """Updates of one step on `gpus` GPUs, data parallel."""
    tokens = work.prompts * policy.rollouts * work.trained * work.mean_sequence
    flops = training_flops(policy.model, tokens, work.mean_sequence, checkpointing)
    return flops / (gpus * on.peak * TRAIN_EFFICIENCY)


def measure_seconds(policy: PolicyDemand, work: Workload, gpus: int, on: Device) -> float:
    """One measured step more than another: own answers scored again, under the updated policy and under the base."""
    tokens = 2 * work.prompts * policy.rollouts * work.mean_sequence
    return scoring_flops(policy.model, tokens, work.mean_sequence) / (gpus * on.peak * SCORE_EFFICIENCY)


def score_seconds(policy: PolicyDemand, work: Workload, gpus: int, on: Device) -> float:
    """Log-probabilities before the update: own answers under the trainer (and the reference), peers' where the regime asks."""
    per_rollout = 1 + work.scored + policy.penalised
    tokens = work.prompts * policy.rollouts * per_rollout * work.mean_sequence
    return scoring_flops(policy.model, tokens, work.mean_sequence) / (gpus * on.peak * SCORE_EFFICIENCY)
