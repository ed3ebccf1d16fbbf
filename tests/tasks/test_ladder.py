"""The ladder: every problem is right by independent reckoning, asks for what is scored, and training never sees evaluation."""

from __future__ import annotations

from random import Random

import pytest

from harness.errors import DataError, PluginError
from harness.tasks.ladder import (
    LEVELS,
    evaluation_problems,
    evaluation_prompts,
    levels_of,
    training_prompts,
    worked_examples,
)
from harness.tasks.registry import get_task, training_source
from harness.verification.verifier import Verifier


@pytest.mark.parametrize("held_out", [True, False])
def test_steps_are_right_and_end_in_the_answer_and_every_question_asks_for_a_box(held_out: bool) -> None:
    for level in LEVELS.values():
        for problem in [level.draw(Random(seed), held_out=held_out) for seed in range(100)]:
            assert problem.held_out == held_out
            assert all(r"\boxed{}" in text for text in (problem.prompt, problem.hinted_prompt))
            equations = [step.split(" = ") for step in problem.steps if "=" in step]
            assert all(eval(left) == int(right) for left, right in equations)
            assert not equations or equations[-1][1] == problem.answer
            assert level.name == "word1" or problem.content in problem.question


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
    assert not any(p.text in worked_examples(level, 8) for level in LEVELS for p in evaluation_prompts((level,)))
    assert {p.labels["skill"] for p in evaluation_prompts()} == set(LEVELS)


def test_training_prompts_are_even() -> None:
    levels = ("add2", "chain3", "legs")
    prompts = training_prompts(11, 24, levels)
    assert prompts == training_prompts(11, 24, levels) == training_source("ladder.add2+chain3+legs").draw(11, 24)
    assert [sum(p.labels["skill"] == name for p in prompts) for name in levels] == [8, 8, 8]


def test_names() -> None:
    assert (levels_of("ladder"), levels_of("ladder.add2+spell")) == (tuple(LEVELS), ("add2", "spell"))
    task = get_task("ladder.add2+spell", per_level=5)
    assert task.size == len(task.documents(None)) == 10
    assert {p.labels["skill"] for p in task.documents(None)} == {"add2", "spell"}
    for name in ("ladder.add3", "ladder.", "ladder.add2+add2", "ladders"):
        for get in (get_task, training_source):
            with pytest.raises(PluginError, match="ladder"):
                get(name)


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
