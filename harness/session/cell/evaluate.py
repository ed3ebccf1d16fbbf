"""A policy's evaluation into the cell's journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from harness.engines.catalogue import open_backend
from harness.engines.protocol import PolicyEngine
from harness.evaluation.backends import EngineBackend
from harness.evaluation.metrics import EvaluationSample, votes_of
from harness.evaluation.run import evaluate_tasks, metric_names
from harness.phases import announce_phase, stop_if_asked
from harness.session.cell.learners import Clock, template_date
from harness.session.cell.manifests import (
    BaseCheckpoint,
    frozen_dates,
    manifest_of,
    mark_state,
    with_dates,
    with_starts,
)
from harness.session.cell.questions import with_length
from harness.session.policy import base_folder, raw_folder, with_template_date
from harness.store.journal import Journal
from harness.store.manifest import Manifest
from harness.store.rows import PUBLISHED, CostRow, SampleRow
from harness.suite.schema import Evaluation, Policy
from harness.tasks.registry import get_task
from harness.verification.verifier import Verifier


def evaluate_base(
    base: BaseCheckpoint,
    folder: Path,
    verifier: Verifier,
    progress: Callable[[float, float, str], None],
    layout: Mapping[str, Any],
    attempt: int,
) -> float:
    """Make the base checkpoint if need be, and measure it; returns CPU-seconds."""
    suite = base.suite
    seed = base.seed or 0
    clock = Clock()
    dates = frozen_dates(folder, [base.policy])
    policy = with_template_date(base.policy, dates[base.policy.name])
    options = {**layout, **suite.engine_options}
    with clock.phase("stage0"), announce_phase(f"base weights of {policy.name}", 1.0) as weights:

        def trained(share: float, words: str) -> None:
            stop_if_asked()
            weights.count(share)
            progress(share, 1.0, words)

        checkpoint = base_folder(base.policy, seed, trained, options if suite.engine == "embedded" else {})
    options = with_length(suite.engine, options, policy, checkpoint, suite.evaluation)
    Journal(folder).rewind(-1)

    date = ""

    def measured(place: Path, step: int, what: str = "") -> tuple[list[SampleRow], str]:
        """Open a checkpoint and ask it all questions. Returns the rows, and the precision that it was computed in."""
        nonlocal date
        with open_backend(suite.engine, {policy.name: options}, 1.0) as engines:
            with announce_phase(f"opening {policy.name}{what}"):
                engine = engines.reference(policy, place)
            date = template_date(policy, engine.tokenizer)
            clock.meter = partial(engines.cpu_seconds, policy.name)
            clock.gpus = engine.gpus
            with clock.phase("evaluate"):
                sampled = sample_rows(engine, suite.evaluation, policy, step, seed, verifier)
            return sampled, getattr(engine, "precision", "")

    rows, precision = measured(checkpoint, 0)
    if policy.stage0 is not None and not policy.is_micro:  # what the start has changed
        rows = [*measured(raw_folder(policy), PUBLISHED, " as published")[0], *rows]
    manifest = with_starts(manifest_of(base), {policy.name: checkpoint}, {policy.name: precision})
    manifest = with_dates(manifest, {policy.name: date})
    store_evaluation(folder, manifest, rows, cost_rows(attempt, policy.name, clock, rows), attempt)
    return clock.cpu_seconds_total


def store_evaluation(
    folder: Path, manifest: Manifest, rows: Sequence[SampleRow], costs: Sequence[CostRow], attempt: int
) -> None:
    """Store a finished evaluation, in the place of an earlier one."""
    journal = Journal(folder)
    journal.rewind(-1)
    journal.append([*rows, *costs])
    journal.commit(0)
    journal.compact()
    mark_state(folder, manifest, "done", attempts=attempt)


def sample_rows(
    engine: PolicyEngine, evaluation: Evaluation, policy: Policy, step: int, seed: int, verifier: Verifier
) -> list[SampleRow]:
    """Sample answers to all tasks, and make their rows: greedy and avg@k samples. step: 0 for a base."""
    tasks = [get_task(name) for name in evaluation.tasks]
    with announce_phase(f"{'final' if step else 'baseline'} evaluation of {policy.name}"):
        evaluated = evaluate_tasks(
            EngineBackend(engine, seed),
            tasks,
            verifier=verifier,
            metrics=_metrics_by_task(evaluation, [task.name for task in tasks]),
            temperature=evaluation.temperature,
            top_p=evaluation.top_p,
            limit=evaluation.limit,
            max_new_tokens=evaluation.max_new_tokens,
            style=policy.style,
        )
    return journal_rows(evaluated.samples, policy.name, step)


def _metrics_by_task(evaluation: Evaluation, tasks: Sequence[str]) -> dict[str, list[str]]:
    """Return the metrics of each task whose number of samples the suite states."""
    metrics = {}
    for task in tasks:
        samples = evaluation.samples_of(task)
        if samples is not None:
            metrics[task] = metric_names(evaluation.greedy, samples)
    return metrics


def journal_rows(samples: Iterable[EvaluationSample], policy: str, step: int) -> list[SampleRow]:
    """Make the rows of a policy's evaluated answers, question by question, with the majority's vote in each.

    step: of the checkpoint, 0 for a base."""
    rows = []
    for _, answers_of_question in groupby(samples, key=lambda sample: (sample.task, sample.mode, sample.document)):
        answers = list(answers_of_question)
        for sample, vote in zip(answers, votes_of(answers), strict=True):
            rows.append(_journal_row(sample, vote, policy, step))
    return rows


def _journal_row(sample: EvaluationSample, vote: int, policy: str, step: int) -> SampleRow:
    return SampleRow(
        policy=policy,
        checkpoint_step=step,
        task=sample.task,
        metric=sample.mode,
        doc_id=sample.document,
        repeat=sample.repeat,
        labels=sample.labels,
        prompt=sample.prompt,
        text=sample.text,
        extracted=sample.verdict.extracted,
        vote=vote,
        gold=sample.gold,
        verdict=sample.verdict.value,
        reason=sample.verdict.reason,
        tokens=sample.tokens,
        finished=sample.finished is not False,
    )


def cost_rows(attempt: int, policy: str, clock: Clock, rows: Sequence[SampleRow] = ()) -> list[CostRow]:
    """Return the clock's phases since it was last asked. rows: the answers of `evaluate_tasks`."""
    costs = []
    for name, spent in clock.take().items():
        answered = rows if name == "evaluate" else ()
        row = CostRow(
            attempt=attempt,
            policy=policy,
            phase=name,
            cpu_seconds=spent.cpu,
            gpu_seconds=spent.gpu,
            wall_seconds=spent.wall,
            rollouts=len(answered),
            tokens=sum(row.tokens for row in answered),
        )
        costs.append(row)
    return costs
