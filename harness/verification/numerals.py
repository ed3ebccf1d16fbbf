"""Numbers as people write them, decided exactly and without a computer algebra system.

A numeral is an integer, decimal, fraction, mixed number, power of integers or scientific notation, with an optional sign,
currency, percent sign, degree sign, unit or base subscript. A gold that is a numeral wants a numeral: `40+2` or
``\\sum ...`` is not an answer to 42, because a policy rewarded for it would learn to restate the question.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_DIGITS = 400
_MAX_EXPONENT = 4_000

_UNITS = {
    "cm": "cm centimeter centimetre", "m": "m meter metre", "km": "km kilometer kilometre", "mm": "mm millimeter millimetre",
    "in": "in inch inches", "ft": "ft foot feet", "yd": "yd yard", "mi": "mi mile", "s": "s sec second", "min": "min minute",
    "h": "h hr hour", "day": "day", "week": "week", "month": "month", "year": "year yr", "g": "g gram", "kg": "kg kilogram",
    "mg": "mg milligram", "lb": "lb pound", "degree": "degree deg", "dollar": "dollar usd", "cent": "cent", "pi": "pi",
    "radian": "radian rad", "mph": "mph", "l": "l liter litre", "ml": "ml milliliter millilitre", "unit": "unit",
    "cup": "cup", "hz": "hz", "j": "j joule", "k": "kelvin", "n": "newton", "w": "watt", "v": "volt", "percent": "percent",
}  # fmt: skip
_CANONICAL = {alias: name for name, aliases in _UNITS.items() for alias in aliases.split()}

_INTEGER = r"\d{1,3}(?:,\d{3})+(?!\d)|\d{1,3}(?: \d{3})+(?!\d)|\d+"
_DECIMAL = rf"(?:(?:{_INTEGER})(?:\.\d*)?|\.\d+)"
_SIGNED = rf"[-+]?\s*{_DECIMAL}"
_FRACTION = rf"\\frac\s*\{{\s*(?P<top>{_SIGNED})\s*\}}\s*\{{\s*(?P<bottom>{_SIGNED})\s*\}}"
_NUMERAL = re.compile(
    rf"(?P<sign>[-+]?)\s*(?P<currency>[$€£¥])?\s*(?:"
    rf"(?P<whole>\d+)?\s*{_FRACTION}"
    rf"|(?:(?P<whole2>\d+) )?(?P<top2>{_DECIMAL})\s*/\s*(?P<bottom2>{_DECIMAL})"
    rf"|(?:(?P<mantissa>{_DECIMAL})\s*(?:\\times|\\cdot|\*)\s*)?10\s*\^\s*(?:\{{\s*(?P<power>[-+]?\s*\d+)\s*\}}|(?P<power1>\d))"
    rf"|(?P<mantissa2>{_DECIMAL})[eE](?P<power2>[-+]?\d+)"
    rf"|(?P<base>\d+)\s*\^\s*(?:\{{\s*(?P<exponent>\d+)\s*\}}|(?P<exponent1>\d))"
    rf"|(?P<digits>\d+)\s*_\s*(?:\{{\s*(?P<radix>\d+)\s*\}}|(?P<radix1>\d+)|\\text\{{\s*(?P<radix2>[a-z]+)\s*\}})"
    rf"|(?P<decimal>{_DECIMAL}))"
    rf"\s*(?P<tail>.*)"
)
_TEXT_UNIT = re.compile(r"\\text\s*\{([^{}]*)\}\s*(?:\^\s*\{?\s*-?\d\s*\}?)?|/")
_TRAILING_UNIT = re.compile(r"(.*[^\s{(])\s*\\text\s*\{([^{}]*)\}\s*(?:\^\s*\{?\s*\d\s*\}?)?", re.DOTALL)
_WORD_UNIT = re.compile(r"[A-Za-z]{2,}(?:\s+[A-Za-z]{2,})*\.?")


@dataclass(frozen=True, slots=True)
class Numeral:
    """An exact value and what was written beside it. `places` counts decimal digits; None for other notations."""

    value: Fraction
    percent: bool = False
    unit: str = ""
    radix: int | None = None
    places: int | None = None
    integral: bool = True


def parse_numeral(text: str) -> Numeral | None:
    """Read a normalised answer as a numeral; None where it is not one (or its digits exceed the limits)."""
    text = _strip_parentheses(text.strip())
    if not text or len(text) > 3 * MAX_DIGITS or re.search(rf"\d{{{MAX_DIGITS + 1}}}", text):
        return None
    match = _NUMERAL.fullmatch(text)
    if match is None or (tail := _tail(match["tail"])) is None:
        return None
    value = _value(match)
    if value is None:
        return None
    percent, unit = tail
    radix = match["radix"] or match["radix1"]
    decimal = match["decimal"]
    return Numeral(
        value=-value if match["sign"] == "-" else value,
        percent=percent,
        unit=unit or ("dollar" if match["currency"] == "$" else ""),
        radix=int(radix) if radix else None,
        places=len(decimal.partition(".")[2]) if decimal else None,
        integral=value.denominator == 1,
    )


def same_number(gold: Numeral, answer: Numeral) -> bool:
    """Exact equality, with the readings that a percent sign, a base and a rounded repeating decimal allow.

    A percent sign may stand for the bare number or for its hundredth. A decimal answers a fraction that has no finite decimal
    when it is that fraction rounded or cut after six or more significant digits. Two known units must agree.
    """
    if gold.unit and answer.unit and gold.unit != answer.unit:
        return False
    if gold.radix is not None and answer.radix is not None and gold.radix != answer.radix:
        return False
    difference = abs(gold.value - answer.value)
    if difference == 0:
        return True
    if gold.percent != answer.percent:
        return answer.value == (gold.value / 100 if gold.percent else gold.value * 100)
    if answer.places is None or gold.places is not None or gold.integral:
        return False
    significant = len(str(abs(int(answer.value * 10**answer.places))))
    return significant >= 6 and difference < Fraction(1, 10**answer.places)


def _strip_parentheses(text: str) -> str:
    while len(text) > 2 and text[0] + text[-1] in ("()", "{}") and not re.search(r"[(){}]", text[1:-1]):
        text = text[1:-1].strip()
    return text


def _number(digits: str) -> Fraction:
    return Fraction(digits.replace(",", "").replace(" ", "").rstrip("."))


def _value(match: re.Match[str]) -> Fraction | None:
    top, bottom = match["top"] or match["top2"], match["bottom"] or match["bottom2"]
    if top:
        denominator = _number(bottom)
        if denominator == 0:
            return None
        fraction = _number(top) / denominator
        whole = match["whole"] or match["whole2"]
        if whole is None:
            return fraction
        return Fraction(whole) + fraction if 0 <= fraction < 1 else None
    if power := match["power"] or match["power1"] or match["power2"]:
        exponent = int(power.replace(" ", ""))
        mantissa = match["mantissa"] or match["mantissa2"]
        return None if abs(exponent) > _MAX_EXPONENT else _number(mantissa or "1") * Fraction(10) ** exponent
    if match["base"]:
        base, exponent = int(match["base"]), int(match["exponent"] or match["exponent1"])
        return Fraction(base**exponent) if exponent * base.bit_length() <= 3 * _MAX_EXPONENT else None
    return _number(match["digits"] or match["decimal"])


def _tail(tail: str) -> tuple[bool, str] | None:
    """(percent sign?, canonical unit) of what follows the number; None where it is no unit."""
    tail = tail.strip()
    if not tail:
        return False, ""
    if tail.startswith("%"):
        return None if tail[1:].strip() else (True, "")
    if tail.startswith(r"^\circ"):
        rest = tail.removeprefix(r"^\circ").strip()
        return (False, "degree") if re.fullmatch(r"(?:\\text\s*\{\s*[CFK]\s*\}|[CFK])?", rest) else None
    if words := _TEXT_UNIT.findall(tail):
        return (False, _unit(words[0])) if not _TEXT_UNIT.sub("", tail).strip() else None
    if _WORD_UNIT.fullmatch(tail):
        words = tail.rstrip(".").lower().split()
        known = _CANONICAL.get(words[-1]) or _CANONICAL.get(words[-1].removesuffix("s")) or _CANONICAL.get(words[0])
        if known == "percent":
            return True, ""
        return (False, _unit(tail)) if known and known != "pi" else None
    return None


def split_unit(text: str) -> tuple[str, str]:
    """An expression without the unit in ``\\text{...}`` behind it, and that unit's canonical name (empty if unknown)."""
    match = _TRAILING_UNIT.fullmatch(text)
    return (match[1], _unit(match[2])) if match else (text, "")


def _unit(words: str) -> str:
    """Canonical name of a single known unit; empty for anything longer, which is then not compared."""
    word = words.strip(" .").lower()
    return _CANONICAL.get(word) or _CANONICAL.get(word.removesuffix("s")) or ""
