"""Procedural arithmetic of six skills in two groups and two levels, and the facts they rest on. Eighths are held out by crc32
of the question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from types import MappingProxyType
from typing import ClassVar, Literal, get_args
from zlib import crc32

from harness.errors import DataError
from harness.experience.answers import Prompt

Level = Literal[1, 2]
LEVELS: tuple[Level, ...] = get_args(Level)
GroupName = Literal["add", "mul"]
GROUPS: tuple[GroupName, ...] = get_args(GroupName)

NAMES = ("Tom", "Ann", "Sam", "Eva", "Max", "Mia")
THINGS = ("pens", "cups", "eggs", "nuts", "keys", "caps")


PARTS = MappingProxyType(
    {"held out": (0,), "dev": (1,), "tuning": (2, 3), "final": (4, 5, 6, 7), "all": tuple(range(1, 8))}
)
"""Eighths of all questions. dev: evaluated on in tuning. all: trained on where nothing is tuned."""


@dataclass(frozen=True, slots=True)
class MicroProblem:
    """content: what is asked, bare, e.g. `47 + 8`. level: 0 where skills have none."""

    skill: str
    group: str
    content: str
    question: str
    steps: tuple[str, ...]
    answer: int | str
    level: int = 0
    ask: ClassVar[str] = ""
    hint: ClassVar[str] = " by steps"
    """Stage 0 always answers it by chain of thought, which makes that competence measurable."""

    @property
    def key(self) -> str:
        return self.content

    @property
    def part(self) -> int:
        return crc32(self.key.encode()) % 8

    @property
    def held_out(self) -> bool:
        return self.part == 0

    @property
    def prompt(self) -> str:
        """For RL and evaluation."""
        return f"Q: {self.question}{self.ask}\nA:"

    @property
    def hinted_prompt(self) -> str:
        """Asks for steps; never in RL."""
        return f"Q: {self.question}{self.hint}\nA:"

    @property
    def direct(self) -> str:
        return f" \\boxed{{{self.answer}}}"

    @property
    def chain_of_thought(self) -> str:
        return f" {', '.join(self.steps)}.{self.direct}"


Drawn = tuple[str, tuple[str, ...], int]


def _draw_chain(rng: Random, level: Level, sign: str) -> Drawn:
    """Draw a sum of three numbers, or of two less a third."""
    low, high = ((2, 9), (3, 15))[level - 1]
    answer = 0
    while answer < 1:
        a, b, c = (rng.randint(low, high) for _ in range(3))
        answer = a + b + c if sign == "+" else a + b - c
    first_two = a + b
    return f"{a}+{b}{sign}{c}", (f"{a}+{b}={first_two}", f"{first_two}{sign}{c}={answer}"), answer


def _draw_word(rng: Random, level: Level) -> Drawn:
    """Draw a story of three numbers."""
    question, steps, answer = _draw_chain(rng, level, "+")
    a, b, c = question.split("+")
    name = rng.choice(NAMES)
    thing = rng.choice(THINGS)
    return f"{name} has {a} {thing}, buys {b}, then {c} more. How many {thing}?", steps, answer


def _draw_product(rng: Random, level: Level) -> Drawn:
    """Draw a product, to be computed digit by digit."""
    a = rng.randint(2, 9)
    tens = rng.randint(1, 1 if level == 1 else 3)
    ones = rng.randint(1, 9)
    high = 10 * tens * a
    low = ones * a
    steps = (f"{a}*{10 * tens}={high}", f"{a}*{ones}={low}", f"{high}+{low}={high + low}")
    factors = [a, 10 * tens + ones]
    rng.shuffle(factors)
    return f"{factors[0]}*{factors[1]}", steps, high + low


def _draw_product_and_sum(rng: Random, level: Level) -> Drawn:
    """Draw a product and a number added or taken."""
    a = rng.randint(2, 9)
    b = rng.randint(2, (5, 9)[level - 1])
    c = rng.randint(2, (9, 15)[level - 1])
    product = a * b
    sign = "+" if product <= c or rng.random() < 0.5 else "-"
    answer = product + c if sign == "+" else product - c
    steps = (f"{a}*{b}={product}", f"{product}{sign}{c}={answer}")
    return f"{a}*{b}{sign}{c}", steps, answer


def _draw_factored(rng: Random, level: Level) -> Drawn:
    """Draw a number times a sum."""
    a = rng.randint(2, 9)
    total = rng.randint(5, (9, 12)[level - 1])
    b = rng.randint(1, total - 1)
    c = total - b
    answer = a * total
    return f"{a}*({b}+{c})", (f"{b}+{c}={total}", f"{a}*{total}={answer}"), answer


@dataclass(frozen=True, slots=True)
class Skill:
    """A kind of problem, which is drawn at several levels."""

    name: str
    group: GroupName
    _draw: Callable[[Random, Level], Drawn]

    def draw(self, rng: Random, level: Level, *, held_out: bool) -> MicroProblem:
        """Draw problems until one lies on the wanted side of the hold-out."""
        while True:
            question, steps, answer = self._draw(rng, level)
            problem = MicroProblem(self.name, self.group, question, question, steps, answer, level)
            if problem.held_out == held_out:
                return problem


SKILLS: Mapping[str, Skill] = MappingProxyType(
    {
        skill.name: skill
        for skill in (
            Skill("add", "add", partial(_draw_chain, sign="+")),
            Skill("sub3", "add", partial(_draw_chain, sign="-")),
            Skill("word", "add", _draw_word),
            Skill("mul", "mul", _draw_product),
            Skill("muladd", "mul", _draw_product_and_sum),
            Skill("sumul", "mul", _draw_factored),
        )
    }
)


def draw_fact(rng: Random, skill: Skill) -> MicroProblem:
    """Return one step of a random problem, half of the time the last. The fact is never held out, though the problem may be."""
    while True:
        level = rng.choice(LEVELS)
        problem = skill.draw(rng, level, held_out=rng.random() < 1 / 8)
        step = problem.steps[-1] if rng.random() < 0.5 else rng.choice(problem.steps)
        question, _, answer = step.partition("=")
        fact = MicroProblem("facts", "drill", question, question, (step,), int(answer), level)
        if not fact.held_out:
            return fact


_EVALUATION_SEED = 20_260
_MOST_MISSES = 2_000  # draws in a row


def as_prompts(problems: Iterable[MicroProblem], *, hinted: bool = False) -> list[Prompt]:
    """Return the problems as prompts. hinted: with the words that ask for steps, under ids of their own."""
    mark = "-hinted" if hinted else ""
    prompts = []
    for problem in problems:
        labels = {"skill": problem.skill}
        if problem.level:
            labels["level"] = str(problem.level)
        labels["group"] = problem.group
        prompt = Prompt(
            id=f"{problem.skill}{mark}:{problem.content}",
            text=problem.hinted_prompt if hinted else problem.prompt,
            gold=str(problem.answer),
            labels=labels,
        )
        prompts.append(prompt)
    return prompts


def spread_evenly(task: str, rng: Random, names: Sequence[str], count: int) -> list[str]:
    """Choose `count` of the names, as even as may be. Raises DataError."""
    if count < 1:
        raise DataError(f"{task}: {count} training prompts a step asked for; at least 1 is needed")
    order: list[str] = []
    while len(order) < count:
        order += rng.sample(names, len(names))
    return order[:count]


def draw_distinct(order: Sequence[str], draw: Callable[[str, int], MicroProblem], part: str) -> list[MicroProblem]:
    """Return a problem for each name; fewer where many draws find none. draw: of a name and the draw's number."""
    problems: dict[str, MicroProblem] = {}
    missed = number = 0
    while len(problems) < len(order) and missed < _MOST_MISSES:
        problem = draw(order[len(problems)], number)
        number += 1
        new = problem.part in PARTS[part] and problem.key not in problems
        missed = 0 if new else missed + 1
        if new:
            problems[problem.key] = problem
    return list(problems.values())


def training_prompts(
    step_seed: int, count: int, skills: Sequence[str] = tuple(SKILLS), part: str = "all"
) -> list[Prompt]:
    """Distinct, by the seed alone, skills as even as may be. part: of `PARTS`. Raises DataError for an unknown skill, or too
    many."""
    rng = Random(step_seed)
    names = spread_evenly("micro", rng, skills, count)
    return as_prompts(_draw_problems(rng, names, part))


def evaluation_prompts(per_skill: int = 40, *, hinted: bool = False, part: str = "held out") -> list[Prompt]:
    """Return so many held-out prompts of each skill, levels alternating. Raises DataError."""
    return as_prompts(_evaluation_problems(per_skill, part), hinted=hinted)


@cache
def _evaluation_problems(per_skill: int, part: str) -> tuple[MicroProblem, ...]:
    """Return the same problems in every suite, so many of each skill."""
    problems: list[MicroProblem] = []
    for skill in SKILLS:
        problems += _draw_problems(Random(_EVALUATION_SEED), [skill] * per_skill, part)
    return tuple(problems)


def worked_examples() -> list[MicroProblem]:
    """Return one problem of each skill, of those that are trained on."""
    return _draw_problems(Random(_EVALUATION_SEED), list(SKILLS), "all")


def _draw_problems(rng: Random, order: Sequence[str], part: str) -> list[MicroProblem]:
    """Draw a problem for each name, levels alternating. Raises DataError for an unknown skill, or where too few are found."""
    unknown = [name for name in order if name not in SKILLS]
    if unknown:
        raise DataError(f"micro: unknown skill {unknown[0]!r}; there are {', '.join(SKILLS)}")

    def draw(name: str, number: int) -> MicroProblem:
        return SKILLS[name].draw(rng, LEVELS[number % len(LEVELS)], held_out=part == "held out")

    problems = draw_distinct(order, draw, part)
    if len(problems) < len(order):
        side = {"held out": "held-out", "all": "training"}.get(part, part)
        raise DataError(f"micro: {len(order)} distinct {side} questions asked for, only {len(problems)} found")
    return problems
