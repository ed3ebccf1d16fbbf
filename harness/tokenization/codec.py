"""Text to ids and back, with byte spans: the tokens' own where they fit, else from the core's character offsets.

No peer's text becomes a control token: a copy of the tokenizer spells these as no text may. Reasoning tags map by meaning."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from jaxtyping import Int32

from harness.errors import TokenizationError
from harness.tokenization.token_bytes import TokenBytes, ends_by_bytes, ends_by_offsets
from harness.verification.response import CLOSING_MARKS, OPENING_MARKS

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer
    from transformers import PreTrainedTokenizerFast

MARKER = "\uffff\ufdd0"  # noncharacters; a text with them is refused

_MARKUP = re.compile(r"<.+>|\[.+\]", re.DOTALL)
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
# one meaning a row, in the spellings of published tokenizers; the table is ours
REASONING_TAGS: tuple[tuple[str, ...], ...] = (
    OPENING_MARKS,
    CLOSING_MARKS,
    ("<tool_call>", "[TOOL_CALLS]", "<|START_ACTION|>", "<seed:tool_call>"),
    ("</tool_call>", "[/TOOL_CALLS]", "<|END_ACTION|>", "</seed:tool_call>"),
    ("<tool_response>", "[TOOL_RESULTS]", "<|START_TOOL_RESULT|>"),
    ("</tool_response>", "[/TOOL_RESULTS]", "<|END_TOOL_RESULT|>"),
)


def control_tokens(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """Return added tokens that are special, in the chat template or in brackets; named tokens; bracketed pieces of the template.
    Not spaces, single characters, byte pieces."""
    core = tokenizer.backend_tokenizer
    template = json.dumps(tokenizer.chat_template, ensure_ascii=False) if tokenizer.chat_template else ""
    named = set(tokenizer.all_special_tokens)
    added = core.get_added_tokens_decoder()

    def in_template(content: str) -> bool:
        return json.dumps(content, ensure_ascii=False)[1:-1] in template

    def is_control(content: str, i: int) -> bool:
        """Whether a piece of the vocabulary is a control token, by the rules above. i: its id."""
        if len(content) < 2 or content.isspace() or _BYTE_PIECE.fullmatch(content):
            return False
        markup = _MARKUP.fullmatch(content.strip()) is not None
        if i in added:
            return added[i].special or content in named or markup or in_template(content)
        return content in named or (markup and in_template(content))

    vocab = core.get_vocab(with_added_tokens=True)
    return {content: i for content, i in vocab.items() if is_control(content, i)}


def rename_controls(control: Iterable[str]) -> dict[str, str]:
    """Return the names that no text has, by control token. Each ends in a letter: a digit of the text behind it would name
    another one."""
    return {content: f"{MARKER}{index}x" for index, content in enumerate(control)}


def isolate_controls(tokenizer: Tokenizer, settings: Mapping[str, Any], control: Iterable[str]) -> Tokenizer:
    """Return a copy with control tokens out of reach, ids unchanged; adds and truncates nothing. Raises TokenizationError
    (`vocabulary`)."""
    from tokenizers import Tokenizer

    names = rename_controls(control)
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added_tokens = []
    for token in settings["added_tokens"]:
        name = names.get(token["content"])
        added_tokens.append(token if name is None else token | plain | {"content": name})
    changed = dict(settings) | {"truncation": None, "padding": None, "post_processor": None}
    changed["added_tokens"] = added_tokens
    changed["model"] = _with_renamed_tokens(settings["model"], names)
    copy = Tokenizer.from_str(json.dumps(changed))
    for content, i in tokenizer.get_vocab(with_added_tokens=True).items():
        if copy.token_to_id(names.get(content, content)) != i:
            raise TokenizationError("vocabulary", f"token {content!r} does not keep its id {i}")
    return copy


def _with_renamed_tokens(settings: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a tokenizer's settings with other names for its control tokens."""
    model = dict(settings)
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(piece, piece): i for piece, i in vocab.items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
        # No merge may read a control token, nor write one
        model["merges"] = [[a, b] for a, b in pairs if names.keys().isdisjoint((a, b, a + b))]
    return model


def leaves_thought_open(prompt: str) -> bool:
    """Whether the text ends inside a thought, in any spelling of its tags."""
    return bool(mark_to_close(prompt))


def mark_to_close(prompt: str) -> str:
    """Return the mark that closes the thought in which the text ends, in the spelling of the one that opens it; empty where the
    text ends in none."""
    opened_at = [prompt.rfind(mark) for mark in OPENING_MARKS]
    closed_at = max(prompt.rfind(mark) for mark in CLOSING_MARKS)
    last = max(opened_at)
    if last <= closed_at:
        return ""
    return CLOSING_MARKS[opened_at.index(last)]


def closes_thought(answer: str) -> bool:
    """Whether the text ends a thought, in any spelling of its tag."""
    return any(tag in answer for tag in REASONING_TAGS[1])


class Translated(msgspec.Struct, frozen=True, gc=False):
    """A text in the receiver's tags. cuts: (end in the original, start, end in `text`) of replaced tags, in bytes. spelled:
    without a token."""

    text: str
    cuts: tuple[tuple[int, int, int], ...] = ()
    spelled: int = 0

    def restore(self, ends: Int32[np.ndarray, "T"]) -> Int32[np.ndarray, "T"]:
        """Return where the tokens end in the original, in bytes."""
        if not self.cuts:
            return ends
        restored = ends.copy()
        for original, start, end in self.cuts:
            restored[ends > end] = ends[ends > end] + original - end
            restored[(ends > start) & (ends <= end)] = original
        return restored


class ReasoningTags:
    """own: the tokenizer's spellings."""

    def __init__(self, added: Iterable[str]) -> None:
        has = set(added)
        known: set[str] = set()
        table: dict[str, str | None] = {}
        for row in REASONING_TAGS:
            known.update(row)
            mine = next((spelling for spelling in row if spelling in has), None)
            table |= {spelling: mine for spelling in row if spelling not in has}
        self.own = has & known
        self._table = table
        longest_first = sorted(table, key=len, reverse=True)  # where one spelling begins another
        self._foreign = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        firsts = "".join(sorted({spelling[0] for spelling in table}))
        self._first_character = re.compile(f"[{re.escape(firsts)}]" if firsts else r"(?!)")

    def translate(self, text: str) -> Translated:
        """Write a text with foreign tags in the tokenizer's spelling."""
        # Most texts have no tag, and a search for its first character is much faster than one for all tags
        if self._first_character.search(text) is None:
            return Translated(text)
        parts: list[str] = []
        cuts: list[tuple[int, int, int]] = []
        spelled = old = new = at = 0
        for match in self._foreign.finditer(text):
            foreign = match[0]
            between = text[at : match.start()]
            mine = self._table[foreign]
            written = foreign if mine is None else mine
            parts += [between, written]
            before = len(between.encode())
            old += before + len(foreign.encode())
            new += before
            at = match.end()
            size = len(written.encode())
            if mine is None:
                spelled += 1
            else:
                cuts.append((old, new, new + size))
            new += size
        return Translated("".join([*parts, text[at:]]), tuple(cuts), spelled)


T = TypeVar("T")
# What an answer's text stands behind in a chat whose prompt ends a line
_LINE = "\n"
# Beginnings of answers, by which a tokenizer's own blank is found, and how tokens spell that
_PROBES = ("a", "The", "1", "\\")
_BLANKS = ("\u2581", "\u0120")
MAX_TEXT_BYTES = 1 << 20


class Encoded(msgspec.Struct, frozen=True, eq=False, gc=False):  # eight times as fast as a dataclass
    """ids: (T,) without special tokens. ends: (T,) bytes. inverse: tokens' bytes are the text, reasoning tags apart.
    spelled_tags: without a token."""

    ids: Int32[np.ndarray, "T"]
    ends: Int32[np.ndarray, "T"]
    inverse: bool
    spelled_tags: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """pieces: (T,) bytes of each token."""

    text: str
    pieces: Int32[np.ndarray, "T"]


class TokenCodec:
    """stop: ids that end answers, the first is taught; default `eos_token_id`. closing: ids behind a carried answer's text, by
    default that one. No text becomes an id that ends, opens or pads.
    Raises TokenizationError (`slow`, `eos`, `vocabulary`: cannot be copied; `decoder`: a token's bytes depend on others)."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, stop: Sequence[int] = (), closing: Sequence[int] = ()
    ) -> None:
        if getattr(tokenizer, "backend_tokenizer", None) is None:
            raise TokenizationError("slow", f"{type(tokenizer).__name__} is not a fast tokenizer")
        if not stop and tokenizer.eos_token_id is None:
            raise TokenizationError("eos", "the tokenizer has no end token")
        self.eos_id = int(stop[0] if stop else tokenizer.eos_token_id)
        self.closing = tuple(closing) or (self.eos_id,)
        core = tokenizer.backend_tokenizer
        self._own = core
        named = {tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id}
        reserved = {*stop, *self.closing, *named} - {None}
        added = core.get_added_tokens_decoder().items()
        self._tags = ReasoningTags(token.content for i, token in added if not token.special and i not in reserved)
        control = {name: i for name, i in control_tokens(tokenizer).items() if name not in self._tags.own}
        settings = json.loads(core.to_str())
        self._reader = isolate_controls(core, settings, control)
        self._vocabulary = TokenBytes(core, settings["decoder"])
        unknown = _unknown_token(settings["model"])
        self._control = {i for name, i in control.items() if name != unknown} | reserved

    def decode(self, ids: Sequence[int] | Int32[np.ndarray, "T"]) -> str:
        return self.read([ids])[0].text

    def read(self, answers: Sequence[Sequence[int] | Int32[np.ndarray, "T"]]) -> list[Decoded]:
        """Read tokens' bytes. Special and unknown ids have no bytes; ill-formed UTF-8 is U+FFFD. Raises TokenizationError
        (`decoder`, `panic`, `ids`: negative)."""
        lists = [np.asarray(answer, dtype=np.int32) for answer in answers]  # (T,) each
        if any((ids < 0).any() for ids in lists):
            raise TokenizationError("ids", "token ids must not be negative")
        known = [np.minimum(ids, self._vocabulary.unknown).tolist() for ids in lists]
        decoded = _call_guarded(lambda: self._own.decode_batch(known, skip_special_tokens=True))
        texts = []
        for ids, text in zip(known, decoded, strict=True):
            lengths, joined = self._vocabulary.decoded(ids)
            if text.encode() != joined:
                raise TokenizationError("decoder", "the tokenizer decodes these ids to other bytes than its tokens'")
            texts.append(Decoded(text, np.array(lengths, dtype=np.int32)))
        return texts

    @cached_property
    def puts_blank(self) -> bool:
        """Whether the tokenizer puts a blank in front of a text, as SentencePiece does."""
        alone = self.try_encode(_PROBES, joined=False)
        behind_line = self.try_encode(_PROBES, joined=True)
        for one, other in zip(alone, behind_line, strict=True):
            if isinstance(one, Encoded) and isinstance(other, Encoded) and not np.array_equal(one.ids, other.ids):
                return True
        return False

    def count(self, prompt: str) -> int:
        """Return the tokens of a prompt's text, in which control tokens are what they are."""
        return len(self._own.encode(prompt, add_special_tokens=False).ids)

    def closing_of_thought(self, prompt: str) -> tuple[int, ...]:
        """Return the ids of the mark that closes the thought which a prompt leaves open; none where it leaves none open, or where
        the tokenizer cannot write that mark."""
        mark = mark_to_close(prompt)
        if not mark:
            return ()
        token = self._own.token_to_id(mark)
        if token is not None:  # a control token in some tokenizers, which no peer's text may write
            return (int(token),)
        encoded = self.try_encode([mark], joined=True)[0]
        return () if isinstance(encoded, TokenizationError) else tuple(encoded.ids.tolist())

    def opens_with_blank(self, token: int) -> bool:
        """Whether an answer that begins with this id begins with that blank."""
        return str(self._own.id_to_token(token)).startswith(_BLANKS)

    def try_encode(self, texts: Sequence[str], joined: bool = False) -> list[Encoded | TokenizationError]:
        """Return the ids and spans, or a refusal: `empty`, `too_long`, `unicode` (lone surrogates), `control` (a control token or
        its marker), `panic` (the tokenizer died), `untokenized` (no token). joined: as behind a line's end, without the blank
        that the tokenizer puts in front of a text."""
        refusals = [_find_refusal(text) for text in texts]
        kept = [self._tags.translate(t) for t, refusal in zip(texts, refusals, strict=True) if refusal is None]
        tried = iter(self._encode_batch(kept, _LINE if joined else ""))
        return [next(tried) if refusal is None else refusal for refusal in refusals]

    def _encode_batch(self, kept: list[Translated], before: str) -> list[Encoded | TokenizationError]:
        """Return a batch on which the core dies is tried text by text. before: what the texts stand behind."""
        texts = [before + translated.text for translated in kept]
        try:
            encodings = _call_guarded(lambda: self._reader.encode_batch(texts, add_special_tokens=False))
        except TokenizationError as panic:
            if len(kept) == 1:
                return [panic]
            return [result for one in kept for result in self._encode_batch([one], before)]
        if not before:
            return [self._make_encoded(one, encoding, 0, 0) for one, encoding in zip(kept, encodings, strict=True)]
        line = self._reader.encode(before, add_special_tokens=False).ids
        made = []
        for one, encoding in zip(kept, encodings, strict=True):
            if encoding.ids[: len(line)] == line:
                made.append(self._make_encoded(one, encoding, len(line), len(before)))
            else:  # a token holds parts of both
                alone = self._reader.encode(one.text, add_special_tokens=False)
                made.append(self._make_encoded(one, alone, 0, 0))
        return made

    def _make_encoded(
        self, translated: Translated, encoding: Encoding, tokens_before: int, characters_before: int
    ) -> Encoded | TokenizationError:
        """Return the encoded text with its places in bytes, or why it is none.

        tokens_before, characters_before: of what was encoded in front of the text.
        """
        ids = encoding.ids[tokens_before:]
        if not ids:
            return TokenizationError("untokenized", "no token came out")
        if not self._control.isdisjoint(ids):
            return TokenizationError("control", "the text became a control token")
        pieces = self._vocabulary.pieces(ids)
        text = translated.text
        ends_and_inverse = ends_by_bytes(pieces, text.encode())
        if ends_and_inverse is None:
            # Read only here: the core makes a tuple of each token's offsets, which costs as much as all else
            offsets = encoding.offsets
            if characters_before:
                offsets = _shift_offsets(offsets[tokens_before:], characters_before)
            cut = self._vocabulary.invalid != "none"
            ends_and_inverse = (ends_by_offsets(pieces, text, offsets, cut), False)
        ends, inverse = ends_and_inverse
        places = translated.restore(np.array(ends, dtype=np.int32))
        return Encoded(np.array(ids, dtype=np.int32), places, inverse, translated.spelled)


def _unknown_token(model: Mapping[str, Any]) -> str | None:
    """Return the token for what has none, which a text may become. model: the tokenizer's settings; Unigram's name it by its
    id."""
    number = model.get("unk_id")
    if number is not None:
        return str(model["vocab"][number][0])
    return model.get("unk_token")


def _find_refusal(text: str) -> TokenizationError | None:
    """Say why a text cannot be encoded; None where it can."""
    if not text:
        return TokenizationError("empty", "the text is empty")
    if MARKER in text:
        return TokenizationError("control", "the text holds the marker of control tokens")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        return TokenizationError("unicode", "the text holds lone surrogates")
    return TokenizationError("too_long", f"{size} bytes") if size > MAX_TEXT_BYTES else None


def _shift_offsets(offsets: Sequence[tuple[int, int]], before: int) -> list[tuple[int, int]]:
    """Return begin and end of each token in characters of the text alone. before: characters in front of it."""
    return [(max(0, begin - before), max(0, end - before)) for begin, end in offsets]


def _call_guarded(call: Callable[[], T]) -> T:
    """Call into the tokenizer's core. Its panics are no `Exception`, nor importable: they are raised as TokenizationError."""
    try:
        return call()
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise TokenizationError("panic", str(error)[:200]) from error
