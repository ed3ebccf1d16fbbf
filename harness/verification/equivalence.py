"""Equivalence of answer and gold, by rules in bounded time; `algebra` decides only on golds in none of our grammars."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate

from harness.verification.bound import read_bound
from harness.verification.expression import Expression, OverLimit, read_expression
from harness.verification.notation import Items, expand_signs, normalise_answer, split_items, without_blanks
from harness.verification.numerals import (
    MAX_DIGITS,
    Numeral,
    parse_numeral,
    same_number,
    split_unit,
)
from harness.verification.scorer import Score
from harness.verification.sets import Interval, read_congruence, read_real_set
from harness.verification.statement import (
    has_qualifier,
    name_of,
    split_relation,
    stated_spellings,
    value_of_gold,
    without_qualifier,
)
from harness.verification.tolerance import split_tolerance
from harness.verification.values import are_near, same_equation, same_value, value_without_symbols

Algebra = Callable[[str, str], bool]
MAX_ANSWER = 2_000
MAX_DEPTH = 24
MAX_ITEMS = 40

_EVALUATE = re.compile(r"\\(?:sum|prod|int|lim|binom|bigcup|bigcap|coprod|gcd|lcm|max|min)(?![a-zA-Z])|!")
_OF_SYMBOLS = {r"\binom", "!"}  # no work left to do, where the gold has symbols
_ARITHMETIC = re.compile(
    r"(?:^|(?<=[({\[=+,-]))\s*-?\d+(?:\.\d+)?\s*(?:\+|-|\\times|\\cdot|\*)\s*\d+(?:\.\d+)?(?=\s*(?:$|[)}\],=+-]))"
)
_UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_LONG_DIGITS = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")
_LARGE = {
    "exponent": re.compile(r"(?:\^|\*\*)\s*\{?\s*[-+(]*\s*\d{4,}"),
    # a power in an exponent; `(x^2)^3` is none
    "tower": re.compile(r"(?:\^|\*\*)(?:[{(\s]*-?\d+\s*|\s*\{\s*-?\d+\s*\}\s*)(?:\^|\*\*)[{(\s]*-?\d"),
    "factorial": re.compile(r"\d{4,}\s*\}?\)?\s*!|!\s*\)?\s*!"),
    "size": re.compile(r"\\binom\s*\{[^{}]*\d{4,}|\\(?:sum|prod|int)\b"),
}
_CLOCK = re.compile(r"(\d{1,4})\s*:\s*(\d{1,4})(?:\s*:\s*(\d{1,4}))?")
_WORDED = re.compile(r"\\text\s*\{[^{}]*\}|\([A-H]\)|[A-H]")
_OPTION = re.compile(r"(?:\\text\s*\{\s*)?\(([A-H])\)\s*\}?(?=\s*\S)")
_WORD = re.compile(r"[A-Za-z][A-Za-z '\-]{2,}|[Nn]o|[Yy]es")
_LETTERS_ALONE = re.compile(r"[A-Za-z]{2,}")
_MATRIX = re.compile(
    r"(?P<factor>[^=&]*?)\s*(?:\\cdot\s*)?\\begin\s*\{[pbB]?matrix\}(?P<rows>.*)\\end\s*\{[pbB]?matrix\}", re.DOTALL
)
_CASES = re.compile(r"\\begin\s*\{cases\}(?P<rows>.*)\\end\s*\{cases\}", re.DOTALL)
_IF = re.compile(r"^\s*,?\s*(?:\\text\s*\{\s*,?\s*(?:if|for|when)\s*\}|(?:if|for|when)(?![A-Za-z]))\s*|,\s*$")
_BASED = re.compile(r"(?:\\text\s*\{)?[0-9A-Z.]+\}?\s*_\s*\{?\s*\d+\s*\}?")
_POSITIVE = re.compile(
    r"\s*(?:[,;(]|\\text\s*\{[\s,(]*(?:for|if|when|where|with|as|since)\s*\}|\s(?:for|if|when|where|with|as|since)\b)\s*"
    r"(?P<symbols>[A-Za-z](?:\s*,\s*[A-Za-z])*)\s*>\s*0\s*\)?"
)
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}


class NeedsAlgebra(Exception):
    """No rule of ours decides."""


class Unreadable(Exception):
    """Parser or comparison fails on the answer: wrong."""


def says_the_same(gold: str, answer: str, algebra: Algebra | None = None) -> bool:
    """Whether an extracted answer says what the gold says, or lies within the error that the gold allows.

    Raises OverLimit, NeedsAlgebra without `algebra`, else what `algebra` raises.
    """
    gold, error = split_tolerance(gold)
    if error is not None and _is_near(gold, answer, error):
        return True
    if answer.isdecimal() and gold.isdecimal() and answer.isascii():
        if len(answer) > MAX_DIGITS:
            raise OverLimit("digits")
        return int(answer) == int(gold)
    if len(answer) > max(MAX_ANSWER, 2 * len(gold)):
        raise OverLimit("length")
    if _UNREADABLE.search(answer):
        return False
    return _are_equal(normalise_answer(gold), normalise_answer(answer), algebra)


def decide_on_answer(gold: str, answer: str, algebra: Algebra | None = None) -> Score:
    """On an extracted answer. Raises NeedsAlgebra without `algebra`, else what it raises on the gold."""
    if not answer:
        return Score(False, reason="missing")
    try:
        return Score(says_the_same(gold, answer, algebra), answer)
    except OverLimit as limit:
        return Score(False, answer, f"over-limit: {limit}")
    except Unreadable as fault:
        return Score(False, answer, f"unreadable: {fault}")


def _is_near(gold: str, answer: str, error: Fraction) -> bool:
    """Whether one of the values that an answer states is a number within `error` of the gold's."""
    if len(answer) > MAX_ANSWER:
        return False
    exact = parse_numeral(value_of_gold(normalise_answer(gold)))
    if exact is None:
        return False
    for stated_value in stated_spellings(normalise_answer(answer)):
        offered = parse_numeral(_without_parentheses(stated_value))
        if offered is not None and same_number(exact, offered, error):
            return True
    return False


def _are_equal(gold: str, answer: str, algebra: Algebra | None) -> bool:
    if not answer:
        return False
    if without_blanks(gold) == without_blanks(answer):
        return True
    check_limits(gold, answer)
    gold = _without_parentheses(gold)
    answer = _without_parentheses(answer)
    if not has_qualifier(gold):
        answer = without_qualifier(answer)
    answer = _single_alternative(answer, algebra)
    said = stated_spellings(answer)
    clock = _read_clock(gold)
    if clock:
        return clock == _read_clock(said[0])
    if _WORDED.fullmatch(gold):
        option = _OPTION.match(answer)  # `(B) 42` chooses B
        return any(_letters_alone(gold) == _letters_alone(value) for value in (*said, option[1] if option else ""))
    numeral = parse_numeral(value_of_gold(gold))
    if numeral is not None:
        return any(_is_numeral(numeral, gold, value) for value in said)
    if _WORD.fullmatch(gold) and _letters_alone(gold) == _letters_alone(answer):
        return True
    if _LETTERS_ALONE.fullmatch(gold) and gold == _without_braces(answer):
        return True
    if _BASED.fullmatch(gold):
        return any(_without_braces(gold) == _without_braces(value) for value in said)
    positive: frozenset[str] = frozenset()
    if ">" in gold and (condition := _POSITIVE.search(gold)) and condition.end() == len(gold):
        positive = frozenset(re.findall("[A-Za-z]", condition["symbols"]))
        told = _POSITIVE.search(answer)
        gold = gold[: condition.start()]
        answer = answer[: told.start()] if told and told.end() == len(answer) else answer
    for rule in (
        _compare_congruences,
        _compare_sets,
        _compare_cases,
        _compare_matrices,
        _compare_items,
        _compare_relations,
    ):
        same = rule(gold, answer, algebra)
        if same is not None:
            return same
    if _same_bound(value_of_gold(gold), said[0], algebra):
        return True
    return any(_equal_by_algebra(value_of_gold(gold), value, algebra, positive) for value in stated_spellings(answer))


def _same_bound(gold: str, answer: str, algebra: Algebra | None) -> bool:
    """Whether both are one sum, product, integral or limit but for the variable's name; False decides nothing."""
    ours = read_bound(gold)
    theirs = read_bound(answer)
    if ours is None or theirs is None or ours.operator != theirs.operator:
        return False
    if bool(ours.end) != bool(theirs.end) or bool(ours.start) != bool(theirs.start):
        return False
    parts = [(ours.start, theirs.start), (ours.end, theirs.end), (ours.body, theirs.body)]
    return all(without_blanks(g) == without_blanks(a) or _same_value_of(g, a) for g, a in parts)


def _same_value_of(gold: str, answer: str) -> bool:
    ours = read_expression(gold)
    theirs = read_expression(answer)
    if ours is None or theirs is None:
        return False
    return same_value(ours, theirs) is True


def _compare_congruences(gold: str, answer: str, algebra: Algebra | None) -> bool | None:
    ours = read_congruence(gold)
    theirs = read_congruence(answer)
    if ours is None or theirs is None:
        return False if ours is not None and "\\pmod" in answer else None
    if ours.name and theirs.name and ours.name != theirs.name:
        return False
    if not _are_equal(ours.modulus, theirs.modulus, algebra):
        return False
    return _match_unordered(
        Items("", list(ours.residues), frozenset(",")), Items("", list(theirs.residues), frozenset(",")), algebra
    )


def _compare_sets(gold: str, answer: str, algebra: Algebra | None) -> bool | None:
    """True for one set of real numbers in two notations; else undecided here."""
    ours = read_real_set(gold)
    theirs = read_real_set(answer)
    if ours is None or theirs is None or not (ours.is_certain or theirs.is_certain):
        return None
    if ours.name and theirs.name and ours.name != theirs.name:
        return None
    if len(ours.intervals) != len(theirs.intervals) or len(ours.holes) != len(theirs.holes):
        return None
    left = list(theirs.intervals)
    for interval in ours.intervals:
        same = next((other for other in left if _same_interval(interval, other, algebra)), None)
        if same is None:
            return None
        left.remove(same)
    comma = frozenset(",")
    return _match_unordered(Items("", list(ours.holes), comma), Items("", list(theirs.holes), comma), algebra) or None


def _same_interval(ours: Interval, theirs: Interval, algebra: Algebra | None) -> bool:
    if ours.closed != theirs.closed:
        return False
    ends = ((ours.low, theirs.low), (ours.high, theirs.high))
    return all(
        without_blanks(g) == without_blanks(a) or ("infty" not in g + a and _are_equal(g, a, algebra)) for g, a in ends
    )


def _is_numeral(numeral: Numeral, gold: str, value: str) -> bool:
    offered = parse_numeral(_without_parentheses(value))
    if offered is not None:
        return same_number(numeral, offered)
    return without_blanks(value) == without_blanks(value_of_gold(gold))


def _without_parentheses(text: str) -> str:
    """`(x+1)` is `x+1`; tuples, intervals and `(a)(b)` stay."""
    split = split_items(text)
    if split.brackets == "()" and len(split.items) == 1:
        return _without_parentheses(split.items[0])
    return text


def _read_clock(text: str) -> list[int]:
    """Hours, minutes and seconds of a time of day; empty where it is none."""
    match = _CLOCK.fullmatch(text)
    return [int(part or 0) for part in match.groups()] if match else []


def _letters_alone(text: str) -> str:
    """A word without brackets, blanks and points, in small letters."""
    return re.sub(r"[\s().:'\-]", "", re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)).lower()


def _without_braces(text: str) -> str:
    """A text without braces, blanks and the text command."""
    return re.sub(r"\\text|[{}\s]", "", text)


def _compare_items(gold: str, answer: str, algebra: Algebra | None) -> bool | None:
    ours = _items_of(value_of_gold(gold))
    theirs = _items_of(stated_spellings(answer)[0])
    if len(ours.items) < 2 and len(theirs.items) < 2:
        return None
    if r"\cup" in theirs.separators and r"\cup" not in ours.separators:
        return False
    if len(ours.items) != len(theirs.items) or len(ours.items) > MAX_ITEMS:
        return False
    if ours.brackets in ("", r"\{\}"):
        return theirs.brackets in ("", r"\{\}", "()") and _match_unordered(ours, theirs, algebra)
    loose = ours.brackets == "()" and theirs.brackets == ""
    names = [name_of(item) for item in theirs.items]
    values = theirs.items
    named = all(len(name) == 1 for name in names) and len(set(names)) == len(names)
    joints = {",", ";", "and"} if named else {",", ";"}
    if (ours.brackets != theirs.brackets and not loose) or not theirs.separators <= joints:
        return False
    if named:  # `y = 2, x = 1` is (1, 2)
        values = [item for _, item in sorted(zip(names, theirs.items, strict=True))]
    return all(_are_equal(g, a, algebra) for g, a in zip(ours.items, values, strict=True))


def _items_of(text: str) -> Items:
    r"""The parts of a list; rows of `cases` that are equations, as in `x = 1 \\\\ y = 2`, are one too."""
    cases = _CASES.fullmatch(text)
    if cases:
        rows = [row.strip(" ,") for row in cases["rows"].split("\\\\") if row.strip(" ,")]
        if len(rows) > 1 and all(name_of(row) and "&" not in row for row in rows):
            return Items("", rows, frozenset(","))
    return expand_signs(split_items(text))


def _single_alternative(answer: str, algebra: Algebra | None) -> str:
    r"""The first of alternatives that all are one value, as `x+1 \text{ or } 1+x`; another answer as it is."""
    if "or" not in answer:
        return answer
    items = split_items(answer)
    if items.separators != {"or"} or items.brackets or len(items.items) > MAX_ITEMS:
        return answer
    first, *others = items.items
    return first if all(_are_equal(first, other, algebra) for other in others) else answer


def _compare_cases(gold: str, answer: str, algebra: Algebra | None) -> bool | None:
    """Rows of value and condition, in any order; None where the gold has none."""
    ours = _rows_of_cases(value_of_gold(gold))
    theirs = _rows_of_cases(stated_spellings(answer)[0])
    if ours is None or theirs is None:
        return None
    if len(ours) != len(theirs) or len(ours) > MAX_ITEMS:
        return False
    left = list(theirs)
    for row in ours:
        for other in left:
            if _equal_in_pairs(row, other, algebra):
                left.remove(other)
                break
        else:
            return False
    return True


def _equal_in_pairs(gold: Sequence[str], answer: Sequence[str], algebra: Algebra | None) -> bool:
    """Whether each text equals the one at its place."""
    return all(_are_equal(ours, theirs, algebra) for ours, theirs in zip(gold, answer, strict=True))


def _rows_of_cases(text: str) -> list[tuple[str, str]] | None:
    cases = _CASES.fullmatch(text)
    if cases is None or "\\begin" in cases["rows"]:
        return None
    rows = list[tuple[str, str]]()
    for row in cases["rows"].split("\\\\"):
        value, mark, condition = row.partition("&")
        if not row.strip():
            continue
        if not mark or "&" in condition:
            return None
        rows.append((value.strip(" ,"), _IF.sub("", condition.strip()).strip(" ,.")))
    return rows or None


def _compare_matrices(gold: str, answer: str, algebra: Algebra | None) -> bool | None:
    rows = _read_matrix(value_of_gold(gold))
    told = _read_matrix(stated_spellings(answer)[0])
    if rows is None:
        return None
    if told is None or [len(row) for row in rows] != [len(row) for row in told]:
        return False
    ours = [entry for row in rows for entry in row]
    theirs = [entry for row in told for entry in row]
    return len(ours) <= MAX_ITEMS and _equal_in_pairs(ours, theirs, algebra)


def _read_matrix(text: str) -> list[list[str]] | None:
    """The entries of a matrix or a column, by rows; None where it is none."""
    match = _MATRIX.fullmatch(text)
    if match is None or "\\begin" in match["rows"]:
        return None
    factor = match["factor"].strip()
    if factor and read_expression(factor) is None:
        return None
    rows = [row for row in match["rows"].split("\\\\") if row.strip()]
    entries = [[entry.strip() for entry in row.split("&")] for row in rows]
    if not factor:
        return entries
    return [[_multiply_entry(factor, entry) for entry in row] for row in entries]


def _multiply_entry(factor: str, entry: str) -> str:
    """A matrix's entry times the factor before the matrix."""
    product = f"({factor})({entry})"
    expression = read_expression(product)
    value = value_without_symbols(expression) if expression is not None else None
    return f"{value.numerator}/{value.denominator}" if isinstance(value, Fraction) else product


def _match_unordered(gold: Items, answer: Items, algebra: Algebra | None) -> bool:
    left = list(answer.items)
    for item in gold.items:
        name = name_of(item)
        for other in left:
            if name_of(other) in ("", name or name_of(other)) and _are_equal(item, other, algebra):
                left.remove(other)
                break
        else:
            return False
    return True


def _compare_relations(gold: str, answer: str, algebra: Algebra | None) -> bool | None:
    """Equations up to a factor; None where the gold is no relation."""
    sides, signs = split_relation(gold)
    if not signs:
        return None
    if signs == ["="]:
        named = without_blanks(value_of_gold(gold)) != without_blanks(gold)
        told, answer_signs = split_relation(answer)
        if answer_signs != ["="]:
            return None if named else False  # `x + y = 2` is no 2
        ours = [read_expression(side) for side in sides]
        theirs = [read_expression(side) for side in told]
        if None in ours or None in theirs:
            return None if named else _same_sides(sides, told, algebra)
        if named and not _symbols_of(ours[1]):
            return None  # `x = 5` wants a value
        same = same_equation((ours[0], ours[1]), (theirs[0], theirs[1]))  # type: ignore[arg-type]
        return same or (None if named else same)  # `f(x) = 2x` for `y = 2x`
    if not set(signs) & set(_FLIPPED):
        return None
    told, stated_signs = split_relation(answer)
    # Read from left to right, and from right to left
    if stated_signs == signs and _equal_in_pairs(sides, told, algebra):
        return True
    turned_signs = [_FLIPPED.get(sign, sign) for sign in reversed(stated_signs)]
    return turned_signs == signs and _equal_in_pairs(sides, told[::-1], algebra)


def _same_sides(ours: list[str], theirs: list[str], algebra: Algebra | None) -> bool:
    """Of two equations that are not both read: their sides are equal, one to one."""
    return _equal_in_pairs(ours, theirs, algebra) or _equal_in_pairs(ours, theirs[::-1], algebra)


def _symbols_of(side: Expression | None) -> frozenset[str]:
    """The symbols of an expression; none where it was not read."""
    return side.symbols if side else frozenset()


def check_limits(gold: str, answer: str) -> None:
    """Raises OverLimit; the gold's own constructs are allowed."""
    if _LONG_DIGITS.search(answer):
        raise OverLimit("digits")
    if max(accumulate((c in "{([") - (c in "})]") for c in answer)) > MAX_DEPTH:
        raise OverLimit("depth")
    for name, pattern in _LARGE.items():
        if pattern.search(answer) and not pattern.search(gold):
            raise OverLimit(name)


def _equal_by_algebra(gold: str, answer: str, algebra: Algebra | None, positive: frozenset[str]) -> bool:
    """Whether two texts are equal as expressions, at last by the algebra system."""
    (gold, gold_phrase) = split_unit(gold)
    (answer, phrase) = split_unit(answer)
    if gold_phrase.unit and phrase.unit and gold_phrase.unit != phrase.unit:
        return False
    if gold_phrase.percent != phrase.percent or ("=" in answer and "=" not in gold):
        return False
    ours = _read_scaled(gold, gold_phrase.factor)
    left_to_do = set(_EVALUATE.findall(answer)) - set(_EVALUATE.findall(gold))
    if left_to_do - (_OF_SYMBOLS if _symbols_of(ours) else set()):
        return False
    if _ARITHMETIC.search(answer) and not _ARITHMETIC.search(gold):
        return False
    if without_blanks(gold) == without_blanks(answer) and gold_phrase.factor == phrase.factor:
        return True
    if ours is not None:
        theirs = _read_scaled(answer, phrase.factor)
        if theirs is None:
            return False
        same = _is_rounded(ours, answer) or same_value(ours, theirs, positive)
        if same is not None:
            return same
    if gold_phrase.factor != phrase.factor:
        return False
    if algebra is None:
        raise NeedsAlgebra
    return algebra(gold, answer)


def _read_scaled(text: str, factor: Fraction) -> Expression | None:
    """An expression times a factor; None where the text is none."""
    expression = read_expression(text)
    if expression is None or factor == 1:
        return expression
    return Expression(("*", ("number", factor), expression.root))


def _is_rounded(gold: Expression, answer: str) -> bool:
    """Six or more digits that the gold rounds or is cut to."""
    offered = parse_numeral(answer)
    if offered is None or not offered.places:
        return False
    value = value_without_symbols(gold)
    if value is None or len(str(abs(int(offered.value * 10**offered.places)))) < 6:
        return False
    return are_near(value, offered.value, Fraction(1, 10**offered.places))


def same_answer(left: str, right: str) -> bool:
    """For votes: without algebra."""
    try:
        return says_the_same(left, right)
    except (NeedsAlgebra, OverLimit):
        return False
