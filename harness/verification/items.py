"""The parts of a list, tuple, set, interval or union."""

from __future__ import annotations

import re
from dataclasses import dataclass

_OPENERS = {"(": ")", "[": "]", r"\{": r"\}", r"\langle": r"\rangle"}
_CLOSERS = tuple(_OPENERS.values())
_SEPARATOR = re.compile(
    r"\\text\s*\{\s*,?\s*(?P<joined>and|or)\s*\}|\\begin(?![a-zA-Z])|\\end(?![a-zA-Z])|\\[{}]|[()\[\]{},;]"
    r"|\\(?:cup|lor|vee|land|wedge)(?![a-zA-Z])|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"
)
_EITHER = re.compile(r"(?:\\text\s*\{\s*(?:either|both)\s*\}|either\b|both\b)\s*")
_NAMES = {r"\lor": "or", r"\vee": "or", r"\land": "and", r"\wedge": "and"}


@dataclass(frozen=True, slots=True)
class Items:
    """`brackets` are empty for a bare list; `separators` are those met between items: commas, ``and``, ``or``, ``\\cup``."""

    brackets: str
    items: list[str]
    separators: frozenset[str]


def split_items(text: str) -> Items:
    """The items at the outermost level; one item where there is nothing to split."""
    brackets, body = "", text
    for opener in _OPENERS:
        if text.startswith(opener):
            closer = next((c for c in _CLOSERS if text.endswith(c)), None)
            if closer and _closes_at_end(text, len(opener), len(text) - len(closer)):
                brackets, body = opener + closer, text[len(opener) : -len(closer)]
                break
    items, depth, start, separators = [], 0, 0, set()
    for match in _SEPARATOR.finditer(body):
        token = match.group()
        if token in ("(", "[", "{", "\\{", "\\begin"):
            depth += 1
        elif token in (")", "]", "}", "\\}", "\\end"):
            depth -= 1
        elif depth == 0:
            items.append(body[start : match.start()].strip())
            separators.add(match["joined"] or _NAMES.get(token, token))
            start = match.end()
    items.append(body[start:].strip())
    if len(items) > 1:
        items[0] = _EITHER.sub("", items[0], count=1)
    return Items(brackets, [item for item in items if item], frozenset(separators))


def _closes_at_end(text: str, start: int, end: int) -> bool:
    depth = 1
    for match in re.finditer(r"\\[{}]|[()\[\]]|\\[lr]angle", text[start:end]):
        depth += 1 if match.group() in ("(", "[", "\\{", "\\langle") else -1
        if depth == 0:
            return False
    return True


def expand(items: Items) -> Items:
    r"""With ``a \pm b`` as the two values that it is."""
    if not any("\\pm" in item or "\\mp" in item for item in items.items):
        return items
    values = []
    for item in items.items:
        if "\\pm" in item or "\\mp" in item:
            values += [_signed(item, "+", "-"), _signed(item, "-", "+")]
        else:
            values.append(item)
    return Items(items.brackets, values, items.separators | {","})


def _signed(text: str, plus: str, minus: str) -> str:
    text = re.sub(r"\\pm(?![a-zA-Z])", plus, text)
    return re.sub(r"\\mp(?![a-zA-Z])", minus, text).lstrip("+ ")
