"""Countdown: puzzles that have a solution, and a scorer that computes an answer and never runs it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest

from harness.errors import DataError, PluginError
from harness.evaluation.metrics import EvaluationSample, rescore_samples
from harness.suite.load import load_suite
from harness.tasks.countdown import COUNTS, INSTRUCTION, Countdown, counts_of, invent_puzzle
from harness.tasks.registry import get_task, source_of, training_source
from harness.verification.catalogue import scorer_called, scorer_of
from harness.verification.countdown import compute_value
from harness.verification.verdict import Verdict
from harness.verification.verifier import Verifier

GOLD = "(25 - 3) * 4"
HOSTILE = (
    "", " ", "nan", "inf", "None", "True", "False", "0", "88", "[]", "{}", "()", "'", '"', "\\boxed{}", "a" * 10_000,
    "__import__('os').system('touch {place}')", "open('{place}','w')", "2**10**9", "9" * 5_000, "lambda: 88", "\x00", "\ufffe",
    "1e999", "[" * 2_000, "(" * 10_000 + "88" + ")" * 10_000, "25 / 0 - 3 * 4", "(25-3)*4 if True else 0", "(25 - 3) * 4 #",
    "(25 - 3) * 4 + 0", "25 3 4", "254 - 3", "(25 - 3) * 4 * 4 / 4", "(25 - 3) ** 4", "(25 - 3) // 4", "(25 - 3) * \uff14",
    "-" * 300 + "88", "(25 - 3) * 4 = 88 = 88", "88 = 88", "(25 - 3)(4)", "25 - 3 * 4 = 88", "\\frac{25 - 3}{4}",
    "(" + "25-3," * 60 + "4)", "3, 4, 25",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [
        ("3 + 4 * 5", 23, (3, 4, 5)),
        ("(3 + 4) * 5", 35, (3, 4, 5)),
        ("20 - 3 - 4", 13, (3, 4, 20)),
        ("8 / 4 / 2", 1, (2, 4, 8)),
        ("1 / 3", Fraction(1, 3), (1, 3)),
        ("-3 + 10", 7, (3, 10)),
        ("[2 × (3 − 1)] ÷ 4", 1, (1, 2, 3, 4)),
        (r"\left(2 + 3\right) \cdot \dfrac{8}{4}", 10, (2, 3, 4, 8)),
        ("7 * 6 = 42", 42, (6, 7)),
        ("6/4 = 3/2", Fraction(3, 2), (4, 6)),
    ],
)
def test_an_expression_is_computed_exactly(text: str, value: Fraction, numbers: tuple[int, ...]) -> None:
    assert compute_value(text) == (value, numbers)


@pytest.mark.parametrize(
    "text", ["2 3", "2 +", "+ 2", "2 ** 3", "2(3)", "(2", "2)", "007", "2.5", "x + 2", "2 * -3", "1/0", "7*6=41", ""]
)
def test_anything_else_is_no_expression(text: str) -> None:
    assert compute_value(text) is None


def test_no_hostile_text_is_paid_or_run_and_none_takes_long(tmp_path: Path) -> None:
    place = tmp_path / "written"
    texts = [text.replace("{place}", str(place)) for text in HOSTILE]
    boxed = [f"So \\boxed{{{text}}}" for text in texts]
    ours = scorer_of("countdown")
    start = time.process_time()
    paid = [text for text in [*texts, *boxed] if ours.judge(text, GOLD).right]
    assert time.process_time() - start < 2.0
    assert paid == []
    assert not place.exists()
    with Verifier(workers=1) as verifier:
        verdicts = verifier.by(scorer_called("countdown")).verify([(GOLD, text) for text in [*texts, *boxed, GOLD]])
    assert [verdict.value for verdict in verdicts] == ["wrong"] * 2 * len(texts) + ["right"]


def test_votes_are_the_same_where_value_and_numbers_are() -> None:
    same = scorer_of("countdown").same
    assert same("4 * (25 - 3)", "(25-3)*4")
    assert same(r"4 \times (25 - 3) = 88", "(25-3)*4")
    assert not same("88", "(25 - 3) * 4")
    assert not same("4 * 25 - 3", "4 * 25 - 4 * 3")
    assert same("no  idea", "no idea")
    assert not same("no idea", "(25 - 3) * 4")


def test_a_stored_answer_is_judged_again_by_the_same_rule() -> None:
    sample = EvaluationSample(
        task="countdown.3", mode="greedy", document="x", repeat=0, prompt="", text=f"\\boxed{{{GOLD}}}", gold=GOLD, tokens=9,
        finished=True, verdict=Verdict("wrong", "", GOLD), labels={},
    )  # fmt: skip
    with Verifier(workers=1) as verifier:
        (change,) = rescore_samples([sample], verifier.by(scorer_called(get_task(sample.task).scorer)))
    assert change.after.value == "right"


def test_every_puzzle_has_the_solution_that_it_was_made_of() -> None:
    random = Random(1)
    for count in COUNTS:
        for _ in range(100):
            puzzle = invent_puzzle(random, count)
            assert compute_value(puzzle.solution) == (puzzle.target, puzzle.numbers)
            assert 10 <= puzzle.target < 100
            assert list(puzzle.numbers) == sorted(puzzle.numbers)
            assert len(puzzle.numbers) == count
            assert all(1 <= number < 100 for number in puzzle.numbers)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "size"), [(2, 1_000), *((count, 2_000) for count in COUNTS if count > 2)])
def test_training_and_held_out_share_no_question(count: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two numbers there are 6,800 puzzles, of which a fifth is held out."""
    monkeypatch.setattr(Countdown, "size", size)
    source = Countdown(f"countdown.{count}")
    task = source.evaluation()
    held_out = {prompt.text for prompt in source.held_out()}
    trained = {task.bare(prompt.text) for prompt in source.draw(1, size)}
    assert len(held_out) == len(trained) == size
    assert not held_out & trained


def test_more_questions_than_there_are_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.tasks.source._DRAWS", 4)
    with pytest.raises(DataError, match="2: 6000 distinct questions asked for, only"):
        Countdown("countdown.2").draw(1, 6_000)


def test_levels_are_counts_of_numbers() -> None:
    assert counts_of("countdown") == (3, 4)
    assert counts_of("countdown.2+5") == (2, 5)
    assert counts_of("countdown:numbers=4..6") == (4, 5, 6)
    assert source_of("countdown:numbers=3..4").name_levels() == ["countdown.3", "countdown.4"]
    drawn = source_of("countdown.3+5").draw(3, 24)
    assert {prompt.labels["skill"] for prompt in drawn} == {"3 numbers", "5 numbers"}
    for wrong in (
        "countdown.7",
        "countdown.3+3",
        "countdown.x",
        "countdown.",
        "countdown:",
        "countdown:n=3",
        "countdown.3:numbers=3",
    ):
        with pytest.raises(PluginError, match="countdown"):
            source_of(wrong)


def test_training_asks_as_evaluation_does() -> None:
    task, source = get_task("countdown"), training_source("countdown")
    asked = source.draw(1, 4)
    assert all(prompt.text.endswith(INSTRUCTION) for prompt in asked)
    assert all(task.render(prompt, "zero-shot") == prompt.text for prompt in asked)


DIGEST = """
import hashlib
from harness.tasks.countdown import Countdown
print(hashlib.sha256("".join(p.text + p.gold for p in Countdown("countdown").draw(5, 200)).encode()).hexdigest())
"""


def test_questions_do_not_follow_the_interpreters_hash_seed() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", DIGEST], capture_output=True, text=True, check=True, timeout=120,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "77")
    }  # fmt: skip
    assert said == {
        hashlib.sha256("".join(p.text + p.gold for p in Countdown("countdown").draw(5, 200)).encode()).hexdigest()
        + "\n"
    }


SUITE = """
name: puzzles
groups:
  - name: pair
    policies: [{name: a, model: micro/llama}, {name: b, model: micro/qwen}]
regimes: [independent]
seeds: [1]
training: {task: TASK, max_new_tokens: 16}
evaluation: {tasks: [countdown]}
"""


def test_a_suite_names_it_by_its_parts_or_its_setting(tmp_path: Path) -> None:
    file = tmp_path / "puzzles.yaml"
    for written, task in (
        ("countdown.3", "countdown.3"),
        ("{name: countdown, numbers: 3..5}", "countdown:numbers=3..5"),
    ):
        file.write_text(SUITE.replace("TASK", written))
        assert load_suite(str(file)).training.task == task
