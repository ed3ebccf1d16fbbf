"""Text to ids with each token's exact byte span, and sampled ids to text with theirs. Spans are the tokens' own bytes where
these are the text's, else from the core's character offsets."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np
from jaxtyping import Int32

from harness.errors import TokenizationError
from harness.tokenization.markup import MARKER, ReasoningTags, Translated, control_tokens, isolated
from harness.tokenization.token_bytes import SEPARATOR, Batch, Texts, TokenBytes, by_bytes, by_offsets

if TYPE_CHECKING:
    from tokenizers import Encoding
    from transformers import PreTrainedTokenizerFast

T = TypeVar("T")
MAX_TEXT_BYTES = 1 << 20
# a tokenizer that gives this back gives back most texts, and is asked for offsets only where it does not
PROBE = "So  2+3 = 5.\n"


class Encoded(msgspec.Struct, frozen=True, eq=False, gc=False):  # eight times as fast as a dataclass
    """ids: (T,) without special tokens. ends: (T,) byte position where each token ends. inverse: the tokens' bytes are the
    text, reasoning tags apart. spelled_tags: reasoning tags without a token."""

    ids: Int32[np.ndarray, "T"]
    ends: Int32[np.ndarray, "T"]
    inverse: bool
    spelled_tags: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """One sampled answer as text. pieces: (T,) bytes of each token."""

    text: str
    pieces: Int32[np.ndarray, "T"]


class TokenCodec:
    """One policy's tokenizer, any fast one. stop: ids that end its answers, the first is taught; by default `eos_token_id`. No
    text becomes an id that ends, opens or pads. Raises TokenizationError (`slow`, `eos`, `vocabulary`: cannot be copied;
    `decoder`: a token's bytes depend on others)."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, stop: Sequence[int] = ()) -> None:
        if getattr(tokenizer, "backend_tokenizer", None) is None:
            raise TokenizationError("slow", f"{type(tokenizer).__name__} is not a fast tokenizer")
        if not stop and tokenizer.eos_token_id is None:
            raise TokenizationError("eos", "the tokenizer has no end token")
        self.eos_id = int(stop[0] if stop else tokenizer.eos_token_id)
        self._own = core = tokenizer.backend_tokenizer
        reserved = {*stop, tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id} - {None}
        added = core.get_added_tokens_decoder().items()
        self._tags = ReasoningTags(token.content for i, token in added if not token.special and i not in reserved)
        control = {name: i for name, i in control_tokens(tokenizer).items() if name not in self._tags.own}
        settings = json.loads(core.to_str())
        self._reader = isolated(core, settings, control)
        self._vocabulary = TokenBytes(core, settings["decoder"])
        unknown = settings["model"].get("unk_token")
        if (unk_id := settings["model"].get("unk_id")) is not None:
            unknown = settings["model"]["vocab"][unk_id][0]
        self._control = np.zeros(self._vocabulary.separator + 1, dtype=bool)
        self._control[[i for name, i in control.items() if name != unknown]] = True
        self._control[[i for i in reserved if i < self._control.size]] = True
        try:
            probe = self._batch(self._core([PROBE], offsets=False))
            self._inverts = bool(by_bytes(self._vocabulary, probe, Texts.join([PROBE]))[1].all())
        except TokenizationError:
            self._inverts = False

    def decode(self, ids: Sequence[int] | Int32[np.ndarray, "T"]) -> str:
        """Text of sampled ids."""
        return self.read([ids])[0].text

    def pieces(self, ids: Sequence[int] | Int32[np.ndarray, "T"]) -> Int32[np.ndarray, "T"]:
        """Byte length of each sampled token."""
        return self.read([ids])[0].pieces

    def read(self, answers: Sequence[Sequence[int] | Int32[np.ndarray, "T"]]) -> list[Decoded]:
        """Text and pieces of sampled answers, special and unknown ids without bytes; ill-formed UTF-8 is U+FFFD. Raises
        TokenizationError (`decoder`, `panic`, `ids`: negative)."""
        if not answers:
            return []
        lists = [np.asarray(answer, dtype=np.int32) for answer in answers]
        batch = self._vocabulary.batch(np.concatenate(lists), np.array([ids.size for ids in lists]))
        lengths, joined = self._vocabulary.decoded(batch)
        texts = _guarded(lambda: self._own.decode_batch([ids.tolist() for ids in lists], skip_special_tokens=True))
        if b"".join(part for text in texts for part in (text.encode(), SEPARATOR)) != joined:
            raise TokenizationError("decoder", "the tokenizer decodes these ids to other bytes than its tokens'")
        pieces = lengths.astype(np.int32)
        bounds = pairwise(batch.rows.tolist())
        return [Decoded(text, pieces[a : b - 1]) for text, (a, b) in zip(texts, bounds, strict=True)]

    def try_encode(self, texts: Sequence[str]) -> list[Encoded | TokenizationError]:
        """Ids and spans of texts, or why one is refused: `empty`, `too_long`, `unicode` (lone surrogates), `control` (a control
        token or its marker), `panic` (the tokenizer died), `untokenized` (no token)."""
        refusals = [_refusal(text) for text in texts]
        kept = [self._tags.translate(t) for t, refusal in zip(texts, refusals, strict=True) if refusal is None]
        tried = zip(kept, self._attempt([translated.text for translated in kept]), strict=True)
        return [_restored(*next(tried)) if refusal is None else refusal for refusal in refusals]

    def _attempt(self, texts: list[str]) -> list[Encoded | TokenizationError]:
        """A batch on which the core dies is tried text by text."""
        try:
            return self._spans(texts) if texts else []
        except TokenizationError as panic:
            return [panic] if len(texts) == 1 else [result for text in texts for result in self._attempt([text])]

    def _spans(self, texts: list[str]) -> list[Encoded | TokenizationError]:
        encodings = self._core(texts, offsets=not self._inverts)
        batch = self._batch(encodings)
        ends, right, inverse = by_bytes(self._vocabulary, batch, Texts.join(texts))
        if not right.all():
            wrong = np.flatnonzero(~right).tolist()
            rest = [texts[i] for i in wrong]
            again = self._core(rest, offsets=True) if self._inverts else [encodings[i] for i in wrong]
            offsets = [encoding.offsets for encoding in again]
            exact = by_offsets(self._vocabulary, self._batch(again), Texts.join(rest), offsets)
            ends[np.repeat(~right, np.diff(batch.rows))] = exact
        ids, ends, bounds = batch.ids, ends.astype(np.int32), pairwise(batch.rows.tolist())
        results: list[Encoded | TokenizationError] = [
            Encoded(ids[a : b - 1], ends[a : b - 1], whole)
            for (a, b), whole in zip(bounds, inverse.tolist(), strict=True)
        ]
        for row in np.flatnonzero(np.diff(batch.rows) == 1).tolist():
            results[row] = TokenizationError("untokenized", "no token came out")
        for row in np.flatnonzero(np.logical_or.reduceat(self._control[ids], batch.rows[:-1])).tolist():
            results[row] = TokenizationError("control", "the text became a control token")
        return results

    def _core(self, texts: list[str], offsets: bool) -> list[Encoding]:
        encode = self._reader.encode_batch if offsets else self._reader.encode_batch_fast
        return _guarded(lambda: encode(texts, add_special_tokens=False))

    def _batch(self, encodings: list[Encoding]) -> Batch:
        lists = [encoding.ids for encoding in encodings]
        counts = np.array([len(ids) for ids in lists])
        flat = np.fromiter(chain.from_iterable(lists), dtype=np.int32, count=int(counts.sum()))
        return self._vocabulary.batch(flat, counts)


def _restored(translated: Translated, result: Encoded | TokenizationError) -> Encoded | TokenizationError:
    if isinstance(result, TokenizationError) or not (translated.cuts or translated.spelled):
        return result
    return Encoded(result.ids, translated.restore(result.ends), result.inverse, translated.spelled)


def _refusal(text: str) -> TokenizationError | None:
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
    """The core's panics are no `Exception`, and their type has no importable name."""
    try:
        return call()
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise TokenizationError("panic", str(error)[:200]) from error
