"""`lm_eval:NAME`: a generative task of lm-eval's with its own prompts, filters and metric (docs/tasks.md)."""

from __future__ import annotations

import difflib
import hashlib
import logging
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec

from harness.errors import DataError, PluginError
from harness.experience.answers import Prompt
from harness.tasks.source import TaskSource
from harness.tasks.task import Task
from harness.verification.scorer import digest_if_long
from harness.verification.verdict import Verdict

PREFIX = "lm_eval:"
VARIABLE = "HARNESS_LM_EVAL_TASKS"
"""Folders of further task YAMLs. They may run Python: only their user can name them, no suite."""
LENGTH = 256
VERSION = 2
"""Of this module, in the keys of its tasks' cells."""
# A task has one generator for its examples; policies ask from threads
_LOCK = Lock()


class LmEvalTask(TaskSource):
    """A generative task of lm-eval's, by its own filters and metric"""

    def check_name(self) -> None:
        """Read lm-eval's settings of the task. Raises PluginError for a task that it has not, or that generates no answers."""
        self._bare = self.name.removeprefix(PREFIX)
        self._config = _config_of(self._bare)

    def evaluation(self) -> Task:
        """Return the task with lm-eval's own settings: its stop strings and its longest answer."""
        with _reading_task(self._bare):
            settings = self._config.get("generation_kwargs") or {}
            stated = settings.get("until", self._config.get("fewshot_delimiter", "\n\n"))
            if isinstance(stated, str):
                stated = (stated,)
            until = tuple(map(str, stated or ()))  # none: an answer ends by its end token alone
            length = int(settings.get("max_gen_toks") or settings.get("max_tokens") or LENGTH)
            if length < 1:
                raise ValueError(f"answers of {length} tokens")
        return Task(
            name=self.name,
            title=f"{self._bare} of lm-eval",
            documents=self._read_documents,
            styles=("raw",),
            max_new_tokens=length,
            source=str(self._config.get("dataset_path") or "lm-eval"),
            scorer="lm_eval",
            until=tuple(filter(None, until)),
            judge=self._judge_answer,
        )

    def _read_documents(self, data_dir: Path | None, fetch: bool = True) -> list[Prompt]:
        """Return the questions as lm-eval writes them, with its examples. Raises DataError where they would have to be
        fetched, or are not text."""
        if not fetch:
            raise DataError(f"{self.name}: lm-eval loads it when it is run")
        prompts = []
        with _LOCK, _reading_task(self._bare):
            task, docs = _build_task(self._bare, _task_folders())
            task.set_fewshot_seed(1234)  # every time: equal examples, however often it is asked
            for place, doc in enumerate(docs):
                text = task.fewshot_context(doc, int(task.config.num_fewshot or 0), gen_prefix=task.doc_to_prefix(doc))
                if not isinstance(text, str):
                    raise DataError(f"{self.name}: needs images or tools; only text tasks are supported")
                prompts.append(Prompt(str(place), text, str(task.doc_to_target(doc))))
        return prompts

    def _judge_answer(self, answers: Sequence[tuple[Prompt, str]]) -> list[Verdict]:
        with _LOCK:
            task, docs = _build_task(self._bare, _task_folders())
        return [_judge_by_task(task, docs[int(prompt.id)], prompt, text) for prompt, text in answers]

    def results_versions(self) -> dict[str, str]:
        """Return what decides the task's results: lm-eval's version, this module's, and the task's settings."""
        said = msgspec.json.encode(_without_places(self._config), enc_hook=str, order="sorted")
        digest = hashlib.blake2b(said, digest_size=8).hexdigest()
        return {self.name: f"lm-eval {version('lm_eval')}, source {VERSION}, task {digest}"}


def _without_places(setting: Any) -> Any:
    """Return a task's settings without places of this machine: `!function utils.name`, read as FOLDER/utils.name, is the
    module's digest and name."""
    if isinstance(setting, Mapping):
        return {name: _without_places(value) for name, value in setting.items()}
    if isinstance(setting, list):
        return [_without_places(value) for value in setting]
    module, _, name = setting.rpartition(".") if isinstance(setting, str) else ("", "", "")
    file = Path(f"{module}.py")
    if not name.isidentifier() or not file.is_absolute() or not file.is_file():
        return setting
    return f"{hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()} {file.stem}.{name}"


def _task_folders() -> tuple[str, ...]:
    """Return the folders that HARNESS_LM_EVAL_TASKS names. Raises PluginError where one is absent."""
    folders = tuple(folder for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder)
    absent = [folder for folder in folders if not Path(folder).is_dir()]
    if absent:
        raise PluginError(f"{VARIABLE}: {absent[0]}: no such folder")
    return folders


@lru_cache(maxsize=16)
def _task_manager(folders: tuple[str, ...]) -> Any:
    """Make lm-eval's index of tasks."""
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    return TaskManager(include_path=list(folders) or None, include_defaults=not folders)


def _manager_of(name: str) -> Any:
    """Return lm-eval's index of the user's own folders where it has the task, else that of its shipped tasks."""
    folders = _task_folders()
    is_own = folders and name in _task_manager(folders).task_index
    return _task_manager(folders if is_own else ())


def _config_of(name: str) -> dict[str, Any]:
    """Return lm-eval's settings of a task. Raises PluginError for a name that it has not, a group, or a task that generates
    nothing."""
    entries = _manager_of(name).task_index
    called = f"task {PREFIX}{name}"
    if name not in entries:
        near = difflib.get_close_matches(
            name, [*entries, *(_task_manager(_task_folders()).task_index if _task_folders() else ())], n=1
        )
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise PluginError(f"unknown {called}: lm-eval {version('lm_eval')} has no such task{meant}")
    entry = entries[name]
    if entry.kind.name != "TASK":
        raise PluginError(f"{called}: a {entry.kind.name.lower().replace('_', ' ')} of lm-eval's; name one task")
    config = dict(entry.cfg or {})
    kind = config.get("output_type", "generate_until")
    if kind != "generate_until":
        raise PluginError(
            f"{called}: asks for {kind}; only tasks that generate an answer (generate_until) can be named"
        )
    said = config.get("generation_kwargs")
    if isinstance(said, dict) and (length := said.get("max_new_tokens") or said.get("max_completion_tokens")):
        config["generation_kwargs"] = {"max_gen_toks": length, **said}
    return config


@contextmanager
def _reading_task(name: str) -> Iterator[None]:
    """Inside, whatever a task raises is a DataError with its name."""
    try:
        yield
    except DataError:
        raise
    except (Exception, SystemExit) as error:  # of lm-eval, of datasets, of a YAML's own Python
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise DataError(f"{PREFIX}{name} does not load: {said:.200}") from error


@lru_cache(maxsize=8)
def _build_task(name: str, folders: tuple[str, ...]) -> tuple[Any, list[Any]]:
    """Load a task and its documents, once: some tasks shuffle choices whenever they are asked for documents."""
    before = random.getstate()
    random.seed(0)  # lm-eval's
    try:
        with _reading_task(name):
            (task,) = _manager_of(name).load([name])["tasks"].values()
            docs = list(task.eval_docs)
    finally:
        random.setstate(before)
    metrics = dict(task.higher_is_better())
    first = next(iter(metrics), None)
    if first is None or not metrics[first]:
        raise DataError(f"{PREFIX}{name}: its metric {first} does not say which answers are right")
    return task, docs


def _judge_by_task(task: Any, doc: Any, prompt: Prompt, text: str) -> Verdict:
    """Return the verdict of the task's own metric."""
    from lm_eval.api.instance import Instance

    instance = Instance("generate_until", doc, (prompt.text, {}), 0, metadata=(task.config.task, int(prompt.id), 1))
    instance.resps = [text]
    try:
        chosen = task._filters[0]
        chosen.apply([instance])
        said = instance.filtered_resps[chosen.name]
        value = next(iter(task.process_results(doc, [said]).values()))
        right = float(value) >= 1.0
    except Exception as error:  # of a filter or a metric: no answer's fault
        return Verdict("invalid", f"crash: {type(error).__name__}")
    return Verdict("right" if right else "wrong", "", digest_if_long(str(said)))
