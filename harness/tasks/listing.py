"""What `harness tasks` shows."""

from __future__ import annotations

from pathlib import Path

import msgspec

from harness.errors import DataError, PluginError
from harness.scoring.catalogue import called, scorer_of
from harness.tasks.registry import PLUGINS, get_task, names, source_of
from harness.tasks.task import Style
from harness.verification.verifier import Verifier


class TaskInfo(msgspec.Struct, frozen=True):
    """perfect, empty: scores of who gives every gold and of who says nothing; None where the documents are absent, which
    `problem` explains. error: why its plugin does not load."""

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
    summary: str = ""
    scorer: str = ""
    trains: bool = False
    origin: str = ""
    error: str = ""


def listing(data_dir: Path | None = None) -> list[TaskInfo]:
    """Every task; nothing is fetched. Broken plugins with their error."""
    with Verifier() as verifier:
        return [_listed(name, data_dir, verifier) for name in names()]


def _listed(name: str, data_dir: Path | None, verifier: Verifier) -> TaskInfo:
    origin = PLUGINS.origin(name)
    try:
        source, task = source_of(name), get_task(name)
        judge, scorer = verifier.by(called(task.scorer)), scorer_of(task.scorer)
        perfect = empty = None
        problem = ""
        try:
            golds = [prompt.gold for prompt in task.documents(data_dir, fetch=False)]
            given = [(gold, text) for gold in golds if (text := scorer.perfect(gold)) is not None]
            perfect = _score(judge, given) if given else None
            empty = _score(judge, [(gold, "") for gold in golds])
        except DataError as error:
            problem = str(error)
    except Exception as error:  # of a plugin: whatever it raises is listed
        said = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
        return TaskInfo(name, "", None, 0, (), "", "", None, None, origin=origin, error=said)
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
        summary=(type(source).__doc__ or "").strip().partition("\n")[0],
        scorer=task.scorer,
        trains=source.trains,
        origin=origin,
    )


def _score(verifier: Verifier, pairs: list[tuple[str, str]]) -> float:
    verdicts = verifier.verify(pairs)
    return sum(verdict.value == "right" for verdict in verdicts) / len(verdicts)
