"""A policy's base weights in its own trainer, for as long as something is scored under them.

No second copy of the model exists: the trainer's weights go away (`Away`), those of the checkpoint folder, mapped from disk,
take their place, and afterwards the trainer's own come back, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.zero import GatheredParameters
from safetensors import safe_open
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from harness.engines.openrlhf.away import Away
from harness.errors import EngineError


@contextmanager
def base_weights(engine: Any, folder: Path) -> Iterator[None]:
    """Inside, the DeepSpeed engine's module has the weights of `folder`; every rank takes part.

    Raises EngineError where the folder does not hold each weight in safetensors files.
    """
    module = engine.module
    with ExitStack() as files:
        found = _read(module, folder, files)
        own = Away(weights(module), free=False, least=1)
        try:
            for name, parameter in module.named_parameters():
                with GatheredParameters([parameter], modifier_rank=0), torch.no_grad():
                    parameter.data.copy_(found[name])
            yield
        finally:
            forget_gathered(engine)
            own.back()


def weights(module: torch.nn.Module) -> list[Tensor]:
    """What a rank keeps of the module's weights: its shards under ZeRO 3."""
    return [getattr(parameter, "ds_tensor", parameter) for parameter in module.parameters()]


def forget_gathered(engine: Any) -> None:
    """Drop whole weights that ZeRO 3 has gathered; the next forward pass gathers them again from the shards."""
    if engine.zero_optimization_stage() == 3:
        engine.empty_partition_cache()


def stored_names(model: Any) -> dict[str, str]:
    """The names that parameters have in a checkpoint, where transformers has others: a rollout engine loads by the former.

    Raises EngineError where a parameter is more than renamed.
    """
    names = {}
    for name, _ in model.named_parameters():
        stored = list(revert_weight_conversion(model, {name: torch.empty(0, device="meta")}))
        if len(stored) != 1:
            raise EngineError(
                f"{type(model).__name__}: {name} is stored as {', '.join(stored) or 'nothing'}, not one weight"
            )
        if stored[0] != name:
            names[name] = stored[0]
    return names


def _read(module: Any, folder: Path, files: ExitStack) -> dict[str, Tensor]:
    """The folder's weights by the module's names, mapped, not loaded."""
    where = {}
    for path in sorted(folder.glob("*.safetensors")):
        file = files.enter_context(safe_open(path, framework="pt"))
        where.update(dict.fromkeys(file.keys(), file))
    renamed, prefix = stored_names(module), f"{module.base_model_prefix}."
    found = {}
    for name, _ in module.named_parameters():
        stored = renamed.get(name, name)
        # A checkpoint of the bare model lacks the prefix, as transformers knows too.
        key = next((k for k in (stored, stored.removeprefix(prefix)) if k in where), None)
        if key is None:
            raise EngineError(f"{folder}: no safetensors file holds {stored}, so the base cannot be scored")
        found[name] = where[key].get_tensor(key)
    return found
