"""What makes a suite sound beyond its types, and whether what it names is there and fits its engine. Torch is imported only for
models other than micro."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.allocation import inventory
from harness.allocation.shapes import EMULATED, cpu_bf16, load_shape
from harness.cache import PRETRAINED, cache_folder, expanded, model_folder
from harness.engines.backend import read_options
from harness.engines.catalogue import MICRO_FAMILIES, backend_of
from harness.engines.checkpoint import INDEX, OTHER_WEIGHTS, WEIGHTS
from harness.engines.embedded.presets import PRESETS
from harness.errors import DataError, EngineError, PluginError, SuiteError, TokenizationError, UsageError
from harness.exchange.misbehaviour import condition_of
from harness.experience.records import Record, Rollout, Success, TextRollout
from harness.learning import registry
from harness.learning.regime import Need, Regime
from harness.plugins import blamed
from harness.scoring.catalogue import scorer_of
from harness.session.policy import MAX_FILES, MICRO, hub_folder, local_folder, required_folder
from harness.store.manifest import SUBMISSION, suite_files
from harness.suite.cells import Cell
from harness.suite.load import placed_in
from harness.suite.schema import Evaluation, FileTask, Policy, Sharing, Stage0, Suite, Tune, Variant
from harness.tasks.data import SETS, SOURCES, folder_in_use, load
from harness.tasks.jsonl import pinned as pinned_file
from harness.tasks.overlap import find_overlaps
from harness.tasks.registry import get_task, has_examples, source_of, training_source
from harness.tasks.source import TrainingPool, part_of

if TYPE_CHECKING:
    from harness.session.suite.prepare import Prepared

VARIABLE = "HARNESS_MODELS"
# What receivers retokenise
TEXTS = {Rollout, TextRollout, Success}
# Of the shipped full-size suites
LEARNING_RATE = 1e-6
# Parameters; the micro families have 0.4 M
SMALL = 5_000_000
# For a full-size model on micro arithmetic
TOKENS = 512


@contextmanager
def at(source: str, place: str, kind: type[Exception] | tuple[type[Exception], ...] = PluginError) -> Iterator[None]:
    """A fault of these kinds as the suite's, with its place."""
    try:
        yield
    except kind as error:
        raise SuiteError(source, place, str(error)) from None


def validate(suite: Suite, source: str) -> Suite:
    """With every variant's options filled in. Raises SuiteError."""
    for place, policy in _policies(suite):
        if policy.condition is not None:
            with at(source, f"{place}.condition", ValueError):
                condition_of(policy.condition)
    variants = []
    for i, variant in enumerate(suite.regimes):
        place = f"regimes[{i}]"
        try:
            regime = registry.build(variant.regime, variant.options)
        except PluginError as error:
            key, colon, rest = str(error).partition(": ")
            if colon and key in variant.options:
                raise SuiteError(source, f"{place}.{key}", rest) from None
            raise SuiteError(source, f"{place}.regime", str(error)) from None
        sharing = variant.sharing or suite.sharing
        if fault := _unfit_sampling(variant, regime, sharing):
            raise SuiteError(source, f"{place}.dynamic_sampling", fault)
        for g, group in enumerate(suite.groups):
            names = [p.name for p in group.policies]
            if len(names) < 2 and regime.shares and sharing.direction != "none" and variant.replay is None:
                raise SuiteError(
                    source,
                    f"groups[{g}].policies",
                    f"{variant.name!r} shares experience, but the group {group.name!r} has one policy (use `independent`, or "
                    "`direction: none`)",
                )
            if Need.SCORES in regime.needs and variant.replay is not None:
                raise SuiteError(
                    source, f"{place}.replay", f"{variant.name!r} needs peers' scores, and a recording has none"
                )
            rollouts = {p.rollouts or suite.training_of(variant).rollouts for p in group.policies}
            if odd := [count for count in rollouts if count * variant.factor % 1]:
                raise SuiteError(
                    source, f"{place}.budget", f"{variant.budget} of {odd[0]} rollouts is no whole number of answers"
                )
            if len(rollouts) > 1 and not regime.unequal_rollouts:
                raise SuiteError(
                    source,
                    f"groups[{g}].policies",
                    f"{variant.name!r} is defined for equal numbers of rollouts per policy: {regime.unequal_reason}",
                )
            if sharing.direction == "edges":
                try:
                    sharing.among(names)
                except ValueError as error:
                    raise SuiteError(source, f"{place}.sharing.edges", f"{error} (the group {group.name!r})") from None
        old = variant.old_logprobs or regime.old_logprobs
        if variant.sampler_correction and old == "sampler":
            raise SuiteError(
                source,
                f"{place}.sampler_correction",
                "corrects what `old_logprobs: sampler` already puts into the ratio; use one of the two",
            )
        variants.append(variant.model_copy(update={"options": registry.resolved(regime.options), "old_logprobs": old}))
    return suite.model_copy(update={"regimes": variants})


def _unfit_sampling(variant: Variant, regime: Regime, sharing: Sharing) -> str:
    """Why a variant's dynamic sampling cannot be; empty where it can."""
    if variant.dynamic_sampling is None:
        return ""
    if variant.replay is not None:
        return "a recording answers the prompts that were asked then; leave out one of the two"
    if sharing.max_staleness or not sharing.defences.staleness:
        return "needs `max_staleness: 0` and its defence: answers to prompts of earlier steps could not be told apart"
    if variant.dynamic_sampling.decided_by == "own" and regime.shares:
        return (
            f"`decided_by: own` gives every policy its own prompts, but {variant.name!r} shares experience (use `all`)"
        )
    return ""


def remarks(suite: Suite) -> list[str]:
    own = backend_of(suite.engine).remark(suite.engine_options, [policy.model for _, policy in _policies(suite)])
    updates = {v.name: suite.training_of(v).updates for v in suite.regimes}
    said = []
    for v in suite.regimes:
        with blamed(f"regime {v.regime!r}: `remarks`"):
            said += [f"{v.name}: {words}" for words in registry.build(v.regime, v.options).remarks(updates[v.name])]
    return [*said, *filter(None, [own])]


def resolved(suite: Suite, source: str) -> Suite:
    """With files in their places and each start's task. Raises SuiteError."""
    with at(source, "engine"):
        engine = backend_of(suite.engine)
    read_options(engine.Options, suite.engine_options, source)
    for place, policy in _policies(suite):
        if policy.is_micro:
            _check_micro(policy, source, place)
    suite = _with_starts(with_files(suite, source), source)
    tasks = {f"evaluation.tasks[{i}]": name for i, name in enumerate(suite.evaluation.tasks)}
    tasks["training.task"] = suite.training.task
    with at(source, "training.task"):
        training_source(suite.training.task)
    known = {}
    for place, task in tasks.items():
        with at(source, place):
            known[place] = get_task(task)
    for place, policy in _policies(suite):
        for where, task in tasks.items() if policy.style else ():
            if policy.style not in (offered := known[where].styles):
                raise SuiteError(
                    source,
                    f"{place}.style",
                    f"{task} ({where}) cannot be asked {policy.style}; it offers {', '.join(offered)}",
                )
    stated = suite.engine_options.get("max_length")
    trained = max(suite.training_of(variant).max_new_tokens for variant in suite.regimes)
    answer, what = max((asked(suite.evaluation).tokens, "evaluation"), (trained, "training"))
    if stated is not None and stated <= answer:
        raise SuiteError(
            source,
            "engine_options.max_length",
            f"{stated:,} tokens cut an answer of {answer:,} short ({what}.max_new_tokens). Left out, it is measured",
        )
    if suite.evaluation.curve_every and known["evaluation.tasks[0]"].judge is not None:
        raise SuiteError(
            source,
            "evaluation.tasks[0]",
            f"{suite.evaluation.tasks[0]} gives no learning curve: put another task first, or evaluation.curve_every: 0",
        )
    models = [policy.model for _, policy in _policies(suite)]
    return suite.model_copy(update={"engine_options": engine.settled(suite.engine_options, models)})


def check_roots(suite: Suite, source: Path, overrides: Sequence[str] = ()) -> None:
    """Raises SuiteError for a folder or file, or a link in one, outside the declared ones. For suites that others wrote: what came
    with results that were imported. One's own may name any folder."""
    if not is_imported(source):
        return
    said = [setting.partition("=")[2] for setting in overrides]
    tasks = {"training.task": suite.training.task}
    for within, each in (("", suite), ("tune.", suite.tune)):
        tasks |= {f"{within}evaluation.tasks[{i}]": t for i, t in enumerate(each.evaluation.tasks if each else ())}
    for place, task in tasks.items() if source.is_file() else ():
        if isinstance(task, FileTask) and not any(task.file in word for word in said):
            path = expanded(task.file)
            beside = source.parent / path
            there = path if path.is_absolute() or not beside.exists() else beside
            _refuse(_outside(there, source), source, f"{place}.file")
    settings = [setting.partition("=")[2] for setting in overrides if setting.startswith(("groups", "tune"))]
    for place, policy in (*_policies(suite), *_policies(suite.tune, "tune.")):
        folder = local_folder(policy.model)
        if folder is not None and not any(policy.model in said for said in settings):
            _refuse(_outside(folder, source), source, f"{place}.model")


def is_imported(source: Path) -> bool:
    """Whether a suite came with others' results: it lies in an imported suite's folder, or is no file of its own."""
    if not source.is_file():
        return True
    folders = source.resolve().parents
    return any(
        (folder / SUBMISSION).exists() or ("@" in folder.name and (folder / "suite.json").exists())
        for folder in folders
    )


def _outside(path: Path, source: Path) -> Path | None:
    """Where the path or one of its links leads outside."""
    from huggingface_hub import constants

    declared = [Path(name) for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    data = folder_in_use(None)
    own = [source.parent, Path(), cache_folder(), Path(constants.HF_HUB_CACHE), *([data] if data else [])]
    roots = [expanded(folder).resolve() for folder in (*own, *declared)]
    if not any((place := path.resolve()).is_relative_to(root) for root in roots):
        return place
    links = (file for file in itertools.islice(path.rglob("*"), MAX_FILES) if file.is_symlink())
    targets = (link.resolve() for link in links)
    return next((t for t in targets if not any(t.is_relative_to(root) for root in (*roots, place))), None)


def _refuse(outside: Path | None, source: Path, place: str) -> None:
    if outside is not None:
        raise SuiteError(
            str(source),
            place,
            f"{outside} is outside the folders that a suite may name (docs/suites.md); to allow it: --models "
            f"{outside.parent if outside.is_file() else outside}, or {VARIABLE}",
        )


def _policies(suite: Suite | Tune | None, within: str = "") -> Iterator[tuple[str, Policy]]:
    for g, group in enumerate(suite.groups if suite else ()):
        for p, policy in enumerate(group.policies):
            yield f"{within}groups[{g}].policies[{p}]", policy


def with_policies(suite: Suite, change: Callable[[Policy, str], Policy]) -> Suite:
    """Each policy as `change` returns it, given its place."""
    changed = iter([change(policy, place) for place, policy in _policies(suite)])
    groups = [g.model_copy(update={"policies": [next(changed) for _ in g.policies]}) for g in suite.groups]
    return suite.model_copy(update={"groups": groups})


def with_files(suite: Suite, source: str) -> Suite:
    """With the places and digests of its files. Raises SuiteError."""

    def pin(task: str | FileTask, place: str) -> str | FileTask:
        if isinstance(task, FileTask):
            with at(source, f"{place}.scorer"), at(source, f"{place}.file", DataError):
                task = pinned_file(task, Path(source).parent)
        return task

    def evaluated(evaluation: Evaluation, place: str) -> Evaluation:
        tasks = [pin(task, f"{place}.tasks[{i}]") for i, task in enumerate(evaluation.tasks)]
        for i, name in enumerate(map(str, tasks)):
            if name in map(str, tasks[:i]) and any(isinstance(task, FileTask) for task in tasks):
                raise SuiteError(
                    source, f"{place}.tasks[{i}]", f"the task {name!r} occurs twice (a file may have a `name`)"
                )
        return evaluation.model_copy(update={"tasks": tasks})

    training = suite.training.model_copy(update={"task": pin(suite.training.task, "training.task")})
    tune = suite.tune and suite.tune.model_copy(
        update={"evaluation": evaluated(suite.tune.evaluation, "tune.evaluation")}
    )
    evaluation = evaluated(suite.evaluation, "evaluation")
    return suite.model_copy(update={"training": training, "evaluation": evaluation, "tune": tune})


def _with_starts(suite: Suite, source: str) -> Suite:
    def resolve(policy: Policy, of: str) -> Policy:
        stage0 = policy.stage0
        if stage0 is None or policy.is_micro:
            return policy
        place, task = f"{of}.stage0", stage0.task or suite.training.task
        _check_preset(stage0, source, place)
        with at(source, f"{place}.task"):
            get_task(task)
        if isinstance(task, FileTask) or not has_examples(task):
            raise SuiteError(
                source,
                f"{place}.task",
                f"there are no examples of {getattr(task, 'file', task)}; micro and the ladder's levels have some (e.g. "
                "ladder.add2+chain3)",
            )
        return policy.model_copy(update={"stage0": stage0.model_copy(update={"task": task})})

    return with_policies(suite, resolve)


def _check_micro(policy: Policy, source: str, place: str) -> None:
    if policy.model.removeprefix(MICRO) not in MICRO_FAMILIES:
        known = ", ".join(MICRO + name for name in MICRO_FAMILIES)
        raise SuiteError(source, f"{place}.model", f"unknown micro model {policy.model!r}; there are {known}")
    _check_preset(policy.stage0 or Stage0(), source, f"{place}.stage0")
    if policy.chat:
        raise SuiteError(source, f"{place}.chat", "a micro model has no chat template")


def _check_preset(stage0: Stage0, source: str, place: str) -> None:
    if stage0.preset not in PRESETS:
        raise SuiteError(source, f"{place}.preset", f"unknown preset {stage0.preset!r}; there are {', '.join(PRESETS)}")


class EvaluationLoad(NamedTuple):
    """Of one policy: answers over all tasks, tokens of the longest."""

    answers: int
    tokens: int


def asked(evaluation: Evaluation) -> EvaluationLoad:
    """With `k: null` a greedy answer and the task's own k."""
    tasks = [get_task(name) for name in evaluation.tasks]
    answers = 0
    for task in tasks:
        size = evaluation.limit or 0 if task.size is None else task.size
        questions = size if evaluation.limit is None else min(size, evaluation.limit)
        answers += questions * (1 + task.k if evaluation.k is None else int(evaluation.greedy) + evaluation.k)
    return EvaluationLoad(answers, evaluation.max_new_tokens or max(task.max_new_tokens for task in tasks))


# What it names, on this machine -----------------------------------------------------------------------------------------


def preflight(prepared: Prepared, run: bool, elsewhere: bool = False) -> list[str]:
    """Check models, tokenizers and data of what is left; returns remarks. run: what is not at hand is fetched or
    refused, otherwise a remark. elsewhere: folders here may lack weights and tokenizer. Raises SuiteError."""
    with placed_in(prepared.altered):
        return _preflight(prepared, run, elsewhere)


def _preflight(prepared: Prepared, run: bool, elsewhere: bool) -> list[str]:
    cells = prepared.left()
    engine, options = backend_of(prepared.suite.engine), prepared.suite.engine_options
    if run and cells and (lacking := engine.lacking(options)):
        raise SuiteError(prepared.source, "engine_options", lacking)
    remarks = [*_data(prepared, run), *_replays(prepared, run)] if cells else []
    unseen, emulated, full_size = [], [], None
    slow = run and not cpu_bf16() and not inventory.local().gpus
    names = [prepared.suite.training.task, *prepared.suite.evaluation.tasks]
    for g, group in enumerate(prepared.suite.groups):
        own = [cell for cell in cells if cell.group.name == group.name]
        for p, policy in enumerate(group.policies if own else ()):
            place = f"groups[{g}].policies[{p}]"
            if policy.is_micro:
                continue
            full_size = full_size or policy
            if not run and policy.model.startswith(PRETRAINED) and not model_folder(policy.model).is_dir():
                remarks.append(
                    f"{place}.model: {policy.model} is not in the cache: `make pretrained` fetches and converts it"
                )
                continue
            if "micro" in names and policy.style in (None, "raw") and not (policy.stage0 or _small(policy)):
                remarks.append(
                    f"{place}.style: {policy.name} is asked micro questions without a word on the box that is scored; `zero-shot` "
                    "asks for it, `few-shot` shows it"
                )
            if lacks := _lacks(policy) if elsewhere else "":
                remarks.append(f"{place}.model: {policy.model} has no {lacks} here, which a run needs")
            if lacks and not _has_whole_tokenizer(policy):
                continue  # what another machine has is checked there
            if not _model(policy, own, prepared, place, run, remarks, weights=not lacks):
                unseen.append(policy.model)
            elif slow and engine.precision(policy, options) == "bf16":
                emulated.append(policy.model)
    if emulated:
        remarks.append(f"{', '.join(dict.fromkeys(emulated))}: on this CPU {EMULATED}")
    if unseen:
        absent = ", ".join(dict.fromkeys(unseen))
        planned = " and measures how long questions are, here a prior" * engine.clustered
        remarks.append(f"not in this machine's cache: {absent}; `harness run` fetches and checks them{planned}")
    return [*remarks, *(_unfit_defaults(prepared, full_size) if full_size else ())]


def _data(prepared: Prepared, run: bool) -> Iterator[str]:
    suite, training = prepared.suite, prepared.suite.training
    sets = {f"evaluation.tasks[{i}]": str(name) for i, name in enumerate(suite.evaluation.tasks) if name in SETS}
    if isinstance(training.task, str) and training.task in SOURCES:
        sets["training.task"] = SOURCES[training.task]
    absent = []
    for place, name in sets.items():
        try:
            load(name, fetch=run)
        except DataError as error:
            if run or folder_in_use(None) is not None:
                raise SuiteError(prepared.source, place, str(error)) from None
            absent.append(name)
    if absent:
        yield f"not on this machine: {', '.join(absent)}; `harness run` fetches them, or takes them from --data-dir"
    asked = [training.task, *suite.evaluation.tasks]
    for task in dict.fromkeys(asked):
        yield from source_of(task).remarks()
    for name in dict.fromkeys(task.scorer for task in map(get_task, asked) if task.judge is None):
        with blamed(f"scorer {name!r}: `remark`"):
            remark = scorer_of(name).remark()
        if remark:
            yield f"scorer {name}: {remark}"
    for task in suite.evaluation.tasks if suite.evaluation.limit is None else ():
        if get_task(task).size is None:
            yield f"{task}: how many questions it has is told by a run; without `evaluation.limit` a plan leaves them out"
    source = source_of(training.task)
    prompts_of = {f"regimes[{i}].training.prompts": suite.training_of(v).prompts for i, v in enumerate(suite.regimes)}
    prompts_of["training.prompts"] = training.prompts
    place = max(prompts_of, key=lambda name: (prompts_of[name], name == "training.prompts"))
    named = "training.min_level" if training.min_level else "training.task"
    if source.generated:
        for name, count in ((named, 1), (place, prompts_of[place])):
            with at(prepared.source, name, (DataError, PluginError)), blamed(f"task {training.task}"):
                source.draw(0, count, min_level=training.min_level, part=training.part)
        return
    if sets.get("training.task") in absent:
        return
    with at(prepared.source, named, (DataError, PluginError)), blamed(f"task {training.task}"):
        pool = part_of(source.pool(training.min_level), training.part)
    if prompts_of[place] > len(pool.prompts):
        raise SuiteError(
            prepared.source,
            place,
            f"{prompts_of[place]} prompts a step asked for; the pool of {training.task} holds {len(pool.prompts)}",
        )
    if any(isinstance(name, FileTask) for name in asked):
        yield from _repeated(prepared, pool, [name for name in suite.evaluation.tasks if name not in absent])


def _replays(prepared: Prepared, run: bool) -> Iterator[str]:
    replays = {f"regimes[{i}].replay.suite": v.replay.suite for i, v in enumerate(prepared.suite.regimes) if v.replay}
    for place, name in replays.items():
        if name != prepared.suite.name and not suite_files(prepared.folder.parent / name):
            problem = f"there are no results of {name} here; run it first, with `sharing.record`"
            if run:
                raise SuiteError(prepared.source, place, problem)
            yield f"{place}: {problem}"


def _repeated(prepared: Prepared, pool: TrainingPool, tasks: Sequence[str | FileTask]) -> Iterator[str]:
    """Shipped sets have been compared with each other."""
    trained = get_task(prepared.suite.training.task)
    questions = [(prompt.id, trained.bare(prompt.text)) for prompt in pool.prompts]
    for i, name in enumerate(tasks):
        place = f"evaluation.tasks[{i}]"
        with at(prepared.source, place, DataError):
            asked, documents = get_task(name), get_task(name).documents(None)
        overlaps = find_overlaps(
            [(prompt, asked.bare(text)) for prompt, text in questions],
            [(str(name), prompt.id, asked.bare(prompt.text)) for prompt in documents],
        )
        if same := [overlap for overlap in overlaps if overlap.kind == "exact"]:
            raise SuiteError(
                prepared.source,
                place,
                f"{len(same):,} of the {len(questions):,} training questions of {trained.name} are questions of {name} too, "
                f"the first one {same[0].training!r:.80}: give each line a `split`, or the file `held_out: 0.2`",
            )
        if overlaps:
            yield f"{place}: {len(overlaps):,} training questions of {trained.name} nearly repeat one of {name}"


def _lacks(policy: Policy) -> str:
    folder = local_folder(policy.model)
    if folder is None or not (folder / "config.json").is_file():
        return ""
    names = {file.name for file in folder.iterdir()}
    lacks = [] if names & {"tokenizer.json", "tokenizer_config.json"} else ["tokenizer"]
    present = names & {WEIGHTS, INDEX} or any(name.endswith(OTHER_WEIGHTS) for name in names)
    return " and no ".join(lacks if present else ["weights", *lacks])


def _has_whole_tokenizer(policy: Policy) -> bool:
    folder = local_folder(policy.model)
    return folder is not None and (folder / "tokenizer.json").is_file()


def _model(
    policy: Policy,
    cells: Sequence[Cell],
    prepared: Prepared,
    place: str,
    run: bool,
    remarks: list[str],
    weights: bool = True,
) -> bool:
    """Whether the folder could be checked. remarks: to which what is worth a word is added. weights: whether they are here."""
    from huggingface_hub import is_offline_mode

    suite, source = prepared.suite, prepared.source
    with at(source, f"{place}.model", (DataError, EngineError)):
        folder, complete = required_folder(policy), True
        if folder is None:
            complete = is_offline_mode()
            with nullcontext() if run else suppress(DataError):
                folder = hub_folder(policy, fetch=run)
            if folder is None or not (run or (folder / "tokenizer_config.json").is_file()):
                return False
        config, tokenizer = backend_of(suite.engine).check(folder, suite.engine_options)
        if complete and weights:
            from harness.engines.vocabulary import check_weights

            check_weights(folder)
    if policy.chat and not tokenizer.chat_template:
        raise SuiteError(source, f"{place}.chat", f"the tokenizer of {policy.model} has no chat template")
    positions = getattr(config, "max_position_embeddings", None)
    if positions and suite.training.max_new_tokens >= positions:
        raise SuiteError(
            source,
            "training.max_new_tokens",
            f"{suite.training.max_new_tokens} leave no room for a prompt: {policy.model} has {positions} positions",
        )
    carries = any(shared(cell) & TEXTS for cell in cells)
    remarks += [f"{place}.chat: {words}" for words in _check_prompts(policy, folder, source, place, carries)]
    _check_room(policy, folder, cells, suite, source)
    if carrying := next((cell.variant.name for cell in cells if shared(cell) & TEXTS), None):
        from harness.tokenization.codec import TokenCodec

        try:
            TokenCodec(tokenizer)
        except TokenizationError as error:
            problem = f"{carrying!r} shares text, which cannot be carried to the tokenizer of {policy.model}: {error}"
            raise SuiteError(source, f"{place}.model", problem) from None
    return True


def _check_prompts(policy: Policy, folder: Path, source: str, place: str, carries: bool) -> Iterator[str]:
    """Whether the chat template can ask a question; remarks on what it does besides. Raises SuiteError."""
    from harness.engines.vocabulary import open_vocabulary
    from harness.tokenization.codec import leaves_thought_open

    with at(source, f"{place}.model", EngineError):
        vocabulary = open_vocabulary(folder, policy.chat)
    if not policy.chat:
        return
    template = vocabulary.template
    if fault := template.fault():
        raise SuiteError(source, f"{place}.chat", f"{policy.model}: {fault}")
    if carries and leaves_thought_open(template.behind_question()):
        yield (
            f"{policy.name}'s prompts open a thought: peers' answers that do not close one are refused (open_thought); where the "
            "template has a switch, such as `chat: {enable_thinking: false}`, it is asked without"
        )
    if template.date is None and template.writes_date():
        yield (
            f"{policy.name}'s template writes the day: each cell keeps that of its start; `chat: {{date: 2026-01-31}}` gives all "
            "cells the same"
        )


def _check_room(policy: Policy, folder: Path, cells: Sequence[Cell], suite: Suite, source: str) -> None:
    """Raises SuiteError where the model has too few positions for the longest question and its answer. Questions that are not on
    this machine are not measured."""
    from harness.engines.vocabulary import open_vocabulary
    from harness.session.cell.questions import longest_prompts

    positions = open_vocabulary(folder, policy.chat).positions
    if positions is None:
        return
    asked_of = {(cell.training.model_dump_json(), cell.variant.regime): cell for cell in cells}
    wanted: dict[str, tuple[int, int]] = {}
    with suppress(DataError):
        for of_evaluation, question, answer in longest_prompts(
            policy, folder, suite.evaluation, list(asked_of.values())
        ):
            where = "evaluation.max_new_tokens" if of_evaluation else "training.max_new_tokens"
            wanted[where] = max(wanted.get(where, (0, 0)), (question, answer), key=sum)
    for where, (question, answer) in wanted.items():
        if question + answer > positions:
            room = positions - question
            remedy = f"at most {room:,} fit" if room > 0 else "no answer fits; take shorter questions or another model"
            raise SuiteError(
                source,
                where,
                f"the longest question of {policy.name} takes {question:,} tokens and an answer up to {answer:,}, but the model "
                f"has {positions:,} positions: {remedy}",
            )


def _small(policy: Policy) -> bool:
    try:
        return load_shape(policy.model, policy.revision).parameters < SMALL
    except UsageError:
        return True


def shared(cell: Cell) -> frozenset[type[Record]]:
    """The kinds of records that travel in it."""
    alone = len(cell.group.policies) < 2 and cell.variant.replay is None
    regime = registry.build(cell.variant.regime, cell.variant.options)
    return frozenset() if alone or cell.sharing.direction == "none" else regime.shares


def _unfit_defaults(prepared: Prepared, policy: Policy) -> Iterator[str]:
    training = prepared.suite.training
    short = training.task == "micro" and not policy.stage0
    tokens = TOKENS if short else get_task(training.task).max_new_tokens
    for name, value in (("max_new_tokens", tokens), ("learning_rate", LEARNING_RATE)):
        if name not in training.model_fields_set:
            yield f"training.{name}: {getattr(training, name)} is for micro models; {value} fits {policy.model}"
