"""The files and folders that a suite names: where they are, what they hold, and whether a suite of others may name them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from harness.cache import cache_folder, expand_user
from harness.errors import DataError, SuiteError
from harness.session.policy import MAX_FILES, local_folder
from harness.session.suite.places import faults_at, policies_by_place
from harness.store.manifest import SUBMISSION
from harness.suite.schema import AnyTask, Evaluation, FileTask, Suite, Training
from harness.tasks.data import folder_in_use
from harness.tasks.jsonl import pin_file as pinned_file

# Folders, separated as in PATH, that suites of others may name too
VARIABLE = "HARNESS_MODELS"


def with_files(suite: Suite, source: str) -> Suite:
    """Return the suite with the whole path and the digest of each task's file. Raises SuiteError."""

    def pin(task: str | FileTask, place: str) -> str | FileTask:
        if isinstance(task, FileTask):
            with faults_at(source, f"{place}.scorer"), faults_at(source, f"{place}.file", DataError):
                task = pinned_file(task, Path(source).parent)
        return task

    def pin_all(evaluation: Evaluation, place: str) -> Evaluation:
        """Pin the files of all tasks of an evaluation. Raises SuiteError where two tasks have one name, by which results are told
        apart."""
        tasks = [pin(task, f"{place}.tasks[{i}]") for i, task in enumerate(evaluation.tasks)]
        names = [str(task) for task in tasks]
        for i, name in enumerate(names):
            if name in names[:i] and any(isinstance(task, FileTask) for task in tasks):
                problem = f"the task {name!r} occurs twice (a file may have a `name`)"
                raise SuiteError(source, f"{place}.tasks[{i}]", problem)
        return evaluation.model_copy(update={"tasks": tasks})

    training = suite.training.model_copy(update={"task": _pin_parts(suite.training.task, pin)})
    tune = suite.tune
    if tune is not None:
        tune = tune.model_copy(update={"evaluation": pin_all(tune.evaluation, "tune.evaluation")})
    evaluation = pin_all(suite.evaluation, "evaluation")
    return suite.model_copy(update={"training": training, "evaluation": evaluation, "tune": tune})


def _pin_parts(task: AnyTask, pin: Callable[[str | FileTask, str], str | FileTask]) -> AnyTask:
    """Pin the file of a task, or of each part of a mixture. pin: does so for a task and its place in the suite."""
    if not isinstance(task, list):
        return pin(task, "training.task")
    return [part.model_copy(update={"task": pin(part.task, f"training.task[{i}]")}) for i, part in enumerate(task)]


def places_of_training(training: Training) -> Iterator[tuple[str, str | FileTask]]:
    """Yield each task that is trained on, with its place in the suite."""
    for i, task in enumerate(training.tasks):
        yield (f"training.task[{i}]" if isinstance(training.task, list) else "training.task"), task


def check_roots(suite: Suite, source: Path, overrides: Sequence[str] = ()) -> None:
    """Refuse folders and files, and links in them, outside the declared ones, in a suite that others wrote: one that came with
    imported results. A suite of one's own, and a setting of one's own (`--set`), may name any. Raises SuiteError."""
    if not is_imported(source):
        return
    values = [setting.partition("=")[2] for setting in overrides]
    tasks = dict(places_of_training(suite.training))
    for within, each in (("", suite), ("tune.", suite.tune)):
        for i, task in enumerate(each.evaluation.tasks if each else ()):
            tasks[f"{within}evaluation.tasks[{i}]"] = task
    for place, task in tasks.items() if source.is_file() else ():
        if isinstance(task, FileTask) and not any(task.file in value for value in values):
            path = expand_user(task.file)
            beside = source.parent / path
            file = path if path.is_absolute() or not beside.exists() else beside
            _refuse_outside(file, source, f"{place}.file")
    of_models = [setting.partition("=")[2] for setting in overrides if setting.startswith(("groups", "tune"))]
    for place, policy in (*policies_by_place(suite), *policies_by_place(suite.tune, "tune.")):
        folder = local_folder(policy.model)
        if folder is not None and not any(policy.model in value for value in of_models):
            _refuse_outside(folder, source, f"{place}.model")


def is_imported(source: Path) -> bool:
    """Return whether a suite came with others' results: it lies in an imported suite's folder, or is no file of its own."""
    if not source.is_file():
        return True
    for folder in source.resolve().parents:
        if (folder / SUBMISSION).exists() or ("@" in folder.name and (folder / "suite.json").exists()):
            return True
    return False


def _refuse_outside(path: Path, source: Path, place: str) -> None:
    """Refuse files outside the suite's folders. Raises SuiteError where the path, or a link in it, leads outside the folders that
    the suite may name."""
    outside = _place_outside(path, source)
    if outside is not None:
        folder = outside.parent if outside.is_file() else outside
        problem = (
            f"{outside} is outside the folders that a suite may name (docs/suites.md); to allow it: --models {folder}, or "
            f"{VARIABLE}"
        )
        raise SuiteError(str(source), place, problem)


def _place_outside(path: Path, source: Path) -> Path | None:
    """Say where the path or one of its links leads outside; None where all stays inside."""
    from huggingface_hub import constants

    declared = [Path(name) for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    data = folder_in_use(None)
    own = [source.parent, Path(), cache_folder(), Path(constants.HF_HUB_CACHE), *([data] if data else [])]
    roots = [expand_user(folder).resolve() for folder in (*own, *declared)]
    place = path.resolve()
    if not any(place.is_relative_to(root) for root in roots):
        return place
    for file in itertools.islice(path.rglob("*"), MAX_FILES):
        if file.is_symlink():
            target = file.resolve()
            if not any(target.is_relative_to(root) for root in (*roots, place)):
                return target
    return None
