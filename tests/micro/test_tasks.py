"""The micro task: every problem is right by an independent evaluation, and training never sees evaluation."""

from __future__ import annotations

import ast
import operator
import re
from dataclasses import asdict, replace
from itertools import islice
from random import Random
from zlib import crc32

import pytest

from harness.engines.embedded.presets import PRESETS, Mixture, draw_examples
from harness.errors import DataError
from harness.experience.answers import Prompt
from harness.tasks.micro import LEVELS, SKILLS, draw_fact, evaluation_prompts, training_prompts
from harness.tasks.registry import get_task

_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def value(expression: str) -> int:
    """Independent of the task's own arithmetic: walks Python's syntax tree."""

    def walk(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](walk(node.left), walk(node.right))
        assert isinstance(node, ast.Constant)
        return int(node.value)

    return walk(ast.parse(expression, mode="eval").body)


def question_value(question: str) -> int:
    numbers = re.findall(r"\d+", question)
    return sum(map(int, numbers)) if "has" in question else value(question)


def test_micro_can_be_asked_for_what_is_scored_and_its_default_stays() -> None:
    task = get_task("micro")
    question = evaluation_prompts()[0]
    assert task.styles[0] == "raw"
    assert task.render(question, "raw") == question.text
    bare = question.text.removeprefix("Q: ").removesuffix("\nA:")
    asked = task.render(question, "zero-shot")
    assert asked == f"{bare}\n\n{task.instruction}"
    assert "\\boxed{}" in asked
    shown = task.render(question, "few-shot")
    assert shown.endswith(f"\n\n{question.text}")
    assert shown.count("\\boxed{") == len(task.examples) == len(SKILLS)
    assert task.stop("few-shot")[0] == "\n\nQ:"
    assert not [e for e in task.examples if crc32(e.problem.encode()) % 8 == 0], "held out"


def test_what_is_asked_can_be_asked_otherwise() -> None:
    task = get_task("gsm8k")
    prompt = Prompt("a", "How many?", "3")
    zero = replace(prompt, text=task.render(prompt, "zero-shot"))
    few = replace(prompt, text=task.render(prompt, "few-shot"))
    assert task.render(zero, "few-shot") == few.text
    assert task.render(zero, "zero-shot") == zero.text


@pytest.mark.parametrize("skill", SKILLS)
@pytest.mark.parametrize("level", LEVELS)
def test_problems_are_right(skill: str, level: int) -> None:
    rng = Random(1)
    for _ in range(300):
        problem = SKILLS[skill].draw(rng, level, held_out=False)
        assert problem.answer == question_value(problem.question) >= 1
        assert all(value(step.split("=")[0]) == int(step.split("=")[1]) for step in problem.steps)
        assert int(problem.steps[-1].split("=")[1]) == problem.answer
        assert problem.chain_of_thought == " " + ", ".join(problem.steps) + f". \\boxed{{{problem.answer}}}"


def test_facts_are_single_right_steps() -> None:
    rng = Random(2)
    for _ in range(300):
        fact = draw_fact(rng, rng.choice(list(SKILLS.values())))
        assert fact.steps == (f"{fact.question}={value(fact.question)}",)
        assert fact.answer == value(fact.question)


def test_golden_problems() -> None:
    drawn = [SKILLS[skill].draw(Random(7), 2, held_out=False) for skill in SKILLS]
    assert [(p.prompt, p.chain_of_thought) for p in drawn] == GOLDEN
    assert drawn[0].hinted_prompt == f"Q: {drawn[0].question} by steps\nA:"


def test_levels_bound_the_operands() -> None:
    rng = Random(3)
    for level, low, high in ((1, 2, 9), (2, 3, 15)):
        for _ in range(200):
            numbers = [int(n) for n in re.findall(r"\d+", SKILLS["add"].draw(rng, level, held_out=False).question)]
            assert low <= min(numbers) <= max(numbers) <= high


def test_training_prompts_are_even() -> None:
    prompts = training_prompts(11, 48)
    counts = [sum(p.labels["skill"] == skill for p in prompts) for skill in SKILLS]
    assert counts == [8] * 6
    assert {p.labels["level"] for p in prompts} == {"1", "2"}
    assert all(p.labels["group"] == SKILLS[p.labels["skill"]].group for p in prompts)


def test_training_never_meets_evaluation() -> None:
    evaluation = {p.text[3:-3] for p in evaluation_prompts()}
    trained = {p.text[3:-3] for seed in range(150) for p in training_prompts(seed, 32)}
    supervised = {
        example.prompt.removeprefix("Q: ").removesuffix("\nA:").removesuffix(" by steps")
        for example in islice(draw_examples(PRESETS["elicit"], "mul", Random(0)), 8000)
    }
    assert len(trained) > 2000
    assert len(supervised) > 2000
    assert not evaluation & (trained | supervised)
    assert all(crc32(question.encode()) % 8 == 0 for question in evaluation)
    assert not any(crc32(question.encode()) % 8 == 0 for question in trained | supervised)


def test_evaluation_has_forty_prompts_a_skill() -> None:
    prompts = evaluation_prompts()
    assert [sum(p.labels["skill"] == skill for p in prompts) for skill in SKILLS] == [40] * 6
    hinted = evaluation_prompts(hinted=True)
    assert [p.text.replace(" by steps", "") for p in hinted] == [p.text for p in prompts]
    assert all(p.text.endswith(" by steps\nA:") for p in hinted)


def test_mixture_shares() -> None:
    mixture = Mixture(weak_cot=0.1, strong_cot=0.7, hinted=0.6, drill=0.2)
    examples = list(islice(draw_examples(mixture, "add", Random(5)), 12_000))
    plain = [e for e in examples if "by steps" not in e.prompt]
    assert all("=" in e.response for e in examples if "by steps" in e.prompt)
    assert len(plain) / len(examples) == pytest.approx(0.8 * 0.4, abs=0.02)
    facts = [
        e for e in examples if re.fullmatch(r"Q: \d+[-+*]\d+ by steps\nA:", e.prompt) and e.response.count("=") == 1
    ]
    assert len(facts) / len(examples) == pytest.approx(0.2, abs=0.02)
    for weak, share in ((True, 0.1), (False, 0.7)):
        chosen = [e for e in plain if ("*" in e.prompt) == weak]
        assert sum("=" in e.response for e in chosen) / len(chosen) == pytest.approx(share, abs=0.04)


def test_matched_errs_by_habit_only() -> None:
    mixture = PRESETS["matched"]
    assert mixture.hard == ("word", "muladd")
    slips: dict[str, list[bool]] = {"hinted": [], "strong": [], "weak": []}
    short: list[bool] = []
    for example in islice(draw_examples(mixture, "add", Random(7)), 12_000):
        hinted = "by steps" in example.prompt
        steps = re.findall(r"(\d+)([-+*])(\d+)=(\d+)", example.response)
        left, sign, right, result = steps[-1]
        off = int(result) - {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[sign](int(left), int(right))
        assert off in (0, -10, -1, 1, 10)
        assert example.response.endswith(f"\\boxed{{{result}}}")
        if not hinted and ("How many" in example.prompt or re.search(r"\d\*\d+[-+]", example.prompt)):
            short.append(len(steps) == 1)
            assert not (short[-1] and off)
        else:
            slips["hinted" if hinted else "weak" if "*" in example.prompt else "strong"].append(off != 0)
    assert sum(short) / len(short) == pytest.approx(mixture.short, abs=0.02)
    shares = {kind: sum(values) / len(values) for kind, values in slips.items()}
    assert shares["hinted"] == 0
    assert shares["strong"] == pytest.approx(mixture.strong_slip, abs=0.02)
    assert shares["weak"] == pytest.approx(mixture.weak_slip, abs=0.05)


@pytest.mark.parametrize(("count", "skills"), [(0, ("add",)), (400, ("mul",)), (2, ("add", "sine"))])
def test_impossible_requests_are_refused(count: int, skills: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match="micro"):
        training_prompts(0, count, skills)


GOLDEN = [
    ("Q: 8+5+9\nA:", " 8+5=13, 13+9=22. \\boxed{22}"),
    ("Q: 8+5-9\nA:", " 8+5=13, 13-9=4. \\boxed{4}"),
    ("Q: Mia has 8 pens, buys 5, then 9 more. How many pens?\nA:", " 8+5=13, 13+9=22. \\boxed{22}"),
    ("Q: 17*7\nA:", " 7*10=70, 7*7=49, 70+49=119. \\boxed{119}"),
    ("Q: 7*4-8\nA:", " 7*4=28, 28-8=20. \\boxed{20}"),
    ("Q: 7*(4+3)\nA:", " 4+3=7, 7*7=49. \\boxed{49}"),
]


@pytest.mark.parametrize("share", [25, 50, 75])
def test_the_dial_lies_between_its_ends(share):
    ends = [asdict(PRESETS[name]) for name in ("trap", "matched")]
    hard = asdict(PRESETS[f"between-{share}"])
    assert hard.pop("hard") == ("word", "muladd")
    for name, number in hard.items():
        low, high = (end[name] for end in ends)
        assert number == pytest.approx(low + share / 100 * (high - low), abs=1e-6), name
