"""The one surrogate loss: flat log-probabilities in, a loss out. Sequence (GSPO, arXiv 2507.18071) and cross ratios (HACPO,
arXiv 2603.02604) are token ratios whose log is replaced by its mean over the answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
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


def surrogate_loss(logp: Float[Tensor, "N"], packed: Packed) -> tuple[Float[Tensor, ""], AnswerStatistics]:
    """Return the loss to minimise, and what happened to each answer.

    logp: nats, of the tokens in `packed`; carries the gradient. Losses of several packs add up. Raises ValueError where the
    lengths differ.
    """
    if logp.shape != packed.denominator.shape:
        raise ValueError(f"{logp.numel()} log-probabilities for {packed.denominator.size} tokens")
    tokens = _PackedTokens.of(logp, packed)
    weight, shaping = _weigh_tokens(logp, tokens)
    ratios = _compute_ratios(logp, tokens)
    value, clipped = _compute_values(logp, tokens, ratios)
    loss = -weight * value
    return loss.sum(), _summarise_answers(logp, loss, weight, shaping, clipped, tokens, ratios)


@dataclass(frozen=True, slots=True, eq=False)
class _PackedTokens:
    """A pack's figures for each of N tokens, on the device and in the precision of the log-probabilities. old: the denominator;
    where the answer is on-policy the log-probability itself without gradient, so that the ratio is 1 and carries the gradient.
    hard, truncated, nll, kl: by the objective's form. counts: tokens of each of A answers. answer_of: the answer of each
    token."""

    packed: Packed
    counts: Int64[Tensor, "A"]
    answer_of: Int64[Tensor, "N"]
    advantage: Float[Tensor, "N"]
    old: Float[Tensor, "N"]
    sampled: Float[Tensor, "N"]
    high: Float[Tensor, "N"]
    pooled: Bool[Tensor, "N"]
    hard: Bool[Tensor, "N"]
    truncated: Bool[Tensor, "N"]
    nll: Bool[Tensor, "N"]
    kl: Bool[Tensor, "N"]
    token_weight: Int64[Tensor, "N"]

    @classmethod
    def of(cls, logp: Float[Tensor, "N"], packed: Packed) -> _PackedTokens:
        """Take the figures of a pack."""
        counts = torch.as_tensor(packed.counts, device=logp.device)  # (A,)
        answer_of = torch.repeat_interleave(counts)  # (N,)
        form = _repeat_for_tokens(packed.form, answer_of, logp)
        given = _to_device(packed.denominator, logp)
        is_on_policy = _repeat_for_tokens(packed.on_policy, answer_of, logp)
        return cls(
            packed=packed,
            counts=counts,
            answer_of=answer_of,
            advantage=_to_device(packed.advantage, logp),
            old=torch.where(is_on_policy, logp.detach(), given),
            sampled=_to_device(packed.sampled, logp),
            high=_repeat_for_tokens(packed.high, answer_of, logp),
            pooled=_repeat_for_tokens(packed.pooled, answer_of, logp),
            hard=form == FormCode.HARD,
            truncated=form == FormCode.TRUNCATED,
            nll=form == FormCode.NLL,
            kl=form == FormCode.KL,
            token_weight=_repeat_for_tokens(packed.token_weight, answer_of, logp),
        )

    def repeat(self, values: np.ndarray) -> Tensor:
        """Return a figure of each answer for each of its tokens."""
        return _repeat_for_tokens(values, self.answer_of, self.advantage)


@dataclass(frozen=True, slots=True, eq=False)
class _Ratios:
    """Importance ratios. log: of `ratio`, nats, cut at the objective's bound, beyond which it has no gradient. unbounded: before
    the cut. bounded: where nothing was cut."""

    ratio: Float[Tensor, "N"]
    log: Float[Tensor, "N"]
    unbounded: Float[Tensor, "N"]
    bounded: Bool[Tensor, "N"]


def _to_device(values: Float64[np.ndarray, "N"], like: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    """Bring a figure of each token (N,) to the device and the precision of `like`."""
    return torch.as_tensor(values, device=like.device).to(like.dtype)


def _repeat_for_tokens(values: np.ndarray, answer_of: Int64[Tensor, "N"], like: Tensor) -> Tensor:
    """Repeat each answer's figure for its tokens; numbers in the precision of `like`."""
    tensor = torch.as_tensor(values, device=like.device)
    if tensor.dtype not in (torch.bool, torch.int64):
        tensor = tensor.to(like.dtype)
    return tensor[answer_of]


def _weigh_tokens(logp: Float[Tensor, "N"], tokens: _PackedTokens) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"]]:
    """Compute each token's weight in the loss, and the part of it that follows the token's probability; both without gradient."""
    packed = tokens.packed
    now = logp.detach()
    weight = tokens.repeat(packed.weight)  # (N,), as all that follow
    if packed.correction.any():  # truncated importance sampling between trainer and sampler
        most = tokens.repeat(packed.correction)
        drifted = torch.minimum((tokens.old - tokens.sampled).exp(), most)
        weight = torch.where(tokens.sampled.isnan(), weight, weight * drifted)
    shaping = torch.ones_like(now)
    if packed.token_weight.any():
        p = now.exp()
        gamma = tokens.repeat(packed.gamma)
        shaped = p / (p + gamma)
        slope = shaped * gamma / (p + gamma)  # of `shaped` by log p
        unsure = p * -now.expm1()  # p (1 - p)
        shaping = torch.where(tokens.token_weight == WeightCode.SHAPED, shaped, shaping)
        shaping = torch.where(tokens.token_weight == WeightCode.SLOPE, slope, shaping)
        shaping = torch.where(tokens.token_weight == WeightCode.UNSURE, unsure, shaping)
        weight = weight * shaping
    return weight, shaping


def _compute_ratios(logp: Float[Tensor, "N"], tokens: _PackedTokens) -> _Ratios:
    """Compute the ratio of each token; of a sequence or cross ratio the answer's, at each of its tokens."""
    log_ratio = logp - tokens.old  # (N,)
    if tokens.packed.pooled.any():
        mean = torch.segment_reduce(log_ratio, "mean", lengths=tokens.counts, unsafe=True)  # (A,)
        log_ratio = torch.where(tokens.pooled, mean[tokens.answer_of], log_ratio)
    unbounded = log_ratio * tokens.repeat(tokens.packed.log_scale)
    log_bound = tokens.repeat(tokens.packed.log_bound)
    bounded = unbounded.abs() <= log_bound
    log = torch.where(bounded, unbounded, log_bound * unbounded.detach().sign())
    return _Ratios(log.exp(), log, unbounded, bounded)


def _compute_values(
    logp: Float[Tensor, "N"], tokens: _PackedTokens, ratios: _Ratios
) -> tuple[Float[Tensor, "N"], Bool[Tensor, "N"]]:
    """Compute what each token's weight multiplies, and where a bound took the gradient.

    min(r A, clip(r) A) is r A unless the clip makes it smaller; `hard` clips both sides whatever the sign of A.
    """
    ratio = ratios.ratio
    advantage = tokens.advantage
    high = tokens.high
    low = tokens.repeat(tokens.packed.low)
    above = ratio > high
    below = ratio < low
    smaller = (above & (advantage > 0)) | (below & (advantage < 0))
    clips = ~tokens.nll & ~tokens.kl & ~tokens.truncated
    clipped = torch.where(tokens.hard, above | below, smaller) & clips  # (N,)
    clamped = torch.minimum(torch.maximum(ratio, low), high).detach()
    exponent = tokens.repeat(tokens.packed.exponent)
    value = torch.where(clipped, clamped, ratio) * clamped**exponent * advantage  # (N,)
    if tokens.truncated.any():  # the weight is cut at `high`, the log-probability's gradient stays
        at_bound = high * (1.0 + ratios.unbounded - ratios.unbounded.detach())
        value = torch.where(tokens.truncated, torch.where(above, at_bound, ratio) * advantage, value)
    # `kl`: minus k3 of log(p / base), which is 1 - exp(-x) - x
    penalty = 1.0 - (-ratios.log).exp() - ratios.log
    with_penalty = torch.where(tokens.kl, penalty, value)
    return torch.where(tokens.nll, logp, with_penalty), clipped


def _summarise_answers(
    logp: Float[Tensor, "N"],
    loss: Float[Tensor, "N"],
    weight: Float[Tensor, "N"],
    shaping: Float[Tensor, "N"],
    clipped: Bool[Tensor, "N"],
    tokens: _PackedTokens,
    ratios: _Ratios,
) -> AnswerStatistics:
    """Sum over each answer's tokens what happened to them."""

    def sum_answers(values: Tensor) -> np.ndarray:
        summed = torch.segment_reduce(values.detach().double(), "sum", lengths=tokens.counts, unsafe=True)  # (A,)
        return summed.cpu().numpy()

    pushed, moving = _find_moving_tokens(weight, clipped, tokens, ratios)
    stopped = pushed & ~moving & ~tokens.kl  # whose gradient a bound took
    share = _share_of_weights(logp, tokens)
    ratio = torch.where(tokens.nll, 1.0, ratios.ratio.detach().double())  # (N,); `nll` has none, which counts as 1
    weights = ratio * shaping  # (N,)
    # Only the step's first forward pass sees the weights that the sampler had
    is_first = tokens.repeat(tokens.packed.first)
    drift = torch.where(is_first, logp.detach() - tokens.sampled, torch.nan)
    return AnswerStatistics(
        loss=sum_answers(loss),
        active_tokens=sum_answers(moving).astype(np.int64),
        clipped_tokens=sum_answers(stopped).astype(np.int64),
        ratio_sum=sum_answers(weights * share),
        ratio_square=sum_answers(weights**2 * share),
        ratio_count=np.rint(sum_answers(share)).astype(np.int64),
        drift=drift.float().cpu().numpy(),
    )


def _find_moving_tokens(
    weight: Float[Tensor, "N"], clipped: Bool[Tensor, "N"], tokens: _PackedTokens, ratios: _Ratios
) -> tuple[Bool[Tensor, "N"], Bool[Tensor, "N"]]:
    """Find which tokens would have a gradient without bounds, and which have one."""
    needs_no_advantage = tokens.nll | tokens.kl
    pushed = (weight != 0) & (needs_no_advantage | (tokens.advantage != 0))
    beyond_truncation = tokens.truncated & (ratios.ratio > tokens.high)
    not_flat = torch.where(tokens.kl, ratios.log != 0, ~clipped)
    moving = pushed & (tokens.nll | beyond_truncation | (ratios.bounded & not_flat))
    return pushed, moving


def _share_of_weights(logp: Float[Tensor, "N"], tokens: _PackedTokens) -> Float64[Tensor, "N"]:
    """Mark the tokens that have an importance weight of their own by 1, others by 0: an answer's one weight stands at its first
    token, and `kl` has none."""
    of_one_weight = tokens.pooled | (tokens.nll & (tokens.token_weight == WeightCode.ONE))
    share = torch.ones_like(logp, dtype=torch.float64).masked_fill(of_one_weight, 0.0)
    first_of_answers = tokens.counts.cumsum(0) - tokens.counts  # (A,) places of first tokens
    share[first_of_answers] = 1.0
    return share * ~tokens.kl
