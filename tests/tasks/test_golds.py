"""Golds as files have them: known forms are read, and what no answer can match is refused with file and line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from benchmark_data import data_folder

from harness.errors import DataError
from harness.tasks import jsonl
from harness.verification.catalogue import scorer_of
from harness.verification.verifier import Verifier

FOLDER = data_folder()
SETS = (
    "aime24",
    "aime25",
    "amc23",
    "gsm8k_test",
    "gsm8k_train",
    "math500",
    "math_test",
    "math_train",
    "minerva",
    "olympiad",
)


def read(folder: Path, *rows: dict[str, object] | str, scorer: str = "math") -> list[str]:
    file = folder / "q.jsonl"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    asked = jsonl.read_questions(file, hashlib.sha256(file.read_bytes()).hexdigest(), scorer)
    return [question.prompt.gold for question in asked]


@pytest.mark.parametrize("scorer", ["math", "exact", "qwen_grader", "math_verify_plain"])
@pytest.mark.parametrize(
    ("row", "gold"),
    [
        ({"question": "q", "answer": "Half of 36 is <<36/2=18>>18.\n#### 18"}, "18"),
        ({"question": "q", "answer": "Together 2,000.\n#### 2,125,000 \n"}, "2125000"),
        ({"question": "q", "answer": "#### -7"}, "-7"),
        ({"problem": "q", "solution": r"So $\boxed{3}$, no: $\boxed{\frac{3}{4}}$."}, r"\frac{3}{4}"),
        ({"problem": "q", "solution": r"So $\boxed{3}$.", "answer": "4"}, "4"),
        ({"problem": "q", "answer": r"We add and get \boxed{2^{10}}."}, "2^{10}"),
        ({"prompt": "q", "solution": "One, two.\n#### 2"}, "2"),
        ({"prompt": "q", "solution": "about it", "gold": 5}, "5"),
    ],
)
def test_known_forms_are_read(scorer: str, row: dict[str, object], gold: str, tmp_path: Path) -> None:
    assert read(tmp_path, row, scorer=scorer) == [gold]


def test_a_set_scores_the_same_with_its_own_rows_and_with_plain_golds(tmp_path: Path) -> None:
    own = [{"question": f"q{i}", "answer": f"Count to {i}.\n#### {i}"} for i in range(1, 40)]
    plain = [{"question": f"q{i}", "answer": str(i)} for i in range(1, 40)]
    said = [f"So \\boxed{{{i if i % 3 else i + 1}}}" for i in range(1, 40)]
    with Verifier(workers=1) as verifier:
        right = [
            [verdict.value for verdict in verifier.verify(list(zip(read(tmp_path, *rows), said, strict=True)))]
            for rows in (own, plain)
        ]
    assert right[0] == right[1]
    assert right[0].count("right") == 26


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"answer": "N/A"}, "stands for none"),
        ({"answer": "none"}, "stands for none"),
        ({"answer": "See the solution above."}, "stands for none"),
        ({"answer": "Proof omitted"}, "stands for none"),
        ({"answer": "It depends on how many ducks there are"}, "prose"),
        ('{"question": "q", "answer": "\\frac{1}{2}"}', r"U\+000C .*two backslashes"),
        ('{"question": "q", "answer": "3\\times 4"}', r"U\+0009"),
        ('{"question": "q", "answer": "x\\neq 2"}', r"U\+000A"),
        ('{"question": "q", "answer": "x=\\beta"}', r"U\+0008"),
        ({"answer": "no mark #### "}, "the answer is empty"),
        ({"solution": "It is four."}, "neither"),
    ],
)
@pytest.mark.parametrize("scorer", ["math", "qwen_grader", "math_verify_plain"])
def test_what_no_answer_can_match_is_refused_with_its_line(
    scorer: str, row: dict[str, object] | str, words: str, tmp_path: Path
) -> None:
    fine = {"question": "before", "answer": "1"}
    with pytest.raises(DataError, match=rf"q\.jsonl:2: .*{words}"):
        read(tmp_path, fine, row if isinstance(row, str) else {"question": "q", **row}, scorer=scorer)


@pytest.mark.parametrize(
    ("scorer", "golds", "fine"),
    [
        ("math", ("1/2", "0.5"), True),
        ("math", ("x^2-1", "(x-1)(x+1)"), True),
        ("math", ("1/2", "2"), False),
        ("exact", ("Paris, France", "Paris,  France"), True),
        ("exact", ("Paris, France", "France, Paris"), False),
        ("qwen_grader", ("0.5", "50%"), True),
        ("choice", ("A", "a"), True),
        ("choice", ("A", "B"), False),
    ],
)
def test_one_question_has_one_gold(scorer: str, golds: tuple[str, str], fine: bool, tmp_path: Path) -> None:
    rows = [{"question": "How  much?", "answer": golds[0]}, {"question": "How much?", "answer": golds[1]}]
    if fine:
        assert len(read(tmp_path, *rows, scorer=scorer)) == 2
    else:
        with pytest.raises(DataError, match=r"q\.jsonl:2: asks the question of line 1 again"):
            read(tmp_path, *rows, scorer=scorer)


@pytest.mark.parametrize(
    "gold",
    ["18", "no solution", "Paris", r"\text{Evelyn}", r"\text{Softball, Kickball, Picnic}", "90\\text{ square\nunits}", "x=2",
     "a=b, where b is any integer and a is positive", r"1 \pmod 4", "0", "(-\\infty, 3]", "Monday, Tuesday, Friday, Sunday"],
)  # fmt: skip
def test_unusual_golds_are_none_of_these(gold: str) -> None:
    assert not scorer_of("math").fault(gold)


def test_what_the_verifier_itself_would_never_find_right_is_no_gold() -> None:
    for gold in (",", "{x", r"\text{}"):
        assert "equals not even itself" in scorer_of("math").fault(gold)


@pytest.mark.skipif(FOLDER is None, reason="no folder with the sets of problems")
@pytest.mark.parametrize("name", SETS)
def test_the_sets_own_golds_are_all_read(name: str) -> None:
    assert FOLDER is not None
    file = FOLDER / f"{name}.jsonl"
    asked = jsonl.read_questions(file, hashlib.sha256(file.read_bytes()).hexdigest(), "math")
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
    assert [question.prompt.gold for question in asked] == [row["answer"] for row in rows]
