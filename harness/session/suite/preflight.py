"""Whether what a suite names is there and fits its engine. Torch is imported only for other models than micro."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress

from harness.allocation import inventory
from harness.allocation.shapes import EMULATED, cpu_bf16, load_shape
from harness.cache import PRETRAINED, model_folder
from harness.engines.catalogue import backend_of
from harness.engines.checkpoint import INDEX, WEIGHTS
from harness.errors import DataError, EngineError, SuiteError, TokenizationError, UsageError
from harness.experience.records import Rollout, Success, TextRollout
from harness.learning import registry
from harness.scoring.catalogue import scorer_of
from harness.session.policy import hub_folder, local_folder, required_folder
from harness.session.suite.prepare import Prepared
from harness.session.suite.rules import at
from harness.store.manifest import suite_files
from harness.suite.cells import Cell
from harness.suite.schema import FileTask, Policy
from harness.tasks.data import folder_in_use, load
from harness.tasks.overlap import find_overlaps
from harness.tasks.registry import get_task, source_of
from harness.tasks.sets import SETS, SOURCES
from harness.tasks.source import TrainingPool, part_of

# What a receiver has to put into its own tokens
TEXTS = {Rollout, TextRollout, Success}
# That of the shipped suites of full-size models
LEARNING_RATE = 1e-6
# Parameters; the micro families have 0.4 M
SMALL = 5_000_000
# For a full-size model on micro arithmetic, which it explains at length
TOKENS = 512


def preflight(prepared: Prepared, run: bool, elsewhere: bool = False) -> list[str]:
    """Check models, tokenizers and data of what is to be done; returns remarks. run: what is not at hand is fetched or refused,
    otherwise a remark. elsewhere: it is to run on another machine, so a folder here may lack weights and tokenizer. Raises
    SuiteError."""
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
            if lacks := elsewhere and _lacks(policy):
                remarks.append(f"{place}.model: {policy.model} has no {lacks} here, which a run needs")
            if not lacks and not _model(policy, own, prepared, place, run):
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
    """Yields what is still to be fetched."""
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
        if remark := scorer_of(name).remark():
            yield f"scorer {name}: {remark}"
    source = source_of(training.task)
    if source.generated or sets.get("training.task") in absent:
        return
    with at(prepared.source, "training.min_level" if training.min_level else "training.task", DataError):
        pool = part_of(source.pool(training.min_level), training.part)
    if training.prompts > len(pool.prompts):
        raise SuiteError(
            prepared.source,
            "training.prompts",
            f"{training.prompts} prompts a step asked for; the pool of {training.task} holds {len(pool.prompts)}",
        )
    if any(isinstance(name, FileTask) for name in asked):
        yield from _repeated(prepared, pool, [name for name in suite.evaluation.tasks if name not in absent])


def _replays(prepared: Prepared, run: bool) -> Iterator[str]:
    for i, variant in enumerate(prepared.suite.regimes):
        if variant.replay is None or variant.replay.suite == prepared.suite.name:
            continue
        if not suite_files(prepared.folder.parent / variant.replay.suite):
            problem = f"there are no results of {variant.replay.suite} here; run it first, with `sharing.record`"
            if run:
                raise SuiteError(prepared.source, f"regimes[{i}].replay.suite", problem)
            yield f"regimes[{i}].replay.suite: {problem}"


def _repeated(prepared: Prepared, pool: TrainingPool, tasks: Sequence[str | FileTask]) -> Iterator[str]:
    """Shipped sets have been compared with each other."""
    trained = get_task(prepared.suite.training.task)
    questions = [(prompt.id, trained.bare(prompt.text)) for prompt in pool.prompts]
    for i, name in enumerate(tasks):
        place = f"evaluation.tasks[{i}]"
        with at(prepared.source, place, DataError):
            asked = get_task(name).documents(None)
        found = find_overlaps(questions, [(str(name), prompt.id, prompt.text) for prompt in asked])
        if same := [overlap for overlap in found if overlap.kind == "exact"]:
            raise SuiteError(
                prepared.source,
                place,
                f"{len(same):,} of the {len(questions):,} training questions of {trained.name} are questions of {name} too, "
                f"the first one {same[0].training!r:.80}: give each line a `split`, or the file `held_out: 0.2`",
            )
        if found:
            yield f"{place}: {len(found):,} training questions of {trained.name} nearly repeat one of {name}"


def _lacks(policy: Policy) -> str:
    """What a folder with a config has not, in words."""
    folder = local_folder(policy.model)
    if folder is None or not (folder / "config.json").is_file():
        return ""
    names = {file.name for file in folder.iterdir()}
    lacks = [] if names & {"tokenizer.json", "tokenizer_config.json"} else ["tokenizer"]
    return " and no ".join(lacks if names & {WEIGHTS, INDEX} else ["weights", *lacks])


def _model(policy: Policy, cells: Sequence[Cell], prepared: Prepared, place: str, run: bool) -> bool:
    """Whether the policy's folder, local or in the hub's cache, could be checked. cells: to be run with it."""
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
        if complete:
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
    if carrying := next((cell.variant.name for cell in cells if _carries(cell)), None):
        from harness.tokenization.codec import TokenCodec

        try:
            TokenCodec(tokenizer)
        except TokenizationError as error:
            problem = f"{carrying!r} shares text, which cannot be carried to the tokenizer of {policy.model}: {error}"
            raise SuiteError(source, f"{place}.model", problem) from None
    return True


def _small(policy: Policy) -> bool:
    """Probably taught the micro task; also one of unknown size."""
    try:
        return load_shape(policy.model, policy.revision).parameters < SMALL
    except UsageError:
        return True


def _carries(cell: Cell) -> bool:
    peers = len(cell.group.policies) > 1 or cell.variant.replay is not None
    shares = registry.build(cell.variant.regime, cell.variant.options).shares
    return peers and cell.sharing.direction != "none" and bool(TEXTS & shares)


def _unfit_defaults(prepared: Prepared, policy: Policy) -> Iterator[str]:
    """Defaults of micro models that a full-size model got without being asked for."""
    training = prepared.suite.training
    short = training.task == "micro" and not policy.stage0
    tokens = TOKENS if short else get_task(training.task).max_new_tokens
    for name, value in (("max_new_tokens", tokens), ("learning_rate", LEARNING_RATE)):
        if name not in training.model_fields_set:
            yield f"training.{name}: {getattr(training, name)} is for micro models; {value} fits {policy.model}"
