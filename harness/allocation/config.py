"""A model folder's `config.json` before any library believes it: plain, small, and with figures that a model could have."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.reading import in_words, read_text

MAX_BYTES = 4 << 20
MAX_DEPTH = 16
LARGEST = {
    1 << 22: ("vocab_size", "vocabulary_size"),
    1 << 17: ("hidden_size", "d_model", "n_embd", "dim", "head_dim", "word_embed_proj_dim"),
    1 << 20: ("intermediate_size", "moe_intermediate_size", "n_inner", "d_ff", "ffn_dim"),
    1 << 10: ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    1 << 13: ("num_attention_heads", "num_key_value_heads", "n_head", "n_heads", "num_experts", "num_local_experts",
              "n_routed_experts", "n_shared_experts", "num_experts_per_tok"),
    1 << 27: ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length"),
}  # fmt: skip
"""What the figures of each name may be at most: several times what any published model has."""
_LIMITS = {name: limit for limit, names in LARGEST.items() for name in names}


def read_config(path: Path) -> Mapping[str, Any]:
    """What a model's ``config.json`` states. Raises UsageError, one line with the place, for what no model could have."""
    try:
        config = json.loads(read_text(path, MAX_BYTES))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read as a model's config: {in_words(error)}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as a model's config: {error}") from None
    if not isinstance(config, dict):
        raise UsageError(f"{path}: a model's config is a JSON object")
    for place, problem in _problems(config, "", MAX_DEPTH):
        raise UsageError(f"{path}: {place}: {problem}")
    return config


def _problems(value: Any, place: str, depth: int) -> Iterator[tuple[str, str]]:
    if not depth:
        yield place, f"nested deeper than {MAX_DEPTH}"
    elif isinstance(value, dict):
        for key, inner in value.items():
            where = f"{place}.{key}" if place else str(key)
            if key in _LIMITS and inner is not None and not _figure(inner, _LIMITS[key]):
                yield where, f"must be a whole number from 0 to {_LIMITS[key]:,} (got {str(inner)[:40]})"
            yield from _problems(inner, where, depth - 1)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _problems(inner, f"{place}[{i}]", depth - 1)
    elif isinstance(value, float) and not math.isfinite(value):
        yield place, f"must be a finite number (got {value})"


def _figure(value: Any, limit: int) -> bool:
    """Some architectures have a figure for each layer."""
    if isinstance(value, list):
        return all(_figure(one, limit) for one in value)
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit
