"""What a policy's tokens mean, read off its folder without loading the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from harness.errors import EngineError
from harness.experience.answers import Prompt

__all__ = ["Vocabulary", "in_one_line", "open_vocabulary"]


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """A policy's tokens. size: rows of the output layer, of which `forbidden` ids are no content (padding, rows without a
    token). stop: ids that end an answer; the first is the one that the policy is taught and would write itself. opening: ids
    before every raw prompt."""

    policy: str
    tokenizer: PreTrainedTokenizerFast
    chat: bool
    size: int
    stop: tuple[int, ...]
    forbidden: frozenset[int]
    opening: tuple[int, ...]

    def encode(self, prompt: Prompt) -> list[int]:
        """Ids of a prompt, by the chat template where the policy has one. Raises EngineError where there are none, or the
        template fails."""
        if self.chat:
            turns = [{"role": "user", "content": prompt.text}]
            ids = _templated(self.policy, self.tokenizer, turns, opens_answer=True)
        else:
            ids = [*self.opening, *self.tokenizer.encode(prompt.text, add_special_tokens=False)]
        if not ids:
            raise EngineError(f"{self.policy}: prompt {prompt.id!r} has no tokens")
        return ids

    def reads(self, prompt: Prompt) -> str:
        """The text that stands for `encode`'s ids; without a chat template the prompt's own."""
        if not self.chat:
            return prompt.text
        return str(self.tokenizer.decode(self.encode(prompt), clean_up_tokenization_spaces=False))

    def is_content(self, tokens: Int32[np.ndarray, "T"]) -> bool:
        """Whether every id can be part of an answer."""
        ids = tokens.tolist()
        return not ids or (min(ids) >= 0 and max(ids) < self.size and self.forbidden.isdisjoint(ids))

    def text(self, tokens: Int32[np.ndarray, "T"], finished: bool) -> str:
        """An answer's text, its EOS left out."""
        ids = tokens[:-1] if finished else tokens
        text = self.tokenizer.decode(ids.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)


def open_vocabulary(folder: Path, chat: bool, policy: str = "") -> Vocabulary:
    """Read a Hugging Face folder, whose weights may be absent; no code of it is run. Raises EngineError, which names the
    policy, where it does not open, has no EOS, or lacks the chat template asked for or fails on it."""
    where = f"{policy}: {folder}" if policy else str(folder)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False).get_text_config()
        stops = _generation_stops(folder)
    except Exception as error:  # what the libraries make of damaged files has no common base
        raise EngineError(f"{where}: does not open: {in_one_line(error)}") from error
    if tokenizer.eos_token_id is None:
        raise EngineError(f"{where}: the tokenizer has no EOS token")
    if chat and not tokenizer.chat_template:
        raise EngineError(f"{where}: the tokenizer has no chat template")
    stop = {tokenizer.eos_token_id, *stops}
    unused = set(range(config.vocab_size)) - set(tokenizer.get_vocab().values())
    taught = _end_of_turn(policy, tokenizer, stop) if chat else tokenizer.eos_token_id
    padding = {tokenizer.pad_token_id} - {None} - stop
    first = tokenizer.encode("a")[:1]
    return Vocabulary(
        policy=policy,
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
    """The id with which the chat template ends an answer; EOS where it writes none of the ids that end one."""
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
    return set(ids if isinstance(ids, list) else [] if ids is None else [ids])
