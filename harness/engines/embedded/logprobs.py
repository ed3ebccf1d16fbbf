"""Log-probabilities of given answers, with gradient: each prompt goes through the model once, its answers over its cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor
from transformers import PreTrainedModel

from harness.engines.embedded.kernels import (
    Masks,
    by_layer,
    causal_mask,
    kinds_of_layers,
    left_pad,
    mask_behind_prefix,
    positions_of,
)
from harness.engines.head import Head, logprobs_by_parts, whole_logprobs

# Padding tokens in a bucket beyond which another pass is cheaper (measured on the micro families).
PASS_COST = 64


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRequest:
    """An answer to be scored. prompt: the index of its prompt. tokens: ids."""

    prompt: int
    tokens: Sequence[int]


class Prefix:
    """Differentiable keys and values of prompts, as transformers' Cache: recorded without `rows`, with them served before an
    answer's keys."""

    is_compileable = False

    def __init__(self, layers: list[tuple[Tensor, Tensor]] | None = None, rows: Tensor | None = None) -> None:
        self.layers = [] if layers is None else layers
        self.rows = rows

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Keep a layer's keys and values of prompts, or put each answer's own behind those of its prompt. Transformers calls it
        in each layer."""
        if self.rows is None:
            if layer == len(self.layers):  # else checkpointing repeats the layer
                self.layers.append((keys, values))
            return keys, values
        keys_before, values_before = self.layers[layer]  # (P, H, L, D)
        all_keys = torch.cat([keys_before[self.rows], keys], dim=2)  # (B, H, L + T, D)
        all_values = torch.cat([values_before[self.rows], values], dim=2)
        return all_keys, all_values

    def get_seq_length(self, layer: int = 0) -> int:
        if self.rows is None:
            return 0
        return self.layers[0][0].shape[2]

    def get_mask_sizes(self, query_length: int, layer: int = 0) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0


def answer_logprobs(
    model: PreTrainedModel,
    head: Head,
    prompts: Sequence[Sequence[int]],
    requests: Sequence[ScoreRequest],
    *,
    temperature: float,
    forbidden: Float32[Tensor, "V"],
    ends: Int64[Tensor, "E"] | None = None,
) -> list[Float32[Tensor, "T"]]:
    """Compute the log-probabilities of given answers in nats at `temperature`, with gradient, in the requests' order.

    prompts: token ids of every prompt that a request may name. forbidden: minus infinity at ids that are never sampled, else 0.
    ends: ids that are one action, as `head.merge_ends`. A result has as many entries as its request has tokens.

    Every prompt goes through the model once and keeps its keys and values; answers of similar length then go through it together.
    Where the logits of all answers would not fit, hidden states are collected and the head runs over pieces of them."""
    used = sorted({request.prompt for request in requests})
    row_of_prompt = {prompt: row for row, prompt in enumerate(used)}
    ids, padding = left_pad([prompts[prompt] for prompt in used], forbidden.device, model.dtype)  # (P, L), (P, L)
    buckets = _fill_buckets(requests, row_of_prompt, forbidden.device)
    large = not head.fits(sum(sum(bucket.sizes) for bucket in buckets))
    given = [bucket.targets[:, :-1] for bucket in buckets]  # (B, T - 1): the last token is only a target
    inputs = _inputs_of_blocks(model, [ids, *given], at_once=large)

    read = _read_prompts(model, inputs[0], padding)
    if large:
        hidden = [
            _hidden_of_bucket(model, read, bucket, block) for bucket, block in zip(buckets, inputs[1:], strict=True)
        ]
        flat = torch.cat(_without_padding(hidden, buckets))  # (N, D)
        taught = torch.cat(_without_padding([bucket.targets for bucket in buckets], buckets))  # (N,)
        together = logprobs_by_parts(head, flat, taught, temperature, forbidden, ends)  # (N,)
        parts = list(torch.split(together, [size for bucket in buckets for size in bucket.sizes]))
    else:
        opened = head.logits(read.last)  # (P, 1, V)
        values = []  # (B, T) each
        for bucket, block in zip(buckets, inputs[1:], strict=True):
            logits = _logits_of_bucket(model, head, read, opened, bucket, block)  # (B, T, V)
            values.append(whole_logprobs(logits, bucket.targets, temperature, forbidden, ends))
        parts = _without_padding(values, buckets)
    in_buckets = [index for bucket in buckets for index in bucket.requests]
    place_of = {index: place for place, index in enumerate(in_buckets)}
    return [parts[place_of[index]] for index in range(len(requests))]


@dataclass(frozen=True, slots=True, eq=False)
class _Bucket:
    """Answers of similar length, which go through the model together, the longest first.

    requests: the indices of theirs. sizes: their tokens. rows: (B,) each one's prompt among those that went through the model.
    targets: (B, T) their token ids, zeros behind the shorter ones."""

    requests: Sequence[int]
    sizes: Sequence[int]
    rows: Int64[Tensor, "B"]
    targets: Int64[Tensor, "B T"]


def _fill_buckets(
    requests: Sequence[ScoreRequest], row_of_prompt: Mapping[int, int], device: torch.device
) -> list[_Bucket]:
    """Put the requests into buckets by the length of their answers. row_of_prompt: of `_Bucket.rows`."""
    buckets = []
    for indices in buckets_by_length([len(request.tokens) for request in requests]):
        answers = [requests[index].tokens for index in indices]
        rows = torch.tensor([row_of_prompt[requests[index].prompt] for index in indices], device=device)
        bucket = _Bucket(indices, [len(answer) for answer in answers], rows, _right_pad(answers, device))
        buckets.append(bucket)
    return buckets


@dataclass(frozen=True, slots=True, eq=False)
class _ReadPrompts:
    """Prompts that have gone through the model.

    padding: (P, L), as of `left_pad`. prefix: their keys and values. last: (P, 1, D) hidden states that predict the first token
    of each answer."""

    padding: Float[Tensor, "P L"]
    prefix: Prefix
    last: Float[Tensor, "P 1 D"]


def _read_prompts(model: PreTrainedModel, inputs: Mapping[str, Tensor], padding: Float[Tensor, "P L"]) -> _ReadPrompts:
    """Run the prompts through the model. inputs: of `_inputs_of_blocks`."""
    prefix = Prefix()
    masks = by_layer(causal_mask(padding), kinds_of_layers(model.config))
    hidden = _last_hidden(model, inputs, masks, positions_of(padding), prefix)  # (P, L, D)
    return _ReadPrompts(padding, prefix, hidden[:, -1:])


def _read_answers(
    model: PreTrainedModel, read: _ReadPrompts, bucket: _Bucket, inputs: Mapping[str, Tensor]
) -> Float[Tensor, "B W D"] | None:
    """Run a bucket's answers, but for their last tokens, through the model behind their prompts; return the hidden states that
    predict all tokens but the first ones. None where no answer has a second token."""
    width = bucket.targets.shape[1] - 1
    if not width:
        return None
    padding = read.padding[bucket.rows]  # (B, L)
    # Padding behind a short answer repeats the position of its last input.
    last = torch.tensor([[size - 2] for size in bucket.sizes], device=padding.device)  # (B, 1)
    prompt_sizes = (padding == 0).sum(1, keepdim=True)  # (B, 1)
    where = prompt_sizes + torch.arange(width, device=padding.device).minimum(last)  # (B, W)
    masks = by_layer(mask_behind_prefix(padding, width), kinds_of_layers(model.config))
    return _last_hidden(model, inputs, masks, where, Prefix(read.prefix.layers, bucket.rows))


def _hidden_of_bucket(
    model: PreTrainedModel, read: _ReadPrompts, bucket: _Bucket, inputs: Mapping[str, Tensor]
) -> Float[Tensor, "B T D"]:
    """Return the hidden states that predict each token of a bucket's answers."""
    first = read.last[bucket.rows]  # (B, 1, D)
    later = _read_answers(model, read, bucket, inputs)
    return first if later is None else torch.cat([first, later], dim=1)


def _logits_of_bucket(
    model: PreTrainedModel,
    head: Head,
    read: _ReadPrompts,
    opened: Float[Tensor, "P 1 V"],
    bucket: _Bucket,
    inputs: Mapping[str, Tensor],
) -> Float[Tensor, "B T V"]:
    """Return the logits that predict each token of a bucket's answers. opened: those of first tokens, made once a prompt."""
    first = opened[bucket.rows]  # (B, 1, V)
    later = _read_answers(model, read, bucket, inputs)
    return first if later is None else torch.cat([first, head.logits(later)], dim=1)


def _last_hidden(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], masks: Masks, where: Int64[Tensor, "B Q"], prefix: Prefix
) -> Float[Tensor, "B Q D"]:
    """Run a block through the model's layers; return the hidden states that its output layer takes. where: positions."""
    output = model.base_model(
        **inputs, attention_mask=masks, position_ids=where, past_key_values=prefix, use_cache=True
    )
    hidden: Tensor = output.last_hidden_state
    return hidden


def _without_padding(blocks: Sequence[Tensor], buckets: Sequence[_Bucket]) -> list[Tensor]:
    """Return the rows of all blocks one after another, each cut to its answer's length. blocks: (B, T, ...), one a bucket."""
    rows: list[Tensor] = []
    for block, bucket in zip(blocks, buckets, strict=True):
        rows += [block[row, :size] for row, size in enumerate(bucket.sizes)]
    return rows


def _right_pad(answers: Sequence[Sequence[int]], device: torch.device) -> Int64[Tensor, "B T"]:
    """Put token ids into one rectangle, with zeros behind shorter answers; the first answer is the longest."""
    width = len(answers[0])
    padded = []
    for answer in answers:
        padding = [0] * (width - len(answer))
        padded.append([*answer, *padding])
    return torch.tensor(padded, device=device)


def _inputs_of_blocks(model: PreTrainedModel, blocks: Sequence[Tensor], at_once: bool) -> list[dict[str, Tensor]]:
    """Return what the model takes for each block of ids (B, T): the ids, or their embeddings. at_once: one look-up for all, as
    each one's gradient has the vocabulary's size."""
    if not at_once:
        return [{"input_ids": block} for block in blocks]
    look_up = model.get_input_embeddings()
    ids = torch.cat([block.flatten() for block in blocks])  # (N,)
    flat = look_up(ids)  # (N, D)
    parts = torch.split(flat, [block.numel() for block in blocks])
    inputs = []
    for part, block in zip(parts, blocks, strict=True):
        embedded = part.view(*block.shape, part.shape[-1])  # (B, T, D)
        inputs.append({"inputs_embeds": embedded})
    return inputs


def buckets_by_length(lengths: Sequence[int]) -> list[list[int]]:
    """Return indices, longest first, in buckets of similar length."""
    cut: list[list[int]] = []
    longest = padding = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        padding += longest - lengths[index]
        if not cut or padding > PASS_COST:
            cut.append([])
            longest = lengths[index]
            padding = 0
        cut[-1].append(index)
    return cut


def cut_into_microbatches(
    prompts: Sequence[Sequence[int]], requests: Sequence[ScoreRequest], budget: int
) -> Iterator[list[int]]:
    """Yield indices of requests, in order, cut where a piece would exceed `budget` tokens."""
    piece: list[int] = []
    seen: set[int] = set()
    tokens = 0
    for index, request in enumerate(requests):
        prompt_size = len(prompts[request.prompt])
        cost = len(request.tokens)
        if request.prompt not in seen:  # a prompt goes through the model once
            cost += prompt_size
        if piece and tokens + cost > budget:
            yield piece
            piece = []
            seen = set()
            tokens = 0
            cost = len(request.tokens) + prompt_size
        piece.append(index)
        seen.add(request.prompt)
        tokens += cost
    if piece:
        yield piece
