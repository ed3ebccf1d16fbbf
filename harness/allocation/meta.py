"""A model's size, measured on what transformers builds from its config on torch's meta device, where nothing has bytes. Kernels
in place of its attention and its experts say what they were given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

from harness.allocation.shapes import Attention, KeptActivations, ModelShape
from harness.errors import UsageError

TOKENS = 8
_ACCOUNTED = "accounted"
_NOT_CONFIG = {"model_type", "quantization_config", "auto_map"}


class _Attend(torch.autograd.Function):
    """Attention that stores no scores, but keeps queries, keys, values and output for a backward pass."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, heads, tokens, _ = query.shape
        output = query.new_empty(batch, tokens, heads, value.shape[-1]).transpose(1, 2)  # as the kernels lay it out
        ctx.save_for_backward(query, key, value, output)
        return output


def measure_shape(name: str, raw: Mapping[str, Any]) -> ModelShape:
    """Measure the size of a model from its configuration; of one that also sees or hears, that of the language part. Raises
    UsageError for an architecture that transformers does not know, or that is no causal language model with attention."""
    kind = str(raw.get("model_type", ""))
    if kind not in CONFIG_MAPPING:
        raise UsageError(f"{name}: transformers {transformers.__version__} knows no model_type {kind!r}")
    problem = "transformers builds no causal language model from its config"
    attention = list[Attention]()
    mixtures = dict[int, tuple[int, float]]()  # parameters, and the share of them that a token takes
    with _watch_kernels(attention, mixtures):
        try:
            model = _build_model(kind, {key: value for key, value in raw.items() if key not in _NOT_CONFIG})
            problem = "its size cannot be measured"
            with FlopCounterMode(display=False) as counted:
                full = _count_kept(model, torch.float32)
            passed = Counter(attention)
            half = _count_kept(model, torch.bfloat16)
        except Exception as error:  # a config.json is anyone's data, and others' modelling code does what it likes
            cause = " ".join(str(error).split())[:200] or type(error).__name__
            raise UsageError(f"{name}: {problem}: {cause}") from error
    if not passed:
        raise UsageError(f"{name}: no attention in a model of type {model.config.model_type!r}, its size is not known")
    sizes = [parameter.numel() for parameter in model.parameters()]
    experts, routed = _sum_experts(mixtures)
    attention = [one._replace(layers=count) for one, count in passed.items()]
    return ModelShape(
        name=name,
        parameters=sum(sizes),
        experts=experts,
        routed=routed,
        matmul=counted.get_total_flops() // (2 * TOKENS),
        largest=max(sizes),
        vocab=int(model.config.vocab_size),
        hidden=int(model.config.hidden_size),
        attention=tuple(attention),
        half=half,
        full=full,
    )


def _sum_experts(mixtures: Mapping[int, tuple[int, float]]) -> tuple[int, float]:
    """Return the parameters of all mixtures of experts, and the share of them that a token takes; 1 where there is no mixture."""
    experts = sum(count for count, _ in mixtures.values())
    if not experts:
        return 0, 1.0
    taken = sum(count * share for count, share in mixtures.values())
    return experts, taken / experts


def _record_attention(
    seen: list[Attention],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *_: Any,
    sliding_window: int | None = None,
    **__: Any,
) -> tuple[Tensor, None]:
    """Stand in for attention as transformers calls it: note its shape, and keep for a backward pass what a fused kernel would.

    query, key, value: (B, H, T, D), of key and value the groups' heads. Returns the output (B, T, H, D), and no scores."""
    seen.append(Attention(1, query.shape[1], key.shape[1], key.shape[-1], sliding_window))
    groups = query.shape[1] // key.shape[1]
    if groups > 1:  # as attention over a padded batch does
        key = key.repeat_interleave(groups, dim=1)
        value = value.repeat_interleave(groups, dim=1)
    output: Tensor = _Attend.apply(query, key, value)  # type: ignore[no-untyped-call]  # torch has no types of it
    return output.transpose(1, 2).contiguous(), None


def _record_torch_attention(
    seen: list[Attention], query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> Tensor:
    """Stand in for torch's own attention, `scaled_dot_product_attention`, whose output is (B, H, T, D)."""
    return _record_attention(seen, nn.Module(), query, key, value)[0].transpose(1, 2)


def _record_experts(
    mixtures: dict[int, tuple[int, float]],
    module: Any,
    hidden: Tensor,
    chosen: Tensor,
    weights: Tensor,
    *_: Any,
    **__: Any,
) -> Tensor:
    """Stand in for a mixture of experts as transformers calls it: note its size, and send every token through the first expert as
    often as it would go through one. Which expert it is decides neither operations nor kept bytes, and on the meta device no
    choice has a value.

    hidden: (N, D). chosen, weights: (N, K), the experts of each token. Returns (N, D)."""
    tables = [p for p in module.parameters() if p.dim() == 3]  # of each layer, a matrix for each expert
    parameters = sum(p.numel() for p in module.parameters())
    top = chosen.shape[-1]
    mixtures[id(module)] = parameters, top / tables[0].shape[0]
    first = tables[0][0]
    last = tables[-1][0]
    if module.is_transposed:  # kept as (inputs, outputs); `linear` takes (outputs, inputs)
        first = first.T
        last = last.T
    inner = nn.functional.linear(hidden.repeat_interleave(top, dim=0), first)
    inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
    output = nn.functional.linear(inner, last) * weights.reshape(-1, 1)  # (N K, D)
    by_token = output.view(-1, top, output.shape[-1])  # (N, K, D)
    return by_token.sum(dim=1).to(hidden.dtype)


@contextmanager
def _watch_kernels(seen: list[Attention], mixtures: dict[int, tuple[int, float]]) -> Iterator[None]:
    """Inside, attention and mixtures of experts are recorded instead of computed.

    Three stand-ins are set and undone: attention and experts under a name of ours in transformers' tables, which `_build_model`
    asks for, and torch's own attention, which Falcon's layers call themselves. Transformers is silent meanwhile.

    seen: of each attention that a pass goes through. mixtures: by module, its parameters and the share that a token takes."""
    level = logging.get_verbosity()
    kernel = nn.functional.scaled_dot_product_attention
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    ALL_ATTENTION_FUNCTIONS.register(_ACCOUNTED, partial(_record_attention, seen))
    ALL_EXPERTS_FUNCTIONS.register(_ACCOUNTED, partial(_record_experts, mixtures))
    nn.functional.scaled_dot_product_attention = partial(_record_torch_attention, seen)
    try:
        yield
    finally:
        nn.functional.scaled_dot_product_attention = kernel
        del ALL_ATTENTION_FUNCTIONS._global_mapping[_ACCOUNTED], ALL_EXPERTS_FUNCTIONS._global_mapping[_ACCOUNTED]
        logging.set_verbosity(level)


def _build_model(kind: str, fields: Mapping[str, Any]) -> Any:
    """Build the model of a configuration, without memory for weights."""
    config = AutoConfig.for_model(kind, **fields).get_text_config()
    config._experts_implementation = _ACCOUNTED
    with torch.device("meta"):
        build: Any = AutoModelForCausalLM.from_config
        model = build(config, attn_implementation="sdpa" if kind == "falcon" else _ACCOUNTED)
    model.config.pad_token_id = None  # else a pass looks for padding, in ids that have no values
    for module in model.modules():
        if isinstance(getattr(module, "rope_type", None), str):
            module.rope_type = "default"  # else a pass asks for a position's value
    return model.eval()


def _count_kept(model: Any, dtype: torch.dtype) -> KeptActivations:
    """Count the bytes per token that autograd keeps at a precision: of all layers, of the largest one, and outside of layers.

    Storages are counted where they are first kept. Hooks on the layers tell in which one that is."""
    model.to(dtype)
    lists = (m for m in model.modules() if isinstance(m, nn.ModuleList))
    layers = max(lists, key=lambda m: sum(p.numel() for p in m.parameters()))
    known = {p.untyped_storage()._cdata: p for p in model.parameters()}  # and alive: no two storages share an address
    kept = [0] * (len(layers) + 1)
    place = len(layers)

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            known[storage._cdata] = tensor
            kept[place] += storage.nbytes()
        return tensor

    def enter(index: int) -> None:
        nonlocal place
        place = index

    handles = []
    for index, layer in enumerate(layers):
        handles.append(layer.register_forward_pre_hook(lambda *_, index=index: enter(index)))
        handles.append(layer.register_forward_hook(lambda *_: enter(len(layers))))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.zeros(1, TOKENS, dtype=torch.long, device="meta"), use_cache=False)
    for handle in handles:
        handle.remove()
    *inside, outside = (size // TOKENS for size in kept)
    return KeptActivations(sum(inside), max(inside), outside)
