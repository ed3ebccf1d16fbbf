"""math-verify under our rules: gold first, one expression each side, no time-out of its own, no unit guessing.

Runs in a worker process that may be killed; imports sympy. math-verify's own limits use SIGALRM, which works in a main thread
only and turns a time-out into "wrong"; they are switched off and the pool's limits take their place.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Basic, Eq, Expr, Float
from sympy.core.relational import Relational

_NORMALISATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="last", equations=False
)
_TARGET = (LatexExtractionConfig(boxed_match_priority=0, normalization_config=_NORMALISATION),)
_RELATIVE = 1e-6


@lru_cache(maxsize=4_096)
def _parse_gold(gold: str) -> list[Any]:
    return _parse(gold)


def _parse(text: str) -> list[Any]:
    parsed: list[Any] = parse(
        "\\boxed{" + text + "}", extraction_config=_TARGET, parsing_timeout=None, raise_on_error=True
    )
    return parsed


def equivalent(gold: str, answer: str) -> bool:
    """True when math-verify holds the two LaTeX expressions equal and our guards agree.

    Raises whatever sympy raises on the way (MemoryError and RecursionError included); the worker reports it.
    """
    gold_side, answer_side = _parse_gold(gold), _parse(answer)
    golds = [value for value in gold_side if isinstance(value, Basic)]
    answers = [value for value in answer_side if isinstance(value, Basic)]
    if golds and answers:
        g, a = golds[0], answers[0]
        if _symbols(g) != _symbols(a) and not isinstance(g, Relational | Eq):
            return False
        if (close := _both_numbers(g, a)) is not None:
            return close
    return bool(verify(gold_side, answer_side, timeout_seconds=None, raise_on_error=True))


def _symbols(value: Basic) -> frozenset[str]:
    return frozenset(str(symbol) for symbol in value.free_symbols)


def _both_numbers(gold: Basic, answer: Basic) -> bool | None:
    """For two real or complex constants one of which holds a decimal: equal within a relative 1e-6. math-verify rounds to six
    decimal places, so that all numbers below 1e-6 are equal to it."""
    if not (isinstance(gold, Expr) and isinstance(answer, Expr)) or gold.free_symbols or answer.free_symbols:
        return None
    if not (gold.has(Float) or answer.has(Float)):
        return None
    try:
        left, right = complex(gold.doit().evalf(30)), complex(answer.doit().evalf(30))
    except (TypeError, ValueError, OverflowError):
        return None
    return abs(left - right) <= _RELATIVE * max(abs(left), abs(right))
