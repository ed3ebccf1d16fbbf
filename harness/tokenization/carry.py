"""Peers' records as the learner's own tokens. A record that cannot be carried over is refused by reason, never repaired."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import numpy as np
from jaxtyping import Float32, Float64, Int32, Int64

from harness.errors import ExchangeError, TokenizationError
from harness.exchange.codec import check
from harness.exchange.records import Rollout, Success, TextRollout
from harness.exchange.refusal import Refusal
from harness.tokenization.alignment import Segmentations, chunks, inexact, spread
from harness.tokenization.codec import Encoded, TokenCodec
from harness.tokenization.residuals import Budget, Residuals, text_residual

Spread = Literal["bytes", "receiver"]
Score = Callable[[Sequence[Rollout], Sequence[Int32[np.ndarray, "T"]]], Sequence[Float32[np.ndarray, "T"]]]


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """One record in the receiver's tokens.

    tokens: (T,) including the receiver's EOS iff the answer was finished.
    aligned: (T,) the source's log-probabilities on these tokens, EOS with the source's EOS; None for a record of text.
    source_logprob, source_tokens: sum and number over the source's own tokens, final EOS left out; NaN and 0 for text.
    """

    tokens: Int32[np.ndarray, "T"]
    finished: bool
    residuals: Residuals
    aligned: Float32[np.ndarray, "T"] | None = None
    source_logprob: float = float("nan")
    source_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a record was not carried over: `reason` is an `exchange.Refusal`, `detail` is for people."""

    reason: str
    detail: str = ""


def carry_text(
    records: Sequence[TextRollout | Success], receiver: TokenCodec, *, budget: Budget | None = None
) -> list[Carried | Refused]:
    """Records that hold only text, in the receiver's tokens, in order. A `Success` is a finished answer."""
    results: list[Carried | Refused] = []
    for record, encoded in zip(records, _encode(records, receiver), strict=True):
        if isinstance(encoded, Refused):
            results.append(encoded)
            continue
        residuals = Residuals(text=text_residual(receiver, record.text, encoded))
        finished = not isinstance(record, TextRollout) or record.finished
        results.append(
            _over_budget(residuals, budget) or Carried(_with_eos(encoded.ids, receiver, finished), finished, residuals)
        )
    return results


def carry_over(
    records: Sequence[Rollout],
    receiver: TokenCodec,
    *,
    how: Spread = "bytes",
    budget: Budget | None = None,
    score: Score | None = None,
) -> list[Carried | Refused]:
    """Records with log-probabilities, in the receiver's tokens, in order.

    how: where a chunk's log-probability goes, in proportion to bytes, or to the receiver's own log-probabilities, which
    `score` then gives.
    """
    encoded = _encode(records, receiver)
    kept = [(r, e) for r, e in zip(records, encoded, strict=True) if isinstance(e, Encoded)]
    done = iter(_aligned(kept, receiver, how, budget, score) if kept else [])
    return [e if isinstance(e, Refused) else next(done) for e in encoded]


def _aligned(
    kept: Sequence[tuple[Rollout, Encoded]],
    receiver: TokenCodec,
    how: Spread,
    budget: Budget | None,
    score: Score | None,
) -> list[Carried | Refused]:
    source_counts = np.array([len(r.tokens) for r, _ in kept])
    receiver_counts = np.array([e.ids.size for _, e in kept])
    pair = Segmentations(
        np.concatenate([np.cumsum(r.pieces) for r, _ in kept]),
        np.concatenate([e.ends for _, e in kept]).astype(np.int64),
        source_counts,
        receiver_counts,
    )
    parts = chunks(pair)
    logprobs = np.fromiter(chain.from_iterable(r.logprobs for r, _ in kept), np.float64, int(source_counts.sum()))
    weights = None
    if how == "receiver" and score is not None:
        scores = score([r for r, _ in kept], [e.ids for _, e in kept])
        weights = np.concatenate(scores).astype(np.float64)
    aligned = spread(pair, parts, logprobs, weights)
    guessed = np.repeat(inexact(parts), parts.receiver_sizes)
    results: list[Carried | Refused] = []
    at = np.concatenate([[0], np.cumsum(receiver_counts)])
    from_ = np.concatenate([[0], np.cumsum(source_counts)])
    for i, (record, encoded) in enumerate(kept):
        own, source = aligned[at[i] : at[i + 1]], logprobs[from_[i] : from_[i + 1]]
        mass = float(source.sum())
        residuals = Residuals(
            text=text_residual(receiver, record.text, encoded),
            boundary=float(guessed[at[i] : at[i + 1]].mean()),
            mass=abs(float(own.sum(dtype=np.float64)) - mass),
            length=abs(encoded.ids.size - source.size) / source.size,
        )
        tokens = _with_eos(encoded.ids, receiver, record.finished)
        values = np.append(own, np.float32(record.eos_logprob)) if record.finished else own
        results.append(
            _over_budget(residuals, budget)
            or Carried(tokens, record.finished, residuals, values.astype(np.float32), mass, source.size)
        )
    return results


def _encode(
    records: Sequence[Rollout | TextRollout | Success], receiver: TokenCodec
) -> list[Encoded | Refused]:
    """Each text in the receiver's tokens; a record that contradicts itself is refused before it is looked at."""
    checked: list[Refused | None] = []
    for record in records:
        try:
            check(record)
        except ExchangeError as error:
            checked.append(Refused(error.reason, str(error)))
        else:
            checked.append(None)
    tried = iter(receiver.try_encode([r.text for r, c in zip(records, checked, strict=True) if c is None]))
    results: list[Encoded | Refused] = []
    for refusal in checked:
        encoded = refusal or next(tried)
        if isinstance(encoded, TokenizationError):
            encoded = Refused(Refusal.UNTRANSLATABLE, str(encoded))
        results.append(encoded)
    return results


def _with_eos(ids: Int32[np.ndarray, "T"], receiver: TokenCodec, finished: bool) -> Int32[np.ndarray, "T"]:
    """EOS maps by meaning: the receiver's own, iff the author ended its answer."""
    return np.append(ids, np.int32(receiver.eos_id)) if finished else ids


def _over_budget(residuals: Residuals, budget: Budget | None) -> Refused | None:
    over = budget.exceeded(residuals) if budget is not None else None
    return Refused(Refusal.RESIDUAL, over) if over else None
