"""A response's answer: the last box, else an answer phrase, else the last number. Scans are
linear."""

from __future__ import annotations

import re

from harness.verification.notation import closing_brace
from harness.verification.numerals import is_label

_BOX = re.compile(r"(?:(?<=\\)boxed|(?<=\\f)box(?:ed)?)(?![a-zA-Z])\s*")
_BARE_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
_PHRASE = re.compile(
    r"####|\b(?:final\s+)?answer(?:\s+is)?\s*(?:\*\*)?\s*(?::|=|\bis\b)|\banswer\s+is\b", re.IGNORECASE
)
_NUMBER = re.compile(r"(?<![\w.)}])[-−]?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?|(?<![\w.,])\.\d+|\d[\d,]*(?:\.\d+)?%?")
_ON = r"(?!\s+(?:or|alternatively|otherwise|maybe|perhaps|possibly)\b)"  # such a sentence goes on with what was offered
_SENTENCE_END = re.compile(rf"(?<!\\)(?<!\bapprox)(?<!\bsq)[.!?](?=\s|$){_ON}|\n(?![^{{}}\n]*\}})", re.IGNORECASE)
_REASON = re.compile(r"(?:,?\s+|\s*\(\s*)(?:because|since|which|where|when|as|so|hence|i\.e\.|by|from|see|given)\s")
_MATH = tuple(
    (opening, re.compile(closing))
    for opening, closing in (
        ("$$", r"\$\$"),
        ("$", r"(?<!\\)\$(?!\d)"),  # `$18 ... $9` are prices: a formula's end is followed by no digit
        ("\\(", r"\\\)"),
        ("\\[", r"\\\]"),
    )
)
_PRICE = re.compile(r"\$\s?\d[\d,]*(?:\.\d+)?(?:[.!?]?\s+[A-Za-z]|[.!?]\s).*\s\$$", re.DOTALL)
_DELIMITER = re.compile(r"(?<!\\)\$+|\\[()\[\]]")
_FOLLOWS = re.compile(r"\s*(?:(?P<list>[,;/]?\s*(?:(?:or|and)\s*)?(?:\$|\\\(|\d))|[,;.]?\s*\(?(?P<word>[A-Za-z]+))")
_ASIDE = re.compile(r",\s+([a-z]{2,})\b")
_TAIL = 4_096


def extract(text: str) -> str:
    """As written; empty where there is none, or the last box is unbalanced."""
    if (box := last_box(text)) is not None:
        return box
    tail = text[-_TAIL:]
    phrases = list(_PHRASE.finditer(tail))
    for phrase in reversed(phrases):
        if stated := _statement(tail[phrase.end() :]):
            return stated
    numbers = _NUMBER.findall(tail)
    return numbers[-1].rstrip(",") if numbers else ""


def last_box(text: str) -> str | None:
    """The last that is not empty; an empty string where unbalanced, None without one."""
    end = len(text)
    while (end := text.rfind("box", 0, end)) >= 0:
        if command := _BOX.match(text, end):
            content = _boxed(text, command.end())
            if content is None or content.strip():
                return (content or "").strip()
    return None


def _boxed(text: str, start: int) -> str | None:
    if text[start : start + 1] != "{":
        number = _BARE_NUMBER.match(text, start)
        return number.group().rstrip(",") if number else ""
    close = text.find("}", start)
    if close < 0:
        return None
    simple = text[start + 1 : close]
    if "{" not in simple and "\\" not in simple:
        return simple
    end = closing_brace(text, start)
    return None if end is None else text[start + 1 : end]


def _statement(rest: str) -> str:
    """Up to the sentence's end or a reason; a formula alone where no other value follows."""
    rest = rest.lstrip(" \t:*=\n")
    for opening, closing in _MATH:
        if not rest.startswith(opening):
            continue
        close = closing.search(rest, len(opening))
        if close is None or (opening == "$" and _PRICE.match(rest[: close.end()])):
            break
        formula, behind = rest[len(opening) : close.start()].strip(), rest[close.end() :]
        behind = _clause(behind)
        follows = _FOLLOWS.match(behind)
        if follows is None or not (follows["list"] or not is_label(follows["word"])):
            return formula
        return formula + " " + _DELIMITER.sub(" ", behind).strip(" *")
    return _clause(rest).strip(" *")


def _clause(text: str) -> str:
    end = _SENTENCE_END.search(text)
    clause = _REASON.split(text[: end.start()] if end else text, maxsplit=1)[0]
    aside = next((comma for comma in _ASIDE.finditer(clause) if is_label(comma[1])), None)
    return clause[: aside.start()] if aside else clause
