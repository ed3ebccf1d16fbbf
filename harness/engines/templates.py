"""A policy's chat template: what it writes around a question, and what behind an answer."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from harness.errors import EngineError
from harness.tokenization.codec import control_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["Chat", "ChatTemplate", "closing_tokens", "in_one_line"]

Chat = bool | Mapping[str, Any]
"""A policy's `chat`: whether its prompts go through the chat template; or also `system`, `date` and the template's arguments."""
SYSTEM, DATE = "system", "date"
# No template writes these words itself
_QUESTION, _ANSWER, _FURTHER = "harness-question-1", "harness-answer-2", "harness-question-3"


@dataclass(frozen=True, slots=True, eq=False)
class ChatTemplate:
    """The tokenizer's, with a policy's settings. policy: for messages. system: a turn before the question. arguments: of the
    template. date: ISO 8601, what the template takes for today; None is the clock's."""

    policy: str
    tokenizer: PreTrainedTokenizerFast
    system: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    date: str | None = None

    @staticmethod
    def of(policy: str, tokenizer: PreTrainedTokenizerFast, chat: Chat) -> ChatTemplate:
        """Make a tokenizer's template with the settings of a policy's `chat`."""
        said = dict(chat) if isinstance(chat, Mapping) else {}
        system = said.pop(SYSTEM, None)
        date = said.pop(DATE, None)
        return ChatTemplate(policy, tokenizer, system, said, date)

    def render(self, *turns: str, opens_answer: bool) -> str:
        """Render questions and answers in turn, as text. Raises EngineError where the template fails."""
        roles = ("user", "assistant")
        conversation = [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
        if self.system is not None:
            conversation.insert(0, {"role": "system", "content": self.system})
        given: dict[str, Any] = {**self.arguments}
        if self.date is not None:
            day = datetime.fromisoformat(self.date)
            given["strftime_now"] = day.strftime  # in the place of the one that transformers gives to templates
        try:
            text = self.tokenizer.apply_chat_template(
                conversation, tokenize=False, add_generation_prompt=opens_answer, **given
            )
        except Exception as error:  # a template is a foreign program, and fails with errors of its own
            raise EngineError(
                f"{self.policy}: the chat template fails: {in_one_line(error)}{self._advise_on_failure()}"
            ) from error
        return str(text)

    def fault(self) -> str:
        """Say why it cannot ask a question, in a sentence with a remedy; empty where it can."""
        try:
            asked = self.render(_QUESTION, opens_answer=True)
        except EngineError as error:
            return str(error).removeprefix(f"{self.policy}: ")
        if _QUESTION not in asked:
            return (
                "the chat template leaves the question out: it writes nothing of a user's turn. Put a template that asks it into "
                "chat_template.jinja of the folder, or set `chat: false`"
            )
        return ""

    def writes_date(self) -> bool:
        """Whether prompts differ from day to day."""
        with suppress(EngineError):
            days = [
                ChatTemplate(self.policy, self.tokenizer, self.system, self.arguments, day).render(
                    _QUESTION, opens_answer=True
                )
                for day in ("2001-02-03", "2014-11-25")
            ]
            return days[0] != days[1]
        return False

    def behind_question(self) -> str:
        """Return what a prompt ends with, behind the question."""
        return self.render(_QUESTION, opens_answer=True).rpartition(_QUESTION)[2]

    def _advise_on_failure(self) -> str:
        """Return what a failing template needs."""
        if isinstance(self.tokenizer.chat_template, dict):
            return "; write the one to be used into chat_template.jinja of the folder"
        if self.system is None:
            with suppress(Exception):
                turns = [{"role": "system", "content": "a"}, {"role": "user", "content": _QUESTION}]
                self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **self.arguments)
                return "; with a system turn it does not: set one by `chat: {system: ...}`"
            return ""
        with suppress(Exception):
            turns = [{"role": "user", "content": _QUESTION}]
            self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **self.arguments)
            return "; without `chat: {system: ...}` it does not"
        return ""


def closing_tokens(template: ChatTemplate, declared: Collection[int]) -> tuple[int, ...]:
    """Return control tokens that the template writes behind an answer, the last one ends it; none where it writes none.

    A conversation is rendered with a further turn and without one. What both have behind the answer is its end. A template that
    leaves the last turn open shows the end only before a further turn; in some models the end is then that turn's role. declared:
    ends by the model's files; the first of them is the last one that counts."""
    tokenizer = template.tokenizer
    control = set(control_tokens(template.tokenizer).values())

    def behind(*further: str) -> list[int] | None:
        """Return the ids behind the answer, None where the conversation cannot be rendered or the answer is not in it."""
        try:
            text = template.render(_QUESTION, _ANSWER, *further, opens_answer=False)
        except EngineError:
            return None
        _, found, rest = text.partition(_ANSWER)
        return list(tokenizer.encode(rest.lstrip(), add_special_tokens=False)) if found else None

    def first_control(ids: list[int]) -> list[int]:
        return list(takewhile(control.__contains__, ids))

    last = behind()
    further = behind(_FURTHER)
    if last is None and further is None:
        return ()
    if not last:
        end = first_control(further or [])[:1]
    elif further is None:
        end = first_control(last)[:1]
    else:
        both = zip(first_control(last), first_control(further), strict=False)
        end = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], both)]
    if not end:  # behind other words
        return tuple([i for i in last or () if i in declared][:1])
    if end == [tokenizer.bos_token_id] and end[0] not in declared:  # the next turn's, in templates without an end
        return ()
    count = next((place + 1 for place, i in enumerate(end) if i in declared), len(end))
    return tuple(end[:count])


def in_one_line(error: Exception) -> str:
    """Shorten what a library has to say, short."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def text_for_cache_key(chat: Chat) -> str:
    """Write a policy's `chat` for keys of caches."""
    return json.dumps(chat if isinstance(chat, bool) else dict(chat), sort_keys=True)
