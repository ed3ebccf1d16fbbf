"""Byte span of every token of canonical encodings, for a whole batch at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from harness.tokenization.token_bytes import SEPARATOR, Batch, Pieces, TokenBytes, is_solid


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Texts joined in UTF-8, a separator after each; `begins` holds where each begins, and the total (R+1,)."""

    joined: UInt8[np.ndarray, "B"]
    begins: Int64[np.ndarray, "R+1"]
    characters: Int64[np.ndarray, "R"]

    @classmethod
    def join(cls, texts: Sequence[str]) -> Texts:
        data = [text.encode() for text in texts]
        joined = np.frombuffer(SEPARATOR.join([*data, b""]), dtype=np.uint8)
        sizes = np.fromiter(map(len, data), dtype=np.int64, count=len(data)) + 1
        characters = np.fromiter(map(len, texts), dtype=np.int64, count=len(data))
        return cls(joined, np.concatenate([[0], np.cumsum(sizes)]), characters)

    def of_bytes(self, allowed: Bool[np.ndarray, "256"]) -> Bool[np.ndarray, "R"]:
        """Which texts have no other bytes."""
        inside = allowed[self.joined]
        inside[self.begins[1:] - 1] = True  # the separators
        return _all_in_rows(inside, np.diff(self.begins))

    def only(self, chosen: Bool[np.ndarray, "R"]) -> Texts:
        """Some of the texts."""
        sizes = np.diff(self.begins)
        begins = np.concatenate([[0], np.cumsum(sizes[chosen])])
        return Texts(self.joined[np.repeat(chosen, sizes)], begins, self.characters[chosen])


def by_bytes(
    surfaces: TokenBytes, batch: Batch, texts: Texts
) -> tuple[Int64[np.ndarray, "N"], Bool[np.ndarray, "R"], Bool[np.ndarray, "R"]]:
    """Ends from the tokens' own bytes, which rows they are right for, and which rows the tokens invert exactly.

    Ends count from the row's beginning. They are right where the tokens' bytes are the text's, or the text's behind one
    space that the tokenizer put in front (`add_prefix_space`); the latter rows do not invert.
    """
    pieces = surfaces.pieces(batch)
    tokens, wanted = np.diff(batch.rows), np.diff(texts.begins)
    sizes = np.add.reduceat(pieces.lengths, batch.rows[:-1])
    # one byte too many, a space in front that the text has not: the tokenizer's own, cut off its first token
    first = surfaces.first_of(batch, pieces.lengths > 0)
    inserted = (sizes == wanted + 1) & (first < batch.ids.size) & (texts.joined[texts.begins[:-1]] != ord(" "))
    inserted[inserted] = surfaces.bytes[pieces.starts[first[inserted]]] == ord(" ")
    pieces.starts[first[inserted]] += 1
    pieces.lengths[first[inserted]] -= 1
    right = sizes - inserted == wanted  # the bytes themselves are compared only where their number agrees
    chosen = np.repeat(right, tokens)
    own = surfaces.join(Pieces(pieces.starts[chosen], pieces.lengths[chosen]))
    right[right] = _all_in_rows(own == texts.joined[np.repeat(right, wanted)], wanted[right])
    total = np.cumsum(pieces.lengths)
    before = total[batch.rows[:-1]] - pieces.lengths[batch.rows[:-1]]
    return total - np.repeat(before, tokens), right, right & ~inserted


def by_solid_bytes(
    surfaces: TokenBytes, batch: Batch, texts: Texts
) -> tuple[Int64[np.ndarray, "N"], Bool[np.ndarray, "R"]]:
    """Ends where a tokenizer changes white space and ASCII capitals only, and which rows they are right for.

    A row is right where the tokens' solid bytes (no white space) are the text's, capitals apart: each has its place in the
    text, and a token ends behind its last one. White space goes to the token after it, as in `by_offsets`, unless tokens hold
    white bytes in the end. Then the text must have as many in that place, or all of them be held so far (a run of spaces was
    made one); otherwise the row is not right. Nor is one with a token that stands for unknown bytes.
    """
    pieces, tokens, last = surfaces.pieces(batch), np.diff(batch.rows), batch.rows[1:] - 1
    if surfaces.spells_word_ends:
        spelled = surfaces.bytes[pieces.starts + pieces.lengths - 1] == ord(" ")
        pieces.lengths[spelled & (pieces.lengths > 0)] -= 1
    # The last token of a row is its separator. It counts as solid in tokens and text, so that no row is empty and each row's
    # n-th solid byte of the one is at a fixed distance from that of the other.
    total, counts = np.cumsum(pieces.lengths), surfaces.solid(pieces)
    counts[last] = 1
    behind = np.cumsum(counts)
    own, given = _Solid.of(surfaces.join(pieces), total[last] - 1), _Solid.of(texts.joined, texts.begins[1:] - 1)
    bounds, own_bounds = np.searchsorted(given.ends[1:], texts.begins, side="right"), np.append(0, behind[last])
    sizes, wanted = np.diff(own_bounds), np.diff(bounds)
    right = sizes == wanted
    same = own.values[np.repeat(right, sizes)] == given.values[np.repeat(right, wanted)]
    right[right] = _all_in_rows(same, wanted[right])
    place = behind + np.repeat(bounds[:-1] - own_bounds[:-1], tokens)
    # held: white bytes that the token holds in its end; gap, own_gap: all that are there, in the text and in the tokens
    ends, held = given.ends.take(place, mode="clip"), total - own.ends[behind]
    gap, own_gap = given.gaps.take(place, mode="clip"), own.gaps.take(behind, mode="clip")
    white, whole = (held > 0) | (counts == 0), held == own_gap
    doubtful = (white & ~whole & (gap != own_gap)) | ~surfaces.kept[batch.ids]
    doubtful[last] = doubtful[last - 1] = False
    right &= ~np.logical_or.reduceat(doubtful, batch.rows[:-1])
    ends += np.where(white & whole, gap, held)
    ends[last - 1] = texts.begins[1:] - 1
    return ends - np.repeat(texts.begins[:-1], tokens), right


@dataclass(frozen=True, slots=True, eq=False)
class _Solid:
    """The S bytes that are no white space; separators are among them.

    values: (S,) in lower case. ends: (S+1,) where each ends, from 0 on. gaps: (S,) white bytes in front of each.
    """

    values: UInt8[np.ndarray, "S"]
    ends: Int64[np.ndarray, "S+1"]
    gaps: Int64[np.ndarray, "S"]

    @classmethod
    def of(cls, data: UInt8[np.ndarray, "B"], separators: Int64[np.ndarray, "R"]) -> _Solid:
        solid = is_solid(data)
        solid[separators] = True
        places = np.flatnonzero(solid)
        ends = np.append(0, places + 1)
        return cls(np.frombuffer(data.tobytes().lower(), dtype=np.uint8)[places], ends, places - ends[:-1])


def _all_in_rows(same: Bool[np.ndarray, "B"], sizes: Int64[np.ndarray, "R"]) -> Bool[np.ndarray, "R"]:
    """Whether `same` holds all over each row; no row is empty."""
    return np.logical_and.reduceat(same, np.cumsum(sizes) - sizes) if sizes.size else np.zeros(0, dtype=bool)


def by_offsets(
    surfaces: TokenBytes, batch: Batch, texts: Texts, offsets: Iterable[Sequence[tuple[int, int]]]
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
    # where each character begins: every byte but UTF-8's continuations, 0b10xxxxxx
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
    surfaces: TokenBytes,
    pieces: Pieces,
    texts: Texts,
    begins: Int64[np.ndarray, "N"],
    ends: Int64[np.ndarray, "N"],
) -> None:
    """Correct `ends` in place within the runs of tokens that overlap."""
    # a run begins at a token that starts where all before it have ended
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
