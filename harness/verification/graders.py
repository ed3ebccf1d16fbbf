"""Readings behind published numbers, written anew."""

from __future__ import annotations

import re
from math import isclose
from typing import Any

from harness.verification.response import last_box
from harness.verification.scorer import Score, Scorer, Undecided, explain_unmatchable
from harness.verification.tolerance import without_tolerance

_NUMBER = re.compile(r"-?\d*\.?\d+")
_ASIDE = re.compile(r"\\(?:left|right|!|,|;|:|quad|qquad|displaystyle)(?![a-zA-Z])|\\[$%]|[$%]|\^\{?\\circ\}?|\\ ")
_WORDS = re.compile(r"\\(?:text|mathrm|mbox|textbf)\s*\{([^{}]*)\}")
_FRACTION = re.compile(r"(-?)\\frac\{(-?\d+)\}\{(-?\d+)\}|(-?)(-?\d+)/(-?\d+)")
_TOLERANCE = 1e-4


class MathVerifyPlain(Scorer):
    """math-verify's own reading of gold and answer, without this project's rules"""

    cpu_seconds = 5.0
    examples = (
        ("1/2", "so \\boxed{\\frac{1}{2}}", True),
        ("\\sqrt{12}", "$2\\sqrt{3}$", True),
        ("4", "so \\boxed{5}", False),
    )

    def prepare(self) -> None:
        import math_verify  # noqa: F401

    def fault(self, gold: str) -> str:
        return explain_unmatchable(gold)

    def perfect(self, gold: str) -> str | None:
        return super().perfect(without_tolerance(gold))

    def judge(self, text: str, gold: str) -> Score:
        """Judge by math-verify alone. Raises Undecided where it reads nothing in the gold."""
        from math_verify import parse, verify

        gold = without_tolerance(gold)
        reference = parse(f"\\boxed{{{gold}}}", parsing_timeout=None)
        if not reference:
            raise Undecided("math-verify reads nothing in the gold")
        said = parse(text, parsing_timeout=None)
        if not said:
            return Score(False, reason="missing")
        return Score(bool(verify(reference, said, timeout_seconds=None)), str(said[-1]))


class QwenGrader(Scorer):
    """The last box or number, as graders of published tables read it: equal as text, as a number to 1e-4, or by algebra"""

    cpu_seconds = 5.0
    examples = (
        ("18", "She makes 18 dollars.", True),
        ("0.5", "so \\boxed{50\\%}", True),
        ("\\frac{1}{2}", "\\boxed{\\dfrac12}", True),
        ("x+1", "\\boxed{1+x}", True),
        ("3.1416", "\\boxed{3.14159}", True),
        ("18", "first 18, then 19", False),
        ("x+1", "\\boxed{x+2}", False),
    )

    def prepare(self) -> None:
        import sympy  # noqa: F401
        from latex2sympy2_extended import latex2sympy

        latex2sympy("x")

    def fault(self, gold: str) -> str:
        return explain_unmatchable(gold)

    def perfect(self, gold: str) -> str | None:
        return super().perfect(without_tolerance(gold))

    def judge(self, text: str, gold: str) -> Score:
        """Judge the last box, or where there is none the last number."""
        box = last_box(text)
        numbers = _NUMBER.findall(text.replace(",", "")) if box is None else []
        said = box if box is not None else numbers[-1] if numbers else ""
        if not said:
            return Score(False, reason="missing")
        return Score(_is_equal(_strip_notation(without_tolerance(gold)), _strip_notation(said)), said)

    def same(self, a: str, b: str) -> bool:
        """Compare as with a gold, but without algebra."""
        return _is_equal(_strip_notation(a), _strip_notation(b), algebra=False)


def _strip_notation(text: str) -> str:
    """Return an answer without spacing, currency, degree and text commands."""
    text = _ASIDE.sub("", _WORDS.sub(lambda m: m[1] if not re.search(r"\d", text) else "", text))
    text = re.sub(r"\\[dt]frac(?![a-zA-Z])", r"\\frac", text)
    text = re.sub(r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac\s*\{", r"\\frac{", text)
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", "".join(text.split())).rstrip(".")


def _is_equal(gold: str, said: str, algebra: bool = True) -> bool:
    """Return whether two texts are equal: as text, as a number to 1e-4 with or without percent, by parts, or by algebra."""
    if gold.lower() == said.lower():
        return True
    one = _read_number(gold)
    other = _read_number(said)
    if one is not None and other is not None:
        return any(isclose(other, each, rel_tol=_TOLERANCE) for each in (one / 100, one, one * 100))
    parts = [_split_parts(each) for each in (gold, said)]
    if len(parts[0]) > 1:
        alike = len(parts[0]) == len(parts[1]) and gold[0] == said[0]
        return alike and all(_is_equal(one, other, algebra) for one, other in zip(*parts, strict=True))
    return algebra and _same_by_algebra(gold, said)


def _read_number(text: str) -> float | None:
    """Return the number that a text is, None where it is none."""
    whole = _FRACTION.fullmatch(text)
    if whole:
        sign, above, below = whole.group(1, 2, 3) if whole[2] else whole.group(4, 5, 6)
        if int(below) and len(above + below) < 300:
            return (-1 if sign else 1) * int(above) / int(below)
        return None
    if len(text) < 300 and _NUMBER.fullmatch(text) and "," not in text:
        return float(text)
    return None


def _split_parts(text: str) -> list[str]:
    """Return the parts of a tuple or an interval, else the text alone."""
    tuple_like = len(text) > 2 and text[0] in "([" and text[-1] in ")]"
    return text[1:-1].split(",") if tuple_like else [text]


def _same_by_algebra(gold: str, said: str) -> bool:
    """Return whether two texts are one expression, or their difference simplifies to 0. What cannot be read is equal to nothing."""
    import sympy

    reference = _parse_latex(gold)
    answer = None if reference is None else _parse_latex(said)
    if answer is None:  # words were compared as text
        return False
    try:
        return bool(reference == answer or sympy.simplify(reference - answer) == 0)
    except (TypeError, ValueError, AttributeError, NotImplementedError):  # things without a difference: relations, sets
        return False


def _parse_latex(text: str) -> Any:
    """Return the expression of a LaTeX text; None where it cannot be read."""
    from latex2sympy2_extended import latex2sympy

    try:
        return latex2sympy(text)
    except Exception:  # the parser raises anything; what it cannot read is no expression
        return None
