"""Decoding layers of the engine's own: one new token for each row, over the kept keys and values of the earlier ones.

Sampling calls a model once for every token. A call of transformers' layers passes through some hundred Python functions that have
nothing to do for one token a row: wrappers that fill in settings, modules that compute rotary tables anew, copies of all keys
where several queries share a head. Here a step is plain functions over the model's own weights. They do the same operations on
the same numbers in the same order, so that logits are the same to the bit.

On an EPYC of 2022, 64 and 128 answers at once: 1.4 and 1.3 times as many tokens a CPU-second from a micro Llama, 1.6 and 1.4 from
a Qwen 3, 1.15 from a GPT-NeoX, 1.1 from a GPT-2, whose products are larger; 1.0 to 1.1 from 1,024 answers. The rest of the time
is attention's kernel, products, and choosing tokens.

Only architectures that are written out below are decoded here, and only with settings that are named here (`decoder_of`). When a
model is opened, a step is computed both ways (`agrees_with_model`). Every other model, and everything but decoding, is
transformers'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import (
    DynamicCache,
    Gemma3ForCausalLM,
    GPT2LMHeadModel,
    GPTNeoXForCausalLM,
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from harness.engines.embedded.kernels import (
    GROUPED,
    Masks,
    attend_in_groups,
    by_layer,
    causal_mask,
    kinds_of_layers,
    positions_of,
)

FIXED_ANGLES = ("default", "linear", "llama3")
"""Kinds of rotary embeddings whose angles follow from the position alone, not from the length that a sequence has reached."""

ALLOWED = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Differences of logits by rounding, as a share of the largest."""
_TRIED = torch.arange(1, 13).view(2, 6)
"""Token ids on which both ways are compared."""


class Cache(Protocol):
    """Keys and values of all layers, as `sampling.KeyValues` keeps them."""

    def update(self, keys: Tensor, values: Tensor, layer: int, /) -> tuple[Tensor, Tensor]:
        """Append (B, S, 1, D) and return all, (B, S, K, D)."""


Decode = Callable[[Int64[Tensor, "B"], Int64[Tensor, "B"], Masks, Cache], Float[Tensor, "B V"]]
"""Takes each row's token and its position, masks over the keys with the new one, and the cache, to which it appends. Returns
logits."""
Map = Callable[[Tensor], Tensor]


def decoder_of(model: PreTrainedModel, capacity: int) -> Decode | None:
    """Return the model's decoding step for positions below `capacity`, over its weights as they are now; None where transformers
    is to decode."""
    build = _BUILDERS.get(type(model))
    if build is None or model.device.type != "cpu" or model.dtype not in ALLOWED:
        return None
    config = model.config
    if config._attn_implementation not in ("sdpa", GROUPED):
        return None
    if getattr(config, "attn_logit_softcapping", None) or getattr(config, "final_logit_softcapping", None):
        return None
    if not all(table.get("rope_type") in FIXED_ANGLES for table in _rotary_settings(config)):
        return None
    return build(model, capacity)


@torch.inference_mode()
def agrees_with_model(model: PreTrainedModel) -> bool:
    """Whether `decoder_of` has a step for the model whose logits are transformers', but for rounding.

    This guards against a version of transformers whose layers compute something else than those that were written out here.
    """
    decode = decoder_of(model, capacity=_TRIED.shape[1])
    if decode is None:
        return False
    ids = _TRIED % model.config.vocab_size
    padding = torch.zeros(ids.shape, dtype=model.dtype)
    padding[0, 0] = torch.finfo(model.dtype).min
    kinds = kinds_of_layers(model.config)
    position = positions_of(padding)
    begun = by_layer(causal_mask(padding[:, :-1]), kinds)
    masks = by_layer(padding[:, None, None], kinds)

    def begin() -> DynamicCache:
        cache = DynamicCache()
        model(
            input_ids=ids[:, :-1],
            attention_mask=begun,
            position_ids=position[:, :-1],
            past_key_values=cache,
            use_cache=True,
        )
        return cache

    own = decode(ids[:, -1], position[:, -1], masks, begin())
    theirs = decode_by_transformers(model, ids[:, -1], position[:, -1], masks, begin())
    return float((own - theirs).abs().max()) <= ALLOWED[model.dtype] * float(theirs.abs().max())


def decode_by_transformers(
    model: PreTrainedModel, token: Int64[Tensor, "B"], position: Int64[Tensor, "B"], masks: Masks, cache: Cache
) -> Float[Tensor, "B V"]:
    """Make a decoding step of any architecture (`Decode`)."""
    made = model(
        input_ids=token[:, None],
        attention_mask=masks,
        position_ids=position[:, None],
        past_key_values=cache,
        use_cache=True,
    )
    logits: Tensor = made.logits[:, -1]
    return logits


def _rotary_settings(config: Any) -> Sequence[dict[str, Any]]:
    """Return the settings of each of the model's rotary tables; none for a model with learnt positions."""
    settings = getattr(config, "rope_parameters", None)
    if settings is None:
        return []
    if "rope_type" in settings:
        return [settings]
    return [settings[kind] for kind in set(config.layer_types)]


# What the architectures share ---------------------------------------------------------------------------------------------


def _linear_map_of(module: nn.Module) -> Map:
    """Return a linear layer as a function. A module of another class, as adapters are, is called as it is."""
    if type(module) is not nn.Linear or "forward" in vars(module):
        return module
    return partial(linear, weight=module.weight, bias=module.bias)


def _norm_map_of(module: Any) -> Map:
    """Return RMSNorm (Zhang and Sennrich, arXiv 1910.07467), in fp32 without the module's conversions; another precision by the
    module."""
    if module.weight.dtype != torch.float32:
        by_itself: Map = module
        return by_itself
    if hasattr(module, "variance_epsilon"):
        return partial(_normalise_fp32, module.weight, module.variance_epsilon)
    return partial(_normalise_fp32, 1.0 + module.weight, module.eps)  # Gemma keeps weights less 1


def _normalise_fp32(weight: Float[Tensor, "D"], eps: float, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
    scale = hidden.pow(2).mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (hidden * scale).mul_(weight)


class Angles(NamedTuple):
    """Each row's angles of rotary position embeddings (Su et al., arXiv 2104.09864).

    The sine's first half has the other sign. So halves are exchanged without negating one, as transformers does; bits are the
    same.
    """

    cosine: Float[Tensor, "B 1 D"]
    sine: Float[Tensor, "B 1 D"]

    def rotate(self, heads: Float[Tensor, "B H D"]) -> Float[Tensor, "B H D"]:
        turned = torch.roll(heads, heads.shape[-1] // 2, dims=-1)
        return (heads * self.cosine).add_(turned.mul_(self.sine))


class Rotary:
    """The angles of positions 0, 1, ..., computed once by the model's own module. kind: which of its tables, if it has
    several."""

    def __init__(self, module: nn.Module, dtype: torch.dtype, capacity: int, **kind: str) -> None:
        cosine, sine = module(torch.empty(0, dtype=dtype), torch.arange(capacity)[None], **kind)
        half = sine.shape[-1] // 2
        self.width = sine.shape[-1]
        self._cosine = cosine[0]
        self._sine = torch.cat([-sine[0, :, :half], sine[0, :, half:]], dim=1)

    def at(self, position: Int64[Tensor, "B"]) -> Angles:
        return Angles(self._cosine[position][:, None], self._sine[position][:, None])


def _attend_to_all(
    module: Any,
    query: Float[Tensor, "B H D"],
    keys: Float[Tensor, "B S K D"],
    values: Float[Tensor, "B S K D"],
    mask: Float[Tensor, "B 1 1 K"],
) -> Float[Tensor, "B E"]:
    """Attend from one query a row and head to all keys. Heads that share keys read them where they lie, as rows of a batch of B *
    S."""
    rows, heads, width = query.shape
    if module.config._attn_implementation == GROUPED:
        mixed, _ = attend_in_groups(module, query[:, :, None], keys, values, mask, scaling=module.scaling)
        return mixed.view(rows, -1)
    shared = keys.shape[1]
    query = query.reshape(rows * shared, heads // shared, 1, width)
    keys = keys.flatten(0, 1)[:, None].expand(-1, heads // shared, -1, -1)
    values = values.flatten(0, 1)[:, None].expand(-1, heads // shared, -1, -1)
    mask = mask.expand(-1, shared, -1, -1).reshape(rows * shared, 1, 1, -1)
    return scaled_dot_product_attention(query, keys, values, mask, scale=module.scaling).reshape(rows, -1)


# The architectures --------------------------------------------------------------------------------------------------------


def _llama_decoder(model: Any, capacity: int) -> Decode:
    """Make the step of Llama, Mistral, Qwen 2, Qwen 3 and Gemma 3: each layer has attention, then a gated MLP."""
    base = model.model
    layers = [GatedLayer(layer, number) for number, layer in enumerate(base.layers)]
    several = isinstance(model, Gemma3ForCausalLM)  # a table for each kind of layer
    tables = {}
    for kind in {layer.kind for layer in layers}:
        options = {"layer_type": kind} if several else {}
        tables[kind] = Rotary(base.rotary_emb, model.dtype, capacity, **options)
    final = _norm_map_of(base.norm)
    head = _linear_map_of(model.lm_head)

    def decode(
        token: Int64[Tensor, "B"], position: Int64[Tensor, "B"], masks: Masks, cache: Cache
    ) -> Float[Tensor, "B V"]:
        hidden = base.embed_tokens(token)
        angles = {kind: table.at(position) for kind, table in tables.items()}
        for layer in layers:
            hidden = layer.run(hidden, angles[layer.kind], _mask_for(masks, layer.kind), cache)
        return head(final(hidden))

    return decode


def _mask_for(masks: Masks, kind: str) -> Float[Tensor, "B 1 1 K"]:
    """Return the mask of a kind of layer."""
    return masks if isinstance(masks, Tensor) else masks[kind]


class GatedLayer:
    """Attention with rotary embeddings, then a gated MLP (Shazeer, arXiv 2002.05202), each on a normalised input. Gemma
    normalises what they give, too."""

    def __init__(self, layer: Any, number: int) -> None:
        attention = layer.self_attn
        mlp = layer.mlp
        self._number = number
        self._attention = attention
        self.kind: str = getattr(attention, "layer_type", None) or ""
        self._query = _linear_map_of(attention.q_proj)
        self._key = _linear_map_of(attention.k_proj)
        self._value = _linear_map_of(attention.v_proj)
        self._out = _linear_map_of(attention.o_proj)
        self._norms: tuple[Map, Map] | None = None
        if hasattr(attention, "q_norm"):
            self._norms = (_norm_map_of(attention.q_norm), _norm_map_of(attention.k_norm))
        self._gate = _linear_map_of(mlp.gate_proj)
        self._up = _linear_map_of(mlp.up_proj)
        self._down = _linear_map_of(mlp.down_proj)
        self._activate = mlp.act_fn
        self._before_attention = _norm_map_of(layer.input_layernorm)
        normalised_after = hasattr(layer, "pre_feedforward_layernorm")
        if normalised_after:
            self._before_mlp = _norm_map_of(layer.pre_feedforward_layernorm)
            self._after_attention: Map | None = _norm_map_of(layer.post_attention_layernorm)
            self._after_mlp: Map | None = _norm_map_of(layer.post_feedforward_layernorm)
        else:
            self._before_mlp = _norm_map_of(layer.post_attention_layernorm)
            self._after_attention = self._after_mlp = None

    def run(
        self, hidden: Float[Tensor, "B D"], angles: Angles, mask: Float[Tensor, "B 1 1 K"], cache: Cache
    ) -> Float[Tensor, "B D"]:
        """Take hidden states through one layer, at one position of each row."""
        mixed = self._attend(self._before_attention(hidden), angles, mask, cache)
        if self._after_attention is not None:
            mixed = self._after_attention(mixed)
        hidden = hidden + mixed
        given = self._before_mlp(hidden)
        made = self._down(self._activate(self._gate(given)) * self._up(given))
        if self._after_mlp is not None:
            made = self._after_mlp(made)
        return hidden + made

    def _attend(
        self, given: Float[Tensor, "B D"], angles: Angles, mask: Float[Tensor, "B 1 1 K"], cache: Cache
    ) -> Float[Tensor, "B D"]:
        """Attend from each row's new token to all before it, whose keys and values the cache holds."""
        rows = len(given)
        width = self._attention.head_dim
        query = self._query(given).view(rows, -1, width)
        key = self._key(given).view(rows, -1, width)
        value = self._value(given).view(rows, -1, 1, width)
        if self._norms is not None:
            query = self._norms[0](query)
            key = self._norms[1](key)
        heads = query.shape[1]
        rotated = angles.rotate(torch.cat([query, key], dim=1))  # in one go
        keys, values = cache.update(rotated[:, heads:, None], value, self._number)
        return self._out(_attend_to_all(self._attention, rotated[:, :heads], keys, values, mask))


def _neox_decoder(model: Any, capacity: int) -> Decode:
    """Make the step of GPT-NeoX and Pythia, whose heads may be rotated in part, and whose attention and MLP may both read a
    layer's input."""
    base = model.gpt_neox
    rotary = Rotary(base.rotary_emb, model.dtype, capacity)
    parallel = model.config.use_parallel_residual
    head = _linear_map_of(model.lm_head)

    def decode(
        token: Int64[Tensor, "B"], position: Int64[Tensor, "B"], masks: Masks, cache: Cache
    ) -> Float[Tensor, "B V"]:
        hidden = base.embed_in(token)
        angles = rotary.at(position)
        for number, layer in enumerate(base.layers):
            mixed = attend(layer.attention, layer.input_layernorm(hidden), angles, masks, cache, number)
            if parallel:
                hidden = layer.mlp(layer.post_attention_layernorm(hidden)) + mixed + hidden
            else:
                mixed = mixed + hidden
                hidden = layer.mlp(layer.post_attention_layernorm(mixed)) + mixed
        return head(base.final_layer_norm(hidden))

    def attend(
        module: Any, given: Float[Tensor, "B D"], angles: Angles, masks: Any, cache: Cache, number: int
    ) -> Float[Tensor, "B D"]:
        rows = len(given)
        width = module.head_size
        joined = module.query_key_value(given).view(rows, -1, 3, width)  # of each head its query, key and value
        both = joined[:, :, :2, : rotary.width].flatten(1, 2)
        joined[:, :, :2, : rotary.width] = angles.rotate(both).view(rows, -1, 2, rotary.width)
        query, key, value = joined.unbind(2)
        keys, values = cache.update(key[:, :, None], value[:, :, None], number)
        mixed: Tensor = module.dense(_attend_to_all(module, query, keys, values, masks))
        return mixed

    return decode


def _gpt2_decoder(model: Any, capacity: int) -> Decode:
    """Make the step of GPT-2, with learnt positions."""
    base = model.transformer
    head = _linear_map_of(model.lm_head)

    def decode(
        token: Int64[Tensor, "B"], position: Int64[Tensor, "B"], masks: Masks, cache: Cache
    ) -> Float[Tensor, "B V"]:
        hidden = base.wte(token) + base.wpe(position)
        for number, layer in enumerate(base.h):
            hidden = attend(layer.attn, layer.ln_1(hidden), masks, cache, number) + hidden
            hidden = hidden + layer.mlp(layer.ln_2(hidden))
        return head(base.ln_f(hidden))

    def attend(module: Any, given: Float[Tensor, "B D"], masks: Any, cache: Cache, number: int) -> Float[Tensor, "B D"]:
        joined = module.c_attn(given).view(len(given), 3, -1, module.head_dim)
        query, key, value = joined.unbind(1)
        keys, values = cache.update(key[:, :, None], value[:, :, None], number)
        mixed: Tensor = module.c_proj(_attend_to_all(module, query, keys, values, masks))
        return mixed

    return decode


_BUILDERS: dict[type, Callable[[PreTrainedModel, int], Decode]] = {
    LlamaForCausalLM: _llama_decoder,
    MistralForCausalLM: _llama_decoder,
    Qwen2ForCausalLM: _llama_decoder,
    Qwen3ForCausalLM: _llama_decoder,
    Gemma3ForCausalLM: _llama_decoder,
    GPTNeoXForCausalLM: _neox_decoder,
    GPT2LMHeadModel: _gpt2_decoder,
}
