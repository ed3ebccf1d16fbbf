"""Words that join two values of an answer, in several languages."""

from __future__ import annotations

import re

_OR_WORDS = (
    r"or\s+(?:else|perhaps|maybe|possibly)|and\s*/\s*or|resp(?:\.|(?![a-z.]))|respectively|oder|bzw\.?|beziehungsweise|ou\s+bien|ou"
    r"|или|або|eller"
)
_AND_WORDS = r"and\s+also|as\s+well\s+as|together\s+with|along\s+with|und|sowie|et|ainsi\s+que|и|та|og|och"
_UNSPACED_OR_WORDS = "또는|または|もしくは|或者|或"
_UNSPACED_AND_WORDS = "及び|以及|및|和|与"
_VALUE_BEGINS = r"(?=,?\s*(?:[-−+$\\({\[]|\d|[A-Za-z](?:_\{?\w\}?)?\s*=))"
_CONJUNCTION = re.compile(
    r"(?<=[\d$)\]}])"  # behind the end of a value
    r"(?:"
    # `5 resp. -5`; without blanks `2et(1)` is a product
    rf"(?P<blank>,?\s+)(?:(?P<or_word>{_OR_WORDS})|(?:{_AND_WORDS}))(?=\s)"
    rf"|(?P<unspaced>\s*,?\s*)(?:(?P<or_sign>{_UNSPACED_OR_WORDS})|(?:{_UNSPACED_AND_WORDS}))"
    # `5 \text{ resp. } -5`
    r"|(?P<command>\s*,?\s*\\(?:text|mbox|mathrm|textrm)\s*\{\s*)"
    rf"(?:(?P<or_text>{_OR_WORDS}|{_UNSPACED_OR_WORDS})|(?:{_AND_WORDS}|{_UNSPACED_AND_WORDS}))"
    r"(?P<closed>\s*\})"
    rf"){_VALUE_BEGINS}",
    re.IGNORECASE,
)


def spell_conjunctions(text: str) -> str:
    r"""Return a text in which words that join two values are `and` or `or`: `5 resp. -5` is `5 or -5`, `$3$ sowie $4$` is
    `$3$ and $4$`.

    Whoever reads a list knows these two alone; behind another word the second value would be read as the whole answer.
    """
    return _CONJUNCTION.sub(_spell_conjunction, text)


def _spell_conjunction(match: re.Match[str]) -> str:
    """Return `and` or `or`, between blanks, or in the command in which the word stood."""
    word = "or" if match["or_word"] or match["or_sign"] or match["or_text"] else "and"
    if match["closed"]:
        return f"{match['command']}{word}{match['closed']}"
    before = match["blank"] or match["unspaced"].rstrip() + " "
    return f"{before}{word} "
