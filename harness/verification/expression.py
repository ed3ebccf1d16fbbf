"""Read a LaTeX expression and compare two of them by value, in bounded time.

A recursive-descent parser for what answers are made of: arithmetic, powers, roots, elementary functions, floor and ceiling,
factorials, symbols with subscripts. Values are exact fractions while that is cheap, else 60 digits of mpmath. Two expressions in
the same symbols are equal when they agree at three points, which decides identities of such functions (Schwartz 1980,
doi:10.1145/322217.322225, for polynomials).
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import factorial, isqrt
from typing import Any

from mpmath.ctx_mp import MPContext

DIGITS = 60
_AGREE = 35  # digits to which two values must agree
_MAX_BITS = 4_096
_MAX_LOG = 20_000  # of a value's size: what exceeds e^20000 is not evaluated
_MAX_NESTING = 60
_MAX_SYMBOLS = 16

Node = tuple[Any, ...]
Value = Any  # Fraction, mpf or mpc

_FUNCTIONS = {
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln", "log", "lg", "exp", "cis",
}  # fmt: skip
_TRIGONOMETRIC = {"sin", "cos", "tan", "cot", "sec", "csc", "cis"}
_GROWING = {"exp", "sinh", "cosh", "tanh"}
_INVERSE_NAMES = {"arcsin": "asin", "arccos": "acos", "arctan": "atan"}
_VALUELESS = (ZeroDivisionError, ValueError, OverflowError, TypeError)
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
_CLOSERS = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil", "|": "|"}


class Unread(Exception):
    """Not in this grammar."""


class TooLarge(Exception):
    """A value, or the work to find it, beyond what is ever evaluated."""


@dataclass(frozen=True, slots=True)
class Expression:
    root: Node
    symbols: frozenset[str]


@lru_cache(maxsize=16_384)
def read(text: str) -> Expression | None:
    """The expression that the whole text is, or None."""
    if _ENGLISH.search(text):
        return None
    try:
        parser = _Parser(_tokens(text))
        root = parser.sum()
        if parser.position != len(parser.tokens) or len(parser.symbols) > _MAX_SYMBOLS:
            return None
    except Unread:
        return None
    return Expression(root, frozenset(parser.symbols))


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, position, text = [], 0, text.rstrip()
    while position < len(text):
        match = _LEXER.match(text, position)
        if match is None:
            raise Unread
        position = match.end()
        kind = match.lastgroup or ""
        token = match[kind]
        if kind == "command" or kind == "word":
            kind, token = "command", "\\" + token
        tokens.append(("number" if kind == "number" else kind, token))
    return tokens


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens, self.position, self.nesting = tokens, 0, 0
        self.symbols: set[str] = set()

    def peek(self, ahead: int = 0) -> str:
        place = self.position + ahead
        return self.tokens[place][1] if place < len(self.tokens) else ""

    def kind(self, ahead: int = 0) -> str:
        place = self.position + ahead
        return self.tokens[place][0] if place < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        if not token or (expected and token != expected):
            raise Unread
        self.position += 1
        return token

    def sum(self) -> Node:
        self.nesting += 1
        if self.nesting > _MAX_NESTING:
            raise Unread
        terms = [self.signed()]
        while self.peek() in ("+", "-"):
            terms.append(self.signed())
        self.nesting -= 1
        return terms[0] if len(terms) == 1 else ("+", *terms)

    def signed(self) -> Node:
        negative = False
        while self.peek() in ("+", "-"):
            if self.take() == "-":
                if negative:
                    raise Unread  # `2--3` is a range
                negative = True
        term = self.product()
        return ("*", ("number", Fraction(-1)), term) if negative else term

    def product(self, inside_function: bool = False) -> Node:
        factors = [self.power()]
        while True:
            token = self.peek()
            if token in ("*", "\\cdot", "\\times") and not inside_function:
                self.take()
                factors.append(self.negatable())
            elif token in ("/", "\\div") and not inside_function:
                self.take()
                factors.append(("^", self.negatable(), ("number", Fraction(-1))))
            elif self._starts_factor() and not (inside_function and token[1:] in _FUNCTIONS):
                if self.kind() == "number":
                    raise Unread  # what stands before a number is no factor of it: it offers two
                factors.append(self.power())
            else:
                return factors[0] if len(factors) == 1 else ("*", *factors)

    def negatable(self) -> Node:
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.take() == "-"
        factor = self.power()
        return ("*", ("number", Fraction(-1)), factor) if negative else factor

    def _starts_factor(self) -> bool:
        token, kind = self.peek(), self.kind()
        if kind in ("number", "letter"):
            return True
        if kind == "command":
            return token not in ("\\cdot", "\\times", "\\div", "\\rfloor", "\\rceil")
        return token in ("(", "[", "{", r"\{") or (token == "|" and not self.in_bars)

    in_bars = False

    def power(self) -> Node:
        base = self.postfix(self.atom())
        if self.peek() in ("^", "**"):
            self.take()
            if self.peek() == "\\circ":
                self.take()
                return ("degree", base)
            exponent = self.argument(signed=True)
            if self.peek() in ("^", "**"):
                raise Unread  # a tower without braces
            return self.postfix(("^", base, exponent))
        return base

    def postfix(self, base: Node) -> Node:
        while self.peek() in ("!", "'"):
            if self.take() == "!":
                base = ("factorial", base)
            elif base[0] == "symbol":
                self.symbols.discard(base[1])
                base = self.symbol(base[1] + "'")
            else:
                raise Unread
        return base

    def argument(self, signed: bool = False) -> Node:
        """What a command or an exponent applies to: a braced group, else one digit or letter or command."""
        if self.peek() == "{":
            return self.group("{")
        if signed and self.peek() == "-" and self.kind(1) == "number":
            self.take()
            return ("*", ("number", Fraction(-1)), self.argument())
        if self.peek() == "(":
            return self.group("(")
        return self.atom()

    def group(self, opening: str) -> Node:
        self.take(opening)
        bars, self.in_bars = self.in_bars, opening == "|"
        inner = self.sum()
        self.take(_CLOSERS[opening])
        self.in_bars = bars
        return inner

    def symbol(self, name: str) -> Node:
        self.symbols.add(name)
        return ("symbol", name)

    def atom(self) -> Node:
        self.nesting += 1
        if self.nesting > _MAX_NESTING:
            raise Unread
        node = self._atom()
        self.nesting -= 1
        return node

    def _atom(self) -> Node:
        kind, token = self.kind(), self.peek()
        if kind == "number":
            return self._number(self.take())
        if kind == "letter":
            name = self.take() + self._subscript()
            if name == "e":
                return ("e",)
            return ("i",) if name == "i" else self.symbol(name)
        if token in ("(", "[", "{", r"\{"):
            return self.group(token)
        if token == "|":
            return ("abs", self.group("|"))
        if kind != "command":
            raise Unread
        if token in ("\\lfloor", "\\lceil"):
            return (token[2:], self.group(token))
        return self._command(self.take()[1:])

    def _number(self, digits: str) -> Node:
        value = Fraction(digits)
        if "." not in digits and self.peek() == "\\frac":
            top, bottom = self.kind(2), self.kind(5)
            if (top, bottom) == ("number", "number") and self.peek(3) == "}" and self.peek(6) == "}":
                part = Fraction(self.peek(2)) / (Fraction(self.peek(5)) or 1)
                if 0 < part < 1:
                    self.position += 7
                    return ("number", value + part)
        return ("number", value)

    def _subscript(self) -> str:
        if self.peek() != "_":
            return ""
        self.take()
        if self.peek() != "{":
            return "_" + self.take()
        depth, name = 0, ""
        while True:
            token = self.take()
            depth += {"{": 1, "}": -1}.get(token, 0)
            name += "" if token in "{}" else token
            if depth == 0:
                return "_" + name

    def _command(self, name: str) -> Node:
        if name == "frac":
            top = self.argument()
            return ("*", top, ("^", self.argument(), ("number", Fraction(-1))))
        if name == "sqrt":
            degree = self.group("[") if self.peek() == "[" else ("number", Fraction(2))
            return ("^", self.argument(), ("^", degree, ("number", Fraction(-1))))
        if name == "binom":
            return ("binomial", self.argument(), self.argument())
        if name == "pi":
            return ("pi",)
        if name in _FUNCTIONS:
            return self._function(name)
        if name in ("lvert", "vert"):
            inner = self.sum()
            if self.take() not in ("\\rvert", "\\vert"):
                raise Unread
            return ("abs", inner)
        if name in _SYMBOLS:
            return self.symbol("\\" + name + self._subscript())
        if name in _ACCENTS:
            start = self.position
            self.argument()
            inside = "".join(token for _, token in self.tokens[start : self.position] if token not in "{}")
            self.symbols = {symbol for symbol in self.symbols if symbol not in inside}
            return self.symbol(f"\\{name} {inside}{self._subscript()}")
        raise Unread

    def _function(self, name: str) -> Node:
        base = None
        if self.peek() == "_":
            if name != "log":
                raise Unread
            self.take()
            base = self.argument()
        exponent = None
        if self.peek() == "^":
            self.take()
            exponent = self.argument(signed=True)
            if exponent == ("*", ("number", Fraction(-1)), ("number", Fraction(1))) or exponent == (
                "number",
                Fraction(-1),
            ):
                name, exponent = _INVERSE.get(name, ""), None
                if not name:
                    raise Unread
        bracketed = self.peek() in ("(", "{", "[")
        if bracketed:
            inner = self.postfix(self.group(self.peek()))
        elif self.peek()[1:] in _FUNCTIONS:
            inner = self.power()
        else:
            inner = self.product(inside_function=True)
        node: Node = ("call", name, inner) if base is None else ("log", base, inner)
        return node if exponent is None else ("^", node, exponent)


class _Evaluation:
    """Values of nodes at one place. `largest` is the greatest term met, for judging a difference of nearly equal values."""

    def __init__(self, place: Mapping[str, Fraction], mp: Any) -> None:
        self.place, self.mp = place, mp
        self.largest = mp.mpf(0)

    def value(self, node: Node, degrees: bool = False) -> Value:
        """`degrees`: inside a trigonometric function, where a degree sign counts as pi/180.

        Raises
        ------
        TooLarge, ZeroDivisionError, ValueError, OverflowError
        """
        kind = node[0]
        if kind in ("number", "value"):
            return node[1]
        if kind == "symbol":
            return self.place[node[1]]
        if kind in ("+", "*"):
            return self._fold(kind, [self.value(part, degrees) for part in node[1:]])
        if kind == "degree":
            inner = self.value(node[1], degrees)
            return self.inexact(inner) * self.mp.pi / 180 if degrees else inner
        if kind in ("pi", "e"):
            return +getattr(self.mp, kind)
        if kind == "i":
            return self.mp.mpc(0, 1)
        if kind == "call":
            return self._kept(self._call(node[1], self.value(node[2], node[1] in _TRIGONOMETRIC)))
        if kind == "abs":
            return abs(self.value(node[1], degrees))
        if kind == "floor":
            return self._floor(self.value(node[1]))
        if kind == "ceil":
            return -self._floor(-self.value(node[1]))
        if kind == "factorial":
            return self._factorial(self.value(node[1]))
        left, right = self.value(node[1], degrees), self.value(node[2], degrees)
        if kind == "^":
            return self._kept(self._power(left, right))
        if kind == "log":
            return self._kept(self._log(right) / self._log(left))
        below = self._factorial(right) * self._factorial(left - right)  # binomial
        return self._factorial(left) / below

    def inexact(self, value: Value) -> Value:
        return self.mp.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value

    def _fold(self, kind: str, values: list[Value]) -> Value:
        exact = all(isinstance(value, Fraction) for value in values)
        result = values[0] if exact else self.inexact(values[0])
        if kind == "+" and not exact:
            self.largest = max(self.largest, *(abs(self.inexact(value)) for value in values))
        for value in values[1:]:
            value = value if exact else self.inexact(value)
            result = result + value if kind == "+" else result * value
            if exact and _bits(result) > _MAX_BITS:
                exact, result = False, self.inexact(result)
        return self._kept(result)

    def _power(self, base: Value, exponent: Value) -> Value:
        if isinstance(base, Fraction) and isinstance(exponent, Fraction):
            root: Fraction | None = base if exponent.denominator == 1 else None
            if exponent.denominator == 2 and base >= 0:
                root = _exact_root(base)
            if root is not None and abs(exponent.numerator) * _bits(root) <= _MAX_BITS:
                return root**exponent.numerator
        left, right = self.inexact(base), self.inexact(exponent)
        if left == 0:
            if self.mp.re(right) <= 0:
                raise ZeroDivisionError
            return self.mp.mpf(0)
        if abs(right) * (abs(self.mp.log(left)) + 1) > _MAX_LOG:
            raise TooLarge
        return left**right

    def _kept(self, value: Value) -> Value:
        if not isinstance(value, Fraction):
            if not self.mp.isfinite(value):
                raise ZeroDivisionError
            if value and abs(self.mp.mag(value)) > 2 * _MAX_LOG:
                raise TooLarge
        return value

    def _floor(self, value: Value) -> Value:
        if isinstance(value, Fraction):
            return Fraction(value.numerator // value.denominator)
        if self.mp.im(value) != 0 or abs(value) > 10**_AGREE:
            raise TooLarge
        value, nearest = self.mp.re(value), self.mp.nint(self.mp.re(value))
        near = abs(value - nearest) < self.mp.mpf(10) ** (8 - DIGITS) * (1 + abs(value))
        return Fraction(int(nearest if near else self.mp.floor(value)))  # rounding alone may keep it off an integer

    def _factorial(self, value: Value) -> Value:
        if abs(value) > 3_000:
            raise TooLarge
        if isinstance(value, Fraction) and value.denominator == 1 and 0 <= value <= 400:
            return Fraction(factorial(value.numerator))
        return self.mp.gamma(self.inexact(value) + 1)

    def _log(self, value: Value) -> Value:
        if value == 0:
            raise ZeroDivisionError
        return self.mp.log(self.inexact(value))

    def _call(self, name: str, value: Value) -> Value:
        if name in ("ln", "log"):
            return self._log(value)
        if name == "lg":
            return self._log(value) / self.mp.log(10)
        value = self.inexact(value)
        if abs(self.mp.re(value)) > (_MAX_LOG if name in _GROWING else 10**15) or abs(self.mp.im(value)) > _MAX_LOG:
            raise TooLarge
        if name == "cis":
            return self.mp.expj(value)
        return getattr(self.mp, _INVERSE_NAMES.get(name, name))(value)


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def _exact_root(value: Fraction) -> Fraction | None:
    top, bottom = isqrt(value.numerator), isqrt(value.denominator)
    return Fraction(top, bottom) if top * top == value.numerator and bottom * bottom == value.denominator else None


_THREAD = threading.local()


def _context() -> Any:
    """mpmath's state is global; each thread has its own here."""
    if not hasattr(_THREAD, "mp"):
        _THREAD.mp = MPContext()
        _THREAD.mp.dps = DIGITS
    return _THREAD.mp


@lru_cache(maxsize=512)
def _places(symbols: frozenset[str]) -> tuple[dict[str, Fraction], ...]:
    if not symbols:
        return ({},)
    draw = random.Random(20_250_101)
    ranges = ((300, 999), (1_100, 2_900), (-2_900, -300))
    return tuple({name: Fraction(draw.randint(*ends), 997) for name in sorted(symbols)} for ends in ranges)


def number(expression: Expression) -> Value | None:
    """The value of an expression without symbols; None where it has none or is too large."""
    if expression.symbols:
        return None
    try:
        return _Evaluation({}, _context()).value(expression.root)
    except (*_VALUELESS, TooLarge):
        return None


def near(left: Value, right: Value, slack: Fraction | None = None) -> bool:
    """Whether two values are equal, or no further apart than `slack`."""
    if slack is None and isinstance(left, Fraction) and isinstance(right, Fraction):
        return left == right
    evaluation = _Evaluation({}, _context())
    left, right = evaluation.inexact(left), evaluation.inexact(right)
    allowed = evaluation.inexact(slack) if slack is not None else evaluation.mp.mpf(10) ** -_AGREE * abs(left)
    return bool(abs(left - right) <= allowed)


def same_value(gold: Expression, answer: Expression) -> bool | None:
    """Whether two expressions in the same symbols have the same value everywhere; None where the gold has none that is found.

    Raises
    ------
    TooLarge
        The answer is too large to evaluate.
    """
    if gold.symbols != answer.symbols:
        return False
    mp, compared = _context(), False
    for place in _places(gold.symbols):
        ours, theirs = _Evaluation(place, mp), _Evaluation(place, mp)
        try:
            left = ours.value(gold.root)
        except (*_VALUELESS, TooLarge):
            continue
        try:
            right = theirs.value(answer.root)
        except _VALUELESS:
            return False
        compared = True
        if isinstance(left, Fraction) and isinstance(right, Fraction):
            if left != right:
                return False
            continue
        left, right = ours.inexact(left), theirs.inexact(right)
        lost = max(ours.largest, theirs.largest) * mp.mpf(10) ** (8 - DIGITS)
        if abs(left - right) > max(mp.mpf(10) ** -_AGREE * max(abs(left), abs(right)), lost):
            return False
    return True if compared else None


def same_equation(gold: tuple[Expression, Expression], answer: tuple[Expression, Expression]) -> bool | None:
    """Whether the sides' difference in one equation is a constant multiple of that in the other; None as in `same_value`.

    Raises
    ------
    TooLarge
    """
    ours, theirs = _difference(gold), _difference(answer)
    if ours.symbols != theirs.symbols:
        return False
    mp = _context()
    place = next(iter(_places(ours.symbols)))
    try:
        left = _Evaluation(place, mp).value(ours.root)
        right = _Evaluation(place, mp).value(theirs.root)
    except _VALUELESS:
        return None
    if left == 0 or right == 0:
        return False
    scaled = Expression(
        ("*", ours.root, ("value", right), ("^", ("value", left), ("number", Fraction(-1)))), ours.symbols
    )
    return same_value(scaled, theirs)


def _difference(sides: tuple[Expression, Expression]) -> Expression:
    negative = ("*", ("number", Fraction(-1)), sides[1].root)
    return Expression(("+", sides[0].root, negative), sides[0].symbols | sides[1].symbols)
