"""One spelling for each value, and the parts of lists."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from harness.verification.conjunctions import spell_conjunctions
from harness.verification.expression import FUNCTIONS
from harness.verification.response import closing_brace, last_box
from harness.verification.response import read_answer as extract
from harness.verification.response import read_box as boxed

__all__ = [
    "Items",
    "boxed",
    "closing_brace",
    "expand_signs",
    "extract",
    "last_box",
    "normalise_answer",
    "split_items",
    "unwrap_text",
    "without_blanks",
]
"""`extract`, `boxed` and `last_box` were defined here once: tasks that `harness new-task` wrote before import them from here."""

_CHARACTERS = str.maketrans(
    {
        "−": "-", "–": "-", "\u2010": "-", "\u2011": "-", "\u2012": "-", "\ufe63": "-",
        "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "°": r"^\circ ", "º": r"^\circ ",
        "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "∪": r"\cup ", "±": r"\pm ", "％": "%",
        "⁄": "/", "∕": "/", "∙": r"\cdot ", "•": r"\cdot ", "∗": "*",
        "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u3000": " ",
        "≠": r"\ne ", "≈": r"\approx ", "≡": r"\equiv ", "∈": r"\in ", "∩": r"\cap ", "∖": r"\setminus ", "∅": r"\emptyset ",
        "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}",
        "∛": r"\sqrt[3]", "∜": r"\sqrt[4]",
        "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "…": r"\ldots ", "⋯": r"\ldots ", "∓": r"\mp ",
        "∨": r"\lor ", "′": "'", "’": "'", "¢": r"\text{ cents}", "Å": r"\text{Å}", "Ω": r"\Omega ", "µ": r"\mu ",
        "、": ",", "。": ".", "，": ",", "‰": "/1000", "₹": "$",
        **{c: rf"\frac{{{n}}}{{{d}}}" for c in "¼½¾⅐⅑⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞" for n, d in [unicodedata.normalize("NFKC", c).split("⁄")]},
    }
)  # fmt: skip
_GREEK_NAMES = """
alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega
Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega
"""
_GREEK_LETTERS = "αβγδεζηθικλμνξρστυφχψωΓΔΘΛΞΣΦΨΩ"
_GREEK = {ord(letter): rf"\{name} " for letter, name in zip(_GREEK_LETTERS, _GREEK_NAMES.split(), strict=True)}
_FULL_WIDTH = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)} | {0xFF5B: r"\{", 0xFF5D: r"\}"}
"""The full-width forms of ASCII, as East Asian keyboards write them; braces are braces that print."""
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ"
_LOWERED = "₀₁₂₃₄₅₆₇₈₉"
_PLAIN = str.maketrans(_RAISED + _LOWERED, "0123456789+-n0123456789")
_FUNCTION_ALIASES = {
    "tg": "tan", "ctg": "cot", "cotg": "cot", "arctg": "arctan", "cosec": "csc", "sh": "sinh", "ch": "cosh", "th": "tanh",
    "asin": "arcsin", "acos": "arccos", "atan": "arctan",
}  # fmt: skip
_FUNCTION_NAMES = "|".join((*sorted(FUNCTIONS), "max", "min", "gcd", "lcm", "det", *_FUNCTION_ALIASES))


def _as_function(match: re.Match[str]) -> str:
    r"""Write an upright function name as its command: `\operatorname{ln}` is `\ln`."""
    return rf"\{_FUNCTION_ALIASES.get(match[1], match[1])} "


def _as_list_of_words(match: re.Match[str]) -> str:
    r"""Write a list within one text command as a list of them: `\text{red, blue}` has two items."""
    return ", ".join(rf"\text{{{word.strip()}}}" for word in match[1].split(","))


_UNIT_LETTERS = frozenset("MTGSHIcdfjknvwR")


def _as_letter(match: re.Match[str]) -> str:
    """Write an upright letter as that letter; behind a number, one that names a unit stays a unit."""
    before = match.string[: match.start()].rstrip()
    if match[1] in _UNIT_LETTERS and before[-1:].isdigit():
        return match.group()
    return f" {match[1]} "


_HIGH_MARK = "\u0305\u0304\u0307"
"""Over a digit: a line, a short line and a dot, which stand over what repeats."""


def _as_overlined(match: re.Match[str]) -> str:
    r"""Write digits with marks over them as a repeating part: `0.1` with a 6 under a line behind it is `0.1\overline{6}`."""
    return rf"\overline{{{re.sub(f'[{_HIGH_MARK}]', '', match.group())}}}"


def _as_repeating(match: re.Match[str]) -> str:
    r"""Write decimals that end in dots behind a repeated part as repeating ones: `0.1666\ldots` is `0.1\overline{6}`.

    A single digit must stand there three times, several digits twice. Other decimals with dots are left: nobody knows how
    they go on."""
    return rf"{match['before']}\overline{{{match['digit'] or match['digits']}}}"


def _as_column(match: re.Match[str]) -> str:
    r"""Write a transposed row as the column that it is: `(1, 2)^\top` is the matrix with the rows 1 and 2."""
    rows = _ROW.join(part.strip() for part in match[1].split(","))
    return rf"\begin{{pmatrix}}{rows}\end{{pmatrix}}"


def _as_quantity(match: re.Match[str]) -> str:
    r"""Write a number with a unit as siunitx is asked for it: `\SI{5}{\meter}` is `5 \text{ meter}`."""
    unit = match[2].replace("\\", " ").strip()
    return rf"{match[1].strip()} \text{{ {unit}}}"


def _without_reversed_brackets(match: re.Match[str]) -> str:
    r"""Write intervals that leave out an end by a reversed bracket with round ones: `]0, 1]` is `(0, 1]`."""

    def write_usual_brackets(interval: re.Match[str]) -> str:
        left = "(" if interval["left"] == "]" else "["
        right = ")" if interval["right"] == "[" else "]"
        return f"{left}{interval['ends']}{right}"

    return _ONE_INTERVAL.sub(write_usual_brackets, match.group())


_ENDS = r"[^\[\]()]+?[,;][^\[\]()]+?"
_ONE_INTERVAL = re.compile(rf"(?P<left>[\[\]])(?P<ends>{_ENDS})(?P<right>[\[\]])")
_INTERVAL = rf"[\[\]]{_ENDS}[\[\]]"
_HALF_LINES = {
    "^+": r"(0,\infty)", "_>0": r"(0,\infty)",
    "^-": r"(-\infty,0)", "_<0": r"(-\infty,0)",
    **dict.fromkeys((r"_\ge0", r"_\geq0", r"_\geqslant0"), r"[0,\infty)"),
    **dict.fromkeys((r"_\le0", r"_\leq0", r"_\leqslant0"), r"(-\infty,0]"),
}  # fmt: skip


def _as_half_line(match: re.Match[str]) -> str:
    r"""Write the reals of one sign as an interval: `\mathbb{R}_{>0}` is `(0,\infty)`.

    `\mathbb{R}_+` stays: some count 0 to it and some do not."""
    which = re.sub(r"[\s{}]", "", match[1])
    return _HALF_LINES.get(which, match.group())


_REWRITES = tuple(
    (re.compile(pattern), replacement, pattern.startswith(r"\\"))
    for pattern, replacement in (
        (r"\\verb\*?([|!+])(.*?)\1", r"\2"),
        (r"(?<=\d)\s*\\(?:mathrm|text|textrm)\s*\{\s*[eE]\s*\}\s*(?=[-+]?\d)", "e"),
        (r"^\\(?:therefore|implies|Rightarrow|Longrightarrow)(?![a-zA-Z])", ""),
        (r"\\(?:coloneqq|coloneq|triangleq|doteq)(?![a-zA-Z])|\\(?:overset|stackrel)\s*\{[^{}]*\}\s*\{\s*=\s*\}", "="),
        (r"(?<=\S)\s*\\(?:newline|linebreak|hfill|qed|blacksquare|square|Box|checkmark)(?![a-zA-Z])\s*$", ""),
        (r"\\(?:nice|s|x)frac(?![a-zA-Z])", r"\\frac"),
        (r"\\num\s*\{([^{}]*)\}", lambda m: re.sub(r"(?<=\d) (?=\d)", "", m[1])),
        (r"\\(?:SI|qty)\s*\{([^{}]*)\}\s*\{([^{}]*)\}", _as_quantity),
        (r"\\(?:thin|med|thick|negthin)space(?![a-zA-Z])", r"\\,"),
        (r"\\(?:enspace|enskip|hfil|null)(?![a-zA-Z])", " "),
        (r"\\surd(?![a-zA-Z])\s*(?:\{([^{}]*)\}|(\w))", r"\\sqrt{\1\2}"),
        (r"\\root\s*\{?(\d+)\}?\s*\\of\s*(?:\{([^{}]*)\}|(\w))", r"\\sqrt[\1]{\2\3}"),
        (r"\\up(?=(?:pi|alpha|beta|gamma|delta|theta|lambda|mu|phi|omega)(?![a-zA-Z]))", r"\\"),
        (r"\\imath(?![a-zA-Z])", "i"),
        (r"\\varnothing(?![a-zA-Z])|^\\\{\s*\\\}$|^\\lbrace\s*\\rbrace$", r"\\emptyset"),
        (r"\\mathbb\s*\{?\s*R\s*\}?\s*([_^]\s*(?:[+-]|\{[^{}]*\}))", _as_half_line),
        (
            r"[(\[]([^()\[\],]*(?:,[^()\[\],]*)+)[)\]]\s*\^\s*\{?\s*(?:T|\\top|\\intercal|\\(?:text|mathrm|mathsf)\s*\{\s*T\s*\})(?![a-zA-Z])"
            r"\s*\}?",
            _as_column,
        ),
        (r"\\[lr]vert(?![a-zA-Z])|\\vert(?![a-zA-Z])", "|"),
        (r"\\[hv]space\s*\*?\s*\{[^{}]*\}|\\(?:tag|label)\s*\*?\s*\{[^{}]*\}", ""),
        (r"\\(?:ldots|dots|dotsc|dotsb|dotsm|dotso|cdots)(?![a-zA-Z])", r"\\ldots "),
        (r"\^\s*(?:\{\s*((?:\\prime\s*)+)\}|(\\prime)(?![a-zA-Z]))", lambda m: "'" * m.group().count("prime")),
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
        (r"^([^{}]*)\\over(?![a-zA-Z])([^{}]*)$", r"\\frac{\1}{\2}"),
        (r"\{([^{}]*)\\choose(?![a-zA-Z])([^{}]*)\}", r"\\binom{\1}{\2}"),
        (r"\\[dtc](frac|binom)(?![a-zA-Z])", r"\\\1"),
        (r"\\(?:geqslant|geq)(?![a-zA-Z])", r"\\ge"),
        (r"\\(?:leqslant|leq)(?![a-zA-Z])", r"\\le"),
        (
            r"\(?\s*\\(?:pmod|bmod|mod)(?![a-zA-Z])\s*(?:\{\s*([^{}]+?)\s*\}|(\d+|[a-zA-Z])(?![a-zA-Z\d]))\s*\)?",
            r"\\pmod{\1\2}",
        ),
        (r"\(\s*(?:\\text\s*\{\s*)?mod\s*\}?\s*(\d+|[a-z])\s*\)", r"\\pmod{\1}"),
        (
            r"[(\[]\s*\\begin\s*\{array\}\s*(?:\{[^{}]*\})?(.*?)\\end\s*\{array\}\s*[)\]]",
            r"\\begin{pmatrix}\1\\end{pmatrix}",
        ),
        (r"\\(?:textdegree|degrees?)(?![a-zA-Z])", r"^\\circ "),
        (r"\^\s*\{\s*\\circ\s*\}", r"^\\circ "),
        (rf"\\operatorname\s*\*?\s*\{{\s*({_FUNCTION_NAMES})\s*\}}", _as_function),
        (
            rf"\\(?:mathrm|text|textrm|mbox)\s*\{{\s*(?!(?:min|sec|tan|ch|sh|th)\b)({_FUNCTION_NAMES})\s*\}}",
            _as_function,
        ),  # not units
        (r"\\operatorname\s*\*?\s*\{\s*([A-Za-z]+)\s*\}", r"\\\1 "),  # an unknown function stays one
        (
            r"\\(?:mbox|textrm|textnormal|mathrm|textit|mathit|hbox|mathsf|texttt|mathtt|textsf|textup|framebox)\s*\{",
            r"\\text{",
        ),
        (r"^\\text\s*\{\s*(?:[Ff]inal\s+)?[Aa]nswer\s*:?\s*\}\s*(?=\S)|^(?:[Ff]inal\s+)?[Aa]nswer\s*:\s*(?=\S)", ""),
        (r"^(?:\\text\s*\{\s*)?(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s*:?\s*(\(?[A-H]\)?)\s*\}?$", r"\1"),
        (r"^(?:\\text\s*\{\s*)?[Nn]o\s+[Ss]olutions?\s*\}?\.?$", r"\\emptyset"),
        (r"^(?:\\text\s*\{\s*)?(?:[Dd]oes\s+[Nn]ot\s+[Ee]xist|DNE)\s*\}?\.?$", r"\\text{DNE}"),
        (r"\\text\s*\{\s*\\(?:text|textbf|mathbf)\s*\{([^{}]*)\}\s*\}", r"\\text{\1}"),
        (
            r"\\frac\s*\{\s*\\text\s*\{([^{}]*)\}\s*\}\s*\{\s*\\text\s*\{([^{}]*)\}\s*((?:\^\s*\{?\d\}?)?)\s*\}",
            r"\\text{\1}/\\text{\2}\3",
        ),
        (r"(?<=[A-Za-z}])_\s*\{\s*\\text\s*\{\s*([A-Za-z]+)\s*\}\s*\}", r"_{\1}"),
        (r"\\text\s*\{\s*\\?\$\s*\}", r"\\$"),
        (r"\\text\s*\{\s*\\AA\s*\}|\\AA(?![a-zA-Z])|\\mathring\s*\{\s*A\s*\}", r"\\text{Å}"),
        (r"(?<=\d)\s*\\?[,;: ]?\s*\\mu\s*\\text\s*\{\s*([a-zA-Z]+)\s*\}", r"\\text{ µ\1}"),
        (r"(?<=\d)\s*\\?[,;: ]?\s*\\Omega\s*$", r"\\text{ ohm}"),
        (r"\\text\s*\{([BDEeidoOPpQqRrUuXxYyZzIMGSTHatbcfjknvw])\}(?!\s*\^?\{?\\circ)", _as_letter),
        (
            r"\\(?:textbf|mathbf|boldsymbol|bm|emph|underline)\s*\{(?=\s*(?:\(?[A-H]\)?|[A-Za-z][A-Za-z :'-]{2,})\s*\})",
            r"\\text{",
        ),
        (r"\\(?:text|textbf|mathbf|boldsymbol|bm|emph|underline)\s*\{\s*(\(?[-\d.,/ ]+\)?)\s*\}", r"\1"),
        (r"(?<=\d)\{,\}(?=\d{3}(?!\d))(?<!(?<!\d)0\{,\})", ""),
        (r"(?<=\d)\{\.\}(?=\d)", "."),
        (
            r"(?<![\w.])\d{1,3}(?:_\d{3})+(?![\w.])|(?<![\w.'])\d{1,3}(?:'\d{3})+(?![\d'])",
            lambda m: re.sub("[_']", "", m.group()),
        ),
        # In groups of two as in India; where one begins with 0, so that no list is meant
        (
            r"(?<![\d,.])(?=\d{1,2}(?:,\d\d)*,0\d,)\d{1,2}(?:,\d\d)+,\d{3}(?![\d,])",
            lambda m: m.group().replace(",", ""),
        ),
        (r"(?<=\d)(?:,\s*\\!|\s*\\[,!;: ])\s*(?=\d{3}(?!\d))", ""),  # a space behind a comma parts a pair
        (r"√\s*(?:\(([^()]*)\)|(\w+))", r"\\sqrt{\1\2}"),
        (r"(?<![a-zA-Z\\])cbrt\s*\(([^()]*)\)", r"\\sqrt[3]{\1}"),
        (r"\\text\s*\{\s*[iI]nfinity\s*\}", r"\\infty "),
        (r"(?<![a-zA-Z\\])(?:[iI]nfinity|inf)(?![a-zA-Z])", r"\\infty "),
        (r"(?:\{\})?\^\s*\{?(\d+)\}?\s*/\s*_\s*\{?(\d+)\}?", r"\\frac{\1}{\2}"),
        (rf"^\s*{_INTERVAL}(?:\s*\\cup\s*{_INTERVAL})*\s*$", _without_reversed_brackets),
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
        (r"\\text(?:bf|it)?\s*\{\s*(\d[\d,.]*)\s+([A-Za-z][^{}]*)\}", r"\1 \\text{ \2}"),
        (r"\\text\s*\{((?:\s*[A-Za-z]+\s*,)+\s*[A-Za-z]+\s*)\}", _as_list_of_words),
        (r"\\text\s*\{\s*\}", ""),
        (r"(?<![\w\\})])\(\s*([0-9A-Z]+)\s*\)\s*_", r"\1_"),
        (r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", r"\\times "),
        (r"(\^|\*\*)(-?\d\d+)(?![\d.])", r"\1{\2}"),  # nobody who writes 2^10 means 2^1 0
        (r"(?<![A-Za-z])(?:US|USD|EUR|GBP|CAD|AUD|Rs\.?|INR)\s*\$?\s*(?=\d)", "$"),
        (r"(?<=[\dA-F])\s*(?:\\text\s*\{\s*)?\(?\s*(?:in\s+)?base[\s-]*\}?\s*\{?(\d+)\)?\s*\}?", r"_{\1}"),
        (rf"(?:\d[{_HIGH_MARK}])+", _as_overlined),
        (r"(\d*\.\d*)\\dot\s*(?:\{(\d)\}|(\d))(\d*)\\dot\s*(?:\{(\d)\}|(\d))(?!\d)", r"\1\\overline{\2\3\4\5\6}"),
        (r"(\d*\.\d*)\\dot\s*(?:\{(\d)\}|(\d))(?![\d}])", r"\1\\overline{\2\3}"),
        (r"(\d*\.\d*)\\(?:overline|bar)\s*(\d)", r"\1\\overline{\2}"),
        (r"(?<![\w.])(\d*\.\d*)\((\d+)\)(?!\s*[\w^(\\])", r"\1\\overline{\2}"),  # a product of numbers is no answer
        (
            r"(?P<before>\d*\.\d*?)(?:(?P<digit>\d)(?P=digit){2,}|(?P<digits>\d{2,}?)(?P=digits)+)\s*(?:\\ldots|\.\.\.)(?=\s*$)",
            _as_repeating,
        ),
        (r"\s+", " "),
    )
)
_WRAPPER = re.compile(r"(?:\\(?:mathbf|boldsymbol|bm|emph|underline|ensuremath|mathit|mathsf)\s*)?\{")
_SPACE = re.compile(r"[\t\n\r]")
_INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_ALTERNATIVE = re.compile(
    r"\\(?:text|mbox|mathrm|textrm)\s*\{(?=[^{}]*\d|\s*,?\s*(?:and|or)\b\s*\})([^{}]*?)\b(and|or)\b([^{}]*)\}"
)
_DOLLAR = re.compile(r"(?<!\\)\$")
_ROW = "\x01"  # a matrix row's end, hidden from rules on single backslashes
_WRAPPERS = (("$$", "$$"), ("$", "$"), ("`", "`"), ("\\(", "\\)"), ("\\[", "\\]"))


@lru_cache(maxsize=4_096)
def normalise_answer(answer: str) -> str:
    r"""Return the one spelling that an answer shares with others that differ in characters, layout or LaTeX commands alone.

    `½`, `\dfrac12` and `$\frac{1}{2}$.` are all `\frac{1}{2}`. Nothing is computed: `\frac{2}{4}` stays.
    """
    text = _SPACE.sub(" ", spell_conjunctions(answer))
    if not text.isascii():
        text = _INVISIBLE.sub("", text.translate(_FULL_WIDTH).translate(_CHARACTERS).translate(_GREEK))
        text = re.sub(f"[{_RAISED}]+", r"^{\g<0>}", text)
        text = re.sub(f"[{_LOWERED}]+", r"_{\g<0>}", text).translate(_PLAIN)
    text = text.strip()
    text = unwrap_text(text).replace("\\\\", _ROW)
    text = _ALTERNATIVE.sub(r"\\text{\1} \2 \\text{\3}", text)
    for pattern, replacement, of_commands in _REWRITES:
        if not of_commands or "\\" in text:
            text = pattern.sub(replacement, text)
    text = unwrap_text(text.strip().rstrip(".,;:\\").strip())
    return _without_wrapper(text.strip("*")).replace(_ROW, "\\\\")


def _without_wrapper(text: str) -> str:
    r"""Return a text without braces around all of it: `{42}` and `\mathbf{42}` are `42`."""
    match = _WRAPPER.match(text)
    if match is None or closing_brace(text, match.end() - 1) != len(text) - 1:
        return text
    return _without_wrapper(text[match.end() : -1].strip())


def unwrap_text(text: str) -> str:
    """Return a text without the delimiters of a formula around all of it: `$42$` is `42`; `$4$ and $2$` stays."""
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
    """Return what stands before a blank, with a mark in the blank's place where it parts two numbers or a command from a letter."""
    following = match.string[match.end()]
    keep = following.isdigit() if match[1].isdigit() else following.isalpha()
    return match[1] + ("\0" if keep else "")


def without_blanks(text: str) -> str:
    """Return a text without white space that says nothing: `x + 1` is `x+1`, but `4 2` is not `42`."""
    return re.sub(r"(\\[a-zA-Z]+|\d) (?=[a-zA-Z\d])", _kept_space, text).replace(" ", "").replace("\0", " ")


_OPENERS = {"(": ")", "[": "]", r"\{": r"\}", r"\langle": r"\rangle"}
_CLOSERS = tuple(_OPENERS.values())
_SEPARATOR = re.compile(
    r"\\text\s*\{\s*,?\s*(?P<joined>and|or)\s*\}|\\begin(?![a-zA-Z])|\\end(?![a-zA-Z])|\\[{}]|[()\[\]{},;]"
    r"|\\(?:cup|lor|vee|land|wedge)(?![a-zA-Z])|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"
)
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![a-zA-Z])")  # `\pmod` is another command
_EITHER = re.compile(r"(?:\\text\s*\{\s*(?:either|both)\s*\}|either\b|both\b)\s*")
_NAMES = {r"\lor": "or", r"\vee": "or", r"\land": "and", r"\wedge": "and"}


@dataclass(frozen=True, slots=True)
class Items:
    r"""separators: commas, `and`, `or`, `\cup` between items."""

    brackets: str
    items: list[str]
    separators: frozenset[str]


def split_items(text: str) -> Items:
    """Split a text into the items that commas, semicolons, unions and words part at its outermost level, without brackets around
    all.

    `[1, (2, 3))` has the brackets `[)` and the items `1` and `(2, 3)`; `x and y` has none and two items. A text that nothing
    parts is one item.
    """
    brackets = ""
    body = text
    for opener in _OPENERS:
        if text.startswith(opener):
            closer = next((c for c in _CLOSERS if text.endswith(c)), None)
            if closer and _closes_at_end(text, len(opener), len(text) - len(closer)):
                brackets = opener + closer
                body = text[len(opener) : -len(closer)]
                break
    items = []
    depth = 0
    start = 0
    separators = set()
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
    """Return whether no bracket between two places closes the one that was opened before them: not so in `(a)(b)`."""
    depth = 1
    for match in re.finditer(r"\\[{}]|[()\[\]]|\\[lr]angle", text[start:end]):
        depth += 1 if match.group() in ("(", "[", "\\{", "\\langle") else -1
        if depth == 0:
            return False
    return True


def expand_signs(items: Items) -> Items:
    r"""Return items with each `a \pm b` as two values; a tuple with such signs becomes a list of tuples."""
    signed = sum(_PLUS_MINUS.search(item) is not None for item in items.items)
    if signed and items.brackets == "()" and len(items.items) > 1:
        points = _both_signs(f"({', '.join(items.items)})")
        return Items("", points, frozenset({","}))
    values = [value for item in items.items for value in _both_signs(item)]
    return Items(items.brackets, values, items.separators | ({","} if values != items.items else set()))


def _both_signs(item: str) -> list[str]:
    r"""Return an item's value for each sign; in a tuple without `\mp` each `\pm` chooses for itself."""
    marks = _PLUS_MINUS.findall(item)
    if not marks:
        return [item]
    if len(marks) == 1 or r"\mp" in marks or not item.startswith("(") or len(marks) > 4:
        return [_with_signs(item, "+", "-"), _with_signs(item, "-", "+")]
    chosen = [""]
    for part in _PLUS_MINUS.split(item):
        chosen = [before + sign + part for before in chosen for sign in ("+", "-")] if chosen != [""] else [part]
    return [re.sub(r"([(,])\s*\+", r"\1", value) for value in chosen]


def _with_signs(text: str, plus: str, minus: str) -> str:
    """Return a text with these signs in the place of plus-minus and minus-plus."""
    text = re.sub(r"\\pm(?![a-zA-Z])", plus, text)
    return re.sub(r"\\mp(?![a-zA-Z])", minus, text).lstrip("+ ")
