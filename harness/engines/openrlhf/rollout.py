"""The vLLM side: OpenRLHF's rollout actor, asked for whole batches."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
from jaxtyping import Float32
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from harness.engines.openrlhf import seams
from harness.engines.openrlhf.cluster import Slot
from harness.engines.openrlhf.offload import MemoryState
from harness.engines.openrlhf.plugin import OpenRLHFSettings
from harness.engines.openrlhf.remote import Process, cpu_seconds, list_own_processes
from harness.engines.protocol import Sample
from harness.limits import without_collection

with without_collection():
    from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
    from vllm import SamplingParams

ROLLOUT_SHARE = 0.2  # of a bundle's device, in Ray's books


class RolloutWorker(seams.plain_class(RolloutRayActor)):  # type: ignore[misc]
    _held = MemoryState.ALL

    async def sample(self, prompts: Sequence[list[int]], settings: Sequence[SamplingParams]) -> list[Sample]:
        """Sample answers, without their texts. The prefix cache is emptied and the scheduler held until it has all requests, so
        that rounding depends on the call alone."""
        await self.llm.pause_generation(mode="keep", clear_cache=True)
        tasks = [asyncio.ensure_future(self.generate(*request)) for request in zip(prompts, settings, strict=True)]
        while self.get_num_unfinished_requests() < len(tasks) and not any(task.done() for task in tasks):
            await asyncio.sleep(0)
        await self.resume_generation()
        outputs = await asyncio.gather(*tasks)
        return [
            _sample_of_output(output.outputs[0], asked.logprob_token_ids or ())
            for output, asked in zip(outputs, settings, strict=True)
        ]

    async def prompt_logprobs(self, sequences: Sequence[list[int]]) -> list[Float32[np.ndarray, "T-1"]]:
        """Compute the log-probabilities of every token but the first, at temperature 1, from a fresh forward pass."""
        asked = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        outputs = await asyncio.gather(*(self.generate(sequence, asked) for sequence in sequences))
        return [
            _chosen_logprobs(s[1:], output.prompt_logprobs[1:]) for s, output in zip(sequences, outputs, strict=True)
        ]

    async def on_workers(self, method: str) -> list[Any]:
        return list(await self.llm.collective_rpc(method))

    async def hold(self, wanted: MemoryState) -> None:
        """Put to sleep or wake up: vLLM's sleep of level 1, and its two stages of waking up."""
        if wanted < self._held:
            if self._held < MemoryState.ALL:
                await self.wake_up(["kv_cache"])  # vLLM does not fall asleep again from half way
            await self.sleep(1)
            self._held = MemoryState.NOTHING
        if wanted > self._held == MemoryState.NOTHING:
            await self.wake_up(["weights"])
            self._held = MemoryState.WEIGHTS
        if wanted > self._held:
            await self.wake_up(["kv_cache"])
            self._held = MemoryState.ALL

    async def pulse(self) -> int:
        return os.getpid()

    async def core_pulse(self) -> int:
        await self.llm.is_sleeping()
        return os.getpid()

    async def processes(self) -> list[Process]:
        """List its processes; over several devices vLLM's workers too, which Ray started."""
        apart = self.kwargs["distributed_executor_backend"] == "ray"
        workers = await self.llm.collective_rpc("worker_processes") if apart else []
        return [*list_own_processes(), *(Process(*process) for listed in workers for process in listed)]

    async def cpu_seconds(self) -> float:
        return cpu_seconds()

    async def shutdown(self) -> None:
        self.llm.shutdown()


def _sample_of_output(output: Any, ends: Sequence[int]) -> Sample:
    """Make a sample from what vLLM returned. ends: ids that are one action, as `head.merge_ends`, of which vLLM was asked
    everywhere."""
    tokens = np.array(output.token_ids, dtype=np.int32)
    finished = output.finish_reason == "stop"
    logprobs = _chosen_logprobs(output.token_ids, output.logprobs)
    if ends and finished:
        logprobs[-1] = np.logaddexp.reduce([output.logprobs[-1][end].logprob for end in ends])
    return Sample(tokens, logprobs, "", finished)


def _chosen_logprobs(tokens: Sequence[int], positions: Sequence[Any]) -> Float32[np.ndarray, "T"]:
    """Return the log-probabilities, in nats, of the tokens that were drawn."""
    return np.array([p[token].logprob for token, p in zip(tokens, positions, strict=True)], dtype=np.float32)


def open_rollouts(
    folder: str, settings: OpenRLHFSettings, group: PlacementGroup, slot: Slot, environment: dict[str, str]
) -> list[Any]:
    """Start rollout engines, and return them while they still start. OpenRLHF's `create_vllm_engines` takes no actor class,
    chooses the group's first bundles, and always runs in bf16."""
    actor = ray.remote(runtime_env={"env_vars": environment})(RolloutWorker)
    alone = settings.tensor_parallel == 1
    share = slot.part(ROLLOUT_SHARE)
    booked = share if alone else 0  # several devices are booked by vLLM's own workers
    on_cpu = seams.uses_cpu_devices()
    eager = on_cpu if settings.enforce_eager is None else settings.enforce_eager
    sleeps = settings.sleep or bool(settings.share_devices)
    handles = []
    for index, first in enumerate(slot.rollouts):
        place = PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=first, placement_group_capture_child_tasks=True
        )
        bundles = list(range(first, first + settings.tensor_parallel))
        handle = actor.options(num_cpus=booked, num_gpus=booked, scheduling_strategy=place).remote(
            model=folder,
            dtype="float32" if settings.dtype == "fp32" else "bfloat16",
            seed=index,
            max_model_len=settings.max_length,
            max_num_seqs=settings.rollout_sequences,
            tensor_parallel_size=settings.tensor_parallel,
            distributed_executor_backend="uni" if alone else "ray",
            bundle_indices=None if alone else bundles,
            num_gpus=share,
            gpu_memory_utilization=settings.rollout_memory,
            enforce_eager=eager,
            enable_prefix_caching=True,
            enable_sleep_mode=sleeps and not on_cpu,  # vLLM refuses it; `seams` makes it sleep
            logprobs_mode="processed_logprobs",
            max_logprobs=1,
            trust_remote_code=False,
            full_determinism=False,
            worker_extension_cls=f"{seams.__name__}.Worker",
        )
        handles.append(handle)
    return handles
