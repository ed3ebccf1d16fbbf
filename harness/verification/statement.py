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
    r"""Return the spellings of the one value that an answer states; where it states none, the text is its only spelling.

    A spelling is a way of writing the value that may be compared with the gold's. There is one, but of a rounded value there are
    two: `\frac{22}{7} \approx 3.14` states `3.14` and `\frac{22}{7}`, and answers a gold of either.
    """
    text = _drop_label(without_adverb(text))
    member = _MEMBER.match(text)
    if member:  # `x \in [0, 1]` states `[0, 1]`
        return (text[member.end() :],)
    sides, signs = split_relation(text)
    if not signs:  # `7`
        return (text,)
    if set(signs) - {"=", r"\approx", r"\equiv"} or not sides[-1]:  # `x < 2` has no single value, `x =` none at all
        return (text,)
    if _is_list_of_equations(text, sides):  # `x = 1, y = 2`
        return (text,)
    values = _values_of_chain(sides)
    if not values:
        return (text,)
    return _spellings_of_value(values, rounded=r"\approx" in signs) or (text,)


def _drop_label(text: str) -> str:
    r"""Return a text without the words before its value: `\text{Area} = 5` is `5`."""
    label = _LABEL.match(text)
    if label and _names_what_follows(label):
        return text[label.end() :]
    return text


def _is_list_of_equations(text: str, sides: list[str]) -> bool:
    """Return whether commas or words part a text with equality signs into several statements.

    Commas that group digits part nothing: neither in sums (`$1,050 - $50 = $1,000`) nor in a number behind the last sign.
    """
    split = split_items(text)
    if _GROUPING.search(text):
        with_grouping = [side for side in sides if _GROUPING.search(side)]
        if all(_value_of_sum(side) is not None for side in with_grouping):
            split = split_items(_GROUPING.sub("", text))
    if len(split.items) <= 1:
        return False
    only_behind_last_sign = split.separators == {","} and "," not in "".join(sides[:-1])
    return not (only_behind_last_sign and parse_numeral(sides[-1]) is not None)


def _values_of_chain(sides: list[str]) -> list[str]:
    r"""Return the sides of a chain of equalities that must all be the value; none where the chain is an equation to be solved."""
    if is_name(sides[0]):  # `x = 2`, `f(2) = 1+3 = 4`
        return sides[1:]
    if len(sides) == 2 and re.fullmatch(r"[A-Za-z]", sides[-1]) and re.search(r"\d", sides[0]):  # `2 = x`
        return sides[:1]
    letters = re.search(r"[A-Za-z]", re.sub(r"\\[a-zA-Z]+", "", sides[0]))
    if letters and not _TO_DO.search(sides[0]):  # `2x = 4`; in `\sum_{k=1}^{3} k = 6` the letter is bound
        return []
    return sides  # `3+4 = 7`


def _spellings_of_value(values: list[str], rounded: bool) -> tuple[str, ...] | None:
    r"""Return the last of equal values, and behind it the first where that is the exact one of a rounded value.

    None where they are not equal: `41 = 42` is a contradiction. rounded: whether an approximate sign stands in the chain.
    """
    last = without_adverb(values[-1])
    if not all(_sides_agree(value, last, rounded) for value in values[:-1]):
        return None
    is_exact = rounded and len(values) > 1 and count_decimal_places(values[0]) is None
    exact = values[0] if is_exact else last
    return (last,) if exact == last else (last, exact)


def _names_what_follows(label: re.Match[str]) -> bool:
    r"""Return whether a label says that what follows is its value: `\text{Area} = 5` and `\text{the value is } 5` are 5.

    `\text{multiples of } 5` is not, whatever the words are.
    """
    words = label["words"]
    says_so = bool(label["mark"]) or _SAYS_SO.search(words) is not None or words.strip().lower() in _QUANTITIES
    return says_so and is_label(words)


def has_qualifier(text: str) -> bool:
    r"""Return whether a condition stands behind a value: `3n \text{ where } n > 2`."""
    return _QUALIFIER.search(text) is not None


def without_qualifier(text: str) -> str:
    r"""Return a text without what says for which values it holds, as `\text{for all } x`; a condition by `if` stays, as it may
    choose between values."""
    found = _QUALIFIER.search(text)
    if found is None or not found.start():
        return text
    return text[: found.start()].strip(" ,")


def count_decimal_places(text: str) -> int | None:
    """Return how many digits a decimal has behind its point; None where the text is no decimal or whole number."""
    numeral = parse_numeral(text)
    return numeral.places if numeral else None


def is_name(text: str) -> bool:
    r"""Return whether a left side names a quantity, as `x`, `f(2)`, `\text{Area}` or nothing at all; `2x` and `x_1 + 3` do not."""
    bare = _ARGUMENT.sub("", re.sub(r"\\text\s*\{([^{}]*)\}", lambda m: "" if is_label(m[1]) else m[0], text))
    if re.search(r"\d", bare) or ("\\text" in text and re.search(r"\\text\s*\{[^{}]*\}", bare)):
        return False
    expression = read_expression(text)
    return expression is None or bool(expression.symbols) or text in ("e", "i")


def name_of(item: str) -> str:
    """Return the name that a text gives its value, `x` of `x = 5`; empty where it names none."""
    sides, signs = split_relation(item)
    if signs == ["="] and is_name(sides[0]):
        return re.sub(r"\s", "", sides[0])
    return ""


def split_relation(text: str) -> tuple[list[str], list[str]]:
    r"""Return the sides of a relation and the signs between them, but for signs within braces: `1 \le x < 2` has three and two."""
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
    r"""Return whether a side of a chain may have the value of the last one, which may be rounded.

    Sums to do (`_TO_DO`) and names are believed, and a formula before what has fewer symbols: `\pi r^2` in `A = \pi r^2 = 9\pi`.
    """
    if _TO_DO.search(left) or is_name(left):
        return True
    sum_of_numbers = _value_of_sum(left)
    if sum_of_numbers:
        end = parse_numeral(right)
        return end is not None and sum_of_numbers == end.value
    ours, phrase = split_unit(_without_words(left))
    theirs, _ = split_unit(_without_words(right))
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
    places = count_decimal_places(theirs)
    rounded = rounded and places is not None and count_decimal_places(ours) is None
    return are_near(value, end) or (rounded and are_near(value, end, Fraction(1, 2 * 10 ** (places or 0))))


_GROUPING = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_CURRENCY = re.compile(r"[$€£¥](?=\s*[\d.])")


def _without_words(text: str) -> str:
    """Return a number without the noun behind it, `5` of `5 pears`; a number with a known unit and other texts stay."""
    numeral = parse_numeral(text)
    plain = re.match(r"[-+]?[\d,]*\.?\d+", text)
    if numeral is not None and plain is not None and not numeral.unit:
        return plain.group()
    return text


def _value_of_sum(text: str) -> Fraction | None:
    """Return the value of a sum of prices or of numbers in groups of three, as `$1,050 - $50`; None for another text."""
    if not (_CURRENCY.search(text) or _GROUPING.search(text)):
        return None
    expression = read_expression(_GROUPING.sub("", _CURRENCY.sub("", text)))
    value = value_without_symbols(expression) if expression is not None else None
    return value if isinstance(value, Fraction) else None


def value_of_gold(gold: str) -> str:
    """Return the right side of a gold whose left side only names it (`f(x) = 2x`, `x = 5`, `MN = 8`), else the whole gold."""
    sides, signs = split_relation(gold)
    if signs and signs[0] == "=" and not _is_one_name(sides[0], sides[-1]):
        return gold
    return stated_spellings(gold)[0]


_ONE_NAME = re.compile(
    r"(?:\\(?:angle|triangle|overline|vec|hat|bar|mathbf|mathcal|mathbb)\s*)*\{?(?:\\[a-zA-Z]+|[A-Za-z])\}?'*"
    r"(?:\s*_\s*(?:\{[^{}]*\}|\w|\\[a-zA-Z]+))?(?:\s*\^\s*\{?\s*-1\s*\}?)?'*(?:\s*\([^()]*\))?"
)


def _is_one_name(left: str, right: str) -> bool:
    """Return whether a left side is a single name; letters side by side name a segment where the right side is a number."""
    if not left or "\\text" in left or _ONE_NAME.fullmatch(left):
        return True
    expression = read_expression(right)
    measured = expression is not None and not expression.symbols
    return (
        measured
        and re.fullmatch(r"(?:\\angle\s*)?[|\\a-z{]*(?:[A-Z]\s*(?:_\s*\{?\d\}?)?'*\s*)+[|}]*", left) is not None
    )
