"""All that adapts OpenRLHF 0.11 to machines without CUDA; where CUDA is available every function here does nothing.

In the trainers' processes (`adapt_trainer`):

1. `torch.cuda.{current_device,set_device,synchronize,empty_cache,current_stream}` do nothing, and the current device is
   the CPU: the launcher, the policy actor, the replay buffer and the strategy call them without asking.
2. `init_device_mesh("cuda", ...)` in OpenRLHF's strategy becomes a CPU mesh.
3. The weight-sync group is Gloo instead of NCCL, with the one method OpenRLHF calls on it.
4. DeepSpeed's shared-memory collectives are off: they would be compiled at first use, and only inference uses them.

In vLLM's engine process (`SyncWorker`, handed in as `worker_extension_cls`):

5. Received weights are CPU tensors and come over Gloo.
6. Linear layers keep their weights as they are. vLLM packs them for the CPU and drops the originals, after which
   `load_weights` fails, and a tied output head would keep a stale copy of its own.
7. Sleep mode, which vLLM ignores on CPUs, really gives memory back: the weights go to a file, the KV cache's pages to the
   system.

For both (`environment`): DeepSpeed takes its CPU accelerator; one OpenMP thread per process, as spinning threads made
DeepSpeed 30 to 70 times slower; no torch.compile, whose warm-up costs more than it gives on a CPU; a small KV
cache; vLLM's worker in its engine's process instead of one more.
"""

from __future__ import annotations

import functools
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from harness.engines.openrlhf.away import Away, discard

if TYPE_CHECKING:
    from torch import Tensor

SYNC_BACKEND = "gloo"
"""What OpenRLHF's `--vllm.sync_backend` is set to: any value other than nccl keeps CUDA out of it."""


_SYNC_SECONDS = "HARNESS_SYNC_SECONDS"


def needed() -> bool:
    """Whether this machine has no CUDA."""
    return not torch.cuda.is_available()


def environment(sync_seconds: float) -> dict[str, str]:
    """Environment variables of the actors; empty with CUDA. Gloo waits at most `sync_seconds` for a weight."""
    if not needed():
        return {}
    return {
        "DS_ACCELERATOR": "cpu",
        _SYNC_SECONDS: str(sync_seconds),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "GOMP_SPINCOUNT": "0",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
        "VLLM_CPU_OMP_THREADS_BIND": os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
    }


@functools.cache
def adapt_trainer(timeout: float) -> None:
    """Changes 1 to 4 in this process. Gloo waits at most `timeout` seconds."""
    if not needed():
        return
    device = _CpuDevice("cpu")
    torch.cuda.current_device = lambda: device  # type: ignore[assignment,return-value]
    torch.cuda.set_device = lambda *_: None
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.empty_cache = lambda: None
    torch.cuda.current_stream = lambda *_: None  # type: ignore[assignment]

    import deepspeed.ops
    from openrlhf.trainer.ray import ppo_actor
    from openrlhf.utils.deepspeed import deepspeed as strategy

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    mesh = strategy.init_device_mesh
    strategy.init_device_mesh = lambda _device, *args, **kwargs: mesh("cpu", *args, **kwargs)
    ppo_actor.stateless_init_process_group = lambda host, port, rank, world, _device: GlooGroup(
        host, port, rank, world, timeout
    )


class _CpuDevice(str):
    """The current device: "cpu" as a device argument, and "0" inside f"cuda:{...}", which the replay buffer parses."""

    def __format__(self, _spec: str) -> str:
        return "0"


class GlooGroup:
    """The weight-sync group between the trainer (rank 0) and the vLLM workers."""

    def __init__(self, host: str, port: int, rank: int, world: int, timeout: float) -> None:
        from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

        wait = timedelta(seconds=timeout)
        self._store = TCPStore(host, port, world, is_master=rank == 0, timeout=wait, wait_for_workers=False)
        self._group = ProcessGroupGloo(PrefixStore("weights", self._store), rank, world, wait)

    def broadcast(self, tensor: Tensor, src: int, stream: object = None) -> None:
        """In place; raises RuntimeError when a member is gone or the time-out has passed."""
        from torch.distributed import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        self._group.broadcast([tensor.contiguous()], options).wait()  # type: ignore[attr-defined]


def worker_extension() -> str | None:
    """Name of the class that vLLM's workers inherit from; None for OpenRLHF's own."""
    return f"{__name__}.SyncWorker" if needed() else None


def __getattr__(name: str) -> Any:
    # vLLM looks the extension up by name in its own process, before it builds the model: the moment for change 6.
    if name == "SyncWorker":
        return _sync_worker()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _sleep(worker: Any, level: int = 1) -> None:
    """Change 7: vLLM's level 1, which keeps the weights."""
    runner = worker.model_runner
    worker.away = Away([*runner.model.parameters(), *runner.model.buffers()])
    discard(runner.kv_caches)


def _wake_up(worker: Any, tags: list[str] | None = None) -> None:
    """The KV cache needs no waking up: its first use brings the pages back."""
    if tags is None or "weights" in tags:
        worker.away.back()


@functools.cache
def _sync_worker() -> type:
    import vllm.model_executor.layers.utils as layers
    from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap
    from vllm.v1.worker.cpu_worker import CPUWorker

    def plain(layer: torch.nn.Module, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment]

    layers.dispatch_cpu_unquantized_gemm = plain
    CPUWorker.sleep, CPUWorker.wake_up = _sleep, _wake_up

    class SyncWorker(WorkerWrap):  # type: ignore[misc]
        """OpenRLHF's worker extension without its two uses of CUDA."""

        def init_process_group(
            self, host: str, port: int, rank_offset: int, world: int, name: str, backend: str, use_ray: bool
        ) -> None:
            timeout = float(os.environ[_SYNC_SECONDS])
            self._model_update_group = GlooGroup(host, port, torch.distributed.get_rank() + rank_offset, world, timeout)

        def update_weight(self, name: str, dtype: torch.dtype, shape: Any, empty_cache: bool = False) -> None:
            if dtype != self.model_config.dtype:
                raise TypeError(
                    f"{name}: the trainer sends {dtype}, the rollout engine runs in {self.model_config.dtype}"
                )
            weight = torch.empty(shape, dtype=dtype)
            self._model_update_group.broadcast(weight, src=0)
            self.model_runner.model.load_weights(weights=[(name, weight)])

    return SyncWorker
