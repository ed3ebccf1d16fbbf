"""What a GGUF file says of its tokenizer and its model, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import PluginError, UsageError
from harness.reading import in_words, open_regular

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
"""Token types of the format."""


@dataclass(frozen=True, slots=True)
class Header:
    """The part of a header that a tokenizer is made of. kind: `gpt2` (byte-level BPE) or `llama` (SentencePiece); pre: which
    pre-tokenizer. types, scores: one per token; scores and merges are empty where the kind has none."""

    architecture: str
    name: str
    licence: str
    kind: str
    pre: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...]
    merges: tuple[tuple[str, str], ...]
    bos: int | None
    eos: int | None
    pad: int | None
    unknown: int | None
    adds_bos: bool
    adds_space: bool
    chat_template: str | None
    context: int | None

    def token(self, index: int | None) -> str | None:
        """A token by its id; None where the header names none."""
        return None if index is None else self.tokens[index]


def read_header(file: Path) -> Header:
    """The header of a GGUF file.

    Raises
    ------
    UsageError
        No such file, not a GGUF file, or a header without a usable tokenizer.
    PluginError
        The package `gguf` (extra `gguf`) is not installed.
    """
    try:
        open_regular(file).close()
    except OSError as error:
        raise UsageError(f"{file}: {in_words(error)}") from None
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise PluginError(f"{file}: reading GGUF files needs the package gguf (pip install -e '.[gguf]')") from error
    try:
        fields = {name: field.contents() for name, field in GGUFReader(file).fields.items()}
    except (ValueError, IndexError, KeyError, OverflowError, OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: not a readable GGUF file: {error}") from error
    try:
        return _header(fields)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{file}: the header has no usable {error}") from error


def _header(fields: dict[str, Any]) -> Header:
    of = "tokenizer.ggml."
    architecture = str(fields["general.architecture"])
    tokens = tuple(map(str, fields[of + "tokens"]))
    types = tuple(map(int, fields.get(of + "token_type", [NORMAL] * len(tokens))))
    scores = tuple(map(float, fields.get(of + "scores", ())))
    pairs = [merge.partition(" ") for merge in fields.get(of + "merges", ())]
    if len(types) != len(tokens) or (scores and len(scores) != len(tokens)) or len(set(tokens)) != len(tokens):
        raise ValueError("tokenizer: tokens, types and scores do not agree")
    named = {name: fields.get(f"{of}{name}_token_id") for name in ("bos", "eos", "padding", "unknown")}
    for name, index in named.items():
        if index is not None and not 0 <= int(index) < len(tokens):
            raise ValueError(f"tokenizer: {name} is outside the vocabulary")
    return Header(
        architecture=architecture,
        name=str(fields.get("general.name", "")),
        licence=str(fields.get("general.license", "")),
        kind=str(fields[of + "model"]),
        pre=str(fields.get(of + "pre", "default")),
        tokens=tokens,
        types=types,
        scores=scores,
        merges=tuple((left, right) for left, _, right in pairs),
        bos=named["bos"],
        eos=named["eos"],
        pad=named["padding"],
        unknown=named["unknown"],
        adds_bos=bool(fields.get(of + "add_bos_token", False)),
        adds_space=bool(fields.get(of + "add_space_prefix", False)),
        chat_template=fields.get("tokenizer.chat_template"),
        context=fields.get(f"{architecture}.context_length"),
    )
