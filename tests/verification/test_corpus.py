"""The corpus by grammar: no cheating answer is right, honest ones are, and none takes a second of CPU."""

from __future__ import annotations

import math
import os
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from corpus import BOX, corpus
from hypothesis import example, given, settings
from hypothesis import strategies as st
from running import within

from harness.tasks.data import load_set
from harness.tasks.sets import SETS
from harness.verification.equivalence import same_answer
from harness.verification.processes import asked_seconds
from harness.verification.response import read_answer
from harness.verification.verifier import Verifier

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FOLDER = Path(os.environ.get("HARNESS_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def test_honest_ways_are_right_and_cheating_ones_wrong_in_bounded_work(verifier: Verifier) -> None:
    """Work is counted, not time: the seconds here only catch work that nobody counts (the dearest case takes half a second)."""
    cases = corpus(rounds=3)
    assert len(cases) >= 1_000
    assert min(Counter(case.honest for case in cases).values()) >= 500
    verifier.verify([(r"\max(x, y)", r"\boxed{\max(y, x)}")])
    for case in cases:
        begin = time.process_time() + asked_seconds()
        verdict = verifier.verify([(case.gold, case.text)])[0]
        assert verdict.value == ("right" if case.honest else "wrong"), (case, verdict)
        assert within(time.process_time() + asked_seconds() - begin, 5.0), case


VALUES = st.one_of(
    st.integers(-10_000, 10_000).map(str),
    st.tuples(st.integers(1, 99), st.sampled_from((2, 3, 5, 7, 10))).map(lambda p: rf"{p[0]}\sqrt{{{p[1]}}}"),
    st.tuples(st.integers(1, 98), st.sampled_from((97, 101, 103))).map(lambda p: rf"\frac{{{p[0]}}}{{{p[1]}}}"),
    st.tuples(st.integers(1, 9), st.integers(1, 9)).map(lambda p: rf"x^2+{p[0]}x+{p[1]}"),
    st.integers(1, 99).map(lambda n: rf"{n}\pi"),
    st.tuples(st.integers(1, 99), st.integers(1, 9)).map(lambda p: f"{p[0]}.{p[1]}"),
)
JOINED = st.sampled_from(
    (
        " or ", r"\text{ or }", r" \text{ or maybe }", ", ", "; ", r"\text{, }", r" \text{ and } ", r" \lor ", r" \vee ", r"\ \ ",
        r" \quad ", r"\mid ", r"\\ ", " = ",
        r" \ne ", r" \to ", r" \cup ", r" \text{ if not }", r" \text{ else }", r"\text{ (or) }", " | ", r" \sim ",
        r" \Rightarrow ", " => ", r" \text{ versus }", r"\text{ apples or }",
        r"\text{ cm or }", " vs ", " and ", r" \text{ oder }", r"\ldots ", "...", r" \& ", "?", r" \le ", r" < ", r"\text{ to }",
        "--", r" \approx 0 = ",
    )
)  # fmt: skip
AROUND = st.sampled_from(
    ("%s", "x = %s", r"\{%s\}", "(%s)", "[%s]", r"\text{either } %s", r"\text{The answer is } %s", r"\mathbf{%s}",
    r"\text{Area} = %s", r"%s \text{ cm}", r"x \in \{%s\}", "f(2) = %s", r"\left(%s\right]")
)  # fmt: skip
PLACED = st.sampled_from((BOX, "The answer is $%s$.", "The answer is %s.", "#### %s", "Answer: \\(%s\\)"))


def _differ(pair: tuple[str, str]) -> bool:
    """Two values, and no formula with a number: `A = x^2 = 25` is a derivation."""
    return ("x" in pair[0]) == ("x" in pair[1]) and not same_answer(*pair)


def _value_of(text: str) -> float:
    """The value of one of `VALUES` that has no x, by arithmetic of this file's own."""
    fraction = re.fullmatch(r"\\frac\{(\d+)\}\{(\d+)\}", text)
    if fraction:
        return int(fraction[1]) / int(fraction[2])
    root = re.fullmatch(r"(\d+)\\sqrt\{(\d+)\}", text)
    if root:
        return int(root[1]) * math.sqrt(int(root[2]))
    if text.endswith(r"\pi"):
        return int(text.removesuffix(r"\pi")) * math.pi
    return float(text)


def _is_rounding(joined: str, pair: tuple[str, str]) -> bool:
    r"""Whether an exact value stands before its own rounding: `17\pi \sim 53` offers one value, not two."""
    rounded = re.fullmatch(r"-?\d+(?:\.(\d+))?", pair[1])
    if joined != r" \sim " or rounded is None or "\\" not in pair[0]:
        return False
    return abs(_value_of(pair[0]) - float(pair[1])) <= 0.5 * 10 ** -len(rounded[1] or "")


@settings(max_examples=1_000, deadline=None)
@given(pair=st.tuples(VALUES, VALUES).filter(_differ), joined=JOINED, around=AROUND, placed=PLACED)
@example(pair=(r"1\sqrt{2}", "1"), joined=r" \sim ", around="%s", placed=BOX)
@example(pair=(r"17\pi", "53.4"), joined=r" \sim ", around="%s", placed=BOX)
@example(pair=(r"17\pi", "53.5"), joined=r" \sim ", around="%s", placed=BOX)
def test_an_answer_that_offers_two_values_is_right_for_neither(
    pair: tuple[str, str], joined: str, around: str, placed: str
) -> None:
    if _is_rounding(joined, pair):
        assert same_answer(pair[0], read_answer(BOX % joined.join(pair)))
        return
    text = placed % (around % (pair[0] + joined + pair[1]))
    for gold in pair:
        assert not same_answer(gold, read_answer(text)), text


SURFACES = {
    "box": BOX, "display": "$$\\boxed{%s}$$", "space": "\\boxed { %s }", "stop": "\\boxed{%s.}", "bold": r"\boxed{\mathbf{%s}}",
    "bf": r"\boxed{\bf %s}", "large": r"\boxed{\large %s}",
    "braced": "\\boxed{{%s}}", "colour": r"\boxed{\color{red}{%s}}", "text colour": r"\boxed{\textcolor{blue}{%s}}",
    "display style": r"\boxed{\displaystyle %s}", "thin spaces": r"\boxed{\,%s\,}",
    "dollars": "\\boxed{$%s$}", "parentheses in maths": "\\boxed{\\(%s\\)}", "two boxes": "\\boxed{0}, or rather \\boxed{%s}",
    "box in a box": "\\boxed{\\boxed{%s}}", "underlined": r"\boxed{\underline{%s}}",
    "phantom": r"\boxed{%s\phantom{0}}", "sentence": "The answer is $%s$.", "final": "**Final Answer:** $%s$",
    "because": "The answer is $%s$, because 7 of 9 cases fail.",
    "aside": "The answer is $%s$ (since 6*7=42).", "display sentence": "The answer is $$%s$$", "TeX sentence": "Answer: \\(%s\\)",
    "as claimed": "Hence the answer is $%s$ as claimed.",
    "marked": "#### $%s$", "text behind": "\\boxed{%s} is what we find in 2 ways",
    "approximately": r"\boxed{\text{approximately }%s}", "label": r"\boxed{\text{Answer: }%s}", "plain": "The answer is %s.",
}  # fmt: skip


@pytest.mark.skipif(not (FOLDER / "math500.jsonl").is_file(), reason="no benchmark folder (HARNESS_DATA)")
def test_every_gold_is_right_for_itself_in_thirty_forms() -> None:
    golds = sorted({row.answer for name in SETS for row in load_set(name, FOLDER)})
    assert (len(SURFACES), len(golds) > 5_000) == (30, True)
    for name, write in SURFACES.items():
        fallen = [gold for gold in golds if not same_answer(gold, read_answer(write.replace("%s", gold)))]
        assert len(fallen) <= (0 if name in ("box", "display", "space", "stop") else 0.005 * len(golds)), (name, fallen)
