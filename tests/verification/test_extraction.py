"""What counts as the answer of a response."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.verification.notation import extract


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{1} and \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"write it with \boxed at the end: \boxed {5}", "5"),
        (r"\boxed{5} as asked: answer in \boxed{}", "5"),
        (r"\boxed 17, done", "17"),
        (r"\fbox{3}", "3"),
        (r"\boxed{1} but \boxed{2", ""),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        ("The answer is $x^2$, I think.", "x^2"),
        ("The answer is 1,234.5.", "1,234.5"),
        ("**Final Answer:** 12", "12"),
        ("Answer: \\(\\sqrt{2}\\)", r"\sqrt{2}"),
        ("#### 1,000", "1,000"),
        ("There are 3 and then 7-5 left", "5"),
        ("x=-5", "-5"),
        ("costs $18", "$18"),
        ("no digits at all", ""),
        ("", ""),
    ],
)
def test_extract(text: str, answer: str) -> None:
    assert extract(text) == answer


@given(st.text(alphabet=st.sampled_from("\\boxed{} 12$.answer is\n"), max_size=300))
def test_never_fails_and_never_invents(text: str) -> None:
    assert extract(text) in text


def test_linear_in_the_text() -> None:
    """A million characters of openings are read in well under a second of CPU time, whatever they open."""
    begin = time.process_time()
    for unit in ("\\boxed{", "{", "answer is ", "$", "1,", "\\boxed{}"):
        extract(unit * (200_000 // len(unit)))
    assert time.process_time() - begin < 20
