"""Numbers as they are written, and the words beside them: units, scales, per cent, and words that make another value of it.

A number is evaluated exactly, as a `Fraction`. Words that change a value are listed; other words only name what was counted and
are not compared.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto
from fractions import Fraction
from functools import lru_cache

_ALIASES = {
    "cm": "cm centimeter centimetre", "m": "m meter metre", "km": "km kilometer kilometre", "mm": "mm millimeter millimetre",
    "nm": "nm nanometer", "in": "in inch inches", "ft": "ft foot feet", "yd": "yd yard", "mi": "mi mile", "s": "s sec second",
    "ms": "ms millisecond", "min": "min minute", "h": "h hr hour", "day": "day", "week": "week wk", "month": "month",
    "year": "year yr", "g": "g gram", "kg": "kg kilogram", "mg": "mg milligram", "lb": "lb lbs pound", "oz": "oz ounce",
    "ton": "ton tonne", "degree": "degree deg", "dollar": "dollar usd", "cent": "cent", "radian": "radian rad",
    "l": "l liter litre", "ml": "ml milliliter millilitre", "gal": "gal gallon", "unit": "unit", "hz": "hz hertz",
    "j": "j joule", "k": "k kelvin", "n": "n newton", "w": "w watt", "v": "v volt", "pa": "pa pascal", "mol": "mol mole",
    "a": "amp ampere", "ev": "ev", "erg": "erg", "pc": "pc parsec", "acre": "acre",
    "angstrom": "å angstrom", "um": "um µm micrometer micrometre micron", "us": "us µs microsecond", "ug": "ug µg microgram",
    "ohm": "ohm", "molar": "molar", "tesla": "tesla",
}  # fmt: skip
_UNITS = {alias: name for name, aliases in _ALIASES.items() for alias in aliases.split()}
_COMPOUND = {"mph": {"mi": 1, "h": -1}, "kph": {"km": 1, "h": -1}, "kmh": {"km": 1, "h": -1}, "mps": {"m": 1, "s": -1}}
_LETTERS = {"m", "g", "s", "h", "l", "L", "J", "K", "N", "W", "V", "A", "C", "F", "M", "T", "Å"}
_LETTER_UNITS = {"M": "molar", "T": "tesla", "Å": "angstrom"}

# `quarter` is missing on purpose: in word problems `3 quarters` are coins, and the gold is 3
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
none wrong false incorrect isn isnt unlike without through thru until till between beyond beside besides than roughly hmm
wait actually to from up until by onward onwards upward upwards downward downwards under below above cannot wont
"""
_OPERATIONS = """
plus minus times multiplied divided over added subtract subtracted add squared cubed root roots sqrt power powers raised
factorial choose mod modulo modulus base radix negative positive point dot log ln lg exp sin cos tan cot sec csc arcsin arccos
arctan max min gcd lcm sum product less more fewer greater least most equal equals equivalent approx approximately about
around inverse reciprocal opposite conjugate derivative prime pi alpha beta gamma delta epsilon zeta eta theta iota kappa
lambda mu nu xi rho sigma tau phi chi psi omega infty percent pct permille binary octal hex hexadecimal decimal imaginary iota
first multiple multiples factors divisor divisors digit digits prime primes remainder quotient kilo mega giga tera milli micro
nano pico
"""
_ALTERNATIVE_WORDS = frozenset(_ALTERNATIVES.split())
_OTHER_VALUE = frozenset(_NUMBERS.split() + _ALTERNATIVES.split() + _OPERATIONS.split())
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_RAISED_WORDS = {"squared": 2, "cubed": 3}
_WHERE = "of in for on at each every after during total altogether the his her their its that away"
_CIRCUMSTANCE = frozenset(_WHERE.split())
_ADVERB = re.compile(
    r"(?:\\text\s*\{\s*)?\b(?:(?:is|equals|approximately|approx\.?|about|around|roughly|nearly|almost|exactly|precisely|only|just|simply"
    r"|equal to|a total of)\b\.?\s*)+\}?\s*(?=\S)",
    re.IGNORECASE,
)
_TOKEN = re.compile(
    r"\s*(?:(?P<text>\\text\s*\{)|(?P<close>\})|(?P<word>[A-Za-zÅåµ]+)"
    r"|(?P<power>\^\s*(?:\{\s*-?\d\s*\}|-?\d))|(?P<over>/)"
    r"|(?P<skip>\\cdot(?![a-zA-Z])|[.'*]|(?<=[A-Za-z])-(?=[A-Za-z])))"
)


_PERCENT = re.compile(r"\\?%\s*(?=\S)")  # and words: `25\% \text{ of the total}`


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words after a value: a factor and known units."""

    factor: Fraction = Fraction(1)
    percent: bool = False
    unit: frozenset[tuple[str, int]] = frozenset()


def read_phrase(text: str) -> Phrase | None:
    r"""Read the words behind a value: a scale, per cent, units. None where they may make another value.

    A lone letter is a unit inside `\text` or behind a unit, else a variable."""
    text = text.strip()
    if not text:
        return Phrase()
    percent = _PERCENT.match(text)
    if percent:
        rest = read_phrase(text[percent.end() :])
        if rest is not None and not rest.unit and rest.factor == 1:
            return Phrase(percent=True)
        return None
    if text in ("%", r"\%", r"\text{%}") or re.fullmatch(r"(?:\\text\s*\{\s*)?(?:percent|per cent|pct)\s*\}?\.?", text):
        return Phrase(percent=True)
    reader = _PhraseReader()
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or (match["skip"] and not position):
            return None
        position = match.end()
        if not reader.read_token(match, text[position:]):
            return None
    if reader.inside or reader.wants_noun:
        return None
    return Phrase(reader.factor, False, frozenset((name, power) for name, power in reader.units.items() if power))


class _Word(Enum):
    """What a word behind a number is; `_PhraseReader._read_word` has a table of them."""

    DIVISOR = auto()
    EXPONENT_BEHIND = auto()
    CIRCUMSTANCE = auto()
    SCALE = auto()
    EXPONENT_BEFORE = auto()
    LETTER = auto()
    TWO_UNITS = auto()
    UNIT = auto()
    OTHER_VALUE = auto()
    NOUN = auto()


@dataclass(slots=True)
class _PhraseReader:
    """What has been read of a phrase, token by token. Its methods return whether the token can stand there.

    factor, units: of `Phrase`. inside: of `\\text`. sign: -1 behind `per`. power: what `square` gives the next unit. last: the unit
    that an exponent would raise, empty for none. circumstance: behind `of` or `in`, where a unit says of what and not how much.
    wants_noun: behind `per` and `/`."""

    factor: Fraction = Fraction(1)
    units: Counter[str] = field(default_factory=Counter)
    inside: bool = False
    sign: int = 1
    power: int = 1
    last: str = ""
    circumstance: bool = False
    wants_noun: bool = False

    def read_token(self, match: re.Match[str], behind: str) -> bool:
        """Read one match of `_TOKEN`. behind: the text that follows it."""
        if match["text"] or match["close"]:
            return self._read_brace(opens=bool(match["text"]))
        if match["power"]:
            return self._read_power(int(re.sub(r"[^\d-]", "", match["power"])))
        if match["over"]:
            self._begin_divisor()
        elif match["word"]:
            return self._read_word(match["word"], behind)
        return True

    def _read_brace(self, opens: bool) -> bool:
        """Read a brace of the text command; one within another cannot stand there, nor one that closes nothing."""
        if self.inside is opens:
            return False
        self.inside = opens
        self.circumstance = False
        return True

    def _read_power(self, exponent: int) -> bool:
        """Raise the unit just read: `^2` behind `m`. It has been counted once, so the rest is added."""
        if not self.last:
            return False
        self.units[self.last] += (exponent - 1) * self.sign
        self.last = ""
        return True

    def _begin_divisor(self) -> None:
        """Begin what the value is divided by: units behind `/` and `per` count with the other sign, to the phrase's end."""
        self.sign = -1
        self.circumstance = False
        self.wants_noun = True

    def _read_word(self, word: str, behind: str) -> bool:
        r"""Read a word; which of these it is, the first line that fits decides. False where the phrase may be another value.

        per, a, an              what follows divides             30 km per hour, 3 dollars a day
        squared, cubed          raise the unit before them       5 feet squared
        of, for, in, the ...    units no longer say how much     5 eggs for the day (no time)
        dozen, million, thirds  multiply                         3 dozen, 2 thirds
        square, cubic           raise the unit behind them       5 square feet
        a single letter         a unit, or no word at all        5 \text{ m}; `5 x` is another value
        mph, kmh                two units                        30 mph
        meters, dollars         a unit                           5 meters
        or, plus, nine, pi ...  another value                    7 or 8, 3 plus 4; also words without a vowel, and very short ones
        any other               only names what was counted      42 apples
        """
        lower = word.lower()
        singular = lower if lower in _UNITS or lower in _SCALES else _singular_of(lower)
        kind = self._kind_of_word(word, singular, behind)
        if kind is not _Word.DIVISOR:
            self.wants_noun = False
        match kind:
            case _Word.DIVISOR:
                self._begin_divisor()
            case _Word.EXPONENT_BEHIND:
                self.units[self.last] += (_RAISED_WORDS[lower] - 1) * self.sign
            case _Word.CIRCUMSTANCE:
                self.circumstance = True
            case _Word.SCALE:
                self.factor *= _SCALES[singular]
            case _Word.EXPONENT_BEFORE:
                self.power = _POWERS[lower]
            case _Word.LETTER:
                return self._read_letter(word)
            case _Word.TWO_UNITS:
                for name, exponent in _COMPOUND[lower].items():
                    self.units[name] += exponent * self.sign
            case _Word.UNIT:
                self.last = _UNITS[singular]
                self.units[self.last] += self.power * self.sign
                self.power = 1
            case _Word.NOUN:
                self.last = ""
        return kind is not _Word.OTHER_VALUE

    def _kind_of_word(self, word: str, singular: str, behind: str) -> _Word:
        """Tell what a word is at this place of the phrase. singular: without its plural ending. behind: the text that follows."""
        lower = word.lower()
        if lower in ("per", "a", "an"):
            return _Word.DIVISOR
        if lower in _RAISED_WORDS and self.last:
            return _Word.EXPONENT_BEHIND
        is_inch = lower == "in" and not re.match(r"[\s}]*[A-Za-z]", behind)  # `12 in` with nothing behind it
        if lower in _CIRCUMSTANCE and not is_inch:
            return _Word.CIRCUMSTANCE
        if singular in _SCALES:
            return _Word.SCALE
        if lower in _POWERS:
            return _Word.EXPONENT_BEFORE
        if len(word) == 1:
            return _Word.LETTER
        if lower in _COMPOUND:
            return _Word.TWO_UNITS
        if singular in _UNITS and not self.circumstance:
            return _Word.UNIT
        shortest = 2 if self.inside else 3
        if _may_change_value(lower, singular) or len(word) < shortest:
            return _Word.OTHER_VALUE
        return _Word.NOUN

    def _read_letter(self, letter: str) -> bool:
        r"""Read a letter as a unit, inside `\text` or behind another unit; elsewhere it is a variable, and cannot stand there."""
        if letter not in _LETTERS or not (self.inside or self.units):
            return False
        self.last = _LETTER_UNITS.get(letter, letter.lower())
        self.units[self.last] += self.sign
        return True


def _may_change_value(word: str, singular: str) -> bool:
    """Return whether a word makes another value, or has no vowel and so may be a symbol."""
    return word in _OTHER_VALUE or singular in _OTHER_VALUE or not re.search("[aeiou]|.y.|y..", word)


def _singular_of(word: str) -> str:
    """Return an English noun without its plural ending."""
    if word.endswith("ies"):
        return word.removesuffix("ies") + "y"
    return word.removesuffix("s")


def is_label(text: str) -> bool:
    r"""Return whether words only name a value: those of `\text{Area}`, but not of `\text{twice the area}`."""
    words = re.findall(r"[A-Za-z]+", text.lower())
    return not re.search(r"[\d$=<>+*^/]", text) and not any(
        word in _OTHER_VALUE or word in _SCALES or _singular_of(word) in _SCALES for word in words
    )


def is_connective(word: str) -> bool:
    """Return whether a word makes another value only together with one that follows: `7 or 8`."""
    return word.lower().strip(".,;:") in _ALTERNATIVE_WORDS


def without_adverb(text: str) -> str:
    """Return a text without `approximately`, `a total of` and the like before its value."""
    match = _ADVERB.match(text)
    if match and match.group().count("{") == match.group().count("}"):
        return text[match.end() :]
    return text


MAX_DIGITS = 400
_MAX_EXPONENT = 4_000

_INTEGER = r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!\d)|\d{1,3}(?: \d{3})+(?!\d)|\d+"
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
_BASES = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12,
}  # fmt: skip
_DOLLARS = frozenset({("dollar", 1)})
_DEGREE = frozenset({("degree", 1)})


@dataclass(frozen=True, slots=True)
class Numeral:
    """A number as it is written: `41_6` has the radix 6; `3.50` has two places, a fraction or a power has None."""

    value: Fraction
    percent: bool = False
    unit: frozenset[tuple[str, int]] = frozenset()
    radix: int | None = None
    places: int | None = None


@lru_cache(maxsize=8_192)
def parse_numeral(text: str) -> Numeral | None:
    r"""Read a number with its words: `3 \frac{1}{2}`, `$1,200`, `44\%`, `3 \times 10^{8} \text{ m/s}`, `41_6`.

    None where the text is no single number, as `3+4`, or has more than MAX_DIGITS digits in a row.
    """
    text = _strip_parentheses(text.strip())
    if not text or len(text) > 3 * MAX_DIGITS or re.search(rf"\d{{{MAX_DIGITS + 1}}}", text):
        return None
    match = _NUMERAL.fullmatch(text)
    if match is None or (tail := _read_tail(match["tail"])) is None:
        return None
    value = _value_of_match(match)
    if value is None:
        return None
    unit = tail.unit
    if match["currency"] == "$":
        if ("cent", 1) in unit:
            return None
        unit |= _DOLLARS
    radix = match["radix"] or match["radix1"] or _BASES.get(match["radix2"])
    if match["radix2"] and radix is None:
        return None
    decimal = match["decimal"]
    value *= -tail.factor if match["sign"] == "-" else tail.factor
    return Numeral(
        value=value,
        percent=tail.percent,
        unit=unit,
        radix=int(radix) if radix else None,
        places=len(decimal.partition(".")[2]) if decimal and tail.factor == 1 else None,
    )


_EXACT = Fraction(0)


def same_number(gold: Numeral, answer: Numeral, error: Fraction = _EXACT) -> bool:
    """Return whether two numbers are the same, or differ by at most the `error` that the gold allows.

    Known units must agree. A percent sign may mean the hundredth, or from 1 on the bare number: `44%` answers 0.44 and 44. Six
    right digits answer a fraction that has no finite decimal.
    """
    if gold.unit and answer.unit and gold.unit != answer.unit:
        return False
    if (gold.unit and answer.percent) or (answer.unit and gold.percent):
        return False
    if answer.radix is not None and answer.radix != (gold.radix or 10):
        return False
    if gold.radix is not None and (answer.unit or answer.percent):
        return False
    difference = abs(gold.value - answer.value)
    if gold.percent != answer.percent:
        hundredth = answer.value == (gold.value / 100 if gold.percent else gold.value * 100)
        return hundredth or (difference <= error and abs(gold.value) >= 1)
    if difference <= error:
        return True
    if answer.places is None or gold.places is not None or gold.value.denominator == 1:
        return False
    significant = len(str(abs(int(answer.value * 10**answer.places))))
    return significant >= 6 and difference < Fraction(1, 10**answer.places)


def _strip_parentheses(text: str) -> str:
    """Return a text without brackets around all of it, `(7)` as `7`, where nothing inside has brackets or commas."""
    while len(text) > 2 and text[0] + text[-1] in ("()", "{}") and not re.search(r"[(){},]", text[1:-1]):
        text = text[1:-1].strip()
    return text


def _read_digits(digits: str) -> Fraction:
    """Return the number that digits with separators write, `1,200.50`."""
    return Fraction(digits.replace(",", "").replace(" ", "").rstrip("."))


def _value_of_match(match: re.Match[str]) -> Fraction | None:
    """Return the exact value of a matched numeral; None where its denominator is 0 or it is too large."""
    top = match["top"] or match["top2"]
    bottom = match["bottom"] or match["bottom2"]
    if top:
        denominator = _read_digits(bottom)
        if denominator == 0:
            return None
        fraction = _read_digits(top) / denominator
        whole = match["whole"] or match["whole2"]
        if whole is None:
            return fraction
        return Fraction(whole) + fraction if 0 <= fraction < 1 else None
    power = match["power"] or match["power1"] or match["power2"]
    if power:
        exponent = int(power.replace(" ", ""))
        mantissa = match["mantissa"] or match["mantissa2"]
        if abs(exponent) > _MAX_EXPONENT:
            return None
        return _read_digits(mantissa or "1") * Fraction(10) ** exponent
    if match["base"]:
        base = int(match["base"])
        exponent = int((match["exponent"] or match["exponent1"]).replace(" ", ""))
        small = abs(exponent) * base.bit_length() <= 3 * _MAX_EXPONENT and (base or exponent >= 0)
        return Fraction(base) ** exponent if small else None
    if match["period"]:
        start = match["start"]
        period = match["period"]
        places = len(start.partition(".")[2])
        fraction = Fraction(int(period), (10 ** len(period) - 1) * 10**places)
        return fraction + (Fraction("0" + start + "0") if start != "." else 0)
    return _read_digits(match["digits"] or match["decimal"])


def _read_tail(tail: str) -> Phrase | None:
    r"""Read the unit or words behind a number; None where they are something else. `^\circ \text{C}` is a degree."""
    tail = tail.strip()
    if tail.startswith(r"^\circ"):
        rest = tail.removeprefix(r"^\circ").strip()
        return Phrase(unit=_DEGREE) if re.fullmatch(r"(?:\\text\s*\{\s*[CFK]\s*\}|[CFK])?", rest) else None
    return read_phrase(tail)


def split_unit(text: str) -> tuple[str, Phrase]:
    r"""Split a text into an expression and the words behind it: `2\sqrt{3} \text{ cm}`; words that may change its value stay."""
    for start in re.finditer(r"(?<=[^\s{(^_])\s*\\text\s*\{|(?<=[\d})\]a-z])\s(?=[A-Za-z]{2})", text):
        phrase = read_phrase(text[start.start() :])
        if phrase is not None and ("\\text" in start.group() or phrase.unit or phrase.factor != 1):
            return text[: start.start()].strip(), phrase
    return text, Phrase()
