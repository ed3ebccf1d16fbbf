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

if TYPE_CHECKING:
    from tokenizers import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()
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
        self.strip_right = b" "

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


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Where each token's bytes lie in the vocabulary's byte store: (N,) starts and lengths."""

    starts: Int64[np.ndarray, "N"]
    lengths: Int64[np.ndarray, "N"]


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
        special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        kept = [name is not None and i not in special for i, name in enumerate(names)]
        strings = [(name or "").encode() for name in names]
        chain = _Chain(first=strings, rest=strings, byte_tokens=[False] * size)
        if decoder is None:
            chain.rest = [b" " + token for token in strings]
        else:
            for step in decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]:
                chain.apply(step)
        self.invalid, self.strip_left, self.strip_right = chain.invalid, chain.strip_left, chain.strip_right
        self.unknown, self.separator = size, size + 1
        self.kept: Bool[np.ndarray, "V"] = np.array([*kept, False, False])
        self.byte_tokens: Bool[np.ndarray, "V"] = np.array([*chain.byte_tokens, False, False])
        table = [REPLACEMENT]
        for tokens in (chain.rest, chain.first):
            table += [*(token if k else b"" for token, k in zip(tokens, kept, strict=True)), b"", SEPARATOR]
        lengths = np.array([len(token) for token in table], dtype=np.int64)
        self.bytes = np.frombuffer(b"".join(table), dtype=np.uint8)
        self._lengths, self._first_lengths = lengths[1:].reshape(2, -1)
        self._starts, self._first_starts = (np.cumsum(lengths) - lengths)[1:].reshape(2, -1)

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


# Units follow the Unicode standard's "substitution of maximal subparts" (section 3.9), which Rust's and Python's lossy decoders
# share: every maximal ill-formed prefix of a sequence becomes one U+FFFD.
_NEED = np.zeros(256, dtype=np.int8)
_NEED[0x00:0x80], _NEED[0xC2:0xE0], _NEED[0xE0:0xF0], _NEED[0xF0:0xF5] = 1, 2, 3, 4
_SECOND_LOW = np.full(256, 0x80, dtype=np.uint8)
_SECOND_HIGH = np.full(256, 0xBF, dtype=np.uint8)
_SECOND_LOW[0xE0], _SECOND_LOW[0xF0], _SECOND_HIGH[0xED], _SECOND_HIGH[0xF4] = 0xA0, 0x90, 0x9F, 0x8F


def units(data: UInt8[np.ndarray, "N"]) -> tuple[Int64[np.ndarray, "U"], Bool[np.ndarray, "U"]]:
    """Starts of the stream's units (characters, or maximal ill-formed subparts) and whether each is valid."""
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
    """Position in the lossily decoded bytes of every position of `data`.

    A boundary inside an ill-formed unit of n bytes falls after as many bytes of its replacement; the unit's end falls at
    the replacement's end. So every byte keeps at least one byte of output, and a unit's tokens share one U+FFFD.
    """
    starts, valid = units(data)
    sizes = np.diff(starts, append=data.size)
    grown = np.where(valid, 0, len(REPLACEMENT) - sizes)
    shift = np.repeat(np.cumsum(grown) - grown, sizes)
    return np.append(np.arange(data.size) + shift, data.size + int(grown.sum()))
