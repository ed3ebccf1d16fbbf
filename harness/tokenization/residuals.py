"""What carrying an answer over to another tokenizer loses, as five numbers, and how much of it is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from math import inf, nan

import numpy as np
from jaxtyping import Int32

from harness.errors import TokenizationError
from harness.tokenization.codec import Decoded, Encoded, TokenCodec

__all__ = ["WINDOW", "Budget", "Residuals", "edit_distance", "noncanonical_shares", "text_residual"]

WINDOW = 2048
"""Byte edit distance costs the square of the length, so longer texts are compared in windows cut at token ends."""


@dataclass(frozen=True, slots=True)
class Residuals:
    """The five residuals of one message; NaN where not measured (a record without tokens has only `text`). All definitions are our
    reading.

    Attributes
    ----------
    text
        Byte edit distance between the text and the receiver's decoding of its own tokens / bytes. (Over 2 KiB: the sum over
        windows, an upper bound.)
    boundary
        Share of the receiver's tokens in chunks that hold more than one of them, where the spreading is a guess.
    mass
        |sum of aligned - sum of source log-probabilities|, nats.
    length
        |receiver's tokens - source's tokens| / source's tokens, final EOS left out.
    canonical
        Share of the source's tokens that its own tokenizer would not have made of its text, as the source says.
    """

    text: float = nan
    boundary: float = nan
    mass: float = nan
    length: float = nan
    canonical: float = nan


@dataclass(frozen=True, slots=True)
class Budget:
    """The most of each residual that is accepted. A residual that was not measured is not held against the record.

    Attributes
    ----------
    text, boundary, mass, length, canonical
        As in `Residuals`; infinite by default.
    """

    text: float = inf
    boundary: float = inf
    mass: float = inf
    length: float = inf
    canonical: float = inf

    def exceeded(self, residuals: Residuals) -> str | None:
        """Name and size of the first residual over the budget, or None."""
        for limit in fields(self):
            value, most = getattr(residuals, limit.name), getattr(self, limit.name)
            if value > most:
                return f"{limit.name} residual {value:.4g}, at most {most:.4g}"
        return None


def text_residual(codec: TokenCodec, text: str, encoded: Encoded) -> float:
    """The `text` residual of one text.

    Parameters
    ----------
    codec
        The receiver's.
    text
        As sent.
    encoded
        What `codec` made of it.

    Raises
    ------
    TokenizationError
        As `TokenCodec.read`.
    """
    if encoded.inverse:
        return 0.0
    data = text.encode()
    back = codec.read([encoded.ids])[0]
    other = back.text.encode()
    cuts = _cuts(encoded.ends, np.cumsum(back.pieces, dtype=np.int64).astype(np.int32))
    windows = pairwise(cuts)
    return sum(edit_distance(data[a:b], other[c:d]) for (a, c), (b, d) in windows) / len(data)


def _cuts(ends: Int32[np.ndarray, "T"], others: Int32[np.ndarray, "T"]) -> list[tuple[int, int]]:
    """Positions in both texts, behind the same token each, about a window apart."""
    wanted = np.arange(WINDOW, max(int(ends[-1]), int(others[-1])), WINDOW)
    tokens = np.unique(np.concatenate([np.searchsorted(ends, wanted), np.searchsorted(others, wanted)]))
    tokens = np.append(tokens[tokens < ends.size - 1], ends.size - 1)
    return [(0, 0), *zip(ends[tokens].tolist(), others[tokens].tolist(), strict=True)]


def edit_distance(a: bytes, b: bytes) -> int:
    """Levenshtein distance in bytes, bit-parallel in Python's long integers (Myers 1999, in Hyyro's 2003 form).

    Parameters
    ----------
    a, b
        Of any length.
    """
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
    """The `canonical` residual of own sampled answers: the share of an answer's tokens that encoding its text does not make to end
    at the same place. 1.0 where the text cannot be encoded at all.

    Parameters
    ----------
    codec
        The sampler's.
    answers
        Each (T,) ids, final EOS left out.

    Raises
    ------
    TokenizationError
        As `TokenCodec.read`.
    """
    decoded = codec.read(answers)
    encoded = codec.try_encode([d.text for d in decoded])
    return [_share(ids, d, e) for ids, d, e in zip(answers, decoded, encoded, strict=True)]


def _share(tokens: Int32[np.ndarray, "T"], decoded: Decoded, encoded: Encoded | TokenizationError) -> float:
    if isinstance(encoded, TokenizationError):
        return 1.0
    if np.array_equal(encoded.ids, tokens):
        return 0.0
    ends = np.cumsum(decoded.pieces, dtype=np.int64)
    made = np.full(int(encoded.ends[-1]) + 1, -1, dtype=np.int64)
    made[encoded.ends] = np.arange(encoded.ends.size)
    same = made[ends]
    return 1.0 - float(((same >= 0) & (encoded.ids[same] == tokens)).mean())
