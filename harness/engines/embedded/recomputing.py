"""Activation checkpointing: of each layer only the input is kept, and the rest made again in the backward pass (Chen et al.,
arXiv 1604.06174). transformers' own goes without keys and values of a prefix, which this engine trains over."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from harness.errors import EngineError

__all__ = ["recompute"]


def recompute(model: PreTrainedModel) -> None:
    """From now on, wherever there are gradients. Raises EngineError for a model without layers that allow it."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise EngineError(f"no layers that allow checkpointing ({model.config.model_type})")
    for layer in layers:
        layer.forward = partial(_again, layer.forward)


def _again(forward: Callable[..., Any], hidden: Tensor, *rest: Any, **given: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(hidden, *rest, **given)
    return checkpoint(forward, hidden, *rest, use_reentrant=False, preserve_rng_state=False, **given)
