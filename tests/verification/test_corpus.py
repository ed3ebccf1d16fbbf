"""The corpus by grammar: no cheating answer is right, honest ones are, and none takes a second of CPU."""

from __future__ import annotations

import os
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from corpus import BOX, Case, corpus
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.tasks.data import load
from harness.verification.equivalence import NeedsAlgebra, OverLimit, compare
from harness.verification.extraction import extract
from harness.verification.verifier import Verifier

pytestmark = pytest.mark.slow

FOLDER = Path(os.environ.get("HARNESS_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def _cpu() -> float:
    """CPU seconds of this process and of all that it started, dead ones included."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:  # ended by its limit just now: its parent has its seconds
            continue
        total += times.user + times.system
        if process.pid != os.getpid():
            total += times.children_user + times.children_system
    return total


@pytest.fixture(scope="module")
def results() -> list[tuple[Case, str, float]]:
    """Each case's verdict and CPU seconds, asked one by one of one started worker."""
    found = []
    with Verifier(workers=1) as verifier:
        verifier.verify([(r"\max(x, y)", r"\boxed{\max(y, x)}")])
        for case in corpus(rounds=2):
            begin = _cpu()
            verdict = verifier.verify([(case.gold, case.text)])[0]
            found.append((case, verdict.value, _cpu() - begin))
    return found


@pytest.mark.timeout(300)
def test_the_corpus_is_large_and_mixed(results: list[tuple[Case, str, float]]) -> None:
    cases = [case for case, _, _ in results]
    assert len(cases) >= 1_000
    assert cases == corpus(rounds=2)
    assert min(Counter(case.honest for case in cases).values()) >= 500
    assert len({case.form for case in cases}) >= 20


@pytest.mark.timeout(300)
def test_no_cheat_is_right(results: list[tuple[Case, str, float]]) -> None:
    assert [(c.form, c.gold, c.text) for c, value, _ in results if not c.honest and value == "right"] == []


@pytest.mark.timeout(300)
def test_fewer_than_one_in_two_hundred_honest_answers_is_refused(results: list[tuple[Case, str, float]]) -> None:
    honest = [(case, value) for case, value, _ in results if case.honest]
    refused = [(c.form, c.gold, c.text) for c, value in honest if value != "right"]
    assert len(refused) < 0.005 * len(honest), refused


@pytest.mark.timeout(300)
def test_none_is_invalid_and_each_is_answered_within_a_second_of_cpu(results: list[tuple[Case, str, float]]) -> None:
    assert [(c.gold, c.text) for c, value, _ in results if value == "invalid"] == []
    assert [(c.gold, c.text, cpu) for c, _, cpu in results if cpu >= 1.0] == []


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
    return ("x" in pair[0]) == ("x" in pair[1]) and not _same(*pair)


def _same(gold: str, answer: str) -> bool:
    try:
        return compare(gold, answer)
    except (NeedsAlgebra, OverLimit):
        return False


@settings(max_examples=1_000, deadline=None)
@given(pair=st.tuples(VALUES, VALUES).filter(_differ), joined=JOINED, around=AROUND, placed=PLACED)
def test_an_answer_that_offers_two_values_is_right_for_neither(
    pair: tuple[str, str], joined: str, around: str, placed: str
) -> None:
    text = placed % (around % (pair[0] + joined + pair[1]))
    for gold in pair:
        assert _same(gold, extract(text)) is False, text


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
@pytest.mark.timeout(300)
def test_every_gold_is_right_for_itself_in_thirty_forms() -> None:
    names = (
        "math500",
        "gsm8k",
        "aime24",
        "aime25",
        "amc23",
        "minerva",
        "olympiad",
        "math",
        "math_train",
        "gsm8k_train",
    )
    golds = sorted({row.answer for name in names for row in load(name, FOLDER)})
    assert len(SURFACES) == 30
    assert len(golds) > 5_000
    fallen_by_form = {}
    for name, write in SURFACES.items():
        fallen = [gold for gold in golds if not _same(gold, extract(write.replace("%s", gold)))]
        if len(fallen) > (0 if name in ("box", "display", "space", "stop") else 0.005 * len(golds)):
            fallen_by_form[name] = (len(fallen), fallen[:20])
    assert fallen_by_form == {}


@pytest.mark.skipif(not (FOLDER / "math500.jsonl").is_file(), reason="no benchmark folder (HARNESS_DATA)")
def test_comparing_is_quick() -> None:
    golds = [row.answer for row in load("math", FOLDER)]
    begin = time.process_time()
    for gold, other in pairwise(golds):
        _same(gold, rf"x = {other}")
    assert time.process_time() - begin < 30
