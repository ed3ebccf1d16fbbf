"""Where the policies of one cell go on so many GPUs, for an engine with trainers and rollout engines: the fastest way that fits.

Three arrangements are tried:

  colocated  each policy has GPUs of its own, on which its trainer and its rollout engine take turns (or stand side by side
             where both fit); shares in proportion to predicted work, so that the policies finish a step together.
  split      each policy has some GPUs for the trainer and others for rollouts; pays off only when experience may be stale, for
             then both work at once.
  stacked    all policies take turns on all GPUs of the cell, in lockstep: where nothing else fits, or the suite wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import msgspec

from harness.allocation.cost_model import (
    CONTEXT_BYTES,
    DISK,
    USABLE,
    Device,
    Memory,
    Phases,
    checkpoint_bytes,
    device,
    kv_cache_bytes,
    rollout_seconds,
    score_seconds,
    train_seconds,
    trainer_states,
    weight_bytes,
)
from harness.allocation.demand import CellDemand, PolicyDemand, Workload
from harness.allocation.inventory import LOGICAL, Bundle

SIZES = (*range(1, 17), *(2**n for n in range(5, 13)))
"""Numbers of GPUs that are tried for a policy alone."""
MICRO_BATCHES = (16, 8, 4, 2, 1)
LEAST_CONCURRENT = 8
"""A rollout engine that holds fewer sequences at once is not worth starting (fewer answers than that: all of them)."""
TURNS_GAIN = 0.9
"""Trainer and rollout engine take turns in the memory only where a step gets shorter at least by this factor, or fits at all."""
HOST_BYTES = 4 * 10**9
"""RAM of a trainer's and a rollout engine's processes beside what is put to sleep there: a prior."""
LOGICAL_HOST_BYTES = 3 * 10**9
"""The same where a GPU is a core of a CPU, what a CUDA context would hold included: docs/openrlhf.md has the measurement."""
REDUCE_BUCKET = 5 * 10**7
"""Elements of gradients that ZeRO 2 and 3 reduce at once. DeepSpeed's default is ten times as many: 1 GB of bf16."""
LIVE_PARAMETERS = 10**9
"""Of whole weights that ZeRO 3 keeps gathered at most, DeepSpeed's default."""
LOGITS_BYTES = 12
"""Per token and entry of the vocabulary, of a backward pass through the log-softmax: three fp32 copies at the fullest moment."""
DOUBLES_BYTES = 24
"""Per entry of the largest matrix: gradients are compared in float64, three copies at a time."""
HOST_LINK = 20e9
"""Bytes per second between a GPU and the host's memory (PCIe 5 x16, pinned), a prior."""
SYNC_LINK = 50e9
"""Bytes per second of the weight sync between trainer and rollout engine, a prior."""
START_SECONDS = 120.0
"""Loading models and starting engines of a cell on GPUs: a prior."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU. node: how many a node has, the most that tensor parallelism may span. stacks: whether several policies may
    take turns on one."""

    kind: str
    memory: int
    node: int
    stacks: bool = False

    @property
    def usable(self) -> int:
        return int(self.memory * USABLE)

    @property
    def context(self) -> int:
        """Bytes that each process takes beside its states and caches, asleep or not."""
        return 0 if self.kind == LOGICAL else CONTEXT_BYTES

    @property
    def host(self) -> int:
        """RAM of the processes on one GPU."""
        return LOGICAL_HOST_BYTES if self.kind == LOGICAL else HOST_BYTES

    @property
    def pinned(self) -> int:
        """RAM by what waits there: torch rounds each piece up to a power of two. Where a GPU is a core, it waits in a file."""
        return 0 if self.kind == LOGICAL else 2


class StepSeconds(msgspec.Struct, frozen=True):
    """Seconds of one step of one policy by phase; `move` is weight sync and waking or putting to sleep."""

    rollout: float = 0.0
    score: float = 0.0
    train: float = 0.0
    move: float = 0.0

    @property
    def total(self) -> float:
        return self.rollout + self.score + self.train + self.move


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

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        """What to reserve: a bundle per tensor-parallel group, which must not cross nodes, and per other GPU; a core with each."""
        total = self.gpus + self.rollout_gpus * self.split
        groups = [self.tensor_parallel] * self.engines + [1] * (total - self.engines * self.tensor_parallel)
        return tuple(Bundle(n, n, self.host // total * n, self.capacity) for n in groups)

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


# One policy -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=65536)
def policy_layout(
    policy: PolicyDemand, work: Workload, gpus: int, gpu: Gpu, others: int = 0
) -> tuple[PolicyLayout | None, int]:
    """The fastest way to put trainer and rollouts of one policy on the same GPUs, None if nothing fits; and the bytes per GPU
    without which nothing does (0: memory is not what lacks). others: policies that sleep on these GPUs meanwhile."""
    best: PolicyLayout | None = None
    least = 0
    if policy.devices not in {None, gpus}:
        return best, least
    asleep = 2 * gpu.context * others
    for trainer in _trainers(policy, work, gpus, gpu):
        train = trainer.memory.train
        for tensor_parallel in _tensor_parallel(policy, gpus, gpu):
            wanted, weights, one = _engine(policy, work, gpus, tensor_parallel)
            for sleeps in (False, True):
                beside = (
                    asleep + gpu.context + (gpu.context if sleeps else train)
                )  # a sleeping process keeps its context
                needed = beside + weights + min(LEAST_CONCURRENT, wanted) * one
                needed = max(needed, asleep + train + gpu.context * sleeps)
                least = min(least or needed, needed)
                if needed > gpu.usable:
                    continue
                concurrent = min(wanted, (gpu.usable - beside - weights) // one)
                found = _layout(policy, work, gpu, trainer, gpus, 0, tensor_parallel, concurrent, sleeps, asleep)
                gain = TURNS_GAIN if sleeps and best is not None and not best.sleeps else 0.999
                if best is None or found.seconds.total < gain * best.seconds.total:
                    best = found
                break
    return best, least


@lru_cache(maxsize=4096)
def split_layout(policy: PolicyDemand, work: Workload, gpus: int, gpu: Gpu) -> PolicyLayout | None:
    """The fastest division of GPUs into trainer and rollout GPUs, each always busy, or None if nothing fits."""
    best: PolicyLayout | None = None
    for ranks in range(1, gpus if policy.devices is None else 0):
        others = gpus - ranks
        trainer = next((t for t in _trainers(policy, work, ranks, gpu) if t.memory.train <= gpu.usable), None)
        for tensor_parallel in _tensor_parallel(policy, others, gpu) if trainer else ():
            assert trainer is not None
            wanted, weights, one = _engine(policy, work, others, tensor_parallel)
            concurrent = min(wanted, (gpu.usable - gpu.context - weights) // one)
            if concurrent >= min(LEAST_CONCURRENT, wanted):
                found = _layout(policy, work, gpu, trainer, ranks, others, tensor_parallel, concurrent)
                if best is None or found.seconds.total < 0.999 * best.seconds.total:
                    best = found
                break
    return best


@dataclass(frozen=True, slots=True)
class _Trainer:
    memory: Memory
    micro_batch: int
    checkpointing: bool
    zero: int


def _trainers(policy: PolicyDemand, work: Workload, ranks: int, gpu: Gpu) -> Iterator[_Trainer]:
    """Ways to train on so many ranks, the fastest first."""
    answers = max(1, int(work.prompts * policy.rollouts * work.trained) // ranks)
    # Without ZeRO DeepSpeed keeps bf16's masters and moments where no checkpoint finds them.
    stages = (2, 3) if policy.precision == "bf16" else (0, 2, 3)
    for checkpointing in (False, True):
        for zero in stages if ranks > 1 else stages[:1]:
            states = trainer_states(policy, zero, ranks)
            for micro in (m for m in MICRO_BATCHES if m <= answers or m == 1):
                activations = activation_bytes(policy, micro * work.sequence, checkpointing)
                measuring = measuring_bytes(policy, ranks, activations)
                memory = msgspec.structs.replace(
                    states,
                    activations=working_bytes(policy, zero, ranks, activations, measuring),
                    measuring=measuring,
                    context=gpu.context + REDUCE_BUCKET * policy.value_bytes * (zero >= 2),
                )
                yield _Trainer(memory, micro, checkpointing, zero)


def activation_bytes(policy: PolicyDemand, tokens: int, checkpointing: bool) -> int:
    """What the backward pass of so many tokens needs kept, logits included.

    Per token what autograd keeps of transformers' own modules (`meta`), with an attention kernel that stores no scores. With
    checkpointing only each layer's input is kept, and one layer is recomputed at a time (in the manner of Korthikanti et al.,
    arXiv 2205.05198). The head adds `LOGITS_BYTES`.
    """
    model, size = policy.model, policy.value_bytes
    kept = model.half if size == 2 else model.full
    layers = model.layers * size * model.hidden + kept.layer if checkpointing else kept.layers
    return tokens * (layers + kept.head + LOGITS_BYTES * model.vocab)


def measuring_bytes(policy: PolicyDemand, ranks: int, activations: int) -> int:
    """Own and peer gradients apart: a rank's share of one sum of gradients in fp32, and two copies of the largest one on its way.

    Once the activations are gone, float64 copies of shares of it take their place.
    """
    compared = DOUBLES_BYTES * policy.model.largest // ranks
    whole = 4 * policy.model.parameters // ranks + max(8 * policy.model.largest, compared - activations)
    return whole if policy.measured else 0


def working_bytes(policy: PolicyDemand, zero: int, ranks: int, activations: int, measuring: int) -> int:
    """The most that comes and goes beside states and `measuring`, which ends before the step.

    In a pass: activations, with ZeRO 2 its own gradients, with ZeRO 3 the weights that are gathered. In the step: AdamW's square
    root of the variances, and with ZeRO 3 the gradients as one tensor, each of a rank's share in fp32.
    """
    psi = policy.model.parameters
    own = policy.value_bytes * psi // ranks if zero == 2 else 0
    gathered = min(psi, LIVE_PARAMETERS) * policy.value_bytes if zero == 3 else 0
    step = (8 if zero == 3 else 4) * psi // (ranks if zero else 1)
    return max(activations + own + gathered, step - measuring)


def _tensor_parallel(policy: PolicyDemand, gpus: int, gpu: Gpu) -> list[int]:
    """1, 2, 4, ... that divide the GPUs and the heads, within a node."""
    return [t for t in (1, 2, 4, 8) if t <= gpu.node and gpus % t == 0 and policy.model.divides(t)]


def _engine(policy: PolicyDemand, work: Workload, gpus: int, tensor_parallel: int) -> tuple[int, int, int]:
    """Of rollout engines on so many GPUs: sequences that each has use for; per device the bytes of weights and of a sequence."""
    wanted = -(-work.prompts * policy.rollouts // (gpus // tensor_parallel))
    weights = weight_bytes(policy.model, policy.precision) // tensor_parallel
    return wanted, weights, kv_cache_bytes(policy, work.longest, tensor_parallel)


def _layout(
    policy: PolicyDemand,
    work: Workload,
    gpu: Gpu,
    trainer: _Trainer,
    ranks: int,
    others: int,
    tensor_parallel: int,
    concurrent: int,
    sleeps: bool = False,
    asleep: int = 0,
) -> PolicyLayout:
    """others: GPUs of the rollout engines; 0 where they are the trainer's."""
    on, answers, total = device(gpu.kind), work.prompts * policy.rollouts, ranks + others
    _, weights, one = _engine(policy, work, others or ranks, tensor_parallel)
    memory = msgspec.structs.replace(
        trainer.memory, rollout_weights=weights, kv_cache=concurrent * one, rollout_context=gpu.context
    )
    engines = (others or ranks) // tensor_parallel
    rollout = (1 + work.again) * rollout_seconds(
        policy, work.prompt_tokens, work.answer_tokens, answers, engines, tensor_parallel, concurrent, on
    )
    # Own answers under the trainer (and the reference), peers' where the regime asks.
    scored = answers * (1 + work.scored + policy.penalised) * work.mean_sequence
    score = score_seconds(policy.model, scored, work.mean_sequence, on) / ranks
    trained = answers * work.trained * work.mean_sequence
    train = train_seconds(policy, trained, work.mean_sequence, on, trainer.checkpointing) / ranks
    move = weight_bytes(policy.model, policy.precision) / SYNC_LINK
    host = gpu.host * total + host_bytes(policy, trainer.zero, ranks, gpu)
    peak = max(memory.train, memory.rollout) if others else memory.train + memory.rollout
    if sleeps:
        peak = max(memory.train, memory.rollout) + gpu.context
        moved = memory.states + weights
        host, move = host + gpu.pinned * moved * ranks, move + 2 * moved / HOST_LINK
    if others:  # both sides work at once: only what one takes longer than the other shows beside it
        rollout = max(0.0, rollout - score - train)
    return PolicyLayout(
        policy.name, policy.model.name, ranks, others or ranks, engines, tensor_parallel, trainer.zero, trainer.micro_batch,
        trainer.checkpointing, sleeps, others > 0, concurrent, memory, asleep + peak, gpu.memory, host,
        StepSeconds(rollout, score, train, move), work.sequence,
    )  # fmt: skip


def host_bytes(policy: PolicyDemand, zero: int, ranks: int, gpu: Gpu) -> int:
    """RAM of the trainer's ranks beside their processes: what leaves the GPUs while it works, and a checkpoint being written, whose
    weights and optimiser's state one rank has whole.

    The former are the trainer's own weights while the base is scored in their place, or the sums of own gradients while peers' add
    up, never both.
    """
    base = weight_bytes(policy.model, policy.precision) // (ranks if zero == 3 else 1) if policy.reference else 0
    away = max(base, 4 * policy.model.parameters // ranks if policy.measured else 0)
    return gpu.pinned * away * ranks + checkpoint_bytes(policy.model, policy.precision, tokenizer=0).whole


def least_gpus(policy: PolicyDemand, work: Workload, gpu: Gpu) -> int | None:
    """The fewest GPUs on which the policy can be trained, or None."""
    return next((gpus for gpus in SIZES if policy_layout(policy, work, gpus, gpu)[0]), None)


# One cell -------------------------------------------------------------------------------------------------------------

Arrangement = Literal["colocated", "split", "stacked"]
Place = Callable[[PolicyDemand, int], PolicyLayout | None]


class CellLayout(msgspec.Struct, frozen=True):
    """One kind of cell: its policies' places, the step they make together, and the bytes of GPUs and hosts. phases: of the whole
    cell, whose sum is `seconds`."""

    arrangement: Arrangement
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
        """What to reserve, as of each policy; once where all share the GPUs."""
        if self.arrangement != "stacked":
            return tuple(bundle for p in self.policies for bundle in p.bundles)
        widest = max(p.tensor_parallel for p in self.policies)
        groups = [widest] * (self.gpus // widest) + [1] * (self.gpus % widest)
        return tuple(Bundle(n, n, self.host // self.gpus * n, self.policies[0].capacity) for n in groups)


@lru_cache(maxsize=65536)
def cell_layout(cell: CellDemand, gpus: int, gpu: Gpu) -> CellLayout | None:
    """The fastest arrangement of a cell on at most so many GPUs, or None if it does not fit."""
    work, found = cell.workload, list[CellLayout]()

    def add(arrangement: Arrangement, used: int, places: list[PolicyLayout | None]) -> None:
        fitted = tuple(place for place in places if place)
        if len(fitted) == len(cell.policies):
            found.append(_cell(arrangement, cell, used, fitted, device(gpu.kind)))

    def apart(arrangement: Arrangement, layout: Place) -> None:
        share = _shares(cell.policies, gpus, layout)
        add(arrangement, sum(share), [layout(p, n) for p, n in zip(cell.policies, share, strict=True) if n])

    if not (cell.shared and len(cell.policies) > 1):
        apart("colocated", lambda p, n: policy_layout(p, work, n, gpu)[0])
        if work.staleness:
            apart("split", lambda p, n: split_layout(p, work, n, gpu))
    own = cell.policies[0].devices or gpus
    if not found and cell.shared is not False and gpu.stacks and len(cell.policies) > 1 and own <= gpus:
        others = len(cell.policies) - 1
        add("stacked", own, [_in_turns(policy_layout(p, work, own, gpu, others)[0], gpu) for p in cell.policies])
    return min(found, key=lambda layout: layout.step_seconds, default=None)


def _in_turns(layout: PolicyLayout | None, gpu: Gpu) -> PolicyLayout | None:
    """With what it puts to sleep for the next policy's turn, where trainer and engine do not sleep by themselves."""
    if layout is None or layout.sleeps:
        return layout
    moved = layout.memory.states + layout.memory.rollout_weights
    seconds = msgspec.structs.replace(layout.seconds, move=layout.seconds.move + 2 * moved / HOST_LINK)
    return msgspec.structs.replace(layout, host=layout.host + gpu.pinned * moved * layout.gpus, seconds=seconds)


def _shares(policies: tuple[PolicyDemand, ...], gpus: int, layout: Place) -> list[int]:
    """GPUs of each policy that minimise the slowest policy's step; zeros if even the least does not fit.

    One GPU after the other goes to the policy that is slowest at that moment; where a policy's next useful size is further off (a
    size that is no faster), it takes the whole jump. For seconds that never rise with GPUs this greedy is optimal: in any better
    division the slowest policy here would have more GPUs, so another would have fewer than when it was itself the slowest. GPUs
    that help nobody stay unused.
    """

    def seconds(index: int, number: int) -> float:
        found = layout(policies[index], number)
        return found.seconds.total if found else float("inf")

    share = [next((n for n in SIZES if n <= gpus and layout(p, n)), gpus + 1) for p in policies]
    if sum(share) > gpus:
        return [0] * len(policies)
    while left := gpus - sum(share):
        slowest = max(range(len(share)), key=lambda i: (seconds(i, share[i]), policies[i].name))
        now = seconds(slowest, share[slowest])
        jump = next((n for n in range(1, left + 1) if seconds(slowest, share[slowest] + n) < now), 0)
        if not jump:
            break
        share[slowest] += jump
    return share


def _cell(
    arrangement: Arrangement, cell: CellDemand, gpus: int, places: tuple[PolicyLayout, ...], on: Device
) -> CellLayout:
    """All steps and what surrounds them. The slowest policy of a step sets its pace; of each other phase likewise."""
    work, stacked = cell.workload, arrangement == "stacked"
    together: Callable[[list[float]], float] = sum if stacked else max
    pairs = list(zip(cell.policies, places, strict=True))

    def generate(answers: int, tokens: int) -> float:
        return together(
            [
                rollout_seconds(
                    p, work.prompt_tokens, tokens, answers, at.engines, at.tensor_parallel, at.concurrent, on
                )
                for p, at in pairs
            ]
            if answers
            else [0.0]
        )

    step = together([p.seconds.total for p in places])
    slowest = max(places, key=lambda p: p.seconds.total).seconds
    scale = work.steps * step / slowest.total if slowest.total else 0.0
    # A measured step's own answers are scored again, under the updated policy and under the base.
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
        save=work.saves * sum(checkpoint_bytes(p.model, p.precision).whole for p in cell.policies) / DISK,
    )
    used = (
        [max(p.peak for p in places) * gpus] if stacked else [p.peak * sum(b.gpus for b in p.bundles) for p in places]
    )
    return CellLayout(arrangement, gpus, places, step, sum(used) + sum(p.host for p in places), phases)
