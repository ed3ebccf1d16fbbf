"""The ladder: every problem is right by independent reckoning, asks for what is scored, and training never sees evaluation."""

from __future__ import annotations

import re
from random import Random

import pytest

from harness.errors import DataError, PluginError
from harness.tasks.ladder import (
    LEVELS,
    Problem,
    evaluation_problems,
    evaluation_prompts,
    levels_of,
    training_prompts,
    worked,
)
from harness.tasks.registry import get_task, training_source
from harness.verification.verifier import Verifier

LEGS = {"cow": 4, "duck": 2, "spider": 8, "ant": 6, "horse": 4, "bee": 6, "dog": 4, "cat": 4, "owl": 2, "hen": 2}
LEGS |= {"shee": 4, "flie": 6}


def answer(problem: Problem) -> str:
    numbers = [int(n) for n in re.findall(r"\d+", problem.question)]
    match problem.skill:
        case "second":
            return str(sorted(numbers)[-2])
        case "spell":
            word = re.search(r"letters of (\w+) ", problem.question)
            assert word
            return ".".join(word[1][::-1])
        case "legs":
            animal = re.search(r"\d+ (\w+) have", problem.question)
            assert animal
            return str(numbers[0] * LEGS[animal[1].removesuffix("s" if animal[1] != "sheep" else "p")])
        case "solve":
            return str(numbers[1] - numbers[0])
        case "word1":
            return str(numbers[0] - numbers[1] if "gives" in problem.question else numbers[0] + numbers[1])
    expression = re.search(r"What is ([\d +*-]+)\?", problem.question)
    assert expression
    return str(eval(expression[1]))  # digits and signs only, by the pattern


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("held_out", [True, False])
def test_problems_are_right_and_ask_for_a_box(level: str, held_out: bool) -> None:
    rng = Random(1)
    for _ in range(200):
        problem = LEVELS[level].draw(rng, held_out=held_out)
        assert problem.answer == answer(problem)
        assert problem.held_out == held_out
        assert all(r"\boxed{}" in text for text in (problem.prompt, problem.hinted_prompt))
        assert problem.chain_of_thought == f" {', '.join(problem.steps)}. \\boxed{{{problem.answer}}}"
        for step in (s for s in problem.steps if "=" in s):
            left, right = step.split("=")
            assert eval(left) == int(right)


def test_golden_problems() -> None:
    drawn = [level.draw(Random(7), held_out=False) for level in LEVELS.values()]
    assert [(p.content, p.chain_of_thought) for p in drawn] == GOLDEN


def test_right_and_wrong_by_the_verifier() -> None:
    problems = evaluation_problems()
    shifted = [
        ".".join((lambda s: [*s[1:], s[0]])(p.answer.split("."))) if p.skill == "spell" else str(int(p.answer) + 1)
        for p in problems
    ]
    with Verifier(workers=1) as verifier:
        right = verifier.verify([(p.answer, p.chain_of_thought) for p in problems])
        wrong = verifier.verify([(p.answer, rf"\boxed{{{other}}}") for p, other in zip(problems, shifted, strict=True)])
    assert {v.value for v in right} == {"right"}
    assert {v.value for v, p, o in zip(wrong, problems, shifted, strict=True) if o != p.answer} == {"wrong"}


def test_worked_examples_are_not_held_out() -> None:
    assert not any(p.text in worked(level, 8) for level in LEVELS for p in evaluation_prompts((level,)))
    assert {p.labels["skill"] for p in evaluation_prompts()} == set(LEVELS)


def test_training_prompts_are_even() -> None:
    levels = ("add2", "chain3", "legs")
    prompts = training_prompts(11, 24, levels)
    assert prompts == training_prompts(11, 24, levels) == training_source("ladder.add2+chain3+legs").draw(11, 24)
    assert [sum(p.labels["skill"] == name for p in prompts) for name in levels] == [8, 8, 8]


def test_names() -> None:
    assert levels_of("ladder") == tuple(LEVELS)
    assert levels_of("ladder.add2+spell") == ("add2", "spell")
    task = get_task("ladder.add2+spell", per_level=5)
    assert task.size == len(task.documents(None)) == 10
    assert {p.labels["skill"] for p in task.documents(None)} == {"add2", "spell"}
    assert training_source("ladder.add2").pool_digest() == ""
    for name in ("ladder.add3", "ladder.", "ladder.add2+add2", "ladders"):
        with pytest.raises(PluginError, match="ladder"):
            get_task(name)
        with pytest.raises(PluginError, match="ladder"):
            training_source(name).pool_digest()


def test_a_small_level_says_so() -> None:
    assert 3 < len(evaluation_prompts(("mul1x1",))) < 40
    with pytest.raises(DataError, match="mul1x1 does not hold"):
        training_prompts(1, 100, ["mul1x1"])
    with pytest.raises(DataError, match="at least 1"):
        training_prompts(1, 0)


GOLDEN = [
    ("6 + 3", " 6 + 3 = 9. \\boxed{9}"),
    ("51 + 4", " 51 + 4 = 55. \\boxed{55}"),
    ("52 - 4", " 52 - 4 = 48. \\boxed{48}"),
    ("13 + 7 - 14", " 13 + 7 = 20, 20 - 14 = 6. \\boxed{6}"),
    ("7 * 4", " 7 * 4 = 28. \\boxed{28}"),
    ("7 * 27", " 7 * 20 = 140, 7 * 7 = 49, 140 + 49 = 189. \\boxed{189}"),
    ("x + 6 = 28", " 28 - 6 = 22. \\boxed{22}"),
    ("13 - 4", " 13 - 4 = 9. \\boxed{9}"),
    ("43, 21, 52, 85", " 85 > 52 > 43 > 21. \\boxed{52}"),
    ("4 bees", " 4 * 6 = 24. \\boxed{24}"),
    ("pen", " p.e.n. \\boxed{n.e.p}"),
]
