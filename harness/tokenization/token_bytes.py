"""What each token contributes to decoded text, in bytes, and the byte spans of a batch. Decoder steps act on one token at a
time, but that the first may lose a space, ill-formed UTF-8 becomes U+FFFD, and the text may be stripped. `TokenCodec.read`
refuses where the tokenizer decodes otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Bool, Int32, Int64, Integer, UInt8

from harness.errors import TokenizationError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()
SEPARATOR = b"\n"  # between the texts of a batch, so that nothing reaches from one into the next

_BYTE_TOKEN = re.compile(rb"<0x[0-9A-Fa-f]{2}>")
_WORDPIECE_CLEANUP = {
    **{b" " + mark: mark for mark in (b".", b"?", b"!", b",")},
    b" ' ": b"'",
    b" n't": b"n't",
    b" 'm": b"'m",
    b" do not": b" don't",
    **{b" " + ending: ending for ending in (b"'s", b"'ve", b"'re")},
}


def byte_level_alphabet() -> dict[str, int]:
    """Byte-level BPE's printable stand-ins for the 256 bytes (GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


@dataclass(slots=True)
class _Chain:
    """Token strings on their way through the decoder: `rest` anywhere, `first` as a text's first token."""

    first: list[bytes]
    rest: list[bytes]
    byte_tokens: list[bool]
    fused: bool = False
    invalid: Literal["none", "lossy", "fallback"] = "none"
    strip_left: bytes = b""
    strip_right: bytes = b""

    def map(self, change: Callable[[bytes], bytes]) -> None:
        shared = self.first is self.rest
        self.rest = [change(token) for token in self.rest]
        self.first = self.rest if shared else [change(token) for token in self.first]

    def apply(self, step: dict[str, Any]) -> None:
        """Raises TokenizationError where a token's bytes depend on others."""
        kind = step["type"]
        if self.fused and kind in ("ByteFallback", "WordPiece", "BPEDecoder"):
            raise TokenizationError("decoder", f"decoder step {kind} after the tokens were joined is not supported")
        match kind:
            case "ByteLevel":
                # After the tokens were joined it does the same, unless one of them holds a character that is no stand-in for
                # a byte: then the core leaves the whole text as it is, and `TokenCodec.read` refuses it.
                table = {ord(character): byte for character, byte in byte_level_alphabet().items()}

                def to_bytes(token: bytes) -> bytes:
                    mapped = [table.get(ord(character), -1) for character in token.decode()]
                    return token if -1 in mapped else bytes(mapped)

                self.map(to_bytes)
                self.fused, self.invalid = True, "lossy"
            case "ByteFallback":
                self.byte_tokens = [_BYTE_TOKEN.fullmatch(token) is not None for token in self.rest]
                self.map(lambda token: bytes([int(token[3:5], 16)]) if _BYTE_TOKEN.fullmatch(token) else token)
                self.invalid = "fallback"
            case "Fuse":
                self.fused = True
            case "Replace":
                pattern, content = step["pattern"], step["content"].encode()
                if "String" not in pattern or (self.fused and len(pattern["String"]) > 1):
                    raise TokenizationError("decoder", f"decoder step Replace of {pattern} is not supported")
                self.map(lambda token: token.replace(pattern["String"].encode(), content))
            case "Metaspace":
                mark, keeps = step["replacement"].encode(), step.get("prepend_scheme", "always") == "never"
                self.first = [token.replace(mark, b" " if keeps else b"") for token in self.first]
                in_rest = b"" if self.fused and not keeps else b" "
                self.rest = [token.replace(mark, in_rest) for token in self.rest]
            case "WordPiece":
                prefix = step["prefix"].encode()
                self.rest = [t.removeprefix(prefix) if t.startswith(prefix) else b" " + t for t in self.rest]
                for old, new in _WORDPIECE_CLEANUP.items() if step["cleanup"] else ():
                    self.map(lambda token, old=old, new=new: token.replace(old, new))  # type: ignore[misc]
            case "BPEDecoder":
                suffix = step["suffix"].encode()
                self.map(lambda token: token.replace(suffix, b" "))
                self.strip_right = b" "
            case "Strip":
                cut, left, right = step["content"].encode(), step["start"], step["stop"]
                if max(left, right) > 1 or len(cut) > 1:
                    raise TokenizationError("decoder", "decoder step Strip of more than one byte is not supported")
                if self.fused:
                    self.strip_left, self.strip_right = cut * left, cut * right
                else:
                    self.map(lambda token: token.removeprefix(cut * left).removesuffix(cut * right))
            case _:
                raise TokenizationError("decoder", f"decoder step {kind} is not supported")


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Flat ids, a separator behind each sequence; `rows`: where each begins, and the total."""

    ids: Int32[np.ndarray, "N"]
    rows: Int64[np.ndarray, "R+1"]


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Where each token's bytes lie in the byte store."""

    starts: Int64[np.ndarray, "N"]
    lengths: Int64[np.ndarray, "N"]


class TokenBytes:
    """The vocabulary's byte table. decoder: of the serialised tokenizer. Raises TokenizationError (`decoder`)."""

    def __init__(self, tokenizer: Tokenizer, decoder: dict[str, Any] | None) -> None:
        size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        names = [tokenizer.id_to_token(i) for i in range(size)]
        special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        kept = [name is not None and i not in special for i, name in enumerate(names)]
        strings = [(name or "").encode() for name in names]
        steps = _Chain(first=strings, rest=strings, byte_tokens=[False] * size)
        if decoder is None:
            steps.rest = [b" " + token for token in strings]
        else:
            for step in decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]:
                steps.apply(step)
        self.invalid, self.strip_left, self.strip_right = steps.invalid, steps.strip_left, steps.strip_right
        self.unknown, self.separator = size, size + 1
        self.kept: Bool[np.ndarray, "V"] = np.array([*kept, False, False])
        self.byte_tokens: Bool[np.ndarray, "V"] = np.array([*steps.byte_tokens, False, False])
        table = [REPLACEMENT]
        for tokens in (steps.rest, steps.first):
            table += [*(token if k else b"" for token, k in zip(tokens, kept, strict=True)), b"", SEPARATOR]
        lengths = np.array([len(token) for token in table], dtype=np.int64)
        self.bytes = np.frombuffer(b"".join(table), dtype=np.uint8)
        self._lengths, self._first_lengths = lengths[1:].reshape(2, -1)
        self._starts, self._first_starts = (np.cumsum(lengths) - lengths)[1:].reshape(2, -1)

    def batch(self, flat: Integer[np.ndarray, "M"], counts: Integer[np.ndarray, "R"]) -> Batch:
        """Joined sequences with their lengths. Ids beyond the vocabulary are empty; raises TokenizationError (`ids`) for
        negative ones."""
        if flat.size and flat.min() < 0:
            raise TokenizationError("ids", "token ids must not be negative")
        rows = np.concatenate([[0], np.cumsum(counts + 1)])
        inside = np.ones(rows[-1], dtype=bool)
        inside[rows[1:] - 1] = False
        ids = np.full(rows[-1], self.separator, dtype=np.int32)
        ids[inside] = np.minimum(flat, self.unknown)
        return Batch(ids, rows)

    def pieces(self, batch: Batch) -> Pieces:
        """Bytes of each token, corrected at each row's first and last."""
        starts, lengths = self._starts[batch.ids], self._lengths[batch.ids]
        first = self.first_of(batch, self.kept[batch.ids])
        first = first[first < batch.ids.size]
        starts[first], lengths[first] = self._first_starts[batch.ids[first]], self._first_lengths[batch.ids[first]]
        if self.strip_left:
            token = self.first_of(batch, lengths > 0)
            token = token[token < batch.ids.size]
            token = token[self.bytes[starts[token]] == ord(self.strip_left)]
            starts[token] += 1
            lengths[token] -= 1
        if self.strip_right:
            reverse = Batch(batch.ids[::-1], batch.ids.size - batch.rows[::-1])
            token = self.first_of(reverse, (lengths > 0)[::-1])
            token = batch.ids.size - 1 - token[token < batch.ids.size]
            token = token[self.bytes[starts[token] + lengths[token] - 1] == ord(self.strip_right)]
            lengths[token] -= 1
        return Pieces(starts, lengths)

    def first_of(self, batch: Batch, where: Bool[np.ndarray, "N"]) -> Int64[np.ndarray, "R"]:
        """Each row's first token that satisfies `where`; N where there is none."""
        candidates = np.where(where & (batch.ids != self.separator), np.arange(batch.ids.size), batch.ids.size)
        return np.minimum.reduceat(candidates, batch.rows[:-1])

    def join(self, pieces: Pieces) -> UInt8[np.ndarray, "B"]:
        """The tokens' bytes, joined."""
        ends = np.cumsum(pieces.lengths)
        total = int(ends[-1]) if ends.size else 0
        return self.bytes[np.repeat(pieces.starts - (ends - pieces.lengths), pieces.lengths) + np.arange(total)]

    def decoded(self, batch: Batch) -> tuple[Int64[np.ndarray, "N"], bytes]:
        """Byte length of each token in the decoded text, and that text."""
        pieces = self.pieces(batch)
        raw = self.join(pieces)
        if self.invalid == "fallback":
            pieces = self._replace_bad_runs(batch, pieces, raw)
            raw = self.join(pieces)
        text = raw.tobytes()
        if self.invalid == "lossy" and (replaced := text.decode(errors="replace").encode()) != text:
            return np.diff(lossy_positions(raw)[np.cumsum(pieces.lengths)], prepend=0), replaced
        return pieces.lengths, text

    def _replace_bad_runs(self, batch: Batch, pieces: Pieces, raw: UInt8[np.ndarray, "B"]) -> Pieces:
        """Byte fallback's rule: of a run that is no valid UTF-8 each byte becomes U+FFFD."""
        starts, valid = units(raw)
        if valid.all():
            return pieces
        in_run = self.byte_tokens[batch.ids]
        breaks = ~in_run & (self.kept[batch.ids] | (batch.ids == self.separator))
        run = np.cumsum(breaks)
        owner = np.searchsorted(np.cumsum(pieces.lengths), starts[~valid], side="right")
        bad = in_run & np.isin(run, run[owner])
        return Pieces(np.where(bad, 0, pieces.starts), np.where(bad, len(REPLACEMENT), pieces.lengths))


# Units follow the Unicode standard's "substitution of maximal subparts" (section 3.9), which Rust's and Python's lossy decoders
# share: every maximal ill-formed prefix of a sequence becomes one U+FFFD.
_NEED = np.zeros(256, dtype=np.int8)
_NEED[0x00:0x80], _NEED[0xC2:0xE0], _NEED[0xE0:0xF0], _NEED[0xF0:0xF5] = 1, 2, 3, 4
_SECOND_LOW = np.full(256, 0x80, dtype=np.uint8)
_SECOND_HIGH = np.full(256, 0xBF, dtype=np.uint8)
_SECOND_LOW[0xE0], _SECOND_LOW[0xF0], _SECOND_HIGH[0xED], _SECOND_HIGH[0xF4] = 0xA0, 0x90, 0x9F, 0x8F


def units(data: UInt8[np.ndarray, "N"]) -> tuple[Int64[np.ndarray, "U"], Bool[np.ndarray, "U"]]:
    """Starts of characters or maximal ill-formed subparts, and whether each is valid."""
    padded = np.concatenate([data, np.zeros(3, dtype=np.uint8)])
    lead, second, third, fourth = padded[:-3], padded[1:-2], padded[2:-1], padded[3:]
    need = _NEED[lead]
    has_second = (need >= 2) & (second >= _SECOND_LOW[lead]) & (second <= _SECOND_HIGH[lead])
    has_third = has_second & (need >= 3) & (third & 0xC0 == 0x80)
    has_fourth = has_third & (need >= 4) & (fourth & 0xC0 == 0x80)
    consumed = np.zeros(data.size + 3, dtype=bool)
    for distance, has in enumerate((has_second, has_third, has_fourth), start=1):
        consumed[distance : distance + data.size] |= has
    starts = np.flatnonzero(~consumed[: data.size])
    length = 1 + has_second.astype(np.int8) + has_third + has_fourth
    return starts, (length == need)[starts]


def lossy_positions(data: UInt8[np.ndarray, "N"]) -> Int64[np.ndarray, "N+1"]:
    """Position in the lossily decoded bytes of every position of `data`. Each byte keeps at least one byte; a unit's tokens
    share one U+FFFD."""
    starts, valid = units(data)
    sizes = np.diff(starts, append=data.size)
    grown = np.where(valid, 0, len(REPLACEMENT) - sizes)
    shift = np.repeat(np.cumsum(grown) - grown, sizes)
    return np.append(np.arange(data.size) + shift, data.size + int(grown.sum()))


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """R texts in UTF-8, a separator behind each. characters: of each text."""

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
    """Ends by the tokens' own bytes, for which rows they are right (the text's, or behind one space that the tokenizer put in
    front), and which rows invert exactly."""
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
    """Ends by the core's character offsets. Characters between two tokens belong to the second. Tokens that share characters
    are parted by their own bytes if these are the text's, else the first has them all."""
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
    """Correct `ends` in place within runs of tokens that overlap."""
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
