"""The value that an answer states: `x = 5`, `f(2) = 5`, `6 \\cdot 7 = 42`, `\\sqrt{2} \\approx 1.414`, `\\text{Area: } 5`.

A chain of equal signs states its last side, provided that what stands before is a name or has the same value: `41 = 42` offers
two values and states neither.
"""

from __future__ import annotations

import re
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache

from harness.verification.expression import TooLarge, near, number, read, same_value
from harness.verification.items import split_items
from harness.verification.numerals import parse_numeral, split_unit
from harness.verification.units import is_label, without_adverb

_LABEL = re.compile(r"\\text\s*\{([^{}]*)\}\s*[:=]?\s*(?=\S)")
_MEMBER = re.compile(r"[A-Za-z]\s*\\in(?![a-zA-Z])\s*")
_RELATION = re.compile(r"\\(?:approx|equiv|leq?|geq?|lt|gt|neq?|sim|simeq|to)(?![a-zA-Z])|\\ne(?![a-zA-Z])|[=<>]")
_SAME = {r"\lt": "<", r"\gt": ">", r"\leq": r"\le", r"\geq": r"\ge", r"\simeq": r"\approx", r"\sim": r"\approx"}
_TO_DO = re.compile(r"\\(?:sum|prod|int|lim|max|min|gcd|det)(?![a-zA-Z])")
_ARGUMENT = re.compile(r"_\s*(?:\{[^{}]*\}|\w)|\\[a-zA-Z]+|[A-Za-z]'*\s*(?:\^\s*\{?\s*-1\s*\}?\s*)?\([^()]*\)")


@lru_cache(maxsize=16_384)
def stated(text: str) -> tuple[str, ...]:
    """Spellings of the one value that the answer states; the text itself where it states none or is a list."""
    text = without_adverb(text)
    label = _LABEL.match(text)
    if label and is_label(label[1]):
        text = text[label.end() :]
    if member := _MEMBER.match(text):
        return (text[member.end() :],)
    sides, signs = relation(text)
    if not signs or set(signs) - {"=", r"\approx", r"\equiv"} or not sides[-1]:
        return (text,)
    split = split_items(text)
    grouped = split.separators == {","} and "," not in "".join(sides[:-1]) and parse_numeral(sides[-1]) is not None
    if len(split.items) > 1 and not grouped:  # a list, where the commas do not group the last side's digits
        return (text,)
    if is_name(sides[0]):
        values = sides[1:]
    elif re.fullmatch(r"[A-Za-z]", sides[-1]) and len(sides) == 2 and re.search(r"\d", sides[0]):
        values = sides[:1]
    elif re.search(r"[A-Za-z]", re.sub(r"\\[a-zA-Z]+", "", sides[0])) and not _TO_DO.search(sides[0]):
        return (text,)
    else:
        values = sides
    last = without_adverb(values[-1])
    rounded = r"\approx" in signs
    if not all(_agree(value, last, rounded) for value in values[:-1]):
        return (text,)
    exact = values[0] if rounded and len(values) > 1 and parse_decimal(values[0]) is None else last
    return (last,) if exact == last else (last, exact)


def parse_decimal(text: str) -> int | None:
    """Decimal places of a decimal or an integer; None for anything else."""
    numeral = parse_numeral(text)
    return numeral.places if numeral else None


def is_name(text: str) -> bool:
    r"""Whether the left side names a quantity (`x`, `f(2)`, `AB + CD`, `\text{Area}`, nothing) instead of having a value."""
    bare = _ARGUMENT.sub("", re.sub(r"\\text\s*\{([^{}]*)\}", lambda m: "" if is_label(m[1]) else m[0], text))
    if re.search(r"\d", bare) or ("\\text" in text and re.search(r"\\text\s*\{[^{}]*\}", bare)):
        return False
    expression = read(text)
    return expression is None or bool(expression.symbols) or text in ("e", "i")


def name_of(item: str) -> str:
    """What an item calls its value: `x` in `x = 5`; empty where it does not."""
    sides, signs = relation(item)
    return re.sub(r"\s", "", sides[0]) if signs == ["="] and is_name(sides[0]) else ""


def relation(text: str) -> tuple[list[str], list[str]]:
    """Sides and relation signs of a chain at the outermost level; one side and no sign where there is none."""
    sides, signs, start = [], [], 0
    for match in _RELATION.finditer(text):
        before = text[: match.start()]
        if before.count("{") - before.count("\\{") > before.count("}") - before.count("\\}"):
            continue
        sides.append(text[start : match.start()].strip())
        signs.append(_SAME.get(match.group(), match.group()))
        start = match.end()
    return [*sides, text[start:].strip()], signs


def _agree(left: str, right: str, rounded: bool) -> bool:
    """Whether two sides of a chain have the same value; `rounded`: the last may be a decimal that the other rounds to."""
    if _TO_DO.search(left) or is_name(left):
        return True
    (ours, phrase), (theirs, _) = split_unit(left), split_unit(right)
    if phrase.factor != 1:
        return False
    first, last = read(ours), read(theirs)
    if first is None or last is None:
        return re.sub(r"\s", "", left) == re.sub(r"\s", "", right)
    if first.symbols or last.symbols:
        if first.symbols == last.symbols:
            with suppress(TooLarge):
                return same_value(last, first) is True
        return last.symbols < first.symbols  # a formula before its value
    value, end = number(first), number(last)
    if value is None or end is None:
        return False
    places = parse_decimal(theirs)
    rounded = rounded and places is not None and parse_decimal(ours) is None
    return near(value, end) or (rounded and near(value, end, Fraction(1, 2 * 10 ** (places or 0))))
