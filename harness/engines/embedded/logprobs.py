"""Log-probabilities of given answers, with gradient: each prompt goes through the model once, its answers over its cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor
from transformers import PreTrainedModel

from harness.engines.embedded.kernels import after, by_layer, causal, kinds_of_layers, left_pad, positions
from harness.engines.head import Head, logprobs, whole_logprobs

# Padding tokens in a bucket beyond which another pass is cheaper (measured on the micro families).
PASS_COST = 64


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    prompt: int
    tokens: Sequence[int]


class Prefix:
    """Differentiable keys and values of prompts, as transformers' Cache: recorded without `rows`, with them served before an
    answer's keys."""

    is_compileable = False

    def __init__(self, layers: list[tuple[Tensor, Tensor]] | None = None, rows: Tensor | None = None) -> None:
        self.layers, self.rows = [] if layers is None else layers, rows

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        if self.rows is None:
            if layer == len(self.layers):  # else checkpointing repeats the layer
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
    head: Head,
    prompts: Sequence[Sequence[int]],
    requests: Sequence[Request],
    *,
    temperature: float,
    forbidden: Float32[Tensor, "V"],
) -> list[Float32[Tensor, "T"]]:
    """Return the log-probabilities of each request's tokens, with gradient: nats at `temperature`, in the requests' order.

    prompts: token ids, of which each request names one by its index. forbidden: added to the logits (`head.NEVER` where an id is no
    content).
    """
    device = forbidden.device
    kinds = kinds_of_layers(model.config)
    used = sorted({request.prompt for request in requests})
    row_of_prompt = {prompt: row for row, prompt in enumerate(used)}
    ids, padding = left_pad([prompts[prompt] for prompt in used], device, model.dtype)
    order = buckets([len(request.tokens) for request in requests])
    targets = [_right_pad([requests[index].tokens for index in bucket], device) for bucket in order]
    lengths = [[len(requests[index].tokens) for index in bucket] for bucket in order]
    # All logits at once, where they fit; else hidden states are kept, and logits made by parts of the vocabulary
    by_parts = not head.fits(sum(map(sum, lengths)))
    inputs = _inputs_of_blocks(model, [ids, *(taught[:, :-1] for taught in targets)], at_once=by_parts)

    prefix, first = _run_prompts(model, inputs[0], padding, kinds)
    opened = None if by_parts else head.logits(first)
    blocks: list[Tensor] = []
    for bucket, taught, given, sizes in zip(order, targets, inputs[1:], lengths, strict=True):
        rows = torch.tensor([row_of_prompt[requests[index].prompt] for index in bucket], device=device)
        later = None
        if taught.shape[1] > 1:  # the prompt's last state has said the first token
            later = _run_answers(model, given, Prefix(prefix.layers, rows), padding[rows], sizes, kinds)
        if opened is None:
            hidden = first[rows]
            blocks.append(hidden if later is None else torch.cat([hidden, later], dim=1))
        else:
            logits = opened[rows]
            if later is not None:
                logits = torch.cat([logits, head.logits(later)], dim=1)
            blocks.append(whole_logprobs(logits, taught, temperature, forbidden))

    parts = _cut_rows(blocks, lengths)
    if by_parts:
        together = logprobs(head, torch.cat(parts), torch.cat(_cut_rows(targets, lengths)), temperature, forbidden)
        parts = list(torch.split(together, [len(part) for part in parts]))
    back = {index: number for number, index in enumerate(index for bucket in order for index in bucket)}
    return [parts[back[index]] for index in range(len(requests))]


def _run_prompts(
    model: PreTrainedModel, inputs: dict[str, Tensor], padding: Float[Tensor, "P L"], kinds: Mapping[str, int | None]
) -> tuple[Prefix, Float[Tensor, "P 1 D"]]:
    """The prompts' keys and values, and the hidden state of each one's last token. padding: 0 at tokens, as `left_pad` gives it."""
    prefix = Prefix()
    states = model.base_model(
        **inputs,
        attention_mask=by_layer(causal(padding), kinds),
        position_ids=positions(padding),
        past_key_values=prefix,
        use_cache=True,
    ).last_hidden_state
    return prefix, states[:, -1:]


def _run_answers(
    model: PreTrainedModel,
    inputs: dict[str, Tensor],
    prefix: Prefix,
    padding: Float[Tensor, "B L"],
    lengths: Sequence[int],
    kinds: Mapping[str, int | None],
) -> Float[Tensor, "B W D"]:
    """The hidden states of a bucket's answers but for their last tokens, each behind its prompt. lengths: tokens of each answer."""
    device = padding.device
    width = max(lengths) - 1
    last = torch.tensor([[length - 2] for length in lengths], device=device)  # padding repeats its place
    begins = (padding == 0).sum(1, keepdim=True)
    states: Tensor = model.base_model(
        **inputs,
        attention_mask=by_layer(after(padding, width), kinds),
        position_ids=begins + torch.arange(width, device=device).minimum(last),
        past_key_values=prefix,
        use_cache=True,
    ).last_hidden_state
    return states


def _cut_rows(blocks: Sequence[Tensor], lengths: Sequence[Sequence[int]]) -> list[Tensor]:
    """The rows of all blocks without their padding, in the blocks' order."""
    rows: list[Tensor] = []
    for block, sizes in zip(blocks, lengths, strict=True):
        rows += [block[row, :length] for row, length in enumerate(sizes)]
    return rows


def _right_pad(answers: Sequence[Sequence[int]], device: torch.device) -> Int64[Tensor, "B T"]:
    width = len(answers[0])
    return torch.tensor([[*answer, *[0] * (width - len(answer))] for answer in answers], device=device)


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


def buckets(lengths: Sequence[int]) -> list[list[int]]:
    """Indices, longest first, in buckets of similar length."""
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
    """Indices of requests, in order, cut where a piece would exceed `budget` tokens."""
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
