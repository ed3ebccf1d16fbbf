"""A step's second round: a peer's answer as a hint, without what it would give away. No torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.experience.answers import PeerAnswer

__all__ = ["Hint", "without_answer"]

WINDOW = 3  # words tried as an answer
_WORD = re.compile(r"[^\s=,;:$]+")
_EDGES = ".!?*\"'"
Right = Callable[[Sequence[str]], Sequence[bool]]
"""Which responses are right, or could not be decided on."""


@dataclass(frozen=True, slots=True)
class Hint:
    """A question asked again with a peer's answer. template: of its prompt, with `{question}` and `{hint}`."""

    prompt_id: str
    answer: PeerAnswer
    template: str = "{question} {hint}"


def without_answer(text: str, secrets: Iterable[str], stated: Callable[[str], str | None], right: Right) -> str:
    """The longest beginning of `text` that gives nothing away: it ends before a box, a code fence, a secret (white space and, but
    for single characters, case apart) or words that the scorer takes for the answer. Empty where the scorer finds what is
    left right. stated: a response that says so (`Scorer.perfect`)."""
    for secret in ("```", "\\boxed", *secrets):
        spelled = _find_spelled(secret, text)
        if spelled:
            text = text[: spelled.start()]
    pieces = list(_WORD.finditer(text))
    tried = [
        (last.end(), -first.start(), response)
        for i, first in enumerate(pieces)
        for last in pieces[i : i + WINDOW]
        if (words := text[first.start() : last.end()].strip(_EDGES)) and (response := stated(words)) is not None
    ]
    said = right([response for *_, response in tried])
    first_right = min((at for at, is_right in zip(tried, said, strict=True) if is_right), default=(0, -len(text), ""))
    text = text[: -first_right[1]].strip()
    return "" if not text or right([text])[0] else text


def _find_spelled(secret: str, text: str) -> re.Match[str] | None:
    signs = "".join(secret.split())
    if not signs:
        return None
    pattern = r"\s*".join(map(re.escape, signs))
    before = r"(?<!\w)" * signs[0].isalnum()
    after = r"(?!\w)" * signs[-1].isalnum()
    return re.search(before + pattern + after, text, re.IGNORECASE if len(signs) > 1 else 0)
