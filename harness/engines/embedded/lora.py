"""LoRA (Hu et al., arXiv 2106.09685), by peft. A checkpoint has the adapters, and merged weights in fp32, as bf16 would round
small changes away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from harness.engines.embedded.plugin import Lora
from harness.errors import CheckpointError, EngineError

ADAPTERS = "lora.safetensors"
# In the names of adapters' weights, and of the frozen ones beside them; peft's name of the only set of adapters.
MARK, BASE, NAME = ".lora_", ".base_layer", "default"


def adapt(model: PreTrainedModel, lora: Lora) -> None:
    """Freeze the model and add adapters, the same in every process. Raises EngineError without peft or linear layers."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise EngineError("engine_options.lora needs peft: pip install -e '.[lora]' -c constraints.txt") from None
    own: Any = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules="all-linear")  # type: ignore[arg-type]  # alpha may be a fraction
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            inject_adapter_in_model(own, model)
        except ValueError as error:
            raise EngineError(f"no adapters can be put in: {error}") from None


def save(model: PreTrainedModel, folder: Path) -> None:
    model.save_pretrained(folder, state_dict=_merged(model))
    config: Any = type(model.config).from_pretrained(folder)
    config.dtype = torch.float32
    config.save_pretrained(folder)
    save_file({name: value.detach().cpu().contiguous() for name, value in _adapters(model).items()}, folder / ADAPTERS)


@torch.no_grad()
def load(model: PreTrainedModel, folder: Path) -> None:
    """Raises CheckpointError where the folder's adapters are not this model's."""
    try:
        found = load_file(folder / ADAPTERS)
    except (OSError, SafetensorError):
        raise CheckpointError(f"{folder}: another model than the policy's: there are no adapters") from None
    own = _adapters(model)
    if {n: v.shape for n, v in found.items()} != {n: v.shape for n, v in own.items()}:
        raise CheckpointError(f"{folder / ADAPTERS}: adapters of another model, or of another rank")
    for name, parameter in own.items():
        parameter.copy_(found[name])


def _adapters(model: PreTrainedModel) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if MARK in name}


@torch.no_grad()
def _merged(model: PreTrainedModel) -> dict[str, Tensor]:
    merged: dict[str, Tensor] = {}
    copies: dict[int, Tensor] = {}
    for name, value in model.state_dict().items():
        if MARK in name:
            continue
        plain = copies.setdefault(value.data_ptr(), value.cpu().float())
        owner, _, kind = name.rpartition(f"{BASE}.")
        if owner and kind == "weight":
            layer: Any = model.get_submodule(owner)
            change = layer.lora_B[NAME].weight.float() @ layer.lora_A[NAME].weight.float() * layer.scaling[NAME]
            plain = plain + (change.T if layer.fan_in_fan_out else change).cpu()
        merged[name.replace(f"{BASE}.", ".")] = plain
    return merged
