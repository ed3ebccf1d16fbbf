"""Scorers (docs/tasks.md)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from harness.verification.response import read_answer

__all__ = ["MATH", "Called", "Math", "Score", "Scorer", "Undecided"]


class Score(NamedTuple):
    """extracted: the answer read. reason: why it is wrong."""

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


class Scorer(ABC):
    """Named by the entry-point group `harness.scorers`; made without arguments in a killable process. Its module imports
    nothing heavy."""

    results_version: ClassVar[int | None] = None
    """Raised by the author when it decides otherwise; None takes the code's digest."""
    cpu_seconds: ClassVar[float] = 2.0
    """Of one answer; more is invalid, as a busy machine takes longer."""
    wall_seconds: ClassVar[float] = 60.0
    """More is invalid."""
    examples: ClassVar[Sequence[tuple[str, str, bool]]] = ()
    """(gold, text, whether it is right), of both kinds."""

    def prepare(self) -> None:  # noqa: B027  # most need nothing
        """Heavy imports, not counted."""

    def fault(self, gold: str) -> str:
        """Of a gold, else empty."""
        return "" if gold.strip() else "the answer is empty"

    def perfect(self, gold: str) -> str | None:
        """A right text; None where a gold alone makes none."""
        return f"The answer is $\\boxed{{{gold}}}$."

    def remark(self) -> str:
        """What this machine lacks for it, else empty."""
        return ""

    @abstractmethod
    def score(self, gold: str, text: str) -> Score:
        """On the whole response. Raises Undecided."""


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
        from harness.verification.algebra import equivalent

        for gold, answer in _USUAL:  # builds the parser's tables, which every answer would build again
            equivalent(gold, answer)

    def score(self, gold: str, text: str) -> Score:
        from harness.verification.algebra import equivalent
        from harness.verification.equivalence import decide

        return decide(gold, read_answer(text), equivalent)


MATH = Called(f"{__name__}:{Math.__name__}", Math.cpu_seconds, Math.wall_seconds)
