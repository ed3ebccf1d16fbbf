"""Text to ids with the exact byte span of every token, and sampled ids to text with theirs.

`encode` and `decode` are those of the tokenizer's Rust core, one call per batch; everything else is numpy over the
concatenated batch. Where a tokenizer inverts exactly, the spans are the lengths of its tokens' own bytes, compared byte by
byte with the text, or without white space and capitals if it changes no more than these; where it changes more
(normalisers, unknown characters), they come from the core's character offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, compress, pairwise
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np
from jaxtyping import Bool, Int32

from harness.errors import TokenizationError
from harness.tokenization.isolation import MARKER
from harness.tokenization.kept_tables import tables_of
from harness.tokenization.marks import Marks, Translated
from harness.tokenization.spans import Texts, by_bytes, by_offsets, by_solid_bytes
from harness.tokenization.token_bytes import SEPARATOR, Batch

if TYPE_CHECKING:
    from tokenizers import Encoding
    from transformers import PreTrainedTokenizerFast

T = TypeVar("T")
MAX_TEXT_BYTES = 1 << 20
PROBE = "So  2+3 = 5.\n"
"""Where a tokenizer gives this back, it gives back most texts, and offsets are asked for only where it does not."""
PROBES = [f"a {chr(code)} a" for code in range(128)]
"""Where it does not, characters of whose texts the spans need no offsets."""


class Encoded(
    msgspec.Struct, frozen=True, eq=False, gc=False
):  # made for each text, eight times as fast as a dataclass
    """One text in a tokenizer's own tokens.

    ids: (T,) without special tokens. ends: (T,) byte position in the text where each token ends; not decreasing, the last
    is the text's length. Two tokens end at the same place where the second adds no byte of its own.
    inverse: the tokens' own bytes, joined, are the text exactly, reasoning marks apart (`tokenization.marks`).
    letters: reasoning marks of the text that the tokenizer has no token for, and spells.
    """

    ids: Int32[np.ndarray, "T"]
    ends: Int32[np.ndarray, "T"]
    inverse: bool
    letters: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """One sampled answer as text. pieces: (T,) bytes that each token contributes; their sum is the text's byte length."""

    text: str
    pieces: Int32[np.ndarray, "T"]


class TokenCodec:
    """One policy's tokenizer, as the exchange uses it.

    Parameters
    ----------
    tokenizer: any fast tokenizer. It is not changed.
    stop: ids that end the policy's answers; the first is the one that it would sample itself, and so is taught. By default the
        tokenizer's own `eos_token_id`.

    No text becomes an id that ends, opens or pads, not even as the token of what the tokenizer does not know: such a text is
    refused.

    Raises
    ------
    TokenizationError
        `slow`, `eos`, `vocabulary`, `decoder`: no fast tokenizer, no end token, one that cannot be copied faithfully, or one
        whose decoder has steps in which one token's bytes depend on the others (CTC, regular expressions).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, stop: Sequence[int] = ()) -> None:
        if getattr(tokenizer, "backend_tokenizer", None) is None:
            raise TokenizationError("slow", f"{type(tokenizer).__name__} is not a fast tokenizer")
        if not stop and tokenizer.eos_token_id is None:
            raise TokenizationError("eos", "the tokenizer has no end token")
        self.eos_id = int(stop[0] if stop else tokenizer.eos_token_id)
        self._own = tokenizer.backend_tokenizer
        reserved = {*stop, tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id} - {None}
        added = self._own.get_added_tokens_decoder().items()
        self._marks = Marks(token.content for i, token in added if not token.special and i not in reserved)
        tables = tables_of(tokenizer, self._marks.own)
        control, unknown, self._reader, self._surfaces = tables.control, tables.unknown, tables.reader, tables.surfaces
        self._control = np.zeros(self._surfaces.separator + 1, dtype=bool)
        self._control[[i for content, i in control.items() if content != unknown]] = True
        self._control[[i for i in reserved if i < self._control.size]] = True
        self._inverts, self._easy_bytes = self._probed()

    def decode(self, ids: Sequence[int] | Int32[np.ndarray, "T"]) -> str:
        """Text of sampled ids; special tokens and ids outside the vocabulary contribute nothing."""
        return self.read([ids])[0].text

    def pieces(self, ids: Sequence[int] | Int32[np.ndarray, "T"]) -> Int32[np.ndarray, "T"]:
        """Byte length of each sampled token (final EOS left out by the caller) in `decode(ids)`."""
        return self.read([ids])[0].pieces

    def read(self, answers: Sequence[Sequence[int] | Int32[np.ndarray, "T"]]) -> list[Decoded]:
        """Text and pieces of sampled answers, canonical or not, in one pass.

        Where bytes are no valid UTF-8 the text holds U+FFFD and the tokens that made it share its three bytes.

        Raises
        ------
        TokenizationError
            `decoder`: the tokenizer decodes otherwise than its tokens say. `panic`. `ids`: a negative id.
        """
        if not answers:
            return []
        lists = [np.asarray(answer, dtype=np.int32) for answer in answers]
        batch = self._surfaces.batch(np.concatenate(lists), np.array([ids.size for ids in lists]))
        lengths, joined = self._surfaces.decoded(batch)
        texts = _guarded(lambda: self._own.decode_batch([ids.tolist() for ids in lists], skip_special_tokens=True))
        if b"".join(part for text in texts for part in (text.encode(), SEPARATOR)) != joined:
            raise TokenizationError("decoder", "the tokenizer decodes these ids to other bytes than its tokens'")
        pieces = lengths.astype(np.int32)
        bounds = pairwise(batch.rows.tolist())
        return [Decoded(text, pieces[a : b - 1]) for text, (a, b) in zip(texts, bounds, strict=True)]

    def encode(self, texts: Sequence[str | bytes]) -> list[Encoded]:
        """Ids and byte spans of texts. Bytes are read as UTF-8 with U+FFFD for what is not.

        Raises
        ------
        TokenizationError
            For the first text that `try_encode` refuses.
        """
        results = self.try_encode(texts)
        for result in results:
            if isinstance(result, TokenizationError):
                raise result
        return [result for result in results if isinstance(result, Encoded)]

    def try_encode(self, texts: Sequence[str | bytes]) -> list[Encoded | TokenizationError]:
        """As `encode`, with the error in place of the texts that are refused.

        Reasons: `empty`; `too_long` (over 1 MiB); `unicode` (lone surrogates); `control` (a control token, or the marker that
        stands for one, came out); `panic` (the tokenizer died on it); `untokenized` (not one token came out).
        """
        plain = [text.decode(errors="replace") if isinstance(text, bytes) else text for text in texts]
        refusals = [_refusal(text) for text in plain]
        kept = [text for text, refusal in zip(plain, refusals, strict=True) if refusal is None]
        foreign = {row: self._marks.translate(kept[row]) for row, text in enumerate(kept) if self._marks.foreign(text)}
        for row, translated in foreign.items():
            kept[row] = translated.text
        results = self._attempt(kept)
        for row, translated in foreign.items():
            results[row] = _restored(translated, results[row])
        tried = iter(results)
        return [next(tried) if refusal is None else refusal for refusal in refusals]

    def _attempt(self, texts: list[str]) -> list[Encoded | TokenizationError]:
        """A batch on which the core dies is tried text by text, so that only the culprits are refused."""
        try:
            return self._spans(texts) if texts else []
        except TokenizationError as panic:
            return [panic] if len(texts) == 1 else [result for text in texts for result in self._attempt([text])]

    def _probed(self) -> tuple[bool, Bool[np.ndarray, "256"]]:
        """Whether the tokenizer gives most texts back; if not, the bytes of which texts are encoded without offsets at first."""
        easy = np.zeros(256, dtype=bool)
        try:
            first = self._batch(self._core([PROBE], offsets=False))
            if by_bytes(self._surfaces, first, Texts.join([PROBE]))[1].all():
                return True, easy
            encodings = self._core(PROBES, offsets=True)
        except TokenizationError:
            return False, easy
        batch, joined = self._batch(encodings), Texts.join(PROBES)
        ends, right = by_solid_bytes(self._surfaces, batch, joined)
        same = ends == by_offsets(self._surfaces, batch, joined, [encoding.offsets for encoding in encodings])
        same[batch.rows[1:] - 1] = True
        easy[: len(PROBES)] = right & np.logical_and.reduceat(same, batch.rows[:-1])
        return False, easy

    def _spans(self, texts: list[str]) -> list[Encoded | TokenizationError]:
        joined = Texts.join(texts)
        if self._inverts:
            return self._group(texts, joined, offsets=False)
        easy = joined.of_bytes(self._easy_bytes)
        if easy.all() or not easy.any():
            return self._group(texts, joined, offsets=not easy[0])
        groups = {
            wanted: iter(self._group(list(compress(texts, easy == wanted)), joined.only(easy == wanted), not wanted))
            for wanted in (True, False)
        }
        return [next(groups[is_easy]) for is_easy in easy.tolist()]

    def _group(self, texts: list[str], joined: Texts, offsets: bool) -> list[Encoded | TokenizationError]:
        """Encodings with offsets from the start, or only of those texts that turn out to need them."""
        encodings = self._core(texts, offsets)
        batch = self._batch(encodings)
        ends, right, inverse = by_bytes(self._surfaces, batch, joined)
        if not (offsets or self._inverts or right.all()):
            rest, chosen = ~right, np.repeat(~right, np.diff(batch.rows))
            ends[chosen], right[rest] = by_solid_bytes(self._surfaces, batch.only(rest), joined.only(rest))
        if not right.all():
            rows = np.flatnonzero(~right).tolist()
            again = [encodings[i] for i in rows] if offsets else self._core([texts[i] for i in rows], offsets=True)
            chosen = np.repeat(~right, np.diff(batch.rows))
            spans = [encoding.offsets for encoding in again]
            ends[chosen] = by_offsets(self._surfaces, batch.only(~right), joined.only(~right), spans)
        ids, ends, bounds = batch.ids, ends.astype(np.int32), pairwise(batch.rows.tolist())
        found: list[Encoded | TokenizationError] = [
            Encoded(ids[a : b - 1], ends[a : b - 1], exact)
            for (a, b), exact in zip(bounds, inverse.tolist(), strict=True)
        ]
        for row in np.flatnonzero(np.diff(batch.rows) == 1).tolist():
            found[row] = TokenizationError("untokenized", "no token came out")
        for row in np.flatnonzero(np.logical_or.reduceat(self._control[ids], batch.rows[:-1])).tolist():
            found[row] = TokenizationError("control", "the text became a control token")
        return found

    def _core(self, texts: list[str], offsets: bool) -> list[Encoding]:
        encode = self._reader.encode_batch if offsets else self._reader.encode_batch_fast
        return _guarded(lambda: encode(texts, add_special_tokens=False))

    def _batch(self, encodings: list[Encoding]) -> Batch:
        lists = [encoding.ids for encoding in encodings]
        counts = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        flat = np.fromiter(chain.from_iterable(lists), dtype=np.int32, count=int(counts.sum()))
        return self._surfaces.batch(flat, counts)


def _restored(translated: Translated, result: Encoded | TokenizationError) -> Encoded | TokenizationError:
    if isinstance(result, TokenizationError) or not (translated.cuts or translated.letters):
        return result
    return Encoded(result.ids, translated.restore(result.ends), result.inverse, translated.letters)


def _refusal(text: str) -> TokenizationError | None:
    """Why a text is not even tried."""
    if not text:
        return TokenizationError("empty", "the text is empty")
    if text.isascii() and len(text) <= MAX_TEXT_BYTES:
        return None
    if MARKER in text:
        return TokenizationError("control", "the text holds the marker of control tokens")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return TokenizationError("unicode", "the text holds lone surrogates")
    return TokenizationError("too_long", f"{size} bytes") if size > MAX_TEXT_BYTES else None


def _guarded(call: Callable[[], T]) -> T:
    """Run the tokenizer's core. Its errors are of no type of their own; its panics are no `Exception`, and their type has no
    importable name."""
    try:
        return call()
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise TokenizationError("panic", str(error)[:200]) from error
