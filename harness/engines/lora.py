"""LoRA (Hu et al., arXiv 2106.09685), by peft. A checkpoint has the adapters, and merged weights in fp32, as bf16 would round
small changes away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from harness.engines.backend import Lora
from harness.errors import CheckpointError, EngineError

ADAPTERS = "lora.safetensors"
# In names of adapters' weights, and of frozen ones beside them; peft's name of the adapters.
MARK, BASE, NAME = ".lora_", ".base_layer", "default"


def add_adapters(model: PreTrainedModel, lora: Lora) -> None:
    """Freeze the model and add adapters, the same in every process. Raises EngineError without linear layers."""
    from peft import LoraConfig, inject_adapter_in_model

    own: Any = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules="all-linear")  # type: ignore[arg-type]  # alpha may be a fraction
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            inject_adapter_in_model(own, model)
        except ValueError as error:
            raise EngineError(f"no adapters can be put in: {error}") from None


def save_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Save a folder that any library opens: merged weights in fp32, and the adapters beside them, from which training goes on."""
    copies: dict[int, Tensor] = {}
    plain = {}
    for name, value in model.state_dict().items():
        if MARK not in name:
            whole = copies.setdefault(value.data_ptr(), value.cpu().float())
            plain[name.replace(f"{BASE}.", ".")] = (
                whole if (more := change_by_adapters(model, name)) is None else whole + more.cpu()
            )
    model.save_pretrained(folder, state_dict=plain)
    config: Any = type(model.config).from_pretrained(folder)
    config.dtype = torch.float32
    config.save_pretrained(folder)
    save_file(
        {name: value.detach().cpu().contiguous() for name, value in _find_adapters(model).items()}, folder / ADAPTERS
    )


@torch.no_grad()
def load_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Load a folder's adapters into the model. Raises CheckpointError where the folder's adapters are not this model's."""
    try:
        stored = load_file(folder / ADAPTERS)
    except (OSError, SafetensorError):
        raise CheckpointError(f"{folder}: another model than the policy's: there are no adapters") from None
    own = _find_adapters(model)
    if {n: v.shape for n, v in stored.items()} != {n: v.shape for n, v in own.items()}:
        raise CheckpointError(f"{folder / ADAPTERS}: adapters of another model, or of another rank")
    for name, parameter in own.items():
        parameter.copy_(stored[name])


def plain_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters without adapters, by the bare model's names."""
    return {n.replace(f"{BASE}.", "."): p for n, p in model.named_parameters() if MARK not in n}


@torch.no_grad()
def change_by_adapters(model: nn.Module, name: str) -> Tensor | None:
    """Return what adapters add to that frozen weight, fp32; None where it has none."""
    owner, _, kind = name.rpartition(f"{BASE}.")
    if not owner or kind != "weight":
        return None
    layer: Any = model.get_submodule(owner)
    product: Tensor = layer.lora_B[NAME].weight.float() @ layer.lora_A[NAME].weight.float() * layer.scaling[NAME]
    return product.T if layer.fan_in_fan_out else product


@contextmanager
def switched_off(model: nn.Module) -> Iterator[None]:
    """Inside, the model computes as it did before any update."""
    scales: list[Any] = [module.scaling for module in model.modules() if hasattr(module, "lora_A")]
    before = [scale[NAME] for scale in scales]
    for scale in scales:
        scale[NAME] = 0.0
    try:
        yield
    finally:
        for scale, own in zip(scales, before, strict=True):
            scale[NAME] = own


def _find_adapters(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the adapters' parameters, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if MARK in name}
