"""The one surrogate loss: flat log-probabilities in, a loss out. Sequence (GSPO, arXiv 2507.18071) and cross ratios (HACPO,
arXiv 2603.02604) are token ratios whose log is replaced by its mean over the answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from harness.learning.minibatches import FormCode, Packed, WeightCode


@dataclass(frozen=True, slots=True, eq=False)
class AnswerStatistics:
    """What happened to each of A answers. active_tokens: with a nonzero gradient. clipped_tokens: that a bound took it from;
    none for `nll` and `kl`. ratio_*: sums over importance weights before clipping, times token weights; r is 1 for an answer
    of `nll`, or for each token where tokens have weights; `kl` has none. drift: the trainer's log-probability at the
    step's start less the sampler's, nats; NaN where not known."""

    loss: Float64[np.ndarray, "A"]
    active_tokens: Int64[np.ndarray, "A"]
    clipped_tokens: Int64[np.ndarray, "A"]
    ratio_sum: Float64[np.ndarray, "A"]
    ratio_square: Float64[np.ndarray, "A"]
    ratio_count: Int64[np.ndarray, "A"]
    drift: Float32[np.ndarray, "N"]


def surrogate(logp: Float[Tensor, "N"], packed: Packed) -> tuple[Float[Tensor, ""], AnswerStatistics]:
    """The loss to minimise. logp: nats, of the tokens in `packed`; carries the gradient. Losses of several packs add up.
    Raises ValueError where the lengths differ."""
    if logp.shape != packed.denominator.shape:
        raise ValueError(f"{logp.numel()} log-probabilities for {packed.denominator.size} tokens")
    counts = torch.as_tensor(packed.counts, device=logp.device)
    answer_of = torch.repeat_interleave(counts)

    def per_token(values: np.ndarray) -> Tensor:
        tensor = torch.as_tensor(values, device=logp.device)
        return (tensor if tensor.dtype in (torch.bool, torch.int64) else tensor.to(logp.dtype))[answer_of]

    advantage = torch.as_tensor(packed.advantage, device=logp.device).to(logp.dtype)
    weight, form = per_token(packed.weight), per_token(packed.form)
    low, high, log_bound = per_token(packed.low), per_token(packed.high), per_token(packed.log_bound)
    pooled, hard, nll, kl = per_token(packed.pooled), form == FormCode.HARD, form == FormCode.NLL, form == FormCode.KL
    truncated = form == FormCode.TRUNCATED

    now = logp.detach()
    old = torch.as_tensor(packed.denominator, device=logp.device).to(logp.dtype)
    old = torch.where(per_token(packed.on_policy), now, old)  # a ratio of 1 that carries the gradient
    sampled = torch.as_tensor(packed.sampled, device=logp.device).to(logp.dtype)
    if packed.correction.any():
        drifted = torch.minimum((old - sampled).exp(), per_token(packed.correction))
        weight = torch.where(sampled.isnan(), weight, weight * drifted)
    weighing = torch.ones_like(now)
    shape = per_token(packed.token_weight)
    if packed.token_weight.any():
        p, gamma = now.exp(), per_token(packed.gamma)
        shaped = p / (p + gamma)
        weighing = torch.where(shape == WeightCode.SHAPED, shaped, weighing)
        weighing = torch.where(shape == WeightCode.SLOPE, shaped * gamma / (p + gamma), weighing)
        weighing = torch.where(shape == WeightCode.UNSURE, p * -now.expm1(), weighing)
        weight = weight * weighing
    log_ratio = logp - old
    if packed.pooled.any():
        mean = torch.segment_reduce(log_ratio, "mean", lengths=counts, unsafe=True)
        log_ratio = torch.where(pooled, mean[answer_of], log_ratio)
    log_ratio = log_ratio * per_token(packed.log_scale)
    unbounded = log_ratio
    bounded = log_ratio.abs() <= log_bound
    log_ratio = torch.where(bounded, log_ratio, log_bound * log_ratio.detach().sign())  # no gradient beyond the bound
    ratio = log_ratio.exp()

    # min(r A, clip(r) A) is r A unless the clip makes it smaller; `hard` clips both sides whatever the sign of A.
    above, below = ratio > high, ratio < low
    clipped = (
        torch.where(hard, above | below, (above & (advantage > 0)) | (below & (advantage < 0)))
        & ~nll
        & ~kl
        & ~truncated
    )
    clamped = torch.minimum(torch.maximum(ratio, low), high).detach()
    value = torch.where(clipped, clamped, ratio) * clamped ** per_token(packed.exponent) * advantage
    if truncated.any():  # the weight is cut at `high`, the log-probability's gradient stays
        held = high * (1.0 + unbounded - unbounded.detach())
        value = torch.where(truncated, torch.where(above, held, ratio) * advantage, value)
    # `kl`: minus k3 of log(p / base), which is 1 - exp(-x) - x
    value = torch.where(nll, logp, torch.where(kl, 1.0 - (-log_ratio).exp() - log_ratio, value))
    loss = -weight * value
    pushed = (weight != 0) & (nll | kl | (advantage != 0))
    moving = pushed & (nll | (truncated & above) | (bounded & torch.where(kl, log_ratio != 0, ~clipped)))

    def per_answer(values: Tensor) -> np.ndarray:
        summed = torch.segment_reduce(values.detach().double(), "sum", lengths=counts, unsafe=True)
        return summed.cpu().numpy()

    share = torch.ones_like(logp, dtype=torch.float64).masked_fill(pooled | (nll & (shape == WeightCode.ONE)), 0.0)
    share[counts.cumsum(0) - counts] = 1.0  # an answer's one weight stands at its first token
    share = share * ~kl
    detached = torch.where(nll, 1.0, ratio.detach().double()) * weighing
    return loss.sum(), AnswerStatistics(
        loss=per_answer(loss),
        active_tokens=per_answer(moving).astype(np.int64),
        clipped_tokens=per_answer(pushed & ~moving & ~kl).astype(np.int64),
        ratio_sum=per_answer(detached * share),
        ratio_square=per_answer(detached**2 * share),
        ratio_count=np.rint(per_answer(share)).astype(np.int64),
        drift=torch.where(per_token(packed.first), now - sampled, torch.nan).float().cpu().numpy(),
    )
