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
    """Log-probabilities of given answers in nats at `temperature`, with gradient, in the requests' order.

    prompts: token ids of every prompt that a request may name. forbidden: minus infinity at ids that are never sampled, else 0.
    ends: ids that are one action, as `head.merge_ends`. A result has as many entries as its request has tokens.

    Every prompt goes through the model once and keeps its keys and values; answers of similar length then go through it together.
    Where the logits of all answers would not fit, hidden states are collected and the head runs over pieces of them."""
    device = forbidden.device
    kinds = kinds_of_layers(model.config)
    used = sorted({request.prompt for request in requests})
    row_of_prompt = {prompt: row for row, prompt in enumerate(used)}
    ids, padding = left_pad([prompts[prompt] for prompt in used], device, model.dtype)  # (P, L), (P, L)
    answers_in = buckets_by_length([len(request.tokens) for request in requests])
    targets = [_right_pad([requests[index].tokens for index in bucket], device) for bucket in answers_in]  # (B, T) each
    lengths = [[len(requests[index].tokens) for index in bucket] for bucket in answers_in]
    positions = sum(map(sum, lengths))
    large = not head.fits(positions)
    given = [target[:, :-1] for target in targets]  # (B, T - 1): the last token is only a target
    inputs = _inputs_of_blocks(model, [ids, *given], at_once=large)

    prefix = Prefix()
    masks = by_layer(causal_mask(padding), kinds)
    of_prompts = _last_hidden(model, inputs[0], masks, positions_of(padding), prefix)  # (P, L, D)
    first = of_prompts[:, -1:]  # (P, 1, D): predicts the first token of each answer
    opened = None if large else head.logits(first)  # (P, 1, V)
    # Of each bucket (B, T) log-probabilities, or (B, T, D) hidden states where the logits would not fit
    blocks: list[Tensor] = []
    for bucket, taught, block, sizes in zip(answers_in, targets, inputs[1:], lengths, strict=True):
        rows = torch.tensor([row_of_prompt[requests[index].prompt] for index in bucket], device=device)  # (B,)
        hidden = first[rows]  # (B, 1, D)
        logits = None if opened is None else opened[rows]  # (B, 1, V)
        width = taught.shape[1] - 1
        if width:
            # Padding behind a short answer repeats the position of its last input.
            last = torch.tensor([[size - 2] for size in sizes], device=device)  # (B, 1)
            prompt_sizes = (padding[rows] == 0).sum(1, keepdim=True)  # (B, 1)
            where = prompt_sizes + torch.arange(width, device=device).minimum(last)  # (B, W)
            masks = by_layer(mask_behind_prefix(padding[rows], width), kinds)
            later = _last_hidden(model, block, masks, where, Prefix(prefix.layers, rows))  # (B, W, D)
            if logits is None:
                hidden = torch.cat([hidden, later], dim=1)
            else:
                logits = torch.cat([logits, head.logits(later)], dim=1)
        blocks.append(hidden if logits is None else whole_logprobs(logits, taught, temperature, forbidden, ends))

    parts = _without_padding(blocks, lengths)  # in the buckets' order
    if large:
        taught_ids = torch.cat(_without_padding(targets, lengths))  # (N,)
        together = logprobs_by_parts(head, torch.cat(parts), taught_ids, temperature, forbidden, ends)  # (N,)
        parts = list(torch.split(together, [len(part) for part in parts]))
    in_buckets = [index for bucket in answers_in for index in bucket]
    place_of = {index: place for place, index in enumerate(in_buckets)}
    return [parts[place_of[index]] for index in range(len(requests))]


def _last_hidden(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], masks: Masks, where: Int64[Tensor, "B Q"], prefix: Prefix
) -> Float[Tensor, "B Q D"]:
    """Run a block through the model's layers; return the hidden states that its output layer takes. where: positions."""
    output = model.base_model(
        **inputs, attention_mask=masks, position_ids=where, past_key_values=prefix, use_cache=True
    )
    hidden: Tensor = output.last_hidden_state
    return hidden


def _without_padding(blocks: Sequence[Tensor], lengths: Sequence[Sequence[int]]) -> list[Tensor]:
    """The rows of all blocks one after another, each cut to its answer's length."""
    rows: list[Tensor] = []
    for block, sizes in zip(blocks, lengths, strict=True):
        rows += [block[row, :size] for row, size in enumerate(sizes)]
    return rows


def _right_pad(answers: Sequence[Sequence[int]], device: torch.device) -> Int64[Tensor, "B T"]:
    """Token ids with zeros behind shorter answers; the first answer is the longest."""
    width = len(answers[0])
    padded = []
    for answer in answers:
        padding = [0] * (width - len(answer))
        padded.append([*answer, *padding])
    return torch.tensor(padded, device=device)


def _inputs_of_blocks(model: PreTrainedModel, blocks: Sequence[Tensor], at_once: bool) -> list[dict[str, Tensor]]:
    """What the model takes for each block of ids (B, T): the ids, or their embeddings. at_once: one look-up for all, as each one's
    gradient has the vocabulary's size."""
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
    """Indices, longest first, in buckets of similar length."""
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
    """Indices of requests, in order, cut where a piece would exceed `budget` tokens."""
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
