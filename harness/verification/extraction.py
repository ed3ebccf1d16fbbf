"""Which part of a response is its answer: the last box, else an explicit answer phrase, else the last number.

The last box counts even where an earlier one holds something else: an answerer who may write several answers would need
only one of them to be right. All scans are linear in the text.
"""

from __future__ import annotations

import re

_BOX = re.compile(r"(?:(?<=\\)boxed|(?<=\\f)box(?:ed)?)(?![a-zA-Z])\s*")
_BARE_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
_PHRASE = re.compile(
    r"####|\b(?:final\s+)?answer(?:\s+is)?\s*(?:\*\*)?\s*(?::|=|\bis\b)|\banswer\s+is\b", re.IGNORECASE
)
_NUMBER = re.compile(r"(?<![\w.)}])[-−]?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?|(?<![\w.,])\.\d+|\d[\d,]*(?:\.\d+)?%?")
_SENTENCE_END = re.compile(r"(?<!\\)[.!?](?=\s|$)|\n")
_REASON = re.compile(r",?\s+(?:because|since|which|where|when|as|so|hence)\s")
_MATH = tuple(
    (opening, re.compile(closing))
    for opening, closing in (
        ("$$", r"\$\$"),
        ("$", r"(?<!\\)\$"),
        ("\\(", r"\\\)"),
        ("\\[", r"\\\]"),
    )
)
_TAIL = 4_096
_LONGEST = 1 << 16


def extract(text: str) -> str:
    """The answer as written, or an empty string where there is none.

    An unbalanced last box, and a box left empty with nothing in an earlier one, give an empty string.
    """
    end = len(text)
    while (end := text.rfind("box", 0, end)) >= 0:
        if command := _BOX.match(text, end):
            content = _boxed(text, command.end())
            if content is None or content.strip():
                return (content or "").strip()
    tail = text[-_TAIL:]
    phrases = list(_PHRASE.finditer(tail))
    for phrase in reversed(phrases):
        if stated := _statement(tail[phrase.end() :]):
            return stated
    numbers = _NUMBER.findall(tail)
    return numbers[-1].rstrip(",") if numbers else ""


def _boxed(text: str, start: int) -> str | None:
    r"""Content of a box whose command ends at `start`; empty for a mere mention of ``\boxed``, None when unbalanced."""
    if text[start : start + 1] != "{":
        number = _BARE_NUMBER.match(text, start)
        return number.group().rstrip(",") if number else ""
    close = text.find("}", start)
    if close < 0:
        return None
    simple = text[start + 1 : close]
    if "{" not in simple and "\\" not in simple:
        return simple
    depth = 0
    for brace in re.finditer(r"\\.|[{}]", text[start : start + _LONGEST], re.DOTALL):
        if brace.group() == "{":
            depth += 1
        elif brace.group() == "}":
            depth -= 1
        if depth == 0:
            return text[start + 1 : start + brace.start()]
    return None


def _statement(rest: str) -> str:
    """What follows an answer phrase: the first formula if the statement begins with one, else up to the sentence's end."""
    rest = rest.lstrip(" \t:*=\n")
    for opening, closing in _MATH:
        if rest.startswith(opening):
            formula = rest[len(opening) :]
            close = closing.search(formula)
            return formula[: close.start()].strip() if close else ""
    end = _SENTENCE_END.search(rest)
    stated = rest[: end.start()] if end else rest
    return _REASON.split(stated, maxsplit=1)[0].strip(" *")
