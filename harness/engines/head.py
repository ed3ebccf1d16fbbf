"""From hidden states to log-probabilities. Many logits are made by parts of the vocabulary, again in the backward pass (the idea
of Wijmans et al., arXiv 2411.09009)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from transformers import PreTrainedModel

from harness.allocation.cost_model import GPU_LOGITS, LOGITS
from harness.errors import EngineError

# Added to logits of ids that are no content; finite, so that p log p is not NaN.
NEVER = -1e9


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """A model's output layer. Its outputs are multiplied by `factor`, then bounded by cap * tanh(x / cap)."""

    weight: Float[Tensor, "V D"]
    bias: Float[Tensor, "V"] | None
    factor: float
    cap: float | None

    @classmethod
    def of(cls, model: PreTrainedModel) -> Head:
        """Take a model's output layer, checked on four tokens. Raises EngineError for one of another form."""
        layer: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        config = model.config.get_text_config()
        # Some configs name the factor, others its inverse
        divisor = getattr(config, "logits_scaling", None) or 1.0
        factor = getattr(config, "logit_scale", None) or 1 / divisor
        cap = getattr(config, "final_logit_softcapping", None)
        head = cls(layer.weight, layer.bias, factor, cap)
        with torch.inference_mode():
            ids = torch.arange(1, 5, device=layer.weight.device)[None]  # (1, 4)
            hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            logits = model(input_ids=ids, use_cache=False).logits
            if logits.isnan().any():
                raise EngineError("the model computes NaN with these weights")
            if not torch.allclose(head.logits(hidden), logits, rtol=1e-2, atol=1e-3):
                raise EngineError(
                    "unsupported output layer: expected a matrix, optionally scaled and soft-capped "
                    f"({config.model_type})"
                )
        return head

    def fits(self, positions: int) -> bool:
        """Whether the logits of so many positions may be there at once."""
        return positions * len(self.weight) <= at_once(self.weight.device)

    def logits(self, hidden: Float[Tensor, "*N D"], rows: slice = slice(None)) -> Float[Tensor, "*N V"]:
        """Make the logits of these rows of the vocabulary, all by default."""
        bias = None if self.bias is None else self.bias[rows]
        values = linear(hidden, self.weight[rows], bias)  # (*N, V)
        if self.factor != 1.0:
            values = values * self.factor
        if self.cap is None:
            return values
        return torch.tanh(values / self.cap) * self.cap


def whole_logprobs(
    logits: Float[Tensor, "*N V"],
    targets: Int64[Tensor, "*N"],
    temperature: float,
    forbidden: Float32[Tensor, "V"],
    ends: Int64[Tensor, "E"] | None = None,
) -> Float32[Tensor, "*N"]:
    """Compute the log-probabilities of `targets` in nats, from logits that are there as a whole.

    forbidden: added to the logits. ends: ids that are one action, as in `merge_ends`."""
    scaled = logits.float() if temperature == 1.0 else logits.float() / temperature  # (*N, V)
    allowed = (scaled + forbidden).flatten(0, -2)  # (N, V)
    flat = targets.flatten()  # (N,)
    values = -cross_entropy(allowed, flat, reduction="none")  # (N,)
    return merge_ends(values, allowed, flat, ends).view_as(targets)


def merge_ends(
    values: Float32[Tensor, "N"],
    logits: Float32[Tensor, "N V"],
    targets: Int64[Tensor, "N"],
    ends: Int64[Tensor, "E"] | None,
) -> Float32[Tensor, "N"]:
    """Replace the log-probability of an end by that of ending at all: log sum_{e in ends} p(e).

    Which of its ends a policy writes changes neither the answer's text nor its verdict, so they are one action (our reading;
    docs/formulas.md). The value is the same, bit for bit, whichever end the target is. ends: None where there is one end, or
    where ends are told apart; `values` are then left as they are."""
    if ends is None:
        return values
    ended = torch.isin(targets, ends).nonzero().squeeze(1)  # (K,) rows whose target is an end
    at_end = logits[ended]  # (K, V)
    of_ending = at_end[:, ends].logsumexp(1) - at_end.logsumexp(1)  # (K,)
    return values.index_put((ended,), of_ending)


def logprobs_by_parts(
    head: Head,
    hidden: Float[Tensor, "N D"],
    targets: Int64[Tensor, "N"],
    temperature: float,
    forbidden: Float32[Tensor, "V"],
    ends: Int64[Tensor, "E"] | None = None,
) -> Float32[Tensor, "N"]:
    """Compute what `whole_logprobs` computes from hidden states, where the logits of all positions would not fit at once: they
    are made by parts of the vocabulary, and again in the backward pass."""
    given = (hidden, head.weight, head.bias, head, targets, temperature, forbidden, ends)
    values: Tensor = _InParts.apply(*given)  # type: ignore[no-untyped-call]  # torch has no types of it
    return values


class _InParts(torch.autograd.Function):
    """Log-probabilities of targets, by parts of the vocabulary, of which only hidden states and two figures a row are kept.

    With z the scaled logits of a row, p = softmax(z), t its target and E the ends that are one action:

        t not in E:  log p(t) = z_t - log sum_v exp z_v                     d log p(t) / d z_v = [v = t] - p_v
        t in E:      log p(E) = log sum_{e in E} exp z_e - log sum_v exp z_v
                     d log p(E) / d z_v = [v in E] exp(z_v - log sum_{e in E} exp z_e) - p_v
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, head: Head,
        targets: Tensor, temperature: float, forbidden: Tensor, ends: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """Compute log-probabilities (N,): `wanted`, the first term above, less `total`, the log-sum over all ids."""
        ctx.head = head
        ctx.temperature = temperature
        ctx.ends = ends
        total = hidden.new_full((len(hidden),), -torch.inf, dtype=torch.float32)  # (N,)
        wanted = torch.full_like(total, -torch.inf)  # (N,) of an end: the log-sum over the ends seen so far
        single, ended = _tell_ends_apart(targets, ends)
        for rows in _cut_vocabulary(hidden, len(weight)):
            scaled = _scale_logits(head.logits(hidden, rows), temperature, forbidden[rows])  # (N, R)
            total = torch.logaddexp(total, scaled.logsumexp(1))
            here = _targets_within(rows, single)
            wanted[here] = scaled[here, single[here] - rows.start]
            local = _ends_within(rows, ends, targets)
            if len(local):
                of_ends = scaled[ended[:, None], local].logsumexp(1)  # (K,)
                wanted[ended] = torch.logaddexp(wanted[ended], of_ends)
        ctx.save_for_backward(hidden, targets, forbidden, total, wanted)
        return wanted - total

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of hidden states, weight and bias. slope (N,): of the loss by each log-probability."""
        hidden, targets, forbidden, total, wanted = ctx.saved_tensors
        head: Head = ctx.head
        to_hidden = torch.zeros_like(hidden, dtype=torch.float32)  # (N, D)
        to_weight = torch.empty_like(head.weight) if ctx.needs_input_grad[1] else None
        to_bias = None if head.bias is None else torch.empty_like(head.bias)
        single, ended = _tell_ends_apart(targets, ctx.ends)
        for rows in _cut_vocabulary(hidden, len(head.weight)):
            logits = head.logits(hidden, rows)  # (N, R)
            scaled = _scale_logits(logits, ctx.temperature, forbidden[rows])
            local = _ends_within(rows, ctx.ends, targets)
            share = None  # (K, L) of each end in the ending; taken before `scaled` is overwritten
            if len(local):
                share = (scaled[ended[:, None], local] - wanted[ended, None]).exp()
            change = scaled.sub_(total[:, None]).exp_().mul_(-slope[:, None])
            here = _targets_within(rows, single)
            change[here, single[here] - rows.start] += slope[here]
            if share is not None:
                change[ended[:, None], local] += slope[ended, None] * share
            change = _pass_back_scaling(change, logits, head, ctx.temperature).to(hidden.dtype)
            to_hidden += change @ head.weight[rows]
            if to_weight is not None:
                torch.mm(change.T, hidden, out=to_weight[rows])
            if to_bias is not None:
                torch.sum(change, 0, out=to_bias[rows])
        return to_hidden.to(hidden.dtype), to_weight, to_bias, None, None, None, None, None


def _pass_back_scaling(
    change: Float32[Tensor, "N R"], logits: Float[Tensor, "N R"], head: Head, temperature: float
) -> Float32[Tensor, "N R"]:
    """Take the loss's slope by scaled logits back to its slope by the layer's outputs: through temperature, cap and factor.

    With y = factor x and logit = cap tanh(y / cap), d logit / d y = 1 - (logit / cap)^2. change: overwritten. logits: not yet
    divided by the temperature."""
    if head.cap is not None:
        change *= 1 - (logits.float() / head.cap) ** 2
    outer = head.factor / temperature
    if outer != 1.0:
        change = change * outer
    return change


def _tell_ends_apart(
    targets: Int64[Tensor, "N"], ends: Int64[Tensor, "E"] | None
) -> tuple[Int64[Tensor, "N"], Int64[Tensor, "K"]]:
    """Separate targets that are ends from the others. Returns the targets, -1 at ends that are one action; and the rows of these
    ends."""
    if ends is None:
        return targets, targets.new_empty(0)
    is_end = torch.isin(targets, ends)
    return targets.masked_fill(is_end, -1), is_end.nonzero().squeeze(1)


def _targets_within(rows: slice, single: Int64[Tensor, "N"]) -> Int64[Tensor, "K"]:
    """Find the places whose target lies in this part of the vocabulary."""
    is_within: Tensor = (single >= rows.start) & (single < rows.stop)
    places: Tensor = is_within.nonzero().squeeze(1)
    return places


def _ends_within(rows: slice, ends: Int64[Tensor, "E"] | None, like: Int64[Tensor, "N"]) -> Int64[Tensor, "L"]:
    """Find the ends in this part of the vocabulary, counted from its beginning; on the device of `like`."""
    if ends is None:
        return like.new_empty(0)
    is_within: Tensor = (ends >= rows.start) & (ends < rows.stop)
    local: Tensor = ends[is_within] - rows.start
    return local


def _scale_logits(logits: Tensor, temperature: float, forbidden: Tensor) -> Tensor:
    """Make logits at the temperature, in fp32, with `forbidden` added. Most parts forbid nothing, and a pass over all logits
    costs."""
    scaled = logits.to(torch.float32, copy=True)
    if temperature != 1.0:
        scaled /= temperature
    return scaled.add_(forbidden) if forbidden.any() else scaled


def at_once(device: torch.device) -> int:
    """Return how many logits may be there at once on a device."""
    return LOGITS if device.type == "cpu" else GPU_LOGITS


def _cut_vocabulary(hidden: Float[Tensor, "N D"], vocabulary: int) -> list[slice]:
    """Cut the vocabulary into slices of which all logits fit at once."""
    width = max(1, at_once(hidden.device) // len(hidden))
    return [slice(start, min(start + width, vocabulary)) for start in range(0, vocabulary, width)]
