"""Chunks of two segmentations of the same bytes, and log-probabilities carried over. Chunks end where tokens end in both
(our reading of arXiv 2605.07244)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64, Integer

__all__ = ["Chunks", "cut_into_chunks", "distribute_logprobs", "inexact_chunks", "one_to_one"]


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """Chunk c is source tokens [source[c], source[c+1]) and receiver tokens [receiver[c], receiver[c+1])."""

    source: Int64[np.ndarray, "C+1"]
    receiver: Int64[np.ndarray, "C+1"]

    @property
    def receiver_sizes(self) -> Int64[np.ndarray, "C"]:
        """(C,) receiver tokens of each chunk."""
        return np.diff(self.receiver)


def cut_into_chunks(source_ends: Integer[np.ndarray, "S"], receiver_ends: Integer[np.ndarray, "R"]) -> Chunks:
    """Return the smallest chunks. Ends: bytes from an answer's beginning, not decreasing; the last ones agree. Tokens without
    bytes join the chunk before, else the first."""
    shared, in_receiver = np.zeros((2, int(source_ends[-1]) + 1), dtype=bool)  # (B + 1,) each
    shared[source_ends] = True
    in_receiver[receiver_ends] = True
    shared &= in_receiver
    shared[0] = False
    return Chunks(_close_chunks(source_ends, shared), _close_chunks(receiver_ends, shared))


def _close_chunks(ends: Integer[np.ndarray, "T"], shared: Bool[np.ndarray, "B"]) -> Int64[np.ndarray, "C+1"]:
    """Return the chunks' edges, from 0, behind each shared end's last token."""
    closes = shared.take(ends)
    closes[:-1] &= ends[:-1] != ends[1:]
    return np.append(0, np.flatnonzero(closes) + 1)


def distribute_logprobs(
    receiver_ends: Integer[np.ndarray, "R"],
    parts: Chunks,
    logprobs: Float64[np.ndarray, "S"],
    weights: Float64[np.ndarray, "R"] | None = None,
) -> Float32[np.ndarray, "R"]:
    """Distribute source log-probabilities (R,) (nats) on the receiver's tokens: each chunk's sum by bytes, or by `weights`, the
    receiver's own, where they do not sum to 0. The sum is conserved to 1e-6 unless every log-probability is below -16."""
    begins = parts.receiver[:-1]  # (C,) the first receiver token of each chunk
    sizes = parts.receiver_sizes  # (C,)
    mass = np.add.reduceat(logprobs, parts.source[:-1])  # (C,)
    share = np.diff(receiver_ends, prepend=0).astype(np.float64)  # (R,)
    if weights is not None:
        own = np.minimum(weights, 0.0)
        has_weight = np.add.reduceat(own, begins) != 0  # (C,)
        share = np.where(np.repeat(has_weight, sizes), own, share)
    whole = np.add.reduceat(share, begins)  # (C,)
    aligned = np.repeat(mass, sizes) * (share / np.repeat(whole, sizes))  # (R,)
    result: Float32[np.ndarray, "R"] = aligned.astype(np.float32)
    (lost,) = np.add.reduceat(aligned - result, [0])
    if abs(lost) > 1e-7:  # rounding goes to the smallest value that is large beside it
        size = np.abs(result)
        large = size > 16 * abs(lost)
        place = np.where(large, size, np.inf).argmin() if large.any() else size.argmax()
        result[place] += lost
    return result


def one_to_one(parts: Chunks) -> Bool[np.ndarray, "R"]:
    """Mark the (R,) receiver tokens whose chunk is one token on either side."""
    alike = (parts.receiver_sizes == 1) & (np.diff(parts.source) == 1)
    return np.repeat(alike, parts.receiver_sizes)


def inexact_chunks(parts: Chunks) -> Bool[np.ndarray, "C"]:
    """Mark the (C,) chunks with several receiver tokens: their spreading is a guess."""
    return parts.receiver_sizes > 1


# Earlier names, which packages of others may import
chunks = cut_into_chunks
distribute = distribute_logprobs
inexact = inexact_chunks
