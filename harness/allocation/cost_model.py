"""A cell in figures, and the bytes and seconds of any engine's account. Psi is the number of parameters. Seconds are operations
and bytes over data-sheet peaks times an efficiency that is a prior; hardware records (`calibration`) and finished cells replace
them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import msgspec

from harness.allocation.shapes import ModelShape, Precision

# One cell in figures ---------------------------------------------------------------------------------------------------

MEAN_ANSWER = 0.5  # expected answer length as a share of the longest: a prior
# Logits that the engines' output layer has at once (`harness.engines.head`), on a CPU and on a GPU, where each part costs kernel
# starts.
LOGITS = 1 << 23
GPU_LOGITS = 1 << 26
LOGITS_BYTES = 12  # of each: logits, masked logits and log-probabilities in fp32


@dataclass(frozen=True, slots=True)
class PolicyDemand:
    """rollouts: answers per prompt. reference: answers are scored under its base too; penalised: at every step (KL). measured:
    own and peer gradients are kept apart. devices: as the suite says. lora: rank of the adapters, which alone are trained."""

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
        """Parameters of LoRA, as if all linear layers were as narrow as the hidden state."""
        return 2 * self.lora * (self.model.matmul - self.model.vocab * self.model.hidden) // self.model.hidden

    @property
    def trained(self) -> int:
        return self.adapters or self.model.parameters


@dataclass(frozen=True, slots=True)
class Workload:
    """prompts: per step. prompt_tokens, answer_tokens: longest in training; longest: both together, in evaluation too. trained,
    scored, again: answers updated on, only scored, sampled in a second round, per own rollout. mean: of answers, as a share of
    the longest. measured: steps with measurements. Per policy: evaluated, answers of at most evaluation_tokens to so many
    questions; curves, points of the learning curve, of curve answers together; saves, checkpoints."""

    steps: int
    prompts: int
    prompt_tokens: int
    answer_tokens: int
    longest: int
    trained: float = 1.0
    scored: float = 0.0
    again: float = 0.0
    measured: int = 0
    evaluated: int = 0
    questions: int = 0
    evaluation_tokens: int = 0
    curves: int = 0
    curve: int = 0
    saves: int = 0
    mean: float = MEAN_ANSWER

    @property
    def sequence(self) -> int:
        """Tokens of the longest prompt and answer trained on."""
        return self.prompt_tokens + self.answer_tokens

    @property
    def mean_sequence(self) -> float:
        return self.prompt_tokens + self.mean * self.answer_tokens


@dataclass(frozen=True, slots=True)
class CellDemand:
    """shared: whether the policies take turns on the same GPUs; None leaves it to the planner."""

    policies: tuple[PolicyDemand, ...]
    workload: Workload
    shared: bool | None = None


class Lengths(NamedTuple):
    """Tokens. prompt: longest in training; longest: prompt and answer together, in evaluation too."""

    prompt: int
    longest: int


# Bytes ----------------------------------------------------------------------------------------------------------------

KV_BLOCK = 16  # tokens per block: vLLM's `CacheConfig.DEFAULT_BLOCK_SIZE`
CONTEXT_BYTES = 2 * 10**9  # CUDA context, buffers and allocator slack: a prior
USABLE = 0.95  # share of a GPU's memory; the rest is fragmentation
TOKENIZER_BYTES, TOKEN_BYTES = (
    5000,
    75,
)  # of tokenizer and configs, and per entry of the vocabulary (Qwen3's file)


class Memory(msgspec.Struct, frozen=True):
    """Bytes on one device. activations: or the optimiser's step, if more. reference: a frozen copy of the base. measuring: own
    and peer gradients apart. context: the trainer's process and buffers, rollout_context: the engine's."""

    weights: int = 0
    gradients: int = 0
    optimiser: int = 0
    activations: int = 0
    reference: int = 0
    measuring: int = 0
    rollout_weights: int = 0
    kv_cache: int = 0
    context: int = 0
    rollout_context: int = 0

    @property
    def states(self) -> int:
        return self.weights + self.gradients + self.optimiser

    @property
    def train(self) -> int:
        return self.states + self.activations + self.reference + self.measuring + self.context

    @property
    def rollout(self) -> int:
        return self.rollout_weights + self.kv_cache + self.rollout_context


def weight_bytes(model: ModelShape, precision: Precision) -> int:
    """Return the bytes of a model's weights, 2 Psi in bf16, 4 Psi in fp32."""
    return model.parameters * (2 if precision == "bf16" else 4)


def trainer_states(policy: PolicyDemand, zero: int = 0, ranks: int = 1) -> Memory:
    """Count weights, gradients and Adam states of one rank under ZeRO (Rajbhandari et al., arXiv 1910.02054, section 3.1 and
    figure 1).

    bf16: 2 Psi weights, 12 Psi optimiser (fp32 master, momentum, variance); fp32: 4 and 8 Psi, under
    stages 1 and 2 12. Gradients add up in fp32: 4 Psi.
    Of adapters Psi is theirs. Stage 1 divides the optimiser's part by the ranks, 2 the gradients' too, 3 the weights' too.
    """
    weights = policy.value_bytes * (policy.model.parameters + policy.adapters)
    masters = policy.precision == "bf16" or zero in (1, 2)  # these stages copy fp32 weights too
    optimiser = (12 if masters else 8) * policy.trained
    return Memory(
        weights=weights // (ranks if zero >= 3 else 1),
        gradients=4 * policy.trained // (ranks if zero >= 2 else 1),
        optimiser=optimiser // (ranks if zero >= 1 else 1),
    )


def kv_cache_bytes(policy: PolicyDemand, tokens: int, tensor_parallel: int = 1) -> int:
    """Return the bytes of the KV cache of one sequence, in whole blocks, on one of `tensor_parallel` devices."""
    return policy.model.kv_bytes(-(-tokens // KV_BLOCK) * KV_BLOCK, policy.value_bytes, tensor_parallel)


class Checkpoint(NamedTuple):
    """Bytes on the disk. kept: weights and tokenizer, which a finished cell keeps."""

    kept: int
    optimiser: int

    @property
    def whole(self) -> int:
        return self.kept + self.optimiser


def logits_bytes(policy: PolicyDemand, entries: float, at_once: float) -> float:
    """Count the bytes that the output layer takes in the backward pass of a micro-batch.

    entries: logits, tokens times ids. at_once: most that are there together (`LOGITS`, `GPU_LOGITS`); beyond them the vocabulary
    is taken in parts, which give its gradient at the end, beside a tied embedding's."""
    size = LOGITS_BYTES * min(entries, at_once)
    if entries > at_once and not policy.lora:
        size += 2 * policy.value_bytes * policy.model.largest
    return size


def checkpoint_bytes(
    model: ModelShape, precision: Precision, tokenizer: int | None = None, adapters: int = 0
) -> Checkpoint:
    """Count the bytes of a checkpoint: weights at the training precision, two fp32 moments, and an fp32 master where the weights
    are none. tokenizer: bytes, where known. adapters: parameters, if these alone are trained; merged weights are fp32."""
    weights = weight_bytes(model, precision)
    if adapters:
        weights = weight_bytes(model, "fp32") + adapters * (2 if precision == "bf16" else 4)
    files = TOKENIZER_BYTES + TOKEN_BYTES * model.vocab if tokenizer is None else tokenizer
    return Checkpoint(weights + files, (12 if precision == "bf16" else 8) * (adapters or model.parameters))


# Seconds --------------------------------------------------------------------------------------------------------------

# Priors: shares of the peak in training and scoring, of the bandwidth in decoding.
TRAIN_EFFICIENCY, SCORE_EFFICIENCY, BANDWIDTH_EFFICIENCY = 0.35, 0.45, 0.6
DISK = 1e9  # bytes per second of writing a checkpoint: a prior


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or a core of a CPU. train, score: FLOP/s of training and forward passes, in bf16 (a core's in fp32). read: bytes/s
    in decoding. layer: seconds of a layer for few tokens, on the embedded engine. context: bytes of a process beside its
    states. link: bytes/s to the host (pinned)."""

    train: float
    score: float
    read: float
    layer: float = 6e-4
    context: int = CONTEXT_BYTES
    link: float = 20e9  # PCIe 5 x16
    gpu: bool = True


class CostSheet(NamedTuple):
    """peak: dense bf16 FLOP/s (a core's fp32); bandwidth: of its memory, bytes/s."""

    peak: float
    bandwidth: float


CORE = "CORE"
# Makers' data sheets (SXM, no sparsity); LOGICAL: a core under Ray, CORE: one of its own
SHEETS: Mapping[str, CostSheet] = {
    "B200": CostSheet(2250e12, 8.0e12),
    "GH200": CostSheet(989e12, 4.0e12),
    "H200": CostSheet(989e12, 4.8e12),
    "H100": CostSheet(989e12, 3.35e12),
    "H20": CostSheet(148e12, 4.0e12),
    "A100": CostSheet(312e12, 2.0e12),
    "L40S": CostSheet(362e12, 0.864e12),
    "L4": CostSheet(121e12, 0.3e12),
    "A10": CostSheet(125e12, 0.6e12),
    "A6000": CostSheet(155e12, 0.768e12),
    "RTX4090": CostSheet(165e12, 1.0e12),
    "V100": CostSheet(125e12, 0.9e12),
    "T4": CostSheet(65e12, 0.3e12),
    "LOGICAL": CostSheet(0.05e12, 0.02e12),
    CORE: CostSheet(0.14e12, 0.02e12),
}
UNKNOWN = CostSheet(100e12, 1.0e12)


def cost_sheet_of(kind: str) -> CostSheet:
    """Find the figures of a kind of GPU: `A100-80G` counts as A100, A1000 does not; a modest one where the name is unknown."""
    matching = [known for known in SHEETS if re.match(rf"{known}(?!\d)", kind.upper())]
    return SHEETS[max(matching, key=len)] if matching else UNKNOWN


@cache
def device_of(kind: str) -> Device:
    peak, bandwidth = cost_sheet_of(kind)
    rates = peak * TRAIN_EFFICIENCY, peak * SCORE_EFFICIENCY, bandwidth * BANDWIDTH_EFFICIENCY
    if kind.upper() in {"LOGICAL", CORE}:
        return Device(*rates, 1.5e-4, 0, gpu=False)
    return Device(*rates)


class PhaseSeconds(msgspec.Struct, frozen=True):
    """Seconds of one whole cell; what the policies do side by side counts once."""

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


def score_seconds(model: ModelShape, tokens: float, sequence: float, on: Device) -> float:
    """Predict the seconds of scores, which take a forward pass: 2 N operations per token and the attention's (Chowdhery et al.,
    PaLM, arXiv 2204.02311, appendix B). N counts the parameters of matrix products, of experts those that a token takes."""
    return tokens * (2 * model.matmul + model.attention_flops(sequence)) / on.score


def train_seconds(policy: PolicyDemand, tokens: float, sequence: float, on: Device, checkpointing: bool) -> float:
    """Return the seconds of updates on so many tokens, as passes forward: one forward, one for the gradients of what goes through
    the layers, one for those of the weights unless adapters alone are trained, one with recomputation (Korthikanti et al., arXiv
    2205.05198)."""
    passes = 3 - bool(policy.lora) + checkpointing
    return passes * score_seconds(policy.model, tokens, sequence, on) * on.score / on.train


def rollout_seconds(
    policy: PolicyDemand,
    work: Workload,
    longest: int,
    answers: float,
    engines: int,
    tensor_parallel: int,
    concurrent: int,
    on: Device,
) -> float:
    """Predict the seconds of answers of at most `longest` tokens by engines that hold `concurrent` sequences each. Prefill by its
    FLOPs; decoding reads the weights at each step and every sequence's KV cache at each of its tokens, or does 2 N FLOPs a token,
    whichever takes longer. A wave's last answers are longest, and the ended ones take nothing more: so more sequences at once are
    never slower."""
    model = policy.model
    prompt = work.prompt_tokens
    mean = work.mean * longest
    batch = max(1.0, min(answers / engines, concurrent))
    waves = max(1.0, answers / engines / batch)
    weights = (waves - 1) * mean * model.read(batch) + longest * model.read(max(1.0, batch * work.mean))
    tokens = answers / engines * mean
    read = policy.value_bytes * weights / tensor_parallel
    read += tokens * kv_cache_bytes(policy, int(prompt + mean), tensor_parallel)
    flops = 2 * model.matmul * tokens / tensor_parallel
    decode = max(read / on.read, flops / on.score)
    prefill = score_seconds(model, answers / policy.rollouts * prompt, prompt, on)
    return decode + prefill / (engines * tensor_parallel)
