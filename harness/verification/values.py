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
from enum import Enum
from fractions import Fraction
from functools import lru_cache, reduce
from math import e, factorial, gamma, inf, isqrt, nan, pi
from typing import Any, NamedTuple

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
        """Return an expression's value at the place; None where it has none, as `1/0`. Raises OverLimit where it is too large."""
        try:
            return self.value(expression.root)
        except (ZeroDivisionError, ValueError, OverflowError, TypeError):
            return None

    def value(self, node: Node, degrees: bool = False) -> Value:
        """Return a node's value. degrees: a degree sign counts as pi/180, as inside `sin`; elsewhere it counts for nothing.

        Raises what the arithmetic raises where there is no value, and OverLimit.
        """
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
        """Return a fraction as a floating-point number of the working precision, and count its bits in `fine`."""
        if not isinstance(value, Fraction):
            return value
        self.fine += _count_bits(value)
        return self.mp.mpf(value.numerator) / value.denominator

    def is_real(self, value: Value) -> bool:
        """Return whether a value has no imaginary part but for rounding in the lower half of its digits."""
        mp = self.mp
        return not isinstance(value, mp.mpc) or mp.mag(value.imag) < mp.mag(value) - mp.prec // 2

    def _fold_values(self, kind: str, values: list[Value]) -> Value:
        """Return the sum or the product of values, and count the bits that cancel in a sum.

        Fractions stay exact up to _MAX_BITS. A sum that cancels to its last 64 bits is 0: what is left of it is rounding alone.
        """
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
        """Return a power, exactly where the exponent is an integer, or a half of one and the base a square (`(4/9)^{3/2}`)."""
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
        """Return the value that was made of `parts` if it may count. Raises OverLimit, or an error that means "no value here".

        Without i in an expression, a real value made of parts that are not real is none: `|\\sqrt{x}|` has no value below zero.
        """
        if not isinstance(value, Fraction):
            if not self.mp.isfinite(value):
                raise ZeroDivisionError
            if value and abs(self.mp.mag(value)) > 2 * _MAX_LOG:
                raise OverLimit("value")
        if not self.imaginary and not all(map(self.is_real, parts)) and self.is_real(value):
            raise ValueError
        return value

    def _round_down(self, value: Value) -> Value:
        """Return the greatest integer that is not above a value; one that is an integer but for rounding is that integer."""
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
        """Return a factorial, exactly up to 400!, else by the gamma function."""
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
        """Return the value of a function by its name, and count in `fine` the bits that a small or large argument hides."""
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
    """Return how many bits a fraction's numerator and denominator have together."""
    return value.numerator.bit_length() + value.denominator.bit_length()


def _exact_root(value: Fraction) -> Fraction | None:
    """Return the square root of a fraction where it is a fraction too, as 2/3 of 4/9; else None."""
    if value < 0:
        return None
    top = isqrt(value.numerator)
    bottom = isqrt(value.denominator)
    if top * top == value.numerator and bottom * bottom == value.denominator:
        return Fraction(top, bottom)
    return None


_THREAD = threading.local()


def _mpmath_context() -> Any:
    """Return this thread's own context: mpmath's is global, and its precision changes within a comparison."""
    if not hasattr(_THREAD, "mp"):
        _THREAD.mp = MPContext()
        _THREAD.mp.prec = _BITS
    return _THREAD.mp


Places = list[dict[str, Fraction]]


@lru_cache(maxsize=512)
def places_of_symbols(symbols: frozenset[str]) -> tuple[Places, Places]:
    """Return the places near zero and the far ones at which expressions in these symbols are compared.

    They are the same in every process, since the verdict is. Without symbols there is one place, which names no value. At some
    places one symbol alone is negative or far: else `|x|y` and `x|y|` would agree everywhere.
    """
    if not symbols:
        return [{}], []
    draw = random.Random(20_250_101)
    names = sorted(symbols)

    def draw_place(scale: int, *alone: str) -> dict[str, Fraction]:
        """Draw values about `scale`; with `alone`, only that symbol's, and 3 for the others."""
        return {n: Fraction(draw.randint(600, 999), 997) * (3 if alone and n not in alone else scale) for n in names}

    each = names if len(names) > 1 else []
    near = [draw_place(1), draw_place(3), draw_place(-3), *(draw_place(-3, name) for name in each)]
    far = [draw_place(sign * scale) for scale in (_FAR, 60, 1_000) for sign in (1, -1)]
    return near, [*far, *(draw_place(sign * _FAR, name) for name in each for sign in (1, -1))]


@lru_cache(maxsize=64)
def _draw_places(symbols: frozenset[str]) -> dict[str, np.ndarray]:
    """Draw 1,800 values of each symbol, the same on every machine: 1,500 in steps from -30 to 30, 300 from 10^-13 to 10^13."""
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
    """Return a node's values at many places in double precision; NaN where it has none.

    real: without i in the expressions, so that a real value made of parts that are not real is none (`_keep_within_bounds`).
    """
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
    """Tell for each value whether it is not real, rounding aside."""
    return np.abs(values.imag) > 1e-9 * np.abs(values)


def _places_that_differ(gold: Expression, answer: Expression) -> Places:
    """Find places at which two expressions may differ, in double precision; what they prove is decided with more digits.

    They are the 16 places at which values differ most, then 16 at which one side alone has a real value.
    """
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
    """Return whether a function of symbols may turn a corner, jump or end somewhere, as |x|, floor and sqrt do.

    Functions that do not are analytic: two of them that agree near zero agree everywhere, and need no places more.
    """
    kind, *parts = node
    smooth = kind in _SMOOTH or (kind == "^" and _is_integer(parts[1]))
    return not smooth and parts[1 if kind == "log" else 0][0] not in ("number", "e", "pi")


def _is_integer(node: Node) -> bool:
    """Return whether a node is an integer as it is written, or a product of such: `-1` is (-1) times 1."""
    return (node[0] == "number" and node[1].denominator == 1) or (node[0] == "*" and all(map(_is_integer, node[1:])))


def value_without_symbols(expression: Expression) -> Value | None:
    """Return a number's value; None for an expression with symbols, one without value, or one beyond a limit."""
    if expression.symbols:
        return None
    with suppress(OverLimit):
        return _Evaluation({}).value_of_node(expression)
    return None


def are_near(left: Value, right: Value, slack: Fraction | None = None) -> bool:
    """Return whether two numbers differ by at most `slack`. Without it fractions must be equal; others agree to _AGREE bits."""
    if slack is None and isinstance(left, Fraction) and isinstance(right, Fraction):
        return left == right
    evaluation = _Evaluation({})
    left = evaluation.inexact(left)
    right = evaluation.inexact(right)
    allowed = evaluation.inexact(slack) if slack is not None else evaluation.mp.ldexp(abs(left), -_AGREE)
    return bool(abs(left - right) <= allowed)


def same_value(gold: Expression, answer: Expression, positive: frozenset[str] = frozenset()) -> bool | None:
    """Return whether two expressions are equal wherever one has a real value; None where the gold has none anywhere.

    Values that are not real count only where no place has real ones. positive: symbols that are compared above zero alone.
    Raises OverLimit where the answer is beyond a limit, or a place near zero would need too many digits.
    """
    if gold.symbols != answer.symbols:
        return False
    same_in_reals = False
    same_beyond_reals: bool | None = None
    for trial in _list_trials(gold, answer):
        if any(trial.place[name] <= 0 for name in positive):
            continue
        # The first place that says anything must show every small part, whatever digits that takes
        nothing_seen_yet = not same_in_reals and same_beyond_reals is None
        finest = inf if nothing_seen_yet else trial.finest
        try:
            finding = _judge_place(trial.place, gold, answer, finest)
        except _Undecided:
            if trial.must_decide:
                raise
            continue
        if finding.agreement is _Agreement.NO_VALUE_HERE:
            continue
        same = finding.agreement is _Agreement.SAME
        if not finding.in_reals:
            same_beyond_reals = same and same_beyond_reals is not False
        elif same:
            same_in_reals = True
        else:
            return False
    return True if same_in_reals else same_beyond_reals


class _Trial(NamedTuple):
    """A place to compare at. finest: of `_judge_with_bits`. must_decide: an undecided place leaves the whole undecided."""

    place: dict[str, Fraction]
    finest: int
    must_decide: bool = False


def _list_trials(gold: Expression, answer: Expression) -> list[_Trial]:
    """List the places to compare at: all near ones, then a few that are far; more of them where a function may turn or end."""
    close, far = places_of_symbols(gold.symbols)
    trials = [_Trial(place, 0, must_decide=True) for place in close]
    if gold.symbols and any(_may_turn(node) for each in (gold, answer) for node in walk_nodes(each.root)):
        trials += [_Trial(place, 0) for place in _places_that_differ(gold, answer)]
        trials += [_Trial(place, _FINE) for place in far]
    else:
        trials += [_Trial(place, 0) for place in far[:2]]
    return trials


class _Agreement(Enum):
    """What one place says of two expressions. A place without a value to compare with decides nothing."""

    SAME = "same"
    DIFFERENT = "different"
    NO_VALUE_HERE = "no value here"


class _Finding(NamedTuple):
    """What a place says of two expressions.

    in_reals: whether it counts as a place in the domain: its values are real, or i was met or there are no symbols. bits_needed,
    nodes: the precision at which SAME is proved, and how many nodes are evaluated for it; 0 where the finding stands as it is.
    """

    agreement: _Agreement
    in_reals: bool = True
    bits_needed: int = 0
    nodes: int = 0


class _Both(NamedTuple):
    """The values of gold and answer at one place, None where there is none, and the evaluations that made them."""

    ours: _Evaluation
    theirs: _Evaluation
    left: Value
    right: Value

    @property
    def has_complex_numbers(self) -> bool:
        """Whether values may be any complex number; else they are real where the expressions are defined."""
        return self.ours.imaginary or self.theirs.imaginary

    @property
    def lost(self) -> int:
        """Bits that cancelled in both evaluations."""
        return self.ours.lost + self.theirs.lost

    @property
    def largest(self) -> float:
        """The exponent of the greatest term that cancelled."""
        return max(self.ours.largest, self.theirs.largest)


def _judge_place(place: dict[str, Fraction], gold: Expression, answer: Expression, finest: float) -> _Finding:
    """Judge two expressions at a place: with the usual digits, and once more with those that the first look found needed.

    Raises _Undecided where these would be too much work or still do not suffice, and OverLimit for the answer.
    """
    first = _judge_with_bits(place, gold, answer, _BITS, finest)
    if first.bits_needed <= _BITS:
        return first
    if first.bits_needed * first.nodes > _MAX_WORK:
        raise _Undecided("value")
    second = _judge_with_bits(place, gold, answer, first.bits_needed, 0)
    if second.bits_needed > first.bits_needed:
        raise _Undecided("value")
    return second


def _judge_with_bits(
    place: dict[str, Fraction], gold: Expression, answer: Expression, bits: int, finest: float
) -> _Finding:
    """Judge two expressions at a place with `bits` of working precision.

    finest: small parts that at most so many bits show must be seen before two values are the same: in `10^{13} + 10^{-13}x` all of
    x is such a part. A place beyond a limit of the gold's value decides nothing; beyond one of the answer's, OverLimit is raised.
    """
    with _mpmath_context().workprec(bits):
        both = _evaluate_both(place, gold, answer)
        if both is None:
            return _Finding(_Agreement.NO_VALUE_HERE)
        if both.left is None or both.right is None:
            return _Finding(_judge_missing_value(both, place))
        if isinstance(both.left, Fraction) and isinstance(both.right, Fraction):
            return _Finding(_Agreement.SAME if both.left == both.right else _Agreement.DIFFERENT)
        ours = both.ours
        both = both._replace(left=ours.inexact(both.left), right=both.theirs.inexact(both.right))
        if not both.has_complex_numbers and ours.is_real(both.left) != ours.is_real(both.right):
            return _Finding(_Agreement.DIFFERENT)
        in_reals = both.has_complex_numbers or ours.is_real(both.left)
        if _are_far_apart(both, bits):
            return _Finding(_Agreement.DIFFERENT, in_reals)
        return _Finding(_Agreement.SAME, in_reals, _bits_needed(both, finest), ours.nodes + both.theirs.nodes)


def _evaluate_both(place: dict[str, Fraction], gold: Expression, answer: Expression) -> _Both | None:
    """Evaluate gold and answer at a place; None where the gold is beyond a limit. Raises OverLimit where the answer is."""
    ours = _Evaluation(place)
    theirs = _Evaluation(place)
    try:
        left = ours.value_of_node(gold)
    except OverLimit:
        return None
    return _Both(ours, theirs, left, theirs.value_of_node(answer))


def _judge_missing_value(both: _Both, place: dict[str, Fraction]) -> _Agreement:
    """Judge a place at which one side at least has no value.

    It decides nothing where both have none, where the gold is a number without value, and where the only value is not real in
    expressions without i. Else one side has a value where the other has none, and the two differ.
    """
    known = both.right if both.left is None else both.left
    if known is None:
        return _Agreement.NO_VALUE_HERE
    if both.left is None and not place:
        return _Agreement.NO_VALUE_HERE
    if not (both.has_complex_numbers or both.ours.is_real(known)):
        return _Agreement.NO_VALUE_HERE
    return _Agreement.DIFFERENT


def _are_far_apart(both: _Both, bits: int) -> bool:
    """Return whether two values differ by more than what rounding and cancellation can have made of one."""
    if both.left == both.right:
        return False
    difference = both.ours.mp.mag(both.left - both.right)
    return bool(difference > max(_size_of_values(both) - bits + _LOST + both.lost, both.largest - bits + 27))


def _bits_needed(both: _Both, finest: float) -> int:
    """Return the precision at which values that agree are shown to be the same one."""
    fine = both.ours.fine + both.theirs.fine
    shown = fine if fine <= finest else 0
    return int(_AGREE + _LOST + both.lost + int(max(0, both.largest - _size_of_values(both))) + shown)


def _size_of_values(both: _Both) -> int:
    """Return the binary exponent of the larger value; 0 where both are 0."""
    mp = both.ours.mp
    return max((mp.mag(value) for value in (both.left, both.right) if value), default=0)


def same_equation(gold: tuple[Expression, Expression], answer: tuple[Expression, Expression]) -> bool | None:
    """Return whether two equations are one up to a constant factor, as `2x = 4` and `2 - x = 0`; None where one has no value.

    Left side minus right side of one must be a constant multiple of the other's. The factor is their ratio at one place: each
    difference is multiplied with the other's value there, and the products are compared. Raises OverLimit.
    """
    ours = _subtract_sides(gold)
    theirs = _subtract_sides(answer)
    if ours.symbols != theirs.symbols:
        return False
    near, _ = places_of_symbols(ours.symbols)
    # the second, with values about 3, where powers of a symbol differ more than about 1; without symbols there is one place
    place = near[1] if ours.symbols else near[0]
    left = _Evaluation(place).value_of_node(ours)
    right = _Evaluation(place).value_of_node(theirs)
    if left is None or right is None:
        return None
    if left == 0 or right == 0:
        return False
    one = Expression(("*", ours.root, ("at", place, theirs.root)))
    other = Expression(("*", theirs.root, ("at", place, ours.root)))
    return same_value(one, other)


def _subtract_sides(equation: tuple[Expression, Expression]) -> Expression:
    """Return the left side of an equation minus its right side."""
    left, right = equation
    return Expression(("+", left.root, negate_node(right.root)))
