"""Chunks of two segmentations of the same bytes, and log-probabilities carried over. Chunks end where tokens end in both
(our reading of arXiv 2605.07244)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64, Integer

__all__ = ["Chunks", "Segmentations", "chunks", "distribute", "inexact"]


@dataclass(frozen=True, slots=True, eq=False)
class Segmentations:
    """Answers in two tokenizers, flat. ends: bytes from the answer's beginning, not decreasing; the last ones agree.
    counts: (A,) tokens of each answer, none 0."""

    source_ends: Integer[np.ndarray, "S"]
    receiver_ends: Integer[np.ndarray, "R"]
    source_counts: Integer[np.ndarray, "A"]
    receiver_counts: Integer[np.ndarray, "A"]

    @classmethod
    def of(cls, source_ends: Integer[np.ndarray, "S"], receiver_ends: Integer[np.ndarray, "R"]) -> Segmentations:
        """Of a single answer."""
        return cls(source_ends, receiver_ends, np.array([source_ends.size]), np.array([receiver_ends.size]))


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """Chunk c is source tokens [source[c], source[c+1]) and receiver tokens [receiver[c], receiver[c+1])."""

    source: Int64[np.ndarray, "C+1"]
    receiver: Int64[np.ndarray, "C+1"]

    @property
    def receiver_sizes(self) -> Int64[np.ndarray, "C"]:
        """(C,) receiver tokens of each chunk."""
        return np.diff(self.receiver)


def chunks(pair: Segmentations) -> Chunks:
    """Smallest chunks. Tokens without bytes join the chunk before, else the first."""
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
    closes = shared.take(ends)
    closes[:-1] &= ends[:-1] != ends[1:]
    return np.concatenate([np.zeros(1, dtype=np.int64), np.flatnonzero(closes) + 1])


def distribute(
    pair: Segmentations,
    parts: Chunks,
    logprobs: Float64[np.ndarray, "S"],
    weights: Float64[np.ndarray, "R"] | None = None,
) -> Float32[np.ndarray, "R"]:
    """(R,) source log-probabilities (nats) on the receiver's tokens: each chunk's sum by bytes, or by `weights`, the
    receiver's own, where they do not sum to 0. Sums are conserved to 1e-6 unless every log-probability is below -16."""
    mass = np.add.reduceat(logprobs, parts.source[:-1])
    sizes = parts.receiver_sizes
    lengths = np.diff(pair.receiver_ends, prepend=0)
    firsts = np.cumsum(pair.receiver_counts) - pair.receiver_counts
    lengths[firsts] = pair.receiver_ends[firsts]
    share = lengths.astype(np.float64)
    if weights is not None:
        own = np.minimum(weights, 0.0)
        share = np.where(np.repeat(np.add.reduceat(own, parts.receiver[:-1]) != 0, sizes), own, share)
    aligned = np.repeat(mass, sizes) * (share / np.repeat(np.add.reduceat(share, parts.receiver[:-1]), sizes))
    return _rounded(aligned, pair.receiver_counts)


def _rounded(values: Float64[np.ndarray, "R"], counts: Integer[np.ndarray, "A"]) -> Float32[np.ndarray, "R"]:
    """To float32; an answer's rounding error goes to its smallest value that is large beside it."""
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
    """(C,) chunks with several receiver tokens: their spreading is a guess."""
    return parts.receiver_sizes > 1
