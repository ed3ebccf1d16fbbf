"""The sampling loop. Answers are drawn by inverse CDF with one uniform per (answer seed, position), so that they do not depend
on their neighbours (up to rounding)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64, UInt64
from torch import Tensor
from transformers import PreTrainedModel

from harness.engines.embedded.decoding import decode_by_transformers, decoder_of
from harness.engines.embedded.kernels import by_layer, causal_mask, kinds_of_layers, left_pad, positions_of
from harness.engines.embedded.sizes import BLOCK
from harness.phases import show_inside_phase

COMPACTION = 0.125  # share of finished rows at which they are dropped


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """tokens, logprobs: valid up to each answer's `lengths`, EOS included."""

    tokens: Int64[np.ndarray, "N T"]
    logprobs: Float32[np.ndarray, "N T"]
    lengths: Int64[np.ndarray, "N"]
    finished: Bool[np.ndarray, "N"]


class KeyValues:
    """Keys and values of all layers in preallocated memory, as transformers' Cache."""

    is_compileable = False

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self.layers: list[tuple[Tensor, Tensor]] = []

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Append (B, H, T, D) at `length`, which the loop moves on once all layers have written."""
        end = self.length + keys.shape[2]
        if layer == len(self.layers):
            shape = (*keys.shape[:2], self.capacity, keys.shape[3])
            self.layers.append((keys.new_empty(shape), values.new_empty(*shape[:3], values.shape[3])))
        stored = self.layers[layer]
        stored[0][:, :, self.length : end] = keys
        stored[1][:, :, self.length : end] = values
        return stored[0][:, :, :end], stored[1][:, :, :end]

    def get_seq_length(self, layer: int = 0) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int, layer: int = 0) -> tuple[int, int]:
        return self.length + query_length, 0

    def answers(self, group: int, capacity: int) -> KeyValues:
        """Make a copy with each row `group` times and room for `capacity` tokens."""
        copy = KeyValues(capacity)
        copy.length = self.length
        for pair in self.layers:
            made = []
            for old in pair:
                prompts, heads, _, width = old.shape
                new = old.new_empty(prompts * group, heads, capacity, width)
                by_prompt = new.view(prompts, group, heads, capacity, width)
                by_prompt[:, :, :, : self.length] = old[:, None, :, : self.length]
                made.append(new)
            copy.layers.append((made[0], made[1]))
        return copy

    def keep(self, order: Int64[Tensor, "K"]) -> None:
        """Reorder the rows: row i becomes what row order[i] was."""
        places = (order != torch.arange(len(order), device=order.device)).nonzero().squeeze(1)
        moved = order[places]
        for number, pair in enumerate(self.layers):
            for stored in pair:
                stored[places, :, : self.length] = stored[moved, :, : self.length]
            self.layers[number] = (pair[0][: len(order)], pair[1][: len(order)])


def draw_uniforms(seeds: UInt64[np.ndarray, "N"], count: int) -> Float64[np.ndarray, "N T"]:
    """Draw numbers in (0, 1], one per (seed, position): splitmix64 (Steele, Lea, Flood 2014) counted from the mixed seed."""
    with np.errstate(over="ignore"):
        counters = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bits = _mix_bits(_mix_bits(seeds.astype(np.uint64))[:, None] + counters)
    return ((bits >> np.uint64(11)) + np.uint64(1)) * 2.0**-53


def _mix_bits(z: np.ndarray) -> np.ndarray:
    """Mix the bits of a counter, by the finaliser of splitmix64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = z ^ (z >> np.uint64(31))
    return mixed


@torch.inference_mode()
def sample_answers(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    seeds: UInt64[np.ndarray, "P G"],
    *,
    temperature: float,
    max_new_tokens: int,
    stop: Int64[Tensor, "E"],
    forbidden: Float32[Tensor, "V"],
    ends: Int64[Tensor, "E"] | None = None,
    top_p: float = 1.0,
    own_layers: bool = False,
) -> Drawn:
    """Sample G answers to each of P prompts, in rows p * G + g. temperature: 0 is greedy, with log-probabilities at 1. forbidden:
    added to the logits. ends: ids that are one action, as `head.merge_ends`; which of them ends an answer is drawn all the same.
    top_p: as `Sampling` has it; log-probabilities are those among all tokens. own_layers: whether `decoding` may decode for the
    model, where it can."""
    device = stop.device
    answers = seeds.size
    going, logits = _begin_answers(model, prompts, seeds.shape[1], max_new_tokens, device)
    kinds = kinds_of_layers(model.config)
    own = decoder_of(model, going.cache.capacity) if own_layers else None
    decode = own or partial(decode_by_transformers, model)
    chance = torch.from_numpy(draw_uniforms(seeds.reshape(-1), max_new_tokens)).to(device)  # (N, T)
    tokens = torch.zeros(answers, max_new_tokens, dtype=torch.int64, device=device)
    logprobs = torch.zeros(answers, max_new_tokens, device=device)

    for step in range(max_new_tokens):
        show_inside_phase(f"token {step + 1}/{max_new_tokens}")
        rows = going.rows
        token, logprob = _choose_tokens(logits, chance[rows, step], temperature, forbidden, ends, top_p)
        tokens[rows, step] = token
        logprobs[rows, step] = logprob
        going.done |= torch.isin(token, stop)
        finished = int(going.done.sum())
        if finished == len(rows) or step == max_new_tokens - 1:
            break
        if finished >= COMPACTION * len(rows):
            token = token[going.drop_done()]
        going.position = going.position + ~going.done
        masks = by_layer(going.mask[..., : going.cache.length + 1], kinds)
        logits = decode(token, going.position, masks, going.cache)
        going.cache.length += 1
    return _collect_answers(tokens, logprobs, stop)


@dataclass(slots=True, eq=False)
class _GoingAnswers:
    """The answers that the loop goes on with, one a row.

    rows: (B,) their numbers among all. position: (B,) of the last token. mask: (B, 1, 1, L + T) additive, of the prompt and of as
    many tokens as an answer may have. done: (B,) those that have ended and are not dropped yet. cache: keys and values."""

    rows: Int64[Tensor, "B"]
    position: Int64[Tensor, "B"]
    mask: Float[Tensor, "B 1 1 K"]
    done: Bool[Tensor, "B"]
    cache: KeyValues

    def drop_done(self) -> Int64[Tensor, "K"]:
        """Drop the answers that are done; return, for each row that is left, which row it was."""
        order = _closed_up(self.done)
        self.rows = self.rows[order]
        self.position = self.position[order]
        self.mask = self.mask[order]
        self.done = self.done[order]
        self.cache.keep(order)
        return order


def _begin_answers(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], group: int, max_new_tokens: int, device: torch.device
) -> tuple[_GoingAnswers, Float[Tensor, "N V"]]:
    """Run the prompts through the model once, and open `group` answers behind each. Returns them with the logits of their first
    tokens."""
    ids, padding = left_pad(prompts, device, model.dtype)  # (P, L), (P, L)
    cache = KeyValues(ids.shape[1])
    where = positions_of(padding)  # (P, L)
    logits = model(
        input_ids=ids,
        attention_mask=by_layer(causal_mask(padding), kinds_of_layers(model.config)),
        position_ids=where,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits[:, -1]  # (P, V)
    cache.length = ids.shape[1]

    rows = torch.arange(len(prompts) * group, device=device)  # (N,)
    prompt_of = rows // group  # (N,)
    of_answers = padding.new_zeros(len(prompts), max_new_tokens)  # (P, T)
    mask_of_prompt = torch.cat([padding, of_answers], dim=1)  # (P, L + T)
    going = _GoingAnswers(
        rows=rows,
        position=where[prompt_of, -1],
        mask=mask_of_prompt[prompt_of, None, None],
        done=torch.zeros(len(rows), dtype=torch.bool, device=device),
        cache=cache.answers(group, cache.length + max_new_tokens),
    )
    return going, logits[prompt_of]


def _closed_up(done: Bool[Tensor, "B"]) -> Int64[Tensor, "K"]:
    """Return the rows to go on with: each keeps its place where it can, and the last fill the places of those that are done."""
    going = (~done).nonzero().squeeze(1)  # (K,)
    order = torch.arange(len(going), device=done.device)
    order[done[: len(going)]] = going[going >= len(going)]
    return order


def _choose_tokens(
    logits: Float[Tensor, "B V"],
    chance: Float64[Tensor, "B"],
    temperature: float,
    forbidden: Float32[Tensor, "V"],
    ends: Int64[Tensor, "E"] | None,
    top_p: float,
) -> tuple[Int64[Tensor, "B"], Float32[Tensor, "B"]]:
    """Choose a token for each row, with its log-probability in nats. Changes the logits."""
    scaled = logits.float()
    if temperature not in (0.0, 1.0):
        scaled = scaled / temperature
    logp = torch.log_softmax(scaled.add_(forbidden), dim=-1)  # (B, V)
    if temperature == 0:
        token = logp.argmax(dim=-1)
    else:
        probabilities = logp.exp()
        if top_p != 1:
            probabilities = _keep_likeliest(probabilities, top_p)
        token = _invert_cdf(probabilities, chance)
    chosen = logp.gather(1, token[:, None]).squeeze(1)  # (B,)
    if ends is not None:
        of_any_end = logp[:, ends].logsumexp(1)  # (B,)
        chosen = torch.where(torch.isin(token, ends), of_any_end, chosen)
    return token, chosen


def _keep_likeliest(probabilities: Float[Tensor, "B V"], top_p: float) -> Float[Tensor, "B V"]:
    """Return the probabilities with zeros for all tokens but the fewest likeliest that together reach `top_p` (arXiv 1904.09751,
    eq. 3). Not normalised: a token is drawn by its share of what is left."""
    ordered, ids = probabilities.sort(dim=-1, descending=True, stable=True)
    likelier = ordered.cumsum(dim=-1, dtype=torch.float64) - ordered  # what the likelier tokens have together
    kept = torch.where(likelier < top_p, ordered, 0.0)
    return torch.zeros_like(probabilities).scatter_(1, ids, kept)


def _invert_cdf(weights: Float[Tensor, "B V"], chance: Float64[Tensor, "B"]) -> Int64[Tensor, "B"]:
    """Find the token at which the cumulative probability reaches `chance`. In float64; in a large vocabulary first a block of
    ids, then one in it."""
    size = weights.shape[1]
    if size <= BLOCK:
        return _find_reached(weights, chance)[0]
    missing = -size % BLOCK
    padded = torch.nn.functional.pad(weights, (0, missing)) if missing else weights
    blocks = padded.view(len(padded), -1, BLOCK)  # (B, blocks, BLOCK)
    block, chance = _find_reached(blocks.sum(2), chance)  # (B,), (B,)
    rows = torch.arange(len(block), device=block.device)
    inside, _ = _find_reached(blocks[rows, block], chance)
    return block * BLOCK + inside


def _find_reached(
    weights: Float[Tensor, "B K"], chance: Float64[Tensor, "B"]
) -> tuple[Int64[Tensor, "B"], Float64[Tensor, "B"]]:
    """Find the first index whose cumulative weight reaches `chance` of the total, and the share of its weight needed."""
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)  # (B, K)
    wanted = (chance * cumulative[:, -1])[:, None]  # (B, 1)
    index = torch.searchsorted(cumulative, wanted)  # (B, 1)
    beyond = cumulative.gather(1, index) - wanted
    share = 1 - beyond / weights.gather(1, index)
    return index.squeeze(1), share.squeeze(1).clamp(min=2.0**-53)


def _collect_answers(tokens: Int64[Tensor, "N T"], logprobs: Float[Tensor, "N T"], stop: Tensor) -> Drawn:
    """Return the tokens and log-probabilities with each answer's length, its end included, and whether it ended."""
    ends = torch.isin(tokens, stop).cpu().numpy()
    finished = np.any(ends, axis=1)
    lengths = np.where(finished, ends.argmax(axis=1) + 1, tokens.shape[1])
    return Drawn(tokens.cpu().numpy(), logprobs.cpu().numpy(), lengths, finished)
