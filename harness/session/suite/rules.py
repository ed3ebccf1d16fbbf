"""What makes a suite sound beyond its types. No torch. A suite names no folders but its own, the working, data and cache folders,
and those of `--models` or HARNESS_MODELS; a command line's setting is the user's own word."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.cache import cache_folder
from harness.engines.backend import read_options
from harness.engines.catalogue import MICRO_FAMILIES, backend_of
from harness.engines.embedded.presets import PRESETS
from harness.errors import DataError, PluginError, SuiteError
from harness.exchange.misbehaviour import condition_of
from harness.learning import registry
from harness.learning.regime import Need
from harness.session.policy.models import MAX_FILES, MICRO, local_folder
from harness.session.suite.demands import asked
from harness.suite.schema import Evaluation, FileTask, Policy, Stage0, Suite
from harness.tasks.data import folder_in_use
from harness.tasks.jsonl import pinned as pinned_file
from harness.tasks.registry import get_task, has_examples, training_source

VARIABLE = "HARNESS_MODELS"


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
        sharing = suite.sharing_of(variant)
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
            if len({p.rollouts or suite.training.rollouts for p in group.policies}) > 1 and not regime.unequal_rollouts:
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


def remarks(suite: Suite) -> list[str]:
    own = backend_of(suite.engine).remark(suite.engine_options, [policy.model for _, policy in _policies(suite)])
    said = ((v.name, registry.build(v.regime, v.options).remarks(suite.training.updates)) for v in suite.regimes)
    return [*(f"{name}: {remark}" for name, remarks in said for remark in remarks), *filter(None, [own])]


def resolved(suite: Suite, source: str, overrides: Sequence[str]) -> Suite:
    """With files in their places and each start's task. Raises SuiteError."""
    with at(source, "engine"):
        engine = backend_of(suite.engine)
    read_options(engine.Options, suite.engine_options, source)
    for place, policy in _policies(suite):
        if policy.is_micro:
            _check_micro(policy, source, place)
    suite = _with_starts(_with_files(suite, source, overrides), source)
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
    """Raises SuiteError for a folder, or a link in one, outside the declared ones."""
    settings = [setting.partition("=")[2] for setting in overrides if setting.startswith("groups")]
    for place, policy in _policies(suite):
        folder = local_folder(policy.model)
        if folder is not None and not any(policy.model in said for said in settings):
            _refuse(_outside(folder, source), source, f"{place}.model")


def undeclared(models: Sequence[str], source: Path) -> list[Path]:
    """Parents of `models`' folders that need `--models`."""
    folders = [folder for folder in map(Path.expanduser, map(Path, models)) if folder.is_dir()]
    return list(dict.fromkeys(folder.resolve().parent for folder in folders if _outside(folder, source) is not None))


def _outside(path: Path, source: Path) -> Path | None:
    """Where the path, or one of its links, leads outside the declared folders."""
    from huggingface_hub import constants

    declared = [Path(name) for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    data = folder_in_use(None)
    own = [source.parent, Path(), cache_folder(), Path(constants.HF_HUB_CACHE), *([data] if data else [])]
    roots = [folder.expanduser().resolve() for folder in (*own, *declared)]
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


def _policies(suite: Suite) -> Iterator[tuple[str, Policy]]:
    for g, group in enumerate(suite.groups):
        for p, policy in enumerate(group.policies):
            yield f"groups[{g}].policies[{p}]", policy


def _with_files(suite: Suite, source: str, overrides: Sequence[str]) -> Suite:
    def pin(task: str | FileTask, place: str) -> str | FileTask:
        if isinstance(task, FileTask):
            stated = any(task.file in setting.partition("=")[2] for setting in overrides)
            if not stated and Path(source).is_file():
                path = Path(task.file).expanduser()
                beside = Path(source).parent / path
                found = path if path.is_absolute() or not beside.exists() else beside
                _refuse(_outside(found, Path(source)), Path(source), f"{place}.file")
            with at(source, f"{place}.scorer"), at(source, f"{place}.file", DataError):
                task = pinned_file(task, Path(source).parent)
        return task

    def evaluated(evaluation: Evaluation, place: str) -> Evaluation:
        found = [pin(task, f"{place}.tasks[{i}]") for i, task in enumerate(evaluation.tasks)]
        for i, name in enumerate(map(str, found)):
            if name in map(str, found[:i]) and any(isinstance(task, FileTask) for task in found):
                raise SuiteError(
                    source, f"{place}.tasks[{i}]", f"the task {name!r} occurs twice (a file may have a `name`)"
                )
        return evaluation.model_copy(update={"tasks": found})

    training = suite.training.model_copy(update={"task": pin(suite.training.task, "training.task")})
    tune = suite.tune and suite.tune.model_copy(
        update={"evaluation": evaluated(suite.tune.evaluation, "tune.evaluation")}
    )
    evaluation = evaluated(suite.evaluation, "evaluation")
    return suite.model_copy(update={"training": training, "evaluation": evaluation, "tune": tune})


def _with_starts(suite: Suite, source: str) -> Suite:
    places = {id(policy): place for place, policy in _policies(suite)}

    def resolve(policy: Policy) -> Policy:
        stage0 = policy.stage0
        if stage0 is None or policy.is_micro:
            return policy
        place, task = f"{places[id(policy)]}.stage0", stage0.task or str(suite.training.task)
        _check_preset(stage0, source, place)
        with at(source, f"{place}.task"):
            get_task(task)
        if not has_examples(task):
            raise SuiteError(
                source,
                f"{place}.task",
                f"there are no examples of {task}; micro and the ladder's levels have some (e.g. ladder.add2+chain3)",
            )
        return policy.model_copy(update={"stage0": stage0.model_copy(update={"task": task})})

    groups = [g.model_copy(update={"policies": list(map(resolve, g.policies))}) for g in suite.groups]
    return suite.model_copy(update={"groups": groups})


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
