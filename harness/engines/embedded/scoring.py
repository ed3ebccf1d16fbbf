"""Log-probabilities of given answers, with gradient: each prompt goes through the model once, its answers over its cache.

Answers are sorted by length and right-padded in buckets; the log-softmax is taken at answer positions only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32
from torch import Tensor
from transformers import PreTrainedModel

from harness.engines.embedded.masks import after, by_layer, causal, kinds_of_layers, left_pad, positions

PASS_COST = 64
"""Padding, in tokens, that a bucket may hold before another forward pass is cheaper (measured on the micro families)."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """An answer to score: `prompt` indexes the prompts, `tokens` are its ids."""

    prompt: int
    tokens: Sequence[int]


class Prefix:
    """Differentiable keys and values of prompts; the part of transformers' Cache that a model calls.

    Without `rows` it records what the prompts' own pass produces; with them it serves these rows before an answer's keys.
    """

    is_compileable = False

    def __init__(self, layers: list[tuple[Tensor, Tensor]] | None = None, rows: Tensor | None = None) -> None:
        self.layers, self.rows = [] if layers is None else layers, rows

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        if self.rows is None:
            self.layers.append((keys, values))
            return keys, values
        before = self.layers[layer]
        return torch.cat([before[0][self.rows], keys], dim=2), torch.cat([before[1][self.rows], values], dim=2)

    def get_seq_length(self, layer: int = 0) -> int:
        return 0 if self.rows is None else self.layers[0][0].shape[2]

    def get_mask_sizes(self, query_length: int, layer: int = 0) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0


def answer_logprobs(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    requests: Sequence[Request],
    *,
    temperature: float,
    forbidden: Float32[Tensor, "V"],
) -> list[Float[Tensor, "T"]]:
    """Log-probabilities (nats, at `temperature`) of each request's tokens, in the requests' order."""
    device, kinds = forbidden.device, kinds_of_layers(model.config)
    used = sorted({request.prompt for request in requests})
    place = {prompt: row for row, prompt in enumerate(used)}
    ids, padding = left_pad([prompts[prompt] for prompt in used], device, model.dtype)
    prefix = Prefix()
    first = model(
        input_ids=ids,
        attention_mask=by_layer(causal(padding), kinds),
        position_ids=positions(padding),
        past_key_values=prefix,
        use_cache=True,
        logits_to_keep=1,
    ).logits
    result: list[Tensor | None] = [None] * len(requests)
    for bucket in buckets([len(request.tokens) for request in requests]):
        chosen = [requests[index] for index in bucket]
        width = len(chosen[0].tokens)
        rows = torch.tensor([place[request.prompt] for request in chosen], device=device)
        targets = torch.tensor([[*r.tokens, *[0] * (width - len(r.tokens))] for r in chosen], device=device)
        logits = first[rows]
        if width > 1:
            later = model(
                input_ids=targets[:, :-1],
                attention_mask=by_layer(after(padding[rows], width - 1), kinds),
                position_ids=(padding[rows] == 0).sum(1, keepdim=True) + torch.arange(width - 1, device=device),
                past_key_values=Prefix(prefix.layers, rows),
                use_cache=True,
            ).logits
            logits = torch.cat([logits, later], dim=1)
        scaled = logits.float() if temperature == 1.0 else logits.float() / temperature
        logp = -torch.nn.functional.cross_entropy(
            (scaled + forbidden).flatten(0, 1), targets.flatten(), reduction="none"
        ).view_as(targets)
        for row, index in enumerate(bucket):
            result[index] = logp[row, : len(chosen[row].tokens)]
    return [values for values in result if values is not None]


def buckets(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of `lengths`, longest first, cut into buckets of similar length."""
    cut: list[list[int]] = []
    longest = padding = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        padding += longest - lengths[index]
        if not cut or padding > PASS_COST:
            cut.append([])
            longest, padding = lengths[index], 0
        cut[-1].append(index)
    return cut


def microbatches(prompts: Sequence[Sequence[int]], requests: Sequence[Request], budget: int) -> Iterator[list[int]]:
    """Indices of requests, in order, cut where prompts and answers of a piece would exceed `budget` tokens."""
    piece: list[int] = []
    seen: set[int] = set()
    tokens = 0
    for index, request in enumerate(requests):
        cost = len(request.tokens) + (0 if request.prompt in seen else len(prompts[request.prompt]))
        if piece and tokens + cost > budget:
            yield piece
            piece, seen, tokens = [], set(), 0
            cost = len(request.tokens) + len(prompts[request.prompt])
        piece.append(index)
        seen.add(request.prompt)
        tokens += cost
    if piece:
        yield piece
