"""What a `TokenCodec` makes of a tokenizer before it encodes anything; of large vocabularies kept in the cache between processes.

Made anew it takes seconds of a vocabulary of 262,144. A file's name is the hash of all that it was made of, its content arrays and
text alone, with a hash of their own: one that is damaged is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.cache import cache_folder
from harness.errors import DiskFullError, StoreError
from harness.files import write_atomic
from harness.reading import read_bytes
from harness.tokenization.isolation import control_tokens, isolated, unknown_token
from harness.tokenization.token_bytes import TokenBytes, TokenBytesState

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

LARGE = 100_000
"""Entries from which a vocabulary's tables are kept: of a smaller one they take less than a second."""
FORMAT = "1"
"""Raised when the tables hold something else."""
MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """control: ids that are no text, by content. unknown: content of the token that the model writes for what it does not know.
    reader: the isolated copy. surfaces: each token's bytes."""

    control: dict[str, int]
    unknown: str | None
    reader: Tokenizer
    surfaces: TokenBytes


def tables_of(tokenizer: PreTrainedTokenizerFast, text: Collection[str], large: int = LARGE) -> Tables:
    """Made, or found in the cache.

    text: control tokens that count as text. large: entries from which they are kept.

    Raises
    ------
    TokenizationError
        As `TokenCodec`.
    """
    core = tokenizer.backend_tokenizer
    serialised = core.to_str()
    if core.get_vocab_size() < large:
        return _made(tokenizer, serialised, text)
    parts = [
        FORMAT,
        version("tokenizers"),
        serialised,
        tokenizer.chat_template,
        tokenizer.all_special_tokens,
        sorted(text),
    ]
    name = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    path = cache_folder() / "tokenizers" / f"{name}.safetensors"
    with suppress(Exception):  # whatever is wrong with a file of the cache, it is made again
        return _read(path)
    made = _made(tokenizer, serialised, text)
    with suppress(DiskFullError, StoreError, OSError):
        write_atomic(path, _packed(made))
    return made


def _made(tokenizer: PreTrainedTokenizerFast, serialised: str, text: Collection[str]) -> Tables:
    core, settings = tokenizer.backend_tokenizer, json.loads(serialised)
    control = {content: i for content, i in control_tokens(tokenizer).items() if content not in text}
    reader = isolated(core, settings, control)
    return Tables(control, unknown_token(settings["model"]), reader, TokenBytes(core, settings["decoder"]))


def _packed(tables: Tables) -> bytes:
    from safetensors.numpy import save

    state = {field.name: getattr(tables.surfaces.state, field.name) for field in fields(TokenBytesState)}
    arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
    arrays["reader"] = np.frombuffer(tables.reader.to_str().encode(), dtype=np.uint8)
    plain: dict[str, Any] = {
        name: value.hex() if isinstance(value, bytes) else value for name, value in state.items() if name not in arrays
    }
    words = json.dumps({"control": tables.control, "unknown": tables.unknown, "state": plain})
    return save(arrays, {"words": words, "sha256": _digest(arrays, words)})


def _read(path: Path) -> Tables:
    from safetensors.numpy import load
    from tokenizers import Tokenizer

    data = read_bytes(path, MAX_BYTES)
    arrays: dict[str, Any] = load(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    if _digest(arrays, header["words"]) != header["sha256"]:
        raise ValueError("its content is not what was written")
    words = json.loads(header["words"])
    reader = Tokenizer.from_str(arrays.pop("reader").tobytes().decode())
    plain: dict[str, Any] = {
        name: bytes.fromhex(value) if name.startswith("strip") else value for name, value in words["state"].items()
    }
    return Tables(words["control"], words["unknown"], reader, TokenBytes.of(TokenBytesState(**plain, **arrays)))


def _digest(arrays: dict[str, np.ndarray], words: str) -> str:
    found = hashlib.sha256(words.encode())
    for name in sorted(arrays):
        found.update(name.encode())
        found.update(np.ascontiguousarray(arrays[name]).data)
    return found.hexdigest()
