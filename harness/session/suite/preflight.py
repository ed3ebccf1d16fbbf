"""Whether what a suite names is on this machine and fits, before anything slow: data sets, recordings, and models with their
tokenizers. Torch is imported only for models other than micro."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from harness.store.manifest import suite_files
from harness.suite.cells import Cell
from harness.suite.load import placed_in
from harness.suite.schema import Policy
from harness.tasks.data import SETS, SOURCES, folder_in_use, load_set
from harness.tasks.mixed import Mixed
from harness.tasks.overlap import find_overlaps
from harness.tasks.source import Generated, TrainingPool, part_of
from harness.tasks.task import Task
from harness.verification.catalogue import scorer_of


def check_before_run(prepared: Prepared, run: bool, elsewhere: bool = False) -> list[str]:
    """Check models, tokenizers and data of the cells that are left, and return remarks. run: what is not at hand is fetched or
    refused, otherwise it is a remark. elsewhere: the run will be on another machine, so folders here may lack weights and
    tokenizer. Raises SuiteError."""
    cells = prepared.cells_to_run()
    if not cells:
        return []
    with placed_in(prepared.altered):
        lacking = prepared.resolved.engine.lacking(prepared.suite.engine_options)
        if run and lacking:
            raise SuiteError(prepared.source, "engine_options", lacking)
        remarks = [*_check_data(prepared, run), *_check_recordings(prepared, run)]
        return [*remarks, *_check_models(prepared, cells, run, elsewhere)]


# Models ---------------------------------------------------------------------------------------------------------------


def _check_models(prepared: Prepared, cells: Sequence[Cell], run: bool, elsewhere: bool) -> list[str]:
    """Check each policy of the groups that have cells left; returns remarks."""
    engine = prepared.resolved.engine
    options = prepared.suite.engine_options
    slow_bf16 = run and not cpu_bf16() and not inventory.inventory_of_machine().gpus
    remarks = list[str]()
    unseen = list[str]()
    emulated = list[str]()
    full_size = None
    for place, policy, own in pretrained_policies(prepared, cells):
        full_size = full_size or policy
        said, seen = check_policy(prepared, place, policy, own, run, elsewhere)
        remarks += said
        if seen is False:
            unseen.append(policy.model)
        elif seen and slow_bf16 and engine.precision(policy, options) == "bf16":
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
        for p, policy in enumerate(group.policies if own else ()):
            if not policy.is_micro:
                yield f"groups[{g}].policies[{p}]", policy, own


def check_policy(
    prepared: Prepared, place: str, policy: Policy, cells: Sequence[Cell], run: bool, elsewhere: bool
) -> tuple[list[str], bool | None]:
    """Check one policy's model for the cells of its group. run, elsewhere: as of `check_before_run`. Returns remarks, and whether
    its folder was seen; None where another machine must check it. Raises SuiteError."""
    if not run and policy.model.startswith(PRETRAINED) and not model_folder(policy.model).is_dir():
        absent = f"{place}.model: {policy.model} is not in the cache: `make pretrained` fetches and converts it"
        return [absent], None
    remarks = list(_style_remarks(prepared, policy, place))
    lacks = parts_lacking(policy) if elsewhere else ""
    if lacks:
        remarks.append(f"{place}.model: {policy.model} has no {lacks} here, which a run needs")
        if not has_whole_tokenizer(policy):
            return remarks, None
    said = check_model(policy, cells, prepared.resolved, place, run, weights=not lacks)
    return [*remarks, *(said or [])], said is not None


def _style_remarks(prepared: Prepared, policy: Policy, place: str) -> Iterator[str]:
    """A large model without a supervised start does not know that the micro task wants a box."""
    names = [*prepared.suite.training.tasks, *prepared.suite.evaluation.tasks]
    if "micro" in names and policy.style in (None, "raw") and not (policy.stage0 or is_small(policy)):
        yield (
            f"{place}.style: {policy.name} is asked micro questions without a word on the box that is scored; `zero-shot` "
            "asks for it, `few-shot` shows it"
        )


# Data -----------------------------------------------------------------------------------------------------------------


def _check_data(prepared: Prepared, run: bool) -> Iterator[str]:
    """Check data sets, scorers and the training pool; yields remarks."""
    absent = _absent_sets(prepared, run)
    if absent:
        names = ", ".join(absent)
        yield f"not on this machine: {names}; `harness run` fetches them, or takes them from --data-dir"
    resolved = prepared.resolved
    tasks = [resolved.training, *resolved.evaluation]
    for task in {task.task.name: task for task in tasks}.values():
        yield from task.source.remarks()
    parts = resolved.training.source.parts if isinstance(resolved.training.source, Mixed) else ()
    yield from _scorer_remarks([*(part.task for part in parts), *(task.task for task in tasks)])
    for task in resolved.evaluation if prepared.suite.evaluation.limit is None else ():
        if task.task.size is None:
            yield (
                f"{task.name}: how many questions it has is told by a run; without `evaluation.limit` a plan leaves them out"
            )
    for i, task in enumerate(resolved.evaluation):
        if isinstance(task.source, Generated):  # too few distinct ones would be told by the first cell's end only
            with faults_at(prepared.source, f"evaluation.tasks[{i}]", DataError):
                task.task.documents(None)
    pool = check_training_questions(prepared, absent)
    fixed = [(resolved.training.task, pool)] if pool is not None else []
    for part in parts:
        if not part.source.generated and SOURCES.get(part.name) not in absent:
            fixed.append((part.task, part_of(part.source.pool(None), prepared.suite.training.part)))
    for trained, its_pool in fixed if prepared.has_files else ():
        for i, task in enumerate(resolved.evaluation):
            if task.name not in absent:
                yield from check_repeated(prepared, its_pool, i, trained)


def _absent_sets(prepared: Prepared, run: bool) -> list[str]:
    """Names of data sets that are not on this machine. A run fetches them; raises SuiteError where it cannot, or where a folder of
    data sets that was given lacks one."""
    suite = prepared.suite
    sets = {f"evaluation.tasks[{i}]": str(name) for i, name in enumerate(suite.evaluation.tasks) if name in SETS}
    for place, task in places_of_training(suite.training):
        if task in SOURCES:
            sets[place] = SOURCES[str(task)]
    absent = []
    for place, name in sets.items():
        try:
            load_set(name, fetch=run)
        except DataError as error:
            if run or folder_in_use(None) is not None:
                raise SuiteError(prepared.source, place, str(error)) from None
            absent.append(name)
    return absent


def _sets_of_training(prepared: Prepared) -> list[str]:
    """The data sets that training questions come from; none where they are made by code, or are in a file."""
    return [SOURCES[str(task)] for task in prepared.suite.training.tasks if task in SOURCES]


def _scorer_remarks(tasks: Sequence[Task]) -> Iterator[str]:
    for name in dict.fromkeys(task.scorer for task in tasks if task.judge is None):
        with blame_plugin(f"scorer {name!r}: `remark`"):
            remark = scorer_of(name).remark()
        if remark:
            yield f"scorer {name}: {remark}"


def check_training_questions(prepared: Prepared, absent: Sequence[str]) -> TrainingPool | None:
    """Check that the task has as many training questions as the largest step asks for. absent: data sets that are not here. Returns
    the pool where it is a fixed one that is on this machine. Raises SuiteError."""
    suite = prepared.suite
    training = prepared.suite.training
    source = prepared.resolved.training.source
    called = prepared.resolved.training.task.name
    prompts = {f"regimes[{i}].training.prompts": suite.training_of(v).prompts for i, v in enumerate(suite.regimes)}
    prompts["training.prompts"] = training.prompts
    place = max(prompts, key=lambda name: (prompts[name], name == "training.prompts"))
    named = "training.min_level" if training.min_level else "training.task"
    if not {*absent}.isdisjoint(_sets_of_training(prepared)):
        return None
    if isinstance(source, Mixed):
        with faults_at(prepared.source, named, DataError):
            source.without_levels(training.min_level)
        for i, one in enumerate(source.parts):
            with (
                faults_at(prepared.source, f"training.task[{i}]", (DataError, PluginError)),
                blame_plugin(f"task {one.name}"),
            ):
                one.source.draw(0, source.most_of(one, prompts[place]), part=training.part)
        return None
    if source.generated:
        for name, count in ((named, 1), (place, prompts[place])):
            with (
                faults_at(prepared.source, name, (DataError, PluginError)),
                blame_plugin(f"task {called}"),
            ):
                source.draw(0, count, min_level=training.min_level, part=training.part)
        return None
    with (
        faults_at(prepared.source, named, (DataError, PluginError)),
        blame_plugin(f"task {called}"),
    ):
        pool = part_of(source.pool(training.min_level), training.part)
    if prompts[place] > len(pool.prompts):
        problem = f"{prompts[place]} prompts a step asked for; the pool of {called} holds {len(pool.prompts)}"
        raise SuiteError(prepared.source, place, problem)
    return pool


def check_repeated(prepared: Prepared, pool: TrainingPool, i: int, trained: Task | None = None) -> list[str]:
    """Refuse training questions that the i-th task of evaluation repeats, and return a remark on nearly equal ones. Only for suites
    with files of the user's own: shipped sets have been compared with each other. trained: of a mixture, the task that the pool is
    of. Raises SuiteError."""
    trained = trained or prepared.resolved.training.task
    name, _, task = prepared.resolved.evaluation[i]
    place = f"evaluation.tasks[{i}]"
    questions = [(prompt.id, trained.bare(prompt.text)) for prompt in pool.prompts]
    with faults_at(prepared.source, place, DataError):
        documents = task.documents(None)
    overlaps = find_overlaps(
        [(prompt, task.bare(text)) for prompt, text in questions],
        [(str(name), prompt.id, task.bare(prompt.text)) for prompt in documents],
    )
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


def _check_recordings(prepared: Prepared, run: bool) -> Iterator[str]:
    """Whether the suites that regimes replay have results here. Raises SuiteError for a run, else yields remarks."""
    for i, variant in enumerate(prepared.suite.regimes):
        if variant.replay is None:
            continue
        place = f"regimes[{i}].replay.suite"
        name = variant.replay.suite
        if name != prepared.suite.name and not suite_files(prepared.folder.parent / name):
            problem = f"there are no results of {name} here; run it first, with `sharing.record`"
            if run:
                raise SuiteError(prepared.source, place, problem)
            yield f"{place}: {problem}"
