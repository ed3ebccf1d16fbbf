"""Evaluate a model on tasks: our prompts, k repeats, our verifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.engines.protocol import Sampling
from harness.errors import DataError, UsageError
from harness.evaluation.backends import Answerer, BackendAnswer, check_room
from harness.evaluation.metrics import (
    EvaluationResult,
    EvaluationSample,
    Metric,
    MetricSpec,
    Mode,
    judge_pairs,
    summarise_samples,
)
from harness.experience.answers import Prompt
from harness.phases import announce_phase
from harness.tasks.source import fair_part
from harness.tasks.task import Style, Task
from harness.verification.catalogue import scorer_called
from harness.verification.verdict import Verdict
from harness.verification.verifier import Verifier


def evaluate_tasks(
    model: Answerer,
    tasks: Sequence[Task],
    *,
    verifier: Verifier,
    metrics: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    limit: int | None = None,
    max_new_tokens: int | None = None,
    style: Style | None = None,
    data_dir: Path | None = None,
    remark: Callable[[str], None] | None = None,
) -> EvaluationResult:
    """Have `model` answer `tasks` and verify every answer.

    metrics: of all tasks, or by a task's name; default greedy and avg@k with the task's own k. temperature, top_p: of sampled
    answers, as `Sampling` has them. limit: documents a task (`fair_part`). max_new_tokens, style: default the
    task's. remark: is told before anything is sampled where a task's own length has no room behind its questions and is
    clipped; a `max_new_tokens` without room is refused then. Without `remark` (a suite's lengths are checked before its cells)
    nothing is clipped. Raises UsageError, DataError, RoomError, EngineError, VerificationError.
    """
    plans = []
    for task in tasks:  # every task is read and checked before the first answer is sampled
        names = metrics.get(task.name) if isinstance(metrics, Mapping) else metrics
        plan = _plan_task(task, names, style, data_dir, limit)
        length = task.max_new_tokens if max_new_tokens is None else max_new_tokens
        if remark is not None:
            length = _fitting_length(model, task, plan.prompts, max_new_tokens, remark)
        plans.append((plan, length))
    samples: list[EvaluationSample] = []
    results: list[Metric] = []
    for plan, length in plans:
        own: list[EvaluationSample] = []
        for mode, repeats in plan.repeats_by_mode().items():
            sampling = Sampling(0.0, length) if mode == "greedy" else Sampling(temperature, length, top_p)
            own += _sample_answers(model, plan, mode, repeats, sampling, verifier)
        samples += own
        results += summarise_samples(plan.task.name, plan.specs, own)
    return EvaluationResult(metrics=tuple(results), samples=tuple(samples))


@dataclass(frozen=True, slots=True)
class _TaskPlan:
    """What is asked of a task: its metrics, its questions, and the prompts and stop texts of the style."""

    task: Task
    specs: list[MetricSpec]
    documents: Sequence[Prompt]
    prompts: list[Prompt]
    stops: Sequence[str]

    def repeats_by_mode(self) -> dict[Mode, int]:
        """Return how many answers each question gets: as many as the metric that asks most."""
        repeats: dict[Mode, int] = {}
        for spec in self.specs:
            mode: Mode = "greedy" if spec.kind == "greedy" else "sampled"
            repeats[mode] = max(repeats.get(mode, 1), spec.k)
        return repeats


def _plan_task(
    task: Task, names: Sequence[str] | None, style: Style | None, data_dir: Path | None, limit: int | None
) -> _TaskPlan:
    """Plan what is asked of a task. names: of metrics; None: the task's own.

    Raises UsageError before any question is read, and DataError where questions are lacking or doubled.
    """
    if names is None:
        names = ["greedy", f"avg@{task.k}"]
    if not names:
        raise UsageError(f"{task.name}: no metric asked for")
    if style is not None and style not in task.styles:
        raise UsageError(f"{task.name} has no prompt style {style!r}; it offers {', '.join(task.styles)}")
    specs = [MetricSpec.parse(name) for name in dict.fromkeys(names)]
    documents = fair_part(task.documents(data_dir), limit)
    distinct = {document.id for document in documents}
    if not documents or len(distinct) != len(documents):
        raise DataError(f"{task.name}: it has no questions, or two with one id")
    asked = style or task.styles[0]
    prompts = [replace(document, text=task.render(document, asked)) for document in documents]
    return _TaskPlan(task, specs, documents, prompts, task.stop(asked))


def _sample_answers(
    model: Answerer, plan: _TaskPlan, mode: Mode, repeats: int, sampling: Sampling, verifier: Verifier
) -> list[EvaluationSample]:
    """Answer and judge all questions of a task in one mode: question by question, each with its repeats in order."""
    task = plan.task
    answers = model.answer(f"{task.name}:{mode}", plan.prompts, repeats, sampling, plan.stops)
    given: list[tuple[Prompt, int, BackendAnswer]] = []
    for document, row in zip(plan.documents, answers, strict=True):
        given += [(document, repeat, answer) for repeat, answer in enumerate(row)]
    judged_answers = [(document, answer) for document, _, answer in given]
    verdicts = _judge_answers(task, mode, judged_answers, verifier)
    return [
        EvaluationSample(
            task=task.name,
            mode=mode,
            document=document.id,
            repeat=repeat,
            prompt=answer.prompt,
            text=answer.text,
            gold=document.gold,
            verdict=verdict,
            tokens=answer.tokens,
            finished=answer.finished,
            labels=dict(document.labels),
            scorer=task.scorer,
        )
        for (document, repeat, answer), verdict in zip(given, verdicts, strict=True)
    ]


def _fitting_length(
    model: Answerer,
    task: Task,
    prompts: Sequence[Prompt],
    asked: int | None,
    remark: Callable[[str], None],
) -> int:
    """Return the longest answer in tokens: `asked`, else the task's own, clipped with a remark to the room behind the longest
    question. Raises RoomError where `asked` does not fit: answers that the model's positions end would count as wrong."""
    length = task.max_new_tokens if asked is None else asked
    room = model.room(task.name, prompts)
    if room is None or length <= room.new_tokens:
        return length
    if asked is not None:
        check_room(task.name, room, asked)
    remark(
        f"{task.name}: answers get at most {room.new_tokens:,} new tokens, not {length:,}: the longest question takes "
        f"{room.longest:,} of the model's {room.positions:,} positions. Longer answers are cut off"
    )
    return room.new_tokens


def _judge_answers(
    task: Task, mode: Mode, answers: list[tuple[Prompt, BackendAnswer]], verifier: Verifier
) -> list[Verdict]:
    """Judge answers: of a task of lm-eval's by its own rules, which judge an answer that was cut off as it stands."""
    with announce_phase(f"verifying {len(answers):,} answers of {task.name}:{mode}", quiet=True):
        if task.judge is not None:
            return task.judge([(document, answer.text) for document, answer in answers])
        asked = [(document.gold, answer.text) for document, answer in answers]
        return judge_pairs(verifier.by(scorer_called(task.scorer)), asked, [answer.finished for _, answer in answers])


def metric_names(greedy: bool, k: int) -> list[str]:
    """Return the names of the metrics that a suite's `greedy` and `k` ask for."""
    sampled = [f"{kind}@{k}" for kind in (("avg", "best", "maj") if k > 1 else ("avg",))] if k else []
    return (["greedy"] if greedy else []) + sampled
