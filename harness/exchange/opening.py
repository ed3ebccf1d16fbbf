"""How an answer begins and ends: as most of the learner's own do.

White space before a text is part of it, and another one than a policy writes makes the best answer unlikely (13 nats in one
real pair). So where most answers of an author begin with another white space than most own ones, all of that author's get
the own; where both begin alike, an answer that does not is left as it is. SentencePiece tokenizers put a blank of their own
in front of a text, which the text does not show: a policy whose prompt ends a line begins with `The`, others with a blank
and `The`. The own answers of the step decide. They also decide which of several ends a carried answer gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import msgspec

from harness.experience.answers import Group
from harness.experience.records import AnswerRecord, Rollout
from harness.tokenization.codec import TokenCodec

__all__ = [
    "as_sent",
    "begins_without_blank",
    "behind_thought",
    "by_author",
    "open_with",
    "usual_closing",
    "usual_opening",
]


def usual_opening(own: Sequence[Group]) -> str | None:
    """Return the opening of most own answers, else None."""
    return _most_frequent(a.text for group in own for a in group.answers)


def by_author(own: Sequence[Group], records: Sequence[AnswerRecord]) -> dict[str, str | None]:
    """Return the white space that an author's answers get; None leaves them as sent."""
    mine = usual_opening(own)
    texts = dict[str, list[str]]()
    for record in records:
        texts.setdefault(record.author, []).append(record.text)
    return {author: None if _most_frequent(sent) == mine else mine for author, sent in texts.items()}


def behind_thought(own: Sequence[Group], mark: Sequence[int], codec: TokenCodec) -> list[Group]:
    """Return own groups with what their answers say behind a thought, for what a text begins with there; without answers in which
    none is closed. mark: ids that close one. Their texts are read from ids: where the mark is a special token, no text has it."""
    groups = []
    for group in own:
        kept = []
        for answer in group.answers:
            start = _place_behind(answer.tokens.tolist(), mark)
            if start:
                said = codec.decode(answer.content[start:])
                tokens = answer.tokens[start:]  # (T',)
                logprobs = answer.logprobs[start:]  # (T',)
                kept.append(replace(answer, tokens=tokens, logprobs=logprobs, text=said))
        groups.append(replace(group, answers=tuple(kept)))
    return groups


def _place_behind(tokens: Sequence[int], mark: Sequence[int]) -> int:
    """Return the place behind the last such ids, 0 where they are not there or nothing follows."""
    wanted = list(mark)
    size = len(mark)
    for start in range(len(tokens) - size - 1, -1, -1):
        if list(tokens[start : start + size]) == wanted:
            return start + size
    return 0


def _most_frequent(texts: Iterable[str]) -> str | None:
    """Return the most frequent text, of several the shortest; None without any."""
    seen = Counter(_leading_space(text) for text in texts if text.strip())
    return min(seen, key=lambda space: (-seen[space], len(space), space), default=None)


def begins_without_blank(own: Sequence[Group], codec: TokenCodec, prompt_end: Callable[[], str]) -> bool:
    """Whether most own answers begin without the tokenizer's blank. prompt_end: decides where no own answer tells: behind a
    line's end there is none."""
    if not codec.puts_blank:
        return False
    answers = [answer for group in own for answer in group.answers if answer.text.strip()]
    firsts = [int(answer.tokens[0]) for answer in answers]
    with_blank = sum(codec.opens_with_blank(first) for first in firsts)
    if 2 * with_blank == len(firsts):
        return prompt_end().endswith("\n")
    return 2 * with_blank < len(firsts)


def usual_closing(own: Sequence[Group]) -> tuple[int, ...]:
    """Return the end of most own answers; none where none ended by itself."""
    answers = [answer for group in own for answer in group.answers]
    ended = [answer for answer in answers if answer.finished and not answer.closed]
    seen = Counter(tuple(answer.tokens[answer.content.size :].tolist()) for answer in ended)
    return min(seen, key=lambda end: (-seen[end], end), default=())


def open_with(record: AnswerRecord, by: str | None) -> AnswerRecord:
    """Open a text with the space `by`, if any."""
    if by is None or _leading_space(record.text) == by or not record.text.strip():
        return record
    text = by + record.text.lstrip()
    if not isinstance(record, Rollout):
        return msgspec.structs.replace(record, text=text)
    pieces = _move_pieces(record.pieces, _leading_space(record.text), by)
    return msgspec.structs.replace(record, text=text, pieces=pieces)


def as_sent(pieces: list[int], text: str, by: str | None) -> list[int]:
    """Count the bytes of an `open_with` text's tokens, in `text`."""
    if by is None or _leading_space(text) == by or not text.strip():
        return pieces
    return _move_pieces(pieces, by, _leading_space(text))


def _leading_space(text: str) -> str:
    """Return the white space with which a text begins."""
    return text[: len(text) - len(text.lstrip())]


def _move_pieces(pieces: Sequence[int], away: str, to: str) -> list[int]:
    """Return the lengths of tokens in bytes, when an answer begins with other white space."""
    moved = list(pieces)
    left = len(away.encode())
    for place, size in enumerate(moved):
        taken = min(size, left)
        moved[place] -= taken
        left -= taken
    moved[0] += len(to.encode())
    return moved
