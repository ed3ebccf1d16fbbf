"""A trainer's state in the embedded engine's format, for any ZeRO stage and number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from harness.engines import lora
from harness.engines.masters import MASTER, dither_to_bf16
from harness.engines.openrlhf.offload import OffloadedTensors
from harness.errors import CheckpointError, EngineError
from harness.limits import without_collection

with without_collection():
    from deepspeed.runtime.zero import GatheredParameters
    from deepspeed.utils import (
        safe_get_full_fp32_param,
        safe_get_full_optimizer_state,
        safe_set_full_fp32_param,
        safe_set_full_optimizer_state,
        safe_set_local_fp32_param,
        safe_set_local_optimizer_state,
    )

KEYS = ("exp_avg", "exp_avg_sq")


@contextmanager
def base_weights(engine: Any, folder: Path) -> Iterator[None]:
    """Inside, the module has `folder`'s weights. Every rank takes part. Raises EngineError where one is not in safetensors
    files."""
    module = engine.module
    if any(not parameter.requires_grad for parameter in module.parameters()):  # its frozen weights
        with lora.switched_off(module):
            yield
        return
    with ExitStack() as files:
        stored = _read_tensors(module, folder, files)
        own = OffloadedTensors(weights_of_rank(module), free=False, least=1)
        try:
            for name, parameter in module.named_parameters():
                with GatheredParameters([parameter], modifier_rank=0), torch.no_grad():
                    parameter.data.copy_(stored[name])
            yield
        finally:
            forget_gathered(engine)
            own.restore()


def weights_of_rank(module: torch.nn.Module) -> list[Tensor]:
    """List the weights of this rank: its shards under ZeRO 3."""
    return [getattr(parameter, "ds_tensor", parameter) for parameter in module.parameters()]


def forget_gathered(engine: Any) -> None:
    if engine.zero_optimization_stage() == 3:
        engine.empty_partition_cache()


@contextmanager
def synced_weights(engine: Any) -> Iterator[dict[str, torch.nn.Parameter]]:
    """Give what rollout engines are to have, by a checkpoint's names: inside, adapters are merged into frozen weights."""
    module = engine.module
    stored = stored_names(module)
    plain = lora.plain_parameters(module)
    changes = {n: p for n, p in module.named_parameters() if n.endswith(f"{lora.BASE}.weight")}
    own = OffloadedTensors(changes.values(), free=False, least=1)
    try:
        with torch.no_grad():
            for seed, (name, weight) in enumerate(changes.items()):
                merged = weight.float() + lora.change_by_adapters(module, name)
                weight.copy_(dither_to_bf16(merged, seed) if weight.dtype == torch.bfloat16 else merged)
        yield {stored.get(name, name): weight for name, weight in plain.items()}
    finally:
        own.restore()


def stored_names(model: Any) -> dict[str, str]:
    """Return parameters' names in a checkpoint, where transformers has others. Raises EngineError where one is more than
    renamed."""
    names = {}
    for name in lora.plain_parameters(model):
        stored = list(revert_weight_conversion(model, {name: torch.empty(0, device="meta")}))
        if len(stored) != 1:
            raise EngineError(
                f"{type(model).__name__}: {name} is stored as {', '.join(stored) or 'nothing'}, not one weight"
            )
        if stored[0] != name:
            names[name] = stored[0]
    return names


def _read_tensors(module: Any, folder: Path, files: ExitStack) -> dict[str, Tensor]:
    """Return a module's tensors from the files of a folder."""
    where = {}
    for path in sorted(folder.glob("*.safetensors")):
        file = files.enter_context(safe_open(path, framework="pt"))
        where.update(dict.fromkeys(file.keys(), file))
    renamed = stored_names(module)
    prefix = f"{module.base_model_prefix}."
    tensors = {}
    for name, _ in module.named_parameters():
        stored = renamed.get(name, name)
        # A checkpoint of the bare model lacks the prefix.
        key = next((k for k in (stored, stored.removeprefix(prefix)) if k in where), None)
        if key is None:
            raise EngineError(f"{folder}: no safetensors file holds {stored}, so the base cannot be scored")
        tensors[name] = where[key].get_tensor(key)
    return tensors


def save_moments(file: Path, engine: Any) -> None:
    """Save `key:parameter` entries, from rank 0; every rank takes part. Raises CheckpointError where DeepSpeed lacks a master or
    moment."""
    state: dict[str, Tensor] = {}
    first = torch.distributed.get_rank() == 0
    updates = max((int(s["step"]) for s in engine.basic_optimizer.state.values() if "step" in s), default=0)
    for name, parameter in engine.module.named_parameters():
        if not parameter.requires_grad:
            continue
        for key in (*[MASTER] * (parameter.dtype != torch.float32), *KEYS * bool(updates)):
            value = _gather_state(engine, parameter, key)
            if value is None:
                raise CheckpointError(f"{file}: DeepSpeed has no {key} of {name}")
            if first:
                state[f"{key}:{name}"] = value.detach().float().cpu().contiguous().clone()
        if updates:
            state[f"step:{name}"] = torch.tensor(float(updates))
    if first:
        save_file(state, file)


def load_moments(file: Path, engine: Any) -> None:
    """Load the optimiser's state, on every rank. Raises CheckpointError where they are incomplete or other parameters'."""
    with safe_open(file, framework="pt") as state:
        entries = dict.fromkeys(state.keys())
        steps = {int(state.get_tensor(entry)) for entry in entries if entry.startswith("step:")}
        if len(steps) > 1:
            raise CheckpointError(f"{file}: parameters with unequal numbers of updates")
        if steps:
            _create_optimiser_state(engine)
        parameters = dict(engine.module.named_parameters())
        for entry in entries:
            key, _, name = entry.partition(":")
            value = state.get_tensor(entry)
            if name not in parameters or (
                key != "step" and value.shape != getattr(parameters[name], "ds_shape", parameters[name].shape)
            ):
                raise CheckpointError(f"{file}: {entry} does not belong to this model")
            if key != "step" and hasattr(parameters[name], "ds_id"):
                _set_share(parameters[name], value, key)
            elif key == MASTER:
                safe_set_full_fp32_param(parameters[name], value)
            elif key in KEYS and parameters[name] in engine.basic_optimizer.state:
                engine.basic_optimizer.state[parameters[name]][key].copy_(value)
            elif key in KEYS:
                safe_set_full_optimizer_state(parameters[name], value.to(torch.cuda.current_device()), key)
    for known in engine.basic_optimizer.state.values():
        if steps and "step" in known:
            known["step"].fill_(float(max(steps)))


def _set_share(parameter: Any, value: Tensor, key: str) -> None:
    """Set this rank's share of a value under ZeRO 3: DeepSpeed's own setters have no room for the last rank's padding."""
    size = parameter.ds_tensor.numel()
    whole = value.new_zeros(size * torch.distributed.get_world_size())
    whole[: value.numel()] = value.flatten()
    share = whole.narrow(0, size * torch.distributed.get_rank(), size)
    if key == MASTER:
        safe_set_local_fp32_param(parameter, share)
    else:
        safe_set_local_optimizer_state(parameter, share, key)


def _create_optimiser_state(engine: Any) -> None:
    """Create Adam's state, which comes with a step: one of zero gradient and learning rate."""
    for group in engine.optimizer.param_groups:
        group["lr"] = 0.0
    ids = torch.zeros(1, 2, dtype=torch.long, device=torch.cuda.current_device())
    engine.backward(engine(ids).logits.float().sum() * 0.0)
    engine.step()


def _gather_state(engine: Any, parameter: Tensor, key: str) -> Tensor | None:
    """Return one entry of the optimiser's state, gathered from all ranks."""
    if key == MASTER:
        return safe_get_full_fp32_param(parameter)  # type: ignore[no-any-return]
    if parameter in engine.basic_optimizer.state:
        return engine.basic_optimizer.state[parameter][key]  # type: ignore[no-any-return]
    return safe_get_full_optimizer_state(parameter, key)  # type: ignore[no-any-return]
