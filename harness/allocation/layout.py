"""How one policy's trainer and rollout engine are cut and put on so many GPUs: the fastest way that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from harness.allocation.demand import PolicyDemand, Workload
from harness.allocation.inventory import LOGICAL
from harness.allocation.size import (
    CONTEXT_BYTES,
    PINNED,
    Memory,
    activation_bytes,
    bucket_bytes,
    checkpoint_bytes,
    kv_cache_bytes,
    measuring_bytes,
    trainer_states,
    weight_bytes,
    working_bytes,
)
from harness.allocation.work import (
    HOST_LINK,
    SYNC_LINK,
    Device,
    StepSeconds,
    device,
    rollout_seconds,
    score_seconds,
    train_seconds,
)

USABLE = 0.95
"""Share of a device's memory that is planned with; the rest is fragmentation."""
MICRO_BATCHES = (16, 8, 4, 2, 1)
LEAST_CONCURRENT = 8
"""A rollout engine that holds fewer sequences at once is not worth starting (fewer answers than that: all of them)."""
TURNS_GAIN = 0.9
"""Trainer and rollout engine take turns in the memory only where a step gets shorter at least by this factor, or fits at all."""
HOST_BYTES = 4 * 10**9
"""RAM of a trainer's and a rollout engine's processes beside what is put to sleep there: a prior."""
LOGICAL_HOST_BYTES = 3 * 10**9
"""The same where a GPU is a core of a CPU, what a CUDA context would hold included: docs/openrlhf.md has the measurement."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU and what the engine can do on it.

    node: how many a node has, the most that tensor parallelism may span. sleeps: trainer and rollout engine can put each other's
    memory to sleep in the host's; stacks: several policies can take turns on one GPU. An engine that cannot gets no layout that
    would need it. context: bytes on the GPU, and host: RAM, that each process takes beside its states and caches, asleep or not.
    """

    kind: str
    memory: int
    node: int
    sleeps: bool = False
    stacks: bool = False
    context: int = CONTEXT_BYTES
    host: int = HOST_BYTES

    @property
    def usable(self) -> int:
        return int(self.memory * USABLE)

    @property
    def pinned(self) -> int:
        """RAM by what waits there; where a GPU is a core of a CPU, it waits in a file."""
        return 0 if self.kind == LOGICAL else PINNED

    @property
    def device(self) -> Device:
        return device(self.kind)


class PolicyLayout(msgspec.Struct, frozen=True):
    """One policy's place. gpus: its trainer's ranks; rollout_gpus: its engines' (the same ones unless split). sleeps: trainer
    and engine take turns in the GPU's memory. sequence: tokens of the longest prompt and answer that are trained on.
    memory: per device, of the fullest; host: RAM over all its GPUs."""

    policy: str
    model: str
    gpus: int
    rollout_gpus: int
    engines: int
    tensor_parallel: int
    zero: int
    micro_batch: int
    checkpointing: bool
    sleeps: bool
    split: bool
    concurrent: int
    memory: Memory
    peak: int
    capacity: int
    host: int
    seconds: StepSeconds
    sequence: int

    def engine_options(self) -> dict[str, int | float | bool]:
        """The layout as `engine_options` of the openrlhf engine."""
        return {
            "zero_stage": self.zero,
            "trainers": self.gpus,
            "rollout_engines": self.engines,
            "tensor_parallel": self.tensor_parallel,
            "colocate": not self.split,
            "sleep": self.sleeps,
            "gradient_checkpointing": self.checkpointing,
            "micro_batch_tokens": self.micro_batch * self.sequence,
            "rollout_sequences": self.concurrent,
            "rollout_memory": round((self.memory.rollout + self.capacity // 100) / self.capacity, 3),
        }


@lru_cache(maxsize=65536)
def policy_layout(policy: PolicyDemand, work: Workload, gpus: int, gpu: Gpu, asleep: int = 0) -> PolicyLayout | None:
    """The fastest way to put trainer and rollouts of one policy on the same `gpus` GPUs, or None if nothing fits.

    asleep: bytes that other processes keep on each of these GPUs meanwhile.
    """
    best: PolicyLayout | None = None
    for (states, micro, checkpointing, zero), tensor_parallel, sleeps, engine in _shared(
        policy, work, gpus, gpu, asleep
    ):
        concurrent, weights, cache = engine
        seconds = _seconds(policy, work, gpus, tensor_parallel, concurrent, checkpointing, gpu.device)
        memory = _with_rollouts(states, weights, cache, gpu)
        host = gpu.host * gpus + host_bytes(policy, zero, gpus, gpu)
        if sleeps:
            moved = (states.states + weights) * gpus
            host += gpu.pinned * moved
            away = 2 * moved / (gpus * HOST_LINK)
            seconds = msgspec.structs.replace(seconds, move=seconds.move + away)
        gain = TURNS_GAIN if sleeps and best is not None and not best.sleeps else 0.999
        if best is None or seconds.total < gain * best.seconds.total:
            alone = max(memory.train, memory.rollout) + gpu.context
            peak = asleep + (alone if sleeps else memory.train + memory.rollout)
            best = PolicyLayout(
                policy.name, policy.model.name, gpus, gpus, gpus // tensor_parallel, tensor_parallel, zero, micro,
                checkpointing, sleeps, False, concurrent, memory, peak, gpu.memory, host, seconds, work.sequence,
            )  # fmt: skip
    return best


def fits(policy: PolicyDemand, work: Workload, gpus: int, gpu: Gpu) -> bool:
    """Whether `policy_layout` finds one."""
    return any(True for _ in _shared(policy, work, gpus, gpu, 0))


def _shared(
    policy: PolicyDemand, work: Workload, gpus: int, gpu: Gpu, asleep: int
) -> Iterator[tuple[tuple[Memory, int, bool, int], int, bool, tuple[int, int, int]]]:
    """What fits on the same GPUs: the trainer (`_trainers`), tensor parallelism, whether it sleeps, and the engine (`_engine`)."""
    if policy.devices not in {None, gpus}:
        return
    for trainer in _trainers(policy, work, gpus, gpu):
        train = trainer[0].train + asleep
        if train > gpu.usable:
            continue
        for tensor_parallel in _tensor_parallel(policy, gpus, gpu):
            for sleeps in (False, True) if gpu.sleeps else (False,):
                # A sleeping process keeps its context.
                if sleeps and train + gpu.context > gpu.usable:
                    continue
                room = gpu.usable - asleep - gpu.context - (gpu.context if sleeps else trainer[0].train)
                engine = _engine(policy, work, gpus // tensor_parallel, tensor_parallel, room)
                if engine is not None:
                    yield trainer, tensor_parallel, sleeps, engine
                    break


@lru_cache(maxsize=4096)
def split_layout(policy: PolicyDemand, work: Workload, gpus: int, gpu: Gpu) -> PolicyLayout | None:
    """The fastest division of `gpus` GPUs into trainer and rollout GPUs, each always busy, or None if nothing fits.

    The step is the longer of the two sides plus the weight sync.
    """
    if policy.devices is not None:
        return None
    best: PolicyLayout | None = None
    for ranks in range(1, gpus):
        trainer = next((t for t in _trainers(policy, work, ranks, gpu) if t[0].train <= gpu.usable), None)
        if trainer is None:
            continue
        states, micro, checkpointing, zero = trainer
        others = gpus - ranks
        for tensor_parallel in _tensor_parallel(policy, others, gpu):
            engine = _engine(policy, work, others // tensor_parallel, tensor_parallel, gpu.usable - gpu.context)
            if engine is None:
                continue
            concurrent, weights, cache = engine
            full = _seconds(policy, work, ranks, tensor_parallel, concurrent, checkpointing, gpu.device)
            rollout = rollout_seconds(
                policy,
                work,
                work.prompts * policy.rollouts,
                others // tensor_parallel,
                tensor_parallel,
                concurrent,
                gpu.device,
            )
            # Both sides work at once: only what one takes longer than the other shows beside it.
            shown = max(0.0, rollout - full.score - full.train)
            seconds = msgspec.structs.replace(full, rollout=shown)
            if best is None or seconds.total < 0.999 * best.seconds.total:
                memory = _with_rollouts(states, weights, cache, gpu)
                host = gpu.host * gpus + host_bytes(policy, zero, ranks, gpu)
                best = PolicyLayout(
                    policy.name, policy.model.name, ranks, others, others // tensor_parallel, tensor_parallel, zero, micro,
                    checkpointing, False, True, concurrent, memory, max(memory.train, memory.rollout), gpu.memory,
                    host, seconds, work.sequence,
                )  # fmt: skip
            break
    return best


def _trainers(policy: PolicyDemand, work: Workload, ranks: int, gpu: Gpu) -> Iterator[tuple[Memory, int, bool, int]]:
    """Ways to train on `ranks` ranks, the fastest first: (memory, micro-batch, checkpointing, ZeRO stage)."""
    answers = max(1, int(work.prompts * policy.rollouts * work.trained) // ranks)
    for checkpointing in (False, True):
        for zero in _stages(policy, ranks):
            states = trainer_states(policy.model, policy.precision, zero, ranks)
            for micro in (m for m in MICRO_BATCHES if m <= answers or m == 1):
                activations = activation_bytes(policy.model, micro * work.sequence, checkpointing, policy.precision)
                measuring = measuring_bytes(policy.model, ranks, activations) if policy.measured else 0
                memory = msgspec.structs.replace(
                    states,
                    activations=working_bytes(policy.model, policy.precision, zero, ranks, activations, measuring),
                    measuring=measuring,
                    context=gpu.context + bucket_bytes(policy.precision, zero),
                )
                yield memory, micro, checkpointing, zero


def _stages(policy: PolicyDemand, ranks: int) -> tuple[int, ...]:
    """ZeRO stages, the fastest first. Without ZeRO DeepSpeed keeps bf16's masters and moments where no checkpoint finds them."""
    if policy.precision == "bf16":
        return (2, 3) if ranks > 1 else (2,)
    return (0, 2, 3) if ranks > 1 else (0,)


def host_bytes(policy: PolicyDemand, zero: int, ranks: int, gpu: Gpu) -> int:
    """RAM of the trainer's ranks beside their processes: what leaves the GPUs while it works, and a checkpoint being written, whose
    weights and optimiser's state one rank has whole.

    The former are the trainer's own weights while the base is scored in their place, or the sums of own gradients while peers' add
    up, never both.
    """
    base = weight_bytes(policy.model, policy.precision) // (ranks if zero == 3 else 1) if policy.reference else 0
    away = max(base, 4 * policy.model.parameters // ranks if policy.measured else 0)
    return gpu.pinned * away * ranks + checkpoint_bytes(policy.model, policy.precision, tokenizer=0).whole


def _with_rollouts(states: Memory, weights: int, cache: int, gpu: Gpu) -> Memory:
    return msgspec.structs.replace(states, rollout_weights=weights, kv_cache=cache, rollout_context=gpu.context)


def _tensor_parallel(policy: PolicyDemand, gpus: int, gpu: Gpu) -> list[int]:
    """1, 2, 4, ... that divide the GPUs and the heads, within a node."""
    return [t for t in (1, 2, 4, 8) if t <= gpu.node and gpus % t == 0 and policy.model.divides(t)]


def _engine(
    policy: PolicyDemand, work: Workload, engines: int, tensor_parallel: int, room: int
) -> tuple[int, int, int] | None:
    """(sequences at once, bytes of weights, bytes of KV cache) per device of an engine with `room` bytes, or None."""
    answers = work.prompts * policy.rollouts
    weights = weight_bytes(policy.model, policy.precision) // tensor_parallel
    one = kv_cache_bytes(policy.model, 1, work.sampled, tensor_parallel, 2 if policy.precision == "bf16" else 4)
    wanted = -(-answers // engines)
    concurrent = min(wanted, (room - weights) // one)
    if concurrent < min(LEAST_CONCURRENT, wanted):
        return None
    return concurrent, weights, concurrent * one


def _seconds(
    policy: PolicyDemand,
    work: Workload,
    gpus: int,
    tensor_parallel: int,
    concurrent: int,
    checkpointing: bool,
    on: Device,
) -> StepSeconds:
    answers = work.prompts * policy.rollouts
    return StepSeconds(
        rollout=rollout_seconds(
            policy, work, answers, max(1, gpus // tensor_parallel), tensor_parallel, concurrent, on
        ),
        score=score_seconds(policy, work, gpus, on),
        train=train_seconds(policy, work, gpus, checkpointing, on),
        move=weight_bytes(policy.model, policy.precision) / SYNC_LINK,
    )


@lru_cache(maxsize=4096)
def least_gpus(policy: PolicyDemand, work: Workload, gpu: Gpu, most: int = 4096) -> int | None:
    """The fewest GPUs on which the policy can be trained, or None if `most` are not enough."""
    sizes: list[int] = [*range(1, 17), *(2**n for n in range(5, 13))]
    for gpus in sizes:
        if gpus <= most and fits(policy, work, gpus, gpu):
            return gpus
    return None
