"""What a weight sync is checked by: checksums of the tensors that the trainer has, that arrive, and that vLLM holds.

Imports neither OpenRLHF nor vLLM.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 1 << 22
"""Elements taken at a time, as each becomes an integer of eight bytes."""
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(tensor: Tensor) -> str:
    """Type, shape and a sum over all elements: of each one's bits as an integer, times an odd number for its place, modulo 2^64.
    So a single element that differs always shows. Computed on the tensor's own device."""
    words = tensor.detach().contiguous().flatten().view(_WORDS[tensor.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for start in range(0, len(words), CHUNK):
        part = words[start : start + CHUNK].long()
        places = torch.arange(start, start + len(part), device=words.device)
        total += (part * (2 * places + 1)).sum()
    return f"{tensor.dtype} {tuple(tensor.shape)} {int(total) & (1 << 64) - 1:016x}"


def differing(these: dict[str, str], those: dict[str, str]) -> list[str]:
    """Names under which one has another checksum than the other, or none."""
    return sorted(name for name in these.keys() | those.keys() if these.get(name) != those.get(name))


class Checked:
    """What vLLM's worker can say of its weights; it inherits from this beside its own class."""

    model_runner: Any
    model_config: Any

    def expect(self) -> None:
        """Note from now on what arrives; nothing has."""
        model = self.model_runner.model
        if "load_weights" not in vars(model):
            load, model.arrived = model.load_weights, {}

            def load_weights(weights: list[tuple[str, Tensor]]) -> Any:
                model.arrived |= {name: checksum(weight) for name, weight in weights}
                return load(weights)

            model.load_weights = load_weights
        model.arrived.clear()

    def arrived(self) -> dict[str, str]:
        """Checksums of the tensors that were to be loaded since, by the names of a checkpoint."""
        return dict(self.model_runner.model.arrived)

    def held(self) -> dict[str, str]:
        """Checksums of the model's parameters, in the engine's precision, by vLLM's own names."""
        dtype = self.model_config.dtype
        return {name: checksum(weight.to(dtype)) for name, weight in self.model_runner.model.named_parameters()}

    def lose(self) -> None:
        """Overwrite all parameters."""
        for weight in self.model_runner.model.parameters():
            weight.data.fill_(float("nan"))
