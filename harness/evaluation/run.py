"""Evaluate a model on tasks through lm-eval."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm_eval import evaluate as lm_evaluate
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from harness.errors import UsageError
from harness.evaluation.engine_lm import EngineLM
from harness.evaluation.lm_task import VerifiedTask
from harness.evaluation.metrics import MetricSpec, summarise
from harness.evaluation.samples import Evaluation, EvaluationSample, Metric, Mode
from harness.scoring.catalogue import called
from harness.tasks.choice import fair_part
from harness.tasks.task import Style, Task
from harness.verification.verifier import Verifier


def evaluate(
    lm: LM,
    tasks: Sequence[Task],
    *,
    verifier: Verifier,
    metrics: Sequence[str] | None = None,
    limit: int | None = None,
    temperature: float = 1.0,
    max_new_tokens: int | None = None,
    style: Style | None = None,
    chat: bool | None = None,
    data_dir: Path | None = None,
) -> Evaluation:
    """Run `tasks` on `lm` and verify every answer.

    metrics: any of greedy, avg@K, best@K, maj@K; default greedy and avg@k with each task's own k (`metric_names` makes the list
    from a suite's settings). limit: documents per task (`fair_part`). max_new_tokens, style: None for each task's own: the first
    that it offers, as in training. chat: whether back ends other than the engines, which have their own, put prompts through the
    chat template; None where the tokenizer has one.

    Raises
    ------
    UsageError
        An unknown metric, or a style that a task does not offer.
    DataError
        A task's documents cannot be had.
    VerificationError
        The verifier's processes do not start.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    if max_new_tokens is not None:
        tasks = [replace(task, max_new_tokens=max_new_tokens) for task in tasks]
    plans = [(task, _specs(metrics, task), _style(task, style)) for task in tasks]
    built: list[VerifiedTask] = []
    for task, specs, chosen in plans:
        documents = fair_part(task.documents(data_dir), limit)
        modes: dict[Mode, int] = {}
        for spec in specs:
            mode: Mode = "greedy" if spec.kind == "greedy" else "sampled"
            modes[mode] = max(modes.get(mode, 1), spec.k)
        for mode, repeats in modes.items():
            built.append(
                VerifiedTask(
                    task,
                    documents,
                    style=chosen,
                    mode=mode,
                    repeats=repeats,
                    temperature=0.0 if mode == "greedy" else temperature,
                    verifier=verifier if task.judge else verifier.by(called(task.scorer)),
                    count_tokens=_token_counter(lm),
                )
            )
    _run(lm, built, chat)
    samples: list[EvaluationSample] = []
    results: list[Metric] = []
    for task, specs, _ in plans:
        own = [sample for part in built if part.task is task for sample in part.samples]
        samples += own
        results += summarise(task.name, specs, own)
    return Evaluation(metrics=tuple(results), samples=tuple(samples))


def metric_names(greedy: bool, k: int) -> list[str]:
    """The metrics that a suite's `greedy` and `k` ask for: avg@k, best@k and maj@k come from the same k samples."""
    sampled = [f"{kind}@{k}" for kind in (("avg", "best", "maj") if k > 1 else ("avg",))] if k else []
    return (["greedy"] if greedy else []) + sampled


def _run(lm: LM, tasks: list[VerifiedTask], chat: bool | None) -> None:
    """`lm_eval.evaluate` rather than `simple_evaluate`, which also reseeds the process's generators and lists every installed
    package (a second of CPU time each call)."""
    if chat is None:
        chat = bool(_tokenizer_of(lm).chat_template)
    lm_evaluate(
        lm=lm,
        task_dict=TaskManager(include_defaults=False).load(list(tasks)),
        bootstrap_iters=0,
        log_samples=False,
        apply_chat_template=chat and not isinstance(lm, EngineLM),
    )


def _specs(metrics: Sequence[str] | None, task: Task) -> list[MetricSpec]:
    names = list(metrics) if metrics is not None else ["greedy", f"avg@{task.k}"]
    if not names:
        raise UsageError(f"{task.name}: no metric asked for")
    return [MetricSpec.parse(name) for name in dict.fromkeys(names)]


def _style(task: Task, style: Style | None) -> Style:
    if style is None:
        return task.styles[0]
    if style not in task.styles:
        raise UsageError(f"{task.name} has no prompt style {style!r}; it offers {', '.join(task.styles)}")
    return style


def _tokenizer_of(lm: LM) -> Any:
    return lm.engine.tokenizer if isinstance(lm, EngineLM) else lm.tokenizer


def _token_counter(lm: LM) -> Callable[[str], int]:
    return lambda text: len(_tokenizer_of(lm).encode(text, add_special_tokens=False))
