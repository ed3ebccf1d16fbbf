"""White space before an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from harness.experience.answers import Group
from harness.experience.records import AnswerRecord, Rollout

__all__ = ["as_sent", "of", "opened"]


def of(own: Sequence[Group]) -> str | None:
    """That of most own answers, else None."""
    seen = Counter(_space(a.text) for group in own for a in group.answers if a.text.strip())
    return min(seen, key=lambda space: (-seen[space], len(space), space), default=None)


def opened(record: AnswerRecord, by: str | None) -> AnswerRecord:
    """With the space `by`, if any."""
    if by is None or _space(record.text) == by or not record.text.strip():
        return record
    text = by + record.text.lstrip()
    if not isinstance(record, Rollout):
        return msgspec.structs.replace(record, text=text)
    return msgspec.structs.replace(record, text=text, pieces=_moved(record.pieces, _space(record.text), by))


def as_sent(pieces: list[int], text: str, by: str | None) -> list[int]:
    """Bytes of an `opened` text's tokens, in `text`."""
    return pieces if by is None or _space(text) == by or not text.strip() else _moved(pieces, by, _space(text))


def _space(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]


def _moved(pieces: Sequence[int], away: str, to: str) -> list[int]:
    moved, left = list(pieces), len(away.encode())
    for i, size in enumerate(moved):
        moved[i] -= min(size, left)
        left -= min(size, left)
    moved[0] += len(to.encode())
    return moved
