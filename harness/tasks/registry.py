"""Tasks by name or file. Imports without torch."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from harness.errors import DataError, PluginError
from harness.plugins import PluginRegistry, blame_plugin
from harness.suite.schema import AnyTask, FileTask, TaskShare
from harness.tasks import countdown, gym, ladder
from harness.tasks.mixed import Mixed, MixturePart
from harness.tasks.sets import SETS, SOURCES
from harness.tasks.source import TaskSource
from harness.tasks.task import Style, Task
from harness.verification import catalogue as scorers
from harness.versions import versions_of

if TYPE_CHECKING:
    from harness.verification.verifier import Verifier

PLUGINS: PluginRegistry[TaskSource] = PluginRegistry("harness.tasks", "task", TaskSource)  # type: ignore[type-abstract]
EVALUATION_SETS = tuple(name for name, data in SETS.items() if data.k)
"""The published ones."""
_FIRST = ("micro", "micro_dev", ladder.NAME, countdown.NAME, *EVALUATION_SETS)


def list_task_names() -> list[str]:
    """Return the tasks that are one by their name alone; puzzles are listed by `gym.ALLOWED`."""
    known = [name for name in PLUGINS.installed() if name != gym.NAME]
    first = [name for name in _FIRST if name in known]
    others = [name for name in known if name not in _FIRST]
    return first + others


def task_of_text(text: str) -> str | FileTask:
    """Return the task that a command line names: by its name, or as `my.jsonl:exact`, read and pinned. Raises DataError,
    PluginError."""
    from harness.tasks.jsonl import pin_file

    file, mark, scorer = text.rpartition(".jsonl")
    if not mark or (scorer and scorer[0] != ":"):
        return text
    chosen = scorer[1:] or "math"
    scorers.scorer_called(chosen)  # raises for one that is not installed
    return pin_file(FileTask(file=file + mark, scorer=chosen))


def source_of(task: AnyTask) -> TaskSource:
    """Make the source of a task. Raises PluginError, for a file DataError."""
    if isinstance(task, list):
        return Mixed([_part_of(one) for one in task])
    if isinstance(task, FileTask):
        from harness.tasks.jsonl import Jsonl

        return Jsonl(task)
    if task.startswith("lm_eval:"):
        from harness.tasks.lm_eval_source import LmEvalTask

        return LmEvalTask(task)
    return PLUGINS.make(base_of(task), task)


def _part_of(one: TaskShare) -> MixturePart:
    """Return a part of a mixture. Raises PluginError, for a file DataError."""
    source = training_source(one.task)
    return MixturePart(one.task, one.share, source, get_task(one.task, source=source))


def base_of(task: str) -> str:
    """Return the name of the entry point, without part (`ladder.add2`) or settings (`countdown:numbers=3..4`)."""
    return re.split("[.:]", task, maxsplit=1)[0]


def is_known(task: str) -> bool:
    """Return whether a name is of an installed task, whatever its part or settings."""
    return base_of(task) in PLUGINS.installed()


def get_task(name: AnyTask, *, source: TaskSource | None = None, **parameters: int) -> Task:
    """Make a task as evaluation asks it. source: the task's, where the caller has it. parameters: micro's per_skill, ladder's
    per_level. Raises PluginError, also for another parameter."""
    source = source or source_of(name)
    with blame_plugin(f"task {source.name if isinstance(name, list) else name}"):
        task = source.evaluation(**parameters)
        if not isinstance(task, Task):
            raise TypeError(f"`evaluation` returned {task!r:.60}, not a Task")
        return task


def results_versions(task: AnyTask, source: TaskSource | None = None, made: Task | None = None) -> dict[str, str]:
    """Return the results versions of a task and its scorer, by package. source, made: the task's, where the caller has them.
    Raises PluginError, DataError."""
    source = source or source_of(task)
    if isinstance(source, Mixed):
        own: dict[str, str] = {}
        for part in source.parts:
            own |= results_versions(part.named, part.source, part.task)
        return own
    assert not isinstance(task, list), "a list is a mixture"
    made = made or get_task(task, source=source)
    if made.judge is not None:
        return source.results_versions()
    own = {} if isinstance(task, FileTask) else dict([PLUGINS.results_version(base_of(task))])
    judged = dict([scorers.PLUGINS.results_version(made.scorer)])
    if "verification" in judged and not source.integers:
        judged |= versions_of(["verification/symbolic"])
    questions = source.questions_digest()
    if questions:
        own[f"questions of {task}"] = questions
    return own | judged


def training_source(task: AnyTask) -> TaskSource:
    """Make the source of a task that can train. Raises PluginError, also for a task of evaluation alone."""
    known = isinstance(task, FileTask | list) or task.startswith("lm_eval:") or is_known(task)
    if known:
        source = source_of(task)
        if source.trains:
            return source
    of_plugins = [name for name in list_task_names() if name not in _FIRST]
    there = ["micro", ladder.NAME, countdown.NAME, *SOURCES, *of_plugins]
    raise PluginError(f"unknown training task {str(task)!r}; there are {', '.join(there)}")


def is_puzzle(task: str) -> bool:
    """Return whether a task's levels are tasks of their own, of which a suite may mix several."""
    return base_of(task) in (gym.NAME, countdown.NAME)


def names_of_levels(given: str) -> list[str]:
    """Return the tasks that a name stands for: of `gym.*` every puzzle that it fits, else the task's levels. Raises PluginError."""
    if "*" not in given:
        return training_source(given).name_levels()
    puzzles: list[str] = []
    for names_of_group in gym.ALLOWED.values():
        puzzles += [f"{gym.NAME}.{name}" for name in names_of_group]
    fitting = [name for name in puzzles if fnmatchcase(name, given)]
    if not fitting:
        raise PluginError(f"task {given!r}: fits no puzzle; e.g. {gym.NAME}.* (harness tasks --like puzzle lists them)")
    return fitting


def has_examples(task: str) -> bool:
    """Return whether a supervised start can be taught it."""
    return task == "micro" or ladder.is_ladder(task)


class TaskInfo(msgspec.Struct, frozen=True):
    """perfect, empty: scores of golds and of silence; None where documents are absent, as `problem` explains. error: why its
    plugin does not load."""

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


def list_tasks(data_dir: Path | None = None) -> list[TaskInfo]:
    """Broken plugins with their error; nothing is fetched."""
    from harness.verification.verifier import Verifier

    with Verifier() as verifier:
        return [_describe_task(name, data_dir, verifier) for name in list_task_names()]


def _describe_task(name: str, data_dir: Path | None, verifier: Verifier) -> TaskInfo:
    """Return a task as listings show it, with the scores of its golds and of silence."""
    origin = PLUGINS.origin(name)
    try:
        source = source_of(name)
        task = get_task(name)
        perfect = empty = None
        problem = ""
        try:
            perfect, empty = _score_extremes(task, data_dir, verifier)
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


def _score_extremes(task: Task, data_dir: Path | None, verifier: Verifier) -> tuple[float | None, float]:
    """Return the scores of perfect answers, None where none can be written, and of empty ones. Raises DataError where the
    questions are not here."""
    judge = verifier.by(scorers.scorer_called(task.scorer))
    scorer = scorers.scorer_of(task.scorer)
    golds = [prompt.gold for prompt in task.documents(data_dir, fetch=False)]
    stated = [(gold, scorer.perfect(gold)) for gold in golds]
    perfect_answers = [(gold, text) for gold, text in stated if text is not None]
    perfect = _share_right(judge, perfect_answers) if perfect_answers else None
    empty = _share_right(judge, [(gold, "") for gold in golds])
    return perfect, empty


def _share_right(verifier: Verifier, pairs: list[tuple[str, str]]) -> float:
    """Return the share of pairs of gold and text that is right."""
    verdicts = verifier.verify(pairs)
    return sum(verdict.value == "right" for verdict in verdicts) / len(verdicts)
