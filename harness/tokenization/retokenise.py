"""Peers' records as the learner's own tokens. A record that cannot be carried over is refused by reason, never repaired."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan
from typing import Literal

import numpy as np
from jaxtyping import Float32, Int32

from harness.errors import TokenizationError
from harness.experience.records import Rollout, Success, TextRollout
from harness.experience.refusal import Refusal
from harness.tokenization.alignment import Segmentations, chunks, distribute, inexact
from harness.tokenization.codec import Encoded, TokenCodec
from harness.tokenization.residuals import Budget, Residuals, text_residual

Spread = Literal["bytes", "receiver"]
Score = Callable[[Sequence[Rollout], Sequence[Int32[np.ndarray, "T"]]], Sequence[Float32[np.ndarray, "T"]]]


@dataclass(frozen=True, slots=True, eq=False)
class Retokenised:
    """One record in the receiver's tokens.

    tokens: (T,) including the receiver's EOS iff the answer was finished: EOS maps by meaning.
    aligned: (T,) nats, the source's log-probabilities on these tokens, EOS with the source's EOS; None for a record of text.
    source_logprob, source_tokens: sum and number over the source's own tokens, final EOS left out; NaN and 0 for text.
    spelled_tags: reasoning tags that the receiver has no token for.
    """

    tokens: Int32[np.ndarray, "T"]
    finished: bool
    residuals: Residuals
    aligned: Float32[np.ndarray, "T"] | None = None
    source_logprob: float = nan
    source_tokens: int = 0
    spelled_tags: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a record was not carried over: `reason` is an `experience.refusal.Refusal`, `detail` is for people."""

    reason: str
    detail: str = ""


def retokenise_text(
    records: Sequence[TextRollout | Success], receiver: TokenCodec, *, budget: Budget | None = None
) -> list[Retokenised | Refused]:
    """Records that hold only text, in the receiver's tokens, in order. A `Success` is a finished answer."""

    def carried(record: TextRollout | Success, encoded: Encoded, text: float) -> Retokenised:
        finished = not isinstance(record, TextRollout) or record.finished
        tokens = np.append(encoded.ids, np.int32(receiver.eos_id)) if finished else encoded.ids
        return Retokenised(tokens, finished, Residuals(text=text), spelled_tags=encoded.spelled_tags)

    return [
        read if isinstance(read, Refused) else _within(budget, carried(record, *read))
        for record, read in zip(records, _read(records, receiver), strict=True)
    ]


def retokenise(
    records: Sequence[Rollout],
    receiver: TokenCodec,
    *,
    how: Spread = "bytes",
    budget: Budget | None = None,
    score: Score | None = None,
) -> list[Retokenised | Refused]:
    """Records with log-probabilities, in the receiver's tokens, in order; `Record.check` has passed for each.

    how: where a chunk's log-probability goes, in proportion to `bytes`, or to the `receiver`'s own log-probabilities.
    score: these, for the records still in the running and their tokens (T,) without EOS; called once.

    Raises
    ------
    ValueError
        how is `receiver` and `score` is missing.
    """
    if how == "receiver" and score is None:
        raise ValueError("spreading by the receiver's log-probabilities needs `score`")
    read = _read(records, receiver)
    kept = [(record, *r) for record, r in zip(records, read, strict=True) if not isinstance(r, Refused)]
    done = iter(_aligned(kept, receiver, score if how == "receiver" else None) if kept else [])
    return [r if isinstance(r, Refused) else _within(budget, next(done)) for r in read]


def _aligned(
    kept: Sequence[tuple[Rollout, Encoded, float]], receiver: TokenCodec, score: Score | None
) -> list[Retokenised]:
    """Alignment of all records at once, then each record's part of it. The float of a record is its `text` residual."""
    records = [record for record, _, _ in kept]
    sent, sizes = np.array([len(r.tokens) for r in records]), np.array([e.ids.size for _, e, _ in kept])
    logprobs = np.concatenate([np.array(r.logprobs, dtype=np.float64) for r in records])
    source_ends = np.concatenate([np.cumsum(r.pieces) for r in records])
    pair = Segmentations(source_ends, np.concatenate([e.ends for _, e, _ in kept]), sent, sizes)
    parts = chunks(pair)
    weights = None
    if score is not None:
        weights = np.concatenate([np.asarray(s, dtype=np.float64) for s in score(records, [e.ids for _, e, _ in kept])])
    aligned = distribute(pair, parts, logprobs, weights)
    begins = np.cumsum(sizes) - sizes
    mass = np.add.reduceat(logprobs, np.cumsum(sent) - sent)
    lost = np.add.reduceat(aligned, begins, dtype=np.float64) - mass
    guessed = np.add.reduceat(np.repeat(inexact(parts), parts.receiver_sizes), begins, dtype=np.int64)
    results = []
    for i, (record, encoded, text) in enumerate(kept):
        size, count = int(sizes[i]), int(sent[i])
        residuals = Residuals(
            text=text,
            boundary=float(guessed[i]) / size,
            mass=abs(float(lost[i])),
            length=abs(size - count) / count,
            canonical=nan if record.noncanonical is None else record.noncanonical,
        )
        tokens, values = encoded.ids, aligned[begins[i] : begins[i] + size]
        if record.finished:
            tokens = np.append(tokens, np.int32(receiver.eos_id))
            values = np.append(values, np.float32(record.eos_logprob))
        results.append(
            Retokenised(tokens, record.finished, residuals, values, float(mass[i]), count, encoded.spelled_tags)
        )
    return results


def _read(
    records: Sequence[Rollout | TextRollout | Success], receiver: TokenCodec
) -> list[tuple[Encoded, float] | Refused]:
    """Each text in the receiver's tokens, with its `text` residual."""
    results: list[tuple[Encoded, float] | Refused] = []
    for record, encoded in zip(records, receiver.try_encode([r.text for r in records]), strict=True):
        try:
            if isinstance(encoded, TokenizationError):
                raise encoded
            results.append((encoded, text_residual(receiver, record.text, encoded)))
        except TokenizationError as error:
            results.append(Refused(Refusal.UNTRANSLATABLE, str(error)))
    return results


def _within(budget: Budget | None, carried: Retokenised) -> Retokenised | Refused:
    excess = None if budget is None else budget.exceeded(carried.residuals)
    return carried if excess is None else Refused(Refusal.RESIDUAL, excess)
