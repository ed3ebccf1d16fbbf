r"""Which part of a response is its answer.

`read_answer` decides by the first of these that the response has; each reads behind the last closing mark of thinking:

1. the last box or answer tag, whichever ends later; boxes side by side (`\boxed{3}` and `\boxed{5}`) are one list,
2. what follows the last answer phrase (`The answer is`, `####`, `Answer:`, the same in other languages),
3. of the last sentence that has a value, the last formula or number as a whole, or a list that the sentence ends with,
4. a letter that is chosen (`**C**`, `so we choose C`).

A response whose thinking was never closed has no answer. The answer is returned as it was written; `notation` gives it one
spelling. Every scan is linear in the response's length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from harness.verification.conjunctions import spell_conjunctions
from harness.verification.numerals import is_connective, is_label, read_phrase

__all__ = [
    "THINKING_CLOSES",
    "THINKING_OPENS",
    "closing_brace",
    "last_box",
    "read_answer",
    "read_box",
    "text_behind_thinking",
]

# Thinking ----------------------------------------------------------------------------------------------------------------

OPENING_MARKS = ("<think>", "[THINK]", "<|START_THINKING|>", "<seed:think>", "◁think▷")
CLOSING_MARKS = ("</think>", "[/THINK]", "<|END_THINKING|>", "</seed:think>", "◁/think▷")
"""The marks of published tokenizers, in one order; `tokenization.codec` translates between them."""
THINKING_OPENS = (
    *OPENING_MARKS, "<thinking>", "<thought>", "<reasoning>", "<|begin_of_thought|>", "<|channel|>analysis<|message|>",
)  # fmt: skip
THINKING_CLOSES = (
    *CLOSING_MARKS, "</thinking>", "</thought>", "</reasoning>", "<|end_of_thought|>", "<|channel|>final<|message|>",
)  # fmt: skip
"""Those, and what models write as plain text."""


def text_behind_thinking(text: str) -> str:
    """Return what follows the last closing mark of thinking; empty where thinking was opened again, or never closed.

    A response may close what its prompt has opened, so a closing mark counts without an opening one.
    """
    end = 0
    for mark in THINKING_CLOSES:
        place = text.rfind(mark)
        if place >= 0:
            end = max(end, place + len(mark))
    visible = text[end:]
    if any(mark in visible for mark in THINKING_OPENS):
        return ""
    return visible


# Boxes -------------------------------------------------------------------------------------------------------------------

_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BOX = re.compile(r"(?:(?<=\\)boxed|(?<=\\f)box(?:ed)?)(?![a-zA-Z])\s*")
_EMPTY_BOX = re.compile(r"\\f?box(?:ed)?\s?\{\s?\}")  # of a response that repeats what it was asked
_BARE_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
_MOST_BOXES = 40
_BETWEEN_BOXES = re.compile(
    r"(?:\s|\$|\\[()\[\]]|\\(?:q?quad(?![a-zA-Z])|[,;:! \\])|[,;&、，；*]"
    r"|(?<![A-Za-z])(?:and|or|und|oder|et|ou|y|o)(?![A-Za-z])|[和或与及]"
    r"|\\(?:text|mbox|textrm)\s*\{[\s,]*(?:and|or)?[\s,]*\}|\([a-h]\)|\(i{1,3}\)|(?<=\n)(?:\d{1,2}[.)]|[-•])(?=\s))*"
    r"(?:(?P<name>[A-Za-z](?:_\{?\w\}?)?)\s*=\s*)?"
)
_OR = re.compile(r"(?<![A-Za-z])(?:or|oder|ou|o)(?![A-Za-z])|或")
_NAME_BEFORE = re.compile(r"(?<![A-Za-z\\])([A-Za-z](?:_\{?\w\}?)?)\s*=\s*$")
_SAME_AGAIN = re.compile(r"(?:\s|\$|\\[()\[\]]|\*)*")  # between a box and its repetition


class _Box(NamedTuple):
    """start, end: of the command and behind its closing brace. content: None where the brace never closes."""

    start: int
    end: int
    content: str | None


def closing_brace(text: str, start: int) -> int | None:
    """Return where the brace at `start` closes; None where it does not within 65,536 characters."""
    depth = 0
    for brace in _BRACE.finditer(text, start, start + (1 << 16)):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return brace.start()
    return None


def read_box(text: str, start: int) -> str | None:
    """Return what a box that opens at `start` holds; None where its brace never closes."""
    return _read_box(text, start, start).content


def last_box(text: str) -> str | None:
    """Return what the last box holds that holds something; empty where its brace never closes, None without any box."""
    box = next(_boxes_from_the_end(text), None)
    return None if box is None else (box.content or "").strip()


def _read_box(text: str, start: int, opening: int) -> _Box:
    r"""Read the box whose command begins at `start` and whose content at `opening`; without a brace, `\boxed 42`, only a number."""
    if text[opening : opening + 1] != "{":
        number = _BARE_NUMBER.match(text, opening)
        if number is None:
            return _Box(start, opening, "")
        return _Box(start, number.end(), number.group().rstrip(","))
    close = text.find("}", opening)
    simple = text[opening + 1 : close]
    if close < 0:
        return _Box(start, len(text), None)
    if "{" in simple or "\\" in simple:
        end = closing_brace(text, opening)
        if end is None:
            return _Box(start, len(text), None)
        close = end
    return _Box(start, close + 1, text[opening + 1 : close])


def _boxes_from_the_end(text: str) -> Iterator[_Box]:
    """Yield the boxes that hold something, the last first; of a box in a box, the inner one and then the outer one."""
    end = len(text)
    while (end := text.rfind("box", 0, end)) >= 0:
        command = _BOX.match(text, end)
        if command:
            start = end - 1 if text[end - 1] == "\\" else end - 2
            box = _read_box(text, start, command.end())
            if box.content is None or box.content.strip():
                yield box


class _Marked(NamedTuple):
    """An answer that is marked as such, and where its mark ends."""

    answer: str
    end: int


def _last_boxes(text: str) -> _Marked | None:
    r"""Read the last box, with those that stand side by side with it as one list: `$\boxed{3}$ and $\boxed{5}$` is `3, 5`.

    It goes from box to box towards the beginning, until words that are no joint stand between two. `x=\boxed{2},\ y=\boxed{9}`
    keeps its names; a box repeated at once counts once. None without any box.
    """
    boxes = _boxes_from_the_end(text)
    last = next(boxes, None)
    if last is None:
        return None
    if last.content is None:
        return _Marked("", last.end)
    answer = first = last.content.strip()
    start = last.start
    end = last.end
    named = False
    for count, box in enumerate(boxes, 2):
        if box.content is None or count > _MOST_BOXES:
            break
        if box.end > start:  # it holds the one that was read
            start = box.start
            end = max(end, box.end)
            continue
        between = text[box.end : start] if start - box.end <= 120 else "."
        joined = _BETWEEN_BOXES.fullmatch(between)
        if joined is None:
            break
        if joined["name"]:
            answer = f"{joined['name']} = {answer}"
            named = True
        content = box.content.strip()
        start = box.start
        if not (content == first and _SAME_AGAIN.fullmatch(between)):
            answer = content + (r" \text{ or } " if _OR.search(between) else ", ") + answer
        first = content
    if named and (name := _NAME_BEFORE.search(text, max(0, start - 20), start)):
        answer = f"{name[1]} = {answer}"
    return _Marked(answer, end)


# Answer tags -------------------------------------------------------------------------------------------------------------

_SENTENCE_WITH_VALUE = re.compile(r"[A-Z][a-z]+\s[a-z]+\s.*[\d$\\]", re.DOTALL)
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)


def _last_tag(text: str) -> _Marked | None:
    """Return what the last answer tag holds that holds something; the end of the response may close it."""
    tail = text[-_TAIL:]
    cut = len(text) - len(tail)
    end = len(tail)
    for tag in reversed(list(_TAG.finditer(tail))):
        is_closing = bool(tag[1])
        content = "" if is_closing else tail[tag.end() : end].strip()
        if content:
            return _Marked(content, cut + end)
        end = tag.start()
    return None


def _read_tag(content: str) -> str:
    """Read the answer in a tag: its box, what it states, the whole where it is one formula or a few words, else its last value."""
    boxes = _last_boxes(content)
    if boxes is not None:
        return boxes.answer
    stated = _last_stated(content)
    if stated is not None:
        return stated
    if _WHOLE_FORMULA.fullmatch(content) or not ("\n" in content or _SENTENCE_WITH_VALUE.match(content)):
        return _strip_marks(content)
    return _last_value(content)


# Answer phrases ----------------------------------------------------------------------------------------------------------

_VERB = (
    r"(?:is|are|equals?|(?:should|would|will|must|has\sto|can\sonly)\sbe|comes?\s(?:out\s)?to|works?\sout\s(?:to|as)"
    r"|turns?\sout\sto\sbe|becomes)"
)
_OF_WHAT = rf"(?:\s(?:to|for|of|in)\s[^.!?\n\d$\\:=]{{1,80}}?(?=\s{_VERB}\b)|,\s[a-z ]{{2,30}},(?=\s{_VERB}\b))?"
_PHRASE = re.compile(
    rf"####(?!#)|\b(?:answers?|ans|(?:correct|right|best)\s+(?:option|choice))\b{_OF_WHAT}[*_`]{{0,3}}\s{{0,8}}"
    rf"(?:\.?\s{{0,8}}[:：=]|[-–—]\s|\b{_VERB}\b(?!\s{{0,8}}not\b))"
    rf"|(?:^|\n)[ \t#*_>]{{0,20}}(?:the\s|my\s)?(?:final\s)?answer[ \t*_#:]{{0,20}}\n"
    r"|答案\s?(?:应该|應該)?\s?(?:是|为|為|[:：])|答えは|答え\s?[:：]|정답은|답은|답\s?[:：]"
    r"|\brespuesta(?:\sfinal|\scorrecta)?\s?(?:es\b|:)|\br[ée]ponse(?:\sfinale)?\s?(?:est\b|:)"
    r"|\bantwort\s?(?:ist\b|lautet\b|:)|\bresposta(?:\sfinal)?\s?(?:é\b|:)|\brisposta(?:\sfinale)?\s?(?:è\b|:)"
    r"|\bответ(?:ом\sявляется|\s?[:—–-])",
    re.IGNORECASE,
)
_REFUSED = re.compile(r"\banswers?\b[^.!?\n]{0,60}?(?:n['’]t\b|\bnot\b|\bcannot\b)", re.IGNORECASE)
_HEADING = re.compile(r"[^\S\n]*\**[A-Za-z]{2,}")  # `#### Step 2` is a title
_LEADING = re.compile(
    r"(?:(?:therefore|thus|then|hence|simply|clearly|obviously|also|now|indeed|again|still|finally|in fact|of course|so)\b[,:]?\s*"
    r")+",
    re.IGNORECASE,
)
_NAMED_LETTER = re.compile(r"(?:option|choice|answer|letter)\s+(\(?[A-Z]\)?)", re.IGNORECASE)
_ON = r"(?!\s+(?:or|alternatively|otherwise|maybe|perhaps|possibly)\b)"  # the sentence goes on
_SENTENCE_END = re.compile(
    rf"(?<!\\)(?<!\bapprox)(?<!\bsq)(?:[.?]|!(?!\s*[-=+*/<>\\]))(?=\s|$){_ON}|[。！？]|\n(?![^{{}}\n]*\}})",
    re.IGNORECASE,
)
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
_MOST_PHRASES = 64


def _last_stated(text: str) -> str | None:
    """Return what follows the last answer phrase that something follows; None without any."""
    ends = [phrase.end() for phrase in _PHRASE.finditer(text) if not _is_title(text, phrase)]
    for end in reversed(ends[-_MOST_PHRASES:]):
        stated = _read_statement(text[end : end + _TAIL])
        if stated:
            return stated
    return None


def _is_title(text: str, phrase: re.Match[str]) -> bool:
    """Return whether `####` opens a title with text under it, as in Markdown."""
    if phrase.group() != "####" or not _HEADING.match(text, phrase.end()):
        return False
    line_end = text.find("\n", phrase.end())
    return line_end >= 0 and not text[line_end:].isspace()


def _read_statement(rest: str) -> str:
    """Return the answer that stands behind an answer phrase: up to the sentence's end or a reason (`7, because ...`).

    A formula that comes first is the answer where mere words follow it (`$7$ apples`); a list goes on behind it (`$2$ or $9$`).
    """
    rest = rest.lstrip(" \t:：*=\n>`_")
    rest = rest[match.end() :] if (match := _LEADING.match(rest)) else rest
    for opening, closing in _MATH:
        if not rest.startswith(opening):
            continue
        close = closing.search(rest, len(opening))
        if close is None or (opening == "$" and _PRICE.match(rest[: close.end()])):
            break
        formula = rest[len(opening) : close.start()].strip()
        behind = _cut_clause(rest[close.end() :])
        follows = _FOLLOWS.match(behind)
        if follows is None or not (follows["list"] or not is_label(follows["word"])):
            return formula
        return formula + " " + _DELIMITER.sub(" ", behind).strip(" *")
    return _strip_marks(_cut_clause(rest))


def _cut_clause(text: str) -> str:
    """Return a statement up to the end of its clause: a sentence's end, a reason, or an aside behind a comma (`7, which ...`)."""
    end = _SENTENCE_END.search(text)
    clause = _REASON.split(text[: end.start()] if end else text, maxsplit=1)[0]
    aside = next((comma for comma in _ASIDE.finditer(clause) if is_label(comma[1])), None)
    return clause[: aside.start()] if aside else clause


def _strip_marks(text: str) -> str:
    r"""Return a text without emphasis, and without a closing delimiter that was opened before the phrase (`\[Answer: 7\]`)."""
    text = text.strip(" \t\n*`_")
    for opening, closing in (("\\[", "\\]"), ("\\(", "\\)"), ("$", "$")):
        if text.endswith(closing) and opening not in text[: -len(closing)]:
            text = text[: -len(closing)].strip(" *`_")
    letter = _NAMED_LETTER.fullmatch(text)
    return letter[1] if letter else text


# The last value of a response that marks none ------------------------------------------------------------------------------

_FORMULA = re.compile(
    r"\$\$(?P<display>.+?)\$\$|\\\[(?P<bracket>.+?)\\\]|\\\((?P<inline>.+?)\\\)"
    r"|(?<!\\)\$(?=\S)(?P<dollar>[^$\n]{1,800}?)(?<![\s\\])\$(?!\d)",
    re.DOTALL,
)
_WHOLE_FORMULA = re.compile(r"\s*(?:" + _FORMULA.pattern + r")\s*", re.DOTALL)
_PLACEHOLDER = "\ue000"  # a private character: it stands for a formula while sentences are told apart
_FUNCTION = r"(?:sqrt|sin|cos|tan|log|ln|exp|pi)"
_MATH_WORD = re.compile(
    rf"(?:\\[a-zA-Z]+|\\[{{}}%$!,;: ]|{_FUNCTION}(?![a-zA-Z])|(?<![A-Za-z])[A-Za-z](?![A-Za-z])"
    r"|[\d.,:;%$€£¥°²³√π∞≤≥×·÷±−+*/^=_<>!|(){}\[\]'-])+"
)
_WITH_UNIT = re.compile(r"[$€£]?\d[\d,]*(?:\.\d+)?[A-Za-z]{1,3}(?:\^?\d|[²³])?")
_ORDINAL = re.compile(r"\d+(?:st|nd|rd|th)")
_LONE_LETTER = re.compile(r"[A-Za-z]")
_MEASURED = re.compile(r"([-−+]?[\d.,]+)\s+([mgslhLJKNWVA](?:\^?\d|[²³])?)")
_SCORE = re.compile(r"\d+(?:-\d+)+")  # `7-5` outside a formula is no difference
_SOLE_NAME = re.compile(r"(?:[A-Za-z]|\\(?!pi\b|infty\b)[a-zA-Z]+)(?:_\{?\w+\}?)?'*")
_UNIT_ALONE = re.compile(r"(?:\s*\\(?:text|mathrm|mbox|textrm)\s*\{[^{}]*\}\s*(?:\^\s*\{?-?\d\}?)?)+\s*")
_JOINS = re.compile(r"\s*(?:[,;、，]|[,;]?\s*(?:and|or)|和|或)\s*")
_OPENS_LIST = re.compile(r"(?:\b(?:is|are|be|equals?|get|obtain|have|gives?)|=|^)\s*$", re.IGNORECASE)
_EQUATIONS = re.compile(
    r"(?<![\w\\])([A-Za-z] ?= ?[^\s,;=$]+(?:(?:, ?(?:and )?| and | or )[A-Za-z] ?= ?[^\s,;=$]+)+)[\s.]*$"
)
_BOUND_BEFORE = re.compile(
    r"\b(?:between\s[^.]{1,40}\sand|(?:more|less|greater|fewer|larger|smaller)\s+than)\s*$", re.IGNORECASE
)
_CHOSEN = re.compile(r"\b(?:choose|chose|pick|select|option|choice)\b[\s:*]*\(?([A-H])\)?[\s.*]*$", re.IGNORECASE)
_LETTER_ALONE = re.compile(r"[\s*_]*\(?([A-H])\)?[\s*_.]*")


class _Item(NamedTuple):
    """A formula or a number in a sentence."""

    start: int
    end: int
    text: str
    is_formula: bool


def _last_value(text: str) -> str:
    """Return the value of the last sentence that has one (`_value_of_sentence`); else a chosen letter, else nothing.

    Formulas are taken out while sentences are told apart: a point within `$3.5$` ends none. A sentence that refuses an answer (`it
    is not 7`) is passed over, and its formulas with it.
    """
    tail = text[-_TAIL:]
    formulas: list[str] = []

    def keep(match: re.Match[str]) -> str:
        formulas.append(next(part for part in match.groups() if part is not None).strip())
        return _PLACEHOLDER

    plain = _FORMULA.sub(keep, tail.replace(_PLACEHOLDER, " "))
    sentences = _split_sentences(plain)
    for sentence in reversed(sentences):
        count = sentence.count(_PLACEHOLDER)
        own = formulas[len(formulas) - count :] if count else []
        del formulas[len(formulas) - count :]
        if _REFUSED.search(sentence):
            continue
        value = _value_of_sentence(sentence, own)
        if value:
            return value
    last = sentences[-1] if sentences else ""
    chosen = _CHOSEN.search(last) or _LETTER_ALONE.fullmatch(last)
    return chosen[1] if chosen else ""


def _split_sentences(text: str) -> list[str]:
    """Return the sentences of a text that are not blank, without the mark that ends them."""
    sentences = list[str]()
    start = 0
    for end in _SENTENCE_END.finditer(text):
        sentences.append(text[start : end.start()])
        start = end.end()
    sentences.append(text[start:])
    return [sentence for sentence in sentences if sentence.strip()]


def _value_of_sentence(sentence: str, formulas: list[str]) -> str:
    r"""Return the value that a sentence states last, by the first line that fits; empty where it states none.

        no values but names         the last name                 Therefore it is $x$.        x
        equations at the end        all of them                   so x = 2 and y = 3          x = 2 and y = 3
        several values, a list      all of them                   The roots are 3 and 5.      3, 5
        a bound before the last     with the bound, as no value   It is more than 7.          more than 7
        a formula                   the last one                  Thus $p = \frac{1}{2}$.     p = \frac{1}{2}
        a number, a unit's letter   the number with its unit      It is 5 m.                  5 \text{ m}
        a number                    with words that matter        It costs 7 plus tips.       7 plus tips

    formulas: those of the sentence, which has a placeholder for each. Several values are a list where all are formulas, or where
    words such as `are` come before them; else the last one counts.
    """
    items = list(_items_of_sentence(sentence, formulas))
    values = [item for item in items if not (item.is_formula and _SOLE_NAME.fullmatch(item.text))]
    if not values:
        return items[-1].text if items else ""
    equations = _EQUATIONS.search(sentence)
    if equations:
        return equations[1]
    together = _values_side_by_side(sentence, values)
    if len(together) > 1 and (all(item.is_formula for item in together) or _opens_list(sentence, together[0])):
        return ", ".join(item.text for item in together)
    last = values[-1]
    bound = _BOUND_BEFORE.search(sentence, 0, last.start)
    if bound:
        return bound.group().strip() + " " + last.text
    if last.is_formula:
        return last.text
    measured = _MEASURED.fullmatch(last.text)
    if measured:  # in prose a letter behind a number and a blank is a unit
        return rf"{measured[1]} \text{{ {measured[2]}}}"
    return last.text + _words_behind(sentence[last.end :])


def _values_side_by_side(sentence: str, values: list[_Item]) -> list[_Item]:
    """Return the last of the values, and those before it that only commas, `and` or `or` part from it."""
    first = len(values) - 1
    while first and _JOINS.fullmatch(sentence, values[first - 1].end, values[first].start):
        first -= 1
    return values[first:]


def _opens_list(sentence: str, item: _Item) -> bool:
    """Return whether a value stands where a list may begin: behind `are`, `obtain`, an equality sign, or first of all."""
    return _OPENS_LIST.search(sentence, 0, item.start) is not None


def _items_of_sentence(sentence: str, formulas: list[str]) -> Iterator[_Item]:
    r"""Yield formulas, and runs of words that are mathematics (`x + 3`); a number and a formula that is its unit are one.

    In `the sum 3 + 4 is 7 $\text{ cm}$` they are `3 + 4` and `7 \text{ cm}`. A run ends where a word is no mathematics, or where a
    comma outside brackets ends one of its words.
    """
    remaining = iter(formulas)
    found: list[_Item] = []
    position = 0
    for word in [*re.finditer(r"\S+", sentence), None]:
        is_plain = word is not None and _PLACEHOLDER not in word.group() and _is_mathematics(word.group())
        if is_plain and word is not None and not _has_ended(sentence[position : word.start()]):
            continue
        end = word.start() if word else len(sentence)
        run = _plain_item(sentence, position, end)
        if run:
            found.append(run)
        if word is None:
            break
        if _PLACEHOLDER not in word.group():
            position = word.start() if is_plain else word.end()
            continue
        position = word.start()
        for place in re.finditer(_PLACEHOLDER, word.group()):
            at = word.start() + place.start()
            formula = next(remaining)
            before = _plain_item(sentence, position, at)
            if before is None and found and not found[-1].is_formula and not sentence[found[-1].end : at].strip():
                before = found.pop()
            if before is not None and _UNIT_ALONE.fullmatch(formula):
                found.append(_Item(before.start, at + 1, f"{before.text} {formula}", True))
            else:
                found += [before] if before is not None else []
                found.append(_Item(at, at + 1, formula, True))
            position = at + 1
        behind = _plain_item(sentence, position, word.end())
        if behind:
            found.append(behind)
        position = word.end()
    yield from found


def _is_mathematics(word: str) -> bool:
    """Return whether a word outside a formula is a part of one; an article or a number with its unit (`5cm`) is none."""
    text = word.strip("*`_\"'") or "*"
    return (
        _MATH_WORD.fullmatch(text) is not None
        and text not in ("a", "A", "I")
        and not _WITH_UNIT.fullmatch(text.rstrip(".,;:"))
    )


def _has_ended(run: str) -> bool:
    """Return whether a run of mathematics ends here: `3, 5` are two numbers, `(3, 5)` is one value."""
    before = run.rstrip()
    return before.endswith((",", ";", ":")) and not _is_open(before)


def _is_open(text: str) -> bool:
    """Return whether a bracket of a text is still open at its end."""
    return sum(text.count(mark) for mark in "([{") > sum(text.count(mark) for mark in ")]}")


def _plain_item(sentence: str, start: int, end: int) -> _Item | None:
    """Read a part of a sentence without words as one item; None where there is no value.

    Marks around it and a dash before it are left out; of a score, `7-5`, and of an equation of a letter, `x=-5`, the last number
    counts. start, end: of the part.
    """
    text = sentence[start:end]
    offset = len(text) - len(text.lstrip(" \t*`_\"',;:"))
    text = text.strip(" \t*`_\"',;:")
    trimmed = re.sub(r"^[-+*/=<>|]\s+", "", text)  # a dash before a blank is no sign
    offset += len(text) - len(trimmed)
    text = trimmed
    if _SCORE.fullmatch(text):
        offset += text.rindex("-") + 1
        text = text[text.rindex("-") + 1 :]
    if re.fullmatch(r"[A-Za-z]\s*=\s*[-−]?[\d.,]+", text):  # `x=-5`
        offset += len(text) - len(text.partition("=")[2].lstrip())
        text = text.partition("=")[2].lstrip()
    if not re.search(r"\d|\\[a-zA-Z]|[=^√π∞]", text) or _LONE_LETTER.fullmatch(text):
        return None
    return _Item(start + offset, start + offset + len(text), text, False)


def _words_behind(text: str) -> str:
    """Return the words behind a number that may make another value of it, or name its unit; empty where they are mere nouns.

    `7 percent of them` gives ` percent`, `7 plus tips` gives ` plus tips` since it is not 7, and `7 apples` gives nothing.
    """
    clause = _cut_clause(text)
    words = re.findall(r"\S+", clause)[:6]
    if not words or not words[0][0].isalpha():
        return ""
    for count in range(len(words), 0, -1):
        phrase = read_phrase(" ".join(words[:count]).rstrip(".,;:*`_"))
        if phrase is None:
            continue
        tells = phrase.unit or phrase.factor != 1 or phrase.percent
        if tells:
            return " " + " ".join(words[:count]).rstrip(" .,;:*`_")
        return ""
    if is_label(words[0]) or (is_connective(words[0]) and not re.search(rf"[\d{_PLACEHOLDER}]", clause)):
        return ""  # `7 and nothing else`
    return " " + " ".join(words).rstrip(" .,;:*`_")


def read_answer(text: str) -> str:
    """Return a response's answer as it was written; empty without one, and where the last box is never closed."""
    visible = spell_conjunctions(_EMPTY_BOX.sub("", text_behind_thinking(text)))
    boxes = _last_boxes(visible)
    tag = _last_tag(visible)
    if tag is not None and (boxes is None or boxes.end <= tag.end):
        return _read_tag(tag.answer)
    if boxes is not None:
        return boxes.answer
    stated = _last_stated(visible)
    return stated if stated is not None else _last_value(visible)
