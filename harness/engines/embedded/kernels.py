"""Layers as this engine runs them: masks, attention, packed weights, checkpointing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import PretrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from harness.allocation.shapes import cpu_bf16
from harness.engines.embedded.sizes import LONGEST
from harness.errors import EngineError

GROUPED = "grouped"
_onednn = torch.ops.mkldnn


def attend_in_groups(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend from (B, H, Q, D) queries to (B, H / n, K, D) keys and (B, H / n, K, V) values. Longer sequences go to torch's
    kernel, slower on a CPU, which keeps no scores for the backward pass. softcap: bounds the scores."""
    batch, heads, queries, width = query.shape
    shared, keys = key.shape[1:3]
    together = query.reshape(batch, shared, heads // shared * queries, width)  # (B, H / n, n Q, D)
    if softcap is None and queries == 1 and not torch.is_grad_enabled():
        mixed = scaled_dot_product_attention(together, key, value, attention_mask, scale=scaling)
        return mixed.view(batch, 1, heads, -1), None
    if softcap is None and (attention_mask is None or keys > LONGEST):
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    factor = width**-0.5 if scaling is None else scaling
    scores = (together @ key.transpose(2, 3)).mul(factor)  # (B, H / n, n Q, K)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if attention_mask is not None:
        scores = scores.view(batch, heads, queries, keys) + attention_mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    mixed = weights.view(batch, shared, -1, keys) @ value  # (B, H / n, n Q, V)
    return mixed.view(batch, heads, queries, -1).transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(GROUPED, attend_in_groups)
ALL_MASK_ATTENTION_FUNCTIONS.register(GROUPED, eager_mask)


@contextmanager
def with_packed_weights(model: nn.Module, rows: int) -> Iterator[None]:
    """Inside, bf16 linear layers on a CPU use weights laid out for about `rows` rows; results are the same to the bit."""
    layers = [layer for layer in model.modules() if type(layer) is nn.Linear and _gains_by_packing(layer.weight)]
    for layer in layers:
        weight = _onednn._reorder_linear_weight(layer.weight.detach(), rows)
        layer.forward = partial(_multiply_packed, weight, layer.bias)  # type: ignore[method-assign]  # and taken off again
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _gains_by_packing(weight: Tensor) -> bool:
    """Whether this CPU multiplies a layer faster with its weights laid out anew."""
    return weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and bool(cpu_bf16())


def _multiply_packed(weight: Tensor, bias: Tensor | None, inputs: Tensor) -> Tensor:
    """Return a linear layer's outputs, from weights that were laid out anew."""
    return _onednn._linear_pointwise(inputs, weight, bias, "none", [], "")  # type: ignore[no-any-return]


def install_recomputation(model: PreTrainedModel) -> None:
    """Install checkpointing (Chen et al., arXiv 1604.06174) that keeps a prefix's keys and values, which transformers' own drops.
    Raises EngineError where no layers allow it."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise EngineError(f"no layers that allow checkpointing ({model.config.model_type})")
    for layer in layers:
        layer.forward = partial(_run_checkpointed, layer.forward)


def _run_checkpointed(forward: Callable[..., Any], hidden: Tensor, *rest: Any, **given: Any) -> Any:
    """Return a layer that keeps its inputs alone and is computed again in the backward pass."""
    if not torch.is_grad_enabled():
        return forward(hidden, *rest, **given)
    return checkpoint(forward, hidden, *rest, use_reentrant=False, preserve_rng_state=False, **given)


# Additive masks over keys, of which the queries are the last; finite, so that no row becomes NaN -----

FULL, SLIDING = "full_attention", "sliding_attention"
Masks = Tensor | Mapping[str, Tensor]  # one, or one for each kind of layer


def kinds_of_layers(config: PretrainedConfig) -> dict[str, int | None]:
    """Return the window in tokens of each kind of layer, None for all; "" where the config names no kinds. Raises EngineError for
    others."""
    config = config.get_text_config()
    window = getattr(config, "sliding_window", None)
    named = set(getattr(config, "layer_types", None) or ())
    if not named:
        return {"": window if hasattr(type(config), "sliding_window") else None}
    others = sorted(named - {FULL, SLIDING})
    if others:
        raise EngineError(f"{', '.join(others)} layers; the engine runs full and sliding attention")
    if SLIDING in named and not window:
        raise EngineError("sliding_attention layers without a sliding_window")
    return {FULL: None, SLIDING: window} if SLIDING in named else {FULL: None}


def by_layer(mask: Float[Tensor, "B 1 Q K"], kinds: Mapping[str, int | None]) -> Masks:
    """Return the mask as transformers takes it: one where all layers are alike, else one for each kind, by its window."""
    if len(kinds) == 1:
        return hide_beyond_window(mask, *kinds.values())
    return {kind: hide_beyond_window(mask, window) for kind, window in kinds.items()}


def hide_beyond_window(mask: Float[Tensor, "B 1 Q K"], window: int | None) -> Float[Tensor, "B 1 Q K"]:
    """Hide keys that lie `window` or more before the query."""
    queries, keys = mask.shape[2:]
    if window is None or keys <= window:
        return mask
    past = mask.new_full((queries, keys), torch.finfo(mask.dtype).min).tril(keys - queries - window)
    return torch.minimum(mask, past)


def left_pad(
    prompts: Sequence[Sequence[int]], device: torch.device, dtype: torch.dtype
) -> tuple[Int64[Tensor, "P L"], Float[Tensor, "P L"]]:
    """Return prompt ids, and 0 at tokens, the lowest number of `dtype` elsewhere."""
    width = max(map(len, prompts))
    padded: list[list[int]] = []
    is_padding: list[list[bool]] = []
    for prompt in prompts:
        before = width - len(prompt)
        padded.append([0] * before + list(prompt))
        is_padding.append([True] * before + [False] * len(prompt))
    ids = torch.tensor(padded, device=device)  # (P, L)
    hidden = torch.tensor(is_padding, device=device)  # (P, L)
    return ids, hidden.to(dtype) * torch.finfo(dtype).min


def positions_of(padding: Float[Tensor, "P L"]) -> Int64[Tensor, "P L"]:
    """Return each token's place in its prompt, from 0; 0 at padding."""
    return ((padding == 0).cumsum(1) - 1).clamp(min=0)


def causal_mask(padding: Float[Tensor, "P L"]) -> Float[Tensor, "P 1 L L"]:
    """Return additive masks for prompts: what came before, but padding."""
    return torch.minimum(_look_ahead(padding.shape[1], padding), padding[:, None, None, :])


def mask_behind_prefix(padding: Float[Tensor, "B L"], width: int) -> Float[Tensor, "B 1 W L+W"]:
    """Return additive masks for answers behind their prompts: all of the prompt but its padding, and of the answer what came
    before."""
    rows = padding.shape[0]
    of_prompt = padding[:, None, None, :].expand(rows, 1, width, -1)  # (B, 1, W, L)
    of_answer = _look_ahead(width, padding).expand(rows, 1, width, width)  # (B, 1, W, W)
    return torch.cat([of_prompt, of_answer], dim=3)


def _look_ahead(width: int, like: Tensor) -> Float[Tensor, "W W"]:
    """Return an additive mask that hides what comes later."""
    return like.new_full((width, width), torch.finfo(like.dtype).min).triu(1)
