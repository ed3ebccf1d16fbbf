"""A Hugging Face folder before its weights are opened: what it lacks, and what its tokens mean."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
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
from harness.engines.faults import check_adapter, check_own_code, check_quantised, check_tokens, check_unused_weights
from harness.engines.templates import Chat, ChatTemplate, closing_tokens, in_one_line
from harness.errors import EngineError, TokenizationError, UsageError
from harness.experience.answers import Prompt
from harness.reading import read_bytes
from harness.tokenization.spelled import SpelledQuestions

__all__ = [
    "Vocabulary",
    "check_small_files",
    "check_weight_files",
    "check_weights",
    "has_template",
    "in_one_line",
    "open_vocabulary",
    "positions_of",
    "read_folder",
]


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """A policy's tokens, and what they mean to it.

    size: rows of the output layer. forbidden: ids that are no content (padding, rows without a token). stop: ids that end an
    answer; the first is taught. closing: ids behind the text of an answer that is taught or carried; the last is `stop[0]`.
    opening: ids before every raw prompt. chat: how prompts go through the chat template, or False."""

    policy: str
    config: PretrainedConfig
    tokenizer: PreTrainedTokenizerFast
    chat: Chat
    size: int
    stop: tuple[int, ...]
    forbidden: frozenset[int]
    opening: tuple[int, ...]
    closing: tuple[int, ...]

    def encode(self, prompt: Prompt) -> list[int]:
        """Encode a prompt, through the chat template if `chat`. Control tokens that the question spells out are text. Raises
        EngineError where the template fails or there are no ids."""
        try:
            question = self._spelled_questions.hide(prompt.text)
        except TokenizationError as error:
            raise EngineError(f"{self.policy}: prompt {prompt.id!r} cannot be read: {error}") from None
        whole = self.template.render(question, opens_answer=True) if self.chat else question
        if question == prompt.text:
            ids = list(self.tokenizer.encode(whole, add_special_tokens=False))
        else:
            ids = self._spelled_questions.encode(whole)
        if not self.chat:
            ids = [*self.opening, *ids]
        if not ids:
            raise EngineError(f"{self.policy}: prompt {prompt.id!r} has no tokens")
        return ids

    def model_ids(self, prompt: Prompt) -> list[int]:
        """Encode a prompt for the model. Raises EngineError as `encode`, and for a token for which the model has no row."""
        ids = self.encode(prompt)
        if max(ids) >= self.size:
            token = self.tokenizer.convert_ids_to_tokens(max(ids))
            raise EngineError(
                f"{self.policy}: prompt {prompt.id!r} holds the token {token!r}, for which the model has no row: it has "
                f"{self.size:,}"
            )
        return ids

    @cached_property
    def template(self) -> ChatTemplate:
        """The tokenizer's chat template, with the settings of `chat`."""
        return ChatTemplate.of(self.policy, self.tokenizer, self.chat)

    @cached_property
    def _spelled_questions(self) -> SpelledQuestions:
        """The encoder of questions in which control tokens are plain text."""
        return SpelledQuestions(self.tokenizer)

    @property
    def positions(self) -> int | None:
        """Tokens that a prompt and its answer may have; None where the config does not say."""
        return positions_of(self.config)

    def ends(self, are_one: bool) -> tuple[int, ...]:
        """Return the ids whose log-probability is that of ending by any of them; none where there is one end, or where ends are
        told apart. are_one: as `Backend.ends_are_one`."""
        return self.stop if are_one and len(self.stop) > 1 else ()

    def reads(self, prompt: Prompt) -> str:
        """Return the text that stands for `encode`'s ids."""
        if not self.chat:
            return prompt.text
        return str(self.tokenizer.decode(self.encode(prompt), clean_up_tokenization_spaces=False))

    def checked(self, tokens: Int32[np.ndarray, "T"]) -> Int32[np.ndarray, "T"]:
        """Return an answer's ids. Raises EngineError where one of them cannot be part of an answer."""
        ids = tokens.tolist()
        if ids and (min(ids) < 0 or max(ids) >= self.size or not self.forbidden.isdisjoint(ids)):
            raise EngineError(f"policy {self.policy}: an answer holds ids that are no content of its vocabulary")
        return tokens

    def text(self, tokens: Int32[np.ndarray, "T"], finished: bool) -> str:
        """Decode an answer's ids, without the end if it is finished."""
        ids = tokens[:-1] if finished else tokens
        return str(self.tokenizer.decode(ids.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def open_vocabulary(folder: Path, chat: Chat, policy: str = "") -> Vocabulary:
    """Read a folder's config and tokenizer, and find out how its answers end. No code of the folder runs.

    An answer that is taught or carried ends as the chat template ends one, where prompts go through it; else by EOS; else by the
    first other end that the folder's files declare; else as the template would end it. A sampled answer may end by any of them:
    a chat model writes its template's end however it is asked. policy: its name, for messages.

    Raises EngineError where the folder does not open, declares no end of an answer, or its chat template is asked for and
    absent."""
    where = f"{policy}: {folder}" if policy else str(folder)
    try:
        whole = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        config = whole.get_text_config()
        here = {"local_files_only": True, "trust_remote_code": False}
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, config=whole, **here)
        of_files = _read_declared_ends(folder)
    except Exception as error:  # damaged files raise anything
        raise EngineError(f"{where}: does not open: {in_one_line(error)}") from error
    if chat and not tokenizer.chat_template:
        raise EngineError(f"{where}: the tokenizer has no chat template")
    rows = range(config.vocab_size)
    unused = set(rows) - set(tokenizer.get_vocab().values())  # rows of the output layer without a token
    eos = tokenizer.eos_token_id
    eos_first = dict.fromkeys([eos, *of_files])  # in order, each once
    declared = [end for end in eos_first if end in rows and end not in unused]
    of_template = _ends_of_template(tokenizer, chat, policy, declared, rows)
    if not (chat and of_template) and eos is not None and eos not in rows:
        raise EngineError(
            f"{where}: the model has {config.vocab_size:,} rows, none for the EOS token {eos}: it never ends"
        )
    closing = _choose_closing(bool(chat), of_template, declared)
    if not closing:
        raise EngineError(f"{where}: the tokenizer has no EOS token, and no file of the model names another end")
    last = closing[-1]
    ends = {last, *of_template[-1:], *declared}
    further_ends = sorted(ends - {last})
    padding = ({tokenizer.pad_token_id} - ends - {*closing}) & set(rows)  # one that was added may have no row
    return Vocabulary(
        policy=policy,
        config=whole,
        tokenizer=tokenizer,
        chat=chat,
        size=config.vocab_size,
        stop=(last, *further_ends),
        forbidden=frozenset(unused | padding),
        opening=_opening_tokens(tokenizer),
        closing=closing,
    )


def _ends_of_template(tokenizer: Any, chat: Chat, policy: str, declared: Sequence[int], rows: range) -> tuple[int, ...]:
    """Return the ids that the chat template writes behind an answer, of those that the model has rows for; none without a
    template. declared: ends by the folder's files."""
    if not tokenizer.chat_template:
        return ()
    template = ChatTemplate.of(policy, tokenizer, chat)
    return tuple(i for i in closing_tokens(template, declared) if i in rows)


def _choose_closing(is_chat: bool, of_template: tuple[int, ...], declared: Sequence[int]) -> tuple[int, ...]:
    """Choose the ids behind an answer that is taught or carried; none where the model has no end.

    of_template: what the chat template writes there, all of which counts only where prompts go through it. declared: ends by the
    folder's files, EOS first."""
    if is_chat and of_template:
        return of_template
    if declared:
        return (declared[0],)
    return of_template[-1:]


def _opening_tokens(tokenizer: Any) -> tuple[int, ...]:
    """Return all ids that the tokenizer puts in front of a text by itself, named ones or not."""
    plain = tokenizer.encode("a", add_special_tokens=False)
    whole = tokenizer.encode("a")
    size = len(plain)
    for start in range(len(whole) - size + 1):
        if whole[start : start + size] == plain:
            return tuple(whole[:start])
    return ()


def _read_declared_ends(folder: Path) -> list[int]:
    """Read the ends that generation_config.json and config.json declare, of composite models also their text's part, each once.

    The files are read themselves: the library's config would fill in a class's default, which is no end of this model's."""
    said: list[Any] = []
    if (folder / "generation_config.json").exists():
        generation = GenerationConfig.from_pretrained(folder, local_files_only=True)
        said.append(generation.eos_token_id)
    config = read_config(folder / "config.json")
    for part in (config, config.get("text_config")):
        if isinstance(part, dict):
            said.append(part.get("eos_token_id"))
    ends: list[int] = []
    for ids in said:  # one, several or none
        if isinstance(ids, list | tuple):
            ends += map(index, ids)
        elif ids is not None:
            ends.append(index(ids))
    return list(dict.fromkeys(ends))


def positions_of(config: PretrainedConfig) -> int | None:
    """Return how many tokens a sequence may have; None where the config does not say."""
    most = getattr(config.get_text_config(), "max_position_embeddings", None)
    return most if isinstance(most, int) and most > 0 else None


# What a folder lacks, said in seconds ------------------------------------------------------------------------------------

SMALL = {".json", ".jinja", ".txt", ".model"}
MAX_SMALL_BYTES = 256 << 20


def read_folder(folder: Path) -> tuple[PretrainedConfig, PreTrainedTokenizerFast]:
    """Open the config of a folder's text model, and its tokenizer; the weights may be absent. Raises EngineError."""
    check_small_files(folder)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # damaged files raise anything
        raise EngineError(f"{folder}: config.json: {in_one_line(error)}") from error
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise EngineError(f"{folder}: config.json: {config.model_type!r} is no causal language model of transformers")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise EngineError(f"{folder}: there is no tokenizer (tokenizer.json)")
    tokenizer = open_vocabulary(folder, chat=bool(has_template(folder))).tokenizer
    check_tokens(folder, config, tokenizer)
    return config.get_text_config(), tokenizer


def check_small_files(folder: Path) -> None:
    """Check what a folder has beside weights. Raises EngineError where config.json is no model's or that of quantised weights, an
    adapter lies in the folder, or a file that libraries read whole is too large."""
    check_adapter(folder)
    if not (folder / "config.json").exists():
        raise EngineError(f"{folder}: there is no config.json")
    try:
        config = read_config(folder / "config.json")
    except UsageError as error:
        raise EngineError(str(error).replace(f"{folder}/", f"{folder}: ", 1)) from None
    check_quantised(folder, config)
    check_own_code(folder, config)
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
        settings = json.loads(read_bytes(checkpoint / "tokenizer_config.json", MAX_SMALL_BYTES))
        return bool(settings.get("chat_template"))
    return False


def check_weights(folder: Path) -> None:
    """Check the weight files, and that the model has a place for all their weights. Raises EngineError."""
    check_weight_files(folder)
    check_unused_weights(folder)


def check_weight_files(folder: Path) -> None:
    """Check that all weight files are there. Raises EngineError where one is missing or not of its stated length."""
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="np"):
                pass
        except (OSError, SafetensorError) as error:
            raise EngineError(f"{file}: {in_one_line(error)}") from error
