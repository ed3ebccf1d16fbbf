"""Where the policies of a cell go on so many GPUs, for an engine with trainers and rollout engines: the fastest way that fits.

colocated: each policy has its own GPUs, on which trainer and rollout engine take turns (or stand side by side where both
fit); shares follow predicted work, so that the policies finish a step together. stacked: all policies take turns on all
GPUs, where nothing else fits or the suite wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import msgspec

from harness.allocation.cost_model import (
    DISK,
    USABLE,
    CellDemand,
    Device,
    Memory,
    Phases,
    PolicyDemand,
    Workload,
    checkpoint_bytes,
    device,
    kv_cache_bytes,
    rollout_seconds,
    score_seconds,
    train_seconds,
    trainer_states,
    weight_bytes,
)
from harness.allocation.inventory import LOGICAL, Bundle
from harness.allocation.shapes import GPU_LOGITS

SIZES = (*range(1, 17), *(2**n for n in range(5, 13)))  # numbers of GPUs tried for a policy alone
MICRO_BATCHES = (16, 8, 4, 2, 1)
MOST_CONCURRENT = 2048  # vLLM's tokens of one step, at least one for each answer
LEAST_CONCURRENT = 8  # sequences below which a rollout engine is not worth starting
TURNS_GAIN = 0.9  # taking turns must shorten a step by this factor unless nothing else fits
HOST_BYTES = 4 * 10**9  # RAM of trainer and rollout processes, sleepers apart: a prior
LOGICAL_HOST_BYTES = 3 * 10**9  # where a GPU is a core, what a CUDA context would hold included (docs/openrlhf.md)
REDUCE_BUCKET = 5 * 10**7  # gradients that ZeRO 2 and 3 reduce at once; DeepSpeed's default takes 1 GB of bf16
LIVE_PARAMETERS = 10**9  # whole weights that ZeRO 3 keeps gathered at most, DeepSpeed's default
LOGITS_BYTES = 12  # per token and entry of the vocabulary, backward through the log-softmax: three fp32 copies
DOUBLES_BYTES = 24  # per entry of the largest matrix: three float64 copies, to compare gradients
SYNC_LINK = 50e9  # bytes per second of a weight sync, a prior
START_SECONDS = 120.0  # loading a cell's models and starting engines: a prior


@dataclass(frozen=True, slots=True)
class Gpu:
    """node: GPUs of a node, which tensor parallelism must not exceed. stacks: policies may take turns on it. measured: by a
    hardware record."""

    kind: str
    memory: int
    node: int
    stacks: bool = False
    measured: Device | None = None

    @property
    def on(self) -> Device:
        return self.measured or device(self.kind)

    @property
    def usable(self) -> int:
        return int(self.memory * USABLE)

    @property
    def host(self) -> int:
        """RAM of the processes on one GPU."""
        return LOGICAL_HOST_BYTES if self.kind == LOGICAL else HOST_BYTES

    @property
    def pinned(self) -> int:
        """RAM per byte that sleeps: torch rounds up to powers of two. Where a GPU is a core, it sleeps in a file."""
        return 0 if self.kind == LOGICAL else 2


class StepSeconds(msgspec.Struct, frozen=True):
    """Of a policy's step; `move`: weight sync, waking and putting to sleep."""

    rollout: float = 0.0
    score: float = 0.0
    train: float = 0.0
    move: float = 0.0

    @property
    def total(self) -> float:
        return self.rollout + self.score + self.train + self.move


class PolicyLayout(msgspec.Struct, frozen=True):
    """gpus: of trainer and rollout engines alike. sleeps: these take turns in their memory. concurrent: sequences per engine.
    sequence: longest prompt and answer trained on, tokens. memory, needed (with the smallest KV cache), peak,
    capacity: bytes per GPU; host: RAM over all its GPUs."""

    policy: str
    model: str
    gpus: int
    engines: int
    tensor_parallel: int
    zero: int
    micro_batch: int
    checkpointing: bool
    sleeps: bool
    concurrent: int
    memory: Memory
    needed: int
    peak: int
    capacity: int
    host: int
    seconds: StepSeconds
    sequence: int

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        """One per tensor-parallel group, which must not cross nodes; a core with each GPU."""
        size = self.tensor_parallel
        return (Bundle(size, size, self.host // self.gpus * size, self.capacity),) * self.engines

    def engine_options(self) -> dict[str, int | float | bool]:
        return {
            "zero_stage": self.zero,
            "trainers": self.gpus,
            "rollout_engines": self.engines,
            "tensor_parallel": self.tensor_parallel,
            "sleep": self.sleeps,
            "gradient_checkpointing": self.checkpointing,
            "micro_batch_tokens": self.micro_batch * self.sequence,
            "rollout_sequences": self.concurrent,
            "rollout_memory": round((self.memory.rollout + self.capacity // 100) / self.capacity, 3),
        }


# One policy -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=65536)
def policy_layout(
    policy: PolicyDemand, work: Workload, gpus: int, gpu: Gpu, others: int = 0
) -> tuple[PolicyLayout | None, int]:
    """The fastest way to put a policy's trainer and rollouts on the same GPUs, or None; and the bytes per GPU without which
    nothing fits (0: memory is not what lacks). others: policies that sleep there meanwhile."""
    best: PolicyLayout | None = None
    least, asleep = 0, 2 * gpu.on.context * others  # a sleeping process keeps its context
    if policy.devices not in {None, gpus}:
        return best, least
    model, on, answers = policy.model, gpu.on, work.prompts * policy.rollouts
    stored, mean = weight_bytes(model, policy.precision), work.mean_sequence
    # Own answers under the trainer (and the reference), peers' where the regime asks.
    score = score_seconds(model, answers * (1 + work.scored + policy.penalised) * mean, mean, on) / gpus
    for trainer, micro_batch, checkpointing, zero in _trainers(policy, work, gpus, gpu):
        train = train_seconds(policy, answers * work.trained * mean, mean, on, checkpointing) / gpus
        for tensor_parallel in (t for t in (1, 2, 4, 8) if t <= gpu.node and gpus % t == 0 and model.divides(t)):
            engines, weights = gpus // tensor_parallel, stored // tensor_parallel
            wanted, one = -(-answers // engines), kv_cache_bytes(policy, work.longest, tensor_parallel)
            for sleeps in (False, True):
                beside = asleep + gpu.on.context + (gpu.on.context if sleeps else trainer.train)
                needed = beside + weights + min(LEAST_CONCURRENT, wanted) * one
                synced = trainer.weights + weights + 2 * gpu.on.context  # both have their weights while they are sent
                needed = max(needed, asleep + trainer.train + gpu.on.context * sleeps, asleep + synced)
                least = min(least or needed, needed)
                if needed > gpu.usable:
                    continue
                concurrent = min(wanted, MOST_CONCURRENT, (gpu.usable - beside - weights) // one)
                memory = msgspec.structs.replace(
                    trainer, rollout_weights=weights, kv_cache=concurrent * one, rollout_context=gpu.on.context
                )
                both = memory.train, memory.rollout
                moved = (memory.states + weights) * sleeps
                rollout = (1 + work.again) * rollout_seconds(
                    policy, work, work.answer_tokens, answers, engines, tensor_parallel, concurrent, on
                )
                candidate = PolicyLayout(
                    policy=policy.name,
                    model=model.name,
                    gpus=gpus,
                    engines=engines,
                    tensor_parallel=tensor_parallel,
                    zero=zero,
                    micro_batch=micro_batch,
                    checkpointing=checkpointing,
                    sleeps=sleeps,
                    concurrent=concurrent,
                    memory=memory,
                    needed=needed,
                    peak=asleep + (max(*(part + gpu.on.context for part in both), synced) if sleeps else sum(both)),
                    capacity=gpu.memory,
                    host=gpu.host * gpus + host_bytes(policy, zero, gpus, gpu) + gpu.pinned * moved * gpus,
                    seconds=StepSeconds(rollout, score, train, stored / SYNC_LINK + 2 * moved / on.link),
                    sequence=work.sequence,
                )
                gain = TURNS_GAIN if sleeps and best is not None and not best.sleeps else 0.999
                if best is None or candidate.seconds.total < gain * best.seconds.total:
                    best = candidate
                break
    return best, least


def _trainers(policy: PolicyDemand, work: Workload, ranks: int, gpu: Gpu) -> Iterator[tuple[Memory, int, bool, int]]:
    """The fastest first: memory, answers of a micro-batch, checkpointing, ZeRO stage."""
    answers = max(1, int(work.prompts * policy.rollouts * work.trained) // ranks)
    sharded = (2,) if policy.lora else (2, 3)  # adapters are merged into whole weights
    # Without ZeRO DeepSpeed keeps bf16's masters and moments where no checkpoint finds them.
    stages = sharded if policy.precision == "bf16" else (0, *sharded)
    for checkpointing in (False, True):
        for zero in stages if ranks > 1 else stages[:1]:
            for micro in (m for m in MICRO_BATCHES if m <= answers or m == 1):
                activations = activation_bytes(policy, micro * work.sequence, checkpointing, zero)
                measuring = measuring_bytes(policy, ranks, activations)
                memory = msgspec.structs.replace(
                    trainer_states(policy, zero, ranks),
                    activations=working_bytes(policy, zero, ranks, activations, measuring),
                    measuring=measuring,
                    context=gpu.on.context + REDUCE_BUCKET * policy.value_bytes * (zero >= 2),
                )
                yield memory, micro, checkpointing, zero


def activation_bytes(policy: PolicyDemand, tokens: int, checkpointing: bool, zero: int = 3) -> int:
    """Bytes that the backward pass of so many tokens keeps: what autograd keeps of transformers' modules (`meta`), and logits,
    all at once under ZeRO 3 alone; with checkpointing each layer's input, and one layer at a time (Korthikanti et al., arXiv
    2205.05198)."""
    model, size = policy.model, policy.value_bytes
    kept = model.half if size == 2 else model.full
    layers = model.layers * size * model.hidden + kept.layer if checkpointing else kept.layers
    logits = LOGITS_BYTES * tokens * model.vocab
    if zero < 3 and tokens * model.vocab > GPU_LOGITS:  # as `embedded` counts it
        logits = LOGITS_BYTES * GPU_LOGITS + 2 * size * model.largest * (not policy.lora)
    return tokens * (layers + kept.head) + logits


def measuring_bytes(policy: PolicyDemand, ranks: int, activations: int) -> int:
    """Own and peer gradients apart: a rank's share of one sum in fp32, and two copies of the largest on its way, or its float64
    copies once the activations are gone."""
    largest = min(policy.model.largest, policy.trained)
    compared = DOUBLES_BYTES * largest // ranks
    whole = 4 * policy.trained // ranks + max(8 * largest, compared - activations)
    return whole if policy.measured else 0


def working_bytes(policy: PolicyDemand, zero: int, ranks: int, activations: int, measuring: int) -> int:
    """The most that comes and goes beside states and `measuring`. In a pass: activations, ZeRO 2's own gradients, ZeRO 3's
    gathered weights. In the step: the root of the variances, with ZeRO 3 the gradients too, in fp32."""
    psi = policy.trained
    own = policy.value_bytes * psi // ranks if zero == 2 else 0
    gathered = min(psi, LIVE_PARAMETERS) * policy.value_bytes if zero == 3 else 0
    step = (8 if zero == 3 else 4) * psi // (ranks if zero else 1)
    return max(activations + own + gathered, step - measuring)


def host_bytes(policy: PolicyDemand, zero: int, ranks: int, gpu: Gpu) -> int:
    """RAM of the trainer's ranks beside their processes: a checkpoint being written, whole on one rank, and the weights while
    others (the base's to score, merged ones to sync) are in their place, or the sums of own gradients while peers' add up."""
    replaced = policy.lora or policy.reference
    base = weight_bytes(policy.model, policy.precision) // (ranks if zero == 3 else 1) if replaced else 0
    away = max(base, 4 * policy.trained // ranks if policy.measured else 0)
    written = checkpoint_bytes(policy.model, policy.precision, 0, policy.adapters).whole
    return gpu.pinned * away * ranks + written


def _sizes(policy: PolicyDemand) -> tuple[int, ...]:
    return (policy.devices,) if policy.devices else SIZES


def least_gpus(policy: PolicyDemand, work: Workload, gpu: Gpu) -> int | None:
    """On which the policy can be trained, or None."""
    return next((gpus for gpus in _sizes(policy) if policy_layout(policy, work, gpus, gpu)[0]), None)


# One cell -------------------------------------------------------------------------------------------------------------


class CellLayout(msgspec.Struct, frozen=True):
    """memory_bytes: of GPUs and hosts. phases: of the whole cell."""

    arrangement: Literal["colocated", "stacked"]
    gpus: int
    policies: tuple[PolicyLayout, ...]
    step_seconds: float
    memory_bytes: int
    phases: Phases = Phases()

    @property
    def seconds(self) -> float:
        return self.phases.total

    @property
    def host(self) -> int:
        return sum(p.host for p in self.policies)

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        """One per tensor-parallel group, as a policy's."""
        if self.arrangement != "stacked":
            return tuple(bundle for p in self.policies for bundle in p.bundles)
        widest = max(p.tensor_parallel for p in self.policies)
        groups = [widest] * (self.gpus // widest) + [1] * (self.gpus % widest)
        return tuple(Bundle(n, n, self.host // self.gpus * n, self.policies[0].capacity) for n in groups)


@lru_cache(maxsize=65536)
def cell_layout(cell: CellDemand, gpus: int, gpu: Gpu) -> CellLayout | None:
    """The fastest way on at most so many GPUs, or None."""
    work, several = cell.workload, len(cell.policies) > 1

    def alone(policy: PolicyDemand, number: int) -> PolicyLayout | None:
        return policy_layout(policy, work, number, gpu)[0]

    share = [] if cell.shared and several else _shares(cell.policies, gpus, alone)
    places = [place for p, n in zip(cell.policies, share, strict=False) if (place := alone(p, n))]
    if places:
        return _cell(cell, sum(share), places, gpu.on, stacked=False)
    own, others = cell.policies[0].devices or gpus, len(cell.policies) - 1
    if several and cell.shared is not False and gpu.stacks and own <= gpus:
        turns = (_in_turns(policy_layout(p, work, own, gpu, others)[0], gpu) for p in cell.policies)
        places = [place for place in turns if place]
    return _cell(cell, own, places, gpu.on, stacked=True) if len(places) == len(cell.policies) else None


def _in_turns(layout: PolicyLayout | None, gpu: Gpu) -> PolicyLayout | None:
    if layout is None or layout.sleeps:
        return layout
    moved = layout.memory.states + layout.memory.rollout_weights
    seconds = msgspec.structs.replace(layout.seconds, move=layout.seconds.move + 2 * moved / gpu.on.link)
    return msgspec.structs.replace(layout, host=layout.host + gpu.pinned * moved * layout.gpus, seconds=seconds)


def _shares(
    policies: tuple[PolicyDemand, ...], gpus: int, layout: Callable[[PolicyDemand, int], PolicyLayout | None]
) -> list[int]:
    """GPUs of each policy for the shortest step; none if the least does not fit. The slowest takes as many as
    its next faster size wants: optimal for seconds that never rise with GPUs.
    """

    def seconds(index: int, number: int) -> float:
        placed = layout(policies[index], number)
        return placed.seconds.total if placed else float("inf")

    share = [next((n for n in _sizes(p) if n <= gpus and layout(p, n)), gpus + 1) for p in policies]
    if sum(share) > gpus:
        return []
    while left := gpus - sum(share):
        slowest = max(range(len(share)), key=lambda i: (seconds(i, share[i]), policies[i].name))
        now = seconds(slowest, share[slowest])
        jump = next((n for n in range(1, left + 1) if seconds(slowest, share[slowest] + n) < now), 0)
        if not jump:
            break
        share[slowest] += jump
    return share


def _cell(cell: CellDemand, gpus: int, places: list[PolicyLayout], on: Device, stacked: bool) -> CellLayout:
    """The slowest policy sets the pace of each phase."""
    work = cell.workload
    together: Callable[[list[float]], float] = sum if stacked else max
    pairs = list(zip(cell.policies, places, strict=True))

    def generate(answers: int, tokens: int) -> float:
        if not answers:
            return 0.0
        return together(
            [
                rollout_seconds(p, work, tokens, answers, at.engines, at.tensor_parallel, at.concurrent, on)
                for p, at in pairs
            ]
        )

    step = together([p.seconds.total for p in places])
    slowest = max(places, key=lambda p: p.seconds.total).seconds
    scale = work.steps * step / slowest.total if slowest.total else 0.0
    # Own answers are scored again, under the updated policy and the base.
    again = [
        score_seconds(p.model, 2 * work.prompts * p.rollouts * work.mean_sequence, work.mean_sequence, on) / at.gpus
        for p, at in pairs
    ]
    phases = Phases(
        start=START_SECONDS,
        generate=scale * slowest.rollout,
        score=scale * slowest.score,
        train=scale * slowest.train,
        move=scale * slowest.move,
        measure=work.measured * together(again),
        curve=generate(work.curve, work.answer_tokens),
        evaluate=generate(work.evaluated, work.evaluation_tokens),
        save=work.saves
        * sum(checkpoint_bytes(p.model, p.precision, adapters=p.adapters).whole for p in cell.policies)
        / DISK,
    )
    peaks = [p.peak * p.gpus for p in places]
    memory = (max(peaks) if stacked else sum(peaks)) + sum(p.host for p in places)
    return CellLayout("stacked" if stacked else "colocated", gpus, tuple(places), step, memory, phases)
