"""Tokens' bytes in decoded text, and where tokens end. Decoder steps act on single tokens, but the first may lose a space,
ill-formed UTF-8 becomes U+FFFD, and the text may be stripped."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
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
    """Return byte-level BPE's printable stand-ins (GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    for number, byte in enumerate(others):
        alphabet[chr(0x100 + number)] = byte
    return alphabet


_BYTE_OF = {ord(character): byte for character, byte in byte_level_alphabet().items()}


def _bytes_of_stand_ins(token: bytes) -> bytes:
    """Return the bytes for which a byte-level token's characters stand; itself where one stands for none.

    After the tokens were joined the core does the same with the whole text, unless one of them holds such a character: then it
    leaves the text as it is, and `TokenCodec.read` refuses it."""
    mapped = [_BYTE_OF.get(ord(character), -1) for character in token.decode()]
    return token if -1 in mapped else bytes(mapped)


def _byte_of_token(token: bytes) -> bytes:
    """Return the byte that `<0x0A>` names; any other token as it is."""
    return bytes([int(token[3:5], 16)]) if _BYTE_TOKEN.fullmatch(token) else token


def _replace_bytes(token: bytes, old: bytes, new: bytes) -> bytes:
    return token.replace(old, new)


class TokenBytes:
    """By id. decoder: of the serialised tokenizer. Raises TokenizationError (`decoder`)."""

    def __init__(self, tokenizer: Tokenizer, decoder: dict[str, Any] | None) -> None:
        self.invalid: Literal["none", "lossy", "fallback"] = "none"
        self._strip_left = self._strip_right = b""
        self._fused = False
        self.unknown = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        added = tokenizer.get_added_tokens_decoder()
        special = {token_id for token_id, token in added.items() if token.special}
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
            steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
            for step in steps:
                self._apply_step(step)
        for table in (self._first, self._rest):
            table[:] = [token if kept else b"" for token, kept in zip(table, self._kept, strict=True)]

    def _map_tokens(self, change: Callable[[bytes], bytes]) -> None:
        """Change the bytes of every token, at the start of a text and behind it."""
        self._first = [change(token) for token in self._first]
        self._rest = [change(token) for token in self._rest]

    def _apply_step(self, step: dict[str, Any]) -> None:
        """Apply one step of the tokenizer's decoder to every token's bytes. Raises TokenizationError for a step after which a
        token's bytes would depend on its neighbours."""
        kind = step["type"]
        if self._fused and kind in ("ByteFallback", "WordPiece", "BPEDecoder"):
            raise TokenizationError("decoder", f"decoder step {kind} after the tokens were joined is not supported")
        match kind:
            case "ByteLevel":
                self._map_tokens(_bytes_of_stand_ins)
                self._fused = True
                self.invalid = "lossy"
            case "ByteFallback":
                self._byte_tokens = {i for i, token in enumerate(self._rest) if _BYTE_TOKEN.fullmatch(token)}
                self._map_tokens(_byte_of_token)
                self.invalid = "fallback"
            case "Fuse":
                self._fused = True
            case "Replace":
                self._replace_text(step["pattern"], step["content"].encode())
            case "Metaspace":
                self._put_spaces(step["replacement"].encode(), step.get("prepend_scheme", "always"))
            case "WordPiece":
                self._join_word_pieces(step["prefix"].encode(), cleans_up=step["cleanup"])
            case "BPEDecoder":
                suffix = step["suffix"].encode()
                self._map_tokens(lambda token: token.replace(suffix, b" "))
                self._strip_right = b" "
            case "Strip":
                self._strip_ends(step["content"].encode(), step["start"], step["stop"])
            case _:
                raise TokenizationError("decoder", f"decoder step {kind} is not supported")

    def _replace_text(self, pattern: dict[str, str], content: bytes) -> None:
        """Put `content` in the place of a text. What was joined may hold a longer text across two tokens. Raises
        TokenizationError."""
        text = pattern.get("String")
        if text is None or (self._fused and len(text) > 1):
            raise TokenizationError("decoder", f"decoder step Replace of {pattern} is not supported")
        old = text.encode()
        self._map_tokens(lambda token: token.replace(old, content))

    def _put_spaces(self, mark: bytes, scheme: str) -> None:
        """Put spaces in the place of SentencePiece's mark; the first one of a text is not the text's, unless none is put
        there."""
        keeps_first = scheme == "never"
        in_first = b" " if keeps_first else b""
        in_rest = b"" if self._fused and not keeps_first else b" "
        self._first = [token.replace(mark, in_first) for token in self._first]
        self._rest = [token.replace(mark, in_rest) for token in self._rest]

    def _join_word_pieces(self, prefix: bytes, cleans_up: bool) -> None:
        """Join pieces that go on with a word, which have the prefix, and put a space in front of the others."""
        joined = []
        for token in self._rest:
            goes_on = token.startswith(prefix)
            joined.append(token.removeprefix(prefix) if goes_on else b" " + token)
        self._rest = joined
        if not cleans_up:
            return
        for old, new in _WORDPIECE_CLEANUP.items():
            self._map_tokens(partial(_replace_bytes, old=old, new=new))

    def _strip_ends(self, cut: bytes, left: int, right: int) -> None:
        """Take a byte off both ends, of each token, or of the text where the tokens were joined. left, right: how often. Raises
        TokenizationError for more than once."""
        if max(left, right) > 1 or len(cut) > 1:
            raise TokenizationError("decoder", "decoder step Strip of more than one byte is not supported")
        of_left = cut * left
        of_right = cut * right
        if self._fused:
            self._strip_left = of_left
            self._strip_right = of_right
        else:
            self._map_tokens(lambda token: token.removeprefix(of_left).removesuffix(of_right))

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        """Return the bytes of ids up to `unknown`, which has none."""
        pieces = [self._rest[i] for i in ids]
        first = 0
        while first < len(ids) and not self._kept[ids[first]]:
            first += 1
        if first < len(ids):
            pieces[first] = self._first[ids[first]]
        if self._strip_left or self._strip_right:
            self._strip_text(pieces)
        return pieces

    def _strip_text(self, pieces: list[bytes]) -> None:
        """Take off what the decoder strips from a whole text: of its first token with bytes, and of its last."""
        full = [place for place, piece in enumerate(pieces) if piece]
        if full:
            pieces[full[0]] = pieces[full[0]].removeprefix(self._strip_left)
            pieces[full[-1]] = pieces[full[-1]].removesuffix(self._strip_right)

    def decoded(self, ids: Sequence[int]) -> tuple[list[int], bytes]:
        """Return the byte length of each token, and the text."""
        pieces = self.pieces(ids)
        text = b"".join(pieces)
        bad = [] if self.invalid == "none" else list(ill_formed(text))
        if not bad:
            return [len(piece) for piece in pieces], text
        if self.invalid == "lossy":
            return _lengths_with_replacements(pieces, bad), text.decode(errors="replace").encode()
        self._replace_bytes_that_are_no_text(ids, pieces)
        return [len(piece) for piece in pieces], b"".join(pieces)

    def _replace_bytes_that_are_no_text(self, ids: Sequence[int], pieces: list[bytes]) -> None:
        """Make U+FFFD of each byte token in a run of byte tokens that together are no text."""
        kept = (place for place, i in enumerate(ids) if self._kept[i])
        for of_bytes, run in groupby(kept, key=lambda place: ids[place] in self._byte_tokens):
            places = list(run)
            joined = b"".join(pieces[place] for place in places)
            if of_bytes and any(ill_formed(joined)):
                for place in places:
                    pieces[place] = REPLACEMENT


def _lengths_with_replacements(pieces: Sequence[bytes], bad: Sequence[tuple[int, int]]) -> list[int]:
    """Return the byte length of each token where every ill-formed part became one U+FFFD, which its tokens share. bad: these
    parts."""
    stops = [stop for _, stop in bad]
    changes = [len(REPLACEMENT) - (stop - start) for start, stop in bad]
    longer = list(accumulate(changes, initial=0))  # in all before each part
    ends = [end + longer[bisect_right(stops, end)] for end in accumulate(map(len, pieces))]
    return [end - begin for begin, end in pairwise([0, *ends])]


def ill_formed(data: bytes) -> Iterator[tuple[int, int]]:
    """Find start and stop of each maximal part that begins no character (Unicode 3.9): one U+FFFD to lossy decoders."""
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
    """Find the ends of tokens that are the text, and whether exactly, or behind an added space. None where their bytes are
    others."""
    joined = b"".join(pieces)
    if joined == text:
        return list(accumulate(map(len, pieces))), True
    if joined[:1] != b" " or joined[1:] != text or text[:1] == b" ":
        return None
    return [max(end - 1, 0) for end in accumulate(map(len, pieces))], False


def byte_places(text: str) -> list[int]:
    """Return where each character of the text begins in its UTF-8 bytes, and where the last ends."""
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")  # (C,) code points
    sizes = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)  # (C,) bytes of each
    return [0, *np.cumsum(sizes).tolist()]


def ends_by_offsets(pieces: Sequence[bytes], text: str, offsets: Sequence[tuple[int, int]], cut: bool) -> list[int]:
    """Find the ends by the core's character offsets. Characters between tokens belong to the second. Shared characters are parted
    by tokens' own bytes if these are the text's and tokens may `cut` characters; else the first has all."""
    data = text.encode()
    place = range(len(data) + 1) if text.isascii() else byte_places(text)
    ends = list(accumulate([place[end] for _, end in offsets], max))
    if cut:
        begins = [place[begin] for begin, _ in offsets]
        # Tokens that share characters stand between two heads
        heads = [token for token in range(1, len(ends)) if begins[token] >= ends[token - 1]]
        for head, stop in pairwise([0, *heads, len(ends)]):
            if stop - head <= 1:
                continue
            own = pieces[head:stop]
            if b"".join(own) == data[begins[head] : ends[stop - 1]]:
                ends[head:stop] = [begins[head] + size for size in accumulate(map(len, own))]
    return [*ends[:-1], len(data)]
