"""A response's answer, normalised spelling, parts of lists, numbers with words beside them. Only numbers are evaluated,
exactly.

The answer is the last box, else what follows an answer phrase, else the last number; scans are linear. Words that change values
are listed; others are not compared."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

# The answer in a response ----------------------------------------------------------------------------------------------

_BOX = re.compile(r"(?:(?<=\\)boxed|(?<=\\f)box(?:ed)?)(?![a-zA-Z])\s*")
_BARE_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
_PHRASE = re.compile(
    r"####|\b(?:final\s+)?answer(?:\s+is)?\s*(?:\*\*)?\s*(?::|=|\bis\b)|\banswer\s+is\b", re.IGNORECASE
)
_LAST_NUMBER = re.compile(r"(?<![\w.)}])[-−]?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?|(?<![\w.,])\.\d+|\d[\d,]*(?:\.\d+)?%?")
_ON = r"(?!\s+(?:or|alternatively|otherwise|maybe|perhaps|possibly)\b)"  # the sentence goes on
_SENTENCE_END = re.compile(rf"(?<!\\)(?<!\bapprox)(?<!\bsq)[.!?](?=\s|$){_ON}|\n(?![^{{}}\n]*\}})", re.IGNORECASE)
_REASON = re.compile(r"(?:,?\s+|\s*\(\s*)(?:because|since|which|where|when|as|so|hence|i\.e\.|by|from|see|given)\s")
_MATH = tuple(
    (opening, re.compile(closing))
    for opening, closing in (
        ("$$", r"\$\$"),
        ("$", r"(?<!\\)\$(?!\d)"),  # `$18 ... $9` are prices
        ("\\(", r"\\\)"),
        ("\\[", r"\\\]"),
    )
)
_PRICE = re.compile(r"\$\s?\d[\d,]*(?:\.\d+)?(?:[.!?]?\s+[A-Za-z]|[.!?]\s).*\s\$$", re.DOTALL)
_DELIMITER = re.compile(r"(?<!\\)\$+|\\[()\[\]]")
_FOLLOWS = re.compile(r"\s*(?:(?P<list>[,;/]?\s*(?:(?:or|and)\s*)?(?:\$|\\\(|\d))|[,;.]?\s*\(?(?P<word>[A-Za-z]+))")
_ASIDE = re.compile(r",\s+([a-z]{2,})\b")
_TAIL = 4_096


def extract(text: str) -> str:
    """Empty without an answer, or where the last box is unbalanced."""
    if (box := last_box(text)) is not None:
        return box
    tail = text[-_TAIL:]
    phrases = list(_PHRASE.finditer(tail))
    for phrase in reversed(phrases):
        if stated := _statement(tail[phrase.end() :]):
            return stated
    numbers = _LAST_NUMBER.findall(tail)
    return numbers[-1].rstrip(",") if numbers else ""


def last_box(text: str) -> str | None:
    """The last non-empty one; empty where unbalanced, None without any."""
    end = len(text)
    while (end := text.rfind("box", 0, end)) >= 0:
        if command := _BOX.match(text, end):
            content = boxed(text, command.end())
            if content is None or content.strip():
                return (content or "").strip()
    return None


def boxed(text: str, start: int) -> str | None:
    """What a box that opens at `start` holds; None where unbalanced."""
    if text[start : start + 1] != "{":
        number = _BARE_NUMBER.match(text, start)
        return number.group().rstrip(",") if number else ""
    close = text.find("}", start)
    if close < 0:
        return None
    simple = text[start + 1 : close]
    if "{" not in simple and "\\" not in simple:
        return simple
    end = closing_brace(text, start)
    return None if end is None else text[start + 1 : end]


def _statement(rest: str) -> str:
    """To the sentence's end or a reason; a lone formula where no other value follows."""
    rest = rest.lstrip(" \t:*=\n")
    for opening, closing in _MATH:
        if not rest.startswith(opening):
            continue
        close = closing.search(rest, len(opening))
        if close is None or (opening == "$" and _PRICE.match(rest[: close.end()])):
            break
        formula, behind = rest[len(opening) : close.start()].strip(), rest[close.end() :]
        behind = _clause(behind)
        follows = _FOLLOWS.match(behind)
        if follows is None or not (follows["list"] or not is_label(follows["word"])):
            return formula
        return formula + " " + _DELIMITER.sub(" ", behind).strip(" *")
    return _clause(rest).strip(" *")


def _clause(text: str) -> str:
    end = _SENTENCE_END.search(text)
    clause = _REASON.split(text[: end.start()] if end else text, maxsplit=1)[0]
    aside = next((comma for comma in _ASIDE.finditer(clause) if is_label(comma[1])), None)
    return clause[: aside.start()] if aside else clause


# One spelling, and the parts of lists ----------------------------------------------------------------------------------

_CHARACTERS = str.maketrans(
    {
        "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "°": r"^\circ ", "º": r"^\circ ",
        "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "∪": r"\cup ", "±": r"\pm ", "％": "%",
        "⁄": "/", "\u00a0": " ", "\u2009": " ", "\u202f": " ",
        **{c: rf"\frac{{{n}}}{{{d}}}" for c in "¼½¾⅐⅑⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞" for n, d in [unicodedata.normalize("NFKC", c).split("⁄")]},
    }
)  # fmt: skip
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ"
_LOWERED = "₀₁₂₃₄₅₆₇₈₉"
_PLAIN = str.maketrans(_RAISED + _LOWERED, "0123456789+-n0123456789")
_REWRITES = tuple(
    (re.compile(pattern), replacement, pattern.startswith(r"\\"))
    for pattern, replacement in (
        (r"\\lbrace(?![a-zA-Z])", r"\\{"),
        (r"\\rbrace(?![a-zA-Z])", r"\\}"),
        (r"\\(?:left|right|[bB]igg?[lrm]?)(?=\s*(?:[()\[\]|./]|\\[{}|lr]))\s*", ""),
        (r"\\(?:display|text|script|scriptscript)style(?![a-zA-Z])|\\(?:no)?limits(?![a-zA-Z])", ""),
        (
            r"\\(?:bf(?:series)?|rm|it|sf|tt|em|bold|boldmath|tiny|small|normalsize|large|Large|LARGE|huge|Huge|mathstrut|strut"
            r"|centering)(?![a-zA-Z])\s*",
            "",
        ),
        (r"\\(?:text)?color\s*(?:\[[^\[\]]*\]\s*)?\{[^{}]*\}", ""),
        (r"\\(?:color|textcolor)\s*[a-z]+(?=\s)", ""),
        (r"\\[hv]?phantom\s*\{[^{}]*\}", ""),
        (r"(?<!\\)\$ ?\$", " "),
        (r"\\div(?![a-zA-Z])", "/"),
        (r"\{([^{}]*)\\over(?![a-zA-Z])([^{}]*)\}", r"\\frac{\1}{\2}"),
        (r"\\[dtc](frac|binom)(?![a-zA-Z])", r"\\\1"),
        (r"\\(?:geqslant|geq)(?![a-zA-Z])", r"\\ge"),
        (r"\\(?:leqslant|leq)(?![a-zA-Z])", r"\\le"),
        (r"\\(?:textdegree|degrees?)(?![a-zA-Z])", r"^\\circ "),
        (r"\^\s*\{\s*\\circ\s*\}", r"^\\circ "),
        (r"\\(?:mbox|textrm|textnormal|mathrm|operatorname|textit|mathit|hbox|mathsf)\s*\{", r"\\text{"),
        (
            r"\\(?:textbf|mathbf|boldsymbol|bm|emph|underline)\s*\{(?=\s*(?:\(?[A-H]\)?|[A-Za-z][A-Za-z :'-]{2,})\s*\})",
            r"\\text{",
        ),
        (r"\\(?:text|textbf|mathbf|boldsymbol|bm|emph|underline)\s*\{\s*(\(?[-\d.,/ ]+\)?)\s*\}", r"\1"),
        (r"(?<=\d)\{,\}(?=\d{3}(?!\d))(?<!(?<!\d)0\{,\})", ""),
        (r"(?<=\d),?\s*\\[,!;: ]\s*(?=\d{3}(?!\d))", ""),
        (r"√\s*(?:\(([^()]*)\)|(\w+))", r"\\sqrt{\1\2}"),
        (r"(?<=\d)\{,\}(?=\d)", "."),
        (r"(?<=\d)\{,\}\s*\\!\s*(?=\d{3})", ""),
        (r"~|\\[,!;: ]|\\q?quad(?![a-zA-Z])", " "),
        (r"\\([%$#&])", r"\1"),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"(\\frac\s*\{[^{}]*\})\s*([\da-zA-Z])", r"\1{\2}"),
        (r"\\sqrt\s*(\d)", r"\\sqrt{\1}"),
        (r"(?<![\w\\})])\(\s*([-+]?[\d.]+)\s*\)\s*/", r"\1/"),
        (r"/\s*\(\s*([\d.]+)\s*\)(?![\^\w])", r"/\1"),
        (r"(?<=\d)(?=i(?![a-zA-Z]))", " "),  # `5i` and `5*i` must be read alike
        (r"(?<=\d)\*(?=[a-zA-Z\\])", " "),
        (r"\\text\s*\{\s*\}", ""),
        (r"(?<![\w\\})])\(\s*([0-9A-Z]+)\s*\)\s*_", r"\1_"),
        (r"\s+", " "),
    )
)
_WRAPPER = re.compile(r"(?:\\(?:mathbf|boldsymbol|bm|emph|underline|ensuremath|mathit|mathsf)\s*)?\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_SPACE = re.compile(r"[\t\n\r]")
_INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_ALTERNATIVE = re.compile(
    r"\\(?:text|mbox|mathrm|textrm)\s*\{(?=[^{}]*\d|\s*,?\s*(?:and|or)\b\s*\})([^{}]*?)\b(and|or)\b([^{}]*)\}"
)
_DOLLAR = re.compile(r"(?<!\\)\$")
_ROW = "\x01"  # a matrix row's end, hidden from rules on single backslashes
_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))


@lru_cache(maxsize=4_096)
def normalise(answer: str) -> str:
    text = _SPACE.sub(" ", answer)
    if not text.isascii():
        text = _INVISIBLE.sub("", text.translate(_CHARACTERS))
        text = re.sub(f"[{_RAISED}]+", r"^{\g<0>}", text)
        text = re.sub(f"[{_LOWERED}]+", r"_{\g<0>}", text).translate(_PLAIN)
    text = text.strip()
    text = unwrap(text).replace("\\\\", _ROW)
    text = _ALTERNATIVE.sub(r"\\text{\1} \2 \\text{\3}", text)
    for pattern, replacement, of_commands in _REWRITES:
        if not of_commands or "\\" in text:
            text = pattern.sub(replacement, text)
    text = unwrap(text.strip().rstrip(".,;:\\").strip())
    return _without_wrapper(text.strip("*")).replace(_ROW, "\\\\")


def _without_wrapper(text: str) -> str:
    r"""``{42}`` and ``\mathbf{42}`` are 42."""
    match = _WRAPPER.match(text)
    if match is None or closing_brace(text, match.end() - 1) != len(text) - 1:
        return text
    return _without_wrapper(text[match.end() : -1].strip())


def closing_brace(text: str, start: int) -> int | None:
    """Where the brace at `start` closes; None beyond 65,536 characters."""
    depth = 0
    for brace in _BRACE.finditer(text, start, start + (1 << 16)):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return brace.start()
    return None


def unwrap(text: str) -> str:
    for opening, closing in _WRAPPERS:
        inner = text[len(opening) : -len(closing)]
        if (
            text.startswith(opening)
            and text.endswith(closing)
            and len(text) > len(opening)
            and not _DOLLAR.search(inner)
        ):
            return inner.strip().rstrip(".,").strip()
    return text


def _kept_space(match: re.Match[str]) -> str:
    following = match.string[match.end()]
    keep = following.isdigit() if match[1].isdigit() else following.isalpha()
    return match[1] + ("\0" if keep else "")


def compact(text: str) -> str:
    """Without white space; `4 2` is not 42."""
    return re.sub(r"(\\[a-zA-Z]+|\d) (?=[a-zA-Z\d])", _kept_space, text).replace(" ", "").replace("\0", " ")


_OPENERS = {"(": ")", "[": "]", r"\{": r"\}", r"\langle": r"\rangle"}
_CLOSERS = tuple(_OPENERS.values())
_SEPARATOR = re.compile(
    r"\\text\s*\{\s*,?\s*(?P<joined>and|or)\s*\}|\\begin(?![a-zA-Z])|\\end(?![a-zA-Z])|\\[{}]|[()\[\]{},;]"
    r"|\\(?:cup|lor|vee|land|wedge)(?![a-zA-Z])|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"
)
_EITHER = re.compile(r"(?:\\text\s*\{\s*(?:either|both)\s*\}|either\b|both\b)\s*")
_NAMES = {r"\lor": "or", r"\vee": "or", r"\land": "and", r"\wedge": "and"}


@dataclass(frozen=True, slots=True)
class Items:
    r"""separators: commas, `and`, `or`, `\cup` between items."""

    brackets: str
    items: list[str]
    separators: frozenset[str]


def split_items(text: str) -> Items:
    brackets, body = "", text
    for opener in _OPENERS:
        if text.startswith(opener):
            closer = next((c for c in _CLOSERS if text.endswith(c)), None)
            if closer and _closes_at_end(text, len(opener), len(text) - len(closer)):
                brackets, body = opener + closer, text[len(opener) : -len(closer)]
                break
    items, depth, start, separators = [], 0, 0, set()
    for match in _SEPARATOR.finditer(body):
        token = match.group()
        if token in ("(", "[", "{", "\\{", "\\begin"):
            depth += 1
        elif token in (")", "]", "}", "\\}", "\\end"):
            depth -= 1
        elif depth == 0:
            items.append(body[start : match.start()].strip())
            separators.add(match["joined"] or _NAMES.get(token, token))
            start = match.end()
    items.append(body[start:].strip())
    if len(items) > 1:
        items[0] = _EITHER.sub("", items[0], count=1)
    return Items(brackets, [item for item in items if item], frozenset(separators))


def _closes_at_end(text: str, start: int, end: int) -> bool:
    depth = 1
    for match in re.finditer(r"\\[{}]|[()\[\]]|\\[lr]angle", text[start:end]):
        depth += 1 if match.group() in ("(", "[", "\\{", "\\langle") else -1
        if depth == 0:
            return False
    return True


def expand(items: Items) -> Items:
    r"""With `a \pm b` as two values."""
    values = list[str]()
    for item in items.items:
        both = "\\pm" in item or "\\mp" in item
        values += [_signed(item, "+", "-"), _signed(item, "-", "+")] if both else [item]
    return Items(items.brackets, values, items.separators | ({","} if values != items.items else set()))


def _signed(text: str, plus: str, minus: str) -> str:
    text = re.sub(r"\\pm(?![a-zA-Z])", plus, text)
    return re.sub(r"\\mp(?![a-zA-Z])", minus, text).lstrip("+ ")


# Numbers and the words beside them -------------------------------------------------------------------------------------

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
_RAISED_WORDS = {"squared": 2, "cubed": 3}
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
    """Words after a value: a factor and known units."""

    factor: Fraction = Fraction(1)
    percent: bool = False
    unit: frozenset[tuple[str, int]] = frozenset()


def read_phrase(text: str) -> Phrase | None:
    r"""None for others. A lone letter is a unit inside `\text` or behind a unit, else a variable."""
    text = text.strip()
    if not text:
        return Phrase()
    if text in ("%", r"\%", r"\text{%}") or re.fullmatch(r"(?:\\text\s*\{\s*)?(?:percent|per cent|pct)\s*\}?\.?", text):
        return Phrase(percent=True)
    factor, units = Fraction(1), Counter[str]()
    position, inside, sign, power, last, circumstance = 0, False, 1, 1, "", False
    wanting = False  # `per` and `/` want a noun behind them
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or (match["skip"] and not position):
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
            if lower in _RAISED_WORDS and last:
                units[last] += (_RAISED_WORDS[lower] - 1) * sign
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
                units[last] += sign
            elif lower in _COMPOUND:
                for name, exponent in _COMPOUND[lower].items():
                    units[name] += exponent * sign
            elif singular in _UNITS and not circumstance:
                last = _UNITS[singular]
                units[last] += power * sign
                power = 1
            elif lower in _OTHER_VALUE or not re.search("[aeiou]|.y.|y..", lower) or len(word) < (2 if inside else 3):
                return None
            else:
                last = ""
            wanting = False
    return None if inside or wanting else Phrase(factor, False, frozenset((n, e) for n, e in units.items() if e))


def is_label(text: str) -> bool:
    """Whether words only name a value."""
    words = re.findall(r"[A-Za-z]+", text.lower())
    return not re.search(r"[\d$=<>+*^/]", text) and not any(
        word in _OTHER_VALUE or word in _SCALES or word.removesuffix("s") in _SCALES for word in words
    )


def without_adverb(text: str) -> str:
    """Without `approximately`, `a total of` and the like."""
    match = _ADVERB.match(text)
    return text[match.end() :] if match and match.group().count("{") == match.group().count("}") else text


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
_BASES = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12,
}  # fmt: skip
_DOLLARS = frozenset({("dollar", 1)})
_DEGREE = frozenset({("degree", 1)})


@dataclass(frozen=True, slots=True)
class Numeral:
    """places: of a decimal."""

    value: Fraction
    percent: bool = False
    unit: frozenset[tuple[str, int]] = frozenset()
    radix: int | None = None
    places: int | None = None


@lru_cache(maxsize=8_192)
def parse_numeral(text: str) -> Numeral | None:
    """None where it is none, or too long."""
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


def same_number(gold: Numeral, answer: Numeral) -> bool:
    """Exact; known units must agree. A percent sign may mean the hundredth, or from 1 on the bare number; six right digits
    answer a fraction without a finite decimal."""
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
    if answer.places is None or gold.places is not None or gold.value.denominator == 1:
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
    tail = tail.strip()
    if tail.startswith(r"^\circ"):
        rest = tail.removeprefix(r"^\circ").strip()
        return Phrase(unit=_DEGREE) if re.fullmatch(r"(?:\\text\s*\{\s*[CFK]\s*\}|[CFK])?", rest) else None
    return read_phrase(tail)


def split_unit(text: str) -> tuple[str, Phrase]:
    """An expression and the words behind it."""
    for start in re.finditer(r"(?<=[^\s{(^_])\s*\\text\s*\{|(?<=[\d})\]a-z])\s(?=[A-Za-z]{2})", text):
        phrase = read_phrase(text[start.start() :])
        if phrase is not None and ("\\text" in start.group() or phrase.unit or phrase.factor != 1):
            return text[: start.start()].strip(), phrase
    return text, Phrase()
