"""A perfect and a wrong answerer on the benchmark sets (every fifth problem of MATH)."""

from __future__ import annotations

import os
from pathlib import Path

import answerers
import pytest

from harness.tasks.data import load
from harness.tasks.registry import EVALUATION_SETS
from harness.verification.verifier import Verifier

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("HARNESS_DATA") or ROOT.parent / "shared" / "data")


@pytest.mark.skipif(not (FOLDER / "math500.jsonl").is_file(), reason="no benchmark folder (HARNESS_DATA)")
@pytest.mark.parametrize("name", EVALUATION_SETS)
def test_perfect_and_wrong_answerers(name: str, verifier: Verifier) -> None:
    rows = load(name, FOLDER)[:: 5 if name == "math" else 1]
    result = answerers.measure(name, rows, verifier)
    least = 0.98 if name in ("minerva", "olympiad") else 0.99
    for form in answerers.FORMS:
        assert result[form] >= (0.9 if "phrase" in form else least), (form, result["falling"])
    assert result["own solution"] is None or result["own solution"] >= least, result["falling"]
    assert result["wrong answerer"] <= 0.01, result["wrong but accepted"]


@pytest.mark.skipif(not (FOLDER / "math500.jsonl").is_file(), reason="no benchmark folder (HARNESS_DATA)")
def test_of_several_boxes_only_the_last_counts(verifier: Verifier) -> None:
    """MATH's solutions that box several contents: the whole text is right, the last box taken away is not the gold any more."""
    rows = [row for row in load("math", FOLDER) if row.multi_boxed and row.solution]
    assert len(rows) == 23
    whole = verifier.verify([(row.answer, row.solution) for row in rows])
    assert [row.id for row, verdict in zip(rows, whole, strict=True) if verdict.value != "right"] == []
    cut = [(row.answer, row.solution.rpartition("\\boxed")[0]) for row in rows if row.solution]
    assert (
        sum(verdict.value == "right" for verdict in verifier.verify(cut)) == 8
    )  # whose earlier box has the same value
