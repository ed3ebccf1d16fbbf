"""The account of bytes: from a model's shape to what each part takes on a device, in a host and on the disk.

Psi is the number of parameters. Results are bytes on one device unless said otherwise. The planner, the disk guard and the
deadlines read this account and `work`'s of seconds; nothing else counts bytes.
"""

from __future__ import annotations

import msgspec

from harness.allocation.precision import Precision
from harness.allocation.shapes import ModelShape

KV_BLOCK = 16
"""Tokens per block of the paged KV cache: vLLM's `CacheConfig.DEFAULT_BLOCK_SIZE`."""
CONTEXT_BYTES = 2 * 10**9
"""CUDA context, communication buffers and allocator slack of one process on a GPU: a prior, not measured here."""
REDUCE_BUCKET = 5 * 10**7
"""Elements of gradients that ZeRO 2 and 3 reduce at once. DeepSpeed's default is ten times as many: 1 GB of bf16."""
LIVE_PARAMETERS = 10**9
"""Of whole weights that ZeRO 3 keeps gathered at most, DeepSpeed's default."""
PINNED = 2
"""torch rounds each piece of pinned memory up to a power of two, so it may take twice its size."""
LOGITS_BYTES = 12
"""Per token and entry of the vocabulary, of a backward pass through the log-softmax: three fp32 copies at the fullest moment."""
DOUBLES_BYTES = 24
"""Per entry of the largest matrix: gradients are compared in float64, three copies at a time."""

TOKENIZER_BYTES, TOKEN_BYTES = 5000, 75
"""A checkpoint's tokenizer and configs: a fixed part and one per entry of the vocabulary (Qwen3's file: 75 bytes an entry)."""


class Memory(msgspec.Struct, frozen=True):
    """Bytes on one device by part; `train` and `rollout` are the two phases' sums.

    activations: or, if it takes more, the optimiser's step. reference: a frozen copy of the base, where there is one. measuring:
    own and peer gradients apart. context: of the trainer's process with its buffers; rollout_context: of the rollout engine's.
    """

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
        """What lives as long as the trainer."""
        return self.weights + self.gradients + self.optimiser

    @property
    def train(self) -> int:
        return self.states + self.activations + self.reference + self.measuring + self.context

    @property
    def rollout(self) -> int:
        return self.rollout_weights + self.kv_cache + self.rollout_context


def weight_bytes(model: ModelShape, precision: Precision) -> int:
    """2 Psi in bf16, 4 Psi in fp32."""
    return model.parameters * (2 if precision == "bf16" else 4)


def bucket_bytes(precision: Precision, zero: int) -> int:
    """The buffer in which ZeRO 2 and 3 reduce gradients (stage 2: while a backward pass lasts)."""
    return REDUCE_BUCKET * (2 if precision == "bf16" else 4) if zero >= 2 else 0


def trainer_states(model: ModelShape, precision: Precision, zero: int, ranks: int) -> Memory:
    """Weights, gradients and Adam states of one rank under ZeRO.

    Mixed precision: 2 Psi weights, 12 Psi optimiser (fp32 master, momentum, variance); fp32: 4 and 8 Psi. Gradients of
    micro-batches add up in fp32: 4 Psi. Stage 1 divides the optimiser's part by the ranks, stage 2 the gradients' too, stage 3 the
    weights' too. Source: Rajbhandari et al., ZeRO (arXiv 1910.02054), section 3.1 and figure 1; DeepSpeed 0.19.6 allocates just
    these bytes.
    """
    half = precision == "bf16"
    psi = model.parameters
    optimiser = (12 if half else 8) * psi // (ranks if zero >= 1 else 1)
    return Memory(
        weights=weight_bytes(model, precision) // (ranks if zero >= 3 else 1),
        gradients=4 * psi // (ranks if zero >= 2 else 1),
        optimiser=optimiser,
    )


def working_bytes(
    model: ModelShape, precision: Precision, zero: int, ranks: int, activations: int, measuring: int
) -> int:
    """The most that comes and goes beside states and `measuring`, which ends before the step.

    In a pass: activations, with ZeRO 2 its own gradients, with ZeRO 3 the weights that are gathered. In the step: AdamW's square
    root of the variances, and with ZeRO 3 the gradients as one tensor, each of a rank's share in fp32.
    """
    own = weight_bytes(model, precision) // ranks if zero == 2 else 0
    gathered = min(model.parameters, LIVE_PARAMETERS) * (2 if precision == "bf16" else 4) if zero == 3 else 0
    step = (8 if zero == 3 else 4) * model.parameters // (ranks if zero else 1)
    return max(activations + own + gathered, step - measuring)


def activation_bytes(model: ModelShape, tokens: int, checkpointing: bool, precision: Precision = "bf16") -> int:
    """What the backward pass of so many tokens needs kept, logits included.

    Per token what autograd keeps of transformers' own modules (`meta`), with an attention kernel that stores no scores. With
    checkpointing only each layer's input is kept, and one layer is recomputed at a time (in the manner of Korthikanti et al.,
    arXiv 2205.05198). The head adds `LOGITS_BYTES`.
    """
    size, kept = (2, model.half) if precision == "bf16" else (4, model.full)
    layers = model.layers * size * model.hidden + kept.layer if checkpointing else kept.layers
    return tokens * (layers + kept.head + LOGITS_BYTES * model.vocab)


def measuring_bytes(model: ModelShape, ranks: int, activations: int) -> int:
    """Own and peer gradients apart: a rank's share of one sum of gradients in fp32, and two copies of the largest one on its way.

    Once the activations are gone, float64 copies of shares of it take their place.
    """
    compared = DOUBLES_BYTES * model.largest // ranks
    return 4 * model.parameters // ranks + max(8 * model.largest, compared - activations)


def kv_cache_bytes(
    model: ModelShape,
    sequences: int,
    tokens: int,
    tensor_parallel: int = 1,
    value_bytes: int = 2,
    block: int = KV_BLOCK,
) -> int:
    """KV cache of so many sequences of so many tokens, in whole blocks, on one of `tensor_parallel` devices."""
    return sequences * model.kv_bytes(-(-tokens // block) * block, value_bytes, tensor_parallel)


class Checkpoint(msgspec.Struct, frozen=True):
    """Bytes of one policy's checkpoint on the disk: weights, tokenizer and such, and the optimiser's state."""

    weights: int
    tokenizer: int
    optimiser: int

    @property
    def kept(self) -> int:
        """Of a finished cell's."""
        return self.weights + self.tokenizer

    @property
    def whole(self) -> int:
        """Of one to go on from."""
        return self.kept + self.optimiser


def checkpoint_bytes(
    model: ModelShape, precision: Precision, tokenizer: int | None = None, adapters: int = 0
) -> Checkpoint:
    """Weights at the training precision; two fp32 moments, and an fp32 master where the weights are none. tokenizer: bytes, where
    they are known. adapters: parameters, if these alone are trained; merged weights are fp32."""
    weights = weight_bytes(model, precision)
    if adapters:
        weights = weight_bytes(model, "fp32") + adapters * (2 if precision == "bf16" else 4)
    return Checkpoint(
        weights=weights,
        tokenizer=TOKENIZER_BYTES + TOKEN_BYTES * model.vocab if tokenizer is None else tokenizer,
        optimiser=(12 if precision == "bf16" else 8) * (adapters or model.parameters),
    )
