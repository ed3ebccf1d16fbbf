"""fp32 weights that the optimiser moves: of a model in bf16 a copy, which takes each gradient as soon as it is made."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from harness.errors import CheckpointError

__all__ = ["Masters"]

# Key of a separate master in the optimiser's file.
MASTER = "master"


class Masters:
    """Of what is trained of a model, and AdamW over them."""

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

    def step(self) -> None:
        """One step of AdamW, seen by the model."""
        self.optimiser.step()
        self.publish()

    def save(self, path: Path) -> None:
        """AdamW's `step`, `exp_avg` and `exp_avg_sq` as `key:parameter`; `master:parameter` where the model has only a rounded
        copy."""
        state = {
            f"{key}:{name}": value.detach().cpu().contiguous()
            for name, parameter in self.named.items()
            for key, value in [
                *self.optimiser.state[parameter].items(),
                *([(MASTER, parameter)] * self.separate),
            ]
        }
        save_file(state, path)

    @torch.no_grad()
    def load(self, path: Path) -> None:
        """Raises CheckpointError where it belongs to other parameters."""
        for entry, value in load_file(path).items():
            key, _, name = entry.partition(":")
            parameter = self.named.get(name)
            if parameter is None or value.shape not in (parameter.shape, torch.Size()):
                raise CheckpointError(f"{path}: {entry} does not belong to this model")
            if key == MASTER:
                parameter.copy_(value)
            else:
                self.optimiser.state[parameter][key] = value.to(parameter.device)
        self.publish()

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the model."""
        for parameter, master in self._published:
            parameter.copy_(master)


@torch.no_grad()
def _hand_over(master: nn.Parameter, parameter: Tensor) -> None:
    assert parameter.grad is not None
    if master.grad is None:
        master.grad = parameter.grad.float()
    else:
        master.grad += parameter.grad
    parameter.grad = None
