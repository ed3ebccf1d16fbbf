"""math-verify under our rules; imports sympy. Its own time-outs need SIGALRM in a main thread and are off."""

from __future__ import annotations

from cmath import isfinite
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Basic, Expr, Float, Integral, Piecewise, Product, Sum, binomial, factorial, simplify
from sympy.core.relational import Relational

from harness.verification.equivalence import Unreadable

_NORMALISATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="last", equations=False
)
_TARGET = (LatexExtractionConfig(boxed_match_priority=0, normalization_config=_NORMALISATION),)
_RELATIVE = 1e-6
_POINTS = (0.731, 1.377, -2.191)


@lru_cache(maxsize=4_096)
def _parse_answer(text: str) -> list[Any]:
    """Return the readings of a LaTeX text."""
    parsed: list[Any] = parse(
        "\\boxed{" + text + "}", extraction_config=_TARGET, parsing_timeout=None, raise_on_error=True
    )
    return parsed


def _first_expression(side: Sequence[Any]) -> Basic | None:
    """Return what SymPy made of a text; None where math-verify read it as a string alone."""
    for value in side:
        if isinstance(value, Basic):
            return value
    return None


def _names_of_symbols(value: Basic) -> set[str]:
    return {str(symbol) for symbol in value.free_symbols}


def are_equivalent(gold: str, answer: str) -> bool:
    """Return whether math-verify finds two texts equal, within our guards: it must not compare other symbols, and values must
    agree.

    Raises Unreadable where the answer is at fault, else anything that the libraries raise.
    """
    gold_side = _parse_answer(gold)
    try:
        answer_side = _parse_answer(answer)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # whatever the parser raises, the answer is at fault
        raise Unreadable(type(error).__name__) from error
    gold_value = _in_closed_form(_first_expression(gold_side))
    answer_value = _in_closed_form(_first_expression(answer_side))
    close: bool | None = None
    if gold_value is not None and answer_value is not None:
        symbols_differ = _names_of_symbols(gold_value) != _names_of_symbols(answer_value)
        if symbols_differ and not isinstance(gold_value, Relational):
            return False
        if isinstance(gold_value, Expr) and isinstance(answer_value, Expr):
            close = _same_values(gold_value, answer_value)
            if close is False or (close and (gold_value.has(Float) or answer_value.has(Float))):
                return close
            if close and simplify(gold_value - answer_value) == 0:
                return True  # math-verify compares symbols as strings
    try:
        return bool(verify(gold_side, answer_side, timeout_seconds=None, raise_on_error=True))
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        if close:
            raise
        raise Unreadable(type(error).__name__) from error


def _in_closed_form(value: Basic | None) -> Basic | None:
    """Return a sum, product or integral as its closed form where sympy has one, else as it is.

    The value of an open one at a point costs a hundred times the work.
    """
    if value is None or not value.has(Sum, Product, Integral) or value.has(binomial, factorial):
        return value
    closed = value.doit()
    return value if closed.has(Sum, Product, Integral, Piecewise) else closed


def _same_values(gold: Expr, answer: Expr) -> bool | None:
    """Return whether two expressions agree to 1e-6 at three points; None where neither point gives a value. `simplify` alone can
    run for hours."""
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    compared = False
    for base in _POINTS if symbols else (0.0,):
        place = {symbol: base + 0.217 * index for index, symbol in enumerate(symbols)}
        try:
            left = complex(gold.evalf(20, subs=place))
            right = complex(answer.evalf(20, subs=place))
        except (TypeError, ValueError, OverflowError, ZeroDivisionError, AttributeError):
            continue
        if not (isfinite(left) and isfinite(right)):
            continue
        compared = True
        if abs(left - right) > _RELATIVE * max(abs(left), abs(right)):
            return False
    return True if compared else None
