"""A copy of a tokenizer that reads text as nothing but text.

A peer's answer may hold the learner's special-token or chat-template strings. `encode_special_tokens` covers only tokens
that are flagged as special, and a Unigram or WordPiece model may still find such a string in its own vocabulary. So in the
copy every control token is renamed to a string that is refused in any text: no text can reach it, and the letters of its
old name are segmented like any others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from harness.errors import TokenizationError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

MARKER = "\uffff\ufdd0"
"""Two noncharacters; a text that holds them in this order is refused."""

_MARKUP = re.compile(r"<.+>|\[.+\]", re.DOTALL)


def control_tokens(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """The added tokens that are no text, by content.

    These are the tokens flagged as special, those that the tokenizer names (EOS, BOS, ...), those that its chat template
    writes, and those spelled in brackets, flagged or not. Runs of spaces and domain words stay text; so does any single
    character, which has to remain writable.
    """
    template = json.dumps(tokenizer.chat_template, ensure_ascii=False) if tokenizer.chat_template else ""
    named = set(tokenizer.all_special_tokens)
    return {
        token.content: i
        for i, token in tokenizer.backend_tokenizer.get_added_tokens_decoder().items()
        if len(token.content) > 1
        and not token.content.isspace()
        and (
            token.special
            or token.content in named
            or json.dumps(token.content, ensure_ascii=False)[1:-1] in template
            or _MARKUP.fullmatch(token.content.strip())
        )
    }


def unknown_token(tokenizer: Tokenizer) -> str | None:
    """The token that the model writes for what it does not know; it may come out of any text."""
    model = json.loads(tokenizer.to_str())["model"]
    if "unk_id" in model:
        return None if model["unk_id"] is None else str(model["vocab"][model["unk_id"]][0])
    token: str | None = model.get("unk_token")
    return token


def isolated(tokenizer: Tokenizer, control: Iterable[str]) -> Tokenizer:
    """The copy: control tokens out of reach, ids unchanged, no truncation, no padding, no post-processing.

    Raises
    ------
    TokenizationError
        `vocabulary`: the tokenizer does not survive being written and read again with the same ids.
    """
    from tokenizers import Tokenizer

    names = {content: f"{MARKER}{index}" for index, content in enumerate(control)}
    settings = json.loads(tokenizer.to_str())
    settings["truncation"] = settings["padding"] = settings["post_processor"] = None
    for token in settings["added_tokens"]:
        if token["content"] in names:
            plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
            token.update(plain, content=names[token["content"]])
    _rename(settings["model"], names)
    copy = Tokenizer.from_str(json.dumps(settings))
    for content, i in tokenizer.get_vocab(with_added_tokens=True).items():
        if copy.token_to_id(names.get(content, content)) != i:
            raise TokenizationError("vocabulary", f"token {content!r} does not keep its id {i}")
    return copy


def _rename(model: dict[str, Any], names: dict[str, str]) -> None:
    """Rename pieces inside the model, and drop the merges that would make them."""
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(piece, piece): i for piece, i in vocab.items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
        model["merges"] = [[a, b] for a, b in pairs if not {a, b, a + b} & names.keys()]
