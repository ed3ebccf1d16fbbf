"""Values of expressions and equations, and whether two are the same one, in bounded time.

Values are exact fractions while cheap, else 100 digits of mpmath or more. Expressions in the same symbols are equal when they
agree at places of both signs over 26 orders of magnitude (Schwartz 1980, doi:10.1145/322217.322225, for polynomials).
"""

from __future__ import annotations

import operator
import random
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache, reduce
from math import e, factorial, gamma, inf, isqrt, nan, pi
from typing import Any

import numpy as np
from mpmath.ctx_mp import MPContext

from harness.verification.expression import Expression, Node, OverLimit, Value, negate_node, walk_nodes

_BITS = 332  # of working precision: 100 digits
_LOST = 83  # bits that functions lose where nothing cancels
_AGREE = 120  # bits to which values must agree
_MAX_WORK = 1 << 20  # precision times nodes of both sides
_MAX_BITS = 4_096  # of an exact fraction
_MAX_LOG = 10**18  # of a value's size
_FINE = 4_096  # bits of small parts compared at far places; all are at the first
_FAR = 10**13
_MAX_ARGUMENT = 10**15  # of a periodic function or a factorial
_TRIGONOMETRIC = {"sin", "cos", "tan", "cot", "sec", "csc", "cis"}
_GROWING = {"exp", "sinh", "cosh", "tanh"}
_SMOOTH = {
    *_TRIGONOMETRIC,
    *_GROWING,
    "number",
    "symbol",
    "pi",
    "e",
    "i",
    "+",
    "*",
    "degree",
    "factorial",
    "binomial",
    "at",
}
"""Kinds of node that turn no corner, jump nowhere and do not end; `^` with an integer is another."""
_INVERSE_NAMES = {"arcsin": "asin", "arccos": "acos", "arctan": "atan"}


class _Undecided(OverLimit):
    """Too many digits would be needed."""


class _Evaluation:
    """Values of nodes at one place.

    lost: bits of precision that cancelled. largest: exponent of the greatest such term. fine: bits that show every small part.
    imaginary: i was met or there are no symbols; else values are real where defined.
    """

    def __init__(self, place: Mapping[str, Fraction]) -> None:
        self.place = place
        self.mp = _mpmath_context()
        self.nodes = self.lost = self.fine = 0
        self.largest: float = -inf
        self.imaginary = not place

    def value_of_node(self, expression: Expression) -> Value | None:
        """None where there is no value. Raises OverLimit."""
        try:
            return self.value(expression.root)
        except (ZeroDivisionError, ValueError, OverflowError, TypeError):
            return None

    def value(self, node: Node, degrees: bool = False) -> Value:
        """degrees: a degree sign counts as pi/180."""
        kind, *parts = node
        self.nodes += 1
        match kind:
            case "number":
                return parts[0]
            case "symbol":
                return self.place[parts[0]]
            case "pi" | "e":
                return +getattr(self.mp, kind)
            case "i":
                self.imaginary = True
                return self.mp.mpc(0, 1)
            case "at":
                outer = self.place
                self.place = parts[0]
                inner = self.value(parts[1])
                self.place = outer
                return inner
        values = [self.value(part, degrees or kind in _TRIGONOMETRIC) for part in parts]
        if kind in ("+", "*"):
            return self._fold_values(kind, values)
        if kind == "degree":
            if degrees:
                return self.inexact(values[0]) * self.mp.pi / 180
            return values[0]
        operation = _OPERATIONS.get(kind)
        return self._keep_within_bounds(
            operation(self, *values) if operation else self._call_function(kind, *values), *values
        )

    def inexact(self, value: Value) -> Value:
        if not isinstance(value, Fraction):
            return value
        self.fine += _count_bits(value)
        return self.mp.mpf(value.numerator) / value.denominator

    def is_real(self, value: Value) -> bool:
        mp = self.mp
        return not isinstance(value, mp.mpc) or mp.mag(value.imag) < mp.mag(value) - mp.prec // 2

    def _fold_values(self, kind: str, values: list[Value]) -> Value:
        combine = operator.add if kind == "+" else operator.mul
        if all(isinstance(value, Fraction) for value in values):
            result = values[0]
            for place, value in enumerate(values[1:], 2):
                result = combine(result, value)
                if _count_bits(result) > _MAX_BITS:
                    return self._fold_values(kind, [self.inexact(result), *values[place:]])
            return result
        values = [self.inexact(value) for value in values]
        result = reduce(combine, values)
        sizes = [self.mp.mag(value) for value in values if value] if kind == "+" else []
        if sizes:
            self.fine += max(sizes) - min(sizes)
            lost = max(sizes) - self.mp.mag(result) if result else self.mp.prec
            if lost > 16:
                self.largest = max(self.largest, max(sizes))
                if lost > self.mp.prec - 64:
                    return self.mp.mpf(0)  # rounding alone
                self.lost += lost
        return self._keep_within_bounds(result)

    def _raise_to_power(self, base: Value, exponent: Value) -> Value:
        if isinstance(base, Fraction) and isinstance(exponent, Fraction):
            root: Fraction | None = None
            if exponent.denominator == 1:
                root = base
            elif exponent.denominator == 2:
                root = _exact_root(base)
            if root is not None and abs(exponent.numerator) * _count_bits(root) <= _MAX_BITS:
                return root**exponent.numerator
        left = self.inexact(base)
        right = self.inexact(exponent)
        if left == 0:
            if self.mp.re(right) <= 0:
                raise ZeroDivisionError
            return self.mp.mpf(0)
        if right:
            self.fine += 2 * max(0, -self.mp.mag(right))
        if abs(right) * (abs(self.mp.mag(left)) + 4) > _MAX_LOG:
            raise OverLimit("value")
        return left**right

    def _keep_within_bounds(self, value: Value, *parts: Value) -> Value:
        if not isinstance(value, Fraction):
            if not self.mp.isfinite(value):
                raise ZeroDivisionError
            if value and abs(self.mp.mag(value)) > 2 * _MAX_LOG:
                raise OverLimit("value")
        if not self.imaginary and not all(map(self.is_real, parts)) and self.is_real(value):
            raise ValueError
        return value

    def _round_down(self, value: Value) -> Value:
        if isinstance(value, Fraction):
            return Fraction(value.numerator // value.denominator)
        if not self.is_real(value):
            raise ValueError
        value = self.mp.re(value)
        if value and self.mp.mag(value) > self.mp.prec - 27:
            return value
        nearest = self.mp.nint(value)
        near = abs(value - nearest) < self.mp.ldexp(1 + abs(value), 27 - self.mp.prec)
        return Fraction(int(nearest if near else self.mp.floor(value)))  # an integer but for rounding

    def _compute_factorial(self, value: Value) -> Value:
        if abs(value) > _MAX_ARGUMENT:
            raise OverLimit("value")
        if isinstance(value, Fraction) and value.denominator == 1 and 0 <= value <= 400:
            return Fraction(factorial(value.numerator))
        return self.mp.gamma(self.inexact(value) + 1)

    def _compute_binomial(self, above: Value, below: Value) -> Value:
        return self._compute_factorial(above) / self._fold_values(
            "*", [self._compute_factorial(below), self._compute_factorial(above - below)]
        )

    def _compute_log(self, value: Value) -> Value:
        if value == 0:
            raise ZeroDivisionError
        return self.mp.log(self.inexact(value))

    def _call_function(self, name: str, value: Value) -> Value:
        value = self.inexact(value)
        most = _MAX_LOG if name in _GROWING else _MAX_ARGUMENT
        if abs(self.mp.re(value)) > most or abs(self.mp.im(value)) > _MAX_ARGUMENT:
            raise OverLimit("value")
        if value:
            self.fine += 2 * abs(self.mp.mag(value)) + (3 * int(abs(value)) if name == "tanh" else 0)
        if name == "cis":
            self.imaginary = True
            return self.mp.expj(value)
        return getattr(self.mp, _INVERSE_NAMES.get(name, name))(value)


_OPERATIONS: Mapping[str, Callable[..., Value]] = {
    "^": _Evaluation._raise_to_power,
    "abs": lambda _, value: abs(value),
    "floor": _Evaluation._round_down,
    "ceil": lambda at, value: -at._round_down(-value),
    "factorial": _Evaluation._compute_factorial,
    "binomial": _Evaluation._compute_binomial,
    "ln": _Evaluation._compute_log,
    "log": lambda at, base, value: at._compute_log(value) / at._compute_log(base),
}


def _count_bits(value: Fraction) -> int:
    """Bits of a fraction's numerator and denominator."""
    return value.numerator.bit_length() + value.denominator.bit_length()


def _exact_root(value: Fraction) -> Fraction | None:
    if value < 0:
        return None
    top = isqrt(value.numerator)
    bottom = isqrt(value.denominator)
    if top * top == value.numerator and bottom * bottom == value.denominator:
        return Fraction(top, bottom)
    return None


_THREAD = threading.local()


def _mpmath_context() -> Any:
    """One for each thread: mpmath's is global."""
    if not hasattr(_THREAD, "mp"):
        _THREAD.mp = MPContext()
        _THREAD.mp.prec = _BITS
    return _THREAD.mp


Places = list[dict[str, Fraction]]


@lru_cache(maxsize=512)
def places_of_symbols(symbols: frozenset[str]) -> tuple[Places, Places]:
    if not symbols:
        return [{}], []
    draw = random.Random(20_250_101)
    names = sorted(symbols)

    def at(scale: int, *alone: str) -> dict[str, Fraction]:
        return {n: Fraction(draw.randint(600, 999), 997) * (3 if alone and n not in alone else scale) for n in names}

    each = names if len(names) > 1 else []
    near = [at(1), at(3), at(-3), *(at(-3, name) for name in each)]
    far = [at(sign * scale) for scale in (_FAR, 60, 1_000) for sign in (1, -1)]
    return near, [*far, *(at(sign * _FAR, name) for name in each for sign in (1, -1))]


@lru_cache(maxsize=64)
def _draw_places(symbols: frozenset[str]) -> dict[str, np.ndarray]:
    """The same random values of the symbols on every machine."""
    draw = np.random.default_rng(20_250_102)
    steps = (np.arange(1_500) + draw.random((len(symbols), 1_500))) / 25 - 30
    sizes = 10 ** draw.uniform(-13, 13, (len(symbols), 300)) * draw.choice((-1, 1), (len(symbols), 300))
    columns = draw.permuted(np.hstack([steps, sizes]), axis=1)
    return dict(zip(sorted(symbols), columns, strict=True))


_gamma = np.vectorize(lambda value: gamma(value) if 0 < value < 170 else nan, otypes=[float])
_ARRAYS: Mapping[str, Callable[..., Any]] = {
    "^": lambda base, power: base ** (float(power.real) if np.ndim(power) == 0 and not power.imag else power),
    "abs": lambda values: np.abs(values) + 0j,
    "floor": lambda values: np.floor(values.real) + 0j,
    "ceil": lambda values: np.ceil(values.real) + 0j,
    "factorial": lambda values: _gamma(values.real + 1) + 0j,
    "binomial": lambda above, below: (
        _gamma(above.real + 1) / _gamma(below.real + 1) / _gamma(above.real - below.real + 1) + 0j
    ),
    "cot": lambda values: 1 / np.tan(values),
    "sec": lambda values: 1 / np.cos(values),
    "csc": lambda values: 1 / np.sin(values),
    "cis": lambda values: np.exp(1j * values),
    "ln": np.log,
    "log": lambda base, values: np.log(values) / np.log(base),
}


def _evaluate_many(node: Node, at: Mapping[str, Any], real: bool, degrees: bool = False) -> Any:
    """Values at many places in double precision; NaN where none."""
    kind, *parts = node
    match kind:
        case "number":
            return np.complex128(parts[0])
        case "symbol":
            return at[parts[0]] + 0j
        case "pi" | "e" | "i":
            return np.complex128({"pi": pi, "e": e, "i": 1j}[kind])
        case "at":
            return _evaluate_many(
                parts[1], {name: np.float64(value) for name, value in parts[0].items()}, real, degrees
            )
    values = [_evaluate_many(part, at, real, degrees or kind in _TRIGONOMETRIC) for part in parts]
    if kind in ("+", "*"):
        return reduce(operator.add if kind == "+" else operator.mul, values)
    if kind == "degree":
        return values[0] * (pi / 180 if degrees else 1)
    value = (_ARRAYS.get(kind) or getattr(np, kind))(*values)
    if real:
        return np.where(sum(map(_has_imaginary_part, values)) * ~_has_imaginary_part(value), nan, value)
    return value


def _has_imaginary_part(values: Any) -> Any:
    """Where values are not real but for rounding."""
    return np.abs(values.imag) > 1e-9 * np.abs(values)


def _places_that_differ(gold: Expression, answer: Expression) -> Places:
    """Places at which two expressions may differ, found in double precision."""
    at = _draw_places(gold.symbols)
    real = not any(node[0] == "i" for each in (gold, answer) for node in walk_nodes(each.root))
    try:
        with np.errstate(all="ignore"):
            left, right = (_evaluate_many(each.root, at, real) for each in (gold, answer))
            apart = np.abs(left - right) / np.maximum(np.abs(left), np.abs(right))
            known, told = (np.isfinite(side) & ~(real & _has_imaginary_part(side)) for side in (left, right))
    except OverflowError:  # a number that is no double
        return []
    both = known & told & (apart > 1e-11)
    one = known ^ told if real else known & False
    chosen = [*sorted(np.flatnonzero(both), key=lambda index: -apart[index])[:16], *np.flatnonzero(one)[:16]]
    return [{name: Fraction(float(column[index])) for name, column in at.items()} for index in chosen]


def _may_turn(node: Node) -> bool:
    """May turn a corner, jump or end; analytic functions that agree somewhere are one."""
    kind, *parts = node
    smooth = kind in _SMOOTH or (kind == "^" and _is_integer(parts[1]))
    return not smooth and parts[1 if kind == "log" else 0][0] not in ("number", "e", "pi")


def _is_integer(node: Node) -> bool:
    return (node[0] == "number" and node[1].denominator == 1) or (node[0] == "*" and all(map(_is_integer, node[1:])))


def value_without_symbols(expression: Expression) -> Value | None:
    """None with symbols, without value, or too large."""
    if expression.symbols:
        return None
    with suppress(OverLimit):
        return _Evaluation({}).value_of_node(expression)
    return None


def are_near(left: Value, right: Value, slack: Fraction | None = None) -> bool:
    if slack is None and isinstance(left, Fraction) and isinstance(right, Fraction):
        return left == right
    evaluation = _Evaluation({})
    left = evaluation.inexact(left)
    right = evaluation.inexact(right)
    allowed = evaluation.inexact(slack) if slack is not None else evaluation.mp.ldexp(abs(left), -_AGREE)
    return bool(abs(left - right) <= allowed)


def same_value(gold: Expression, answer: Expression, positive: frozenset[str] = frozenset()) -> bool | None:
    """Equality wherever one has a real value; None where the gold has none. positive: symbols compared above zero alone.
    Raises OverLimit."""
    if gold.symbols != answer.symbols:
        return False
    real: bool | None = None
    unreal: bool | None = None
    close, far = places_of_symbols(gold.symbols)
    tried = [(place, 0) for place in close] + [(place, 0) for place in far[:2]]
    if gold.symbols and any(_may_turn(node) for each in (gold, answer) for node in walk_nodes(each.root)):
        tried[len(close) :] = [(place, 0) for place in _places_that_differ(gold, answer)] + [
            (place, _FINE) for place in far
        ]
    for index, (place, finest) in enumerate(tried):
        if any(place[name] <= 0 for name in positive):
            continue
        try:
            same, in_reals = _same_at(place, gold, answer, _BITS, inf if real is unreal is None else finest)
        except _Undecided:
            if index < len(close):
                raise
            continue
        if same is None:
            continue
        if not in_reals:
            unreal = same and unreal is not False
        elif not same:
            return False
        else:
            real = True
    return real or unreal


def _same_at(
    place: dict[str, Fraction], gold: Expression, answer: Expression, bits: int, finest: float
) -> tuple[bool | None, bool]:
    """Whether values agree, None where undecided; whether they should be real. finest: small parts that so many bits show count
    too."""
    with _mpmath_context().workprec(bits):
        ours = _Evaluation(place)
        theirs = _Evaluation(place)
        mp = ours.mp
        try:
            left = ours.value_of_node(gold)
        except OverLimit:
            return None, True
        right = theirs.value_of_node(answer)
        complex_numbers = ours.imaginary or theirs.imaginary
        if left is None or right is None:
            known = right if left is None else left
            nothing = known is None or (left is None and not place) or not (complex_numbers or ours.is_real(known))
            return None if nothing else False, True
        if isinstance(left, Fraction) and isinstance(right, Fraction):
            return left == right, True
        left = ours.inexact(left)
        right = theirs.inexact(right)
        if not complex_numbers and ours.is_real(left) != ours.is_real(right):
            return False, True
        in_reals = complex_numbers or ours.is_real(left)
        size = max((mp.mag(value) for value in (left, right) if value), default=0)
        lost = ours.lost + theirs.lost
        largest = max(ours.largest, theirs.largest)
        if left != right and mp.mag(left - right) > max(size - bits + _LOST + lost, largest - bits + 27):
            return False, in_reals
        fine = ours.fine + theirs.fine
        needed = _AGREE + _LOST + lost + int(max(0, largest - size)) + (fine if fine <= finest else 0)
        if needed <= bits:
            return True, in_reals
        if bits > _BITS or needed * (ours.nodes + theirs.nodes) > _MAX_WORK:
            raise _Undecided("value")
    return _same_at(place, gold, answer, needed, 0)


def same_equation(gold: tuple[Expression, Expression], answer: tuple[Expression, Expression]) -> bool | None:
    """Whether sides' differences are constant multiples. As `same_value`."""
    ours, theirs = (Expression(("+", left.root, negate_node(right.root))) for left, right in (gold, answer))
    if ours.symbols != theirs.symbols:
        return False
    place = places_of_symbols(ours.symbols)[0][:2][-1]
    left = _Evaluation(place).value_of_node(ours)
    right = _Evaluation(place).value_of_node(theirs)
    if left is None or right is None:
        return None
    if left == 0 or right == 0:
        return False
    one, other = (Expression(("*", a.root, ("at", place, b.root))) for a, b in ((ours, theirs), (theirs, ours)))
    return same_value(one, other)
