"""Where one policy goes on so many GPUs, for an engine with trainers and rollout engines: the fastest way that fits.

Trainer and rollout engine take turns on a GPU or stand side by side. `cell_layout` combines the policies of a cell.

More memory, more GPUs, more RAM or faster cards never make a layout slower: all ways are compared by the seconds of the
whole cell, every way of a smaller machine is among those of a larger one, and no way is preferred to a faster one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import msgspec

from harness.allocation.cost_model import (
    USABLE,
    Device,
    Memory,
    PolicyDemand,
    Workload,
    device_of,
    kv_cache_bytes,
    rollout_seconds,
    score_seconds,
    train_seconds,
    weight_bytes,
)
from harness.allocation.inventory import Bundle

# Numbers of GPUs that are tried, those of a larger cluster among them, so that it is never the slower one
SIZES = (*range(1, 33), *range(40, 129, 8), *(2**n for n in range(8, 13)))
# Those of a whole cell, and of policies that take turns
PLACES = (*range(1, 9), *(step * 2**n for n in range(2, 11) for step in (3, 4)))
MOST_CONCURRENT = 2048  # vLLM's tokens of one step, at least one for each answer
LEAST_CONCURRENT = 8  # sequences below which a rollout engine is not worth starting
# What turns cost beside the bytes moved, as a share of the work, priors that nobody has measured: caches and graphs built anew
# where trainer and engine take turns; where policies do, also the communication of each over more GPUs, which is not counted.
TURNS_COST, STACKED_COST = 0.1, 1.0
SYNC_LINK = 50e9  # bytes per second of a weight sync, a prior
START_SECONDS = 120.0  # loading a cell's models and starting engines: a prior


class TrainingWay(NamedTuple):
    """A way to run a policy's trainer. memory: bytes per GPU; micro_batch: answers; zero: stage."""

    memory: Memory
    micro_batch: int
    checkpointing: bool
    zero: int


class PolicyAccount(Protocol):
    """What layouts ask of an engine whose policies have trainers and rollout engines; a module with these functions is one."""

    def ways_to_train(self, policy: PolicyDemand, work: Workload, ranks: int, gpu: Gpu) -> Iterator[TrainingWay]:
        """Yield the ways to run a trainer on so many GPUs, the fastest first."""

    def trainer_ram(self, policy: PolicyDemand, zero: int, ranks: int, kind: str) -> int:
        """Return the bytes of RAM that the trainer's ranks take beside their processes. kind: of the GPUs."""

    def process_ram(self, kind: str) -> int:
        """Return the bytes of RAM of the processes on one GPU of this kind."""

    def sleeping_ram(self, kind: str) -> int:
        """Return the RAM for each byte that sleeps while another process has the GPU."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """GPUs of one kind, and what a plan may do with them. node: GPUs of a node, which tensor parallelism must not exceed.
    account: of the engine that is to work there. stacks: policies may take turns on it. measured: by a hardware record. ram:
    bytes of RAM for a cell, ram_each: beside each of its GPUs; None where it does not count. widest: tensor parallelism at
    most."""

    kind: str
    memory: int
    node: int
    account: PolicyAccount
    stacks: bool = False
    measured: Device | None = None
    ram: int | None = None
    ram_each: int | None = None
    widest: int = 8

    @property
    def on(self) -> Device:
        return self.measured or device_of(self.kind)

    @property
    def usable(self) -> int:
        return int(self.memory * USABLE)


class StepSeconds(msgspec.Struct, frozen=True):
    """Seconds of a policy's step. move: weight sync, waking and putting to sleep."""

    rollout: float = 0.0
    score: float = 0.0
    train: float = 0.0
    move: float = 0.0

    @property
    def total(self) -> float:
        return self.rollout + self.score + self.train + self.move


class PolicyLayout(msgspec.Struct, frozen=True):
    """Where a policy goes. gpus: of trainer and rollout engines alike. sleeps: these take turns in their memory. concurrent:
    sequences per engine. sequence: longest prompt and answer trained on, tokens. rest: seconds of a cell beside its steps.
    asleep: bytes per GPU of the other policies' sleeping processes. memory, needed (with the smallest KV cache), peak, capacity:
    bytes per GPU; host: RAM over all its GPUs."""

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
    rest: float = 0.0
    asleep: int = 0

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        """One per tensor-parallel group, which must not cross nodes; a core with each GPU."""
        size = self.tensor_parallel
        return (Bundle(size, size, self.host // self.gpus * size, self.capacity),) * self.engines

    def moments(self) -> dict[str, dict[str, int]]:
        """List what is on a GPU in training, in rollouts and in a weight sync, in bytes by part; all of it at once where nothing
        takes turns. The fullest moment's parts add up to `peak`."""
        memory: dict[str, int] = msgspec.structs.asdict(self.memory)
        context = memory.pop("context")
        rollout_context = memory.pop("rollout_context")
        asleep = self.asleep + rollout_context if self.sleeps else self.asleep
        if not self.sleeps:
            return {"always": {**memory, "contexts and buffers": context + rollout_context + asleep}}
        engine = {part: memory.pop(part) for part in ("rollout_weights", "kv_cache")}
        synced = {"weights": memory["weights"], "rollout_weights": engine["rollout_weights"]}
        return {
            "in training": {**memory, "contexts and buffers": context + asleep},
            "in rollouts": {**engine, "contexts and buffers": rollout_context + asleep},
            "in a weight sync": {**synced, "contexts and buffers": rollout_context + asleep},
        }

    def engine_options(self) -> dict[str, int | float | bool]:
        """Return the engine's options that make this layout of it."""
        rollout_memory = (self.memory.rollout + self.capacity // 100) / self.capacity  # a hundredth more, for rounding
        return {
            "zero_stage": self.zero,
            "trainers": self.gpus,
            "rollout_engines": self.engines,
            "tensor_parallel": self.tensor_parallel,
            "sleep": self.sleeps,
            "gradient_checkpointing": self.checkpointing,
            "micro_batch_tokens": self.micro_batch * self.sequence,
            "rollout_sequences": self.concurrent,
            "rollout_memory": round(rollout_memory, 3),
        }


class TooLarge(NamedTuple):
    """A way that does not fit. needed: bytes per GPU without which it never does."""

    needed: int


class _WayMemory(NamedTuple):
    """Bytes on a GPU at a way's three moments, with all that sleeps there."""

    in_rollouts: int
    in_training: int
    in_sync: int


class _Way(NamedTuple):
    """A way to place a policy's trainer and rollout engines, not yet written out. step, rest: seconds of a step, and of all
    that a cell does beside its steps; host: RAM in bytes over all GPUs."""

    step: float
    rest: float
    host: int
    needed: int
    peak: int
    memory: Memory
    seconds: StepSeconds
    zero: int
    micro_batch: int
    checkpointing: bool
    tensor_parallel: int
    sleeps: bool
    concurrent: int


@lru_cache(maxsize=65536)
def policy_layouts(
    policy: PolicyDemand, work: Workload, gpus: int, gpu: Gpu, others: int = 0
) -> tuple[tuple[PolicyLayout, ...], int]:
    """List every way to put a policy's trainer and rollouts on the same GPUs that no other beats in seconds and in RAM, the
    fastest cell first; and the bytes per GPU without which nothing fits (0: memory is not what lacks). others: policies that
    sleep there meanwhile."""
    if policy.devices not in {None, gpus}:
        return (), 0
    ways = list[_Way]()
    least = 0
    for way in _tried_ways(policy, work, gpus, gpu, others):
        least = min(least or way.needed, way.needed)
        if isinstance(way, _Way):
            ways.append(way)
    ways.sort(key=lambda way: (work.steps * way.step + way.rest, way.host))
    best = list[_Way]()
    for way in ways:
        if not any(_is_as_good_as(other, way) for other in best):
            best.append(way)
    return tuple(_layout_of_way(policy, work, gpus, gpu, way, others) for way in best), least


def _is_as_good_as(one: _Way, other: _Way) -> bool:
    """Whether one way is at least as good in all: a step, the rest of the cell, RAM."""
    return one.step <= other.step and one.rest <= other.rest and one.host <= other.host


def policy_layout(
    policy: PolicyDemand, work: Workload, gpus: int, gpu: Gpu, others: int = 0
) -> tuple[PolicyLayout | None, int]:
    """Find the fastest of `policy_layouts`, or None, whatever RAM it takes; and the bytes per GPU without which nothing fits."""
    layouts, least = policy_layouts(policy, work, gpus, gpu, others)
    return (layouts[0] if layouts else None), least


def _tried_ways(policy: PolicyDemand, work: Workload, gpus: int, gpu: Gpu, others: int) -> Iterator[_Way | TooLarge]:
    """Yield every way that is tried, also those that do not fit. Side by side and in turns are both tried and the faster one
    counts: a preference for either makes plans slower where there is more memory."""
    placing = _Placing(policy, work, gpus, gpu, others)
    of_processes = gpu.account.process_ram(gpu.kind) * gpus
    for training in gpu.account.ways_to_train(policy, work, gpus, gpu):
        train = placing.train_seconds(training.checkpointing)
        host = of_processes + gpu.account.trainer_ram(policy, training.zero, gpus, gpu.kind)
        for tensor_parallel in placing.engine_sizes:
            for sleeps in (False, True):
                yield placing.try_way(training, train, host, tensor_parallel, sleeps)


class _Placing:
    """A policy on a number of GPUs: what all ways to train and to roll out there have in common, computed once."""

    def __init__(self, policy: PolicyDemand, work: Workload, gpus: int, gpu: Gpu, others: int) -> None:
        model = policy.model
        mean = work.mean_sequence
        self._policy = policy
        self._work = work
        self._gpus = gpus
        self._gpu = gpu
        self._others = others
        self._answers = work.prompts * policy.rollouts
        self._stored = weight_bytes(model, policy.precision)
        self._asleep = 2 * gpu.on.context * others  # a sleeping process keeps its context
        # Own answers under the trainer (and the reference), peers' where the regime asks.
        scored_tokens = self._answers * (1 + work.scored + policy.penalised) * mean
        self._score_seconds = score_seconds(model, scored_tokens, mean, gpu.on) / gpus
        widest = min(gpu.node, gpu.widest)
        self.engine_sizes = [n for n in (1, 2, 4, 8) if n <= widest and gpus % n == 0 and model.divides(n)]
        self._caches = {n: kv_cache_bytes(policy, work.longest, n) for n in self.engine_sizes}
        self._known = dict[tuple[int, int, int], tuple[float, float]]()

    def train_seconds(self, checkpointing: bool) -> float:
        """Predict the seconds of a step's updates."""
        mean = self._work.mean_sequence
        tokens = self._answers * self._work.trained * mean
        return train_seconds(self._policy, tokens, mean, self._gpu.on, checkpointing) / self._gpus

    def try_way(
        self, training: TrainingWay, train: float, host: int, tensor_parallel: int, sleeps: bool
    ) -> _Way | TooLarge:
        """Place these rollout engines beside this trainer, or in turns with it where `sleeps`. train: seconds of a step's
        updates. host: RAM in bytes without sleeping states."""
        gpu = self._gpu
        engines = self._gpus // tensor_parallel
        fewest_answers = min(LEAST_CONCURRENT, self._answers_of_engine(tensor_parallel))
        needed = max(self._memory_of_way(training, tensor_parallel, sleeps, fewest_answers))
        if needed > gpu.usable:
            return TooLarge(needed)
        concurrent = self._choose_concurrent(training, tensor_parallel, sleeps)
        moments = self._memory_of_way(training, tensor_parallel, sleeps, concurrent)
        # Side by side everything is there in rollouts; in turns each moment has its own.
        peak = max(moments) if sleeps else moments.in_rollouts
        weights = self._stored // tensor_parallel
        memory = msgspec.structs.replace(
            training.memory,
            rollout_weights=weights,
            kv_cache=concurrent * self._caches[tensor_parallel],
            rollout_context=gpu.on.context,
        )
        moved = memory.states + weights if sleeps or self._others else 0
        seconds, rest = self._seconds_of_way(train, engines, tensor_parallel, concurrent, sleeps, moved)
        in_bytes = host + gpu.account.sleeping_ram(gpu.kind) * moved * self._gpus
        of_bundle = -(-in_bytes // self._gpus)  # each bundle has a whole number of bytes
        return _Way(
            step=seconds.total,
            rest=rest,
            host=of_bundle * self._gpus,
            needed=needed,
            peak=peak,
            memory=memory,
            seconds=seconds,
            zero=training.zero,
            micro_batch=training.micro_batch,
            checkpointing=training.checkpointing,
            tensor_parallel=tensor_parallel,
            sleeps=sleeps,
            concurrent=concurrent,
        )

    def _answers_of_engine(self, tensor_parallel: int) -> int:
        """Return how many of a step's answers each rollout engine is given, rounded up."""
        engines = self._gpus // tensor_parallel
        return -(-self._answers // engines)

    def _memory_of_way(self, training: TrainingWay, tensor_parallel: int, sleeps: bool, concurrent: int) -> _WayMemory:
        """Compute the bytes on a GPU in rollouts, in training and in a weight sync. concurrent: answers in an engine's KV cache.

        Of trainer and rollout engine one sleeps where they take turns, and keeps no more than its context. In a sync both have
        their weights, while these are sent."""
        context = self._gpu.on.context
        trained = training.memory.train
        weights = self._stored // tensor_parallel
        beside_engine = context if sleeps else trained
        caches = concurrent * self._caches[tensor_parallel]
        return _WayMemory(
            in_rollouts=self._asleep + context + beside_engine + weights + caches,
            in_training=self._asleep + trained + context * sleeps,
            in_sync=self._asleep + training.memory.weights + weights + 2 * context,
        )

    def _choose_concurrent(self, training: TrainingWay, tensor_parallel: int, sleeps: bool) -> int:
        """Choose how many answers an engine generates at once: all that it is given, as far as its KV cache has room for them."""
        without_cache = self._memory_of_way(training, tensor_parallel, sleeps, concurrent=0).in_rollouts
        room = (self._gpu.usable - without_cache) // self._caches[tensor_parallel]
        return min(self._answers_of_engine(tensor_parallel), MOST_CONCURRENT, room)

    def _seconds_of_way(
        self, train: float, engines: int, tensor_parallel: int, concurrent: int, sleeps: bool, moved: int
    ) -> tuple[StepSeconds, float]:
        """Predict the seconds of a step, and of a cell's work beside its steps. moved: bytes per GPU that go to RAM and come
        back."""
        rollout, rest = self._rollout_seconds(engines, tensor_parallel, concurrent)
        score = self._score_seconds
        turns_share = TURNS_COST * sleeps + STACKED_COST * (self._others > 0)
        turns = turns_share * (rollout + score + train)
        move = self._stored / SYNC_LINK + 2 * moved / self._gpu.on.link + turns
        return StepSeconds(rollout, score, train, move), rest

    def _rollout_seconds(self, engines: int, tensor_parallel: int, concurrent: int) -> tuple[float, float]:
        """Predict the seconds of a step's rollouts, and of all that is generated or measured beside the steps. The same engines
        stand beside many trainers, so what was computed is kept."""
        spread = engines, tensor_parallel, concurrent
        if spread not in self._known:
            work = self._work
            on = self._gpu.on
            once = rollout_seconds(self._policy, work, work.answer_tokens, self._answers, *spread, on)
            beside_steps = sum(seconds_beside_steps(self._policy, work, self._gpus, *spread, on))
            stacked = 1 + STACKED_COST * (self._others > 0)
            self._known[spread] = (1 + work.again) * once, beside_steps * stacked
        return self._known[spread]


class BesideSteps(NamedTuple):
    """Seconds of a policy in a whole cell, its steps apart."""

    measure: float
    curve: float
    evaluate: float


def seconds_beside_steps(
    policy: PolicyDemand, work: Workload, gpus: int, engines: int, tensor_parallel: int, concurrent: int, on: Device
) -> BesideSteps:
    """Predict the seconds of all measurements, learning curves and evaluations of a policy in a cell. engines, tensor_parallel,
    concurrent: of its rollouts, as in `PolicyLayout`."""

    def generate(answers: int, tokens: int) -> float:
        if not answers:
            return 0.0
        return rollout_seconds(policy, work, tokens, answers, engines, tensor_parallel, concurrent, on)

    # Measuring scores own answers again, under the updated policy and the base.
    tokens = 2 * work.prompts * policy.rollouts * work.mean_sequence
    return BesideSteps(
        measure=work.measured * score_seconds(policy.model, tokens, work.mean_sequence, on) / gpus,
        curve=generate(work.curve, work.answer_tokens),
        evaluate=generate(work.evaluated, work.evaluation_tokens),
    )


def _layout_of_way(policy: PolicyDemand, work: Workload, gpus: int, gpu: Gpu, way: _Way, others: int) -> PolicyLayout:
    """Write a way out as a layout. others: policies that sleep there meanwhile, each with two processes' contexts."""
    engines = gpus // way.tensor_parallel
    asleep = 2 * gpu.on.context * others
    return PolicyLayout(
        policy=policy.name,
        model=policy.model.name,
        gpus=gpus,
        engines=engines,
        tensor_parallel=way.tensor_parallel,
        zero=way.zero,
        micro_batch=way.micro_batch,
        checkpointing=way.checkpointing,
        sleeps=way.sleeps,
        concurrent=way.concurrent,
        memory=way.memory,
        needed=way.needed,
        peak=way.peak,
        capacity=gpu.memory,
        host=way.host,
        seconds=way.seconds,
        sequence=work.sequence,
        rest=way.rest,
        asleep=asleep,
    )


def sizes_to_try(policy: PolicyDemand) -> tuple[int, ...]:
    """List the numbers of GPUs that a policy may have."""
    return (policy.devices,) if policy.devices else SIZES


def sizes_up_to(gpus: int) -> tuple[int, ...]:
    """List the numbers of GPUs that are tried for a cell that is alone: all there are, too."""
    return (*(n for n in SIZES if n < gpus), gpus)


def places_up_to(gpus: int) -> tuple[int, ...]:
    """List the numbers of GPUs that are tried for a cell, at most so many."""
    return tuple(n for n in PLACES if n <= gpus)


def least_gpus(policy: PolicyDemand, work: Workload, gpu: Gpu, most: int | None = None) -> int | None:
    """Return the smallest number of GPUs on which the policy can be trained, or None. most: larger numbers are not tried, unless
    the policy itself asks for one."""
    sizes = sizes_to_try(policy)
    if most is not None and policy.devices is None:
        sizes = tuple(size for size in sizes if size <= most)
    return next((gpus for gpus in sizes if policy_layout(policy, work, gpus, gpu)[0]), None)
