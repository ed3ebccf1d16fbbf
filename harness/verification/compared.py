"""Unit tests whose values the scorer compares itself, so that the program's process never holds what is expected.

A test `assert EXPRESSION == LITERAL` is taken apart: the program's process is asked for the expression's value, told as plain
data, and the literal stays here. What the program's process says is hostile: it is read without building anything larger than what
is expected, and nothing of it runs.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

_NO_LITERAL = object()
_UNREADABLE = (ValueError, TypeError, ArithmeticError, RecursionError, MemoryError)


class Step(NamedTuple):
    """A statement to run, or where `compared`, an expression whose value must be `expected`."""

    source: str
    compared: bool = False
    expected: Any = None


def steps_of(tests: str) -> list[Step] | None:
    """Return the tests as steps, in their order: `assert f(2) == 4` is the expression `f(2)` and the value 4.

    None where a test is of another form, which the program's process must judge itself.
    """
    steps = []
    try:
        statements = ast.parse(tests).body
        for statement in statements:
            if isinstance(statement, ast.Assert):
                step = _read_comparison(statement.test)
                if step is None:
                    return None
                steps.append(step)
            elif any(isinstance(node, ast.Assert | ast.Raise) for node in ast.walk(statement)):
                return None
            elif isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
                return None  # it holds for a whole source, not for a step
            else:
                steps.append(Step(ast.unparse(statement)))
    except _UNREADABLE:
        return None
    return steps if any(step.compared for step in steps) else None


def _read_comparison(test: ast.expr) -> Step | None:
    """Return a test as an expression and the literal it must equal; None for other tests."""
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return None
    for asked, literal in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
        expected = _read_literal(literal)
        if expected is not _NO_LITERAL:
            return Step(ast.unparse(asked), True, expected)
    return None


def _read_literal(node: ast.expr) -> object:
    """Return the value of a literal; a mark where it is none."""
    with suppress(*_UNREADABLE):
        value: object = ast.literal_eval(node)
        return value
    return _NO_LITERAL


def is_as_expected(expected: object, told: bytes) -> bool:
    """Return whether the sandbox's words for a value (`_describe_value` in sandbox.py) are of one that equals a literal."""
    try:
        return _is_equal(expected, json.loads(told))
    except (*_UNREADABLE, KeyError, IndexError):
        return False


def _is_equal(expected: Any, told: Any) -> bool:
    """Return whether what the program told equals the expected value, whose kind decides what is read. Raises what unreadable
    words raise."""
    kind, value = told
    if expected is ...:
        return bool(kind == "...")
    if isinstance(expected, list | tuple):
        if kind != type(expected).__name__ or len(value) != len(expected):
            return False
        return all(map(_is_equal, expected, value))
    if isinstance(expected, set):
        return kind == "set" and len(value) == len(expected) and {_value_told(item) for item in value} == expected
    if isinstance(expected, dict):
        if kind != "dict" or len(value) != len(expected):
            return False
        values = {_value_told(key): item for key, item in value}
        return values.keys() == expected.keys() and all(_is_equal(expected[key], item) for key, item in values.items())
    return bool(_value_told(told) == expected)


def _value_told(told: Any) -> Any:
    """Return the value that is told, if it is one that a literal set may hold: a single value or a tuple of such. Raises
    ValueError or KeyError for others."""
    kind, value = told
    if kind == "tuple":
        return tuple(_value_told(item) for item in value)
    if kind == "fraction":
        return Fraction(int(value[0]), int(value[1]))
    if kind == "complex":
        return complex(float(value[0]), float(value[1]))
    if kind == "None":
        return None
    reads: dict[str, Callable[[Any], Any]] = {
        "bool": bool,
        "int": int,
        "float": float,
        "str": str,
        "bytes": bytes.fromhex,
        "decimal": Decimal,
    }
    return reads[kind](value)
