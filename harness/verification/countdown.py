"""Countdown: an arithmetic expression that makes a target of given numbers.

The answer is read by a small grammar and computed in fractions; it is never executed. The gold is one solution: its numbers are
those that an answer may use, each exactly once, and its value is the target. Both rules are those of the field's data set
(TinyZero's countdown: the sorted numbers of the answer equal the given ones).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from harness.verification.response import last_box, text_behind_thinking
from harness.verification.scorer import Score, Scorer

__all__ = ["Computed", "Countdown", "compute_value"]

# Of an answer: characters, numbers, digits of one of them, and open parentheses. Fractions of these stay below 100 digits
_LONGEST, _MOST_NUMBERS, _MOST_DIGITS, _DEEPEST = 400, 12, 6, 24
_SPELLINGS = {
    r"\times": "*", r"\cdot": "*", r"\ast": "*", "×": "*", "·": "*", r"\div": "/", "÷": "/", "−": "-", "–": "-",
    r"\left": "", r"\right": "", r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\,": "", r"\!": "", "$": "",
    "[": "(", "]": ")",
}  # fmt: skip
_SPELT = re.compile(r"\\[a-zA-Z]+|\\.|.", re.DOTALL)
_TOKEN = re.compile(r"\s*(0|[1-9][0-9]*|\\frac|[-+*/(){}=])")


class Computed(NamedTuple):
    """value: of the expression. numbers: those that it is made of, sorted."""

    value: Fraction
    numbers: tuple[int, ...]


class _UnreadableError(Exception):
    """The text is no expression of the grammar."""


def compute_value(text: str) -> Computed | None:
    """Compute an expression, alone or with what it equals behind it (`3 * 4 = 12`), and return its value and its numbers.

    None where the text is anything else, divides by zero, or states another value than its own.
    """
    if len(text) > _LONGEST:
        return None
    try:
        reader = _Reader(_tokens_of(text))
        value = reader.read_sum()
        numbers = tuple(sorted(reader.numbers))  # what it equals is no part of it
        if reader.take("="):
            stated = reader.read_sum()
            if stated != value:
                return None
        reader.require_end()
    except (_UnreadableError, ZeroDivisionError):
        return None
    return Computed(value, numbers)


def _tokens_of(text: str) -> list[str]:
    """Return the text in the grammar's signs. Raises _UnreadableError."""
    plain = "".join(_SPELLINGS.get(sign, sign) for sign in _SPELT.findall(text)).strip()
    tokens = []
    place = 0
    while place < len(plain):
        found = _TOKEN.match(plain, place)
        if found is None:
            raise _UnreadableError
        tokens.append(found[1])
        place = found.end()
    return tokens


class _Reader:
    """Reads the grammar from left to right, and computes while it reads:

    sum = ["-"] product {("+" | "-") product};  product = factor {("*" | "/") factor};
    factor = number | "(" sum ")" | "\\frac" "{" sum "}" "{" sum "}".
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = tokens
        self._place = 0
        self._depth = 0
        self.numbers: list[int] = []

    def take(self, token: str) -> bool:
        """Go past a token if it is the next one."""
        is_next = self._place < len(self._tokens) and self._tokens[self._place] == token
        self._place += is_next
        return is_next

    def require(self, token: str) -> None:
        if not self.take(token):
            raise _UnreadableError

    def require_end(self) -> None:
        if self._place < len(self._tokens):
            raise _UnreadableError

    def read_sum(self) -> Fraction:
        """Read terms joined by + and -. Raises _UnreadableError, ZeroDivisionError."""
        is_negative = self.take("-")
        value = self._read_product()
        if is_negative:
            value = -value
        while True:
            if self.take("+"):
                value += self._read_product()
            elif self.take("-"):
                value -= self._read_product()
            else:
                return value

    def _read_product(self) -> Fraction:
        """Read factors joined by * and /, from left to right: `6 / 3 * 2` is 4."""
        value = self._read_factor()
        while True:
            if self.take("*"):
                value *= self._read_factor()
            elif self.take("/"):
                value /= self._read_factor()
            else:
                return value

    def _read_factor(self) -> Fraction:
        """Read a number, a sum in parentheses, or a fraction of two sums in braces."""
        if self.take("("):
            return self._read_inner(")")
        if self.take("\\frac"):
            self.require("{")
            over = self._read_inner("}")
            self.require("{")
            return over / self._read_inner("}")
        return self._read_number()

    def _read_inner(self, close: str) -> Fraction:
        """Read a sum behind an opening bracket, up to its closing one. Raises _UnreadableError beyond `_DEEPEST` brackets."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _UnreadableError
        value = self.read_sum()
        self.require(close)
        self._depth -= 1
        return value

    def _read_number(self) -> Fraction:
        """Read a number and note it as used. Raises _UnreadableError for too long and too many numbers."""
        token = self._tokens[self._place] if self._place < len(self._tokens) else ""
        if not token.isdigit() or len(token) > _MOST_DIGITS or len(self.numbers) == _MOST_NUMBERS:
            raise _UnreadableError
        self._place += 1
        self.numbers.append(int(token))
        return Fraction(int(token))


class Countdown(Scorer):
    """An arithmetic expression of the gold's numbers, each exactly once, that has the gold's value"""

    examples = (
        ("(25 - 3) * 4", "\\boxed{4 * (25 - 3)}", True),
        ("(25 - 3) * 4", "So it is\n4 * 25 - 4 * 3", False),
        ("(25 - 3) * 4", "$\\boxed{4 \\times \\left(25 - 3\\right) = 88}$", True),
        ("(25 - 3) * 4", "\\boxed{4 * (25 - 3) = 89}", False),
        ("(25 - 3) * 4", "\\boxed{88}", False),
        ("(25 - 3) * 4", "<think>\\boxed{88}</think>\n4*(25-3)", True),
        ("6 / (3 / 4)", "\\boxed{\\frac{6}{\\frac{3}{4}}}", True),
        ("6 / (3 / 4)", "\\boxed{6 * 4 / 3 + 0}", False),
        ("7 + 7", "\\boxed{7 + 7}", True),
        ("7 + 7", "\\boxed{2 ** 10 ** 9}", False),
    )

    def fault(self, gold: str) -> str:
        if not gold.strip():
            return "the answer is empty"
        return (
            ""
            if compute_value(gold)
            else f"the answer {gold!r:.80} is no expression of numbers, + - * / and parentheses"
        )

    def judge(self, text: str, gold: str) -> Score:
        """Judge the last box, or where there is none the last line."""
        text = text_behind_thinking(text)
        box = last_box(text)
        lines = [line for line in text.splitlines() if line.strip()]
        said = " ".join((box if box is not None else lines[-1] if lines else "").split())
        if not said:
            return Score(False, "", "missing")
        read, wanted = compute_value(said), compute_value(gold)
        if read is None:
            return Score(False, said, "unreadable: no expression of numbers, + - * / and parentheses")
        if wanted is None or read.numbers != wanted.numbers:
            return Score(False, said, "other numbers than the given ones, each once")
        return Score(read.value == wanted.value, said)

    def same(self, a: str, b: str) -> bool:
        """Return whether both make the same value of the same numbers; texts that are no expression are compared but for white
        space."""
        read, other = compute_value(a), compute_value(b)
        if read is None or other is None:
            return a.split() == b.split()
        return read == other
