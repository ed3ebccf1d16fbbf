"""The benchmark sets' own solutions, and answers to other questions (every fifth problem of MATH)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.tasks.data import load_set
from harness.tasks.registry import EVALUATION_SETS
from harness.tasks.set_rows import SetProblem
from harness.verification.verifier import Verifier

FOLDER = Path(os.environ.get("HARNESS_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
pytestmark = pytest.mark.skipif(not (FOLDER / "math500.jsonl").is_file(), reason="no benchmark folder (HARNESS_DATA)")


def own_solution(row: SetProblem) -> str:
    """The set's own solution where it states its final answer (a box; for GSM8K the marked last line)."""
    if row.solution and row.id.startswith("gsm8k"):
        return f"{row.solution}\n#### {row.answer}"
    return row.solution if row.solution and "boxed" in row.solution else ""


@pytest.mark.parametrize("name", EVALUATION_SETS)
def test_own_solutions_are_right_and_other_answers_wrong(name: str, verifier: Verifier) -> None:
    rows = load_set(name, FOLDER)[:: 5 if name == "math" else 1]
    pairs = [(row.answer, own_solution(row)) for row in rows if own_solution(row)]
    falling = [pair for pair, v in zip(pairs, verifier.verify(pairs), strict=True) if v.value != "right"]
    assert len(falling) <= (0.02 if name in ("minerva", "olympiad") else 0.01) * len(pairs), falling
    shifted = [(row.answer, rows[(place + 11) % len(rows)].answer) for place, row in enumerate(rows)]
    wrong = [(gold, f"\\boxed{{{other}}}") for gold, other in shifted if other != gold]
    accepted = [pair for pair, v in zip(wrong, verifier.verify(wrong), strict=True) if v.value == "right"]
    assert len(accepted) <= 0.01 * len(wrong), accepted


def test_of_several_boxes_the_last_counts_and_those_beside_it(verifier: Verifier) -> None:
    """Golds are the last box of a solution; seven of these solutions offer two values side by side, which is another answer."""
    rows = [row for row in load_set("math", FOLDER) if row.multi_boxed and row.solution]
    assert len(rows) == 23
    verdicts = verifier.verify([(row.answer, row.solution) for row in rows])
    several = [verdict.extracted for verdict in verdicts if verdict.value != "right"]
    assert len(several) == 7
    assert all(", " in answer or " or " in answer for answer in several)
    cut = verifier.verify([(row.answer, row.solution.rpartition("\\boxed")[0]) for row in rows if row.solution])
    assert sum(verdict.value == "right" for verdict in cut) == 8
