"""Linear layers whose weights lie as the CPU's bf16 kernels want them, for many passes over the same weights.

torch lays a bf16 weight out anew in each product. That is a third of a small batch's forward pass, and sampling makes one for every
token. The products are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from harness.allocation.shapes import cpu_bf16

_onednn = torch.ops.mkldnn


@contextmanager
def packed(model: nn.Module, rows: int) -> Iterator[None]:
    """Within it, linear layers in bf16 on a CPU use copies of their weights laid out for inputs of about `rows` rows; gradients
    and changes of the weights do not reach the copies."""
    layers = [layer for layer in model.modules() if type(layer) is nn.Linear and _gains(layer.weight)]
    for layer in layers:
        weight = _onednn._reorder_linear_weight(layer.weight.detach(), rows)
        layer.forward = partial(_product, weight, layer.bias)  # type: ignore[method-assign]  # and taken off again
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _gains(weight: Tensor) -> bool:
    on_cpu = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
    return on_cpu and bool(cpu_bf16())


def _product(weight: Tensor, bias: Tensor | None, inputs: Tensor) -> Tensor:
    found: Tensor = _onednn._linear_pointwise(inputs, weight, bias, "none", [], "")
    return found
