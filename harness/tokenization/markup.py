"""Markup in a peer's text: no text becomes a control token, reasoning tags map by meaning. A copy of the tokenizer spells
control tokens as no text may."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int32

from harness.errors import TokenizationError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

MARKER = "\uffff\ufdd0"  # two noncharacters; a text that holds them in this order is refused

_MARKUP = re.compile(r"<.+>|\[.+\]", re.DOTALL)
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
# one meaning a row, in the spellings of the families' published tokenizers; the table is ours
REASONING_TAGS: tuple[tuple[str, ...], ...] = (
    ("<think>", "[THINK]", "<|START_THINKING|>", "<seed:think>", "◁think▷"),
    ("</think>", "[/THINK]", "<|END_THINKING|>", "</seed:think>", "◁/think▷"),
    ("<tool_call>", "[TOOL_CALLS]", "<|START_ACTION|>", "<seed:tool_call>"),
    ("</tool_call>", "[/TOOL_CALLS]", "<|END_ACTION|>", "</seed:tool_call>"),
    ("<tool_response>", "[TOOL_RESULTS]", "<|START_TOOL_RESULT|>"),
    ("</tool_response>", "[/TOOL_RESULTS]", "<|END_TOOL_RESULT|>"),
)


def control_tokens(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """Added tokens that are special, in the chat template or in brackets; tokens that the tokenizer names; bracketed pieces
    of the template. Not spaces, single characters, byte pieces."""
    core = tokenizer.backend_tokenizer
    template = json.dumps(tokenizer.chat_template, ensure_ascii=False) if tokenizer.chat_template else ""
    named, added = set(tokenizer.all_special_tokens), core.get_added_tokens_decoder()

    def in_template(content: str) -> bool:
        return json.dumps(content, ensure_ascii=False)[1:-1] in template

    def is_control(content: str, i: int) -> bool:
        if len(content) < 2 or content.isspace() or _BYTE_PIECE.fullmatch(content):
            return False
        markup = _MARKUP.fullmatch(content.strip()) is not None
        if i in added:
            return added[i].special or content in named or markup or in_template(content)
        return content in named or (markup and in_template(content))

    vocab = core.get_vocab(with_added_tokens=True)
    return {content: i for content, i in vocab.items() if is_control(content, i)}


def isolated(tokenizer: Tokenizer, settings: Mapping[str, Any], control: Iterable[str]) -> Tokenizer:
    """A copy with control tokens out of reach, ids unchanged, nothing truncated or added. Raises TokenizationError
    (`vocabulary`)."""
    from tokenizers import Tokenizer

    names = {content: f"{MARKER}{index}" for index, content in enumerate(control)}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    changed = dict(settings) | {"truncation": None, "padding": None, "post_processor": None}
    changed["added_tokens"] = [
        token | plain | {"content": names[token["content"]]} if token["content"] in names else token
        for token in settings["added_tokens"]
    ]
    changed["model"] = _renamed(settings["model"], names)
    copy = Tokenizer.from_str(json.dumps(changed))
    for content, i in tokenizer.get_vocab(with_added_tokens=True).items():
        if copy.token_to_id(names.get(content, content)) != i:
            raise TokenizationError("vocabulary", f"token {content!r} does not keep its id {i}")
    return copy


def _renamed(settings: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
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
        model["merges"] = [[a, b] for a, b in pairs if a not in names and b not in names and a + b not in names]
    return model


@dataclass(frozen=True, slots=True)
class Translated:
    """A text in the receiver's tags. cuts: (end in the original, start, end in `text`) of replaced tags, in bytes. spelled:
    without a token."""

    text: str
    cuts: tuple[tuple[int, int, int], ...] = ()
    spelled: int = 0

    def restore(self, ends: Int32[np.ndarray, "T"]) -> Int32[np.ndarray, "T"]:
        """Byte ends in `text` as ends in the original."""
        restored = ends.copy()
        for original, start, end in self.cuts:
            restored[ends > end] = ends[ends > end] + original - end
            restored[(ends > start) & (ends <= end)] = original
        return restored


class ReasoningTags:
    """Of one tokenizer: `own` are its spellings."""

    def __init__(self, added: Iterable[str]) -> None:
        has, table = set(added), dict[str, str | None]()
        for row in REASONING_TAGS:
            mine = next((spelling for spelling in row if spelling in has), None)
            table |= {spelling: mine for spelling in row if spelling not in has}
        self.own = has & {spelling for row in REASONING_TAGS for spelling in row}
        self._table = table
        self._foreign = re.compile("|".join(map(re.escape, sorted(table, key=len, reverse=True))) or r"(?!)")

    def translate(self, text: str) -> Translated:
        """The text with foreign tags in the tokenizer's own spelling."""
        parts: list[str] = []
        cuts: list[tuple[int, int, int]] = []
        spelled = old = new = at = 0
        for match in self._foreign.finditer(text):
            mine, before = self._table[match[0]], len(text[at : match.start()].encode())
            parts += [text[at : match.start()], match[0] if mine is None else mine]
            old, new, at = old + before + len(match[0].encode()), new + before, match.end()
            size = len(parts[-1].encode())
            if mine is None:
                spelled += 1
            else:
                cuts.append((old, new, new + size))
            new += size
        return Translated("".join([*parts, text[at:]]), tuple(cuts), spelled)
