"""Every use of what OpenRLHF, DeepSpeed, vLLM and Ray do not offer as their interface, with its reason (`SEAMS`), and what
adapts them to clusters without CUDA. An import changes nothing. `tests/openrlhf_engine/test_versions.py` says what has moved."""

from __future__ import annotations

import functools
import os
import random
import socket
import sys
from contextlib import suppress
from dataclasses import astuple
from datetime import timedelta
from pathlib import Path
from typing import Any

import ray
import torch
from torch import Tensor

from harness.allocation.inventory import has_accelerators
from harness.engines.openrlhf.offload import OffloadedTensors, discard_pages
from harness.engines.openrlhf.remote import list_own_processes

SEAMS = {
    "openrlhf.utils.utils:convert_to_torch_dtype": "knows bf16 and fp16 only; the DeepSpeed configuration for any other name is "
    "plain fp32, which is what is wanted, but the model is refused on the way there",
    "openrlhf.utils.deepspeed:DeepspeedStrategy._get_model_parameters": "overridden in `strategy`: divides the parameters by "
    "whether they decay, and a suite's weight decay is for all of them",
    "openrlhf.trainer.ray.ppo_actor:PolicyModelActor": "a Ray actor class, from which a plain class cannot inherit",
    "openrlhf.trainer.ray.vllm_engine:RolloutRayActor": "the same",
    "openrlhf.trainer.ray.ppo_actor:ActorPPOTrainer.broadcast_to_vllm": "sends what `named_parameters` gives: adapters "
    "too, and by names that a checkpoint may not have",
    "openrlhf.trainer.ray.launcher:BaseDistributedActor._get_free_port": "picks a port from which the kernel serves outgoing "
    "connections, so that one may have it before the trainer listens",
    "transformers.dynamic_module_utils:resolve_trust_remote_code": "OpenRLHF asks for a model folder's own code, which is never "
    "run",
    "openrlhf.models:Actor.forward": "makes all logits at once; `logits_to_keep` goes through to the model as one of its "
    "inputs for images",
    "openrlhf.trainer.ray.ppo_actor:stateless_init_process_group": "without CUDA: makes an NCCL group whatever the backend",
    "openrlhf.utils.deepspeed.deepspeed:init_device_mesh": "without CUDA: is asked for a mesh of CUDA devices by a literal",
    "torch.cuda:current_device": "without CUDA: launcher, actor, replay buffer and strategy call it, and those below, unasked",
    "torch.cuda:set_device": "the same",
    "torch.cuda:synchronize": "the same",
    "torch.cuda:empty_cache": "the same",
    "torch.cuda:current_stream": "the same",
    "deepspeed.ops:__compatible_ops__": "without CUDA: a shared-memory operator would be compiled at first use",
    "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm": "without CUDA: drops the weights it packs, so that new "
    "ones cannot be loaded",
    "vllm.v1.worker.cpu_worker:CPUWorker.sleep": "without CUDA: gives no memory back; an extension class may not override it",
    "vllm.v1.worker.cpu_worker:CPUWorker.wake_up": "the same",
    "deepspeed:DeepSpeedEngine.gradient_clipping": "reads the configuration, which has no other way to take a suite's clipping "
    "step by step",
    "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.get_all_grad_tensors": "the first micro-batch's own gradients, in "
    "bf16, become the sums of all, whatever `grad_accum_dtype` says",
    "deepspeed:DeepSpeedEngine.buffered_allreduce_fallback": "without ZeRO and in fp32 no gradient norm is reported, so the "
    "gradients are reduced here, once and for all",
    "vllm.v1.worker.gpu.sample.logit_bias:MAX_NUM_LOGIT_BIAS_TOKENS": "above it, the newer model runner ends "
    "the engine",
    "ray._private.state:available_resources_per_node": "`ray.nodes` says what nodes have, nothing what is free on them",
    "ray._private.state:total_resources_per_node": "in the same terms",
    "ray._private.state:actors": "an actor that does not answer cannot say itself how far its start has come",
    "ray._private.worker:_global_node": "knows where this node's log files are",
}
SYNC_BACKEND = "gloo"  # any value other than nccl keeps CUDA out
SYNC_SECONDS = "HARNESS_SYNC_SECONDS"  # environment variable: Gloo's wait for a weight
PORTS = range(20_000, 32_768)
CHUNK = 1 << 22  # elements summed at a time, as each becomes eight bytes
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def uses_cpu_devices() -> bool:
    """Whether the cluster's devices are cores; this node's own may differ."""
    return torch.version.cuda is None or not has_accelerators(ray.cluster_resources())


def environment_of_actors(sync_seconds: float) -> dict[str, str]:
    """Return the actors' environment. Spinning OpenMP threads made DeepSpeed 30 to 70 times slower."""
    if not uses_cpu_devices():
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
    """Of the weight sync: the trainer (rank 0) and the vLLM workers."""

    def __init__(self, host: str, port: int, rank: int, world: int, timeout: float) -> None:
        from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

        wait = timedelta(seconds=timeout)
        self._store = TCPStore(host, port, world, is_master=rank == 0, timeout=wait, wait_for_workers=False)
        self._group = ProcessGroupGloo(PrefixStore("weights", self._store), rank, world, wait)

    def broadcast(self, tensor: Tensor, src: int, stream: object = None) -> None:
        """Broadcast a tensor in place; raises RuntimeError when a member is gone or late."""
        from torch.distributed import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank = src
        options.rootTensor = 0
        self._group.broadcast([tensor.contiguous()], options).wait()  # type: ignore[attr-defined]


def checksum_of(tensor: Tensor) -> str:
    """Write a checksum of a tensor: type, shape, and the sum modulo 2^64 of the elements' bits, each times an odd number by
    place: a single difference always shows."""
    words = tensor.detach().contiguous().flatten().view(_WORDS[tensor.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for start in range(0, len(words), CHUNK):
        part = words[start : start + CHUNK].long()
        places = torch.arange(start, start + len(part), device=words.device)
        total += (part * (2 * places + 1)).sum()
    return f"{tensor.dtype} {tuple(tensor.shape)} {int(total) & (1 << 64) - 1:016x}"


def list_differing(these: dict[str, str], those: dict[str, str]) -> list[str]:
    return sorted(name for name in these.keys() | those.keys() if these.get(name) != those.get(name))


class Checked:
    model_runner: Any
    model_config: Any

    def expect(self) -> None:
        """Begin to note the checksums of weights that arrive from the trainer."""
        model = self.model_runner.model
        if "load_weights" not in vars(model):
            load = model.load_weights
            model.arrived = {}

            def load_weights(weights: list[tuple[str, Tensor]]) -> Any:
                model.arrived |= {name: checksum_of(weight) for name, weight in weights}
                return load(weights)

            model.load_weights = load_weights
        model.arrived.clear()

    def arrived(self) -> dict[str, str]:
        """Return checksums of what came since, by a checkpoint's names."""
        return dict(self.model_runner.model.arrived)

    def held(self) -> dict[str, str]:
        """Return the checksums of the parameters, in the engine's precision, by vLLM's own names."""
        dtype = self.model_config.dtype
        return {name: checksum_of(weight.to(dtype)) for name, weight in self.model_runner.model.named_parameters()}

    def lose(self) -> None:
        for weight in self.model_runner.model.parameters():
            weight.data.fill_(float("nan"))


def free_port() -> int:
    """Return a port that nobody listens at, between those of Ray's workers and those of outgoing connections. Raises OSError."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with suppress(OSError), socket.socket() as listener:
            listener.bind(("", port))
            return port
    raise OSError(f"no free port among 100 from {PORTS[0]} to {PORTS[-1]}")


def plain_class(actor: Any) -> Any:
    return actor.__ray_metadata__.modified_class


def clip_at(engine: Any, norm: float) -> None:
    """Set the norm at which gradients are clipped; each kind of ZeRO optimiser keeps a copy of its own."""
    engine._config.gradient_clipping = norm
    if hasattr(engine.optimizer, "clip_grad"):
        engine.optimizer.clip_grad = norm


def reduce_gradients(engine: Any) -> None:
    engine.enable_backward_allreduce = False
    engine.buffered_allreduce_fallback()


def node_resources() -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    from ray._private import state

    return state.available_resources_per_node(), state.total_resources_per_node()


def reported_state(handle: Any) -> str:
    """Say how far Ray has started an actor, and the last lines of its process, where that is on this node."""
    from ray._private import state, worker

    actor: dict[str, Any] = {}
    lines = []
    with suppress(Exception):  # Ray itself may be what does not answer
        actor = state.actors(handle._actor_id.hex())
        for log in sorted(Path(worker._global_node.get_logs_dir_path()).glob(f"worker-*-{actor['Pid']}.*")):
            lines += [repr(line[-200:]) for line in log.read_text("utf-8", errors="replace").split("\n")[-2:-1]]
    return "; ".join([actor.get("State", "Ray does not know it"), *(lines or ["nothing written on this node"])])


@functools.cache
def forbid_remote_code() -> None:
    """Keep code that a model's configuration names (`auto_map`) from running, although OpenRLHF asks for it."""
    from transformers import dynamic_module_utils

    resolve = dynamic_module_utils.resolve_trust_remote_code
    for module in [*sys.modules.values()]:
        if getattr(module, "__dict__", {}).get(resolve.__name__) is resolve:  # a name may stand for None
            setattr(module, resolve.__name__, lambda _, *about, **more: resolve(False, *about, **more))


def adapt_trainer(timeout: float) -> None:
    """Adapt OpenRLHF's trainer to fp32 weights and sums of gradients; without CUDA the CPU as device. timeout: Gloo's, in
    seconds."""
    from openrlhf.utils import utils

    forbid_remote_code()
    half = utils.convert_to_torch_dtype
    utils.convert_to_torch_dtype = lambda name: torch.float32 if name == "fp32" else half(name)
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    DeepSpeedZeroOptimizer.get_all_grad_tensors = _gradients_to_add(DeepSpeedZeroOptimizer.get_all_grad_tensors)
    if not uses_cpu_devices():
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


def _gradients_to_add(original: Any) -> Any:
    """Return the gradients to which a micro-batch's are added, the first one's in the precision of the sums."""

    def get_all_grad_tensors(optimizer: Any, parameters: list[Any], dtype: torch.dtype) -> list[torch.Tensor]:
        gradients = original(optimizer, parameters, dtype)
        first = optimizer.all_grad_tensors.get(0) is None  # all parameters are one group, see `strategy`
        return [gradient.to(dtype) for gradient in gradients] if first else gradients

    return get_all_grad_tensors


class _CpuDevice(str):
    """The current device: "cpu" as an argument, "0" inside f"cuda:{...}", which the replay buffer parses."""

    def __format__(self, _spec: str) -> str:
        return "0"


def runner_environment(forbidden: int) -> dict[str, str]:
    """Choose vLLM's older model runner where the newer one cannot forbid so many ids."""
    from vllm.v1.worker.gpu.sample.logit_bias import MAX_NUM_LOGIT_BIAS_TOKENS

    return {"VLLM_USE_V2_MODEL_RUNNER": "0"} if forbidden > MAX_NUM_LOGIT_BIAS_TOKENS else {}


def __getattr__(name: str) -> Any:
    # vLLM looks the extension up by name in its own process.
    if name == "Worker":
        return _make_worker_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _discard_caches(worker: Any, level: int = 1) -> None:
    """Free the keys and values of a vLLM worker, which its own sleep keeps on a CPU."""
    runner = worker.model_runner
    worker.offloaded = OffloadedTensors([*runner.model.parameters(), *runner.model.buffers()])
    discard_pages(runner.kv_caches)


def _wake_up(worker: Any, tags: list[str] | None = None) -> None:
    """Wake an engine up without its KV cache, whose first use brings the pages back."""
    if tags is None or "weights" in tags:
        worker.offloaded.restore()


@functools.cache
def _make_worker_class() -> type:
    """Make the vLLM worker with the harness's methods of weight transfer."""
    from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap

    class CheckedWorker(Checked, WorkerWrap):  # type: ignore[misc]
        def worker_processes(self) -> list[tuple[str, int, float]]:
            """Return fields of `Process`, in types that vLLM sends."""
            return [astuple(process) for process in list_own_processes()]

    if (
        SYNC_SECONDS not in os.environ
    ):  # `environment_of_actors` sets it without CUDA; vLLM's own process cannot ask Ray
        return CheckedWorker
    import vllm.model_executor.layers.utils as layers
    from vllm.v1.worker.cpu_worker import CPUWorker

    def plain(layer: torch.nn.Module, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment]

    layers.dispatch_cpu_unquantized_gemm = plain
    CPUWorker.sleep = _discard_caches
    CPUWorker.wake_up = _wake_up

    class SyncWorker(CheckedWorker):
        def init_process_group(
            self, host: str, port: int, rank_offset: int, world: int, name: str, backend: str, use_ray: bool
        ) -> None:
            timeout = float(os.environ[SYNC_SECONDS])
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
