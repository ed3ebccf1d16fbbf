r"""Eleven levels of short questions, each drawn by its own rule, in three groups.

A problem is *held out* when crc32 of its level and content is divisible by eight: what is asked decides, not how. Held-out
problems are never trained on, neither by the supervised start nor by RL; evaluation uses nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Literal, get_args
from zlib import crc32

GroupName = Literal["add", "mul", "text"]
GROUPS: tuple[GroupName, ...] = get_args(GroupName)

_NAMES = ("Tom", "Ann", "Sam", "Eva", "Max", "Mia")
_THINGS = ("pens", "cups", "eggs", "nuts", "keys", "caps")
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


@dataclass(frozen=True, slots=True)
class Problem:
    """A question, the steps that solve it and its answer. content: what is asked, bare, e.g. ``47 + 8``."""

    skill: str
    group: str
    content: str
    question: str
    steps: tuple[str, ...]
    answer: str

    @property
    def held_out(self) -> bool:
        return crc32(f"{self.skill}:{self.content}".encode()) % 8 == 0

    @property
    def prompt(self) -> str:
        """What a policy reads in RL and evaluation: it asks for what is scored."""
        return f"Q: {self.question} Put the answer in \\boxed{{}}.\nA:"

    @property
    def hinted_prompt(self) -> str:
        """Asks for steps as well."""
        return f"Q: {self.question} Work by steps and put the answer in \\boxed{{}}.\nA:"

    @property
    def direct(self) -> str:
        """The bare answer, with the leading space that separates it from the prompt."""
        return f" \\boxed{{{self.answer}}}"

    @property
    def chain_of_thought(self) -> str:
        """The steps, then the answer."""
        return f" {', '.join(self.steps)}.{self.direct}"


Drawn = tuple[str, str, tuple[str, ...], int | str]
"""Content, question, steps, answer."""


def _sum(a: int, b: int) -> Drawn:
    return f"{a} + {b}", f"What is {a} + {b}?", (f"{a} + {b} = {a + b}",), a + b


def _add1(rng: Random) -> Drawn:
    return _sum(rng.randint(1, 9), rng.randint(1, 9))


def _add2(rng: Random) -> Drawn:
    return _sum(rng.randint(10, 99), rng.randint(2, 9))


def _sub2(rng: Random) -> Drawn:
    a, b = rng.randint(11, 99), rng.randint(2, 9)
    return f"{a} - {b}", f"What is {a} - {b}?", (f"{a} - {b} = {a - b}",), a - b


def _chain3(rng: Random) -> Drawn:
    a, b = rng.randint(3, 19), rng.randint(3, 19)
    c = rng.randint(2, min(19, a + b - 1))
    content = f"{a} + {b} - {c}"
    return content, f"What is {content}?", (f"{a} + {b} = {a + b}", f"{a + b} - {c} = {a + b - c}"), a + b - c


def _mul1x1(rng: Random) -> Drawn:
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    return f"{a} * {b}", f"What is {a} * {b}?", (f"{a} * {b} = {a * b}",), a * b


def _mul1x2(rng: Random) -> Drawn:
    a, tens, ones = rng.randint(2, 9), 10 * rng.randint(1, 4), rng.randint(1, 9)
    b, high, low = tens + ones, a * tens, a * ones
    steps = (f"{a} * {tens} = {high}", f"{a} * {ones} = {low}", f"{high} + {low} = {a * b}")
    return f"{a} * {b}", f"What is {a} * {b}?", steps, a * b


def _solve(rng: Random) -> Drawn:
    x, a = rng.randint(2, 40), rng.randint(2, 20)
    content = f"x + {a} = {x + a}"
    return content, f"Solve {content} for x.", (f"{x + a} - {a} = {x}",), x


def _word1(rng: Random) -> Drawn:
    a, b = rng.randint(3, 20), rng.randint(2, 9)
    name, thing = rng.choice(_NAMES), rng.choice(_THINGS)
    if a > b and rng.random() < 0.5:
        content, does, answer = f"{a} - {b}", "gives away", a - b
    else:
        content, does, answer = f"{a} + {b}", "buys", a + b
    question = f"{name} has {a} {thing} and {does} {b}. How many {thing} does {name} have now?"
    return content, question, (f"{content} = {answer}",), answer


def _second(rng: Random) -> Drawn:
    numbers = rng.sample(range(2, 100), 4)
    content = ", ".join(map(str, numbers))
    ordered = sorted(numbers, reverse=True)
    return content, f"What is the second largest of {content}?", (" > ".join(map(str, ordered)),), ordered[1]


def _legs(rng: Random) -> Drawn:
    animal, count = rng.choice(list(_LEGS)), rng.randint(2, 12)
    plural, legs = _PLURALS.get(animal, animal + "s"), _LEGS[animal]
    content = f"{count} {plural}"
    return content, f"How many legs do {content} have?", (f"{count} * {legs} = {count * legs}",), count * legs


def _spell(rng: Random) -> Drawn:
    """Dots between the letters, because the verifier reads a minus, a comma or a blank as mathematics, in which order is free."""
    word = rng.choice(_WORDS)
    question = f"Write the letters of {word} backwards, with dots between them."
    return word, question, (".".join(word),), ".".join(reversed(word))


@dataclass(frozen=True, slots=True)
class Level:
    """A way of drawing problems. about: a few words for listings."""

    name: str
    group: GroupName
    about: str
    _draw: Callable[[Random], Drawn]

    def draw(self, rng: Random, *, held_out: bool) -> Problem:
        """The next problem from `rng` that lies on the wanted side of the split."""
        while True:
            content, question, steps, answer = self._draw(rng)
            problem = Problem(self.name, self.group, content, question, steps, str(answer))
            if problem.held_out == held_out:
                return problem


LEVELS: Mapping[str, Level] = MappingProxyType(
    {
        level.name: level
        for level in (
            Level("add1", "add", "4 + 7", _add1),
            Level("add2", "add", "47 + 8", _add2),
            Level("sub2", "add", "52 - 7", _sub2),
            Level("chain3", "add", "7 + 12 - 5", _chain3),
            Level("mul1x1", "mul", "6 * 7", _mul1x1),
            Level("mul1x2", "mul", "6 * 17", _mul1x2),
            Level("solve", "add", "x + 14 = 31", _solve),
            Level("word1", "add", "one sentence, one sum", _word1),
            Level("second", "text", "second largest of four", _second),
            Level("legs", "mul", "animals times legs", _legs),
            Level("spell", "text", "a word's letters backwards", _spell),
        )
    }
)
"""No order of difficulty: that depends on the model, and `harness tasks --calibrate` measures it."""
