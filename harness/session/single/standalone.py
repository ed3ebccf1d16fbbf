"""`harness eval`: any checkpoint folder, evaluated and stored like a cell."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from harness.engines.vocabulary import check_small_files, has_template
from harness.errors import EngineError, UsageError
from harness.evaluation.backends import Answerer, open_backend
from harness.evaluation.metrics import EvaluationSample, Metric
from harness.evaluation.run import evaluate_tasks, metric_names
from harness.phases import announce_phase, log
from harness.session.cell.evaluate import cost_rows, journal_rows, store_evaluation
from harness.session.cell.learners import Clock
from harness.session.policy import content_digest
from harness.store.ingest import ingest_journals
from harness.store.manifest import EVALUATIONS, Manifest, PolicyEntry
from harness.store.symptoms import Sums, describe_figures, is_empty, is_unboxed
from harness.suite.cells import Identity, digest_of
from harness.suite.schema import Evaluation
from harness.tasks.registry import get_task, results_versions, task_of_text
from harness.tasks.task import Style, Task
from harness.verification.verifier import Verifier
from harness.versions import BASE, versions_of


class Standalone(msgspec.Struct, frozen=True):
    """folder: of every sample; answers: the line of figures; remarks: on answers' lengths that were clipped."""

    checkpoint: str
    metrics: tuple[Metric, ...]
    folder: str
    answers: str
    remarks: tuple[str, ...] = ()


def evaluate_checkpoint(
    checkpoint: Path,
    tasks: Sequence[str],
    *,
    limit: int | None = None,
    k: int = 4,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    backend: str = "embedded",
    max_new_tokens: int | None = None,
    chat: bool | None = None,
    few_shot: bool = False,
    data_dir: Path | None = None,
    results: Path = Path("results"),
    remark: Callable[[str], None] = log.warning,
) -> Standalone:
    """Have a checkpoint's folder answer tasks, greedily and `k` times a question, and store the samples.

    temperature, top_p: of the samples, as `Sampling` has them. max_new_tokens: None is each task's own, clipped with a remark to
    what the model's positions hold. chat: None uses a chat template where there is one. remark: called with each remark. Raises
    UsageError, PluginError, DataError, RoomError, EngineError, VerificationError.
    """
    chosen = [get_task(task_of_text(name)) for name in tasks]
    for task in chosen:
        task.documents(data_dir)  # fails before a model is opened
    templated = has_template(checkpoint)
    if chat and not templated:
        raise UsageError(f"--chat: the tokenizer of {checkpoint} has no chat template")
    chat = templated if chat is None else chat
    style = _style_of(chosen, chat, few_shot)
    styled = [replace(task, styles=(style,)) if style in task.styles else task for task in chosen]
    model = _open_checkpoint(checkpoint, backend, seed, chat)
    remarks: list[str] = []

    def note_remark(words: str) -> None:
        remarks.append(words)
        remark(words)

    clock = Clock()
    with Verifier() as verifier, clock.phase("evaluate"):
        evaluated = evaluate_tasks(
            model,
            styled,
            verifier=verifier,
            metrics=metric_names(True, k),
            temperature=temperature,
            top_p=top_p,
            limit=limit,
            max_new_tokens=max_new_tokens,
            data_dir=data_dir,
            remark=note_remark,
        )
    settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "chat": chat, "few_shot": few_shot}
    settings |= _sampling_as_keyed({"temperature": temperature, "top_p": top_p})
    manifest = _manifest_of_evaluation(checkpoint, tasks, chosen, backend, limit, k, seed, settings, remarks)
    folder = results / EVALUATIONS / manifest.key
    name = manifest.policies[0].name
    rows = journal_rows(evaluated.samples, name, 0)
    store_evaluation(folder, manifest, rows, cost_rows(1, name, clock, rows), attempt=1)
    ingest_journals(results)
    told = describe_figures(_sum_answers(name, evaluated.samples), ends=backend == "embedded")
    return Standalone(str(checkpoint), evaluated.metrics, str(folder), told, tuple(remarks))


def _open_checkpoint(checkpoint: Path, backend: str, seed: int, chat: bool) -> Answerer:
    """Open a checkpoint's folder by the back end of that name. Raises UsageError where it does not open."""
    try:
        check_small_files(checkpoint)
        with announce_phase(f"opening {checkpoint.name}"):
            return open_backend(backend, checkpoint, seed=seed, chat=chat)
    except EngineError as error:
        raise UsageError(str(error)) from error


def _sampling_as_keyed(settings: Mapping[str, float]) -> Mapping[str, float]:
    """Return how answers are sampled as the key hashes it: nothing at the defaults, so that older evaluations keep their keys.

    Evaluations are stored whose keys have both settings where one is not the default. A setting that comes later must be left out
    at its own default.
    """
    if all(value == Evaluation.younger[name] for name, value in settings.items()):
        return {}
    return settings


def _style_of(tasks: Sequence[Task], chat: bool, few_shot: bool) -> Style | None:
    """Say how tasks that offer this style are asked; None leaves each its own. Raises UsageError."""
    for task in tasks:
        if few_shot and "few-shot" not in task.styles:
            raise UsageError(f"--few-shot: {task.name} has no worked examples")
    if few_shot:
        return "few-shot"
    return "zero-shot" if chat else None


def _manifest_of_evaluation(
    checkpoint: Path,
    tasks: Sequence[str],
    chosen: Sequence[Task],
    backend: str,
    limit: int | None,
    k: int,
    seed: int,
    settings: Mapping[str, Any],
    remarks: Sequence[str],
) -> Manifest:
    """Make the manifest of what was evaluated. Its key hashes the folder's content, the tasks and all settings, so that the same
    again is stored in the same place."""
    name = Path(os.path.abspath(checkpoint)).name  # of `.`, too
    judged: dict[str, str] = {}
    for task in tasks:
        judged |= results_versions(task_of_text(task))
    computed = [*BASE, "engines/embedded"] if backend == "embedded" else BASE
    identity = Identity(
        models={name: f"content {content_digest(checkpoint)}"},
        evaluation={task.name: task.checksum or "" for task in chosen},
        versions={**versions_of(computed), **judged},
    )
    place = str(checkpoint.resolve())
    how = "hf 2" if backend == "hf" else backend  # raised where what that back end answers changes
    hashed = digest_of(place, sorted(tasks), limit, k, seed, how, dict(settings), msgspec.to_builtins(identity))
    config = {"tasks": list(tasks), "limit": limit, "k": k, "backend": backend, **settings}
    if remarks:
        config["remarks"] = list(remarks)
    return Manifest(
        suite=EVALUATIONS,
        key=f"eval-{hashed}",
        group=str(checkpoint),
        kind="base",
        seed=seed,
        engine=backend,
        policies=(PolicyEntry(name, str(checkpoint)),),
        config=config,
        identity=identity,
    )


def _sum_answers(name: str, samples: Sequence[EvaluationSample]) -> Sums:
    """Count the answers, as a policy in training has them of its last steps."""
    verdicts = [sample.verdict.value for sample in samples]
    return Sums(
        policy=name,
        first=0,
        last=0,
        answers=len(samples),
        right=verdicts.count("right"),
        wrong=verdicts.count("wrong"),
        invalid=verdicts.count("invalid"),
        truncated=sum(sample.finished is False for sample in samples),
        empty=sum(is_empty(sample.text) for sample in samples),
        unboxed=sum(is_unboxed(sample.text) for sample in samples),
    )
