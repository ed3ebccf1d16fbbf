"""Equality of text or letter."""

from __future__ import annotations

import re

from harness.verification.response import last_box, text_behind_thinking
from harness.verification.scorer import Score, Scorer

_DRESS = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\s*|[{}$*]")
_LETTER = re.compile(r"\(?\s*([A-Za-z])\s*(?:[).:]+(?:\s.*)?)?", re.DOTALL)
_SAID = re.compile(
    r"(?i:\b(?:answer|correct\s+(?:option|choice))\s*(?:is\s*:?|:))\s*(?:option\s+)?(?:\\text(?:bf)?|[\s*$({])*([A-Z])\b(?!')"
)


class Exact(Scorer):
    """The same text: the last box, or where there is none the last line, white space aside"""

    examples = (
        ("Paris, France", "It is\n  Paris,  France \n", True),
        ("Paris", "Not Rome: \\boxed{Paris}.", True),
        ("Paris", "It is Paris", False),
        ("Paris", "paris", False),
        ("Paris", "\\boxed{Rome}\nParis", False),
        ("Paris", "<think>\\boxed{Rome}?</think>\nParis", True),
        ("Paris", "<think>\\boxed{Paris}", False),
    )

    def judge(self, text: str, gold: str) -> Score:
        """Judge the last box, or where there is none the last line."""
        text = text_behind_thinking(text)
        box = last_box(text)
        lines = [line for line in text.splitlines() if line.strip()]
        said = " ".join((box if box is not None else lines[-1] if lines else "").split())
        return Score(said == " ".join(gold.split()), said, "" if said else "missing")

    def same(self, a: str, b: str) -> bool:
        """Return whether two texts are the same but for white space."""
        return a.split() == b.split()


class Choice(Scorer):
    """The same letter: of the last box, of "the answer is (B)", or of a last line that is a letter alone"""

    examples = (
        ("B", "Therefore \\boxed{B}", True),
        ("B", "\\boxed{\\text{(B) Paris}}", True),
        ("B", "A is tempting, but the answer is **(B)**.", True),
        ("B", "The answer is: \\textbf{(B)} Paris, not A.", True),
        ("B", "Let me see.\n(b).", True),
        ("B", "<think>The answer is (A)? No.</think> (B)", True),
        ("B", "The answer is (A), or is it \\boxed{C}", False),
        ("A", "A train leaves at noon.", False),
        ("I", "I do not know", False),
    )

    def fault(self, gold: str) -> str:
        return "" if _stated_letter(gold) else "the answer is no letter from A to Z"

    def judge(self, text: str, gold: str) -> Score:
        """Judge the letter of the last box, else of the last phrase that states one, else a last line of at most four
        characters."""
        text = text_behind_thinking(text)
        box = last_box(text)
        if box is not None:
            said = _stated_letter(box)
        elif phrases := _SAID.findall(text):
            said = phrases[-1].upper()
        else:
            lines = text.split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "")
            said = _stated_letter(last) if len(last.strip()) <= 4 else ""
        return Score(said == _stated_letter(gold) != "", said, "" if said else "missing")

    def same(self, a: str, b: str) -> bool:
        """Return whether two answers state the same letter."""
        return _stated_letter(a) == _stated_letter(b)


def _stated_letter(text: str) -> str:
    """Return the letter of the stated option, in capitals; empty without one."""
    match = _LETTER.fullmatch(_DRESS.sub("", text).strip())
    return match[1].upper() if match else ""
