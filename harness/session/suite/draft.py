"""`harness new-suite`: settings that fit two models, as published runs have them (docs/pretrained.md), rounded."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from harness.allocation import inventory
from harness.allocation.shapes import MICRO, chosen, cpu_bf16, load_config, load_shape
from harness.errors import DataError, HarnessError, UsageError
from harness.session.suite.trial import (
    ANSWERS,
    PROMPTS,
    WARM_UP,
    Findings,
    fitted,
    style_of,
    try_models,
    untried,
)
from harness.suite.schema import FileTask, Suite
from harness.tasks import ladder
from harness.tasks.registry import get_task, training_source
from harness.tasks.registry import named as by_name

EVALUATED = {"math": "math500"}
"""By training task, where it is not the task of the same name."""
HELD_OUT = 0.2
"""Share of a JSONL file's questions that is for evaluation."""
CHATTY = re.compile(r"(?i)(instruct|chat|(^|[-_])it($|[-_]))")
"""In the name of a hub model whose tokenizer is not on this machine."""
EMBEDDED_PARAMETERS = 1.6e9
"""The largest model that one device trains whole."""
CURVED_STEPS = 20
"""The fewest steps with a learning curve."""
USUAL = "gsm8k"
"""What is trained on unless a task is named."""
AS_BY_SIZE = Findings()


@dataclass(frozen=True, slots=True)
class Sizes:
    """Up to so many parameters. tokens: of the longest answer, by task."""

    parameters: float
    rate: float
    prompts: int
    rollouts: int
    steps: int
    tokens: Mapping[str, int]


SIZES = (
    Sizes(5e7, 1e-4, 16, 8, 45, {"micro": 44, "other": 128}),
    Sizes(5e8, 1e-5, 8, 8, 40, {"micro": 96, "gsm8k": 256, "other": 384}),
    Sizes(2e9, 3e-6, 16, 8, 60, {"micro": 192, "gsm8k": 400, "other": 1024}),
    Sizes(float("inf"), 1e-6, 64, 8, 60, {"micro": 512, "gsm8k": 768, "other": 3072}),
)


@dataclass(frozen=True, slots=True)
class Model:
    """positions: 0 where its config does not say."""

    name: str
    model: str
    parameters: int
    chat: bool
    half: bool
    positions: int

    @property
    def micro(self) -> bool:
        return self.model.startswith(MICRO)


def draft(models: Sequence[str], task: str, name: str, found: Findings = AS_BY_SIZE) -> str:
    """The text of a suite. found: what was measured, before what sizes suggest. Raises UsageError, PluginError."""
    task = found.task or task
    chosen = by_name(task)
    if isinstance(chosen, FileTask):
        chosen = chosen.model_copy(update={"held_out": HELD_OUT})
        task = chosen.name
    training_source(chosen).pool_digest()
    read = [_read(model) for model in models]
    if len({m.model for m in read}) < len(read):
        raise UsageError(f"--models: {read[0].model} is given twice; give two different models")
    names = [m.name for m in read]
    named = [m.name if names.count(m.name) == 1 else f"{m.name}-{i + 1}" for i, m in enumerate(read)]
    largest = max(m.parameters for m in read)
    sizes = next(s for s in SIZES if largest <= s.parameters)
    evaluated = EVALUATED.get(task, task) if isinstance(chosen, str) else chosen
    room = min((m.positions for m in read if m.positions), default=1 << 20)
    tokens = min(sizes.tokens.get(task, sizes.tokens["other"]), get_task(evaluated).max_new_tokens, room // 2)
    if task == "micro" and largest > SIZES[0].parameters:
        tokens = min(sizes.tokens["micro"], room // 2)
    tokens, steps = found.tokens or tokens, found.steps or sizes.steps
    embedded = largest <= EMBEDDED_PARAMETERS
    fast = bool(cpu_bf16()) or any(node.gpus for node in inventory.local().nodes)
    dtype = "bf16" if (fast or not embedded) and all(m.half for m in read if not m.micro) else "fp32"
    values = {
        "name": name,
        "title": " x ".join(named),
        "engine": "embedded" if embedded else "openrlhf",
        "why_engine": "one process here, on a CPU or one GPU" if embedded else "Ray, DeepSpeed and vLLM on GPUs (docs/openrlhf.md)",
        "options": f"{{dtype: {dtype}}}",
        "why_options": "bf16 where the machine multiplies it fast (`harness doctor`), else fp32",
        "policies": "\n".join(_policy(m, n, evaluated, found) for m, n in zip(read, named, strict=True)),
        "measured": "".join(f"#\n#   {line}\n" if i == 0 else f"#   {line}\n" for i, line in enumerate(found.why)),
        "answer_ends": "" if found.answer_ends == "eos" else f"  answer_ends: {found.answer_ends}\n",
        "task": task,
        "trained": _written(chosen),
        "tokens": tokens,
        "rate": f"{sizes.rate:.0e}".replace("e-0", ".0e-"),
        "prompts": sizes.prompts,
        "rollouts": sizes.rollouts,
        "steps": steps,
        "sample": sizes.prompts * sizes.rollouts,
        "largest": _figure(largest),
        "evaluated": _written(evaluated),
        "limit": 60 if largest <= SIZES[1].parameters else 200,
        "curve": steps // 4 if steps >= CURVED_STEPS else 0,
        "regimes": ", ".join(found.regimes),
        "seeds": ", ".join(map(str, found.seeds)),
        "curve_prompts": 30 if largest <= SIZES[1].parameters else 100,
    }  # fmt: skip
    return TEXT.format(**values)


def tried(models: Sequence[str], task: str | None, name: str, file: Path, minutes: float) -> str:
    """The text of a suite with settings measured on this machine. task: None is USUAL, the ladder where its data cannot be had.
    file: where the suite will be. Raises as `draft`; SuiteError, DataError."""
    given_task, task = task, task or USUAL
    suite = _suite(draft(models, task, name))
    if why := untried(suite):
        found = Findings(why=(f"Not measured on this machine: {why}.",))
    else:
        given = [policy.name for policy in suite.groups[0].policies]
        instead = ""
        try:
            found = try_models(suite)
        except DataError as error:
            if given_task:
                raise
            instead = f"On {ladder.NAME}, because {USUAL} cannot be had here ({str(error).partition(':')[0]})."
            task = ladder.NAME
            found = try_models(_suite(draft(models, task, name)))
        told = f"Measured here with {PROMPTS * ANSWERS} to {2 * PROMPTS * ANSWERS} answers of each of {' and '.join(given)}:"
        found = replace(found, why=(*filter(None, [instead]), told, *found.why))
    try:
        found = fitted(found, lambda changed: _suite(draft(models, task, name, changed)), str(file), minutes)
    except HarnessError as error:  # one that this machine cannot plan
        found = replace(found, why=(*found.why, f"steps as by size: {' '.join(str(error).split())}"))
    return draft(models, task, name, found)


def _suite(text: str) -> Suite:
    return Suite.model_validate(yaml.safe_load(text))


def _read(given: str) -> Model:
    shape = load_shape(given)
    if given.startswith(MICRO):
        return Model(given.removeprefix(MICRO), given, shape.parameters, False, False, 0)
    config: Mapping[str, Any] = load_config(given)
    folder = Path(given).expanduser()
    model = str(folder.resolve()) if folder.is_dir() else given
    positions = config.get("max_position_embeddings") or config.get("n_positions") or 0
    name = re.sub(r"[^a-z0-9.+-]+", "-", Path(model).name.lower()).strip("-.+")[:48] or "model"
    half = chosen(config) == "bf16"
    return Model(name, model, shape.parameters, _chats(model), half, positions if isinstance(positions, int) else 0)


def _chats(model: str) -> bool:
    """By the tokenizer's files where they are here, else by the name."""
    from huggingface_hub import try_to_load_from_cache

    from harness.engines.vocabulary import has_template

    folder = Path(model)
    if not folder.is_dir():
        found = try_to_load_from_cache(model, "tokenizer_config.json")
        if not isinstance(found, str):
            return bool(CHATTY.search(model.rsplit("/", 1)[-1]))
        folder = Path(found).parent
    return has_template(folder)


def _written(task: str | FileTask) -> str:
    if isinstance(task, str):
        return task
    return f"{{file: {json.dumps(task.file)}, scorer: {task.scorer}, held_out: {task.held_out}}}"


def _policy(model: Model, name: str, evaluated: str | FileTask, found: Findings) -> str:
    if model.micro:
        return (
            f"      - {{name: {name}, model: {model.model}}}    # {_figure(model.parameters)} parameters, trained here"
        )
    what = "has a chat template" if model.chat else "a base model: no chat template"
    style = found.styles.get(name) or style_of(model.chat, evaluated)
    asked = f"stage0: {WARM_UP}" if name in found.warm else f"style: {style}"
    return (
        f"      - name: {name}    # {_figure(model.parameters)} parameters, {what}\n"
        f"        model: {model.model}\n"
        f"        chat: {str(model.chat).lower()}\n"
        f"        {asked}"
    )


def _figure(parameters: int) -> str:
    return f"{parameters / 1e9:.1f} B" if parameters >= 1e9 else f"{parameters / 1e6:.1f} M"


TEXT = """\
# {title} on {task}: which way of sharing helps whom?
#
#   harness plan {name}.yaml     what it needs and how long it takes
#   harness run {name}.yaml      runs what is missing; may be stopped and started again at any time
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
{answer_ends}  # Of full fine-tuning, for {largest} parameters. A rate too large ruins a model within a few steps.
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
