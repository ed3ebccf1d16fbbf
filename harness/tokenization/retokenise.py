"""Peers' records as the learner's own tokens, and what that loses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int32

from harness.errors import ExchangeError, TokenizationError
from harness.experience.records import AnswerRecord, Refusal, Rollout, Scores
from harness.tokenization.alignment import cut_into_chunks, distribute_logprobs, inexact_chunks, one_to_one
from harness.tokenization.codec import Decoded, Encoded, TokenCodec

__all__ = [
    "Retokenised",
    "align_logprobs",
    "edit_distance",
    "explain_excess",
    "noncanonical_shares",
    "retokenise_answers",
    "text_residual",
]

WINDOW = 2048  # bytes: edit distance is quadratic, so longer texts are compared in windows
Score = Callable[[Sequence[AnswerRecord], Sequence[Int32[np.ndarray, "T"]]], Sequence[Float32[np.ndarray, "T"]]]


@dataclass(frozen=True, slots=True, eq=False)
class Retokenised:
    """One record in the receiver's tokens, with its end iff finished. ends: byte position where each before that ends. residuals,
    our reading: `text`: byte edit distance of the round trip / bytes; with log-probabilities `boundary`: share of tokens in
    chunks with several; `mass`: |aligned - source| sum, nats; `length`: difference of tokens / source's; `canonical`: the
    record's `noncanonical`. aligned: (T,) nats; source_logprob, source_tokens: without EOS. exact: as of `align_logprobs`. The
    exchange sets lead, as of `PeerAnswer`, and space, the white space that the text was given to begin with; None as it was
    sent."""

    tokens: Int32[np.ndarray, "T"]
    ends: Int32[np.ndarray, "T"]
    residuals: Mapping[str, float]
    spelled_tags: int = 0
    aligned: Float32[np.ndarray, "T"] | None = None
    source_logprob: float = nan
    source_tokens: int = 0
    exact: Bool[np.ndarray, "T"] | None = None
    lead: tuple[int, ...] = ()
    space: str | None = None


def retokenise_answers(
    records: Sequence[AnswerRecord],
    receiver: TokenCodec,
    *,
    budget: Mapping[str, float] = {},
    score: Score | None = None,
    joined: bool = False,
    closing: Sequence[int] = (),
    strict: bool = False,
) -> list[Retokenised | ExchangeError]:
    """Retokenise answers, in order; an error (`untranslatable`, `residual`) for a refused one. budget: most by residual; what was
    not measured is within it. score: the receiver's log-probabilities without EOS, by which chunks are spread; None: by bytes.
    joined: as `TokenCodec.try_encode`. closing: ids that end a finished answer, by default the receiver's. strict: as of
    `align_logprobs`."""
    tried = receiver.try_encode([record.text for record in records], joined)
    read = [_measure_text(receiver, record, encoded) for record, encoded in zip(records, tried, strict=True)]
    weights = iter(_weights_of_rollouts(records, read, score))
    results: list[Retokenised | ExchangeError] = []
    for record, of_text in zip(records, read, strict=True):
        if isinstance(of_text, ExchangeError):
            results.append(of_text)
            continue
        encoded, text = of_text
        end = np.array((closing or receiver.closing) if record.finished else (), dtype=np.int32)  # (E,)
        tokens = np.append(encoded.ids, end)  # (T,)
        residuals = {"text": text}
        source: tuple[Any, ...] = ()
        if isinstance(record, Rollout):
            of_logprobs, source = align_logprobs(record, encoded.ends, end.size, next(weights), strict)
            residuals |= of_logprobs
        over = explain_excess(residuals, budget)
        if over:
            results.append(ExchangeError(Refusal.RESIDUAL, over))
        else:
            results.append(Retokenised(tokens, encoded.ends, residuals, encoded.spelled_tags, *source))
    return results


def _measure_text(
    receiver: TokenCodec, record: AnswerRecord, encoded: Encoded | TokenizationError
) -> tuple[Encoded, float] | ExchangeError:
    """Return the encoded text with its residual, or why it is refused."""
    try:
        if isinstance(encoded, TokenizationError):
            raise encoded
        return encoded, text_residual(receiver, record.text, encoded)
    except TokenizationError as error:
        return ExchangeError(Refusal.UNTRANSLATABLE, str(error))


def _weights_of_rollouts(
    records: Sequence[AnswerRecord], read: Sequence[tuple[Encoded, float] | ExchangeError], score: Score | None
) -> Sequence[Float32[np.ndarray, "T"] | None]:
    """Find by what the log-probabilities of each rollout that was read are spread over a chunk's tokens, in order: the
    receiver's own, or None for bytes."""
    kept: list[AnswerRecord] = []
    ids: list[Int32[np.ndarray, "T"]] = []
    for record, of_text in zip(records, read, strict=True):
        if isinstance(record, Rollout) and not isinstance(of_text, ExchangeError):
            kept.append(record)
            ids.append(of_text[0].ids)
    if score is None or not kept:
        return [None] * len(kept)
    return score(kept, ids)


def explain_excess(residuals: Mapping[str, float], budget: Mapping[str, float]) -> str:
    """Return the residual over its budget; empty where none is."""
    for name, value in residuals.items():
        if value > budget.get(name, value):
            return f"{name} residual {value:.4g}, at most {budget[name]:.4g}"
    return ""


def align_logprobs(
    record: Rollout | Scores,
    ends: Int32[np.ndarray, "T"],
    ending: int,
    weights: Float32[np.ndarray, "T"] | None = None,
    strict: bool = False,
) -> tuple[dict[str, float], tuple[Float32[np.ndarray, "T"], float, int, Bool[np.ndarray, "T"] | None]]:
    """Carry an author's log-probabilities, nats, onto the receiver's tokens of the same text.

    ends: of those tokens in bytes, without the end. ending: tokens of the end that follow; they are one action, whose
    log-probability they share equally. weights: as for `distribute_logprobs`. strict: also tell which tokens were one token there
    too, the end included. Returns the residuals by name, and the log-probabilities with the source's sum, its number of tokens
    and the exact ones (None without `strict`)."""
    size = ends.size
    count = len(record.logprobs)
    logprobs = np.array(record.logprobs, dtype=np.float64)  # (S,)
    source_ends = np.cumsum(record.pieces)  # (S,) bytes
    parts = cut_into_chunks(source_ends, ends)
    exact_weights = None if weights is None else np.asarray(weights, dtype=np.float64)
    aligned = distribute_logprobs(ends, parts, logprobs, exact_weights)  # (T,)
    # `reduceat` adds in order, the same on every machine; `sum` by pairs
    (mass,) = np.add.reduceat(logprobs, [0])
    (got,) = np.add.reduceat(aligned, [0], dtype=np.float64)
    estimated_tokens = float(parts.receiver_sizes[inexact_chunks(parts)].sum())
    residuals = {
        "boundary": estimated_tokens / size,
        "mass": abs(float(got - mass)),
        "length": abs(size - count) / count,
    }
    if isinstance(record, Rollout):
        residuals["canonical"] = nan if record.noncanonical is None else record.noncanonical
    of_each_end = record.eos_logprob / max(1, ending)
    at_end = np.full(ending, of_each_end, dtype=np.float32)  # (E,)
    values = np.append(aligned, at_end)  # (T + E,)
    exact = None
    if strict:
        exact = np.append(one_to_one(parts), np.full(ending, True))  # (T + E,)
    return residuals, (values, float(mass), count, exact)


def text_residual(codec: TokenCodec, text: str, encoded: Encoded) -> float:
    """Return the share of a text's bytes that encoding and decoding by `codec` changes, as an edit distance taken window by
    window. Raises TokenizationError."""
    if encoded.inverse:
        return 0.0
    data = text.encode()
    back = codec.read([encoded.ids])[0]
    other = back.text.encode()
    ends = encoded.ends  # (T,) bytes
    other_ends = np.cumsum(back.pieces, dtype=np.int64)  # (T,)
    # Both texts are cut behind the same tokens, about a window apart
    longest = max(int(ends[-1]), int(other_ends[-1]))
    wanted = np.arange(WINDOW, longest, WINDOW)  # (W,)
    near_cuts = [np.searchsorted(ends, wanted), np.searchsorted(other_ends, wanted)]
    tokens = np.unique(np.concatenate(near_cuts))  # (K,) indices
    last = other_ends.size - 1
    tokens = np.append(tokens[tokens < last], last)
    cuts = [(0, 0), *zip(ends[tokens].tolist(), other_ends[tokens].tolist(), strict=True)]
    changed = 0
    for (first, other_first), (end, other_end) in pairwise(cuts):
        changed += edit_distance(data[first:end], other[other_first:other_end])
    return changed / len(data)


def edit_distance(a: bytes, b: bytes) -> int:
    """Compute Levenshtein's distance in bytes, bit-parallel in long integers (Myers 1999, in Hyyro's 2003 form)."""
    if a == b or not a or not b:
        return abs(len(a) - len(b))
    array = np.frombuffer(a, dtype=np.uint8)  # (A,)
    every = (1 << len(a)) - 1
    top = 1 << (len(a) - 1)
    places: dict[int, int] = {}  # of each byte, the places where it stands as the bits of one number
    for byte in set(a):
        bits = np.packbits(array == byte, bitorder="little")
        places[byte] = int.from_bytes(bits.tobytes(), "little")
    plus = every
    minus = 0
    distance = len(a)
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
    """Return the `canonical` residual of sampled answers (without EOS): share of tokens that encoding the text does not end
    there; 1.0 where it cannot be encoded. Raises TokenizationError."""
    decoded = codec.read(answers)
    encoded = codec.try_encode([d.text for d in decoded])
    return [_share_changed(ids, d, e) for ids, d, e in zip(answers, decoded, encoded, strict=True)]


def _share_changed(tokens: Int32[np.ndarray, "T"], decoded: Decoded, encoded: Encoded | TokenizationError) -> float:
    """Return the share of an answer's tokens that are not among those made of its text, at the same place in bytes."""
    if isinstance(encoded, TokenizationError):
        return 1.0
    if np.array_equal(encoded.ids, tokens):
        return 0.0
    made_at = np.full(
        int(encoded.ends[-1]) + 1, -1, dtype=np.int64
    )  # (B + 1,) the token that ends at each byte, -1 for none
    made_at[encoded.ends] = np.arange(encoded.ends.size)
    sampled_ends = np.cumsum(decoded.pieces, dtype=np.int64)  # (T,)
    beside = made_at[sampled_ends]  # (T,) the token that ends where the sampled one does
    is_same = (beside >= 0) & (encoded.ids[beside] == tokens)
    return 1.0 - float(is_same.mean())


# Earlier names, which packages of others may import
retokenise = retokenise_answers
align = align_logprobs
excess = explain_excess
