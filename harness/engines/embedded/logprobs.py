"""Log-probabilities of given answers, with gradient: each prompt goes through the model once, its answers over its cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from transformers import PreTrainedModel

from harness.engines.embedded.kernels import (
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
        before = self.layers[layer]
        return torch.cat([before[0][self.rows], keys], dim=2), torch.cat([before[1][self.rows], values], dim=2)

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
    ids, padding = left_pad([prompts[prompt] for prompt in used], device, model.dtype)
    answers_in = buckets_by_length([len(request.tokens) for request in requests])
    targets = [_right_pad([requests[index].tokens for index in bucket], device) for bucket in answers_in]
    lengths = [[len(requests[index].tokens) for index in bucket] for bucket in answers_in]
    large = not head.fits(sum(map(sum, lengths)))
    inputs = _inputs_of_blocks(model, [ids, *(target[:, :-1] for target in targets)], at_once=large)

    prefix = Prefix()
    first = model.base_model(
        **inputs[0],
        attention_mask=by_layer(causal_mask(padding), kinds),
        position_ids=positions_of(padding),
        past_key_values=prefix,
        use_cache=True,
    ).last_hidden_state[:, -1:]
    opened = None if large else head.logits(first)
    blocks: list[Tensor] = []
    for bucket, taught, given, sizes in zip(answers_in, targets, inputs[1:], lengths, strict=True):
        width = taught.shape[1] - 1  # the last token is only a target
        rows = torch.tensor([row_of_prompt[requests[index].prompt] for index in bucket], device=device)
        hidden = first[rows]
        logits = None if opened is None else opened[rows]
        if width:
            # Padding behind a short answer repeats the position of its last input.
            last = torch.tensor([[size - 2] for size in sizes], device=device)
            prompt_sizes = (padding[rows] == 0).sum(1, keepdim=True)
            later = model.base_model(
                **given,
                attention_mask=by_layer(mask_behind_prefix(padding[rows], width), kinds),
                position_ids=prompt_sizes + torch.arange(width, device=device).minimum(last),
                past_key_values=Prefix(prefix.layers, rows),
                use_cache=True,
            ).last_hidden_state
            if logits is None:
                hidden = torch.cat([hidden, later], dim=1)
            else:
                logits = torch.cat([logits, head.logits(later)], dim=1)
        blocks.append(hidden if logits is None else whole_logprobs(logits, taught, temperature, forbidden, ends))

    parts = _without_padding(blocks, lengths)
    if large:
        taught_ids = torch.cat(_without_padding(targets, lengths))
        together = logprobs_by_parts(head, torch.cat(parts), taught_ids, temperature, forbidden, ends)
        parts = list(torch.split(together, [len(part) for part in parts]))
    in_buckets = [index for bucket in answers_in for index in bucket]
    place_of = {index: place for place, index in enumerate(in_buckets)}
    return [parts[place_of[index]] for index in range(len(requests))]


def _without_padding(blocks: Sequence[Tensor], lengths: Sequence[Sequence[int]]) -> list[Tensor]:
    """The rows of all blocks one after another, each cut to its answer's length."""
    rows: list[Tensor] = []
    for block, sizes in zip(blocks, lengths, strict=True):
        rows += [block[row, :size] for row, size in enumerate(sizes)]
    return rows


def _right_pad(answers: Sequence[Sequence[int]], device: torch.device) -> Int64[Tensor, "B T"]:
    """Token ids with zeros behind shorter answers; the first answer is the longest."""
    width = len(answers[0])
    padded = [[*answer, *[0] * (width - len(answer))] for answer in answers]
    return torch.tensor(padded, device=device)


def _inputs_of_blocks(model: PreTrainedModel, blocks: Sequence[Tensor], at_once: bool) -> list[dict[str, Tensor]]:
    """at_once: one look-up, as each one's gradient has the vocabulary's size."""
    if not at_once:
        return [{"input_ids": block} for block in blocks]
    look_up = model.get_input_embeddings()
    flat = look_up(torch.cat([block.flatten() for block in blocks]))
    parts = torch.split(flat, [block.numel() for block in blocks])
    return [
        {"inputs_embeds": part.view(*block.shape, part.shape[-1])} for part, block in zip(parts, blocks, strict=True)
    ]


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
        cost = len(request.tokens) + (0 if request.prompt in seen else len(prompts[request.prompt]))
        if piece and tokens + cost > budget:
            yield piece
            piece = []
            seen = set()
            tokens = 0
            cost = len(request.tokens) + len(prompts[request.prompt])
        piece.append(index)
        seen.add(request.prompt)
        tokens += cost
    if piece:
        yield piece
