"""A question inside a prompt: what it says is text, also where it spells one of the tokenizer's control tokens.

A template's own control tokens stay what they are. So the question's are hidden before the template is rendered, and the rest is
encoded by a copy of the tokenizer to which control tokens have other names (`codec.isolate_controls`)."""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import TYPE_CHECKING

from harness.errors import TokenizationError
from harness.tokenization.codec import MARKER, control_tokens, isolate_controls, rename_controls

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

__all__ = ["SpelledQuestions"]

# Noncharacters around the number of a hidden token; no text of a question holds them
_BEGIN, _END = "\ufdd1", "\ufdd2"


class SpelledQuestions:
    """Hides control tokens in questions, and encodes prompts with such questions."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._core = tokenizer.backend_tokenizer
        added = self._core.get_added_tokens_decoder()
        self._control = [name for name, i in control_tokens(tokenizer).items() if i in added]
        self._added = {token.content: token for token in added.values()}
        longest_first = sorted(self._control, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def hide(self, question: str) -> str:
        """Return the question with a mark for each control token that it spells; itself where there is none. Raises
        TokenizationError (`control`) where it holds such a mark."""
        if _BEGIN in question or _END in question or MARKER in question:
            raise TokenizationError("control", "the text holds a mark of control tokens")
        return self._any.sub(lambda match: f"{_BEGIN}{self._control.index(match[0])}{_END}", question)

    def encode(self, prompt: str) -> list[int]:
        """Return the ids of a rendered prompt, hidden tokens as the text that they are."""
        names = rename_controls(self._control)
        trimmed = self._without_eaten_space(prompt)
        own = self._any.sub(lambda match: names[match[0]], trimmed)  # the template's, by names that no text has
        spelled = re.sub(f"{_BEGIN}([0-9]+){_END}", lambda match: self._control[int(match[1])], own)
        encoding = self._isolated_core.encode(spelled, add_special_tokens=False)
        return list(encoding.ids)

    def _without_eaten_space(self, prompt: str) -> str:
        """Leave out of a prompt the white space that its control tokens take: some take what stands beside them, their copies do
        not."""
        for name in self._control:
            token = self._added[name]
            if token.lstrip:
                prompt = re.sub(rf"\s+(?={re.escape(name)})", "", prompt)
            if token.rstrip:
                prompt = re.sub(rf"(?<={re.escape(name)})\s+", "", prompt)
        return prompt

    @cached_property
    def _isolated_core(self) -> Tokenizer:
        """The core without its control tokens."""
        return isolate_controls(self._core, json.loads(self._core.to_str()), self._control)
