"""Countdown, the puzzle that the field trains on: make a target of given numbers (`countdown`, `countdown.3+4`).

Every question is made from a solution, so that each has one. Its numbers stand in ascending order: a puzzle has one text, and the
text decides whether it is held out (`source.Generated`). The scorer is ours (`verification.countdown`).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from random import Random
from typing import ClassVar, NamedTuple

from harness.errors import PluginError
from harness.experience.answers import Prompt
from harness.suite.seeds import derive_seed
from harness.tasks.settings import read_settings
from harness.tasks.source import Generated
from harness.tasks.task import Task

NAME = "countdown"
COUNTS = (2, 3, 4, 5, 6)
"""Numbers of a puzzle, that can be asked for."""
USUAL = (3, 4)
INSTRUCTION = "Think step by step, and put the final expression, with nothing else, within \\boxed{}."
# As in the field's data set (TinyZero): numbers of one or two digits, and targets of two
_LARGEST = 99
_TARGETS = range(10, 100)
_SETTING = "numbers"


def counts_of(task: str) -> tuple[int, ...]:
    """Return how many numbers a puzzle of the task has: of `countdown.3+4`, or of the setting `countdown:numbers=3..4`. Raises
    PluginError."""
    bare, colon, setting = task.partition(":")
    _, dot, part = bare.partition(".")
    if not dot and not colon:
        return USUAL
    if dot and colon:
        raise PluginError(f"task {task!r}: numbers after the dot or as a setting, not both")
    if dot:
        chosen = [int(one) if one.isdecimal() else 0 for one in part.split("+")]
    else:
        settings = read_settings(NAME, setting)
        if settings.keys() != {_SETTING}:
            raise PluginError(f"task {task!r}: its one setting is {_SETTING}, e.g. {_SETTING}=3..4")
        chosen = settings[_SETTING]
    if not {*chosen} <= {*COUNTS} or len({*chosen}) < len(chosen):
        known = ", ".join(map(str, COUNTS))
        raise PluginError(f"task {task!r}: how many numbers? Of {known}, each once (e.g. countdown.3+4)")
    return tuple(chosen)


class Puzzle(NamedTuple):
    """numbers: ascending. solution: an expression of each of them once, whose value is the target."""

    numbers: tuple[int, ...]
    target: int
    solution: str


class _Term(NamedTuple):
    """A part of a solution. rank: 2 for a number, 1 for a product or quotient, 0 for a sum or difference."""

    value: Fraction
    text: str
    rank: int

    def inside(self, least: int) -> str:
        """Return the term's text, in parentheses where it binds less than `least`."""
        return self.text if self.rank >= least else f"({self.text})"


def invent_puzzle(random: Random, count: int) -> Puzzle:
    """Invent a puzzle of so many numbers, from this generator alone: numbers are joined at random until the result is a target."""
    while True:
        numbers = [random.randint(1, _LARGEST) for _ in range(count)]
        terms = [_Term(Fraction(number), str(number), 2) for number in numbers]
        while len(terms) > 1:
            first = terms.pop(random.randrange(len(terms)))
            second = terms.pop(random.randrange(len(terms)))
            terms.append(_join_terms(first, second, random.choice("+-*/")))
        (whole,) = terms
        if whole.value.denominator == 1 and whole.value.numerator in _TARGETS:
            return Puzzle(tuple(sorted(numbers)), whole.value.numerator, whole.text)


def _join_terms(first: _Term, second: _Term, sign: str) -> _Term:
    """Return `first sign second` as a term.

    A difference that would be negative is turned round, and a quotient that is no whole number becomes a product, so that a
    solution is read easily.
    """
    if sign == "-" and first.value < second.value:
        first, second = second, first
    if sign == "/" and (second.value == 0 or (first.value / second.value).denominator > 1):
        sign = "*"
    if sign == "+":
        return _Term(first.value + second.value, f"{first.text} + {second.text}", 0)
    if sign == "-":
        return _Term(first.value - second.value, f"{first.text} - {second.inside(1)}", 0)
    if sign == "*":
        return _Term(first.value * second.value, f"{first.inside(1)} * {second.inside(1)}", 1)
    return _Term(first.value / second.value, f"{first.inside(1)} / {second.inside(2)}", 1)


def _listed(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


class Countdown(Generated):
    """Puzzles: an expression of given numbers that makes a target (`countdown.3+4`: of three or four numbers)"""

    size: ClassVar[int] = 200
    asks_as_evaluated: ClassVar[bool] = True

    def check_name(self) -> None:
        self.counts = counts_of(self.name)

    def name_levels(self) -> list[str]:
        return [f"{NAME}.{count}" for count in self.counts]

    def evaluation(self) -> Task:
        return Task(
            name=self.name,
            title=f"Countdown of {' or '.join(map(str, self.counts))} numbers (held out)",
            documents=self.held_out,
            styles=("zero-shot", "raw"),
            max_new_tokens=512,
            k=4,
            source="generated by harness.tasks.countdown",
            licence="Apache-2.0",
            size=self.size,
            instruction=INSTRUCTION,
            scorer="countdown",
        )

    def invent(self, random: Random) -> Prompt:
        puzzle = invent_puzzle(random, random.choice(self.counts))
        question = (
            f"Using the numbers {_listed(puzzle.numbers)}, make an expression that equals {puzzle.target}. Use each number exactly "
            "once, and only +, -, *, / and parentheses."
        )
        labels = {"skill": f"{len(puzzle.numbers)} numbers"}
        return Prompt(f"{NAME}-{derive_seed(NAME, question):016x}", question, puzzle.solution, labels)
