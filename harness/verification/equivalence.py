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
_OPTION = re.compile(r"(?:\\text\s*\{\s*)?\(?([A-H])[).:]\s*\}?(?=\s*\S)")
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
    """Return whether an extracted answer says what the gold says, or lies within the error that the gold allows.

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
    """Decide on an extracted answer. Raises NeedsAlgebra without `algebra`, else what it raises on the gold."""
    if not answer:
        return Score(False, reason="missing")
    try:
        return Score(says_the_same(gold, answer, algebra), answer)
    except OverLimit as limit:
        return Score(False, answer, f"over-limit: {limit}")
    except Unreadable as fault:
        return Score(False, answer, f"unreadable: {fault}")


def _is_near(gold: str, answer: str, error: Fraction) -> bool:
    """Return whether one of the values that an answer states is a number within `error` of the gold's."""
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
    r"""Return whether two normalised texts say the same. The first rule that decides counts, so their order is meaning:

    1.  One text, blanks aside. An empty answer equals nothing.
    2.  An answer beyond a limit raises OverLimit, before anything evaluates it.
    3.  What says nothing is left out: outer parentheses, a condition behind the answer where the gold has none, and all but one of
        alternatives that are one value (`x+1 \text{ or } 1+x`).
    4.  `_compare_by_form`: what the gold's spelling alone shows it to be: a time, words, a number, a numeral in a base. Numbers
        come before lists and expressions, so that `6 \cdot 7` does not answer 42.
    5.  A condition on symbols, `x > 0`, is left out of both and kept for rule 13 (`_split_off_positive`).
    6.  Residue classes.  7. Sets of real numbers.  8. Rows of `cases`.  9. Matrices.
    10. Lists, tuples and unions: behind 6 to 9, which have commas too.
    11. Equations and inequalities, whole. One that only names its value, `f(x) = 2x`, is left to 12 and 13.
    12. Sums, products, integrals and limits but for the name of the bound variable.
    13. Expressions by value, then by `algebra`. Raises NeedsAlgebra without it.
    """
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
    same = _compare_by_form(gold, answer)
    if same is not None:
        return same
    # Rule 12 compares the answer with its condition, all others without
    answer_with_condition = answer
    gold, answer, positive = _split_off_positive(gold, answer)
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
    if _same_bound(value_of_gold(gold), stated_spellings(answer_with_condition)[0]):
        return True
    return any(_equal_by_algebra(value_of_gold(gold), value, algebra, positive) for value in stated_spellings(answer))


def _compare_by_form(gold: str, answer: str) -> bool | None:
    r"""Compare with a gold that its spelling alone shows to be a time, words, a number or a numeral in a base; None for others.

    In this order: a time is no ratio, and `\text{(B)}` no product. A word such as `east`, or letters side by side such as `AB`, may
    also be read as a product of symbols, so only an equal spelling decides there.
    """
    said = stated_spellings(answer)
    clock = _read_clock(gold)
    if clock:  # `05:00` is 5:00
        return clock == _read_clock(said[0])
    if _WORDED.fullmatch(gold):  # `\text{east}`, `(B)`
        option = _OPTION.match(answer)  # `(B) 42` and `B) 42` choose B
        return any(_letters_alone(gold) == _letters_alone(value) for value in (*said, option[1] if option else ""))
    numeral = parse_numeral(value_of_gold(gold))
    if numeral is not None:  # `42`, `x = 42`, `3.5 \text{ km}`
        return any(_is_numeral(numeral, gold, value) for value in said)
    if _WORD.fullmatch(gold) and _letters_alone(gold) == _letters_alone(answer):
        return True
    if _LETTERS_ALONE.fullmatch(gold) and gold == _without_braces(answer):
        return True
    if _BASED.fullmatch(gold):  # `AA_{16}`
        return any(_without_braces(gold) == _without_braces(value) for value in said)
    return None


def _split_off_positive(gold: str, answer: str) -> tuple[str, str, frozenset[str]]:
    """Return gold and answer without a condition such as `x > 0` behind the gold, and the symbols that it says to be positive.

    The answer may state the condition or not. Without one behind the gold, both stay as they are.
    """
    condition = _POSITIVE.search(gold) if ">" in gold else None
    if condition is None or condition.end() != len(gold):
        return gold, answer, frozenset()
    positive = frozenset(re.findall("[A-Za-z]", condition["symbols"]))
    told = _POSITIVE.search(answer)
    if told and told.end() == len(answer):
        answer = answer[: told.start()]
    return gold[: condition.start()], answer, positive


def _same_bound(gold: str, answer: str) -> bool:
    """Return whether both are one sum, product, integral or limit but for the variable's name; False decides nothing."""
    ours = read_bound(gold)
    theirs = read_bound(answer)
    if ours is None or theirs is None or ours.operator != theirs.operator:
        return False
    if bool(ours.end) != bool(theirs.end) or bool(ours.start) != bool(theirs.start):
        return False
    parts = [(ours.start, theirs.start), (ours.end, theirs.end), (ours.body, theirs.body)]
    return all(without_blanks(g) == without_blanks(a) or _same_value_of(g, a) for g, a in parts)


def _same_value_of(gold: str, answer: str) -> bool:
    """Return whether two texts are expressions of our grammar that have the same value."""
    ours = read_expression(gold)
    theirs = read_expression(answer)
    if ours is None or theirs is None:
        return False
    return same_value(ours, theirs) is True


def _compare_congruences(gold: str, answer: str, algebra: Algebra | None) -> bool | None:
    r"""Compare residue classes by modulus and residues, `n \equiv 1, 2 \pmod 5`.

    None where gold or answer is none; an answer with a modulus that is not read is wrong where the gold is read.
    """
    ours = read_congruence(gold)
    theirs = read_congruence(answer)
    if ours is None or theirs is None:
        return False if ours is not None and "\\pmod" in answer else None
    if ours.name and theirs.name and ours.name != theirs.name:
        return False
    if not _are_equal(ours.modulus, theirs.modulus, algebra):
        return False
    if len(ours.residues) != len(theirs.residues):  # who lists every residue answers nothing
        return False
    return _match_unordered(
        Items("", list(ours.residues), frozenset(",")), Items("", list(theirs.residues), frozenset(",")), algebra
    )


def _compare_sets(gold: str, answer: str, algebra: Algebra | None) -> bool | None:
    r"""Return True for one set of real numbers in two notations, `x \ge 1` and `[1, \infty)`; else None, which decides nothing."""
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
    """Return whether two intervals have the same ends and are closed at the same ones."""
    if ours.closed != theirs.closed:
        return False
    ends = ((ours.low, theirs.low), (ours.high, theirs.high))
    return all(
        without_blanks(g) == without_blanks(a) or ("infty" not in g + a and _are_equal(g, a, algebra)) for g, a in ends
    )


def _is_numeral(numeral: Numeral, gold: str, value: str) -> bool:
    """Return whether a value is the gold's number; a value that is no number must be the gold's spelling, blanks aside."""
    offered = parse_numeral(_without_parentheses(value))
    if offered is not None:
        return same_number(numeral, offered)
    return without_blanks(value) == without_blanks(value_of_gold(gold))


def _without_parentheses(text: str) -> str:
    """Return a text without parentheses around all of it: `(x+1)` is `x+1`; tuples, intervals and `(a)(b)` stay."""
    split = split_items(text)
    if split.brackets == "()" and len(split.items) == 1:
        return _without_parentheses(split.items[0])
    return text


def _read_clock(text: str) -> list[int]:
    """Return hours, minutes and seconds of a time of day, as of `05:00`; empty where the text is none."""
    match = _CLOCK.fullmatch(text)
    return [int(part or 0) for part in match.groups()] if match else []


def _letters_alone(text: str) -> str:
    r"""Return a word without brackets, blanks and points, in small letters: `\text{(B)}` is `b`."""
    return re.sub(r"[\s().:'\-]", "", re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)).lower()


def _without_braces(text: str) -> str:
    r"""Return a text without braces, blanks and the text command: `\text{AA}_{16}` is `AA_16`."""
    return re.sub(r"\\text|[{}\s]", "", text)


def _compare_items(gold: str, answer: str, algebra: Algebra | None) -> bool | None:
    """Compare lists item by item; None where neither side has two items.

    Lists without brackets and sets are compared in any order, tuples and intervals in theirs and with their brackets, of which
    round ones may be missing. A tuple may be answered by its named values in any order.
    """
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
    r"""Return the parts of a list, with `a \pm b` as two; rows of `cases` are parts where all are equations."""
    cases = _CASES.fullmatch(text)
    if cases:
        rows = [row.strip(" ,") for row in cases["rows"].split("\\\\") if row.strip(" ,")]
        if len(rows) > 1 and all(name_of(row) and "&" not in row for row in rows):
            return Items("", rows, frozenset(","))
    return expand_signs(split_items(text))


def _single_alternative(answer: str, algebra: Algebra | None) -> str:
    r"""Return the first of alternatives that all are one value, as `x+1 \text{ or } 1+x`; another answer as it is."""
    if "or" not in answer:
        return answer
    items = split_items(answer)
    if items.separators != {"or"} or items.brackets or len(items.items) > MAX_ITEMS:
        return answer
    if not items.items:  # the word alone parts nothing
        return answer
    first, *others = items.items
    return first if all(_are_equal(first, other, algebra) for other in others) else answer


def _compare_cases(gold: str, answer: str, algebra: Algebra | None) -> bool | None:
    """Compare the rows of `cases`, each a value and a condition, in any order; None where gold or answer has none."""
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
    """Return whether each text equals the one at its place."""
    return all(_are_equal(ours, theirs, algebra) for ours, theirs in zip(gold, answer, strict=True))


def _rows_of_cases(text: str) -> list[tuple[str, str]] | None:
    """Return the values and conditions of `cases`, the word `if` left out; None where the text is no such table."""
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
    """Compare matrices entry by entry; None where the gold is none. Their shapes must be the same, their brackets need not."""
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
    """Return the entries of a matrix or a column by rows, each times a factor before the matrix; None where the text is none."""
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
    """Return the text of a matrix's entry times the factor before the matrix: a fraction where the product is a number."""
    product = f"({factor})({entry})"
    expression = read_expression(product)
    value = value_without_symbols(expression) if expression is not None else None
    return f"{value.numerator}/{value.denominator}" if isinstance(value, Fraction) else product


def _match_unordered(gold: Items, answer: Items, algebra: Algebra | None) -> bool:
    """Return whether each item of the gold equals an item of the answer that no other has taken; the answer may have more.

    An answer's item that names itself, `y = 2`, matches only a gold's item of that name or of none.
    """
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
    """Compare equations up to a constant factor, and inequalities side by side.

    None where the gold is no relation, or only names a value that a later rule compares: `x = 5` and `f(x) = 2x` want a value.
    """
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
    """Return whether two equations have equal sides, straight or crossed; for equations that our grammar does not both read."""
    return _equal_in_pairs(ours, theirs, algebra) or _equal_in_pairs(ours, theirs[::-1], algebra)


def _symbols_of(side: Expression | None) -> frozenset[str]:
    """Return the symbols of an expression; none where it was not read."""
    return side.symbols if side else frozenset()


def check_limits(gold: str, answer: str) -> None:
    """Raise OverLimit for an answer that is too large to evaluate; large constructs that the gold has too are allowed."""
    if _LONG_DIGITS.search(answer):
        raise OverLimit("digits")
    if max(accumulate((c in "{([") - (c in "})]") for c in answer)) > MAX_DEPTH:
        raise OverLimit("depth")
    for name, pattern in _LARGE.items():
        if pattern.search(answer) and not pattern.search(gold):
            raise OverLimit(name)


def _equal_by_algebra(gold: str, answer: str, algebra: Algebra | None, positive: frozenset[str]) -> bool:
    r"""Return whether two texts are equal as expressions, at last by the algebra system. Raises NeedsAlgebra without it.

    Units must agree. Work left to do is no answer: `\int_0^1 x\,dx` for 1/2, `3+4` for 7, unless the gold has it too.
    """
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
    """Read an expression and multiply it with a factor, as of `3 \\text{ dozen}`; None where the text is no expression."""
    expression = read_expression(text)
    if expression is None or factor == 1:
        return expression
    return Expression(("*", ("number", factor), expression.root))


def _is_rounded(gold: Expression, answer: str) -> bool:
    """Return whether an answer is a decimal of six or more digits that the gold rounds or is cut to."""
    offered = parse_numeral(answer)
    if offered is None or not offered.places:
        return False
    value = value_without_symbols(gold)
    if value is None or len(str(abs(int(offered.value * 10**offered.places)))) < 6:
        return False
    return are_near(value, offered.value, Fraction(1, 10**offered.places))


def same_answer(left: str, right: str) -> bool:
    """Return whether two answers are one vote: by our rules alone, so that what only algebra could tell counts as two."""
    try:
        return says_the_same(left, right)
    except (NeedsAlgebra, OverLimit):
        return False
