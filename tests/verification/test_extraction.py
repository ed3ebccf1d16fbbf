"""What counts as the answer of a response."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.verification.response import read_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{1} and \boxed{2}", "1, 2"),
        (r"\boxed{1}. Then \boxed{2}", "2"),
        (r"\boxed{1}, or rather \boxed{2}", "2"),
        (r"either $\boxed{1}$ or $\boxed{2}$", r"1 \text{ or } 2"),
        (r"$x = \boxed{1}$, $y = \boxed{2}$", "x = 1, y = 2"),
        ("so $\\boxed{7}$\n\n$$\\boxed{7}$$", "7"),
        (r"<think>is it \boxed{1}?</think> It is \boxed{2}.", "2"),
        (r"is it \boxed{1}?</think> The answer is $\frac23$.", r"\frac23"),
        (r"<think>it is \boxed{1}", ""),
        ("</think> Wait. <think>it is 5", ""),
        (r"<answer>\sqrt{2}</answer>", r"\sqrt{2}"),
        (r"<ANSWER> $x+1$ </ANSWER> as asked", "$x+1$"),
        (r"<answer>\boxed{5}</answer>", "5"),
        (r"\boxed{4} <answer>5</answer>", "5"),
        (r"<answer>4</answer> no: \boxed{5}", "5"),
        ("<answer>5", "5"),
        (r"Hence $y = \frac{2}{7}$.", r"y = \frac{2}{7}"),
        (r"Hence y = \frac{2}{7}.", r"y = \frac{2}{7}"),
        ("The area is $3\\sqrt{2}$. I hope this helps!", r"3\sqrt{2}"),
        ("The roots are $2$ and $9$.", "2, 9"),
        ("The roots are 2 and 9.", "2, 9"),
        ("The lengths are 3 m, that is $3\\text{ m}$", r"3\text{ m}"),
        ("It takes 12 $\\text{m}^2$.", r"12 \text{m}^2"),
        ("It has 9 values of $k$.", "9"),
        ("The point is (2, 9).", "(2, 9)"),
        ("It grows to 5 million.", "5 million"),
        ("x=4 and y=-1", "x=4 and y=-1"),
        ("It lies between 5 and 10.", "between 5 and 10"),
        ("<answer>The result is 8</answer>", "8"),
        ("<|channel|>analysis<|message|>so \\boxed{4}", ""),
        ("<|channel|>analysis<|message|>so 4<|end|><|channel|>final<|message|>It is \\boxed{5}.", "5"),
        ("A: 3 + 7 = 10", "3 + 7 = 10"),
        ("It is 3, 8", "3, 8"),
        ("81 + 6 = 87 and it is what was asked.", "81 + 6 = 87"),
        ("It is 87 or 88, who knows.", "87, 88"),
        ("So \\boxed{} 62 - 4 = 58", "62 - 4 = 58"),
        ("17 + 6 = 23\n\\boxed{}", "17 + 6 = 23"),
        ("**D**", "D"),
        ("so we choose (B).", "B"),
        ("#### Step 2: add\nThis gives 7.", "7"),
        ("答案是 $\\frac{1}{3}$。", r"\frac{1}{3}"),
        ("La respuesta es $\\pi$.", r"\pi"),
        ("The answer to the puzzle is $x^2$.", "x^2"),
        ("The answer should be $x^2$.", "x^2"),
        ("The answer isn't 7.", ""),
        ("\\[Answer: 031\\]", "031"),
        ("Answer: `\\frac12`", r"\frac12"),
        ("The answer is 42.\n" + "Step 3 is checked again. " * 400, "42"),
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
    assert read_answer(text) == answer


@given(st.text(alphabet=st.sampled_from("\\boxed{} 12$.answer is\n"), max_size=300))
def test_never_fails_and_never_invents(text: str) -> None:
    """Every part of an answer stands in the text; what joins boxes, and what marks a letter as a unit, is ours."""
    joined = re.sub(
        r" \\text\{ (?:or \} |(\w+)\})", lambda match: f" {match[1]}" if match[1] else ", ", read_answer(text)
    )
    plain = " ".join(text.split())
    assert all(" ".join(part.split()) in plain for part in joined.split(", "))


def test_linear_in_the_text() -> None:
    """A million characters of openings are read in well under a second of CPU time, whatever they open."""
    begin = time.process_time()
    for unit in (
        "\\boxed{",
        "{",
        "answer is ",
        "$",
        "1,",
        "\\boxed{}",
        "\n",
        "\n1. ",
        "<answer>",
        "####",
        "答案 ",
        "\\boxed{1}, ",
    ):
        read_answer(unit * (200_000 // len(unit)))
    assert time.process_time() - begin < 20


def test_tasks_that_an_earlier_version_scaffolded_find_the_reader_where_it_was():
    from harness.verification import notation

    assert notation.extract("so \\boxed{7}") == "7"
    assert notation.last_box("so \\boxed{7}") == "7"
