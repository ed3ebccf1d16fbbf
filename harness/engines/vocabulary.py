"""What a policy's tokens mean, read off its folder without loading the model: how prompts are encoded, what ends an answer,
and which ids can never be part of one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from harness.errors import EngineError
from harness.learning.experience import Prompt


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """stop: ids that end an answer. forbidden: ids of the output layer that are no content (padding, unused rows).
    size: rows of the output layer. opening: ids before every raw prompt (a BOS where the tokenizer sets one itself)."""

    tokenizer: PreTrainedTokenizerFast
    chat: bool
    size: int
    stop: tuple[int, ...]
    forbidden: tuple[int, ...]
    opening: tuple[int, ...]

    def encode(self, prompt: Prompt) -> list[int]:
        """Ids of a prompt, by the chat template where the policy has one. Raises EngineError if there are none."""
        if self.chat:
            turns = [{"role": "user", "content": prompt.text}]
            ids = list(self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))
        else:
            ids = [*self.opening, *self.tokenizer.encode(prompt.text, add_special_tokens=False)]
        if not ids:
            raise EngineError(f"prompt {prompt.id!r} has no tokens")
        return ids

    def is_content(self, tokens: Int32[np.ndarray, "T"]) -> bool:
        """Whether every id can be part of an answer."""
        return bool(((tokens >= 0) & (tokens < self.size)).all() and not np.isin(tokens, self.forbidden).any())

    def text(self, tokens: Int32[np.ndarray, "T"], finished: bool) -> str:
        """An answer's text, its EOS left out."""
        ids = tokens[:-1] if finished else tokens
        text = self.tokenizer.decode(ids.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)


def open_vocabulary(folder: Path, chat: bool) -> Vocabulary:
    """Read a Hugging Face folder; nothing is downloaded, no code of it is run.

    Raises
    ------
    EngineError
        One line: the folder does not open, or its tokenizer has no EOS or lacks the chat template asked for.
    """
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        config = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise EngineError(f"{folder}: does not open: {str(error).splitlines()[0]}") from error
    if tokenizer.eos_token_id is None:
        raise EngineError(f"{folder}: the tokenizer has no EOS token")
    if chat and not tokenizer.chat_template:
        raise EngineError(f"{folder}: the tokenizer has no chat template")
    stop = {tokenizer.eos_token_id, *_generation_stops(folder)}
    unused = set(range(len(tokenizer), config.vocab_size))
    padding = {tokenizer.pad_token_id} - {None} - stop
    first = tokenizer.encode("a")[:1]
    return Vocabulary(
        tokenizer=tokenizer,
        chat=chat,
        size=config.vocab_size,
        stop=tuple(sorted(stop)),
        forbidden=tuple(sorted(unused | padding)),
        opening=(first[0],) if first and first[0] == tokenizer.bos_token_id else (),
    )


def _generation_stops(folder: Path) -> set[int]:
    if not (folder / "generation_config.json").exists():
        return set()
    ids = GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id
    return set(ids if isinstance(ids, list) else [] if ids is None else [ids])
