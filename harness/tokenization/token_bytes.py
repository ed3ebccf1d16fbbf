"""What each token of a vocabulary contributes to decoded text, in bytes.

A tokenizer's decoder is a chain of steps over a list of token strings. Every step of the usual chains acts on one token at
a time, but for three things: the first token may lose a space, invalid UTF-8 becomes U+FFFD, and the whole text may be
stripped. So one table over the vocabulary, and these three corrections, give the bytes of any sequence of ids without
decoding it token by token. `TokenCodec` compares the result with the tokenizer's own, and refuses where they differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Bool, Int32, Int64, Integer, UInt8

from harness.errors import TokenizationError
from harness.tokenization.utf8 import REPLACEMENT, lossy_positions, units

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SEPARATOR = b"\n"
"""Stands between the texts of a batch, so that nothing reaches from one into the next."""

_BYTE_TOKEN = re.compile(rb"<0x([0-9A-Fa-f]{2})>")
_WORDPIECE_CLEANUP = {
    **{b" " + mark: mark for mark in (b".", b"?", b"!", b",")},
    b" ' ": b"'",
    b" n't": b"n't",
    b" 'm": b"'m",
    b" do not": b" don't",
    **{b" " + ending: ending for ending in (b"'s", b"'ve", b"'re")},
}


def is_solid(data: UInt8[np.ndarray, "B"]) -> Bool[np.ndarray, "B"]:
    """Which bytes are no white space. Faster than a table or `np.isin`."""
    solid: Bool[np.ndarray, "B"] = data != ord(" ")
    for byte in b"\t\n\r":
        solid &= data != byte
    return solid


def byte_level_alphabet() -> dict[str, int]:
    """Byte-level BPE's printable stand-ins for the 256 bytes (GPT-2): printable Latin-1 for itself, the rest from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


@dataclass(slots=True)
class _Chain:
    """Token strings on their way through the decoder's steps: `rest` anywhere, `first` as the first token of a text."""

    first: list[bytes]
    rest: list[bytes]
    byte_tokens: list[bool]
    fused: bool = False
    invalid: Literal["none", "lossy", "fallback"] = "none"
    strip_left: bytes = b""
    strip_right: bytes = b""
    spells_word_ends: bool = False

    def map(self, change: Callable[[bytes], bytes]) -> None:
        shared = self.first is self.rest
        self.rest = [change(token) for token in self.rest]
        self.first = self.rest if shared else [change(token) for token in self.first]

    def apply(self, step: dict[str, Any]) -> None:
        handler = getattr(self, f"_{step['type'].lower()}", None)
        if handler is None:
            raise TokenizationError("decoder", f"decoder step {step['type']} is not supported")
        handler(step)

    def _need_tokens(self, step: dict[str, Any]) -> None:
        if self.fused:
            raise TokenizationError(
                "decoder", f"decoder step {step['type']} after the tokens were joined is not supported"
            )

    def _bytelevel(self, step: dict[str, Any]) -> None:
        # After the tokens were joined it does the same, unless one of them holds a character that is no stand-in for a byte:
        # then the core leaves the whole text as it is, and `TokenCodec.read` refuses it.
        table = {ord(character): byte for character, byte in byte_level_alphabet().items()}

        def to_bytes(token: bytes) -> bytes:
            mapped = [table.get(ord(character), -1) for character in token.decode()]
            return token if -1 in mapped else bytes(mapped)

        self.map(to_bytes)
        self.fused, self.invalid = True, "lossy"

    def _bytefallback(self, step: dict[str, Any]) -> None:
        self._need_tokens(step)
        matches = [_BYTE_TOKEN.fullmatch(token) for token in self.rest]
        self.byte_tokens = [match is not None for match in matches]

        def to_byte(token: bytes) -> bytes:
            match = _BYTE_TOKEN.fullmatch(token)
            return token if match is None else bytes([int(match[1], 16)])

        self.map(to_byte)
        self.invalid = "fallback"

    def _fuse(self, step: dict[str, Any]) -> None:
        self.fused = True

    def _replace(self, step: dict[str, Any]) -> None:
        pattern, content = step["pattern"], step["content"].encode()
        if "String" not in pattern or (self.fused and len(pattern["String"]) > 1):
            raise TokenizationError("decoder", f"decoder step Replace of {pattern} is not supported")
        old = pattern["String"].encode()
        self.map(lambda token: token.replace(old, content))

    def _metaspace(self, step: dict[str, Any]) -> None:
        mark, keeps = step["replacement"].encode(), step.get("prepend_scheme", "always") == "never"
        self.first = [token.replace(mark, b" " if keeps else b"") for token in self.first]
        in_rest = b"" if self.fused and not keeps else b" "
        self.rest = [token.replace(mark, in_rest) for token in self.rest]

    def _wordpiece(self, step: dict[str, Any]) -> None:
        self._need_tokens(step)
        prefix = step["prefix"].encode()
        self.rest = [t.removeprefix(prefix) if t.startswith(prefix) else b" " + t for t in self.rest]
        if step["cleanup"]:
            for old, new in _WORDPIECE_CLEANUP.items():
                self.map(lambda token, old=old, new=new: token.replace(old, new))  # type: ignore[misc]

    def _bpedecoder(self, step: dict[str, Any]) -> None:
        self._need_tokens(step)
        suffix = step["suffix"].encode()
        self.map(lambda token: token.replace(suffix, b" "))
        self.strip_right, self.spells_word_ends = b" ", True

    def _strip(self, step: dict[str, Any]) -> None:
        content, left, right = step["content"].encode(), step["start"], step["stop"]
        if max(left, right) > 1 or len(content) > 1:
            raise TokenizationError("decoder", "decoder step Strip of more than one byte is not supported")
        if self.fused:
            self.strip_left, self.strip_right = content * left, content * right
        else:
            self.map(lambda token: token.removeprefix(content * left).removesuffix(content * right))


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Flat ids of several sequences, each followed by a separator's id; `rows` holds where each begins, and the total."""

    ids: Int32[np.ndarray, "N"]
    rows: Int64[np.ndarray, "R+1"]

    def only(self, chosen: Bool[np.ndarray, "R"]) -> Batch:
        """Some of the rows."""
        sizes = np.diff(self.rows)
        return Batch(self.ids[np.repeat(chosen, sizes)], np.concatenate([[0], np.cumsum(sizes[chosen])]))


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Where each token's bytes lie in the vocabulary's byte store: (N,) starts and lengths."""

    starts: Int64[np.ndarray, "N"]
    lengths: Int64[np.ndarray, "N"]


@dataclass(frozen=True, slots=True, eq=False)
class TokenBytesState:
    """A `TokenBytes` as plain data, V entries with the unknown token's and the separator's; the lengths are those of each token's
    bytes anywhere, and as the first of a text."""

    invalid: Literal["none", "lossy", "fallback"]
    strip_left: bytes
    strip_right: bytes
    spells_word_ends: bool
    bytes: UInt8[np.ndarray, "B"]
    kept: Bool[np.ndarray, "V"]
    byte_tokens: Bool[np.ndarray, "V"]
    lengths: Int64[np.ndarray, "V"]
    first_lengths: Int64[np.ndarray, "V"]


class TokenBytes:
    """The vocabulary's byte table. decoder: of the serialised tokenizer.

    Raises
    ------
    TokenizationError
        `decoder`: the decoder has a step whose effect on one token depends on others (CTC, a regular expression, ...).
    """

    def __init__(self, tokenizer: Tokenizer, decoder: dict[str, Any] | None) -> None:
        size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        names = [tokenizer.id_to_token(i) for i in range(size)]
        skipped = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        kept = np.array([name is not None and i not in skipped for i, name in enumerate(names)] + [False, False])
        strings = [(name or "").encode() for name in names]
        chain = _Chain(first=strings, rest=strings, byte_tokens=[False] * size)
        if decoder is None:
            chain.rest = [b" " + token for token in strings]
        else:
            for step in decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]:
                chain.apply(step)
        self.invalid, self.strip_left, self.strip_right = chain.invalid, chain.strip_left, chain.strip_right
        self.spells_word_ends = chain.spells_word_ends
        self.kept: Bool[np.ndarray, "V"] = kept
        self.byte_tokens: Bool[np.ndarray, "V"] = np.array([*chain.byte_tokens, False, False])
        self._store(chain, kept)
        self._count()

    @classmethod
    def of(cls, state: TokenBytesState) -> TokenBytes:
        """From what `state` gave."""
        table = cls.__new__(cls)
        table.invalid, table.strip_left, table.strip_right = state.invalid, state.strip_left, state.strip_right
        table.spells_word_ends, table.bytes, table.kept = state.spells_word_ends, state.bytes, state.kept
        table.byte_tokens, table._lengths, table._first_lengths = state.byte_tokens, state.lengths, state.first_lengths
        table._count()
        return table

    @property
    def state(self) -> TokenBytesState:
        """All that it was made of a tokenizer."""
        return TokenBytesState(
            self.invalid, self.strip_left, self.strip_right, self.spells_word_ends,
            self.bytes, self.kept, self.byte_tokens, self._lengths, self._first_lengths,
        )  # fmt: skip

    def _store(self, chain: _Chain, kept: Bool[np.ndarray, "V"]) -> None:
        rest = [token if k else b"" for token, k in zip(chain.rest, kept, strict=False)] + [b"", SEPARATOR]
        first = [token if k else b"" for token, k in zip(chain.first, kept, strict=False)] + [b"", SEPARATOR]
        self._lengths = np.array([len(token) for token in rest], dtype=np.int64)
        self._first_lengths = np.array([len(token) for token in first], dtype=np.int64)
        self.bytes = np.frombuffer(b"".join([REPLACEMENT, *rest, *first]), dtype=np.uint8)

    def _count(self) -> None:
        size = len(self.kept)
        lengths = np.concatenate([[len(REPLACEMENT)], self._lengths, self._first_lengths])
        starts = np.cumsum(lengths) - lengths
        self.unknown, self.separator = size - 2, size - 1
        self.cuts_characters = self.invalid != "none"
        self._solid = np.append(0, np.cumsum(is_solid(self.bytes)))
        self._starts, self._first_starts = starts[1 : size + 1], starts[size + 1 :]

    def batch(self, flat: Integer[np.ndarray, "M"], counts: Integer[np.ndarray, "R"]) -> Batch:
        """Sequences of ids, given joined and with their lengths. Ids beyond the vocabulary (padded embeddings) contribute
        nothing; negative ones raise TokenizationError (`ids`)."""
        if flat.size and flat.min() < 0:
            raise TokenizationError("ids", "token ids must not be negative")
        rows = np.concatenate([[0], np.cumsum(counts + 1)])
        inside = np.ones(rows[-1], dtype=bool)
        inside[rows[1:] - 1] = False
        ids = np.full(rows[-1], self.separator, dtype=np.int32)
        ids[inside] = np.minimum(flat, self.unknown)
        return Batch(ids, rows)

    def pieces(self, batch: Batch) -> Pieces:
        """The bytes of each token, before invalid UTF-8 is replaced; corrected at the first and last token of each row."""
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
        """Index of each row's first token that satisfies `where`; N where a row has none."""
        candidates = np.where(where & (batch.ids != self.separator), np.arange(batch.ids.size), batch.ids.size)
        return np.minimum.reduceat(candidates, batch.rows[:-1])

    def solid(self, pieces: Pieces) -> Int64[np.ndarray, "N"]:
        """How many of each token's bytes are no white space."""
        counts: Int64[np.ndarray, "N"] = self._solid[pieces.starts + pieces.lengths] - self._solid[pieces.starts]
        return counts

    def join(self, pieces: Pieces) -> UInt8[np.ndarray, "B"]:
        """The tokens' bytes, joined."""
        ends = np.cumsum(pieces.lengths)
        total = int(ends[-1]) if ends.size else 0
        return self.bytes[np.repeat(pieces.starts - (ends - pieces.lengths), pieces.lengths) + np.arange(total)]

    def decoded(self, batch: Batch) -> tuple[Int64[np.ndarray, "N"], bytes]:
        """Byte length of each token in the decoded text, and that text: rows joined, a separator after each."""
        pieces = self.pieces(batch)
        raw = self.join(pieces)
        if self.invalid == "fallback":
            pieces = self._replace_bad_runs(batch, pieces, raw)
            return pieces.lengths, self.join(pieces).tobytes()
        if self.invalid == "none":
            return pieces.lengths, raw.tobytes()
        try:
            raw.tobytes().decode()
        except UnicodeDecodeError:
            ends = lossy_positions(raw)[np.cumsum(pieces.lengths)]
            return np.diff(ends, prepend=0), raw.tobytes().decode(errors="replace").encode()
        return pieces.lengths, raw.tobytes()

    def _replace_bad_runs(self, batch: Batch, pieces: Pieces, raw: UInt8[np.ndarray, "B"]) -> Pieces:
        """Byte fallback's own rule: unless a whole run of byte tokens is valid UTF-8, each of them becomes one U+FFFD."""
        starts, valid = units(raw)
        if valid.all():
            return pieces
        in_run = self.byte_tokens[batch.ids]
        breaks = ~in_run & (self.kept[batch.ids] | (batch.ids == self.separator))
        run = np.cumsum(breaks)
        owner = np.searchsorted(np.cumsum(pieces.lengths), starts[~valid], side="right")
        bad = in_run & np.isin(run, run[owner])
        return Pieces(np.where(bad, 0, pieces.starts), np.where(bad, len(REPLACEMENT), pieces.lengths))
