"""Scorers (docs/tasks.md)."""

from __future__ import annotations

import re
import unicodedata
from abc import ABC
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple, Self

from harness.verification.response import read_answer
from harness.verification.tolerance import without_tolerance
from harness.verification.verdict import KEPT

__all__ = [
    "MATH",
    "Called",
    "Math",
    "Same",
    "Score",
    "Scorer",
    "Undecided",
    "beginning_of",
    "digest_if_long",
    "explain_unmatchable",
]

Same = Callable[[str, str], bool]
"""Whether two read answers say the same."""
_CUT = " ... blake2b:"
_DIGEST = 16  # bytes


class Score(NamedTuple):
    """extracted: the answer read, by which votes tell answers apart; of a longer one than `verdict.KEPT` characters its
    beginning is kept (`digest_if_long` keeps what tells it apart). reason: why it is wrong."""

    right: bool
    extracted: str = ""
    reason: str = ""


class Undecided(Exception):
    """The scorer's fault: the answer is left out."""


class Called(NamedTuple):
    """reference: `module:Class`. An answer that takes more CPU time or longer waiting is invalid."""

    reference: str
    cpu_seconds: float
    wall_seconds: float


def digest_if_long(answer: str) -> str:
    """Return a read answer, short enough to be kept whole.

    Of a longer one it is the beginning and a digest of all of it, so that two are the same only where all of their text is.
    """
    if len(answer) <= KEPT:
        return answer
    mark = _CUT + blake2b(answer.encode("utf-8", "backslashreplace"), digest_size=_DIGEST).hexdigest()
    return answer[: KEPT - len(mark)] + mark


def beginning_of(extracted: str) -> str:
    """Return what `digest_if_long` has kept of an answer's own text: all of a short one."""
    head, mark, digest = extracted.rpartition(_CUT)
    if mark and len(extracted) == KEPT and len(digest) == 2 * _DIGEST:
        return head
    return extracted


_PLACEHOLDER = re.compile(
    r"n\s*/\s*a|n\.\s*a\.?|none|null|nan|nil|unknown|tbd|todo|not available|no answer|omitted|"
    r"see\b.*|(?:a |the )?proof\b.*|answers? (?:may |can )?var(?:y|ies)\.?|[?\-–—_.*]+",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d_]{2,}")
_PROSE = 4  # words without a formula between them
# What JSON reads of a LaTeX command behind one backslash: a line break and `eq` of `\neq`. Others are control characters alone.
_UNESCAPED = re.compile(r"\n(?:eq?|u|abla|ot(?:in)?|eg|mid|leq|geq|parallel)(?![a-zA-Z])")


def explain_unmatchable(gold: str) -> str:
    """Say why no answer in mathematics can equal a gold, where its text alone tells: control characters, a placeholder, prose.

    Empty where it does not tell. Words within LaTeX are left to the verifier.
    """
    gold = gold.strip(" \n").rstrip()  # a leading form feed is half of `\\frac`
    broken = next((c for c in gold if unicodedata.category(c) == "Cc" and c != "\n"), "")
    if not broken and _UNESCAPED.search(gold):
        broken = "\n"
    if broken:
        return (
            f"the answer holds the control character U+{ord(broken):04X} (in JSON a LaTeX command wants two backslashes: "
            '"\\\\frac")'
        )
    if not gold:
        return "the answer is empty"
    if _PLACEHOLDER.fullmatch(gold):
        return f"the answer {gold!r} stands for none"
    if "=" in gold or "\\" in gold:
        return ""
    if any(len(_WORD.findall(part)) >= _PROSE for part in gold.split(",")):
        return f"the answer {gold!r:.80} is prose, no value"
    return ""


class Scorer(ABC):  # noqa: B024  # one of two methods is enough
    """Named by the entry-point group `harness.scorers`; made without arguments in a killable process. Its module imports
    nothing heavy.

    A scorer defines `judge(text, gold)`, and `same(a, b)` where equal answers may be written differently. Packages made
    before define `score(gold, text)` instead, which still works; whichever is not defined calls the other.
    """

    results_version: ClassVar[int | None] = None
    """Raised by the author when it decides otherwise; None takes the code's digest."""
    cpu_seconds: ClassVar[float] = 2.0
    """Of one answer; more is invalid, as a busy machine takes longer."""
    wall_seconds: ClassVar[float] = 60.0
    """More is invalid."""
    examples: ClassVar[Sequence[tuple[str, str, bool]]] = ()
    """(gold, text, whether it is right), of both kinds."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        if cls.judge is Scorer.judge and cls.score is Scorer.score:
            raise TypeError(f"{cls.__qualname__} defines no judge(text, gold)")
        return super().__new__(cls)

    def prepare(self) -> None:  # noqa: B027  # most need nothing
        """Import what is heavy, before limits are set; it is not counted."""

    def fault(self, gold: str) -> str:
        """Say why no answer can be right for a gold, else empty."""
        return "" if gold.strip() else "the answer is empty"

    def perfect(self, gold: str) -> str | None:
        """Return a right text; None where a gold alone makes none."""
        return f"The answer is $\\boxed{{{gold}}}$."

    def remark(self) -> str:
        """Say what this machine lacks for the scorer, else empty."""
        return ""

    def judge(self, text: str, gold: str) -> Score:
        """Decide on the whole response. Raises Undecided."""
        return self.score(gold, text)

    def same(self, a: str, b: str) -> bool:
        """Return whether two answers, as `Score.extracted` gives them, say the same: one vote of maj@k and of regimes that vote. It
        is asked in the harness's own process, on texts that peers wrote: nothing slow."""
        return a == b

    def score(self, gold: str, text: str) -> Score:
        """Call `judge`, under its earlier name and in its earlier order."""
        return self.judge(text, gold)


_USUAL = (
    (r"\frac{x}{2}", "0.5x"),
    (r"\sum_{k=1}^{m} k", r"\frac{m(m+1)}{2}"),
    (
        r"\int_0^1 y^2 \sin y\, dy+\sum_{j=1}^{m}\frac{j^2}{2}+\lim_{h\to 0}\frac{h}{2}",
        r"\max(a,b)+\gcd(u,v)+\binom{n}{2}+|x|+\lfloor \sqrt{y} \rfloor!",
    ),
)


class Math(Scorer):
    """Mathematical equality of the boxed or stated answer: exact arithmetic, then algebra"""

    cpu_seconds = 8.0  # far behind the limit of work, which decides (`work`); this ends what counts no calls
    examples = (("1/2", "so \\boxed{\\frac{1}{2}}", True), ("1/2", "so \\boxed{2}", False))

    def prepare(self) -> None:
        from harness.verification.algebra import are_equivalent

        for gold, answer in _USUAL:  # builds the parser's tables, which every answer would build again
            are_equivalent(gold, answer)

    def perfect(self, gold: str) -> str | None:
        return super().perfect(without_tolerance(gold))

    def fault(self, gold: str) -> str:
        """Say why a gold can be no answer's: by its text alone, or because the verifier does not find a perfect answer right."""
        from harness.verification.equivalence import NeedsAlgebra, decide_on_answer

        why = explain_unmatchable(gold)
        if why:
            return why
        try:
            right = decide_on_answer(gold, read_answer(self.perfect(gold) or "")).right
        except NeedsAlgebra:  # it is read
            return ""
        except Exception:  # whatever the gold makes the verifier raise, it would raise of every answer
            right = False
        return "" if right else f"the answer {gold!r:.80} equals not even itself"

    def judge(self, text: str, gold: str) -> Score:
        from harness.verification.algebra import are_equivalent
        from harness.verification.equivalence import decide_on_answer

        return decide_on_answer(gold, read_answer(text), are_equivalent)

    def same(self, a: str, b: str) -> bool:
        """Compare by exact arithmetic, without algebra. Answers too long to be kept whole are the same where all of their
        text is."""
        from harness.verification.equivalence import same_answer

        if beginning_of(a) != a or beginning_of(b) != b:
            return a == b
        return same_answer(a, b)


MATH = Called(f"{__name__}:{Math.__name__}", Math.cpu_seconds, Math.wall_seconds)
