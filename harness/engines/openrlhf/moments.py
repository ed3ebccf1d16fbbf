"""The optimiser's state as one safetensors file, whole parameters by name: independent of ZeRO stage and number of ranks,
and the embedded engine's format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
)
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from harness.errors import CheckpointError

KEYS = ("exp_avg", "exp_avg_sq")
MASTER = "master"
"""fp32 weights, where the model itself is in half precision."""


def save(file: Path, engine: Any) -> None:
    """Write `key:parameter` entries from rank 0, which alone keeps them; every rank takes part. Nothing but weights before the
    first update. Raises CheckpointError where DeepSpeed does not have a master or moment."""
    state: dict[str, Tensor] = {}
    updates, first = _updates(engine), torch.distributed.get_rank() == 0
    for name, parameter in engine.module.named_parameters():
        for key in (*[MASTER] * (parameter.dtype != torch.float32), *KEYS * bool(updates)):
            value = _full(engine, parameter, key)
            if value is None:
                raise CheckpointError(f"{file}: DeepSpeed has no {key} of {name}")
            if first:
                state[f"{key}:{name}"] = value.detach().float().cpu().contiguous().clone()
        if updates:
            state[f"step:{name}"] = torch.tensor(float(updates))
    if first:
        save_file(state, file)


def load(file: Path, engine: Any) -> None:
    """Put a saved state back on every rank, one tensor after another. Raises CheckpointError where it belongs to other parameters,
    or lacks a moment or master of one."""
    with safe_open(file, framework="pt") as state:
        entries = dict.fromkeys(state.keys())
        steps = {int(state.get_tensor(entry)) for entry in entries if entry.startswith("step:")}
        if len(steps) > 1:
            raise CheckpointError(f"{file}: parameters with unequal numbers of updates")
        if steps:
            _create(engine)
        parameters = dict(engine.module.named_parameters())
        for entry in entries:
            key, _, name = entry.partition(":")
            value = state.get_tensor(entry)
            if name not in parameters or (key != "step" and value.shape != _shape(parameters[name])):
                raise CheckpointError(f"{file}: {entry} does not belong to this model")
            if key == MASTER:
                safe_set_full_fp32_param(parameters[name], value)
            elif key in KEYS:
                _set_moment(engine, parameters[name], key, value)
    for known in engine.basic_optimizer.state.values():
        if steps and "step" in known:
            known["step"].fill_(float(max(steps)))


def _updates(engine: Any) -> int:
    """Optimiser updates so far, from the state itself."""
    counts = [int(known["step"]) for known in engine.basic_optimizer.state.values() if "step" in known]
    return max(counts, default=0)


def _create(engine: Any) -> None:
    """Adam's state comes into being with its first step: one of zero gradient and zero learning rate."""
    for group in engine.optimizer.param_groups:
        group["lr"] = 0.0
    ids = torch.zeros(1, 2, dtype=torch.long, device=torch.cuda.current_device())
    engine.backward(engine(ids).logits.float().sum() * 0.0)
    engine.step()


def _full(engine: Any, parameter: Tensor, key: str) -> Tensor | None:
    """The whole master or moment on every rank, None where DeepSpeed has none."""
    if key == MASTER:
        return safe_get_full_fp32_param(parameter)  # type: ignore[no-any-return]
    if parameter in engine.basic_optimizer.state:
        return engine.basic_optimizer.state[parameter][key]  # type: ignore[no-any-return]
    return safe_get_full_optimizer_state(parameter, key)  # type: ignore[no-any-return]


def _set_moment(engine: Any, parameter: Tensor, key: str, value: Tensor) -> None:
    if parameter in engine.basic_optimizer.state:
        engine.basic_optimizer.state[parameter][key].copy_(value)
    else:
        safe_set_full_optimizer_state(parameter, value.to(torch.cuda.current_device()), key)


def _shape(parameter: Any) -> torch.Size:
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))
