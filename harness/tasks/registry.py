"""The tasks by name, or by file. Imports without torch."""

from __future__ import annotations

from harness.errors import PluginError, UsageError
from harness.plugins import PluginRegistry
from harness.scoring import catalogue as scorers
from harness.suite.schema import FileTask
from harness.tasks import ladder
from harness.tasks.sets import SETS, SOURCES
from harness.tasks.source import TaskSource
from harness.tasks.task import Task
from harness.versions import versions

PLUGINS: PluginRegistry[TaskSource] = PluginRegistry("harness.tasks", "task", TaskSource)  # type: ignore[type-abstract]
EVALUATION_SETS = tuple(name for name, data in SETS.items() if data.k)
"""The published ones."""
_FIRST = ("micro", "micro_dev", ladder.NAME, *EVALUATION_SETS)


def names() -> list[str]:
    """The shipped ones first."""
    known = PLUGINS.installed()
    return [*(name for name in _FIRST if name in known), *(name for name in known if name not in _FIRST)]


def named(text: str) -> str | FileTask:
    """A task as a command line gives it: a name, or `my.jsonl:exact`, read and pinned. Raises DataError, PluginError."""
    from harness.tasks.jsonl import pinned

    file, mark, scorer = text.rpartition(".jsonl")
    if not mark or (scorer and scorer[0] != ":"):
        return text
    return pinned(FileTask(file=file + mark, scorer=scorer[1:] or "math"))


def source_of(task: str | FileTask) -> TaskSource:
    """Raises PluginError for an unknown name or part, DataError for a file."""
    if isinstance(task, FileTask):
        from harness.tasks.jsonl import Jsonl

        return Jsonl(task)
    if task.startswith("lm_eval:"):
        from harness.tasks.lm_eval_source import LmEvalTask

        return LmEvalTask(task)
    return PLUGINS.make(task.partition(".")[0], task)


def get_task(name: str | FileTask, **parameters: int) -> Task:
    """Parameters: micro's per_skill, ladder's per_level. Raises PluginError, UsageError for another."""
    source = source_of(name)
    try:
        return source.evaluation(**parameters)
    except TypeError as error:
        raise UsageError(f"task {name}: {error}") from error


def results_versions(task: str | FileTask) -> dict[str, str]:
    """Of the task's code and its scorer's. Raises PluginError, DataError."""
    source = source_of(task)
    if get_task(task).judge is not None:
        return source.results_versions()
    own = {} if isinstance(task, FileTask) else dict([PLUGINS.results_version(task.partition(".")[0])])
    judged = dict([scorers.PLUGINS.results_version(get_task(task).scorer)])
    if "verification" in judged and not source.integers:
        judged |= versions(["verification/symbolic"])
    return own | judged


def training_source(task: str | FileTask) -> TaskSource:
    """Raises PluginError for a task that is unknown or for evaluation alone."""
    known = isinstance(task, FileTask) or task.startswith("lm_eval:") or task.partition(".")[0] in PLUGINS.installed()
    if known and (found := source_of(task)).trains:
        return found
    there = ["micro", ladder.NAME, *SOURCES, *(name for name in names() if name not in _FIRST)]
    raise PluginError(f"unknown training task {str(task)!r}; there are {', '.join(there)}")


def is_generated(name: str | FileTask) -> bool:
    return source_of(name).generated


def has_examples(task: str) -> bool:
    """Whether a supervised start can be taught it."""
    return task == "micro" or ladder.is_ladder(task)
