"""DeepSpeed as the engine needs it, and OpenRLHF's classes without flash-attn."""

from __future__ import annotations

import importlib.util
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from harness.engines import lora
from harness.engines.openrlhf import seams
from harness.engines.openrlhf.account import LIVE_PARAMETERS, REDUCE_BUCKET
from harness.engines.openrlhf.plugin import OpenRLHFSettings
from harness.limits import without_collection

_MODULE = "openrlhf.models.ring_attn_utils"
_ABSENT = ("flash_attn", "flash_attn.bert_padding", "flash_attn.utils", "flash_attn.utils.distributed")


def import_without_flash() -> None:
    """Import OpenRLHF without flash-attn, which takes hours to build: `ring_attn_utils` gets names that raise when called; for
    all else it is absent."""
    if _MODULE in sys.modules or importlib.util.find_spec("flash_attn") is not None:
        return
    # The file alone: its package makes transformers look for flash-attn.
    source = Path(importlib.import_module("openrlhf").__path__[0], "models", "ring_attn_utils.py")
    spec = importlib.util.spec_from_file_location(_MODULE, source)
    if spec is None or spec.loader is None:
        raise ImportError(f"{source}: not a module")
    module = importlib.util.module_from_spec(spec)
    for name in _ABSENT:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__getattr__ = partial(_refuse_calls, name)  # type: ignore[method-assign]  # a module's own (PEP 562)
    try:
        spec.loader.exec_module(module)
    finally:
        for name in _ABSENT:
            del sys.modules[name]
    sys.modules[_MODULE] = module


def _refuse_calls(module: str, name: str) -> Any:
    """Make a function that stands for one of a package that is not installed."""
    return partial(_raise_absent, f"{module}.{name}")


def _raise_absent(name: str, *_: Any, **__: Any) -> NoReturn:
    """Raise ImportError with the name of what was called."""
    raise ImportError(f"{name} was called, but flash-attn is not installed")


with without_collection():
    import_without_flash()
    from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer, PolicyModelActor
    from openrlhf.utils.deepspeed import DeepspeedStrategy

__all__ = ["ActorPPOTrainer", "PolicyModelActor", "Strategy", "import_without_flash", "make_arguments"]


class Strategy(DeepspeedStrategy):  # type: ignore[misc]
    def __init__(self, settings: OpenRLHFSettings, temperature: float) -> None:
        super().__init__(
            seed=0,  # nothing is drawn
            micro_train_batch_size=1,
            train_batch_size=settings.trainers,
            zero_stage=settings.zero_stage,
            args=make_arguments(settings, temperature),
        )
        self.deadline = settings.start_seconds
        self.lora = settings.lora
        self.adapters: Path | None = None  # a checkpoint's, to go on from
        self.patience = timedelta(seconds=max(settings.start_seconds, settings.call_seconds))

    def setup_distributed(self, timeout: timedelta | None = None) -> None:
        """Join the ranks' group. A rank waits for the others as long as any call may take."""
        super().setup_distributed(timeout or self.patience)

    def prepare(self, *models: Any) -> Any:
        """Add adapters, or take up stored ones, before DeepSpeed takes the model."""
        if self.lora is not None:
            (actor, _), *_ = models
            lora.add_adapters(actor.model, self.lora)
            if self.adapters is not None:
                lora.load_adapters(actor.model, self.adapters)
        return super().prepare(*models)

    def print(self, *_: Any) -> None:
        """Print nothing: OpenRLHF prints whole models here."""

    def _get_model_parameters(self, model: Any, *, optim: str | None = None, weight_decay: float = 0.0) -> Any:
        raw, _ = super()._get_model_parameters(model, optim=optim, weight_decay=weight_decay)
        return raw, [parameter for parameter in raw.parameters() if parameter.requires_grad]

    def get_ds_train_config(self, optim_dict: dict[str, Any] | None = None, *, max_norm: float | None = None) -> Any:
        """Return DeepSpeed's settings, with torch's AdamW; it steps on request, after any number of micro-batches."""
        if optim_dict is not None:
            optim_dict["params"]["torch_adam"] = True
        config = super().get_ds_train_config(optim_dict, max_norm=max_norm)
        config["zero_optimization"] |= {
            "reduce_bucket_size": REDUCE_BUCKET,
            "stage3_max_live_parameters": LIVE_PARAMETERS,
            "stage3_max_reuse_distance": LIVE_PARAMETERS,
        }
        return {
            **config,
            "managed_gradient_accumulation": False,
            "gradient_accumulation_steps": 1,
            "steps_per_print": 10**9,
        }


def make_arguments(settings: OpenRLHFSettings, temperature: float) -> SimpleNamespace:
    """Make OpenRLHF's arguments: only what the classes in use read, so that a new one is noticed."""
    algorithm = SimpleNamespace(
        advantage=SimpleNamespace(
            is_correction_level="off",
            is_correction_mode="mask",
            is_correction_gating="ratio",
            is_correction_threshold=(0.5, 5.0),
        ),
        kl=SimpleNamespace(use_loss=False, init_coef=0.0),
    )
    checkpoint = SimpleNamespace(save_hf=False, disable_ds=True, load_enable=False, path="", output_dir="")
    return SimpleNamespace(
        local_rank=-1,
        actor=_actor_arguments(settings),
        algo=algorithm,
        ckpt=checkpoint,
        data=SimpleNamespace(disable_fast_tokenizer=False),
        ds=_deepspeed_arguments(settings),
        ref=SimpleNamespace(offload=False),
        rollout=SimpleNamespace(temperature=temperature),
        train=_training_arguments(settings),
        vllm=_vllm_arguments(settings),
    )


def _actor_arguments(settings: OpenRLHFSettings) -> SimpleNamespace:
    """Return what the actor's classes read. Learning rate and clipping are set at each update."""
    adam = SimpleNamespace(lr=0.0, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    return SimpleNamespace(
        adam=adam,
        muon=SimpleNamespace(),
        optim="adam",
        lr_scheduler="constant",
        lr_warmup_ratio=0.0,
        min_lr_ratio=1.0,
        max_norm=1.0,
        num_nodes=1,
        num_gpus_per_node=settings.trainers,
        gradient_checkpointing_enable=settings.gradient_checkpointing,
        gradient_checkpointing_reentrant=False,
        freeze_visual_encoder=False,
        aux_loss_coef=0.0,
        entropy_coef=None,
        # PolicyLoss is constructed, never called.
        eps_clip=0.2,
        eps_clip_low_high=(0.2, 0.2),
        dual_clip=None,
        loss_agg_mode="token-mean",
        policy_loss_type="ppo",
    )


def _deepspeed_arguments(settings: OpenRLHFSettings) -> SimpleNamespace:
    """Return what opens and shards a model. Adapters are the harness's own (`Strategy.prepare`), so OpenRLHF adds none."""
    no_adapters = SimpleNamespace(rank=0, alpha=0, dropout=0.0, target_modules=None)
    return SimpleNamespace(
        attn_implementation=settings.attention,
        experts_implementation=None,
        param_dtype=settings.dtype,
        grad_accum_dtype="fp32",
        load_in_4bit=False,
        lora=no_adapters,
        packing_samples=False,
        use_liger_kernel=False,
        zero_stage=settings.zero_stage,
        tensor_parallel_size=1,
        ring_attn_size=1,
        enable_sleep=False,
        adam_offload=False,
        zpg=1,
    )


def _training_arguments(settings: OpenRLHFSettings) -> SimpleNamespace:
    """Return what the trainer's actors read."""
    return SimpleNamespace(
        batch_size=settings.trainers,
        micro_batch_size=1,
        max_epochs=1,
        dynamic_batch_enable=False,
        enable_ema=False,
        ema_beta=0.0,
        # By IPC on CUDA, as NCCL refuses two ranks on one device.
        colocate_all=settings.colocate,
        async_enable=False,
    )


def _vllm_arguments(settings: OpenRLHFSettings) -> SimpleNamespace:
    """Return what finds the rollout engines and sends them weights."""
    backend = seams.SYNC_BACKEND if seams.uses_cpu_devices() else "nccl"
    return SimpleNamespace(
        num_engines=settings.rollout_engines,
        tensor_parallel_size=settings.tensor_parallel,
        enable_prefix_caching=True,
        sync_backend=backend,
        sync_with_ray=False,
    )
