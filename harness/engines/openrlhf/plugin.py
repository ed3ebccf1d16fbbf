"""What the OpenRLHF engine declares, without importing Ray."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from harness.allocation import inventory
from harness.allocation.inventory import Inventory
from harness.allocation.shapes import Precision
from harness.engines.backend import Backend, Lora, read_options
from harness.engines.openrlhf.local_ray import local_ray
from harness.engines.protocol import PolicyEngine
from harness.errors import EngineError
from harness.suite.schema import Policy

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerFast

    from harness.engines.openrlhf.engine import OpenRLHFEngine

A = TypeVar("A")
B = TypeVar("B")
Count = Annotated[int, Meta(ge=1, le=4096)]
Seconds = Annotated[float, Meta(gt=0, le=86400)]


class OpenRLHFSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Layout, precision and deadlines of one policy.

    dtype: `fp32` throughout (parity, micro models), or `bf16` with fp32 masters. zero_stage: what DeepSpeed shards: nothing (only
    with fp32), moments and gradients, weights too. trainers: DeepSpeed ranks. rollout_engines: vLLM engines. tensor_parallel:
    devices of each vLLM engine. colocate: rollout engines share the trainers' devices. sleep: trainers and rollout engines take
    turns in the memory of shared devices. share_devices: all policies of a cell take turns on the same devices; None takes the
    plan's. enforce_eager: no CUDA graphs in vLLM; None takes them where there is CUDA. lora: `{rank: 16, alpha: 32}` trains
    adapters instead of the weights; rollout engines get merged weights. attention: the trainers' kernel. gradient_checkpointing:
    compute activations again in the backward pass. micro_batch_tokens: padded tokens of one pass per rank. rollout_memory: share
    of a device's memory for a vLLM engine. rollout_sequences: answers decoded at once. max_length: longest prompt and answer
    together, in tokens; fewer than the suite asks are refused. None takes what it asks, by the policy's tokenizer. start_seconds:
    deadline of starting up. sync_seconds: deadline of one weight sync. call_seconds: deadline of any other call. silence_seconds:
    an actor that does not answer for this long is hung. sync_tolerance: allowed log-probability difference after a sync, in nats
    per token, beyond four times that before the first update; None takes 1e-4 for fp32 and 0.05 for bf16.
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
    lora: Lora | None = None
    micro_batch_tokens: Annotated[int, Meta(ge=1, le=1 << 30)] = 8192
    rollout_memory: Annotated[float, Meta(gt=0, lt=1)] = 0.4
    rollout_sequences: Annotated[int, Meta(ge=1, le=2048)] = 256
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
        if self.lora and self.zero_stage == 3:
            raise ValueError(
                "lora needs zero_stage 0 or 2: with 3 no rank has the weights that adapters are merged into"
            )

    @property
    def devices(self) -> int:
        rollouts = self.rollout_engines * self.tensor_parallel
        return max(self.trainers, rollouts) if self.colocate else self.trainers + rollouts

    @property
    def tolerance(self) -> float:
        if self.sync_tolerance is not None:
            return self.sync_tolerance
        return 1e-4 if self.dtype == "fp32" else 0.05


LAYOUT = frozenset(
    {"trainers", "rollout_engines", "tensor_parallel", "colocate"}
)  # a suite that sets one does it all itself


class OpenRLHF(Backend):
    """OpenRLHF's Ray trainers with DeepSpeed and vLLM"""

    packages = ("openrlhf", "ray", "deepspeed", "vllm")
    advice = "docs/openrlhf.md"
    Options = OpenRLHFSettings
    clustered = True

    @classmethod
    def precision(cls, policy: Policy, options: Mapping[str, Any]) -> Precision:
        asked: Precision = options.get("dtype") or "bf16"
        return asked

    @classmethod
    def devices(cls, options: Mapping[str, Any], source: str) -> int | None:
        return read_options(OpenRLHFSettings, options, source).devices if LAYOUT & options.keys() else None

    @classmethod
    def inventory(cls, address: str | None) -> Inventory:
        address = address or os.environ.get("RAY_ADDRESS")
        if not address or any(find_spec(package) is None for package in cls.packages):
            return inventory.inventory_of_machine()
        from harness.engines.openrlhf.cluster import inventory_of_cluster as of_cluster

        return of_cluster(address)

    @classmethod
    @contextmanager
    def cluster(cls, address: str | None) -> Iterator[dict[str, str]]:
        with local_ray(address) as running:
            yield {"RAY_ADDRESS": running}

    @staticmethod
    def check(folder: Path, options: Mapping[str, Any]) -> tuple[PretrainedConfig, PreTrainedTokenizerFast]:
        """Check a model's folder for this engine, and open its config and tokenizer. Raises EngineError."""
        from harness.engines.vocabulary import read_folder

        config, tokenizer = read_folder(folder)
        asked = read_options(OpenRLHFSettings, options).max_length
        limit = getattr(config, "max_position_embeddings", None)
        if asked and limit and asked > limit:
            raise EngineError(
                f"{folder}: the model has {limit:,} positions, fewer than the {asked:,} tokens of a question and its answer "
                "(engine_options.max_length, or what max_new_tokens ask for)"
            )
        return config, tokenizer

    def __init__(self, options: Mapping[str, Mapping[str, Any]], temperature: float) -> None:
        from harness.engines.openrlhf.cluster import Reservation

        super().__init__(options, temperature)
        self._settings = {name: read_options(OpenRLHFSettings, own) for name, own in options.items()}
        self._reservation = Reservation(self._settings)
        self._opened.callback(self._reservation.close)
        self.side_by_side = not self._reservation.shared
        self._turn_back = False
        self._engines: dict[str, list[OpenRLHFEngine]] = {name: [] for name in options}

    def reference(self, policy: Policy, folder: Path) -> PolicyEngine:
        from harness.engines.openrlhf.engine import BaseScorer

        opened = self._engines[policy.name]
        return BaseScorer(opened[0] if opened else self.open(policy, folder, trained=False))

    def cpu_seconds(self, policy: str) -> float:
        """Return the CPU-seconds of its actors, its reference's too, and of the calling thread."""
        return time.thread_time() + sum(engine.cpu_seconds() for engine in self._engines[policy])

    def each(self, work: Callable[[A], B], items: Iterable[A]) -> list[B]:
        """Call `work` for each item: in threads where policies have devices of their own, else one after another."""
        listed = list(items)
        if not self.side_by_side:
            # Alternating order, so that no policy's memory is loaded twice.
            order = range(len(listed))[:: -1 if self._turn_back else 1]
            self._turn_back = not self._turn_back
            done = {index: work(listed[index]) for index in order}
            return [done[index] for index in range(len(listed))]
        with ThreadPoolExecutor(max(1, len(listed))) as pool:
            running = [pool.submit(work, item) for item in listed]
        return [one.result() for one in running]

    def open(self, policy: Policy, folder: Path, trained: bool = True) -> OpenRLHFEngine:
        from harness.engines.openrlhf.engine import OpenRLHFEngine

        engine = OpenRLHFEngine(
            policy.name,
            folder,
            settings=self._settings[policy.name],
            temperature=self._temperature,
            chat=policy.chat,
            reservation=self._reservation,
            trained=trained,
            ends_are_one=self.ends_are_one,
        )
        self._opened.callback(engine.close)
        self._engines[policy.name].append(engine)
        return engine
