r"""Sums, products, integrals and limits whose variable is bound: `\sum_{k=1}^{n} k^2` and `\sum_{j=1}^{n} j^2` are one."""

from __future__ import annotations

import re
from typing import NamedTuple

from harness.verification.response import closing_brace

__all__ = ["BoundExpression", "read_bound"]

_OPERATOR = re.compile(r"\\(?P<name>sum|prod|int|lim)(?![a-zA-Z])\s*")
_START = re.compile(r"(?P<variable>[A-Za-z])\s*(?:=|\\to(?![a-zA-Z]))\s*(?P<from>.+)", re.DOTALL)
_DIFFERENTIAL = re.compile(r"(?P<body>.*?)\s*d\s*(?P<variable>[A-Za-z])\s*", re.DOTALL)
_TOKEN = re.compile(r"\\[a-zA-Z]+|.", re.DOTALL)
_PLACE = r"\xi"  # what stands for the variable, so that bodies of unlike names compare


class BoundExpression(NamedTuple):
    r"""start, end: the bounds as written, empty where there is none. body: with the variable written `\xi`."""

    operator: str
    start: str
    end: str
    body: str


def read_bound(text: str) -> BoundExpression | None:
    r"""Read a sum, product, integral or limit, as `\sum_{k=1}^{n} k^2`; None where the whole of a normalised text is none."""
    operator = _OPERATOR.match(text)
    if operator is None or _PLACE in text:
        return None
    name = operator["name"]
    rest = text[operator.end() :]
    bounds = {"_": "", "^": ""}
    while rest[:1] in bounds:
        mark = rest[0]
        read = _read_argument(rest[1:].lstrip())
        if read is None or bounds[mark]:
            return None
        bounds[mark], rest = read
        rest = rest.lstrip()
    if name == "int":
        match = _DIFFERENTIAL.fullmatch(rest)
        if match is None:
            return None
        variable = match["variable"]
        start = bounds["_"]
        body = match["body"]
    else:
        first = _START.fullmatch(bounds["_"])
        if first is None:
            return None
        variable = first["variable"]
        start = first["from"].strip()
        body = rest
    if not body or variable in _tokens_of(start + " " + bounds["^"]):
        return None
    return BoundExpression(name, start, bounds["^"], _rename_variable(body, variable))


def _read_argument(text: str) -> tuple[str, str] | None:
    """Return a group in braces, a command or a character at the text's beginning, and what follows it; None where a brace is
    open."""
    if text.startswith("{"):
        close = closing_brace(text, 0)
        if close is None:
            return None
        return (text[1:close].strip(), text[close + 1 :])
    token = _TOKEN.match(text)
    if token is None:
        return None
    return (token.group(), text[token.end() :])


def _tokens_of(text: str) -> set[str]:
    """Return the commands and letters of a text."""
    return set(_TOKEN.findall(text))


def _rename_variable(body: str, variable: str) -> str:
    """Return the body with its bound variable under the one name that all have."""
    parts = [f"{_PLACE} " if token == variable else token for token in _TOKEN.findall(body)]
    return re.sub(r"\s+", " ", "".join(parts)).strip()
