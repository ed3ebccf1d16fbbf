"""What an answer or a gold states: its value without a label, a name, a chain of equal steps or a condition behind it."""

from __future__ import annotations

import re
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache

from harness.verification.expression import OverLimit, read_expression
from harness.verification.notation import split_items
from harness.verification.numerals import is_label, parse_numeral, split_unit, without_adverb
from harness.verification.values import are_near, same_value, value_without_symbols

__all__ = ["has_qualifier", "name_of", "split_relation", "stated_spellings", "value_of_gold", "without_qualifier"]

_LABEL = re.compile(r"\\text\s*\{(?P<words>[^{}]*)\}\s*(?P<mark>[:=]?)\s*(?=\S)")
_SAYS_SO = re.compile(
    r"(?:[:=]|\b(?:is|are|be|equals|was|at|either|both|and|so|thus|hence|therefore))[\s,]*$|^\s*\(?[A-H]\)\s*$",
    re.IGNORECASE,
)
_QUANTITIES = frozenset(
    {
        "answer", "result", "solution", "total", "area", "volume", "perimeter", "circumference", "length", "width", "height",
        "depth", "distance", "speed", "time", "age", "day", "year", "radius", "diameter", "probability", "value", "angle", "cost",
        "price", "mass", "weight",
    }
)  # fmt: skip
_MEMBER = re.compile(r"(?:[A-Za-z]|\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])+\s*\))\s*\\in(?![a-zA-Z])\s*(?=\S)")
_QUALIFIER = re.compile(
    r"\s*(?:,|\\text\s*\{\s*,?|(?<=\s))\s*(?:for\s+(?:all|any|every|each|some)|where|with\s+any)\b.*$"
    r"|\s*,?\s*\(?\s*\\forall(?![a-zA-Z]).*$"
    r"|\s+\(\s*[A-Za-z]\s*(?:\\(?:geq?|leq?|neq?|in)(?![a-zA-Z])|[<>]|\\in(?![a-zA-Z]))[^()]*\)$",
    re.DOTALL,
)
_RELATION = re.compile(r"\\(?:approx|equiv|leq?|geq?|lt|gt|neq?|sim|simeq|to)(?![a-zA-Z])|\\ne(?![a-zA-Z])|[=<>]")
_SAME = {r"\lt": "<", r"\gt": ">", r"\leq": r"\le", r"\geq": r"\ge", r"\simeq": r"\approx", r"\sim": r"\approx"}
_TO_DO = re.compile(r"\\(?:sum|prod|int|lim|max|min|gcd|det)(?![a-zA-Z])")
_ARGUMENT = re.compile(r"_\s*(?:\{[^{}]*\}|\w)|\\[a-zA-Z]+|[A-Za-z]'*\s*(?:\^\s*\{?\s*-1\s*\}?\s*)?\([^()]*\)")


@lru_cache(maxsize=16_384)
def stated_spellings(text: str) -> tuple[str, ...]:
    """Spellings of an answer's one value; else the text."""
    text = without_adverb(text)
    label = _LABEL.match(text)
    if label and _names_what_follows(label):
        text = text[label.end() :]
    member = _MEMBER.match(text)
    if member:
        return (text[member.end() :],)
    sides, signs = split_relation(text)
    if not signs or set(signs) - {"=", r"\approx", r"\equiv"} or not sides[-1]:
        return (text,)
    split = split_items(text)
    if all(_value_of_sum(side) is not None for side in sides if _GROUPING.search(side)) and _GROUPING.search(text):
        split = split_items(_GROUPING.sub("", text))
    grouped = split.separators == {","} and "," not in "".join(sides[:-1]) and parse_numeral(sides[-1]) is not None
    if len(split.items) > 1 and not grouped:  # a list, if commas do not group digits
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
    if not all(_sides_agree(value, last, rounded) for value in values[:-1]):
        return (text,)
    exact = values[0] if rounded and len(values) > 1 and parse_decimal(values[0]) is None else last
    return (last,) if exact == last else (last, exact)


def _names_what_follows(label: re.Match[str]) -> bool:
    r"""`\text{Area} = 5` and `\text{the value is } 5` are 5; `\text{multiples of } 5` is not, whatever the words are."""
    words = label["words"]
    says_so = bool(label["mark"]) or _SAYS_SO.search(words) is not None or words.strip().lower() in _QUANTITIES
    return says_so and is_label(words)


def has_qualifier(text: str) -> bool:
    """Whether a condition stands behind a value."""
    return _QUALIFIER.search(text) is not None


def without_qualifier(text: str) -> str:
    r"""Without what says for which values a formula holds, `\text{for all } x`; a condition by `if` stays, as it may choose."""
    found = _QUALIFIER.search(text)
    if found is None or not found.start():
        return text
    return text[: found.start()].strip(" ,")


def parse_decimal(text: str) -> int | None:
    numeral = parse_numeral(text)
    return numeral.places if numeral else None


def is_name(text: str) -> bool:
    r"""Whether a left side names a quantity (`x`, `f(2)`, `\text{Area}`, nothing)."""
    bare = _ARGUMENT.sub("", re.sub(r"\\text\s*\{([^{}]*)\}", lambda m: "" if is_label(m[1]) else m[0], text))
    if re.search(r"\d", bare) or ("\\text" in text and re.search(r"\\text\s*\{[^{}]*\}", bare)):
        return False
    expression = read_expression(text)
    return expression is None or bool(expression.symbols) or text in ("e", "i")


def name_of(item: str) -> str:
    """`x` in `x = 5`; else empty."""
    sides, signs = split_relation(item)
    if signs == ["="] and is_name(sides[0]):
        return re.sub(r"\s", "", sides[0])
    return ""


def split_relation(text: str) -> tuple[list[str], list[str]]:
    """Sides and signs at the outermost level."""
    sides = []
    signs = []
    start = 0
    for match in _RELATION.finditer(text):
        before = text[: match.start()]
        if before.count("{") - before.count("\\{") > before.count("}") - before.count("\\}"):
            continue
        sides.append(text[start : match.start()].strip())
        signs.append(_SAME.get(match.group(), match.group()))
        start = match.end()
    return [*sides, text[start:].strip()], signs


def _sides_agree(left: str, right: str, rounded: bool) -> bool:
    """Whether two sides of a chain of equations have one value, the last one perhaps rounded."""
    if _TO_DO.search(left) or is_name(left):
        return True
    sum_of_numbers = _value_of_sum(left)
    if sum_of_numbers:
        end = parse_numeral(right)
        return end is not None and sum_of_numbers == end.value
    (ours, phrase) = split_unit(_without_words(left))
    (theirs, _) = split_unit(_without_words(right))
    if phrase.factor != 1:
        return False
    first = read_expression(ours)
    last = read_expression(theirs)
    if first is None or last is None:
        return re.sub(r"\s", "", left) == re.sub(r"\s", "", right)
    if first.symbols or last.symbols:
        if first.symbols == last.symbols:
            with suppress(OverLimit):
                return same_value(last, first) is True
        return last.symbols < first.symbols  # a formula before its value
    value = value_without_symbols(first)
    end = value_without_symbols(last)
    if value is None or end is None:
        return False
    places = parse_decimal(theirs)
    rounded = rounded and places is not None and parse_decimal(ours) is None
    return are_near(value, end) or (rounded and are_near(value, end, Fraction(1, 2 * 10 ** (places or 0))))


_GROUPING = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_CURRENCY = re.compile(r"[$€£¥](?=\s*[\d.])")


def _without_words(text: str) -> str:
    """A number without the noun behind it; another text as it is."""
    numeral = parse_numeral(text)
    plain = re.match(r"[-+]?[\d,]*\.?\d+", text)
    if numeral is not None and plain is not None and not numeral.unit:
        return plain.group()
    return text


def _value_of_sum(text: str) -> Fraction | None:
    """Of prices or of numbers in groups of three that are added or subtracted, `$1,050 - $50`; None for another text."""
    if not (_CURRENCY.search(text) or _GROUPING.search(text)):
        return None
    expression = read_expression(_GROUPING.sub("", _CURRENCY.sub("", text)))
    value = value_without_symbols(expression) if expression is not None else None
    return value if isinstance(value, Fraction) else None


def value_of_gold(gold: str) -> str:
    """An equation's right side where its left side only names it (`f(x)`, `x`, an area), else the whole gold."""
    sides, signs = split_relation(gold)
    if signs and signs[0] == "=" and not _is_one_name(sides[0], sides[-1]):
        return gold
    return stated_spellings(gold)[0]


_ONE_NAME = re.compile(
    r"(?:\\(?:angle|triangle|overline|vec|hat|bar|mathbf|mathcal|mathbb)\s*)*\{?(?:\\[a-zA-Z]+|[A-Za-z])\}?'*"
    r"(?:\s*_\s*(?:\{[^{}]*\}|\w|\\[a-zA-Z]+))?(?:\s*\^\s*\{?\s*-1\s*\}?)?'*(?:\s*\([^()]*\))?"
)


def _is_one_name(left: str, right: str) -> bool:
    """Whether a left side is a single name; letters side by side name a segment where the right side is a number."""
    if not left or "\\text" in left or _ONE_NAME.fullmatch(left):
        return True
    expression = read_expression(right)
    measured = expression is not None and not expression.symbols
    return (
        measured
        and re.fullmatch(r"(?:\\angle\s*)?[|\\a-z{]*(?:[A-Z]\s*(?:_\s*\{?\d\}?)?'*\s*)+[|}]*", left) is not None
    )
