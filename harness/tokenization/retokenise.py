"""Peers' records as the learner's own tokens, and what that loses (residuals)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan

import numpy as np
from jaxtyping import Float32, Float64, Int32

from harness.errors import ExchangeError, TokenizationError
from harness.experience.records import AnswerRecord, Refusal, Rollout, Scores
from harness.tokenization.alignment import Segmentations, chunks, distribute, inexact
from harness.tokenization.codec import Decoded, Encoded, TokenCodec

__all__ = ["Retokenised", "align", "edit_distance", "excess", "noncanonical_shares", "retokenise", "text_residual"]

WINDOW = 2048  # bytes: edit distance costs the square of the length, so longer texts are compared in windows
Score = Callable[[Sequence[AnswerRecord], Sequence[Int32[np.ndarray, "T"]]], Sequence[Float32[np.ndarray, "T"]]]


@dataclass(frozen=True, slots=True, eq=False)
class Retokenised:
    """One record in the receiver's tokens, with its EOS iff finished. ends: byte position where each but EOS ends. residuals, our
    reading: `text`: byte edit distance of the text and its round trip / bytes; with log-probabilities also `boundary`: share of
    tokens in chunks with several; `mass`: |aligned - source| sum, nats; `length`: difference of tokens / source's; `canonical`: the
    record's `noncanonical`. aligned: (T,) nats; source_logprob, source_tokens: over the source's tokens without EOS."""

    tokens: Int32[np.ndarray, "T"]
    ends: Int32[np.ndarray, "T"]
    residuals: Mapping[str, float]
    spelled_tags: int = 0
    aligned: Float32[np.ndarray, "T"] | None = None
    source_logprob: float = nan
    source_tokens: int = 0


def retokenise(
    records: Sequence[AnswerRecord],
    receiver: TokenCodec,
    *,
    budget: Mapping[str, float] = {},
    score: Score | None = None,
) -> list[Retokenised | ExchangeError]:
    """Checked records in order; in place of a refused one its error (`untranslatable`, `residual`). budget: the most of a
    residual, by name; what was not measured is within it. score: the receiver's own log-probabilities without EOS, by which
    chunks are spread; None spreads by bytes."""
    read: list[tuple[Encoded, float] | ExchangeError] = []
    for record, encoded in zip(records, receiver.try_encode([r.text for r in records]), strict=True):
        try:
            if isinstance(encoded, TokenizationError):
                raise encoded
            read.append((encoded, text_residual(receiver, record.text, encoded)))
        except TokenizationError as error:
            read.append(ExchangeError(Refusal.UNTRANSLATABLE, str(error)))
    kept = [
        (record, r[0])
        for record, r in zip(records, read, strict=True)
        if isinstance(record, Rollout) and not isinstance(r, ExchangeError)
    ]
    rollouts, weights = [record for record, _ in kept], None
    if kept and score is not None:
        weights = np.concatenate([np.asarray(s, dtype=np.float64) for s in score(rollouts, [e.ids for _, e in kept])])
    aligned = iter(align(rollouts, [e.ends for _, e in kept], [r.finished for r in rollouts], weights))
    results: list[Retokenised | ExchangeError] = []
    for record, r in zip(records, read, strict=True):
        if isinstance(r, ExchangeError):
            results.append(r)
            continue
        encoded, text = r
        tokens = np.append(encoded.ids, np.int32(receiver.eos_id)) if record.finished else encoded.ids
        residuals, source = next(aligned) if isinstance(record, Rollout) else ({}, ())
        residuals = {"text": text, **residuals}
        over = excess(residuals, budget)
        results.append(
            ExchangeError(Refusal.RESIDUAL, over)
            if over
            else Retokenised(tokens, encoded.ends, residuals, encoded.spelled_tags, *source)
        )
    return results


def excess(residuals: Mapping[str, float], budget: Mapping[str, float]) -> str:
    """Which residual is over its budget; empty where none is."""
    over = [f"{n} residual {v:.4g}, at most {budget[n]:.4g}" for n, v in residuals.items() if v > budget.get(n, v)]
    return over[0] if over else ""


def align(
    records: Sequence[Rollout | Scores],
    ends: Sequence[Int32[np.ndarray, "T"]],
    finished: Sequence[bool],
    weights: Float64[np.ndarray, "N"] | None = None,
) -> list[tuple[dict[str, float], tuple[Float32[np.ndarray, "T"], float, int]]]:
    """Of each record its residuals, log-probabilities on the receiver's tokens, their source's sum and number. ends: byte
    positions where those tokens end, EOS left out. finished: whether EOS follows. weights: of all tokens, as for `distribute`."""
    if not records:
        return []
    sent, sizes = np.array([len(r.logprobs) for r in records]), np.array([e.size for e in ends])
    logprobs = np.concatenate([np.array(r.logprobs, dtype=np.float64) for r in records])
    source_ends = np.concatenate([np.cumsum(r.pieces) for r in records])
    pair = Segmentations(source_ends, np.concatenate(ends), sent, sizes)
    parts = chunks(pair)
    aligned = distribute(pair, parts, logprobs, weights)
    begins = np.cumsum(sizes) - sizes
    mass = np.add.reduceat(logprobs, np.cumsum(sent) - sent)
    lost = np.add.reduceat(aligned, begins, dtype=np.float64) - mass
    guessed = np.add.reduceat(np.repeat(inexact(parts), parts.receiver_sizes), begins, dtype=np.int64)
    results = []
    for i, record in enumerate(records):
        size, count = int(sizes[i]), int(sent[i])
        residuals = {
            "boundary": float(guessed[i]) / size,
            "mass": abs(float(lost[i])),
            "length": abs(size - count) / count,
        }
        if isinstance(record, Rollout):
            residuals["canonical"] = nan if record.noncanonical is None else record.noncanonical
        values = aligned[begins[i] : begins[i] + size]
        values = np.append(values, np.float32(record.eos_logprob)) if finished[i] else values
        results.append((residuals, (values, float(mass[i]), count)))
    return results


def text_residual(codec: TokenCodec, text: str, encoded: Encoded) -> float:
    """The `text` residual of a text that `codec` encoded. Raises TokenizationError."""
    if encoded.inverse:
        return 0.0
    data, back = text.encode(), codec.read([encoded.ids])[0]
    other, others = back.text.encode(), np.cumsum(back.pieces, dtype=np.int64)
    # positions in both texts, behind the same token each, about a window apart
    wanted = np.arange(WINDOW, max(int(encoded.ends[-1]), int(others[-1])), WINDOW)
    tokens = np.unique(np.concatenate([np.searchsorted(encoded.ends, wanted), np.searchsorted(others, wanted)]))
    tokens = np.append(tokens[tokens < others.size - 1], others.size - 1)
    cuts = [(0, 0), *zip(encoded.ends[tokens].tolist(), others[tokens].tolist(), strict=True)]
    return sum(edit_distance(data[a:b], other[c:d]) for (a, c), (b, d) in pairwise(cuts)) / len(data)


def edit_distance(a: bytes, b: bytes) -> int:
    """Levenshtein distance in bytes, bit-parallel in Python's long integers (Myers 1999, in Hyyro's 2003 form)."""
    if a == b or not a or not b:
        return abs(len(a) - len(b))
    array, every, top = np.frombuffer(a, dtype=np.uint8), (1 << len(a)) - 1, 1 << (len(a) - 1)
    places = {
        byte: int.from_bytes(np.packbits(array == byte, bitorder="little").tobytes(), "little") for byte in set(a)
    }
    plus, minus, distance = every, 0, len(a)
    for byte in b:
        equal = places.get(byte, 0)
        vertical = equal | minus
        horizontal = (((equal & plus) + plus) ^ plus) | equal
        up = minus | (every & ~(horizontal | plus))
        down = plus & horizontal
        distance += bool(up & top) - bool(down & top)
        up = ((up << 1) | 1) & every
        minus = up & vertical
        plus = ((down << 1) & every) | (every & ~(vertical | up))
    return distance


def noncanonical_shares(codec: TokenCodec, answers: Sequence[Int32[np.ndarray, "T"]]) -> list[float]:
    """The `canonical` residual of sampled answers (without EOS): share of tokens that encoding the text does not make to end
    there; 1.0 where it cannot be encoded. Raises TokenizationError."""
    decoded = codec.read(answers)
    encoded = codec.try_encode([d.text for d in decoded])
    return [_share(ids, d, e) for ids, d, e in zip(answers, decoded, encoded, strict=True)]


def _share(tokens: Int32[np.ndarray, "T"], decoded: Decoded, encoded: Encoded | TokenizationError) -> float:
    if isinstance(encoded, TokenizationError):
        return 1.0
    if np.array_equal(encoded.ids, tokens):
        return 0.0
    made = np.full(int(encoded.ends[-1]) + 1, -1, dtype=np.int64)
    made[encoded.ends] = np.arange(encoded.ends.size)
    same = made[np.cumsum(decoded.pieces, dtype=np.int64)]
    return 1.0 - float(((same >= 0) & (encoded.ids[same] == tokens)).mean())
