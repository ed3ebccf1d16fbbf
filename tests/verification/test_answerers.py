"""A perfect and a wrong answerer on the benchmark sets (every fifth problem of MATH), by surface form."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.tasks.data import load
from harness.tasks.registry import EVALUATION_SETS
from harness.tasks.sets import Problem
from harness.verification.verifier import Verifier

FOLDER = Path(os.environ.get("HARNESS_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
pytestmark = pytest.mark.skipif(not (FOLDER / "math500.jsonl").is_file(), reason="no benchmark folder (HARNESS_DATA)")
FORMS: dict[str, Callable[[str], str]] = {
    "box": lambda gold: f"\\boxed{{{gold}}}",
    "dollars and full stop": lambda gold: f"So we get $\\boxed{{{gold}}}$.",
    "space after the command": lambda gold: f"Thus \\boxed {{{gold}}}",
    "box, then text": lambda gold: f"Hence $\\boxed{{{gold}}}$ as claimed, since 7 of the 9 cases were excluded.",
    "phrase": lambda gold: f"The answer is {gold}.",
    "phrase in dollars": lambda gold: f"Therefore, the final answer is ${gold}$.",
}


def own_solution(row: Problem) -> str:
    """The set's own solution where it states its final answer (a box; for GSM8K the marked last line)."""
    if row.solution and row.id.startswith("gsm8k"):
        return f"{row.solution}\n#### {row.answer}"
    return row.solution if row.solution and "boxed" in row.solution else ""


@pytest.mark.parametrize("name", EVALUATION_SETS)
def test_perfect_and_wrong_answerers(name: str, verifier: Verifier) -> None:
    rows = load(name, FOLDER)[:: 5 if name == "math" else 1]
    least = 0.98 if name in ("minerva", "olympiad") else 0.99
    asked = {form: [(row, write(row.answer)) for row in rows] for form, write in FORMS.items()}
    asked["own solution"] = [(row, own_solution(row)) for row in rows if own_solution(row)]
    for form, pairs in asked.items():
        verdicts = verifier.verify([(row.answer, text) for row, text in pairs])
        falling = [(row.id, row.answer, v) for (row, _), v in zip(pairs, verdicts, strict=True) if v.value != "right"]
        assert len(falling) <= (1 - (0.9 if "phrase" in form else least)) * len(pairs), (form, falling)
    others = [rows[(place + 11) % len(rows)].answer for place in range(len(rows))]
    wrong = [
        (row.answer, f"\\boxed{{{other}}}") for row, other in zip(rows, others, strict=True) if other != row.answer
    ]
    accepted = [pair for pair, v in zip(wrong, verifier.verify(wrong), strict=True) if v.value == "right"]
    assert len(accepted) <= 0.01 * len(wrong), accepted


def test_of_several_boxes_only_the_last_counts(verifier: Verifier) -> None:
    rows = [row for row in load("math", FOLDER) if row.multi_boxed and row.solution]
    assert len(rows) == 23
    assert {v.value for v in verifier.verify([(row.answer, row.solution) for row in rows])} == {"right"}
    cut = verifier.verify([(row.answer, row.solution.rpartition("\\boxed")[0]) for row in rows if row.solution])
    assert sum(verdict.value == "right" for verdict in cut) == 8
