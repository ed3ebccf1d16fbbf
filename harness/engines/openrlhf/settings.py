"""What a suite may set under `engine_options` when its engine is `openrlhf`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from harness.engines.options import read

Count = Annotated[int, Meta(ge=1, le=4096)]
Seconds = Annotated[float, Meta(gt=0, le=86400)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Layout, precision and patience of one policy.

    dtype: of weights and activations; `fp32` also keeps fp32 gradients (parity, micro models), `bf16` has fp32 masters.
    zero_stage: DeepSpeed's, what is cut over the ranks: nothing (only with fp32), moments and gradients, weights too.
    trainers: DeepSpeed ranks. rollout_engines: vLLM engines, each on `tensor_parallel` devices.
    tensor_parallel: devices over which each of them cuts its weights.
    colocate: rollout engines share the trainers' devices; otherwise they have their own.
    sleep: trainers and rollout engines that share devices take turns in their memory instead of standing side by side in it.
    share_devices: all policies of a cell have the same devices and take turns on them; None leaves that to the plan.
    enforce_eager: no CUDA graphs in vLLM; None says so only where there is no CUDA.
    attention: the trainers' kernel. gradient_checkpointing: activations are computed again backward, to save memory.
    micro_batch_tokens: padded tokens of one forward and backward pass per rank.
    rollout_memory: share of a device's memory that a vLLM engine may take. rollout_sequences: answers it decodes at once.
    max_length: longest prompt and answer together, in tokens. None takes what training, curves and evaluation ask, measured by the
        policy's tokenizer; fewer are refused.
    start_seconds, sync_seconds, call_seconds: deadlines of starting up (imports, weights, compilation, graphs), of one weight sync
        and of any other call; the longer of the first and the last is how long a rank waits for the others.
    silence_seconds: an actor that gives no sign of life for so long counts as hung, whatever the deadline.
    sync_tolerance: after a weight sync the rollout engine's log-probabilities may differ from the trainer's by four times what they
        did before the first update and by so much more, in nats per token on average; None takes 1e-4 for fp32 and 0.05 for bf16.
    """

    dtype: Literal["fp32", "bf16"] = "bf16"
    zero_stage: Literal[0, 2, 3] = 2
    trainers: Count = 1
    rollout_engines: Count = 1
    tensor_parallel: Count = 1
    colocate: bool = True
    sleep: bool = False
    share_devices: bool | None = None
    enforce_eager: bool | None = None
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    gradient_checkpointing: bool = False
    micro_batch_tokens: Annotated[int, Meta(ge=1, le=1 << 30)] = 8192
    rollout_memory: Annotated[float, Meta(gt=0, lt=1)] = 0.4
    rollout_sequences: Count = 256
    max_length: Annotated[int, Meta(ge=2, le=1 << 30)] | None = None
    start_seconds: Seconds = 900.0
    sync_seconds: Seconds = 300.0
    call_seconds: Seconds = 1800.0
    silence_seconds: Seconds = 60.0
    sync_tolerance: Annotated[float, Meta(gt=0, le=1e6)] | None = None

    def __post_init__(self) -> None:
        if self.dtype == "bf16" and self.zero_stage == 0:
            raise ValueError(
                "zero_stage 0 needs dtype fp32: without ZeRO the masters and moments of bf16 cannot be saved"
            )

    @property
    def devices(self) -> int:
        """Devices of the layout: one bundle each."""
        rollouts = self.rollout_engines * self.tensor_parallel
        return max(self.trainers, rollouts) if self.colocate else self.trainers + rollouts

    @property
    def tolerance(self) -> float:
        """`sync_tolerance` or the precision's default."""
        if self.sync_tolerance is not None:
            return self.sync_tolerance
        return 1e-4 if self.dtype == "fp32" else 0.05


def settings_of(options: Mapping[str, Any], source: str = "suite") -> Settings:
    """Validated settings. Raises SuiteError with the place inside `engine_options`."""
    return read(Settings, options, source)
