"""One spelling for answers that mean the same, and the parts of lists. Nothing is evaluated."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

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
_ROW = "\x01"  # a matrix row's end, which the rules on single backslashes must not see
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


def closing_brace(text: str, start: int, longest: int = 1 << 16) -> int | None:
    """Where the brace at `start` is closed; None where it is not within so many characters."""
    depth = 0
    for brace in _BRACE.finditer(text, start, start + longest):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return brace.start()
    return None


def unwrap(text: str) -> str:
    """Without the maths delimiters around the whole."""
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
    """The items at the outermost level."""
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
