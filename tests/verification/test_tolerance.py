"""Golds that allow an error."""

from __future__ import annotations

from fractions import Fraction

import pytest

from harness.verification.catalogue import scorer_of
from harness.verification.equivalence import says_the_same
from harness.verification.scorer import Math
from harness.verification.tolerance import split_tolerance, with_tolerance

GOLD = with_tolerance("4.2", Fraction("1e-1"))


def test_the_error_stands_in_the_gold():
    assert GOLD == "4.2 (within 0.1)"
    assert split_tolerance(GOLD) == ("4.2", Fraction(1, 10))
    assert split_tolerance("4.2 (with 0.1)") == ("4.2 (with 0.1)", None)
    for error in (0, Fraction(-1, 10), Fraction(1, 3)):
        with pytest.raises(ValueError, match="decimal number"):
            with_tolerance("4.2", Fraction(error))


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (GOLD, "4.2", True), (GOLD, "4.1", True), (GOLD, "4.3", True), (GOLD, "r = 4.16\\%", True), (GOLD, r"\frac{25}{6}", True),
        (GOLD, "4.05", False), (GOLD, "4.301", False), (GOLD, "0.042", False), (GOLD, "-4.2", False), (GOLD, "x", False),
        ("4.2", "4.16", False), ("0.5 (within 0.1)", "0.55\\%", False), ("5 \\text{ cm} (within 1)", "5.5 \\text{ kg}", False),
        ("5 \\text{ cm} (within 1)", "5.5", True), ("2x (within 1)", "2x", True), ("2x (within 1)", "3x", False),
    ],
)  # fmt: skip
def test_numbers_within_the_error_are_right(gold, answer, right):
    assert says_the_same(gold, answer) is right


@pytest.mark.parametrize("name", ["math", "math_verify_plain", "qwen_grader"])
def test_a_gold_with_an_error_has_a_perfect_answer(name):
    scorer = Math() if name == "math" else scorer_of(name)
    text = scorer.perfect(GOLD)
    assert text == "The answer is $\\boxed{4.2}$."
    assert scorer.judge(text, GOLD).right
    assert scorer.fault(GOLD) == ""
