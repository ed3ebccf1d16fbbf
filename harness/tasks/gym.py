"""Puzzles of reasoning-gym as tasks: `gym.knights_knaves`, and with settings `gym.knights_knaves:n_people=2..3`.

The library (Apache-2.0, `pip install 'experience-sharing-harness[gym]'`) is used for its questions alone. Its scorers are not: some
execute an answer as Python, others pay for any text or in part. So only generators are taken whose question has one answer that a
line can state, and the answer is compared as a text (scorer `exact`). `tests/tasks/test_gym.py` holds every entry to that: its own
scorer agrees on right and wrong texts, questions are the same whatever the interpreter's hash seed, and the gold can be read.

The split is ours as well. In the library item i of seed s is item i + 1 of seed s - 1, so two seeds share nearly all questions.
Here every question is drawn by a number of its own, and its text decides whether it is held out (`source.Generated`).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar

from harness.errors import DataError, PluginError
from harness.experience.answers import Prompt
from harness.suite.seeds import derive
from harness.tasks.source import Generated
from harness.tasks.task import Task

NAME = "gym"
MISSING = "needs reasoning-gym: pip install 'experience-sharing-harness[gym]'"
INSTRUCTION = "Think step by step, and put the final answer, with nothing else, within \\boxed{}."
# Questions are drawn by numbers below this one
_NUMBERS = 2**31 - 1
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST_VALUES = 64
# Of a generator's default: a puzzle's search may take a time that grows exponentially, and cannot be interrupted
_MOST_TIMES = 4

ALLOWED: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "logic": (
            "aiw", "circuit_logic", "family_relationships", "knights_knaves", "self_reference", "syllogism",
            "zebra_puzzles",
        ),
        "numbers": (
            "base_conversion", "basic_arithmetic", "calendar_arithmetic", "chain_sum", "count_bits", "count_primes",
            "gcd", "lcm", "leg_counting", "number_sequence", "products", "simple_equations", "simple_geometry",
        ),
        "strings": (
            "caesar_cipher", "letter_counting", "needle_haystack", "spell_backward", "string_manipulation",
            "word_sequence_reversal",
        ),
        "graphs": ("course_schedule", "largest_island", "maze", "path_star", "rotten_oranges"),
        "algorithms": ("ab", "bf", "binary_alternation", "color_cube_rotation", "mahjong_puzzle", "rectangle_count"),
    }
)  # fmt: skip
"""Generators by what they ask for."""

REFUSED: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "its scorer executes the answer as Python": (
            "binary_matrix", "countdown", "n_queens", "polynomial_multiplication", "puzzle24", "simple_integration",
            "spiral_matrix", "string_insertion",
        ),
        "its answer may be written in several ways": ("number_sorting",),
        "its scorer pays for texts that answer nothing": ("complex_arithmetic", "game_of_life_halting"),
        "its questions follow the interpreter's hash seed": ("isomorphic_strings", "ransom_note"),
        "it states no answer": ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"),
        "it has too few questions": ("string_splitting", "string_synthesis"),
        "it makes or counts its questions at its start": ("acre", "word_ladder"),
        "it takes seconds for some of its questions": ("sokoban",),
    }
)  # fmt: skip
"""Generators that are known not to fit, by the reason."""


def group_of(generator: str) -> str:
    """What a generator asks for. Raises PluginError, with the reason, for one that is not taken."""
    for group, names in ALLOWED.items():
        if generator in names:
            return group
    for reason, names in REFUSED.items():
        if generator in names:
            raise PluginError(f"task 'gym.{generator}': not taken, for {reason}")
    known = ", ".join(sorted(name for names in ALLOWED.values() for name in names))
    raise PluginError(f"task 'gym.{generator}': not taken: no single line states its answer; there are {known}")


def read_settings(text: str) -> dict[str, list[Any]]:
    """The values of each setting, from `n_people=2..3,depth=2`. Raises PluginError."""
    settings: dict[str, list[Any]] = {}
    for part in filter(None, text.split(",")):
        key, sign, value = part.partition("=")
        if not sign or not key.isidentifier() or key in settings:
            raise PluginError(f"gym: {part!r} is no setting; e.g. n_people=2..3")
        settings[key] = _read_values(key, value)
    return settings


def _read_values(key: str, value: str) -> list[Any]:
    if span := _RANGE.fullmatch(value):
        first, last = int(span[1]), int(span[2])
        if not first <= last < first + _MOST_VALUES:
            raise PluginError(f"gym: {key}={value}: a range of 1 to {_MOST_VALUES} values, the smaller first")
        return list(range(first, last + 1))
    if value in ("true", "false"):
        return [value == "true"]
    for number in (int, float):
        try:
            return [number(value)]
        except ValueError:
            continue
    return [value]


class Gym(Generated):
    """Puzzles of reasoning-gym, one generator each (`gym.knights_knaves`), with settings as levels"""

    results_version: ClassVar[int | None] = 1

    def check_name(self) -> None:
        _, dot, part = self.name.partition(".")
        self.generator, _, settings = part.partition(":")
        if not dot or not self.generator:
            raise PluginError(f"task {self.name!r}: name a generator, e.g. gym.knights_knaves")
        self.group = group_of(self.generator)
        self.settings = read_settings(settings)

    def evaluation(self) -> Task:
        return Task(
            name=self.name,
            title=f"reasoning-gym: {self.generator} ({self.group}; training asks the same templates)",
            documents=self.held_out,
            styles=("zero-shot", "raw"),
            max_new_tokens=512,
            k=4,
            source="generated by reasoning-gym",
            licence="Apache-2.0",
            size=self.size,
            instruction=INSTRUCTION,
            scorer="exact",
        )

    def invent(self, random: Random) -> Prompt:
        """A question of one of the levels. Raises DataError where the library is not here or refuses a setting."""
        level = {key: random.choice(values) for key, values in self.settings.items()}
        question, gold = self._ask(level, random.randrange(_NUMBERS))
        labels = {"skill": self.generator, **{key: str(value) for key, value in level.items()}}
        number = derive(self.generator, question)
        return Prompt(f"{self.generator}-{number:016x}", question, gold, labels)

    def _ask(self, level: Mapping[str, Any], number: int) -> tuple[str, str]:
        """The question of a number, and its answer on one line."""
        made = self._open(level)[number]
        return made["question"].strip(), " ".join(str(made["answer"]).split())

    def _open(self, level: Mapping[str, Any]) -> Any:
        """The library's generator with these settings."""
        key = tuple(sorted(level.items()))
        if key not in self._opened:
            make, configure = self._factory
            known = {field.name: field.default for field in dataclasses.fields(configure)}
            for name in ("seed", "size"):
                known.pop(name, None)
            for name, value in level.items():
                self._check_setting(name, value, known)
            try:
                self._opened[key] = make(configure(seed=0, size=_NUMBERS, **level))
            except (AssertionError, TypeError, ValueError) as error:
                said = ", ".join(f"{name}={value}" for name, value in level.items())
                raise DataError(f"{self.name}: {self.generator} refuses {said}: {error}") from None
        return self._opened[key]

    def _check_setting(self, name: str, value: Any, known: Mapping[str, Any]) -> None:
        """known: the generator's settings with their defaults. Raises DataError for another one, and for a value that may take
        for ever."""
        if name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise DataError(f"{self.name}: {self.generator} has no setting {name!r}; there are {there}")
        default = known[name]
        if isinstance(value, int | float) and isinstance(default, int | float):
            most = _MOST_TIMES * max(abs(default), 1)
            if abs(value) > most:
                raise DataError(
                    f"{self.name}: {name}={value}: at most {most}, {_MOST_TIMES} times the generator's default"
                )

    @cached_property
    def _opened(self) -> dict[tuple[tuple[str, Any], ...], Any]:
        return {}

    @cached_property
    def _factory(self) -> tuple[Any, Any]:
        """The class of the generator and of its settings."""
        if importlib.util.find_spec("reasoning_gym") is None:
            raise DataError(f"{self.name} {MISSING}")
        from reasoning_gym.factory import DATASETS

        make, configure = DATASETS[self.generator]
        return make, configure
