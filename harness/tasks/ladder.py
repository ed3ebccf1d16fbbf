"""Eleven levels of short questions in three groups, for models of 0.1 to 1.5 B; eighths are held out by crc32 of level and
content."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from random import Random
from types import MappingProxyType
from typing import Literal

from harness.errors import DataError, PluginError
from harness.experience.answers import Prompt
from harness.tasks import micro
from harness.tasks.micro import NAMES, THINGS

_LEGS = MappingProxyType(
    {"cow": 4, "duck": 2, "spider": 8, "ant": 6, "horse": 4, "bee": 6, "dog": 4, "cat": 4, "owl": 2, "hen": 2, "sheep": 4, "fly": 6}
)  # fmt: skip
_PLURALS = MappingProxyType({"sheep": "sheep", "fly": "flies"})
_SPELT = """
apple bank bath bell bird boat bone book bowl bread brick bus cake camp card cat chair chalk cloud coat coin
corn cow crab cup desk dog door drum duck dust egg farm fire fish flag floor fox frog game gate girl glass
goat gold grass hat hand hill horn horse house ice iron jar juice key king kite knife lake lamp leaf lemon
lion lock map milk mint moon mouse nail nest night nose ocean oil paint pan paper path pear pen phone pig
plane plant plate pond queen rain ring river road rock roof rope rose salt sand seed shelf ship shirt shoe
silk skin snow soap sock song soup spoon star stone sugar sun table tail tent tiger toad train tree tub van
vase wall wasp water wave whale wheel wind wine wolf wood wool yard zebra
"""
_WORDS = tuple(_SPELT.split())


class LadderProblem(micro.MicroProblem):
    """A problem of the ladder, which asks for its answer in a box."""

    __slots__ = ()
    ask = " Put the answer in \\boxed{}."
    hint = " Work by steps and put the answer in \\boxed{}."

    @property
    def key(self) -> str:
        return f"{self.skill}:{self.content}"


Drawn = tuple[str, str, tuple[str, ...], int | str]
"""Content, question, steps, answer."""


def _draw_binary(rng: Random, sign: str, low: int, high: int, least: int = 2) -> Drawn:
    """Draw two numbers and a sign."""
    a = rng.randint(low, high)
    b = rng.randint(least, 9)
    result = {"+": a + b, "-": a - b, "*": a * b}[sign]
    content = f"{a} {sign} {b}"
    return content, f"What is {content}?", (f"{content} = {result}",), result


def _draw_chain3(rng: Random) -> Drawn:
    """Draw a sum of two numbers less a third."""
    a = rng.randint(3, 19)
    b = rng.randint(3, 19)
    first_two = a + b
    c = rng.randint(2, min(19, first_two - 1))
    answer = first_two - c
    content = f"{a} + {b} - {c}"
    steps = (f"{a} + {b} = {first_two}", f"{first_two} - {c} = {answer}")
    return content, f"What is {content}?", steps, answer


def _draw_mul1x2(rng: Random) -> Drawn:
    """Draw one digit times two."""
    a = rng.randint(2, 9)
    tens = 10 * rng.randint(1, 4)
    ones = rng.randint(1, 9)
    high = a * tens
    low = a * ones
    answer = high + low
    content = f"{a} * {tens + ones}"
    steps = (f"{a} * {tens} = {high}", f"{a} * {ones} = {low}", f"{high} + {low} = {answer}")
    return content, f"What is {content}?", steps, answer


def _draw_equation(rng: Random) -> Drawn:
    """Draw an equation in x."""
    x = rng.randint(2, 40)
    a = rng.randint(2, 20)
    total = x + a
    content = f"x + {a} = {total}"
    return content, f"Solve {content} for x.", (f"{total} - {a} = {x}",), x


def _draw_word1(rng: Random) -> Drawn:
    """Draw a story with one step."""
    a = rng.randint(3, 20)
    b = rng.randint(2, 9)
    name = rng.choice(NAMES)
    thing = rng.choice(THINGS)
    content = f"{a} + {b}"
    does = "buys"
    answer = a + b
    if a > b and rng.random() < 0.5:
        content = f"{a} - {b}"
        does = "gives away"
        answer = a - b
    question = f"{name} has {a} {thing} and {does} {b}. How many {thing} does {name} have now?"
    return content, question, (f"{content} = {answer}",), answer


def _draw_second(rng: Random) -> Drawn:
    """Draw the question for the second largest of some numbers."""
    numbers = rng.sample(range(2, 100), 4)
    content = ", ".join(map(str, numbers))
    ordered = sorted(numbers, reverse=True)
    step = " > ".join(map(str, ordered))
    return content, f"What is the second largest of {content}?", (step,), ordered[1]


def _draw_legs(rng: Random) -> Drawn:
    """Draw the question for the legs of some animals."""
    animal = rng.choice(list(_LEGS))
    count = rng.randint(2, 12)
    plural = _PLURALS.get(animal, animal + "s")
    legs = _LEGS[animal]
    answer = count * legs
    content = f"{count} {plural}"
    return content, f"How many legs do {content} have?", (f"{count} * {legs} = {answer}",), answer


def _draw_spelling(rng: Random) -> Drawn:
    """Draw a word to be written backwards, with dots between its letters: a minus, comma or blank is mathematics to the
    verifier."""
    word = rng.choice(_WORDS)
    question = f"Write the letters of {word} backwards, with dots between them."
    return word, question, (".".join(word),), ".".join(reversed(word))


@dataclass(frozen=True, slots=True)
class Level:
    """A kind of problem of one difficulty."""

    name: str
    group: Literal["add", "mul", "text"]
    _draw: Callable[[Random], Drawn]

    def draw(self, rng: Random, *, held_out: bool) -> LadderProblem:
        """Draw problems until one lies on the wanted side of the hold-out."""
        while True:
            content, question, steps, answer = self._draw(rng)
            problem = LadderProblem(self.name, self.group, content, question, steps, str(answer))
            if problem.held_out == held_out:
                return problem


LEVELS: Mapping[str, Level] = MappingProxyType(
    {
        level.name: level
        for level in (
            Level("add1", "add", partial(_draw_binary, sign="+", low=1, high=9, least=1)),
            Level("add2", "add", partial(_draw_binary, sign="+", low=10, high=99)),
            Level("sub2", "add", partial(_draw_binary, sign="-", low=11, high=99)),
            Level("chain3", "add", _draw_chain3),
            Level("mul1x1", "mul", partial(_draw_binary, sign="*", low=2, high=9)),
            Level("mul1x2", "mul", _draw_mul1x2),
            Level("solve", "add", _draw_equation),
            Level("word1", "add", _draw_word1),
            Level("second", "text", _draw_second),
            Level("legs", "mul", _draw_legs),
            Level("spell", "text", _draw_spelling),
        )
    }
)


NAME = "ladder"
_EVALUATION_SEED, _WORKED_SEED = 20_261, 20_262


def is_ladder(task: str) -> bool:
    return task.partition(".")[0] == NAME


def levels_of(task: str) -> tuple[str, ...]:
    """Return the levels that a name stands for: `ladder` for all, `ladder.add2+chain3` for two. Raises PluginError."""
    _, dot, chosen = task.partition(".")
    if not dot:
        return tuple(LEVELS)
    names = tuple(chosen.split("+"))
    unknown = [name for name in names if name not in LEVELS]
    if unknown or len(set(names)) < len(names):
        fault = f"unknown level {unknown[0]!r}" if unknown else "a level occurs twice"
        raise PluginError(f"task {task!r}: {fault}; there are {', '.join(LEVELS)} (e.g. ladder.add2+chain3)")
    return names


def training_prompts(step_seed: int, count: int, levels: Sequence[str] = tuple(LEVELS)) -> list[Prompt]:
    """Distinct, by the seed alone, levels as even as may be. Raises DataError where these hold too few."""
    rng = Random(step_seed)
    order = micro.spread_evenly(NAME, rng, levels, count)
    problems = _draw_problems(rng, order)
    if len(problems) < count:
        level = order[len(problems)]
        raise DataError(f"{NAME}: {count} distinct prompts a step asked for; level {level} does not hold its share")
    return micro.as_prompts(problems)


@lru_cache(maxsize=64)
def evaluation_problems(levels: tuple[str, ...] = tuple(LEVELS), per_level: int = 40) -> tuple[micro.MicroProblem, ...]:
    """So many held-out problems of each level, the same ones whatever levels are beside it; fewer where one holds fewer."""
    problems: list[micro.MicroProblem] = []
    for name in levels:
        problems += _draw_problems(Random(_EVALUATION_SEED), [name] * per_level, "held out")
    return tuple(problems)


def evaluation_prompts(
    levels: tuple[str, ...] = tuple(LEVELS), per_level: int = 40, *, hinted: bool = False
) -> list[Prompt]:
    return micro.as_prompts(evaluation_problems(levels, per_level), hinted=hinted)


def worked_examples(level: str, count: int) -> str:
    """Solved training problems for a prompt, always the same."""
    problems = _draw_problems(Random(_WORKED_SEED), [level] * count)
    if len(problems) < count:
        raise DataError(f"{NAME}: {count} worked examples asked for; level {level} holds {len(problems)}")
    return "".join(f"{problem.prompt}{problem.chain_of_thought}\n\n" for problem in problems)


def _draw_problems(rng: Random, order: Sequence[str], part: str = "all") -> list[micro.MicroProblem]:
    """Draw a problem of each named level, of one part of all problems (`micro.PARTS`)."""
    is_held_out = part == "held out"
    return micro.draw_distinct(order, lambda name, _: LEVELS[name].draw(rng, held_out=is_held_out), part)
