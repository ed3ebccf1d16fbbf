"""A copy of a tokenizer that reads text as nothing but text.

A peer's answer may hold the learner's special-token or chat-template strings. `encode_special_tokens` covers only tokens
that are flagged as special, and a Unigram or WordPiece model may still find such a string in its own vocabulary. So in the
copy every control token is renamed to a string that is refused in any text: no text can reach it, and the letters of its
old name are segmented like any others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from harness.errors import TokenizationError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

MARKER = "\uffff\ufdd0"
"""Two noncharacters; a text that holds them in this order is refused."""

_MARKUP = re.compile(r"<.+>|\[.+\]", re.DOTALL)
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")


def control_tokens(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """The tokens that are no text, by content.

    These are the added tokens that are flagged as special, that the chat template writes, or that are spelled in brackets,
    flagged or not; the tokens that the tokenizer names (EOS, BOS, ...); and pieces of the model's own vocabulary in brackets
    that the template writes. Runs of spaces and domain words stay text; so does any single character, which has to remain
    writable, and so do the byte pieces of byte fallback, which its model has to find.
    """
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


def unknown_token(model: Mapping[str, Any]) -> str | None:
    """The token that the model writes for what it does not know; it may come out of any text. model: of the serialised core."""
    if "unk_id" in model:
        return None if model["unk_id"] is None else str(model["vocab"][model["unk_id"]][0])
    token: str | None = model.get("unk_token")
    return token


def isolated(tokenizer: Tokenizer, settings: Mapping[str, Any], control: Iterable[str]) -> Tokenizer:
    """The copy: control tokens out of reach, ids unchanged, no truncation, no padding, no post-processing.

    settings: the tokenizer, serialised and parsed, which takes seconds of a vocabulary of 262,144.

    Raises
    ------
    TokenizationError
        `vocabulary`: the tokenizer does not survive being written and read again with the same ids.
    """
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
    """The model with pieces renamed, and without the merges that would make them."""
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
