"""A suite with what it names: tasks, regimes, engine and shapes of models, each looked up once for all that a command asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from harness.allocation.shapes import ModelShape, load_shape
from harness.engines.backend import Backend, read_options
from harness.engines.catalogue import MICRO_FAMILIES, backend_of
from harness.engines.embedded.presets import PRESETS
from harness.errors import SuiteError
from harness.experience.records import Record
from harness.learning import registry
from harness.learning.regime import Regime
from harness.plugins import blame_plugin
from harness.session.policy import MICRO
from harness.session.suite.files import places_of_training, with_files
from harness.session.suite.places import faults_at, policies_by_place, with_policies
from harness.suite.cells import Cell
from harness.suite.schema import AnyTask, Evaluation, Policy, Stage0, Suite
from harness.tasks.mixed import Mixed
from harness.tasks.registry import get_task, has_examples, source_of, training_source
from harness.tasks.source import TaskSource
from harness.tasks.task import Task


class ResolvedTask(NamedTuple):
    """name: as the suite has it. source: of training questions. task: how it is asked and judged in evaluation."""

    name: AnyTask
    source: TaskSource
    task: Task


class EvaluationLoad(NamedTuple):
    """What one policy answers in one evaluation: answers and questions over all tasks, and tokens of the longest answer."""

    answers: int
    questions: int
    tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class ResolvedSuite:
    """A valid suite whose names are resolved. regimes: by variant. evaluation: in the order of the suite's tasks."""

    suite: Suite
    source: str
    engine: type[Backend]
    training: ResolvedTask
    evaluation: tuple[ResolvedTask, ...]
    regimes: Mapping[str, Regime]
    _shapes: dict[tuple[str, str | None], ModelShape] = field(default_factory=dict)

    def with_suite(self, suite: Suite) -> ResolvedSuite:
        """Return the same for a suite that differs in its models' revisions alone."""
        return replace(self, suite=suite, _shapes={})

    def shape_of(self, policy: Policy) -> ModelShape:
        """Return the shape of a policy's model, read once. Raises UsageError for a model of unknown size."""
        model = policy.model, policy.revision
        if model not in self._shapes:
            self._shapes[model] = load_shape(*model)
        return self._shapes[model]

    def regime_of(self, cell: Cell) -> Regime:
        """Return the regime of one of the suite's cells."""
        return self.regimes[cell.variant.name]

    def records_shared(self, cell: Cell) -> frozenset[type[Record]]:
        """Return the kinds of records that travel in a cell."""
        alone = len(cell.group.policies) < 2 and cell.variant.replay is None
        if alone or cell.sharing.direction == "none":
            return frozenset()
        return self.regime_of(cell).shares

    def evaluation_load(self) -> EvaluationLoad:
        """Return what the suite's evaluation asks of one policy."""
        return evaluation_load(self.suite.evaluation, [resolved.task for resolved in self.evaluation])


def evaluation_load(evaluation: Evaluation, tasks: list[Task]) -> EvaluationLoad:
    """Return what an evaluation of these tasks asks of one policy. Where the suite states no number of samples, each question has
    a greedy answer and as many samples as the task's own k. A task of unknown size counts as large as `limit`."""
    answers = 0
    questions = 0
    for task in tasks:
        size = evaluation.limit or 0 if task.size is None else task.size
        asked = size if evaluation.limit is None else min(size, evaluation.limit)
        samples = evaluation.samples_of(task.name)
        questions += asked
        answers += asked * (1 + task.k if samples is None else int(evaluation.greedy) + samples)
    return EvaluationLoad(answers, questions, evaluation.max_new_tokens or max(task.max_new_tokens for task in tasks))


def resolve_suite(suite: Suite, source: str) -> ResolvedSuite:
    """Look up all that a valid suite names and return it with the places of its files, the task of each supervised start and the
    engine's options filled in. Raises SuiteError."""
    with faults_at(source, "engine"):
        engine = backend_of(suite.engine)
    read_options(engine.Options, suite.engine_options, source)
    for place, policy in policies_by_place(suite):
        if policy.is_micro:
            _check_micro(policy, source, place)
    suite = with_files(suite, source)
    suite = with_policies(suite, lambda policy, place: _with_start_task(policy, place, suite, source))
    training, evaluation = _resolve_tasks(suite, source)
    _check_styles(suite, training, evaluation, source)
    _check_lengths(suite, evaluation, source)
    if suite.evaluation.curve_every and evaluation[0].task.judge is not None:
        problem = (
            f"{suite.evaluation.tasks[0]} gives no learning curve: put another task first, or evaluation.curve_every: 0"
        )
        raise SuiteError(source, "evaluation.tasks[0]", problem)
    models = [policy.model for _, policy in policies_by_place(suite)]
    options = engine.with_defaults_filled(suite.engine_options, models)
    regimes = {variant.name: registry.build(variant.regime, variant.options) for variant in suite.regimes}
    suite = suite.model_copy(update={"engine_options": options})
    return ResolvedSuite(suite, source, engine, training, tuple(evaluation), regimes)


def list_remarks(resolved: ResolvedSuite) -> list[str]:
    """Return what regimes and engine say of a suite before it runs."""
    suite = resolved.suite
    remarks = []
    for variant in suite.regimes:
        updates = suite.training_of(variant).updates
        with blame_plugin(f"regime {variant.regime!r}: `remarks`"):
            said = resolved.regimes[variant.name].remarks(updates)
            remarks += [f"{variant.name}: {remark}" for remark in said]
    models = [policy.model for _, policy in policies_by_place(suite)]
    of_engine = resolved.engine.remark(suite.engine_options, models)
    return [*remarks, of_engine] if of_engine else remarks


def _resolve_tasks(suite: Suite, source: str) -> tuple[ResolvedTask, list[ResolvedTask]]:
    """Resolve the task of training, which must have training questions, and those of evaluation."""
    name = suite.training.task
    for place, one in places_of_training(suite.training):
        with faults_at(source, place):
            training_source(one)
    with faults_at(source, "training.task"):
        of_training = training_source(name)
    evaluation = []
    for i, task in enumerate(suite.evaluation.tasks):
        with faults_at(source, f"evaluation.tasks[{i}]"):
            own = source_of(task)
            evaluation.append(ResolvedTask(task, own, get_task(task, source=own)))
    with faults_at(source, "training.task"):
        training = ResolvedTask(name, of_training, get_task(name, source=of_training))
    return training, evaluation


def _check_styles(suite: Suite, training: ResolvedTask, evaluation: list[ResolvedTask], source: str) -> None:
    """Check how policies are asked. Raises SuiteError where a policy is to be asked in a style that a task does not offer."""
    tasks = {f"evaluation.tasks[{i}]": task for i, task in enumerate(evaluation)}
    if isinstance(training.source, Mixed):
        for i, part in enumerate(training.source.parts):
            tasks[f"training.task[{i}]"] = ResolvedTask(part.named, part.source, part.task)
    else:
        tasks["training.task"] = training
    for place, policy in policies_by_place(suite):
        for where, resolved in tasks.items() if policy.style else ():
            offered = resolved.task.styles
            if policy.style not in offered:
                problem = (
                    f"{resolved.task.name} ({where}) cannot be asked {policy.style}; it offers {', '.join(offered)}"
                )
                raise SuiteError(source, f"{place}.style", problem)


def _check_lengths(suite: Suite, evaluation: list[ResolvedTask], source: str) -> None:
    """Check the stated lengths. Raises SuiteError where a stated `max_length` has no room for the longest answer."""
    stated = suite.engine_options.get("max_length")
    trained = max(suite.training_of(variant).max_new_tokens for variant in suite.regimes)
    evaluated = evaluation_load(suite.evaluation, [resolved.task for resolved in evaluation]).tokens
    answer, what = max((evaluated, "evaluation"), (trained, "training"))
    if stated is not None and stated <= answer:
        problem = (
            f"{stated:,} tokens cut an answer of {answer:,} short ({what}.max_new_tokens). Left out, it is measured"
        )
        raise SuiteError(source, "engine_options.max_length", problem)


def _with_start_task(policy: Policy, of_policy: str, suite: Suite, source: str) -> Policy:
    """Give a policy the task whose examples its supervised start learns from: training's unless the suite says."""
    stage0 = policy.stage0
    if stage0 is None or policy.is_micro:
        return policy
    place = f"{of_policy}.stage0"
    task = stage0.task or suite.training.task
    _check_preset(stage0, source, place)
    with faults_at(source, f"{place}.task"):
        get_task(task)
    if not isinstance(task, str) or not has_examples(task):
        called = get_task(task).name if isinstance(task, list) else getattr(task, "file", task)
        problem = (
            f"there are no examples of {called}; micro and the ladder's levels have some (e.g. ladder.add2+chain3)"
        )
        raise SuiteError(source, f"{place}.task", problem)
    return policy.model_copy(update={"stage0": stage0.model_copy(update={"task": task})})


def _check_micro(policy: Policy, source: str, place: str) -> None:
    """Check a policy's micro model. Raises SuiteError for an unknown one, or one with settings that it cannot have."""
    if policy.model.removeprefix(MICRO) not in MICRO_FAMILIES:
        known = ", ".join(MICRO + name for name in MICRO_FAMILIES)
        raise SuiteError(source, f"{place}.model", f"unknown micro model {policy.model!r}; there are {known}")
    _check_preset(policy.stage0 or Stage0(), source, f"{place}.stage0")
    if policy.chat:
        raise SuiteError(source, f"{place}.chat", "a micro model has no chat template")


def _check_preset(stage0: Stage0, source: str, place: str) -> None:
    if stage0.preset not in PRESETS:
        raise SuiteError(source, f"{place}.preset", f"unknown preset {stage0.preset!r}; there are {', '.join(PRESETS)}")
