"""Peers' records as the learner's own tokens. A record that cannot be carried over is refused by reason, never repaired."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import nan
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32, Int32, Int64

from harness.errors import ExchangeError, TokenizationError
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

    tokens: (T,) including the receiver's EOS iff the answer was finished.
    aligned: (T,) the source's log-probabilities on these tokens, EOS with the source's EOS; None for a record of text.
    source_logprob, source_tokens: sum and number over the source's own tokens, final EOS left out; NaN and 0 for text.
    letters: reasoning marks that the receiver has no token for (`tokenization.marks`).
    """

    tokens: Int32[np.ndarray, "T"]
    finished: bool
    residuals: Residuals
    aligned: Float32[np.ndarray, "T"] | None = None
    source_logprob: float = float("nan")
    source_tokens: int = 0
    letters: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a record was not carried over: `reason` is an `experience.refusal.Refusal`, `detail` is for people."""

    reason: str
    detail: str = ""


def retokenise_text(
    records: Sequence[TextRollout | Success], receiver: TokenCodec, *, budget: Budget | None = None
) -> list[Retokenised | Refused]:
    """Records that hold only text, in the receiver's tokens, in order. A `Success` is a finished answer."""
    results: list[Retokenised | Refused] = []
    for record, read in zip(records, _read(records, receiver), strict=True):
        if isinstance(read, Refused):
            results.append(read)
            continue
        finished = not isinstance(record, TextRollout) or record.finished
        tokens = _with_eos(read.encoded.ids, receiver, finished)
        residuals = Residuals(text=read.text)
        results.append(
            _over(budget, residuals) or Retokenised(tokens, finished, residuals, letters=read.encoded.letters)
        )
    return results


def retokenise(
    records: Sequence[Rollout],
    receiver: TokenCodec,
    *,
    how: Spread = "bytes",
    budget: Budget | None = None,
    score: Score | None = None,
) -> list[Retokenised | Refused]:
    """Records with log-probabilities, in the receiver's tokens, in order.

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
    kept = [(record, r) for record, r in zip(records, read, strict=True) if isinstance(r, _Read)]
    done = iter(_aligned(kept, receiver, budget, score if how == "receiver" else None) if kept else [])
    return [r if isinstance(r, Refused) else next(done) for r in read]


def _aligned(
    kept: Sequence[tuple[Rollout, _Read]], receiver: TokenCodec, budget: Budget | None, score: Score | None
) -> list[Retokenised | Refused]:
    """Alignment of all records at once, then each record's part of it."""
    records, encoded = [record for record, _ in kept], [read.encoded for _, read in kept]
    source = _Flat.of([record.logprobs for record in records], np.float64)
    pieces = _Flat.of([record.pieces for record in records], np.int64)
    total = np.cumsum(pieces.values)
    source_ends = total - np.repeat(total[pieces.begins] - pieces.values[pieces.begins], pieces.counts)
    counts = np.array([e.ids.size for e in encoded])
    pair = Segmentations(source_ends, np.concatenate([e.ends for e in encoded]), source.counts, counts)
    parts = chunks(pair)
    weights = None
    if score is not None:
        weights = np.concatenate([np.asarray(s, dtype=np.float64) for s in score(records, [e.ids for e in encoded])])
    aligned = distribute(pair, parts, source.values, weights)
    begins = np.cumsum(counts) - counts
    mass = np.add.reduceat(source.values, source.begins)
    aligned_mass = np.add.reduceat(aligned, begins, dtype=np.float64)
    guessed = np.add.reduceat(np.repeat(inexact(parts), parts.receiver_sizes), begins, dtype=np.int64)
    results: list[Retokenised | Refused] = []
    for i, (record, read) in enumerate(kept):
        size, sent = int(counts[i]), int(source.counts[i])
        residuals = Residuals(
            text=read.text,
            boundary=float(guessed[i]) / size,
            mass=abs(float(aligned_mass[i] - mass[i])),
            length=abs(size - sent) / sent,
            canonical=nan if record.noncanonical is None else record.noncanonical,
        )
        tokens = _with_eos(read.encoded.ids, receiver, record.finished)
        values = aligned[begins[i] : begins[i] + size]
        if record.finished:
            values = _ended(values, record.eos_logprob)
        results.append(
            _over(budget, residuals)
            or Retokenised(tokens, record.finished, residuals, values, float(mass[i]), sent, read.encoded.letters)
        )
    return results


@dataclass(frozen=True, slots=True, eq=False)
class _Flat:
    """Lists joined: (N,) values, (A,) lengths of the lists and where each begins."""

    values: Any
    counts: Int64[np.ndarray, "A"]
    begins: Int64[np.ndarray, "A"]

    @classmethod
    def of(cls, lists: Sequence[Sequence[float]], dtype: type[np.generic]) -> _Flat:
        counts = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        values = np.fromiter(chain.from_iterable(lists), dtype=dtype, count=int(counts.sum()))
        return cls(values, counts, np.cumsum(counts) - counts)


@dataclass(frozen=True, slots=True)
class _Read:
    """A record's text in the receiver's tokens, and its `text` residual."""

    encoded: Encoded
    text: float


def _read(records: Sequence[Rollout | TextRollout | Success], receiver: TokenCodec) -> list[_Read | Refused]:
    """Each text in the receiver's tokens; a record that contradicts itself is refused before it is looked at."""
    checked: list[Refused | None] = []
    for record in records:
        try:
            record.check()
        except ExchangeError as error:
            checked.append(Refused(error.reason, str(error)))
        else:
            checked.append(None)
    tried = iter(receiver.try_encode([r.text for r, c in zip(records, checked, strict=True) if c is None]))
    return [
        refusal or _measured(record.text, next(tried), receiver)
        for record, refusal in zip(records, checked, strict=True)
    ]


def _measured(text: str, encoded: Encoded | TokenizationError, receiver: TokenCodec) -> _Read | Refused:
    try:
        if isinstance(encoded, TokenizationError):
            raise encoded
        return _Read(encoded, text_residual(receiver, text, encoded))
    except TokenizationError as error:
        return Refused(Refusal.UNTRANSLATABLE, str(error))


def _with_eos(ids: Int32[np.ndarray, "T"], receiver: TokenCodec, finished: bool) -> Int32[np.ndarray, "T"]:
    """EOS maps by meaning: the receiver's own, iff the author ended its answer."""
    return _ended(ids, receiver.eos_id) if finished else ids


def _ended(values: Any, last: float) -> Any:
    result = np.empty(values.size + 1, dtype=values.dtype)
    result[:-1], result[-1] = values, last
    return result


def _over(budget: Budget | None, residuals: Residuals) -> Refused | None:
    excess = None if budget is None else budget.exceeded(residuals)
    return None if excess is None else Refused(Refusal.RESIDUAL, excess)
