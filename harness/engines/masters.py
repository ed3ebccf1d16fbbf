"""fp32 weights that the optimiser moves: of a model in bf16 a copy, of which the model holds a rounding."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from harness.errors import CheckpointError

__all__ = ["Masters"]

# Key in the optimiser's file.
MASTER = "master"


class Masters:
    """Of a model's trained parameters, and AdamW over them. A bf16 model has them dithered: on average it keeps changes below
    its resolution."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.named: dict[str, nn.Parameter] = {}
        self._published: list[tuple[Tensor, nn.Parameter]] = []
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            if parameter.dtype == torch.float32:
                self.named[name] = parameter
                continue
            master = self.named[name] = nn.Parameter(parameter.detach().float())
            self._published.append((parameter.detach(), master))
            to_master = partial(_hand_over, master)
            parameter.register_post_accumulate_grad_hook(to_master)  # type: ignore[no-untyped-call]
        self.optimiser = torch.optim.AdamW(self.parameters, fused=True)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """In the model's order."""
        return list(self.named.values())

    @property
    def separate(self) -> bool:
        """Whether the model computes on copies."""
        return bool(self._published)

    @torch.no_grad()
    def step(self) -> None:
        """Take one step of AdamW, which the model sees."""
        self.optimiser.step()
        for seed, (parameter, master) in enumerate(self._published):
            parameter.copy_(dither_to_bf16(master, seed))

    def save(self, path: Path) -> None:
        """Save AdamW's `step`, `exp_avg` and `exp_avg_sq` as `key:parameter`; `master:parameter` where `separate`."""
        state = {}
        for name, parameter in self.named.items():
            values = dict(self.optimiser.state[parameter])
            if self.separate:
                values[MASTER] = parameter
            for key, value in values.items():
                state[f"{key}:{name}"] = value.detach().cpu().contiguous()
        save_file(state, path)

    @torch.no_grad()
    def load(self, path: Path) -> None:
        """Call after loading the model. Raises CheckpointError where it belongs to other parameters."""
        for entry, value in load_file(path).items():
            key, _, name = entry.partition(":")
            parameter = self.named.get(name)
            if parameter is None or value.shape not in (parameter.shape, torch.Size()):
                raise CheckpointError(f"{path}: {entry} does not belong to this model")
            if key == MASTER:
                parameter.copy_(value)
            else:
                self.optimiser.state[parameter][key] = value.to(parameter.device)


def dither_to_bf16(weights: Tensor, seed: int) -> Tensor:
    """Round to bf16 values of fp32 weights, away from zero where the part that bf16 lacks exceeds the weight's fixed threshold,
    else towards zero: so the mean of many is right (dithering, Roberts 1962)."""
    draw = torch.Generator(weights.device).manual_seed(seed)
    bits = torch.randint(1 << 16, weights.shape, generator=draw, dtype=torch.int32, device=weights.device)
    halves = bits.add_(weights.view(torch.int32)).flatten().view(torch.bfloat16)
    return halves[1::2].reshape(weights.shape)  # upper halves (little-endian)


@torch.no_grad()
def _hand_over(master: nn.Parameter, parameter: Tensor) -> None:
    assert parameter.grad is not None
    if master.grad is None:
        master.grad = parameter.grad.float()
    else:
        master.grad += parameter.grad
    parameter.grad = None
