"""Additive masks over keys, for full and sliding attention. Queries are the last keys. Finite numbers, so that a row that may
see nothing stays a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from transformers import PretrainedConfig

from harness.errors import EngineError

FULL, SLIDING = "full_attention", "sliding_attention"
Masks = Tensor | Mapping[str, Tensor]  # as transformers takes them: one, or one for each kind of layer


def kinds_of_layers(config: PretrainedConfig) -> dict[str, int | None]:
    """Window in tokens, None for all; under "" where the config does not name kinds. Raises EngineError for others."""
    window = getattr(config, "sliding_window", None)
    named = set(getattr(config, "layer_types", None) or ())
    if not named:
        return {"": window}
    if others := sorted(named - {FULL, SLIDING}):
        raise EngineError(f"{', '.join(others)} layers; the engine runs full and sliding attention")
    if SLIDING in named and not window:
        raise EngineError("sliding_attention layers without a sliding_window")
    return {FULL: None, SLIDING: window} if SLIDING in named else {FULL: None}


def by_layer(mask: Float[Tensor, "B 1 Q K"], kinds: Mapping[str, int | None]) -> Masks:
    """`mask` of full attention, as the model's layers take it."""
    if len(kinds) == 1:
        return windowed(mask, *kinds.values())
    return {kind: windowed(mask, window) for kind, window in kinds.items()}


def windowed(mask: Float[Tensor, "B 1 Q K"], window: int | None) -> Float[Tensor, "B 1 Q K"]:
    """With the keys hidden that lie `window` or more before the query."""
    queries, keys = mask.shape[2:]
    if window is None or keys <= window:
        return mask
    past = mask.new_full((queries, keys), torch.finfo(mask.dtype).min).tril(keys - queries - window)
    return torch.minimum(mask, past)


def left_pad(
    prompts: Sequence[Sequence[int]], device: torch.device, dtype: torch.dtype
) -> tuple[Int64[Tensor, "P L"], Float[Tensor, "P L"]]:
    """Prompt ids, and 0 where there is a token, the lowest number of `dtype` elsewhere."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], device=device)
    hidden = torch.tensor([[True] * (width - len(p)) + [False] * len(p) for p in prompts], device=device)
    return ids, hidden.to(dtype) * torch.finfo(dtype).min


def positions(padding: Float[Tensor, "P L"]) -> Int64[Tensor, "P L"]:
    return ((padding == 0).cumsum(1) - 1).clamp(min=0)


def causal(padding: Float[Tensor, "P L"]) -> Float[Tensor, "P 1 L L"]:
    return torch.minimum(_look_ahead(padding.shape[1], padding), padding[:, None, None, :])


def after(padding: Float[Tensor, "B L"], width: int) -> Float[Tensor, "B 1 W L+W"]:
    rows = padding.shape[0]
    return torch.cat(
        [
            padding[:, None, None, :].expand(rows, 1, width, -1),
            _look_ahead(width, padding).expand(rows, 1, width, width),
        ],
        dim=3,
    )


def _look_ahead(width: int, like: Tensor) -> Float[Tensor, "W W"]:
    return like.new_full((width, width), torch.finfo(like.dtype).min).triu(1)
