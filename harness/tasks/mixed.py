"""Several tasks in one training run: `training.task: [{name: countdown, share: 0.5}, ...]`.

Every question carries its task (`Prompt.task`), which says how it is asked and judged. Its id begins with the task's name, so that
records and rows of an exchange tell their task too.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from harness.errors import DataError
from harness.experience.answers import Prompt
from harness.suite.schema import FileTask
from harness.suite.seeds import derive_seed
from harness.tasks.source import TaskSource
from harness.tasks.task import Style, Task

# Of a record's prompt, as a receiver admits it
_LONGEST_ID = 200


class MixturePart(NamedTuple):
    """named: as the suite has it. share: of the questions, relative to the other parts' shares."""

    named: str | FileTask
    share: float
    source: TaskSource
    task: Task

    @property
    def name(self) -> str:
        return str(self.named)


class Mixed(TaskSource):
    """Questions of several tasks by their shares"""

    generated = trains = True

    def __init__(self, parts: Sequence[MixturePart]) -> None:
        self.parts = tuple(parts)
        super().__init__(", ".join(part.name for part in parts))

    def check_name(self) -> None:
        """Accept any name: the parts have checked theirs."""

    def evaluation(self) -> Task:
        """Return how its questions are asked and judged in training; evaluation names its tasks one by one."""
        tasks = {part.name: part.task for part in self.parts}
        first, *others = tasks.values()
        common_styles = [style for style in first.styles if all(style in task.styles for task in others)]
        return MixedQuestions(
            name=self.name,
            title=f"mixed: {self.name}",
            documents=_no_documents,
            styles=tuple(common_styles),
            max_new_tokens=max(task.max_new_tokens for task in tasks.values()),
            scorer=first.scorer,
            by_name=tasks,
        )

    def draw(
        self,
        step_seed: int,
        count: int,
        *,
        min_level: int | None = None,
        part: str = "all",
        data_dir: Path | None = None,
    ) -> list[Prompt]:
        """Draw from each task its share, rounded to whole questions at random so that it holds over many steps.

        Questions are in random order, so that mini-batches are mixed too.
        """
        self.without_levels(min_level)
        random = Random(derive_seed(step_seed, "mixed"))
        drawn: list[Prompt] = []
        for one, its_count in zip(self.parts, self._count_each(random, count), strict=True):
            if its_count:
                seed = derive_seed(step_seed, "mixed", one.name)
                drawn += [
                    carry_task(prompt, one.name)
                    for prompt in one.source.draw(seed, its_count, part=part, data_dir=data_dir)
                ]
        random.shuffle(drawn)
        return drawn

    def _count_each(self, random: Random, count: int) -> list[int]:
        """Return how many of `count` questions each part asks: its share of them, or the next smaller or larger number."""
        whole = sum(part.share for part in self.parts)
        offset = random.random()
        edges, so_far = [0], 0.0
        for part in self.parts[:-1]:
            so_far += part.share
            edges.append(floor(count * so_far / whole + offset))
        edges.append(count)
        return [min(after, count) - min(before, count) for before, after in itertools.pairwise(edges)]

    def most_of(self, part: MixturePart, count: int) -> int:
        """Return the most questions that a part asks among `count`."""
        return min(count, ceil(count * part.share / sum(one.share for one in self.parts)))

    def pool_digest(self) -> str:
        """Return a digest of the parts' pools for a cell's key; empty where code makes all questions."""
        digests = [[part.name, part.source.pool_digest()] for part in self.parts]
        if not any(digest for _, digest in digests):
            return ""
        return hashlib.blake2b(msgspec.json.encode(digests), digest_size=8).hexdigest()

    def remarks(self) -> list[str]:
        return [remark for part in self.parts for remark in part.source.remarks()]


def carry_task(prompt: Prompt, name: str) -> Prompt:
    """Return the question with its task."""
    identifier = f"{name}/{prompt.id}"
    if len(identifier) > _LONGEST_ID:
        identifier = f"{name}/{derive_seed(prompt.id):016x}"
    return replace(prompt, id=identifier, task=name)


def task_of_id(prompt_id: str) -> str:
    """Return the task of a mixture's question, from its id."""
    return prompt_id.partition("/")[0]


def _no_documents(data_dir: Path | None, fetch: bool = True) -> list[Prompt]:
    raise DataError("a mixture has no held-out questions: name its tasks in evaluation.tasks")


@dataclass(frozen=True, slots=True)
class MixedQuestions(Task):
    """How a mixture's questions are asked: each as its own task asks it."""

    by_name: Mapping[str, Task] = field(default_factory=dict, repr=False)

    def task_of(self, prompt: Prompt) -> Task:
        return self.by_name[prompt.task]

    def render(self, prompt: Prompt, style: Style) -> str:
        return self.task_of(prompt).render(prompt, style)

    def stop(self, style: Style) -> tuple[str, ...]:
        """Return the stop strings of all its tasks."""
        return tuple(dict.fromkeys(string for task in self.by_name.values() for string in task.stop(style)))
