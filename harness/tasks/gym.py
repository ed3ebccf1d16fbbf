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
import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec

from harness.errors import DataError, PluginError
from harness.experience.answers import Prompt
from harness.suite.seeds import derive_seed
from harness.tasks.settings import levels_of, read_settings
from harness.tasks.source import Generated
from harness.tasks.task import Task

NAME = "gym"
MISSING = "needs reasoning-gym: pip install 'experience-sharing-harness[gym]'"
INSTRUCTION = "Think step by step, and put the final answer, with nothing else, within \\boxed{}."
# Questions are drawn by numbers below this one
_NUMBERS = 2**31 - 1
# Of a generator's default: a puzzle's search may take a time that grows exponentially, and cannot be interrupted
_MOST_TIMES = 4
# Numbers in a row of which a generator makes no question
_MOST_FAILURES = 20
# Of the digest in keys. Some generators take a tenth of a second for a question
_DIGESTED, _DIGEST_SEED = 16, 20_264

ALLOWED: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "logic": (
            "aiw", "circuit_logic", "family_relationships", "knights_knaves", "syllogism", "zebra_puzzles",
        ),
        "numbers": (
            "base_conversion", "basic_arithmetic", "calendar_arithmetic", "chain_sum", "count_bits", "count_primes",
            "gcd", "lcm", "leg_counting", "products", "simple_equations", "simple_geometry",
        ),
        "strings": (
            "letter_counting", "needle_haystack", "spell_backward", "string_manipulation", "word_sequence_reversal",
        ),
        "graphs": ("course_schedule", "largest_island", "maze", "path_star", "rotten_oranges"),
        "algorithms": ("ab", "binary_alternation", "color_cube_rotation", "mahjong_puzzle", "rectangle_count"),
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
        "it has fewer than 2,000 held-out questions": (
            "bf", "caesar_cipher", "number_sequence", "self_reference", "string_splitting", "string_synthesis",
        ),
        "it makes or counts its questions at its start": ("acre", "word_ladder"),
        "it takes seconds for some of its questions": ("sokoban",),
    }
)  # fmt: skip
"""Generators that are known not to fit, by the reason."""


def group_of(generator: str) -> str:
    """Return the group of a generator, by what it asks for. Raises PluginError, with the reason, for one that is not taken."""
    for group, names in ALLOWED.items():
        if generator in names:
            return group
    for reason, names in REFUSED.items():
        if generator in names:
            raise PluginError(f"task 'gym.{generator}': not taken, for {reason}")
    known = ", ".join(sorted(name for names in ALLOWED.values() for name in names))
    raise PluginError(f"task 'gym.{generator}': not taken: no single line states its answer; there are {known}")


class Gym(Generated):
    """Puzzles of reasoning-gym, one generator each (`gym.knights_knaves`), with settings as levels"""

    results_version: ClassVar[int | None] = 1
    asks_as_evaluated: ClassVar[bool] = True

    def check_name(self) -> None:
        """Read generator and settings from the task's name, as `gym.knights_knaves:n_people=3`. Raises PluginError."""
        _, dot, part = self.name.partition(".")
        self.generator, _, settings = part.partition(":")
        if not dot or not self.generator:
            raise PluginError(f"task {self.name!r}: name a generator, e.g. gym.knights_knaves")
        self.group = group_of(self.generator)
        self.settings = read_settings(NAME, settings)

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

    def held_out(self, data_dir: Path | None = None, fetch: bool = True) -> list[Prompt]:
        return list(_hold_out(self.name, self.size))

    def name_levels(self) -> list[str]:
        return levels_of(self.name, self.settings)

    def questions_digest(self) -> str:
        return _digest_questions(self.name)

    def invent(self, random: Random) -> Prompt:
        """Return a question of one of the levels. Raises DataError where the library is not here or refuses a setting."""
        level = {key: random.choice(values) for key, values in self.settings.items()}
        question, gold = self._ask_some(level, random)
        labels = {"skill": self.generator, **{key: str(value) for key, value in level.items()}}
        number = derive_seed(self.generator, question)
        return Prompt(f"{self.generator}-{number:016x}", question, gold, labels)

    def _ask_some(self, level: Mapping[str, Any], random: Random) -> tuple[str, str]:
        """Ask the first question that the generator can make: of some numbers it finds none (one maze in thousands).

        Raises DataError where it makes none at all, or a setting is refused.
        """
        self._open(level)
        failed: Exception | None = None
        for _ in range(_MOST_FAILURES):
            try:
                return self._ask(level, random.randrange(_NUMBERS))
            except Exception as error:  # whatever a generator's own search raises
                failed = error
        raise DataError(
            f"{self.name}: {self.generator} makes no question: {type(failed).__name__}: {failed}"
        ) from failed

    def _ask(self, level: Mapping[str, Any], number: int) -> tuple[str, str]:
        """Return the question of a number, and its answer on one line."""
        made = self._open(level)[number]
        return made["question"].strip(), " ".join(str(made["answer"]).split())

    def _open(self, level: Mapping[str, Any]) -> Any:
        """Return the library's generator with these settings."""
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
        """Check a setting. known: the generator's settings with their defaults. Raises DataError for another one, and for a
        value that may take for ever."""
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


@lru_cache(maxsize=64)
def _hold_out(name: str, size: int) -> Sequence[Prompt]:
    """Return a task's held-out questions, made once: some generators take a minute for them, and each point of a curve asks
    them."""
    source = Gym(name)
    source.size = size  # type: ignore[misc]  # as the class had it when it was asked
    return tuple(super(Gym, source).held_out())


@lru_cache(maxsize=256)
def _digest_questions(name: str) -> str:
    """Return a digest of a few questions of a task with their answers: another release of the library may ask others."""
    source, random = Gym(name), Random(_DIGEST_SEED)
    asked = [source.invent(random) for _ in range(_DIGESTED)]
    said = msgspec.json.encode([[prompt.text, prompt.gold] for prompt in asked])
    return hashlib.blake2b(said, digest_size=8).hexdigest()
