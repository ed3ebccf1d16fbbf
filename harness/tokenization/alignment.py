"""Chunks of two segmentations of the same bytes, and log-probabilities carried from one to the other.

Chunk edges are the byte positions that are token ends in both segmentations (our reading of the exchange layer of
arXiv 2605.07244; the same chunks as byte-offset alignment in cross-tokenizer distillation). Several answers are aligned in
one call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64, Integer

__all__ = ["Chunks", "Segmentations", "chunks", "distribute", "inexact"]


@dataclass(frozen=True, slots=True, eq=False)
class Segmentations:
    """The same answers in two tokenizers, flat.

    Attributes
    ----------
    source_ends
        (S,) where each token ends, counted in bytes from its answer's beginning, not decreasing.
    receiver_ends
        (R,) likewise; the last ends of an answer agree.
    source_counts, receiver_counts
        (A,) tokens of each answer, none of them 0.
    """

    source_ends: Integer[np.ndarray, "S"]
    receiver_ends: Integer[np.ndarray, "R"]
    source_counts: Integer[np.ndarray, "A"]
    receiver_counts: Integer[np.ndarray, "A"]

    @classmethod
    def of(cls, source_ends: Integer[np.ndarray, "S"], receiver_ends: Integer[np.ndarray, "R"]) -> Segmentations:
        """Of a single answer.

        Parameters
        ----------
        source_ends
            (S,) bytes.
        receiver_ends
            (R,) bytes.
        """
        return cls(source_ends, receiver_ends, np.array([source_ends.size]), np.array([receiver_ends.size]))


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """Chunk c is source tokens [source[c], source[c+1]) and receiver tokens [receiver[c], receiver[c+1]).

    Attributes
    ----------
    source, receiver
        (C+1,) indices into the flat tokens. No chunk reaches over two answers.
    """

    source: Int64[np.ndarray, "C+1"]
    receiver: Int64[np.ndarray, "C+1"]

    @property
    def source_sizes(self) -> Int64[np.ndarray, "C"]:
        """(C,) source tokens of each chunk."""
        return np.diff(self.source)

    @property
    def receiver_sizes(self) -> Int64[np.ndarray, "C"]:
        """(C,) receiver tokens of each chunk."""
        return np.diff(self.receiver)


def chunks(pair: Segmentations) -> Chunks:
    """Smallest chunks whose ends both segmentations share.

    Tokens without bytes join the chunk before them, or the answer's first chunk where there is none before.
    """
    sizes = pair.source_ends[np.cumsum(pair.source_counts) - 1] + 1
    begins = np.cumsum(sizes, dtype=np.int64) - sizes
    source = pair.source_ends.astype(np.int64) + np.repeat(begins, pair.source_counts)
    receiver = pair.receiver_ends.astype(np.int64) + np.repeat(begins, pair.receiver_counts)
    total = int(sizes.sum())
    shared, is_end = np.zeros(total, dtype=bool), np.zeros(total, dtype=bool)
    shared[source] = True
    is_end[receiver] = True
    shared &= is_end
    shared[begins] = False
    return Chunks(_edges(source, shared), _edges(receiver, shared))


def _edges(ends: Int64[np.ndarray, "S"], shared: Bool[np.ndarray, "B"]) -> Int64[np.ndarray, "C+1"]:
    """Indices behind the last token of each shared end, from 0 on."""
    closes = shared.take(ends)
    closes[:-1] &= ends[:-1] != ends[1:]
    found = np.flatnonzero(closes)
    edges = np.zeros(found.size + 1, dtype=np.int64)
    np.add(found, 1, out=edges[1:])
    return edges


def distribute(
    pair: Segmentations,
    parts: Chunks,
    logprobs: Float64[np.ndarray, "S"],
    weights: Float64[np.ndarray, "R"] | None = None,
) -> Float32[np.ndarray, "R"]:
    """Source log-probabilities on the receiver's tokens: each chunk's sum, in proportion to bytes or to `weights`.

    The sum over each answer is conserved to 1e-6 after rounding too, unless no token of it is fine enough to take up the
    rounding error (an answer whose every log-probability is below -16).

    Parameters
    ----------
    pair
        The answers.
    parts
        `chunks(pair)`.
    logprobs
        (S,) nats.
    weights
        (R,) the receiver's own log-probabilities of its tokens. One above 0 by rounding counts as 0, so that none cancels
        another, which would make shares of any size; a chunk in which they sum to 0 falls back on bytes.

    Returns
    -------
    :
        (R,) nats.
    """
    mass = np.add.reduceat(logprobs, parts.source[:-1])
    sizes = parts.receiver_sizes
    share = _byte_lengths(pair).astype(np.float64)
    if weights is not None:
        own = np.minimum(weights, 0.0)
        share = np.where(np.repeat(np.add.reduceat(own, parts.receiver[:-1]) != 0, sizes), own, share)
    aligned = np.repeat(mass, sizes) * (share / np.repeat(np.add.reduceat(share, parts.receiver[:-1]), sizes))
    return _rounded(aligned, pair.receiver_counts)


def _byte_lengths(pair: Segmentations) -> Int64[np.ndarray, "R"]:
    lengths = np.diff(pair.receiver_ends, prepend=0)
    firsts = np.cumsum(pair.receiver_counts) - pair.receiver_counts
    lengths[firsts] = pair.receiver_ends[firsts]
    return lengths


def _rounded(values: Float64[np.ndarray, "R"], counts: Integer[np.ndarray, "A"]) -> Float32[np.ndarray, "R"]:
    """To float32; each answer's rounding error goes to its smallest value that is large beside the error."""
    result = values.astype(np.float32)
    firsts = np.cumsum(counts) - counts
    lost = np.add.reduceat(values - result, firsts)
    for answer in np.flatnonzero(np.abs(lost) > 1e-7):
        part = result[firsts[answer] : firsts[answer] + counts[answer]]
        size = np.abs(part)
        large = size > 16 * abs(lost[answer])
        part[np.where(large, size, np.inf).argmin() if large.any() else size.argmax()] += lost[answer]
    return result


def inexact(parts: Chunks) -> Bool[np.ndarray, "C"]:
    """(C,) chunks in which the spreading is a guess: those with more than one receiver token."""
    return parts.receiver_sizes > 1
