"""Whether an answer means the same as the gold: our rules first, algebra only for what they leave open.

`compare` is pure string work and exact arithmetic. Two expressions that need a computer algebra system are handed to
`algebra`; without one, `NeedsAlgebra` is raised and the pool decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from harness.verification.normal import compact, normalise
from harness.verification.numerals import MAX_DIGITS, Numeral, parse_numeral, same_number, split_unit

Algebra = Callable[[str, str], bool]
MAX_ANSWER = 2_000
MAX_DEPTH = 24
MAX_ITEMS = 40

_EVALUATE = re.compile(
    r"\\(?:sum|prod|int|lim|binom|dbinom|tbinom|bigcup|bigcap|coprod|log|gcd|lcm|max|min)(?![a-zA-Z])|!"
)
_ARITHMETIC = re.compile(
    r"(?:^|(?<=[({\[=+,-]))\s*-?\d+(?:\.\d+)?\s*(?:\+|-|\\times|\\cdot|\*)\s*\d+(?:\.\d+)?(?=\s*(?:$|[)}\],=+-]))"
)
_UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_LONG_DIGITS = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")
_BIG_EXPONENT = re.compile(r"(?:\^|\*\*)\s*\{?\s*[-+(]*\s*\d{4,}")
_TOWER = re.compile(r"(?:\^|\*\*)[{(\s]*-?\d+[)}\s]*(?:\^|\*\*)[{(\s]*-?\d")
_BIG_FACTORIAL = re.compile(r"\d{4,}\s*\}?\)?\s*!|\)\s*!|!\s*\)?\s*!")
_BIG_BINOMIAL = re.compile(r"\\[dt]?binom\s*\{[^{}]*\d{4,}|\\(?:sum|prod|int)\b")
_CLOCK = re.compile(r"(\d{1,4})\s*:\s*(\d{1,4})(?:\s*:\s*(\d{1,4}))?")
_WORDED = re.compile(r"\\text\s*\{[^{}]*\}|\([A-H]\)|[A-H]")
_WORD = re.compile(r"[A-Za-z][A-Za-z '\-]{2,}")
_LEADING_TEXT = re.compile(r"\\text\s*\{[^{}]*\}\s*[:=]?\s*(?=\S)")
_MATRIX = re.compile(r"\\begin\s*\{[pbB]?matrix\}(.*)\\end\s*\{[pbB]?matrix\}", re.DOTALL)
_MEMBER = re.compile(r"[A-Za-z]\s*\\in(?![a-zA-Z])\s*")
_OPENERS = {"(": ")", "[": "]", r"\{": r"\}", r"\langle": r"\rangle"}


class NeedsAlgebra(Exception):
    """The rules leave this pair to a computer algebra system."""


class OverLimit(Exception):
    """The answer is larger than what is ever evaluated; it counts as wrong."""


class Unreadable(Exception):
    """The answer makes a parser or the comparison fail; it counts as wrong, or its author would escape a penalty."""


def compare(gold: str, answer: str, algebra: Algebra | None = None) -> bool:
    """True when `answer` is equivalent to `gold`, both as extracted (no box around them).

    Raises
    ------
    Unreadable
        From `algebra`.
    OverLimit
        The answer exceeds the limits on length, digits, depth or exponents, and is not the gold's own spelling.
    NeedsAlgebra
        `algebra` is None and the pair cannot be decided without it.
    """
    if answer.isdecimal() and gold.isdecimal() and answer.isascii():
        if len(answer) > MAX_DIGITS:
            raise OverLimit("digits")
        return int(answer) == int(gold)
    if len(answer) > max(MAX_ANSWER, 2 * len(gold)):
        raise OverLimit("length")
    if _UNREADABLE.search(answer):
        return False
    return _equal(_normal_gold(gold), normalise(answer), algebra)


@lru_cache(maxsize=8_192)
def _normal_gold(gold: str) -> str:
    return normalise(gold)


@lru_cache(maxsize=8_192)
def _gold_numeral(gold: str) -> Numeral | None:
    return parse_numeral(_value_side(gold))


def _equal(gold: str, answer: str, algebra: Algebra | None) -> bool:
    if not answer:
        return False
    if compact(gold) == compact(answer):
        return True
    check_limits(gold, answer)
    if clock := _CLOCK.fullmatch(gold):
        told = _CLOCK.fullmatch(answer)
        return told is not None and [int(part or 0) for part in told.groups()] == [
            int(part or 0) for part in clock.groups()
        ]
    if _WORDED.fullmatch(gold):
        return _letters(gold) == _letters(_value_side(answer))
    gold, answer = _without_parentheses(gold), _without_parentheses(answer)
    number = _gold_numeral(gold)
    if number is not None:
        return _equals_numeral(gold, number, answer)
    if _WORD.fullmatch(gold) and _letters(gold) == _letters(answer):
        return True
    structured = _compare_matrices(gold, answer, algebra)
    if structured is None:
        structured = _compare_items(gold, answer, algebra)
    if structured is not None:
        return structured
    return _algebraic(gold, answer, algebra)


def _equals_numeral(gold: str, number: Numeral, answer: str) -> bool:
    stated = parse_numeral(_value_side(answer))
    if stated is not None:
        return same_number(number, stated)
    # `\frac{-1}{2}x`-like answers, lists and anything left to evaluate are not numerals
    return compact(_value_side(answer)) == compact(_value_side(gold))


def _value_side(text: str) -> str:
    """The value of `x = 5`, `f(2) = 5`, `6 \\cdot 7 = 42`, `x \\approx 5`: an equation solved for something without digits of
    its own. `x - 2 = 0` states no value and is returned whole."""
    text = _LEADING_TEXT.sub("", text, count=1) if text.startswith("\\text") else text
    if member := _MEMBER.match(text):
        return text[member.end() :]
    left, relation, right = _split_relation(text)
    if not relation:
        return text
    bare = re.sub(r"_\s*(?:\{[^{}]*\}|\w)|\\[a-zA-Z]+|[A-Za-z]'?\s*\([^()]*\)", "", left)
    solved = not re.search(r"\d", bare) or not re.search(r"[A-Za-z]", re.sub(r"\\[a-zA-Z]+", "", left))
    return right if solved and right else text


def _split_relation(text: str) -> tuple[str, str, str]:
    parts = re.split(r"(?<![<>!\\])(?:=|\\approx|\\equiv(?!\w))", text)
    if len(parts) < 2 or "," in text or re.search(r"[<>]|\\(?:le|ge|lt|gt|neq?)(?![a-zA-Z])", text):
        return text, "", ""
    return parts[0].strip(), "=", parts[-1].strip()


def _without_parentheses(text: str) -> str:
    """`(x+1)` is `x+1`; a tuple, an interval and `(a)(b)` stay."""
    brackets, items = split_items(text)
    return _without_parentheses(items[0]) if brackets == "()" and len(items) == 1 else text


def _letters(text: str) -> str:
    """An answer in words (`\\text{east}`, `(B)`, `1:03 PM`) without wrappers, spaces, punctuation and case."""
    return re.sub(r"[\s().:'\-]", "", re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)).lower()


def split_items(text: str) -> tuple[str, list[str]]:
    """(brackets, items) of a list, tuple, set or interval; brackets are empty for a bare list."""
    brackets, body = "", text
    for opener in _OPENERS:
        if text.startswith(opener):
            closer = next((c for c in (")", "]", r"\}", r"\rangle") if text.endswith(c)), None)
            if closer and _closes_at_end(text, len(opener), len(text) - len(closer)):
                brackets, body = opener + closer, text[len(opener) : -len(closer)]
                break
    items, depth, start, position = [], 0, 0, 0
    pattern = re.compile(r"\\text\s*\{\s*,?\s*(?:and|or)\s*\}|\\[{}]|[()\[\]{},;]|(?<=\s)(?:and|or)(?=\s)")
    while match := pattern.search(body, position):
        token = match.group()
        position = match.end()
        if token in ("(", "[", "{", "\\{"):
            depth += 1
        elif token in (")", "]", "}", "\\}"):
            depth -= 1
        elif depth == 0:
            items.append(body[start : match.start()].strip())
            start = position
    items.append(body[start:].strip())
    return brackets, [item for item in items if item]


def _closes_at_end(text: str, start: int, end: int) -> bool:
    depth = 1
    for match in re.finditer(r"\\[{}]|[()\[\]]|\\[lr]angle", text[start:end]):
        depth += 1 if match.group() in ("(", "[", "\\{", "\\langle") else -1
        if depth == 0:
            return False
    return True


def _compare_items(gold: str, answer: str, algebra: Algebra | None) -> bool | None:
    """Lists, tuples, sets and intervals item by item; None when neither side is one."""
    gold_brackets, gold_items = split_items(_value_side(gold))
    answer_brackets, answer_items = split_items(_value_side(answer))
    if len(gold_items) < 2 and len(answer_items) < 2:
        return None
    if (
        "\\pm" in gold + answer
        or "\\cup" in gold + answer
        or "\\begin" in gold + answer
        or ("\\infty" in gold and not gold_brackets)
    ):
        return None
    if len(gold_items) != len(answer_items) or len(gold_items) > MAX_ITEMS:
        return False
    if gold_brackets in ("", r"\{\}"):
        return answer_brackets in ("", r"\{\}", "()") and _match_unordered(gold_items, answer_items, algebra)
    loose = gold_brackets == "()" and answer_brackets == ""
    if gold_brackets != answer_brackets and not loose:
        return False
    return all(_equal(g, a, algebra) for g, a in zip(gold_items, answer_items, strict=True))


def _compare_matrices(gold: str, answer: str, algebra: Algebra | None) -> bool | None:
    """Entry by entry; None when the gold is no matrix."""
    rows, stated = _matrix(_value_side(gold)), _matrix(_value_side(answer))
    if rows is None:
        return None
    if stated is None or [len(row) for row in rows] != [len(row) for row in stated]:
        return False
    entries = [(g, a) for left, right in zip(rows, stated, strict=True) for g, a in zip(left, right, strict=True)]
    return len(entries) <= MAX_ITEMS and all(_equal(g, a, algebra) for g, a in entries)


def _matrix(text: str) -> list[list[str]] | None:
    match = _MATRIX.fullmatch(text)
    if match is None or "\\begin" in match.group(1):
        return None
    rows = [row for row in match.group(1).split("\\\\") if row.strip()]
    return [[entry.strip() for entry in row.split("&")] for row in rows]


def _match_unordered(gold: list[str], answer: list[str], algebra: Algebra | None) -> bool:
    left = list(answer)
    for item in gold:
        found = next((i for i, candidate in enumerate(left) if _equal(item, candidate, algebra)), None)
        if found is None:
            return False
        del left[found]
    return True


def check_limits(gold: str, answer: str) -> None:
    """Refuse what would take a computer algebra system hours; the gold's own constructs are allowed.

    Raises
    ------
    OverLimit
    """
    if _LONG_DIGITS.search(answer):
        raise OverLimit("digits")
    depth = deepest = 0
    for character in answer:
        if character in "{([":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "})]":
            depth -= 1
    if deepest > MAX_DEPTH:
        raise OverLimit("depth")
    for name, pattern in (
        ("exponent", _BIG_EXPONENT),
        ("tower", _TOWER),
        ("factorial", _BIG_FACTORIAL),
        ("size", _BIG_BINOMIAL),
    ):
        if pattern.search(answer) and not pattern.search(gold):
            raise OverLimit(name)


def _algebraic(gold: str, answer: str, algebra: Algebra | None) -> bool:
    gold_value, gold_unit = split_unit(_value_side(gold))
    answer_value, answer_unit = split_unit(_value_side(answer))
    if gold_unit and answer_unit and gold_unit != answer_unit:
        return False
    if "=" in answer_value and "=" not in gold_value:
        return False
    gold_operators = set(_EVALUATE.findall(gold_value))
    if set(_EVALUATE.findall(answer_value)) - gold_operators:
        return False
    if _ARITHMETIC.search(answer_value) and not _ARITHMETIC.search(gold_value):
        return False
    if compact(gold_value) == compact(answer_value):
        return True
    if algebra is None:
        raise NeedsAlgebra
    return algebra(gold_value, answer_value)


def same_answer(left: str, right: str) -> bool:
    """Whether two answers are the same by strings and exact numbers alone, for votes; symmetric enough, and never slow."""
    try:
        return compare(left, right)
    except (NeedsAlgebra, OverLimit):
        return False
