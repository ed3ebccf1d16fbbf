"""What words beside a number say: a unit, a scale, a label, or something that makes it another answer.

Nouns are an open class: whatever is no known unit and has no other meaning names what is counted, and is not compared. The words
that change a value are closed classes, listed here: scales multiply; numbers, operations, alternatives and negations are no unit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_ALIASES = {
    "cm": "cm centimeter centimetre", "m": "m meter metre", "km": "km kilometer kilometre", "mm": "mm millimeter millimetre",
    "nm": "nm nanometer", "in": "in inch inches", "ft": "ft foot feet", "yd": "yd yard", "mi": "mi mile", "s": "s sec second",
    "ms": "ms millisecond", "min": "min minute", "h": "h hr hour", "day": "day", "week": "week wk", "month": "month",
    "year": "year yr", "g": "g gram", "kg": "kg kilogram", "mg": "mg milligram", "lb": "lb lbs pound", "oz": "oz ounce",
    "ton": "ton tonne", "degree": "degree deg", "dollar": "dollar usd", "cent": "cent", "radian": "radian rad",
    "l": "l liter litre", "ml": "ml milliliter millilitre", "gal": "gal gallon", "unit": "unit", "hz": "hz hertz",
    "j": "j joule", "k": "k kelvin", "n": "n newton", "w": "w watt", "v": "v volt", "pa": "pa pascal", "mol": "mol mole",
    "a": "amp ampere", "ev": "ev", "erg": "erg", "pc": "pc parsec", "acre": "acre",
}  # fmt: skip
_UNITS = {alias: name for name, aliases in _ALIASES.items() for alias in aliases.split()}
_COMPOUND = {"mph": {"mi": 1, "h": -1}, "kph": {"km": 1, "h": -1}, "kmh": {"km": 1, "h": -1}, "mps": {"m": 1, "s": -1}}
_LETTERS = {"m", "g", "s", "h", "l", "L", "J", "K", "N", "W", "V", "A", "C", "F"}

_SCALES: dict[str, int | Fraction] = {
    "hundred": 100, "thousand": 1_000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "quadrillion": 10**15,
    "lakh": 10**5, "crore": 10**7, "dozen": 12, "gross": 144, "half": Fraction(1, 2), "halves": Fraction(1, 2),
    "third": Fraction(1, 3), "fourth": Fraction(1, 4), "fifth": Fraction(1, 5), "sixth": Fraction(1, 6),
    "seventh": Fraction(1, 7), "eighth": Fraction(1, 8), "ninth": Fraction(1, 9), "tenth": Fraction(1, 10),
    "hundredth": Fraction(1, 100), "thousandth": Fraction(1, 1_000), "millionth": Fraction(1, 10**6),
    "billionth": Fraction(1, 10**9), "mil": 10**6, "mln": 10**6, "bn": 10**9,
}  # fmt: skip
_NUMBERS = """
zero nought naught one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen twenty thirty forty fourty fifty sixty seventy eighty ninety infinity once twice thrice double triple
twofold threefold score ii iii iv vi vii
"""
_ALTERNATIVES = """
or and nor either neither both else otherwise alternatively alternately instead maybe perhaps possibly probably perchance
versus vs also another other others if unless depending depends but except however rather resp respectively xor not no never
none wrong false incorrect isn isnt unlike without through thru until till between beyond beside besides than roughly hmm wait
actually to from up until by
"""
_OPERATIONS = """
plus minus times multiplied divided over added subtract subtracted add squared cubed root roots sqrt power powers raised
factorial choose mod modulo modulus base radix negative positive point dot log ln lg exp sin cos tan cot sec csc arcsin arccos
arctan max min gcd lcm sum product less more fewer greater least most equal equals equivalent approx approximately about
around inverse reciprocal opposite conjugate derivative prime pi alpha beta gamma delta epsilon zeta eta theta iota kappa
lambda mu nu xi rho sigma tau phi chi psi omega infty percent pct permille binary octal hex hexadecimal decimal imaginary iota
first
"""
_OTHER_VALUE = frozenset(_NUMBERS.split() + _ALTERNATIVES.split() + _OPERATIONS.split())
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_RAISED = {"squared": 2, "cubed": 3}
_WHERE = "of in for on at each every after during total altogether the his her their its that away"
_CIRCUMSTANCE = frozenset(_WHERE.split())
_ADVERB = re.compile(
    r"(?:\\text\s*\{\s*)?\b(?:(?:is|equals|approximately|approx\.?|about|around|roughly|nearly|almost|exactly|precisely|only|just|simply"
    r"|equal to|a total of)\b\.?\s*)+\}?\s*(?=\S)",
    re.IGNORECASE,
)
_TOKEN = re.compile(
    r"\s*(?:(?P<text>\\text\s*\{)|(?P<close>\})|(?P<word>[A-Za-z]+)"
    r"|(?P<power>\^\s*(?:\{\s*-?\d\s*\}|-?\d))|(?P<over>/)"
    r"|(?P<skip>\\cdot(?![a-zA-Z])|[.'*]|(?<=[A-Za-z])-(?=[A-Za-z])))"
)


@dataclass(frozen=True, slots=True)
class Phrase:
    """The words after a value: what they multiply it by, whether they are a percent sign, and the known units in them."""

    factor: Fraction = Fraction(1)
    percent: bool = False
    unit: frozenset[tuple[str, int]] = frozenset()


NOTHING = Phrase()


def read_phrase(text: str) -> Phrase | None:
    r"""Read `` apples``, ``\text{ cm}^2``, ``\text{million dollars}``, `` miles per hour``; None where it is no unit or scale.

    A lone letter is a unit inside ``\text`` or behind a unit (``km/h``), else a variable.
    """
    text = text.strip()
    if not text:
        return NOTHING
    if text in ("%", r"\%", r"\text{%}") or re.fullmatch(r"(?:\\text\s*\{\s*)?(?:percent|per cent|pct)\s*\}?\.?", text):
        return Phrase(percent=True)
    factor, units = Fraction(1), dict[str, int]()
    position, inside, sign, power, last, circumstance = 0, False, 1, 1, "", False
    wanting = False  # `per` and `/` want a noun behind them
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return None
        if match["skip"] and not position:
            return None
        position = match.end()
        if match["text"] or match["close"]:
            if inside is bool(match["text"]):
                return None
            inside, circumstance = bool(match["text"]), False
        elif match["power"]:
            if not last:
                return None
            exponent = int(re.sub(r"[^\d-]", "", match["power"]))
            units[last] += (exponent - 1) * sign
            last = ""
        elif match["over"]:
            sign, circumstance, wanting = -1, False, True
        elif word := match["word"]:
            lower = word.lower()
            singular = lower if lower in _UNITS or lower in _SCALES else lower.removesuffix("s")
            if lower in _RAISED and last:
                units[last] += (_RAISED[lower] - 1) * sign
            elif lower in ("per", "a", "an"):
                sign, circumstance, wanting = -1, False, True
                continue
            elif lower in _CIRCUMSTANCE and (lower != "in" or re.match(r"[\s}]*[A-Za-z]", text[position:])):
                circumstance = True
            elif singular in _SCALES:
                factor *= _SCALES[singular]
            elif lower in _POWERS:
                power = _POWERS[lower]
            elif len(word) == 1:
                if word not in _LETTERS or not (inside or units):
                    return None
                last = lower
                units[last] = units.get(last, 0) + sign
            elif lower in _COMPOUND:
                for name, exponent in _COMPOUND[lower].items():
                    units[name] = units.get(name, 0) + exponent * sign
            elif singular in _UNITS and not circumstance:
                last = _UNITS[singular]
                units[last] = units.get(last, 0) + power * sign
                power = 1
            elif lower in _OTHER_VALUE or not re.search("[aeiou]|.y.|y..", lower) or len(word) < (2 if inside else 3):
                return None
            else:
                last = ""
            wanting = False
    return None if inside or wanting else Phrase(factor, False, frozenset((n, e) for n, e in units.items() if e))


def is_label(text: str) -> bool:
    """Whether words before a value only name it: no number, operation, alternative or negation among them."""
    words = re.findall(r"[A-Za-z]+", text.lower())
    return not re.search(r"[\d$=<>+*^/]", text) and not any(
        word in _OTHER_VALUE or word in _SCALES or word.removesuffix("s") in _SCALES for word in words
    )


def without_adverb(text: str) -> str:
    """Without ``approximately``, ``exactly``, ``a total of`` before a value."""
    match = _ADVERB.match(text)
    return text[match.end() :] if match and match.group().count("{") == match.group().count("}") else text
