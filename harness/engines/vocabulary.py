"""A Hugging Face folder before its weights are opened: what it lacks, and what its tokens mean."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PretrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from harness.allocation.shapes import read_config
from harness.engines.checkpoint import weight_files
from harness.errors import EngineError, UsageError
from harness.experience.answers import Prompt
from harness.reading import read_bytes

__all__ = [
    "Vocabulary",
    "check_small_files",
    "check_weights",
    "has_template",
    "in_one_line",
    "open_vocabulary",
    "read_folder",
]


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """size: rows of the output layer. forbidden: ids that are no content (padding, rows without a token). stop: ids that end an
    answer; the first is taught. opening: ids before every raw prompt."""

    policy: str
    config: PretrainedConfig
    tokenizer: PreTrainedTokenizerFast
    chat: bool
    size: int
    stop: tuple[int, ...]
    forbidden: frozenset[int]
    opening: tuple[int, ...]

    def encode(self, prompt: Prompt) -> list[int]:
        """By the chat template if `chat`. Raises EngineError where that fails or there are no ids."""
        if self.chat:
            turns = [{"role": "user", "content": prompt.text}]
            ids = _templated(self.policy, self.tokenizer, turns, opens_answer=True)
        else:
            ids = [*self.opening, *self.tokenizer.encode(prompt.text, add_special_tokens=False)]
        if not ids:
            raise EngineError(f"{self.policy}: prompt {prompt.id!r} has no tokens")
        return ids

    def model_ids(self, prompt: Prompt) -> list[int]:
        """Raises EngineError, also for tokens without rows."""
        ids = self.encode(prompt)
        if max(ids) >= self.size:
            raise EngineError(
                f"{self.policy}: prompt {prompt.id!r} holds the token {self.tokenizer.convert_ids_to_tokens(max(ids))!r}, for "
                f"which the model has no row: it has {self.size:,}"
            )
        return ids

    def reads(self, prompt: Prompt) -> str:
        """The text that stands for `encode`'s ids."""
        if not self.chat:
            return prompt.text
        return str(self.tokenizer.decode(self.encode(prompt), clean_up_tokenization_spaces=False))

    def checked(self, tokens: Int32[np.ndarray, "T"]) -> Int32[np.ndarray, "T"]:
        """Raises EngineError where an id cannot be part of an answer."""
        ids = tokens.tolist()
        if ids and (min(ids) < 0 or max(ids) >= self.size or not self.forbidden.isdisjoint(ids)):
            raise EngineError(f"policy {self.policy}: an answer holds ids that are no content of its vocabulary")
        return tokens

    def text(self, tokens: Int32[np.ndarray, "T"], finished: bool) -> str:
        """Without EOS."""
        ids = tokens[:-1] if finished else tokens
        return str(self.tokenizer.decode(ids.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def open_vocabulary(folder: Path, chat: bool, policy: str = "") -> Vocabulary:
    """No code of the folder runs. Raises EngineError where it does not open, has no EOS, or its chat template is asked for and
    absent or fails."""
    where = f"{policy}: {folder}" if policy else str(folder)
    try:
        whole = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        config, here = whole.get_text_config(), {"local_files_only": True, "trust_remote_code": False}
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, config=whole, **here)
        stops = _generation_stops(folder)
    except Exception as error:  # damaged files raise anything
        raise EngineError(f"{where}: does not open: {in_one_line(error)}") from error
    if tokenizer.eos_token_id is None:
        raise EngineError(f"{where}: the tokenizer has no EOS token")
    if chat and not tokenizer.chat_template:
        raise EngineError(f"{where}: the tokenizer has no chat template")
    stop = {tokenizer.eos_token_id, *stops & set(range(config.vocab_size))}
    unused = set(range(config.vocab_size)) - set(tokenizer.get_vocab().values())
    taught = _end_of_turn(policy, tokenizer, stop) if chat else tokenizer.eos_token_id
    if taught >= config.vocab_size:
        raise EngineError(
            f"{where}: the model has {config.vocab_size:,} rows, none for the EOS token {taught}: it never ends"
        )
    padding = ({tokenizer.pad_token_id} - stop) & set(range(config.vocab_size))  # one that was added may have no row
    first = tokenizer.encode("a")[:1]
    return Vocabulary(
        policy=policy,
        config=whole,
        tokenizer=tokenizer,
        chat=chat,
        size=config.vocab_size,
        stop=(taught, *sorted(stop - {taught})),
        forbidden=frozenset(unused | padding),
        opening=(first[0],) if first and first[0] == tokenizer.bos_token_id else (),
    )


def _templated(policy: str, tokenizer: Any, turns: list[dict[str, str]], opens_answer: bool) -> list[int]:
    try:
        return list(tokenizer.apply_chat_template(turns, add_generation_prompt=opens_answer, return_dict=False))
    except Exception as error:  # a template is a foreign program, and fails with errors of its own
        raise EngineError(f"{policy}: the chat template fails: {in_one_line(error)}") from error


def _end_of_turn(policy: str, tokenizer: Any, stop: set[int]) -> int:
    """With which the chat template ends an answer, else EOS."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    opened = _templated(policy, tokenizer, turns[:1], opens_answer=True)
    whole = _templated(policy, tokenizer, turns, opens_answer=False)
    said = (i for i in whole[len(opened) :] if i in stop)
    return int(next(said, tokenizer.eos_token_id))


def in_one_line(error: Exception) -> str:
    """What a library has to say, short."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def _generation_stops(folder: Path) -> set[int]:
    if not (folder / "generation_config.json").exists():
        return set()
    ids = GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id
    return set(map(index, ids if isinstance(ids, list) else [] if ids is None else [ids]))


# What a folder lacks, said in seconds ------------------------------------------------------------------------------------

SMALL = {".json", ".jinja", ".txt", ".model"}
MAX_SMALL_BYTES = 256 << 20


def read_folder(folder: Path) -> tuple[PretrainedConfig, PreTrainedTokenizerFast]:
    """The weights may be absent. Raises EngineError."""
    check_small_files(folder)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # damaged files raise anything
        raise EngineError(f"{folder}: config.json: {in_one_line(error)}") from error
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise EngineError(f"{folder}: config.json: {config.model_type!r} is no causal language model of transformers")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise EngineError(f"{folder}: there is no tokenizer (tokenizer.json)")
    return config.get_text_config(), open_vocabulary(folder, chat=False).tokenizer


def check_small_files(folder: Path) -> None:
    """Raises EngineError where config.json is no model's, or a file that libraries read whole is too large."""
    if not (folder / "config.json").exists():
        raise EngineError(f"{folder}: there is no config.json")
    try:
        read_config(folder / "config.json")
    except UsageError as error:
        raise EngineError(str(error).replace(f"{folder}/", f"{folder}: ", 1)) from None
    for file in folder.iterdir():
        if file.suffix in SMALL and not file.is_dir():
            if not file.is_file():
                raise EngineError(f"{file}: not a regular file")
            if file.stat().st_size > MAX_SMALL_BYTES:
                raise EngineError(f"{file}: larger than {MAX_SMALL_BYTES:,} bytes")


def has_template(checkpoint: Path) -> bool:
    """Whether the folder's tokenizer has a chat template."""
    if (checkpoint / "chat_template.jinja").is_file():
        return True
    with suppress(OSError, ValueError, AttributeError, RecursionError):
        return bool(json.loads(read_bytes(checkpoint / "tokenizer_config.json", MAX_SMALL_BYTES)).get("chat_template"))
    return False


def check_weights(folder: Path) -> None:
    """Raises EngineError where a file is missing or not of its stated length."""
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="np"):
                pass
        except (OSError, SafetensorError) as error:
            raise EngineError(f"{file}: {in_one_line(error)}") from error
