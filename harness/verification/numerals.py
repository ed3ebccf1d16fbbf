"""Numbers as people write them, decided exactly and without a computer algebra system.

A numeral is an integer, decimal, fraction, mixed number, power of integers or scientific notation, with an optional sign,
currency, percent sign, degree sign, unit or base subscript. A gold that is a numeral wants a numeral: `40+2` or
``\\sum ...`` is not an answer to 42, because a policy rewarded for it would learn to restate the question.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from harness.verification.units import NOTHING, Phrase, read_phrase

MAX_DIGITS = 400
_MAX_EXPONENT = 4_000

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
    rf"|(?P<base>\d+)\s*\^\s*(?:\{{\s*(?P<exponent>-?\s*\d+)\s*\}}|(?P<exponent1>\d))"
    rf"|(?P<digits>\d+)\s*_\s*(?:\{{\s*(?P<radix>\d+)\s*\}}|(?P<radix1>\d+)|\{{?\s*\\text\s*\{{\s*(?P<radix2>[a-z]+)\s*\}}\s*\}}?)"
    rf"|(?P<start>\d*\.\d*)\\(?:overline|bar)\s*\{{(?P<period>\d+)\}}"
    rf"|(?P<decimal>{_DECIMAL}))"
    rf"\s*(?P<tail>.*)"
)
_BASE_NAMES = "two three four five six seven eight nine ten eleven twelve"
_BASES = {name: base for base, name in enumerate(_BASE_NAMES.split(), 2)}
_DOLLAR = frozenset({("dollar", 1)})
_DEGREE = frozenset({("degree", 1)})


@dataclass(frozen=True, slots=True)
class Numeral:
    """An exact value and what was written beside it. `places` counts decimal digits; None for other notations. `unit`: known
    units and their powers."""

    value: Fraction
    percent: bool = False
    unit: frozenset[tuple[str, int]] = frozenset()
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
    unit = tail.unit
    if match["currency"] == "$":
        if ("cent", 1) in unit:
            return None
        unit |= _DOLLAR
    radix = match["radix"] or match["radix1"]
    if match["radix2"]:
        if match["radix2"] not in _BASES:
            return None
        radix = str(_BASES[match["radix2"]])
    decimal = match["decimal"]
    value *= -tail.factor if match["sign"] == "-" else tail.factor
    return Numeral(
        value=value,
        percent=tail.percent,
        unit=unit,
        radix=int(radix) if radix else None,
        places=len(decimal.partition(".")[2]) if decimal and tail.factor == 1 else None,
        integral=value.denominator == 1,
    )


def same_number(gold: Numeral, answer: Numeral) -> bool:
    """Exact equality, with the readings that a percent sign, a base and a rounded repeating decimal allow.

    A percent sign may stand for the number's hundredth, or from 1 on for the bare number: 0.5 % is not 0.5. A decimal answers a
    fraction that has no finite decimal when it is that fraction rounded or cut after six or more significant digits. Two known
    units must agree.
    """
    if gold.unit and answer.unit and gold.unit != answer.unit:
        return False
    if answer.radix is not None and answer.radix != (gold.radix or 10):
        return False
    difference = abs(gold.value - answer.value)
    if gold.percent != answer.percent:
        hundredth = answer.value == (gold.value / 100 if gold.percent else gold.value * 100)
        return hundredth or (difference == 0 and abs(gold.value) >= 1)
    if difference == 0:
        return True
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
        base, exponent = int(match["base"]), int((match["exponent"] or match["exponent1"]).replace(" ", ""))
        small = abs(exponent) * base.bit_length() <= 3 * _MAX_EXPONENT and (base or exponent >= 0)
        return Fraction(base) ** exponent if small else None
    if match["period"]:
        start, period = match["start"], match["period"]
        places = len(start.partition(".")[2])
        fraction = Fraction(int(period), (10 ** len(period) - 1) * 10**places)
        return fraction + (Fraction("0" + start + "0") if start != "." else 0)
    return _number(match["digits"] or match["decimal"])


def _tail(tail: str) -> Phrase | None:
    """What follows the number; None where it is neither unit nor scale."""
    tail = tail.strip()
    if tail.startswith(r"^\circ"):
        rest = tail.removeprefix(r"^\circ").strip()
        return Phrase(unit=_DEGREE) if re.fullmatch(r"(?:\\text\s*\{\s*[CFK]\s*\}|[CFK])?", rest) else None
    return read_phrase(tail)


def split_unit(text: str) -> tuple[str, Phrase]:
    """An expression and what the words behind it say; the text whole where they are no unit."""
    for start in re.finditer(r"(?<=[^\s{(^_])\s*\\text\s*\{|(?<=[\d})\]a-z])\s(?=[A-Za-z]{2})", text):
        phrase = read_phrase(text[start.start() :])
        if phrase is not None and ("\\text" in start.group() or phrase.unit or phrase.factor != 1):
            return text[: start.start()].strip(), phrase
    return text, NOTHING
