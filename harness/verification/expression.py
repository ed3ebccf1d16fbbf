"""LaTeX expressions as trees of bounded size; `values` compares them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from math import inf
from typing import Any

_MAX_NESTING = 60
_MAX_SYMBOLS = 16

Node = tuple[Any, ...]
Value = Any  # Fraction, mpf or mpc

FUNCTIONS = {
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln", "log", "lg", "exp", "cis",
}  # fmt: skip
_INVERSE = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
_NAMED = """
alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon phi varphi
chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega infty hbar ell odot triangle angle mho partial nabla
Re Im circ prime emptyset varnothing
"""
_SYMBOLS = frozenset(_NAMED.split())
_MARKED = (
    "overline vec hat bar dot ddot tilde mathbf mathcal mathbb widehat overrightarrow boldsymbol bm underline mathfrak"
)
_ACCENTS = frozenset(_MARKED.split())
_LEXER = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?|\.\d+)|\\(?P<command>[a-zA-Z]+)|(?P<word>(?:arc)?(?:sin|cos|tan)|sqrt|ln|log|pi)(?![a-zA-Z])"
    r"|(?P<letter>[a-zA-Z])|(?P<brace>\\[{}|])|(?P<other>\*\*|[-+*/^_!(){}\[\]|']))"
)
_ENGLISH = re.compile(
    r"(?<![A-Za-z\\])(?:or|and|not|nor|if|else|either|maybe|versus|vs|perhaps|possibly|otherwise)(?![A-Za-z])",
    re.IGNORECASE,
)
_BRACKETS = {"|": "abs", r"\lfloor": "floor", r"\lceil": "ceil"}
_CLOSERS = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil", "|": "|"}


class Unread(Exception):
    """Not in this grammar."""


class OverLimit(Exception):
    """Too large: an answer is wrong."""


@dataclass(frozen=True)
class Expression:
    """root: (kind, *parts), where parts are nodes, but for a number's value and a symbol's name."""

    root: Node

    @cached_property
    def symbols(self) -> frozenset[str]:
        return frozenset(node[1] for node in walk_nodes(self.root) if node[0] == "symbol")


def walk_nodes(node: Node) -> Iterator[Node]:
    """Yield a node and all nodes below it."""
    yield node
    for part in node[1:]:
        if isinstance(part, tuple):
            yield from walk_nodes(part)


@lru_cache(maxsize=16_384)
def read_expression(text: str) -> Expression | None:
    r"""Read the whole of a text as an expression, `\frac{x+1}{2}`; None where it is none of this grammar, as `3 or 4` and `x =
    2`."""
    if _ENGLISH.search(text):
        return None
    try:
        parser = _Parser(text)
        parsed = Expression(parser.parse_sum())
    except Unread:
        return None
    if not parser.token and len(parsed.symbols) <= _MAX_SYMBOLS:
        return parsed
    return None


def _split_tokens(text: str) -> list[tuple[str, str]]:
    """Return the tokens of a text with their kinds. Raises Unread."""
    matches = list(_LEXER.finditer(text))
    if "".join(match.group() for match in matches) != text.rstrip():
        raise Unread
    kinds = ((match.lastgroup or "", match[match.lastgroup or 0]) for match in matches)
    known = [("command", "\\" + token) if kind in ("command", "word") else (kind, token) for kind, token in kinds]
    return known + [("", "")] * 7


def negate_node(node: Node) -> Node:
    """Return a node with the other sign."""
    return ("*", ("number", Fraction(-1)), node)


def _invert_node(node: Node) -> Node:
    """Return one divided by a node, as a power."""
    return ("^", node, ("number", Fraction(-1)))


class _Parser:
    """A recursive descent over the tokens of one text: sums of products of powers of atoms. Its methods raise Unread."""

    def __init__(self, text: str) -> None:
        self.tokens = _split_tokens(text)
        self.position = 0
        self.nesting = 0
        self.in_bars = False

    @property
    def token(self) -> str:
        return self.tokens[self.position][1]

    def accept(self, *wanted: str) -> str:
        """Take the next token if it is one of `wanted`, and return it; else empty."""
        token = self.token if self.token in wanted else ""
        self.position += bool(token)
        return token

    def take(self, expected: str = "") -> str:
        """Take the next token and return it. Raises Unread at the end, or where another one is expected."""
        if not self.token or (expected and self.token != expected):
            raise Unread
        self.position += 1
        return self.tokens[self.position - 1][1]

    def parse_sum(self) -> Node:
        """Parse terms joined by signs. A term may have a sign of its own, but one minus at most: `2--3` is a range."""
        terms = [self.parse_signed(self.parse_product, 1)]  # `2--3` is a range
        while self.token in ("+", "-"):
            terms.append(self.parse_signed(self.parse_product, 1))
        return terms[0] if len(terms) == 1 else ("+", *terms)

    def parse_signed(self, part: Callable[[], Node], most: float = inf) -> Node:
        """Parse a part with the signs before it. Raises Unread where these have more than `most` minus signs."""
        signs = ""
        while sign := self.accept("+", "-"):
            signs += sign
        if signs.count("-") > most:
            raise Unread
        return negate_node(part()) if signs.count("-") % 2 else part()

    def parse_product(self, inside_function: bool = False) -> Node:
        r"""Parse factors, joined by signs or side by side (`2x y`, `3(x+1)`). A number joins only from the left: `x 2` is unread,
        `x 2^{n}` is read.

        inside_function: as the argument of `\sin x y`, which ends at a sign and before another function.
        """
        factors = [self.parse_power()]
        while True:
            kind, token = self.tokens[self.position]
            if not inside_function and self.accept("*", "\\cdot", "\\times"):
                factors.append(self.parse_signed(self.parse_power))
            elif not inside_function and self.accept("/", "\\div"):
                factors.append(_invert_node(self.parse_signed(self.parse_power)))
            elif self._starts_factor(kind, token) and not (inside_function and token[1:] in FUNCTIONS):
                if kind == "number" and not self._is_power_behind_letters(factors[-1]):
                    raise Unread  # what stands before a number is no factor of it
                factors.append(self.parse_power())
            else:
                return factors[0] if len(factors) == 1 else ("*", *factors)

    def _is_power_behind_letters(self, before: Node) -> bool:
        """Return whether a number that follows is the base of a power and stands behind no other number: `n 2^{n-1}`."""
        return self.tokens[self.position + 1][1] in ("^", "**") and before[0] != "number"

    def _starts_factor(self, kind: str, token: str) -> bool:
        if kind == "command":
            return token not in ("\\cdot", "\\times", "\\div", "\\rfloor", "\\rceil")
        opens = token in ("(", "[", "{", r"\{") or (token == "|" and not self.in_bars)
        return opens or kind in ("number", "letter")

    def parse_power(self) -> Node:
        r"""Parse a factor with its exponent. `x^\circ` is in degrees, and a power of a power needs braces: `2^3^4` is unread."""
        base = self.parse_postfix(self.parse_atom())
        if not self.accept("^", "**"):
            return base
        if self.accept("\\circ"):
            return ("degree", base)
        exponent = self.parse_exponent()
        if self.token in ("^", "**"):
            raise Unread  # a tower without braces
        return self.parse_postfix(("^", base, exponent))

    def parse_exponent(self) -> Node:
        if self.token == "-" and self.tokens[self.position + 1][0] == "number":
            self.take()
            return negate_node(self.parse_atom())
        return self.parse_atom()

    def parse_postfix(self, base: Node) -> Node:
        """Parse the marks behind a base: factorials of anything, and primes of a symbol, whose name they become a part of."""
        while mark := self.accept("!", "'"):
            if mark == "'" and base[0] != "symbol":
                raise Unread
            base = ("factorial", base) if mark == "!" else ("symbol", base[1] + mark)
        return base

    def group(self) -> Node:
        """Parse what stands between two brackets of a kind. Between bars another bar closes; it opens nothing."""
        opening = self.take()
        bars = self.in_bars
        self.in_bars = opening == "|"
        inner = self.parse_sum()
        self.take(_CLOSERS[opening])
        self.in_bars = bars
        return inner

    def parse_atom(self) -> Node:
        """Parse a number, a letter, a group in brackets or a command. Raises Unread beyond `_MAX_NESTING` levels."""
        self.nesting += 1
        kind, token = self.tokens[self.position]
        if self.nesting > _MAX_NESTING:
            raise Unread
        if kind == "number":
            node = self._parse_number(self.take())
        elif kind == "letter":
            node = self._parse_letter(self.take() + self._parse_subscript())
        elif token in _CLOSERS:
            node = self.group()
            node = (_BRACKETS[token], node) if token in _BRACKETS else node
        elif kind == "command":
            node = self._parse_command(self.take()[1:])
        else:
            raise Unread
        self.nesting -= 1
        return node

    def _parse_letter(self, name: str) -> Node:
        if [token for _, token in self.tokens[self.position : self.position + 3]] == ["(", "0", ")"]:
            self.position += 3
            name += "(0)"  # a value at nought, not a product
        return (name,) if name in ("e", "i") else ("symbol", name)

    def _parse_number(self, digits: str) -> Node:
        r"""Parse a number, with a proper fraction behind an integer as a mixed number: `3\frac{1}{2}` is 7/2."""
        value = Fraction(digits)
        kinds, (command, _, top, close, _, bottom, end) = zip(*self.tokens[self.position :][:7], strict=True)
        if "." not in digits and command == "\\frac" and (kinds[2], close, kinds[5], end) == ("number", "}") * 2:
            part = Fraction(top) / (Fraction(bottom) or 1)
            if 0 < part < 1:
                self.position += 7
                value += part
        return ("number", value)

    def _parse_subscript(self) -> str:
        """Parse a subscript, and return it as a part of the name before it: `_1`, `_12` of `_{12}`; empty where there is none."""
        if not self.accept("_"):
            return ""
        if self.token != "{":
            return "_" + self.take()
        depth = 0
        name = "_"
        while True:
            token = self.take()
            depth += {"{": 1, "}": -1}.get(token, 0)
            name += "" if token in "{}" else token
            if depth == 0:
                return name

    def _parse_command(self, name: str) -> Node:
        r"""Parse what follows a LaTeX command of that name: a fraction, a root, a function, a symbol, or a marked letter such as
        `\vec{v}`.

        Raises Unread for commands that are not listed, so that an unknown function is no symbol.
        """
        match name:
            case "frac":
                return ("*", self.parse_atom(), _invert_node(self.parse_atom()))
            case "sqrt":
                degree = self.group() if self.token == "[" else ("number", Fraction(2))
                return ("^", self.parse_atom(), _invert_node(degree))
            case "binom":
                return ("binomial", self.parse_atom(), self.parse_atom())
            case "pi":
                return ("pi",)
            case "lvert" | "vert":
                inner = self.parse_sum()
                if self.accept("\\rvert", "\\vert"):
                    return ("abs", inner)
            case _ if name in FUNCTIONS:
                return self._parse_function(name)
            case _ if name in _SYMBOLS:
                return ("symbol", "\\" + name + self._parse_subscript())
            case _ if name in _ACCENTS:
                start = self.position
                self.parse_atom()
                inside = "".join(token for _, token in self.tokens[start : self.position] if token not in "{}")
                return ("symbol", f"\\{name} {inside}{self._parse_subscript()}")
        raise Unread

    def _parse_function(self, name: str) -> Node:
        r"""Parse a function with its base, exponent and argument: `\log_2 x`, `\sin^2 x`, `\sin^{-1} x` as the inverse.

        Without brackets the argument is a product: `\sin 2x` is the sine of 2x, and `\sin x + 1` one more than the sine of x.
        """
        base = exponent = None
        if self.accept("_"):
            if name != "log":
                raise Unread
            base = self.parse_atom()
        if self.accept("^"):
            exponent = self.parse_exponent()
        if exponent == negate_node(("number", Fraction(1))):
            if name not in _INVERSE:
                raise Unread
            name = _INVERSE[name]
            exponent = None
        if self.token in ("(", "{", "["):
            inner = self.parse_postfix(self.group())
        elif self.token[1:] in FUNCTIONS:
            inner = self.parse_power()
        else:
            inner = self.parse_product(inside_function=True)
        if name == "lg":
            base = ("number", Fraction(10))
        node: Node = ("ln" if name == "log" else name, inner) if base is None else ("log", base, inner)
        return node if exponent is None else ("^", node, exponent)
