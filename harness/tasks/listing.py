"""What `harness tasks` shows: size, source, licence, and what a perfect and an empty answerer score."""

from __future__ import annotations

from pathlib import Path

import msgspec

from harness.errors import DataError
from harness.tasks.registry import TASKS, get_task
from harness.tasks.task import Style, Task
from harness.verification.verifier import Verifier


class TaskInfo(msgspec.Struct, frozen=True):
    """One task. perfect, empty: scores of an answerer that boxes every gold and of one that says nothing; None with `problem`
    where the documents cannot be had without fetching them."""

    name: str
    title: str
    size: int | None
    k: int
    styles: tuple[Style, ...]
    source: str
    licence: str
    perfect: float | None
    empty: float | None
    problem: str = ""


def listing(data_dir: Path | None = None) -> list[TaskInfo]:
    """Every task; nothing is fetched: a set that is neither in the folder nor in the cache is listed with the reason."""
    with Verifier() as verifier:
        return [_info(get_task(name), data_dir, verifier) for name in TASKS]


def _info(task: Task, data_dir: Path | None, verifier: Verifier) -> TaskInfo:
    perfect = empty = None
    problem = ""
    try:
        golds = [prompt.gold for prompt in task.documents(data_dir, fetch=False)]
        perfect = _score(verifier, [(gold, f"The answer is $\\boxed{{{gold}}}$.") for gold in golds])
        empty = _score(verifier, [(gold, "") for gold in golds])
    except DataError as error:
        problem = str(error)
    return TaskInfo(
        task.name,
        task.title,
        task.size,
        task.k,
        task.styles,
        task.source,
        task.licence,
        perfect,
        empty,
        problem,
    )


def _score(verifier: Verifier, pairs: list[tuple[str, str]]) -> float:
    verdicts = verifier.verify(pairs)
    return sum(verdict.value == "right" for verdict in verdicts) / len(verdicts)
