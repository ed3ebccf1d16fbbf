"""All that adapts OpenRLHF 0.11 to clusters without CUDA; where nodes have accelerators nothing here is used.

In the trainers' processes (`seams.adapt_trainer`):

1. `torch.cuda.{current_device,set_device,synchronize,empty_cache,current_stream}` do nothing, and the current device is
   the CPU: the launcher, the policy actor, the replay buffer and the strategy call them without asking.
2. `init_device_mesh("cuda", ...)` in OpenRLHF's strategy becomes a CPU mesh.
3. The weight-sync group is Gloo instead of NCCL, with the one method OpenRLHF calls on it.
4. DeepSpeed's shared-memory collectives are off: they would be compiled at first use, and only inference uses them.

In vLLM's engine process (`seams.Worker`, handed in as `worker_extension_cls`):

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

import os
from datetime import timedelta
from typing import TYPE_CHECKING

import ray
import torch

from harness.allocation.inventory import accelerated

if TYPE_CHECKING:
    from torch import Tensor

SYNC_BACKEND = "gloo"
"""What OpenRLHF's `--vllm.sync_backend` is set to: any value other than nccl keeps CUDA out of it."""
SYNC_SECONDS = "HARNESS_SYNC_SECONDS"
"""Environment variable: how long Gloo waits for a weight."""


def needed() -> bool:
    """Whether the devices of the cluster that was joined are cores, whatever this node itself has: no node has an accelerator,
    or torch is built without CUDA."""
    return torch.version.cuda is None or not accelerated(ray.cluster_resources())


def environment(sync_seconds: float) -> dict[str, str]:
    """Environment variables of the actors; empty on GPUs. Gloo waits at most `sync_seconds` for a weight."""
    if not needed():
        return {}
    return {
        "DS_ACCELERATOR": "cpu",
        SYNC_SECONDS: str(sync_seconds),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "GOMP_SPINCOUNT": "0",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
        "VLLM_CPU_OMP_THREADS_BIND": os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
    }


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
