"""Attention of half-precision models on a CPU: queries that share keys are multiplied with them together, and nothing is copied.

torch's kernel for the CPU wants the shared keys repeated, and its backward pass takes half of a small model's. Of one query to a
row, as sampling has them, it is the faster. Scores are kept for the backward pass, so longer sequences go to that kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from harness.allocation.chunks import LONGEST

GROUPED = "grouped"


def grouped(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """(B, H, Q, D) queries over (B, H / n, K, D) keys and values; the mask is added to the scores. softcap: bounds these first."""
    batch, heads, queries, width = query.shape
    shared, keys = key.shape[1:3]
    together = query.reshape(batch, shared, heads // shared * queries, width)
    if softcap is None and queries == 1 and not torch.is_grad_enabled():
        mixed = scaled_dot_product_attention(together, key, value, attention_mask, scale=scaling)
        return mixed.view(batch, 1, heads, width), None
    if softcap is None and (attention_mask is None or keys > LONGEST):
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    scores = (together @ key.transpose(2, 3)).mul(width**-0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if attention_mask is not None:
        scores = scores.view(batch, heads, queries, keys) + attention_mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    mixed = weights.view(batch, shared, -1, keys) @ value
    return mixed.view(batch, heads, queries, -1).transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(GROUPED, grouped)
ALL_MASK_ATTENTION_FUNCTIONS.register(GROUPED, eager_mask)
