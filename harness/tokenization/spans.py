"""Byte span of every token of canonical encodings, for a whole batch at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from harness.tokenization.surfaces import SEPARATOR, Batch, Pieces, Surfaces


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Texts joined in UTF-8, a separator after each; `begins` holds where each begins, and the total (R+1,)."""

    joined: UInt8[np.ndarray, "B"]
    begins: Int64[np.ndarray, "R+1"]
    characters: Int64[np.ndarray, "R"]

    @classmethod
    def join(cls, texts: Sequence[str]) -> Texts:
        data = [text.encode() for text in texts]
        joined = np.frombuffer(b"".join(part for d in data for part in (d, SEPARATOR)), dtype=np.uint8)
        sizes = np.fromiter(map(len, data), dtype=np.int64, count=len(data)) + 1
        characters = np.fromiter(map(len, texts), dtype=np.int64, count=len(data))
        return cls(joined, np.concatenate([[0], np.cumsum(sizes)]), characters)

    def only(self, chosen: Bool[np.ndarray, "R"]) -> Texts:
        """Some of the texts."""
        sizes = np.diff(self.begins)
        begins = np.concatenate([[0], np.cumsum(sizes[chosen])])
        return Texts(self.joined[np.repeat(chosen, sizes)], begins, self.characters[chosen])


def by_bytes(
    surfaces: Surfaces, batch: Batch, texts: Texts
) -> tuple[Int64[np.ndarray, "N"], Bool[np.ndarray, "R"], Bool[np.ndarray, "R"]]:
    """Ends from the tokens' own bytes, which rows they are right for, and which rows the tokens invert exactly.

    Ends count from the row's beginning. They are right where the tokens' bytes are the text's, or the text's behind one
    space that the tokenizer put in front (`add_prefix_space`); the latter rows do not invert.
    """
    pieces = surfaces.pieces(batch)
    tokens, wanted = np.diff(batch.rows), np.diff(texts.begins)
    sizes = np.add.reduceat(pieces.lengths, batch.rows[:-1])
    first = surfaces.first_of(batch, pieces.lengths > 0)
    inserted = (sizes == wanted + 1) & (first < batch.ids.size) & (texts.joined[texts.begins[:-1]] != ord(" "))
    inserted[inserted] = surfaces.bytes[pieces.starts[first[inserted]]] == ord(" ")
    pieces.starts[first[inserted]] += 1
    pieces.lengths[first[inserted]] -= 1
    right = sizes - inserted == wanted
    chosen = np.repeat(right, tokens)
    same = (
        surfaces.join(Pieces(pieces.starts[chosen], pieces.lengths[chosen])) == texts.joined[np.repeat(right, wanted)]
    )
    if same.size:
        right[right] = np.logical_and.reduceat(same, np.cumsum(wanted[right]) - wanted[right])
    total = np.cumsum(pieces.lengths)
    before = total[batch.rows[:-1]] - pieces.lengths[batch.rows[:-1]]
    return total - np.repeat(before, tokens), right, right & ~inserted


def by_offsets(
    surfaces: Surfaces, batch: Batch, texts: Texts, offsets: Iterable[Sequence[tuple[int, int]]]
) -> Int64[np.ndarray, "N"]:
    """Ends from character offsets (of tokens in the text before normalisation), counted from the row's beginning.

    A token ends where its last character does; characters between two tokens belong to the second, those after the last
    token to the last. Tokens that share characters are parted inside them by their own bytes if these are the text's (a
    character cut by byte-level BPE or byte fallback); otherwise (a normaliser made several tokens of one character) the
    characters belong to the first of them, and the others add no byte.
    """
    inside = batch.ids != surfaces.separator
    tokens = np.diff(batch.rows) - 1
    count = int(tokens.sum())
    positions = np.append(np.flatnonzero(texts.joined & 0xC0 != 0x80), texts.joined.size)
    base = np.repeat(np.cumsum(texts.characters + 1) - (texts.characters + 1), tokens)
    spans = chain.from_iterable(offsets)
    if surfaces.cuts_characters:
        flat = np.fromiter(chain.from_iterable(spans), dtype=np.int64, count=2 * count)
        begins, ends = positions[base + flat[::2]], np.maximum.accumulate(positions[base + flat[1::2]])
        pieces = surfaces.pieces(batch)
        pieces = Pieces(pieces.starts[inside], pieces.lengths[inside])
        _part_shared_characters(surfaces, pieces, texts, begins, ends)
    else:
        flat = np.fromiter(map(itemgetter(1), spans), dtype=np.int64, count=count)
        ends = np.maximum.accumulate(positions[base + flat])
    occupied = tokens > 0
    ends[np.cumsum(tokens)[occupied] - 1] = texts.begins[1:][occupied] - 1
    result = np.zeros(batch.ids.size, dtype=np.int64)
    result[inside] = ends - np.repeat(texts.begins[:-1], tokens)
    return result


def _part_shared_characters(
    surfaces: Surfaces,
    pieces: Pieces,
    texts: Texts,
    begins: Int64[np.ndarray, "N"],
    ends: Int64[np.ndarray, "N"],
) -> None:
    """Correct `ends` in place within the runs of tokens that overlap."""
    heads = np.flatnonzero(begins >= np.concatenate([[0], ends[:-1]]))
    sizes = np.diff(heads, append=begins.size)
    lengths = np.add.reduceat(pieces.lengths, heads)
    first, last = begins[heads], ends[heads + sizes - 1]
    parted = (sizes > 1) & (lengths == last - first)
    if not parted.any():
        return
    chosen = np.repeat(parted, sizes)
    group = lengths[parted]
    local = np.cumsum(group) - group
    where = np.repeat(first[parted] - local, group) + np.arange(int(group.sum()))
    same = surfaces.join(Pieces(pieces.starts[chosen], pieces.lengths[chosen])) == texts.joined[where]
    parted[parted] = np.logical_and.reduceat(same, local)
    chosen = np.repeat(parted, sizes)
    total = np.cumsum(pieces.lengths)
    exact = total - np.repeat(total[heads] - pieces.lengths[heads] - first, sizes)
    ends[chosen] = exact[chosen]
