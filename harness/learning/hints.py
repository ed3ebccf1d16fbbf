"""A step's second round: a peer's answer as a hint, without what it would give away. No torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    """Return the longest beginning of `text` that gives nothing away: it ends before a box, a code fence, a secret (white space
    and, but for single characters, case apart) or words that the scorer takes for the answer. Empty where the scorer finds what
    is left right. stated: a response that says so (`Scorer.perfect`)."""
    for secret in ("```", "\\boxed", *secrets):
        spelled = _find_spelled(secret, text)
        if spelled:
            text = text[: spelled.start()]
    tried = list(_find_statements(text, stated))
    said = right([response for *_, response in tried])
    given_away = [at for at, is_right in zip(tried, said, strict=True) if is_right]
    if given_away:  # the first to end, of these the shortest
        _, backwards, _ = min(given_away)
        text = text[:-backwards]
    text = text.strip()
    if not text or right([text])[0]:
        return ""
    return text


def _find_statements(text: str, stated: Callable[[str], str | None]) -> Iterator[tuple[int, int, str]]:
    """Yield what up to `WINDOW` words beside each other state: where they end, minus where they begin, and a response that says
    so."""
    pieces = list(_WORD.finditer(text))
    for number, first in enumerate(pieces):
        for last in pieces[number : number + WINDOW]:
            words = text[first.start() : last.end()].strip(_EDGES)
            response = stated(words) if words else None
            if response is not None:
                yield last.end(), -first.start(), response


def _find_spelled(secret: str, text: str) -> re.Match[str] | None:
    """Find a secret in a text, whatever white space stands between its signs, as a word of its own; case counts for a single sign
    alone. None where it is not there, or has no sign."""
    signs = "".join(secret.split())
    if not signs:
        return None
    pattern = r"\s*".join(map(re.escape, signs))
    before = r"(?<!\w)" if signs[0].isalnum() else ""
    after = r"(?!\w)" if signs[-1].isalnum() else ""
    flags = re.IGNORECASE if len(signs) > 1 else 0
    return re.search(before + pattern + after, text, flags)
