"""Whether what a suite names is on this machine and fits, before anything slow: data sets, recordings, and models with their
tokenizers. Torch is imported only for models other than micro."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from harness.allocation import inventory
from harness.allocation.shapes import EMULATED, cpu_bf16
from harness.cache import PRETRAINED, model_folder
from harness.errors import DataError, PluginError, SuiteError
from harness.plugins import blame_plugin
from harness.session.suite.files import places_of_training
from harness.session.suite.model_checks import (
    check_model,
    default_remarks,
    has_whole_tokenizer,
    is_small,
    parts_lacking,
)
from harness.session.suite.places import faults_at
from harness.session.suite.prepared import Prepared
from harness.session.suite.resolved import ResolvedSuite
from harness.store.manifest import suite_files
from harness.suite.cells import Cell
from harness.suite.load import placed_in
from harness.suite.schema import Policy, Suite
from harness.tasks.data import folder_in_use, load_set
from harness.tasks.mixed import Mixed, MixturePart
from harness.tasks.overlap import find_overlaps
from harness.tasks.sets import SETS, SOURCES
from harness.tasks.source import Generated, TrainingPool, part_of
from harness.tasks.task import Task
from harness.verification.catalogue import scorer_of


def check_before_run(prepared: Prepared, about_to_run: bool, elsewhere: bool = False) -> list[str]:
    """Check models, tokenizers and data of the cells that are left, and return remarks.

    What takes no time comes first, then data, then models: a model's longest questions are measured on data that the checks of
    data have fetched, and a model takes longest to fetch.

    about_to_run: what is not at hand is fetched or refused; otherwise it is a remark. elsewhere: the run will be on another
    machine, so folders here may lack weights and tokenizer. Raises SuiteError for the first fault."""
    cells = prepared.cells_to_run()
    if not cells:
        return []
    with placed_in(prepared.altered):
        lacking = prepared.resolved.engine.lacking(prepared.suite.engine_options)
        if about_to_run and lacking:
            raise SuiteError(prepared.source, "engine_options", lacking)
        remarks = _check_data(prepared, about_to_run)
        remarks += _check_recordings(prepared, about_to_run)
        remarks += _check_models(prepared, cells, about_to_run, elsewhere)
        return remarks


# Models ---------------------------------------------------------------------------------------------------------------


class PolicyCheck(NamedTuple):
    """What the check of a policy's model found. folder: whether its folder was read here, is not in this machine's cache, or must
    be checked by another machine."""

    remarks: list[str]
    folder: Literal["read", "absent", "elsewhere"]


def _check_models(prepared: Prepared, cells: Sequence[Cell], about_to_run: bool, elsewhere: bool) -> list[str]:
    """Check each policy of the groups that have cells left; returns remarks."""
    engine = prepared.resolved.engine
    options = prepared.suite.engine_options
    slow_bf16 = about_to_run and not cpu_bf16() and not inventory.inventory_of_machine().gpus
    remarks = list[str]()
    unseen = list[str]()
    emulated = list[str]()
    full_size = None
    for place, policy, own in pretrained_policies(prepared, cells):
        full_size = full_size or policy
        checked = check_policy(prepared, place, policy, own, about_to_run, elsewhere)
        remarks += checked.remarks
        if checked.folder == "absent":
            unseen.append(policy.model)
        elif checked.folder == "read" and slow_bf16 and engine.precision(policy, options) == "bf16":
            emulated.append(policy.model)
    if emulated:
        remarks.append(f"{', '.join(dict.fromkeys(emulated))}: on this CPU {EMULATED}")
    if unseen:
        absent = ", ".join(dict.fromkeys(unseen))
        planned = " and measures how long questions are, here a prior" if engine.clustered else ""
        remarks.append(f"not in this machine's cache: {absent}; `harness run` fetches and checks them{planned}")
    if full_size is not None:
        remarks += default_remarks(prepared.resolved, full_size)
    return remarks


def pretrained_policies(prepared: Prepared, cells: Sequence[Cell]) -> Iterator[tuple[str, Policy, list[Cell]]]:
    """Yield each policy with a model other than micro, with its place and the cells of its group; groups without cells are left
    out."""
    for g, group in enumerate(prepared.suite.groups):
        own = [cell for cell in cells if cell.group.name == group.name]
        if not own:
            continue
        for p, policy in enumerate(group.policies):
            if not policy.is_micro:
                yield f"groups[{g}].policies[{p}]", policy, own


def check_policy(
    prepared: Prepared, place: str, policy: Policy, cells: Sequence[Cell], about_to_run: bool, elsewhere: bool
) -> PolicyCheck:
    """Check one policy's model for the cells of its group. place: of the policy in the suite. about_to_run, elsewhere: as in
    `check_before_run`. Raises SuiteError."""
    if not about_to_run and policy.model.startswith(PRETRAINED) and not model_folder(policy.model).is_dir():
        absent = f"{place}.model: {policy.model} is not in the cache: `make pretrained` fetches and converts it"
        return PolicyCheck([absent], "elsewhere")
    remarks = list(_style_remarks(prepared, policy, place))
    lacks = parts_lacking(policy) if elsewhere else ""
    if lacks:
        remarks.append(f"{place}.model: {policy.model} has no {lacks} here, which a run needs")
        if not has_whole_tokenizer(policy):
            return PolicyCheck(remarks, "elsewhere")
    of_model = check_model(policy, cells, prepared.resolved, place, about_to_run, weights=not lacks)
    if of_model is None:
        return PolicyCheck(remarks, "absent")
    return PolicyCheck([*remarks, *of_model], "read")


def _style_remarks(prepared: Prepared, policy: Policy, place: str) -> Iterator[str]:
    """Yield a remark where a large model without a supervised start is not told that the micro task wants a box."""
    names = [*prepared.suite.training.tasks, *prepared.suite.evaluation.tasks]
    if "micro" in names and policy.style in (None, "raw") and not (policy.stage0 or is_small(policy)):
        yield (
            f"{place}.style: {policy.name} is asked micro questions without a word on the box that is scored; `zero-shot` "
            "asks for it, `few-shot` shows it"
        )


# Data -----------------------------------------------------------------------------------------------------------------


def _check_data(prepared: Prepared, about_to_run: bool) -> list[str]:
    """Check data sets, scorers and questions, and return remarks. Raises SuiteError.

    Which sets are absent is found out first: of these no question can be counted or compared. Training questions are compared
    with those of evaluation last, once there are enough of them, since that reads all of both."""
    resolved = prepared.resolved
    absent = _find_absent_sets(prepared, about_to_run)
    remarks = list[str]()
    if absent:
        names = ", ".join(absent)
        remarks.append(f"not on this machine: {names}; `harness run` fetches them, or takes them from --data-dir")
    remarks += _task_remarks(resolved)
    _check_generated_evaluation(resolved)
    pool = check_training_questions(prepared, absent)
    pools = [(resolved.training.task, pool)] if pool is not None else []
    pools += _pools_of_mixture(prepared, absent)
    if prepared.has_files:
        for trained, its_pool in pools:
            for i, task in enumerate(resolved.evaluation):
                if task.name not in absent:
                    remarks += check_repeated(prepared, its_pool, i, trained)
    return remarks


def _find_absent_sets(prepared: Prepared, about_to_run: bool) -> list[str]:
    """Name the data sets that are not on this machine. A run fetches them; raises SuiteError where it cannot, or where a folder
    of data sets that was given lacks one."""
    suite = prepared.suite
    sets = {f"evaluation.tasks[{i}]": str(name) for i, name in enumerate(suite.evaluation.tasks) if name in SETS}
    for place, task in places_of_training(suite.training):
        if task in SOURCES:
            sets[place] = SOURCES[str(task)]
    absent = []
    for place, name in sets.items():
        try:
            load_set(name, fetch=about_to_run)
        except DataError as error:
            if about_to_run or folder_in_use(None) is not None:
                raise SuiteError(prepared.source, place, str(error)) from None
            absent.append(name)
    return absent


def _task_remarks(resolved: ResolvedSuite) -> Iterator[str]:
    """Yield what tasks and scorers have to say, each once, and which tasks of evaluation have a size that only a run tells."""
    tasks = [resolved.training, *resolved.evaluation]
    for task in {task.task.name: task for task in tasks}.values():
        yield from task.source.remarks()
    parts = [part.task for part in _parts_of_mixture(resolved)]
    yield from _scorer_remarks([*parts, *(task.task for task in tasks)])
    if resolved.suite.evaluation.limit is not None:
        return
    for task in resolved.evaluation:
        if task.task.size is None:
            yield (
                f"{task.name}: how many questions it has is told by a run; without `evaluation.limit` a plan leaves them out"
            )


def _parts_of_mixture(resolved: ResolvedSuite) -> Sequence[MixturePart]:
    """Return the parts of a mixture that is trained on; none of a single task."""
    source = resolved.training.source
    return source.parts if isinstance(source, Mixed) else ()


def _check_generated_evaluation(resolved: ResolvedSuite) -> None:
    """Make the questions of evaluation tasks that are made by code: too few distinct ones would else be told by the first cell's
    end only. Raises SuiteError."""
    for i, task in enumerate(resolved.evaluation):
        if isinstance(task.source, Generated):
            with faults_at(resolved.source, f"evaluation.tasks[{i}]", DataError):
                task.task.documents(None)


def _pools_of_mixture(prepared: Prepared, absent: Sequence[str]) -> list[tuple[Task, TrainingPool]]:
    """List the parts of a mixture that have fixed questions on this machine, each with the pool of those that are trained on."""
    pools = []
    for part in _parts_of_mixture(prepared.resolved):
        if not part.source.generated and SOURCES.get(part.name) not in absent:
            pool = part_of(part.source.pool(None), prepared.suite.training.part)
            pools.append((part.task, pool))
    return pools


def _sets_of_training(prepared: Prepared) -> list[str]:
    """List the data sets that training questions come from; none where they are made by code, or are in a file."""
    return [SOURCES[str(task)] for task in prepared.suite.training.tasks if task in SOURCES]


def _scorer_remarks(tasks: Sequence[Task]) -> Iterator[str]:
    """Yield what the tasks' scorers have to say, each once."""
    for name in dict.fromkeys(task.scorer for task in tasks if task.judge is None):
        with blame_plugin(f"scorer {name!r}: `remark`"):
            remark = scorer_of(name).remark()
        if remark:
            yield f"scorer {name}: {remark}"


class _LargestStep(NamedTuple):
    """The most prompts that a step of any variant asks for, and where the suite says so."""

    place: str
    prompts: int


def _find_largest_step(suite: Suite) -> _LargestStep:
    """Find the largest step; of equal ones that of the suite's own training."""
    prompts = {f"regimes[{i}].training.prompts": suite.training_of(v).prompts for i, v in enumerate(suite.regimes)}
    prompts["training.prompts"] = suite.training.prompts
    place = max(prompts, key=lambda name: (prompts[name], name == "training.prompts"))
    return _LargestStep(place, prompts[place])


def check_training_questions(prepared: Prepared, absent: Sequence[str]) -> TrainingPool | None:
    """Check that the task has as many training questions as the largest step asks for. absent: data sets that are not here.
    Returns the pool where it is a fixed one that is on this machine. Raises SuiteError."""
    source = prepared.resolved.training.source
    if not {*absent}.isdisjoint(_sets_of_training(prepared)):
        return None
    largest = _find_largest_step(prepared.suite)
    if isinstance(source, Mixed):
        _check_mixture(prepared, source, largest)
        return None
    if source.generated:
        _check_generated_questions(prepared, largest)
        return None
    return _check_pool(prepared, largest)


def _place_of_task(prepared: Prepared) -> str:
    """Say where a suite says which questions it trains on: at their least level, if it names one."""
    return "training.min_level" if prepared.suite.training.min_level else "training.task"


def _check_mixture(prepared: Prepared, source: Mixed, largest: _LargestStep) -> None:
    """Draw from each part of a mixture as much as the largest step may ask of it. Raises SuiteError."""
    training = prepared.suite.training
    with faults_at(prepared.source, _place_of_task(prepared), DataError):
        source.without_levels(training.min_level)
    for i, one in enumerate(source.parts):
        with (
            faults_at(prepared.source, f"training.task[{i}]", (DataError, PluginError)),
            blame_plugin(f"task {one.name}"),
        ):
            one.source.draw(0, source.most_of(one, largest.prompts), part=training.part)


def _check_generated_questions(prepared: Prepared, largest: _LargestStep) -> None:
    """Draw from a task whose questions are made by code: one question, whose fault is the task's, then a largest step. Raises
    SuiteError."""
    training = prepared.suite.training
    resolved = prepared.resolved.training
    for place, count in ((_place_of_task(prepared), 1), (largest.place, largest.prompts)):
        with (
            faults_at(prepared.source, place, (DataError, PluginError)),
            blame_plugin(f"task {resolved.task.name}"),
        ):
            resolved.source.draw(0, count, min_level=training.min_level, part=training.part)


def _check_pool(prepared: Prepared, largest: _LargestStep) -> TrainingPool:
    """Return the questions of a task that has fixed ones. Raises SuiteError where the largest step asks for more."""
    training = prepared.suite.training
    resolved = prepared.resolved.training
    with (
        faults_at(prepared.source, _place_of_task(prepared), (DataError, PluginError)),
        blame_plugin(f"task {resolved.task.name}"),
    ):
        pool = part_of(resolved.source.pool(training.min_level), training.part)
    if largest.prompts > len(pool.prompts):
        held = len(pool.prompts)
        problem = f"{largest.prompts} prompts a step asked for; the pool of {resolved.task.name} holds {held}"
        raise SuiteError(prepared.source, largest.place, problem)
    return pool


def check_repeated(prepared: Prepared, pool: TrainingPool, i: int, trained: Task | None = None) -> list[str]:
    """Refuse training questions that the i-th task of evaluation repeats, and return a remark on nearly equal ones. Only for
    suites with files of the user's own: shipped sets have been compared with each other. trained: of a mixture, the task that the
    pool is of. Raises SuiteError."""
    trained = trained or prepared.resolved.training.task
    name, _, task = prepared.resolved.evaluation[i]
    place = f"evaluation.tasks[{i}]"
    questions = [(prompt.id, trained.bare(prompt.text)) for prompt in pool.prompts]
    with faults_at(prepared.source, place, DataError):
        documents = task.documents(None)
    trained_texts = [(prompt, task.bare(text)) for prompt, text in questions]
    evaluated_texts = [(str(name), prompt.id, task.bare(prompt.text)) for prompt in documents]
    overlaps = find_overlaps(trained_texts, evaluated_texts)
    same = [overlap for overlap in overlaps if overlap.kind == "exact"]
    if same:
        problem = (
            f"{len(same):,} of the {len(questions):,} training questions of {trained.name} are questions of {name} too, "
            f"the first one {same[0].training!r:.80}: give each line a `split`, or the file `held_out: 0.2`"
        )
        raise SuiteError(prepared.source, place, problem)
    if not overlaps:
        return []
    return [f"{place}: {len(overlaps):,} training questions of {trained.name} nearly repeat one of {name}"]


def _check_recordings(prepared: Prepared, about_to_run: bool) -> Iterator[str]:
    """Check that the suites which regimes replay have results here. Raises SuiteError before a run, else yields remarks."""
    for i, variant in enumerate(prepared.suite.regimes):
        if variant.replay is None:
            continue
        place = f"regimes[{i}].replay.suite"
        name = variant.replay.suite
        if name != prepared.suite.name and not suite_files(prepared.folder.parent / name):
            problem = f"there are no results of {name} here; run it first, with `sharing.record`"
            if about_to_run:
                raise SuiteError(prepared.source, place, problem)
            yield f"{place}: {problem}"
