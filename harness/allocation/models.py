"""Model shapes: what the memory and work formulas need to know of an architecture, read without torch.

A shape comes from a folder's ``config.json`` or, by name, from the shipped table ``models.yaml``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from harness.errors import UsageError


@dataclass(frozen=True, slots=True)
class Family:
    """How an architecture's layers count.

    gated: the MLP has three matrices (SwiGLU), else two. norm_vectors: vectors per normalisation (LayerNorm has a bias).
    qkv_bias, bias: biases on the query, key and value projections; on every linear layer. qk_norm: per-head norms of
    queries and keys. positions: a learned position table. tied: what a config.json without the field means.
    """

    gated: bool = True
    norm_vectors: int = 1
    qkv_bias: bool = False
    bias: bool = False
    qk_norm: bool = False
    positions: bool = False
    tied: bool = False


FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_norm=True),
    "smollm3": Family(tied=True),
    "gpt_neox": Family(gated=False, norm_vectors=2, qkv_bias=True, bias=True),
    "gpt2": Family(gated=False, norm_vectors=2, qkv_bias=True, bias=True, positions=True, tied=True),
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Dimensions of a dense decoder-only transformer."""

    name: str
    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    positions: int = 0

    @property
    def layer_parameters(self) -> int:
        """Parameters of one transformer layer, norms and biases included."""
        f, h = FAMILIES[self.family], self.hidden
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        qkv = queries + 2 * keys
        attention = h * qkv + queries * h + (qkv if f.qkv_bias else 0) + (h if f.bias else 0)
        mlp = (3 if f.gated else 2) * h * self.intermediate + (self.intermediate + h if f.bias else 0)
        norms = 2 * f.norm_vectors * h + (2 * self.head_dim if f.qk_norm else 0)
        return attention + mlp + norms

    @property
    def parameters(self) -> int:
        """All parameters; a tied head counts once."""
        tables = self.vocab * self.hidden * (1 if self.tied else 2) + self.positions * self.hidden
        return tables + self.layers * self.layer_parameters + FAMILIES[self.family].norm_vectors * self.hidden

    @property
    def matmul_parameters(self) -> int:
        """Parameters that take part in a matrix product per token: the head counts, embedding look-ups do not."""
        return self.vocab * self.hidden + self.layers * self.layer_parameters

    def kv_bytes_per_token(self, bytes_per_value: int = 2) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_per_value


def _first(config: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        if config.get(name) is not None:
            return config[name]
    raise KeyError(names[0])


def shape_from_config(name: str, config: Mapping[str, Any]) -> ModelShape:
    """The shape that a Hugging Face ``config.json`` states.

    Raises
    ------
    UsageError
        The architecture is not one of `FAMILIES`, or a dimension is missing.
    """
    kind = str(config.get("model_type", "?"))
    if kind not in FAMILIES:
        raise UsageError(f"{name}: no memory formula for architecture `{kind}` (known: {', '.join(FAMILIES)})")
    family = FAMILIES[kind]
    try:
        hidden = int(_first(config, "hidden_size", "n_embd"))
        heads = int(_first(config, "num_attention_heads", "n_head"))
        intermediate = config.get("n_inner") or 4 * hidden if kind == "gpt2" else config["intermediate_size"]
        return ModelShape(
            name=name,
            family=kind,
            layers=int(_first(config, "num_hidden_layers", "n_layer")),
            hidden=hidden,
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            intermediate=int(intermediate),
            vocab=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", family.tied)),
            positions=int(_first(config, "n_positions", "max_position_embeddings")) if family.positions else 0,
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as problem:
        raise UsageError(f"{name}: config.json lacks a usable {problem}") from problem


@cache
def shipped() -> Mapping[str, ModelShape]:
    """The table ``models.yaml``, by short name."""
    text = resources.files(__package__).joinpath("models.yaml").read_text(encoding="utf-8")
    rows = yaml.safe_load(text)
    return {name: ModelShape(name=name, **row["shape"]) for row in rows for name in row["names"]}


def load_shape(model: str) -> ModelShape:
    """The shape of a model folder (with a ``config.json``) or of a named model (``Qwen/Qwen3-4B-Base``; the owner is ignored).

    Raises
    ------
    UsageError
        Neither a folder with a readable config.json nor a name in the table.
    """
    path = Path(model) / "config.json"
    if path.is_file():
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise UsageError(f"{path}: cannot be read as a model configuration: {problem}") from problem
        if not isinstance(config, dict):
            raise UsageError(f"{path}: a model configuration is a JSON object")
        return shape_from_config(model, config)
    short = model.rstrip("/").rsplit("/", 1)[-1]
    if short in shipped():
        return shipped()[short]
    raise UsageError(f"{model}: no folder with a config.json, and not in the table of known models")
