"""Where a task's questions come from, and which of them are taken (docs/tasks.md)."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar
from zlib import crc32

import msgspec

from harness.errors import DataError, PluginError
from harness.experience.answers import Prompt
from harness.suite.seeds import derive
from harness.tasks.overlap import Overlap
from harness.tasks.task import Task

_HELD_OUT_SEED = 20_263
_DRAWS = 400
"""For each question that is asked for, before a small space ends in an error."""


@dataclass(frozen=True, slots=True)
class TrainingPool:
    """The prompts of one training set after all filters, in the set's order, and what was left out and why. Prompts carry the
    instruction with which the evaluation task of the same name asks.

    overlaps: dropped because an evaluation set repeats them. ambiguous: dropped because the solution boxes several answers.
    """

    name: str
    prompts: tuple[Prompt, ...]
    overlaps: tuple[Overlap, ...] = ()
    ambiguous: tuple[str, ...] = ()
    below_level: int = 0

    def draw(self, step_seed: int, count: int) -> list[Prompt]:
        """`count` distinct prompts, the same for the same `step_seed`. Raises DataError if the pool is smaller."""
        if not 1 <= count <= len(self.prompts):
            raise DataError(f"{self.name}: {count} prompts a step asked for; the pool holds {len(self.prompts)}")
        return Random(step_seed).sample(self.prompts, count)

    def digest(self) -> str:
        """Of all prompts: ids, texts and golds in order."""
        parts = [[prompt.id, prompt.text, prompt.gold] for prompt in self.prompts]
        return hashlib.blake2b(msgspec.json.encode(parts), digest_size=8).hexdigest()


def part_of(pool: TrainingPool, part: str) -> TrainingPool:
    """A quarter of the pool for `tuning`, the rest for `final`."""
    if part == "all":
        return pool
    chosen = tuple(p for p in pool.prompts if (crc32(p.text.encode()) % 4 == 0) == (part == "tuning"))
    return replace(pool, prompts=chosen)


class TaskSource(ABC):
    """A subclass is what the entry-point group `harness.tasks` names; its docstring's first line is the summary in `harness tasks`.
    Its module imports nothing heavy: it is asked before anything runs.

    name: as a suite writes it. What follows a dot (`ladder.add2`) chooses a part of a task that has such.
    """

    results_version: ClassVar[int | None] = None
    """Raised by the author when questions or golds change, so that cells get new keys; None takes the code's digest."""
    generated: ClassVar[bool] = False
    """Whether its training questions are made by code, without limit and without a file."""
    integers: ClassVar[bool] = False
    """Whether its golds are plain integers, so that the rules on other mathematics decide nothing."""
    trains: ClassVar[bool] = False
    """Whether it has training questions; else it is for evaluation alone."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.check_name()

    def check_name(self) -> None:
        """Raises PluginError for a part that there is not."""
        base, dot, part = self.name.partition(".")
        if dot:
            raise PluginError(f"task {self.name!r}: {base} has no part {part!r}")

    @abstractmethod
    def evaluation(self) -> Task:
        """How it is asked and scored, and its held-out questions. Reads nothing: `Task.documents` does, when called.
        Parameters of its own have defaults."""

    def pool(self, min_level: int | None = None, data_dir: Path | None = None) -> TrainingPool:
        """All training questions of a task that is not `generated`, as its `evaluation()` asks them, without those that the
        evaluation repeats. Raises DataError."""
        raise DataError(f"{self.name} has no training questions")

    def draw(
        self,
        step_seed: int,
        count: int,
        *,
        min_level: int | None = None,
        part: str = "all",
        data_dir: Path | None = None,
    ) -> list[Prompt]:
        """`count` distinct training questions, the same for the same `step_seed`. part: `tuning` and `final` have none in common.

        Raises DataError.
        """
        return part_of(self.pool(min_level, data_dir), part).draw(step_seed, count)

    def pool_digest(self) -> str:
        """What identifies the training questions before `min_level`, for a cell's key; empty where the code makes them. Raises
        DataError."""
        return "" if self.generated else self.pool().digest()

    def results_versions(self) -> dict[str, str]:
        """Of a task with a `Task.judge`: what its answers are judged by, for a cell's key."""
        return {}

    def remarks(self) -> list[str]:
        """What a plan should say of its questions, a line each."""
        return []

    def __eq__(self, other: Any) -> bool:
        return type(self) is type(other) and self.name == other.name

    def __hash__(self) -> int:
        return hash((type(self), self.name))


class Generated(TaskSource):
    """A task whose questions are made by code: `invent` makes one, and which side a question is on is decided by its text alone.

    size: held-out questions, the same ones everywhere.
    """

    generated = trains = True
    size: ClassVar[int] = 200

    @abstractmethod
    def invent(self, random: Random) -> Prompt:
        """A question, from this generator alone. Its text is the question itself, and equal texts have equal ids."""

    def held_out(self, data_dir: Path | None = None, fetch: bool = True) -> list[Prompt]:
        """`Task.documents`. Raises DataError."""
        return self._distinct(Random(_HELD_OUT_SEED), self.size, lambda side: side == 0)

    def draw(
        self,
        step_seed: int,
        count: int,
        *,
        min_level: int | None = None,
        part: str = "all",
        data_dir: Path | None = None,
    ) -> list[Prompt]:
        parts = {"all": (1, 2, 3, 4), "tuning": (1,), "final": (2, 3, 4)}[part]
        return self._distinct(Random(step_seed), count, lambda side: side in parts)

    def _distinct(self, random: Random, count: int, wanted: Callable[[int], bool]) -> list[Prompt]:
        """A fifth of all questions is held out (side 0), a fifth is for tuning."""
        found: dict[str, Prompt] = {}
        for _ in range(_DRAWS * count):
            prompt = self.invent(random)
            if wanted(crc32(prompt.text.encode()) % 5):
                found.setdefault(prompt.text, prompt)
            if len(found) == count:
                return list(found.values())
        raise DataError(f"{self.name}: {count} distinct questions asked for, only {len(found)} found")


_SEED = 20_260


def fair_part(documents: Sequence[Prompt], limit: int | None) -> list[Prompt]:
    """`limit` of the documents in the set's order; all where there are no more than that.

    Each label's values (skill, level; level, subject) get their share of any `limit`, rounded; within a value the choice is
    drawn by a fixed seed from the documents' ids. A smaller limit chooses a part of what a larger one chooses.
    """
    if limit is None or limit >= len(documents):
        return list(documents)
    labels = list(dict.fromkeys(label for document in documents for label in document.labels))
    keep = {document.id for document in _spread(documents, labels)[:limit]}
    return [document for document in documents if document.id in keep]


def _spread(documents: Sequence[Prompt], labels: Sequence[str], within: str = "") -> list[Prompt]:
    """In an order whose every beginning holds each value of each label in its share: systematic sampling, the j-th of a value's n
    documents at (j + u) / n with a drawn u in [0, 1)."""
    if not labels:
        return sorted(documents, key=lambda document: derive(_SEED, document.id))
    label, *rest = labels
    values: dict[str, list[Prompt]] = {}
    for document in documents:
        values.setdefault(document.labels.get(label, ""), []).append(document)
    placed = [
        ((j + derive(_SEED, within, value) / 2**64) / len(own), document)
        for value, own in values.items()
        for j, document in enumerate(_spread(own, rest, f"{within}/{value}"))
    ]
    return [document for _, document in sorted(placed, key=lambda place: place[0])]
