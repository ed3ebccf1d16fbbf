"""Memory of a policy's trainers on OpenRLHF, for plans: DeepSpeed under ZeRO beside vLLM, as `strategy` sets them up. No torch."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from harness.allocation.cost_model import (
    GPU_LOGITS,
    PolicyDemand,
    Workload,
    checkpoint_bytes,
    logits_bytes,
    trainer_states,
    weight_bytes,
)
from harness.allocation.inventory import LOGICAL
from harness.allocation.layout import Gpu, TrainingWay

MICRO_BATCHES = (16, 8, 4, 2, 1)  # answers of one pass that are tried
HOST_BYTES = 4 * 10**9  # RAM of trainer and rollout processes, sleepers apart: a prior
LOGICAL_HOST_BYTES = 3 * 10**9  # where a GPU is a core, what a CUDA context would hold included (docs/openrlhf.md)
REDUCE_BUCKET = 5 * 10**7  # gradients that ZeRO 2 and 3 reduce at once; DeepSpeed's default takes 1 GB of bf16
LIVE_PARAMETERS = 10**9  # whole weights that ZeRO 3 keeps gathered at most, DeepSpeed's default
DOUBLES_BYTES = 24  # per entry of the largest matrix: three float64 copies, to compare gradients


def process_ram(kind: str) -> int:
    """Return the bytes of RAM that trainer and rollout engine take on one GPU of this kind, what sleeps apart."""
    return LOGICAL_HOST_BYTES if kind == LOGICAL else HOST_BYTES


def sleeping_ram(kind: str) -> int:
    """Return the RAM for each byte that sleeps: torch rounds pinned memory up to powers of two. Where a GPU is a core, it sleeps
    in a file."""
    return 0 if kind == LOGICAL else 2


def ways_to_train(policy: PolicyDemand, work: Workload, ranks: int, gpu: Gpu) -> Iterator[TrainingWay]:
    """Yield the ways to run a trainer on so many GPUs, the fastest first."""
    answers = max(1, int(work.prompts * policy.rollouts * work.trained) // ranks)
    sharded = (2,) if policy.lora else (2, 3)  # adapters are merged into whole weights
    # Without ZeRO DeepSpeed keeps bf16's masters and moments where no checkpoint finds them.
    stages = sharded if policy.precision == "bf16" else (0, *sharded)
    if ranks == 1:
        stages = stages[:1]
    micro_batches = [size for size in MICRO_BATCHES if size <= answers or size == 1]
    for checkpointing in (False, True):
        for zero in stages:
            reduce_buffer = REDUCE_BUCKET * policy.value_bytes * (zero >= 2)
            for micro in micro_batches:
                activations = activation_bytes(policy, micro * work.sequence, checkpointing, zero)
                measuring = measuring_bytes(policy, ranks, activations)
                memory = msgspec.structs.replace(
                    trainer_states(policy, zero, ranks),
                    activations=working_bytes(policy, zero, ranks, activations, measuring),
                    measuring=measuring,
                    context=gpu.on.context + reduce_buffer,
                )
                yield TrainingWay(memory, micro, checkpointing, zero)


def activation_bytes(policy: PolicyDemand, tokens: int, checkpointing: bool, zero: int = 3) -> int:
    """Return the bytes that the backward pass of so many tokens keeps: what autograd keeps of transformers' modules (`meta`), and
    logits, all at once under ZeRO 3 alone; with checkpointing each layer's input, and one layer at a time (Korthikanti et al.,
    arXiv 2205.05198)."""
    model = policy.model
    size = policy.value_bytes
    kept = model.half if size == 2 else model.full
    layers = kept.layers
    if checkpointing:
        layers = model.layers * size * model.hidden + kept.layer
    entries = tokens * model.vocab
    at_once = GPU_LOGITS if zero < 3 else entries
    logits = logits_bytes(policy, entries, at_once)
    return tokens * (layers + kept.head) + int(logits)


def measuring_bytes(policy: PolicyDemand, ranks: int, activations: int) -> int:
    """Return the bytes that keep own and peer gradients apart: a rank's share of one sum in fp32, and two copies of the largest
    on its way, or its float64 copies once the activations are gone."""
    if not policy.measured:
        return 0
    largest = min(policy.model.largest, policy.trained)
    compared = DOUBLES_BYTES * largest // ranks
    on_its_way = max(8 * largest, compared - activations)
    return 4 * policy.trained // ranks + on_its_way


def working_bytes(policy: PolicyDemand, zero: int, ranks: int, activations: int, measuring: int) -> int:
    """Return the most bytes that come and go beside states and `measuring`. In a pass: activations, ZeRO 2's own gradients, ZeRO
    3's gathered weights. In the step: the root of the variances, with ZeRO 3 the gradients too, in fp32."""
    psi = policy.trained
    in_pass = activations
    if zero == 2:
        in_pass += policy.value_bytes * psi // ranks
    elif zero == 3:
        in_pass += min(psi, LIVE_PARAMETERS) * policy.value_bytes
    value_in_step = 8 if zero == 3 else 4
    shards = ranks if zero else 1
    in_step = value_in_step * psi // shards
    return max(in_pass, in_step - measuring)


def trainer_ram(policy: PolicyDemand, zero: int, ranks: int, kind: str) -> int:
    """Return the bytes of RAM of the trainer's ranks beside their processes: a checkpoint being written, whole on one rank, and
    the weights while others (the base's to score, merged ones to sync) are in their place, or the sums of own gradients while
    peers' add up."""
    base = 0
    if policy.lora or policy.reference:
        shards = ranks if zero == 3 else 1
        base = weight_bytes(policy.model, policy.precision) // shards
    own_gradients = 4 * policy.trained // ranks if policy.measured else 0
    away = max(base, own_gradients)
    written = checkpoint_bytes(policy.model, policy.precision, 0, policy.adapters).whole
    return sleeping_ram(kind) * away * ranks + written
