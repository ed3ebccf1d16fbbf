"""Questions of a task (docs/tasks.md)."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import ClassVar
from zlib import crc32

import msgspec

from harness.errors import DataError, PluginError
from harness.experience.answers import Prompt
from harness.suite.seeds import derive_seed
from harness.tasks.overlap import Overlap
from harness.tasks.task import Task

_HELD_OUT_SEED = 20_263
_DRAWS = 400


@dataclass(frozen=True, slots=True)
class TrainingPool:
    """What filters left, with the evaluation's instruction. overlaps: left out as repeated in an evaluation set. ambiguous:
    left out for several boxed answers."""

    name: str
    prompts: tuple[Prompt, ...]
    overlaps: tuple[Overlap, ...] = ()
    ambiguous: tuple[str, ...] = ()
    below_level: int = 0

    def draw(self, step_seed: int, count: int) -> list[Prompt]:
        """Distinct, by the seed alone. Raises DataError for too many."""
        if not 1 <= count <= len(self.prompts):
            raise DataError(f"{self.name}: {count} prompts a step asked for; the pool holds {len(self.prompts)}")
        return Random(step_seed).sample(self.prompts, count)

    def digest(self) -> str:
        parts = [[prompt.id, prompt.text, prompt.gold] for prompt in self.prompts]
        return hashlib.blake2b(msgspec.json.encode(parts), digest_size=8).hexdigest()


def part_of(pool: TrainingPool, part: str) -> TrainingPool:
    """Return the part of a pool that `tuning` or `final` runs draw from, a quarter and the rest; `all` is the whole pool."""
    if part == "all":
        return pool
    chosen = tuple(p for p in pool.prompts if (crc32(p.text.encode()) % 4 == 0) == (part == "tuning"))
    return replace(pool, prompts=chosen)


class TaskSource(ABC):
    """Named by the entry-point group `harness.tasks`; the docstring's first line is its summary. Its module imports nothing
    heavy.

    name: as in a suite; a dot chooses a part (`ladder.add2`).
    """

    results_version: ClassVar[int | None] = None
    """Raised by the author when questions or golds change; None takes the code's digest."""
    generated: ClassVar[bool] = False
    """Training questions are made by code."""
    integers: ClassVar[bool] = False
    """Golds are integers: keys leave `verification/symbolic` out."""
    trains: ClassVar[bool] = False
    """Else it is for evaluation alone."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.check_name()

    def check_name(self) -> None:
        """Check the name's part. Raises PluginError for a part that there is not."""
        base, dot, part = self.name.partition(".")
        if dot:
            raise PluginError(f"task {self.name!r}: {base} has no part {part!r}")

    @abstractmethod
    def evaluation(self) -> Task:
        """Return how the held-out questions are asked and judged. It reads no data, and its own parameters have defaults."""

    def pool(self, min_level: int | None = None, data_dir: Path | None = None) -> TrainingPool:
        """Return the training questions as `evaluation()` asks them, without those that it repeats. Raises DataError."""
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
        """Distinct, by the seed alone. part: `tuning` and `final` share none. Raises DataError."""
        return part_of(self.pool(min_level, data_dir), part).draw(step_seed, count)

    def pool_digest(self) -> str:
        """Return the pool's digest for a cell's key; empty for generated questions. Raises DataError."""
        return "" if self.generated else self.pool().digest()

    def results_versions(self) -> dict[str, str]:
        """Return the results versions of a `Task.judge` of one's own, for a cell's key."""
        return {}

    def questions_digest(self) -> str:
        """Return a digest of questions that another package's code makes, for a cell's key, so that other questions are
        another cell.

        It is empty where the questions follow from the results version. Raises DataError where that package is not here.
        """
        return ""

    def name_levels(self) -> list[str]:
        """Return the names of the tasks that this one mixes, by difficulty or kind; itself where it mixes none. Raises
        PluginError."""
        return [self.name]

    def remarks(self) -> list[str]:
        return []

    def without_levels(self, min_level: int | None) -> None:
        """Check that no level of MATH is asked for, as the task has none. Raises DataError."""
        if min_level is not None:
            raise DataError(f"{self.name} has no levels of MATH; leave min_level out")


class Generated(TaskSource):
    """A question's text decides its side. size: held out. asks_as_evaluated: training asks with evaluation's instruction; not by
    default, so that tasks which were made before train as they did."""

    generated = trains = True
    size: ClassVar[int] = 200
    asks_as_evaluated: ClassVar[bool] = False

    @abstractmethod
    def invent(self, random: Random) -> Prompt:
        """Invent a question, from this generator alone. Equal texts have equal ids."""

    def held_out(self, data_dir: Path | None = None, fetch: bool = True) -> list[Prompt]:
        """Return the held-out questions, as `Task.documents` does. Raises DataError."""
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
        self.without_levels(min_level)
        parts = {"all": (1, 2, 3, 4), "tuning": (1,), "final": (2, 3, 4)}[part]
        drawn = self._distinct(Random(step_seed), count, lambda side: side in parts)
        return self._as_evaluated(drawn) if self.asks_as_evaluated else drawn

    def _as_evaluated(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Return the questions as `evaluation()` asks them by default, with its instruction."""
        task = self.evaluation()
        return [replace(prompt, text=task.render(prompt, task.styles[0])) for prompt in prompts]

    def _distinct(self, random: Random, count: int, wanted: Callable[[int], bool]) -> list[Prompt]:
        """Invent distinct questions of the wanted sides, which a question's text decides: a fifth is held out (side 0), a
        fifth is for tuning.

        Raises DataError where too few are found.
        """
        prompts: dict[str, Prompt] = {}
        for _ in range(_DRAWS * count):
            prompt = self.invent(random)
            if wanted(crc32(prompt.text.encode()) % 5):
                prompts.setdefault(prompt.text, prompt)
            if len(prompts) == count:
                return list(prompts.values())
        raise DataError(f"{self.name}: {count} distinct questions asked for, only {len(prompts)} found")


_SEED = 20_260


def fair_part(documents: Sequence[Prompt], limit: int | None) -> list[Prompt]:
    """Return `limit` documents, in order: each label's values get their share, by a fixed seed. Smaller limits choose subsets."""
    if limit is None or limit >= len(documents):
        return list(documents)
    labels = list(dict.fromkeys(label for document in documents for label in document.labels))
    keep = {document.id for document in _spread_labels(documents, labels)[:limit]}
    return [document for document in documents if document.id in keep]


def _spread_labels(documents: Sequence[Prompt], labels: Sequence[str], within: str = "") -> list[Prompt]:
    """Return the documents in an order in which every label is spread evenly. The j-th of n stands at (j + u) / n, u in [0, 1)."""
    if not labels:
        return sorted(documents, key=lambda document: derive_seed(_SEED, document.id))
    label, *rest = labels
    values: dict[str, list[Prompt]] = {}
    for document in documents:
        values.setdefault(document.labels.get(label, ""), []).append(document)
    placed: list[tuple[float, Prompt]] = []
    for value, own in values.items():
        offset = derive_seed(_SEED, within, value) / 2**64  # u, the same for all of one value
        for j, document in enumerate(_spread_labels(own, rest, f"{within}/{value}")):
            placed.append(((j + offset) / len(own), document))
    return [document for _, document in sorted(placed, key=lambda place: place[0])]
