"""Tokens' bytes in decoded text, and where tokens end. Decoder steps act on single tokens, but the first may lose a space,
ill-formed UTF-8 becomes U+FFFD, and the text may be stripped."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from harness.errors import TokenizationError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()

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
    """Byte-level BPE's printable stand-ins (GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


class TokenBytes:
    """By id. decoder: of the serialised tokenizer. Raises TokenizationError (`decoder`)."""

    def __init__(self, tokenizer: Tokenizer, decoder: dict[str, Any] | None) -> None:
        self.invalid: Literal["none", "lossy", "fallback"] = "none"
        self._strip_left = self._strip_right = b""
        self._fused = False
        self.unknown = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        special = {token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        names = [None if token_id in special else tokenizer.id_to_token(token_id) for token_id in range(self.unknown)]
        names.append(None)  # an id that the tokenizer does not know
        self._kept = [name is not None for name in names]
        # as a text's first token, and anywhere else
        self._first = [(name or "").encode() for name in names]
        self._rest = list(self._first)
        self._byte_tokens: set[int] = set()
        if decoder is None:
            self._rest = [b" " + token for token in self._rest]
        else:
            for step in decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]:
                self._apply_step(step)
        for table in (self._first, self._rest):
            table[:] = [token if kept else b"" for token, kept in zip(table, self._kept, strict=True)]

    def _map_tokens(self, change: Callable[[bytes], bytes]) -> None:
        """Change the bytes of every token, at the start of a text and behind it."""
        self._first = [change(token) for token in self._first]
        self._rest = [change(token) for token in self._rest]

    def _apply_step(self, step: dict[str, Any]) -> None:
        """Apply one step of the tokenizer's decoder to every token's bytes."""
        kind = step["type"]
        if self._fused and kind in ("ByteFallback", "WordPiece", "BPEDecoder"):
            raise TokenizationError("decoder", f"decoder step {kind} after the tokens were joined is not supported")
        match kind:
            case "ByteLevel":
                # After the tokens were joined it does the same, unless one of them holds a character that is no stand-in for
                # a byte: then the core leaves the whole text as it is, and `TokenCodec.read` refuses it.
                table = {ord(character): byte for character, byte in byte_level_alphabet().items()}

                def to_bytes(token: bytes) -> bytes:
                    mapped = [table.get(ord(character), -1) for character in token.decode()]
                    return token if -1 in mapped else bytes(mapped)

                self._map_tokens(to_bytes)
                self._fused = True
                self.invalid = "lossy"
            case "ByteFallback":
                self._byte_tokens = {i for i, token in enumerate(self._rest) if _BYTE_TOKEN.fullmatch(token)}
                self._map_tokens(lambda token: bytes([int(token[3:5], 16)]) if _BYTE_TOKEN.fullmatch(token) else token)
                self.invalid = "fallback"
            case "Fuse":
                self._fused = True
            case "Replace":
                pattern = step["pattern"]
                content = step["content"].encode()
                if "String" not in pattern or (self._fused and len(pattern["String"]) > 1):
                    raise TokenizationError("decoder", f"decoder step Replace of {pattern} is not supported")
                self._map_tokens(lambda token: token.replace(pattern["String"].encode(), content))
            case "Metaspace":
                mark = step["replacement"].encode()
                keeps = step.get("prepend_scheme", "always") == "never"
                self._first = [token.replace(mark, b" " if keeps else b"") for token in self._first]
                in_rest = b"" if self._fused and not keeps else b" "
                self._rest = [token.replace(mark, in_rest) for token in self._rest]
            case "WordPiece":
                prefix = step["prefix"].encode()
                self._rest = [t.removeprefix(prefix) if t.startswith(prefix) else b" " + t for t in self._rest]
                for old, new in _WORDPIECE_CLEANUP.items() if step["cleanup"] else ():
                    self._map_tokens(lambda token, old=old, new=new: token.replace(old, new))  # type: ignore[misc]
            case "BPEDecoder":
                suffix = step["suffix"].encode()
                self._map_tokens(lambda token: token.replace(suffix, b" "))
                self._strip_right = b" "
            case "Strip":
                cut = step["content"].encode()
                left = step["start"]
                right = step["stop"]
                if max(left, right) > 1 or len(cut) > 1:
                    raise TokenizationError("decoder", "decoder step Strip of more than one byte is not supported")
                if self._fused:
                    self._strip_left = cut * left
                    self._strip_right = cut * right
                else:
                    self._map_tokens(lambda token: token.removeprefix(cut * left).removesuffix(cut * right))
            case _:
                raise TokenizationError("decoder", f"decoder step {kind} is not supported")

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        """Bytes of ids up to `unknown`, which has none."""
        pieces = [self._rest[i] for i in ids]
        first = 0
        while first < len(ids) and not self._kept[ids[first]]:
            first += 1
        if first < len(ids):
            pieces[first] = self._first[ids[first]]
        if (self._strip_left or self._strip_right) and (full := [i for i, piece in enumerate(pieces) if piece]):
            pieces[full[0]] = pieces[full[0]].removeprefix(self._strip_left)
            pieces[full[-1]] = pieces[full[-1]].removesuffix(self._strip_right)
        return pieces

    def decoded(self, ids: Sequence[int]) -> tuple[list[int], bytes]:
        """Byte length of each token, and the text."""
        pieces = self.pieces(ids)
        text = b"".join(pieces)
        ends = list(accumulate(map(len, pieces)))
        if self.invalid == "none" or not (bad := list(ill_formed(text))):
            return [len(piece) for piece in pieces], text
        if self.invalid == "lossy":  # a character's tokens share one U+FFFD
            stops = [stop for _, stop in bad]
            longer = list(accumulate((len(REPLACEMENT) - (stop - start) for start, stop in bad), initial=0))
            ends = [end + longer[bisect_right(stops, end)] for end in ends]
            return [b - a for a, b in pairwise([0, *ends])], text.decode(errors="replace").encode()
        # byte tokens that are no text become U+FFFD byte by byte
        kept = (place for place, i in enumerate(ids) if self._kept[i])
        for of_bytes, run in groupby(kept, key=lambda place: ids[place] in self._byte_tokens):
            places = list(run)
            if of_bytes and any(ill_formed(b"".join(pieces[place] for place in places))):
                for place in places:
                    pieces[place] = REPLACEMENT
        return [len(piece) for piece in pieces], b"".join(pieces)


def ill_formed(data: bytes) -> Iterator[tuple[int, int]]:
    """Start and stop of each maximal part that begins no character (Unicode 3.9): one U+FFFD to lossy decoders."""
    begin = 0
    view = memoryview(data)
    while True:
        try:
            str(view[begin:], "utf-8")
        except UnicodeDecodeError as error:
            yield begin + error.start, begin + error.end
            begin += error.end
        else:
            return


def ends_by_bytes(pieces: Sequence[bytes], text: bytes) -> tuple[list[int], bool] | None:
    """Ends of tokens that are the text, and whether exactly, or behind an added space. None where their bytes are others."""
    joined = b"".join(pieces)
    if joined == text:
        return list(accumulate(map(len, pieces))), True
    if joined[:1] != b" " or joined[1:] != text or text[:1] == b" ":
        return None
    return [max(end - 1, 0) for end in accumulate(map(len, pieces))], False


def byte_places(text: str) -> list[int]:
    """Return where each character of the text begins in its UTF-8 bytes, and where the last ends."""
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    sizes = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
    return [0, *np.cumsum(sizes).tolist()]


def ends_by_offsets(pieces: Sequence[bytes], text: str, offsets: Sequence[tuple[int, int]], cut: bool) -> list[int]:
    """Ends by the core's character offsets. Characters between tokens belong to the second. Shared characters are parted by
    tokens' own bytes if these are the text's and tokens may `cut` characters; else the first has all."""
    data = text.encode()
    place = range(len(data) + 1) if text.isascii() else byte_places(text)
    ends = list(accumulate([place[end] for _, end in offsets], max))
    if cut:
        begins = [place[begin] for begin, _ in offsets]
        heads = [0, *(i for i in range(1, len(ends)) if begins[i] >= ends[i - 1]), len(ends)]
        for head, stop in pairwise(heads):
            own = pieces[head:stop]
            if stop - head > 1 and b"".join(own) == data[begins[head] : ends[stop - 1]]:
                ends[head:stop] = [begins[head] + size for size in accumulate(map(len, own))]
    return [*ends[:-1], len(data)]
