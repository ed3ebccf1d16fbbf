"""Byte span of every token of canonical encodings, for a whole batch at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from harness.tokenization.token_bytes import SEPARATOR, Batch, Pieces, TokenBytes


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """R texts joined in UTF-8, a separator after each. begins: where each begins, and the total. characters: of each text."""

    joined: UInt8[np.ndarray, "B"]
    begins: Int64[np.ndarray, "R+1"]
    characters: Int64[np.ndarray, "R"]

    @classmethod
    def join(cls, texts: Sequence[str]) -> Texts:
        data = [text.encode() for text in texts]
        joined = np.frombuffer(SEPARATOR.join([*data, b""]), dtype=np.uint8)
        begins = np.cumsum([0, *(len(text) + 1 for text in data)], dtype=np.int64)
        return cls(joined, begins, np.array([len(text) for text in texts], dtype=np.int64))


def by_bytes(
    vocabulary: TokenBytes, batch: Batch, texts: Texts
) -> tuple[Int64[np.ndarray, "N"], Bool[np.ndarray, "R"], Bool[np.ndarray, "R"]]:
    """Ends from the tokens' own bytes, which rows they are right for, and which rows the tokens invert exactly.

    Ends count from the row's beginning. They are right where the tokens' bytes are the text's, or the text's behind one
    space that the tokenizer put in front (`add_prefix_space`); the latter rows do not invert.
    """
    pieces = vocabulary.pieces(batch)
    tokens, wanted = np.diff(batch.rows), np.diff(texts.begins)
    sizes = np.add.reduceat(pieces.lengths, batch.rows[:-1])
    first = vocabulary.first_of(batch, pieces.lengths > 0)
    inserted = (sizes == wanted + 1) & (first < batch.ids.size) & (texts.joined[texts.begins[:-1]] != ord(" "))
    inserted[inserted] = vocabulary.bytes[pieces.starts[first[inserted]]] == ord(" ")
    pieces.starts[first[inserted]] += 1
    pieces.lengths[first[inserted]] -= 1
    right = sizes - inserted == wanted
    chosen = np.repeat(right, tokens)
    own = vocabulary.join(Pieces(pieces.starts[chosen], pieces.lengths[chosen]))
    same = own == texts.joined[np.repeat(right, wanted)]
    if same.size:
        right[right] = np.logical_and.reduceat(same, np.cumsum(wanted[right]) - wanted[right])
    total = np.cumsum(pieces.lengths)
    before = total[batch.rows[:-1]] - pieces.lengths[batch.rows[:-1]]
    return total - np.repeat(before, tokens), right, right & ~inserted


def by_offsets(
    vocabulary: TokenBytes, batch: Batch, texts: Texts, offsets: Iterable[Sequence[tuple[int, int]]]
) -> Int64[np.ndarray, "N"]:
    """Ends from character offsets (of tokens in the text before normalisation), counted from the row's beginning.

    A token ends where its last character does; characters between two tokens belong to the second, those after the last
    token to the last. Tokens that share characters are parted inside them by their own bytes if these are the text's (a
    character cut by byte-level BPE or byte fallback); otherwise (a normaliser made several tokens of one character) the
    characters belong to the first of them, and the others add no byte.
    """
    inside = batch.ids != vocabulary.separator
    tokens = np.diff(batch.rows) - 1
    # where each character begins: every byte but UTF-8's continuations, 0b10xxxxxx
    positions = np.append(np.flatnonzero(texts.joined & 0xC0 != 0x80), texts.joined.size)
    base = np.repeat(np.cumsum(texts.characters + 1) - (texts.characters + 1), tokens)
    flat = np.fromiter(chain.from_iterable(chain.from_iterable(offsets)), dtype=np.int64, count=2 * int(tokens.sum()))
    begins, ends = positions[base + flat[::2]], np.maximum.accumulate(positions[base + flat[1::2]])
    if vocabulary.invalid != "none":  # else no token holds a part of a character
        pieces = vocabulary.pieces(batch)
        _part_shared_characters(vocabulary, Pieces(pieces.starts[inside], pieces.lengths[inside]), texts, begins, ends)
    occupied = tokens > 0
    ends[np.cumsum(tokens)[occupied] - 1] = texts.begins[1:][occupied] - 1
    result = np.zeros(batch.ids.size, dtype=np.int64)
    result[inside] = ends - np.repeat(texts.begins[:-1], tokens)
    return result


def _part_shared_characters(
    vocabulary: TokenBytes,
    pieces: Pieces,
    texts: Texts,
    begins: Int64[np.ndarray, "N"],
    ends: Int64[np.ndarray, "N"],
) -> None:
    """Correct `ends` in place within the runs of tokens that overlap; a run begins where all tokens before have ended."""
    heads = np.flatnonzero(begins >= np.concatenate([[0], ends[:-1]]))
    sizes = np.diff(heads, append=begins.size)
    if not (sizes > 1).any():
        return
    lengths = np.add.reduceat(pieces.lengths, heads)
    first, last = begins[heads], ends[heads + sizes - 1]
    parted = (sizes > 1) & (lengths == last - first)
    if not parted.any():
        return
    chosen = np.repeat(parted, sizes)
    group = lengths[parted]
    local = np.cumsum(group) - group
    where = np.repeat(first[parted] - local, group) + np.arange(int(group.sum()))
    same = vocabulary.join(Pieces(pieces.starts[chosen], pieces.lengths[chosen])) == texts.joined[where]
    parted[parted] = np.logical_and.reduceat(same, local)
    chosen = np.repeat(parted, sizes)
    total = np.cumsum(pieces.lengths)
    exact = total - np.repeat(total[heads] - pieces.lengths[heads] - first, sizes)
    ends[chosen] = exact[chosen]
