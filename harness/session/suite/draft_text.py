"""The text of a drafted suite: settings that fit its models, rounded from published runs, each with a sentence."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import yaml

from harness.allocation import inventory
from harness.allocation.shapes import cpu_bf16
from harness.errors import UsageError
from harness.plugins import blame_plugin
from harness.session.suite.draft_models import DraftedModel, read_model
from harness.session.suite.draft_room import styles_with_room
from harness.suite.load import parse_suite
from harness.suite.schema import FileTask, Policy, Suite
from harness.tasks import registry
from harness.tasks.registry import get_task, has_examples, is_puzzle, names_of_levels, training_source
from harness.tasks.task import Style

# By training task, where the names differ
EVALUATED = {"math": "math500"}
# Of a JSONL file's questions, for evaluation
HELD_OUT = 0.2
# The largest model that one device trains whole
EMBEDDED_PARAMETERS = 1.6e9
# The fewest steps of a suite with a learning curve
CURVED_STEPS = 20
# Where peft is installed
ADAPTERS = "{rank: 16, alpha: 32}"
WITHOUT_PEFT = "; with adapters (pip install -e '.[lora]' -c constraints.txt) half the time"
# Worked examples, until a fifth of sampled answers is right (docs/pretrained.md)
WARM_UP = "{preset: format, gate: 0.2}"


class SuiteSize(NamedTuple):
    """How much of a suite is run. divided: by this the questions of a step."""

    regimes: tuple[str, ...]
    seeds: tuple[int, ...]
    divided: int


# The next one is taken where the fewest steps take longer than the time that was given
SIZES_BY_BUDGET = (
    SuiteSize(("independent", "naive", "sgt", "hacpo"), (1, 2, 3), 1),
    SuiteSize(("independent", "sgt", "hacpo"), (1, 2, 3), 1),
    SuiteSize(("independent", "sgt"), (1, 2, 3), 1),
    SuiteSize(("independent", "sgt"), (1, 2), 1),
    SuiteSize(("independent", "sgt"), (1, 2), 2),
)


@dataclass(frozen=True, slots=True)
class Findings:
    """What was measured, and why; None and 0 leave what was drafted. warm: policies that need a supervised start. styles: by
    policy. divided: by this the questions of a step. pace: seconds of a step here, over the plan's. tasks: of several that were
    tried, those to be trained on, one or a mixture."""

    task: str | None = None
    styles: Mapping[str, Style] = field(default_factory=dict)
    warm: tuple[str, ...] = ()
    answer_ends: str = "eos"
    tokens: int = 0
    steps: int = 0
    regimes: tuple[str, ...] = SIZES_BY_BUDGET[0].regimes
    seeds: tuple[int, ...] = SIZES_BY_BUDGET[0].seeds
    divided: int = 1
    pace: float = 1.0
    why: tuple[str, ...] = field(default=())
    tasks: tuple[str, ...] = ()


NOTHING_MEASURED = Findings()


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Settings for models of up to so many parameters. full_rate, lora_rate: learning rates of full fine-tuning and of adapters.
    tokens: of the longest answer, by task."""

    parameters: float
    full_rate: float
    lora_rate: float
    prompts: int
    rollouts: int
    steps: int
    tokens: Mapping[str, int]


SETTINGS_BY_SIZE = (
    ModelSettings(
        parameters=5e7,
        full_rate=1e-4,
        lora_rate=1e-3,
        prompts=16,
        rollouts=8,
        steps=45,
        tokens={"micro": 44, "other": 128},
    ),
    ModelSettings(
        parameters=5e8,
        full_rate=1e-6,
        lora_rate=5e-5,
        prompts=8,
        rollouts=8,
        steps=40,
        tokens={"micro": 96, "gsm8k": 256, "other": 384},
    ),
    ModelSettings(
        parameters=2e9,
        full_rate=1e-6,
        lora_rate=3e-5,
        prompts=16,
        rollouts=8,
        steps=60,
        tokens={"micro": 192, "gsm8k": 400, "other": 1024},
    ),
    ModelSettings(
        parameters=float("inf"),
        full_rate=1e-6,
        lora_rate=1e-5,
        prompts=64,
        rollouts=8,
        steps=60,
        tokens={"micro": 512, "gsm8k": 768, "other": 3072},
    ),
)


def write_draft(
    models: Sequence[str], task: str, name: str, findings: Findings = NOTHING_MEASURED, file: Path | None = None
) -> str:
    """Return the text of a suite. findings: what was measured, which comes before what sizes suggest. file: where the suite will
    be, by default NAME.yaml. Raises UsageError, PluginError."""
    pairs = [_tasks_of(trained) for trained in _tasks_to_train(task, findings)]
    training, evaluation = pairs[0]
    read = _read_models(models)
    largest = max(model.parameters for model in read)
    settings = next(settings for settings in SETTINGS_BY_SIZE if largest <= settings.parameters)
    small = largest <= SETTINGS_BY_SIZE[1].parameters
    steps = findings.steps or settings.steps
    prompts = settings.prompts // findings.divided
    tokens = findings.tokens or _longest_answer(str(training), evaluation, read, settings, largest)
    policies = [_policy_text(model, evaluation, findings, tokens) for model in read]
    place = str(file or Path(f"{name}.yaml"))
    title = " x ".join(model.name for model in read)
    measured = "".join(_measured_lines(findings.why))
    answer_ends = ""
    if findings.answer_ends != "eos":
        answer_ends = f"  answer_ends: {findings.answer_ends}\n"
    trained = [one for one, _ in pairs]
    evaluated = [_task_text(one) for _, one in pairs]
    curve_every = steps // 4 if steps >= CURVED_STEPS else 0
    seeds = [str(seed) for seed in findings.seeds]
    engine = _choose_engine(read, settings, largest)
    return TEXT.format(
        name=_as_text(name),
        file=shlex.quote(place),
        title=title,
        policies="\n".join(policies),
        measured=measured,
        answer_ends=answer_ends,
        task=", ".join(map(str, trained)),
        trained=_mixture_text(trained),
        tokens=tokens,
        prompts=prompts,
        rollouts=settings.rollouts,
        steps=steps,
        sample=prompts * settings.rollouts,
        largest=_format_parameters(largest),
        evaluated=", ".join(evaluated),
        limit=60 if small else 200,
        curve=curve_every,
        curve_prompts=30 if small else 100,
        regimes=", ".join(findings.regimes),
        seeds=", ".join(seeds),
        engine=engine.name,
        why_engine=engine.why,
        options=engine.options,
        why_options=engine.why_options,
        rate=engine.rate,
        trains=engine.trains,
    )


def _tasks_to_train(task: str, findings: Findings) -> list[str]:
    """Name the tasks to train on: those that a trial chose; else the first that the given name stands for, or that name."""
    if findings.tasks:
        return list(findings.tasks)
    if findings.task:
        return [findings.task]
    return (names_to_try(task) or [task])[:1]


def names_to_try(task: str) -> list[str]:
    """List the tasks among which a trial chooses: the puzzles that `gym.*` names, or the levels of one puzzle; none of another
    task, whose levels the trial knows. Raises PluginError."""
    return names_of_levels(task) if "*" in task or is_puzzle(task) else []


def suite_of(text: str) -> Suite:
    """Return the suite that a drafted text says. Raises SuiteError, which names what the user gave: `--models`."""
    return parse_suite(yaml.safe_load(text), (), "--models")


def styles_to_ask(policy: Policy, task: str | FileTask, tokens: int) -> list[Style]:
    """Return in which styles a model can be asked for answers of up to `tokens` tokens, the one first that is taken unless a
    trial says: a base model sees worked examples of short arithmetic before the question."""
    short = isinstance(task, str) and has_examples(task)
    preferred: list[Style] = ["few-shot"] if short and not policy.chat else []
    offered = list(get_task(task).styles)
    by_preference = [style for style in (*preferred, "zero-shot", *offered) if style in offered]
    return styles_with_room(policy, task, list(dict.fromkeys(by_preference)), tokens)


def _tasks_of(given: str) -> tuple[str | FileTask, str | FileTask]:
    """Return the tasks of training and of evaluation. Of a file a part is held out. Raises PluginError, DataError."""
    training = registry.task_of_text(given)
    if isinstance(training, FileTask):
        training = training.model_copy(update={"held_out": HELD_OUT})
    with blame_plugin(f"task {training}"):
        training_source(training).pool_digest()
    evaluation = training if isinstance(training, FileTask) else EVALUATED.get(training, training)
    return training, evaluation


def _read_models(models: Sequence[str]) -> list[DraftedModel]:
    """Read the models' configs, and give each a name of its own. Raises UsageError."""
    read = [read_model(model) for model in models]
    if len({model.model for model in read}) < len(read):
        raise UsageError(f"--models: {read[0].model} is given twice; give two different models")
    names = [model.name for model in read]
    for i, model in enumerate(read):
        if names.count(model.name) > 1:
            read[i] = model.renamed(f"{model.name}-{i + 1}")
    return read


def _longest_answer(
    task: str, evaluation: str | FileTask, models: Sequence[DraftedModel], settings: ModelSettings, largest: float
) -> int:
    """Choose the tokens of the longest answer: as published for the size, at most the task's own, and half the positions of each
    model."""
    room = min((model.positions for model in models if model.positions), default=1 << 20) // 2
    if task == "micro" and largest > SETTINGS_BY_SIZE[0].parameters:
        return min(settings.tokens["micro"], room)
    return min(settings.tokens.get(task, settings.tokens["other"]), get_task(evaluation).max_new_tokens, room)


class _EngineText(NamedTuple):
    """An engine in a suite's words. why, why_options: comments. rate: the learning rate that fits what it trains."""

    name: str
    why: str
    options: str
    why_options: str
    rate: str
    trains: str


def _choose_engine(models: Sequence[DraftedModel], settings: ModelSettings, largest: float) -> _EngineText:
    """Choose engine, number format and what is trained, each with its reason: for this machine and the largest model."""
    embedded = largest <= EMBEDDED_PARAMETERS
    stored_half = [model.half for model in models if not model.micro]
    all_half = bool(stored_half) and all(stored_half)
    dtype = "bf16" if all_half and (not embedded or _multiplies_bf16_fast()) else "fp32"
    full_size = embedded and largest > SETTINGS_BY_SIZE[0].parameters
    has_adapters = full_size and find_spec("peft") is not None
    rate = settings.lora_rate if has_adapters else settings.full_rate
    faster = ""
    if has_adapters:
        faster = "; adapters take half the time and less memory"
    elif full_size:
        faster = WITHOUT_PEFT
    options = f"dtype: {dtype}, lora: {ADAPTERS}" if has_adapters else f"dtype: {dtype}"
    why_dtype = "bf16 for half-precision weights where the machine multiplies it fast (`harness doctor`), else fp32"
    if embedded:
        name = "embedded"
        why = "one process here, on a CPU or one GPU"
    else:
        name = "openrlhf"
        why = "Ray, DeepSpeed and vLLM on GPUs (docs/openrlhf.md)"
    return _EngineText(
        name=name,
        why=why,
        options=f"{{{options}}}",
        why_options=why_dtype + faster,
        rate=f"{rate:.0e}".replace("e-0", ".0e-"),
        trains="adapters" if has_adapters else "full fine-tuning",
    )


def _multiplies_bf16_fast() -> bool:
    """Say whether this machine multiplies in bf16 faster than in fp32: all of its GPUs, or without one its CPU."""
    cards = [node.gpu_kind for node in inventory.inventory_of_machine().nodes if node.gpus]
    return all(map(inventory.has_bf16, cards)) if cards else bool(cpu_bf16())


def _policy_text(model: DraftedModel, evaluation: str | FileTask, findings: Findings, tokens: int) -> str:
    """Write the lines of one policy. tokens: of the longest answer."""
    if model.micro:
        size = _format_parameters(model.parameters)
        return f"      - {{name: {model.name}, model: {model.model}}}    # {size} parameters, trained here"
    what = "has a chat template" if model.chat else "a base model: no chat template"
    style = findings.styles.get(model.name)
    if style is None:
        # Not validated here: the whole suite is, and says where its fault stands
        policy = Policy.model_construct(name=model.name, model=model.model, chat=model.chat)
        style = styles_to_ask(policy, evaluation, tokens)[0]
    asked = f"stage0: {WARM_UP}" if model.name in findings.warm else f"style: {style}"
    return (
        f"      - name: {_as_text(model.name)}    # {_format_parameters(model.parameters)} parameters, {what}\n"
        f"        model: {_as_text(model.model)}\n"
        f"        chat: {str(model.chat).lower()}\n"
        f"        {asked}"
    )


def _measured_lines(why: Sequence[str]) -> Iterator[str]:
    """Yield what was measured as comments, behind an empty one."""
    if why:
        yield "#\n"
    for line in why:
        yield f"#   {line}\n"


def _mixture_text(tasks: Sequence[str | FileTask]) -> str:
    """Write one task, or several as the parts of a mixture."""
    texts = [_task_text(task) for task in tasks]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def _task_text(task: str | FileTask) -> str:
    """Write a task as a suite has it: with settings or of a file as a mapping, else by its name."""
    if isinstance(task, str):
        name, _, settings = task.partition(":")
        if not settings or task.startswith("lm_eval:"):
            return task
        return f"{{name: {name}, {settings.replace('=', ': ').replace(',', ', ')}}}"
    file = yaml.safe_dump(task.file, default_style='"', width=float("inf"), allow_unicode=True).rstrip()
    return f"{{file: {file}, scorer: {task.scorer}, held_out: {task.held_out}}}"


def _as_text(word: str) -> str:
    """Write a word, in quotes where YAML would read something else, such as a number."""
    plain: str = yaml.safe_dump([word], width=float("inf"), allow_unicode=True)[2:-1]
    return word if plain == word else json.dumps(word, ensure_ascii=False)


def _format_parameters(parameters: float) -> str:
    if parameters >= 1e9:
        return f"{parameters / 1e9:.1f} B"
    return f"{parameters / 1e6:.1f} M"


TEXT = """\
# {title} on {task}: which way of sharing helps whom?
#
#   harness plan {file}     what it needs and how long it takes
#   harness run {file}      runs what is missing; may be stopped and started again at any time
{measured}#
# Change what you like; every key that there is, with its default, stands in docs/keys.md.
name: {name}
title: {title}
engine: {engine}    # {why_engine}
engine_options: {options}    # {why_options}
groups:
  - name: pair
    # chat: prompts go through the tokenizer's chat template. style: how a policy is asked: raw (the question alone),
    # zero-shot (and what is wanted: steps, and the answer in a box) or few-shot (after worked examples). stage0: a
    # supervised start on worked examples.
    policies:
{policies}
# The ways of sharing (`harness regimes` lists all). Gains are differences to the baseline, training without sharing.
regimes: [{regimes}]
baseline: independent
# Every regime is trained once for each seed. Intervals are over seeds: fewer than three say little.
seeds: [{seeds}]
training:
  # What is trained on: ladder or micro (short arithmetic, for small models), gsm8k or math (`harness tasks`).
  task: {trained}
  # So many times: sample, verify, share, learn.
  steps: {steps}
  # Questions a step, and each policy's answers to each of them: {sample} answers a step. A question of which all
  # answers are right, or all wrong, teaches nothing; more rollouts make that rarer.
  prompts: {prompts}
  rollouts: {rollouts}
  # Tokens of the longest answer. One that is cut off counts as wrong; a larger limit costs time and memory.
  max_new_tokens: {tokens}
{answer_ends}  # Of {trains}, for {largest} parameters. A rate too large ruins a model within a few steps.
  learning_rate: {rate}
  temperature: 1.0
  # Steps between checkpoints: a run that was cut off goes on from the last one.
  checkpoint_every: 10
  # Steps between measurements of own and peer gradients and of the distance to the base; 0, never, saves the memory
  # of frozen copies.
  measure_every: 0
evaluation:
  # Held out; measured on each policy before training and after it.
  tasks: [{evaluated}]
  # Questions of each task, the same ones in every cell. Leave it out for all of them.
  limit: {limit}
  # Samples a question at temperature 1, besides the greedy answer.
  k: 2
  max_new_tokens: {tokens}
  # A point of the learning curve every so many steps, the first before training (0: no curve), on so many questions.
  curve_every: {curve}
  curve_prompts: {curve_prompts}
"""
