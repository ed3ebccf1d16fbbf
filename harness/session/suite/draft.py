"""`harness new-suite`: settings that fit two models, rounded from published runs; or measured first, by a few dozen answers and
a step's time."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from harness.allocation import embedded, inventory
from harness.allocation.cost_model import CORE, CellDemand, device
from harness.allocation.planner import first_of
from harness.allocation.shapes import MICRO, chosen, cpu_bf16, load_config, load_shape
from harness.cache import expanded
from harness.engines.catalogue import backend_of
from harness.engines.protocol import Optimisation, Sample, Sampling, cut_at
from harness.errors import CellError, DataError, EngineError, HarnessError, UsageError
from harness.experience.answers import Prompt
from harness.learning.terms import Objective, Term, TermAnswer
from harness.limits import every_core
from harness.plugins import blamed
from harness.session.cell.questions import as_asked, scored_as, training_prompts
from harness.session.policy import at_hand, base_folder
from harness.session.suite.demand import demand_of
from harness.session.suite.planning import plan_for
from harness.session.suite.prepare import prepare_suite
from harness.store.sentences import joined
from harness.suite.load import resolve
from harness.suite.schema import FileTask, Policy, Suite
from harness.suite.seeds import derive, derive_many
from harness.tasks import ladder, registry
from harness.tasks.registry import get_task, has_examples, training_source
from harness.tasks.task import Style, Task
from harness.verification.verifier import Verifier

if TYPE_CHECKING:
    from harness.engines.embedded.engine import EmbeddedEngine

# By training task, where the names differ
EVALUATED = {"math": "math500"}
# Of a JSONL file's questions, for evaluation
HELD_OUT = 0.2
# In a hub model's name, without its tokenizer here
CHATTY = re.compile(r"(?i)(instruct|chat|(^|[-_])it($|[-_]))")
# The largest model that one device trains whole
EMBEDDED_PARAMETERS = 1.6e9
CURVED_STEPS = 20
USUAL = "gsm8k"
# Shares of right answers, between which most questions have right and wrong ones
LEAST, MOST = 0.2, 0.7
# Questions of a level; answers to each, and of a level with right and wrong ones
PROMPTS, ANSWERS, MORE = 8, 1, 3
# Answers to each of 2 PROMPTS mixed questions, in every style
OF_STYLE = 2
# Questions of the step that is timed
TIMED = 4
# The fewest and the most of a suite
STEPS = (16, 200)
# Regimes, seeds, divisor of a step's questions; the next where the fewest steps take too long
EXTENTS = (
    (("independent", "naive", "sgt", "hacpo"), (1, 2, 3), 1),
    (("independent", "sgt", "hacpo"), (1, 2, 3), 1),
    (("independent", "sgt"), (1, 2, 3), 1),
    (("independent", "sgt"), (1, 2), 1),
    (("independent", "sgt"), (1, 2), 2),
)
# Where peft is installed
ADAPTERS = "{rank: 16, alpha: 32}"
WITHOUT_PEFT = "; with adapters (pip install -e '.[lora]' -c constraints.txt) half the time"
# A line of `why` on one level
_OF_LEVEL = re.compile(r"[\w.+-]+: .*% right$")
# Worked examples, until a fifth of sampled answers is right (docs/pretrained.md)
WARM_WHY = "a supervised start first, because RL learns nothing from groups that are all wrong."
WARM_UP = "{preset: format, gate: 0.2}"


@dataclass(frozen=True, slots=True)
class Tried:
    """A model on a level. right, cut (by the next worked example): shares of its answers. tokens: that 95 % of its
    finished answers need, 0 where fewer than half finished; worked: that the longest worked solution needs, 0 without
    one."""

    policy: str
    level: str
    style: Style
    right: float
    cut: float
    tokens: int
    worked: int = 0


@dataclass(frozen=True, slots=True)
class Findings:
    """What was measured, and why; None and 0 leave what was drafted. warm: policies that need a supervised start.
    styles: by policy. divided: by this the questions of a step. pace: seconds of a step here, over the plan's."""

    task: str | None = None
    styles: Mapping[str, Style] = field(default_factory=dict)
    warm: tuple[str, ...] = ()
    answer_ends: str = "eos"
    tokens: int = 0
    steps: int = 0
    regimes: tuple[str, ...] = EXTENTS[0][0]
    seeds: tuple[int, ...] = EXTENTS[0][1]
    divided: int = 1
    pace: float = 1.0
    why: tuple[str, ...] = field(default=())


AS_BY_SIZE = Findings()


@dataclass(frozen=True, slots=True)
class Sizes:
    """Up to so many parameters. rate, adapters: learning rates of full fine-tuning and of LoRA. tokens: of the longest answer,
    by task."""

    parameters: float
    rate: float
    adapters: float
    prompts: int
    rollouts: int
    steps: int
    tokens: Mapping[str, int]


SIZES = (
    Sizes(5e7, 1e-4, 1e-3, 16, 8, 45, {"micro": 44, "other": 128}),
    Sizes(5e8, 1e-6, 5e-5, 8, 8, 40, {"micro": 96, "gsm8k": 256, "other": 384}),
    Sizes(2e9, 1e-6, 3e-5, 16, 8, 60, {"micro": 192, "gsm8k": 400, "other": 1024}),
    Sizes(float("inf"), 1e-6, 1e-5, 64, 8, 60, {"micro": 512, "gsm8k": 768, "other": 3072}),
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


def draft(
    models: Sequence[str], task: str, name: str, findings: Findings = AS_BY_SIZE, file: Path | None = None
) -> str:
    """The text of a suite. findings: what was measured, before what sizes suggest. file: where it will be, by default
    NAME.yaml. Raises UsageError, PluginError."""
    task = findings.task or task
    chosen = registry.named(task)
    if isinstance(chosen, FileTask):
        chosen = chosen.model_copy(update={"held_out": HELD_OUT})
        task = chosen.name
    with blamed(f"task {chosen}"):
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
    tokens, steps, prompts = findings.tokens or tokens, findings.steps or sizes.steps, sizes.prompts // findings.divided
    embedded = largest <= EMBEDDED_PARAMETERS
    kinds = [node.gpu_kind for node in inventory.local().nodes if node.gpus]
    fast = all(map(inventory.has_bf16, kinds)) if kinds else bool(cpu_bf16())
    halves = [m.half for m in read if not m.micro]
    dtype = "bf16" if (fast or not embedded) and halves and all(halves) else "fp32"
    real = embedded and largest > SIZES[0].parameters
    adapters = real and find_spec("peft") is not None
    rate = sizes.adapters if adapters else sizes.rate
    faster = "; adapters take half the time and less memory" if adapters else WITHOUT_PEFT * real
    return TEXT.format(
        name=_as_text(name),
        file=shlex.quote(str(file or Path(f"{name}.yaml"))),
        title=" x ".join(named),
        engine="embedded" if embedded else "openrlhf",
        why_engine="one process here, on a CPU or one GPU" if embedded else "Ray, DeepSpeed and vLLM on GPUs (docs/openrlhf.md)",
        options=f"{{dtype: {dtype}{f', lora: {ADAPTERS}' * adapters}}}",
        why_options=f"bf16 for half-precision weights where the machine multiplies it fast (`harness doctor`), else fp32{faster}",
        policies="\n".join(_policy(m, n, evaluated, findings) for m, n in zip(read, named, strict=True)),
        measured="".join(f"#\n#   {line}\n" if i == 0 else f"#   {line}\n" for i, line in enumerate(findings.why)),
        answer_ends="" if findings.answer_ends == "eos" else f"  answer_ends: {findings.answer_ends}\n",
        task=task,
        trained=_written(chosen),
        tokens=tokens,
        rate=f"{rate:.0e}".replace("e-0", ".0e-"),
        trains="adapters" if adapters else "full fine-tuning",
        prompts=prompts,
        rollouts=sizes.rollouts,
        steps=steps,
        sample=prompts * sizes.rollouts,
        largest=_figure(largest),
        evaluated=_written(evaluated),
        limit=60 if largest <= SIZES[1].parameters else 200,
        curve=steps // 4 if steps >= CURVED_STEPS else 0,
        regimes=", ".join(findings.regimes),
        seeds=", ".join(map(str, findings.seeds)),
        curve_prompts=30 if largest <= SIZES[1].parameters else 100,
    )  # fmt: skip


def tried(models: Sequence[str], task: str | None, name: str, file: Path, minutes: float) -> str:
    """The text of a suite measured on this machine. task: None is USUAL, or the ladder where its data cannot be had. file:
    where the suite will be. Raises as `draft`; SuiteError, DataError."""
    given_task, task = task, task or USUAL
    suite = _suite(draft(models, task, name))
    _check_models(suite)
    if why := untried(suite):
        findings = Findings(why=(f"Not measured on this machine: {why}.",))
    else:
        given = [policy.name for policy in suite.groups[0].policies]
        instead = ""
        try:
            findings = try_models(suite)
        except DataError:
            if given_task:
                raise
            instead = (
                f"On {ladder.NAME}, because the questions of {USUAL} are not on this machine and cannot be fetched now. With "
                f"{USUAL}_train.jsonl in a folder that HARNESS_DATA names, --task {USUAL} trains on them."
            )
            task = ladder.NAME
            findings = try_models(_suite(draft(models, task, name)))
        most = PROMPTS * (ANSWERS + MORE)
        told = f"Measured here with {PROMPTS * ANSWERS} to {most} answers a line of each of {' and '.join(given)}:"
        findings = replace(findings, why=(*filter(None, [instead]), told, *findings.why))
    try:
        if not why:
            findings = with_starts_tried(findings, _suite(draft(models, task, name, findings)), str(file))
            findings = replace(findings, pace=paced(_suite(draft(models, task, name, findings)), str(file)))
        findings = fitted(findings, lambda changed: _suite(draft(models, task, name, changed)), str(file), minutes)
    except HarnessError as error:
        problem = " ".join(str(error).split())
        findings = replace(
            findings,
            why=(*findings.why, f"The time could not be measured, so the steps are by the models' size: {problem}"),
        )
    unsaid = [line for line in findings.why if not _OF_LEVEL.match(line)]  # those were said while they were measured
    print("\n".join(["", *unsaid]), file=sys.stderr)
    return draft(models, task, name, findings, file)


def _check_models(suite: Suite) -> None:
    """What `harness plan` would refuse of the models that are here. Raises UsageError."""
    from harness.engines.vocabulary import open_vocabulary

    for policy in suite.groups[0].policies:
        folder = at_hand(policy)
        if folder is None:
            continue
        try:
            backend_of(suite.engine).check(folder, {})
            vocabulary = open_vocabulary(folder, policy.chat)
        except EngineError as error:
            raise UsageError(f"--models: {error}") from None
        if policy.chat and (fault := vocabulary.template.fault()):
            raise UsageError(f"--models: {policy.model}: {fault}")


def _suite(text: str) -> Suite:
    return resolve(yaml.safe_load(text), (), "--models")


def _read(given: str) -> Model:
    shape = load_shape(given)
    if given.startswith(MICRO):
        return Model(given.removeprefix(MICRO), given, shape.parameters, False, False, 0)
    config: Mapping[str, Any] = load_config(given)
    folder = expanded(given)
    model = str(folder.resolve()) if folder.is_dir() else given
    positions = config.get("max_position_embeddings") or config.get("n_positions") or 0
    name = re.sub(r"[^a-z0-9.+-]+", "-", Path(model).name.lower()).strip("-.+")[:48] or "model"
    half = chosen(config) == "bf16"
    return Model(name, model, shape.parameters, _chats(model), half, positions if isinstance(positions, int) else 0)


def _chats(model: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    from harness.engines.vocabulary import has_template

    folder = Path(model)
    if not folder.is_dir():
        cached = try_to_load_from_cache(model, "tokenizer_config.json")
        if not isinstance(cached, str):
            return bool(CHATTY.search(model.rsplit("/", 1)[-1]))
        folder = Path(cached).parent
    return has_template(folder)


def _written(task: str | FileTask) -> str:
    if isinstance(task, str):
        return task
    file = yaml.safe_dump(task.file, default_style='"', width=float("inf"), allow_unicode=True).rstrip()
    return f"{{file: {file}, scorer: {task.scorer}, held_out: {task.held_out}}}"


def _as_text(word: str) -> str:
    """In quotes where YAML would read something else, such as a number."""
    plain: str = yaml.safe_dump([word], width=float("inf"), allow_unicode=True)[2:-1]
    return word if plain == word else json.dumps(word, ensure_ascii=False)


def _policy(model: Model, name: str, evaluated: str | FileTask, findings: Findings) -> str:
    if model.micro:
        return (
            f"      - {{name: {name}, model: {model.model}}}    # {_figure(model.parameters)} parameters, trained here"
        )
    what = "has a chat template" if model.chat else "a base model: no chat template"
    style = findings.styles.get(name) or style_of(model.chat, evaluated)
    asked = f"stage0: {WARM_UP}" if name in findings.warm else f"style: {style}"
    return (
        f"      - name: {_as_text(name)}    # {_figure(model.parameters)} parameters, {what}\n"
        f"        model: {_as_text(model.model)}\n"
        f"        chat: {str(model.chat).lower()}\n"
        f"        {asked}"
    )


def _figure(parameters: int) -> str:
    return f"{parameters / 1e9:.1f} B" if parameters >= 1e9 else f"{parameters / 1e6:.1f} M"


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


# The trial ------------------------------------------------------------------------------------------------------------


def style_of(chat: bool, task: str | FileTask) -> Style:
    """A base model sees worked examples of short arithmetic first."""
    short = isinstance(task, str) and has_examples(task)
    style: Style = "few-shot" if short and not chat else "zero-shot"
    known = get_task(task).styles
    return style if style in known else known[0]


def untried(suite: Suite) -> str:
    """Why nothing can be measured here; empty where it can."""
    if suite.engine != "embedded":
        return "a model is too large for a trial in one process"
    for policy in suite.groups[0].policies:
        if policy.is_micro:
            return f"{policy.model} has no weights before its first run"
        if at_hand(policy) is None:
            return f"{policy.model} is not on this machine yet"
    return ""


def try_models(suite: Suite) -> Findings:
    """Of a draft that is not `untried`. Raises UsageError where a model cannot be opened, DataError."""
    policies, task = suite.groups[0].policies, suite.training.task
    tried = [trial for policy in policies for trial in _tried(policy, task, suite)]
    if isinstance(task, str) and not has_examples(task) and min(trial.right for trial in tried) < LEAST:
        tried += [trial for policy in policies for trial in _tried(policy, ladder.NAME, suite)]
    return settled(tried, task, suite.training.max_new_tokens)


def _tried(policy: Policy, task: str | FileTask, suite: Suite) -> Iterator[Tried]:
    """Each level, in the style with most right answers over all."""
    from harness.engines.embedded.engine import EmbeddedEngine

    known, drafted, dtype = get_task(task), style_of(bool(policy.chat), task), suite.engine_options.get("dtype")
    source = training_source(task)
    count = 2 * PROMPTS if source.generated else min(2 * PROMPTS, len(source.pool(None).prompts))
    mixed = source.draw(derive(0, "trial"), count)
    name = task if isinstance(task, str) else Path(task.file).name
    try:
        engine = EmbeddedEngine(policy.name, base_folder(policy, 0), chat=policy.chat, dtype=dtype)
    except EngineError as error:
        raise UsageError(str(error)) from error
    with Verifier(workers=1) as verifier, every_core():
        trial = _Trial(engine, scored_as(task, verifier), known, suite.training.max_new_tokens)
        styles = [drafted, *(style for style in known.styles if style != drafted)]
        of_styles = [_Asked(name, style, mixed) for style in styles]
        trial.ask(of_styles, OF_STYLE)
        best = max(map(trial.tried, of_styles), key=lambda tried: tried.right)
        if isinstance(task, str) and ladder.is_ladder(task):
            from harness.session.single.calibrate import questions_of

            levels = [_Asked(n, best.style, questions_of(task, n, PROMPTS)) for n in ladder.levels_of(task)]
            if best.right:  # else more answers say nothing
                trial.ask(levels, ANSWERS)
                trial.ask([asked for asked in levels if 0 < trial.tried(asked, told=False).right < 1], MORE)
            for asked in levels:
                of_level = trial.tried(asked) if best.right else replace(best, level=asked.level)
                solved = [p.chain_of_thought for p in ladder.evaluation_problems((asked.level,), PROMPTS)]
                worked = max(len(engine.tokenizer.encode(text, add_special_tokens=False)) for text in solved)
                yield replace(of_level, worked=worked + 1)
        else:
            yield best
    engine.close()


@dataclass(frozen=True, slots=True)
class _Asked:
    """drawn: of each question, its answers so far."""

    level: str
    style: Style
    questions: Sequence[Prompt]
    drawn: list[list[Sample]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.drawn.extend([] for _ in self.questions)


@dataclass(frozen=True, slots=True)
class _Trial:
    engine: EmbeddedEngine
    judge: Verifier
    task: Task
    limit: int

    def ask(self, every: Sequence[_Asked], answers: int) -> None:
        """So many more answers to each question, all sampled together, which takes less time."""
        from harness.session.single.calibrate import sample_answers

        texts = [Prompt(p.id, self.task.render(p, a.style), p.gold) for a in every for p in a.questions]
        asked_before = [row for asked in every for row in asked.drawn]
        stream = f"trial-{max(map(len, asked_before), default=0)}"
        more = sample_answers(self.engine, "trial", texts, answers, self.limit, stream)
        for row, drawn in zip(asked_before, more, strict=True):
            row += drawn

    def tried(self, asked: _Asked, told: bool = True) -> Tried:
        from harness.session.single.calibrate import measure_level

        ended = [[cut_at(sample, self.task.stop(asked.style)) for sample in row] for row in asked.drawn]
        standing, _ = measure_level(self.engine.name, asked.level, asked.questions, ended, self.judge)
        pairs = [pair for whole, cut in zip(asked.drawn, ended, strict=True) for pair in zip(whole, cut, strict=True)]
        sizes = [a.tokens.size * (len(b.text) + 1) / (len(a.text) + 1) for a, b in pairs if b.finished]
        needed = int(np.quantile(sizes, 0.95)) if 2 * len(sizes) >= len(pairs) else 0
        cut = float(np.mean([a is not b for a, b in pairs]))
        if told:
            share = f"{standing.pass1:.0%} of {len(pairs)} answers right"
            print(f"{self.engine.name}, {asked.level}, {asked.style}: {share}", file=sys.stderr)
        return Tried(self.engine.name, asked.level, asked.style, standing.pass1, cut, needed)


def settled(tried: Sequence[Tried], task: str | FileTask, limit: int) -> Findings:
    """Levels on which each model has LEAST to MOST of its answers right; else the nearest, with a supervised start for each
    model below."""
    levels = list(dict.fromkeys(trial.level for trial in tried))
    right = {level: [trial.right for trial in tried if trial.level == level] for level in levels}
    shares = {
        level: ", ".join(f"{t.policy} {t.right:.0%} right" for t in tried if t.level == level) for level in levels
    }
    why = [f"{level}: {words}" for level, words in shares.items()]
    fits = [level for level in levels if all(LEAST <= share <= MOST for share in right[level])]
    steps = [level for level in levels if level in ladder.LEVELS]
    if fits:
        chosen = fits
        why.append(f"Trained on {joined(chosen)}: each model has {LEAST:.0%} to {MOST:.0%} of its answers right there.")
    else:
        possible = [level for level in steps or levels if max(right[level]) <= MOST] or steps or levels
        nearest = max(min(right[level]) for level in possible)
        chosen = [level for level in possible if min(right[level]) == nearest][:3]
        why.append(f"No level has {LEAST:.0%} to {MOST:.0%} of both models' answers right. Nearest: {joined(chosen)}.")
        never = [p for p in dict.fromkeys(t.policy for t in tried) if not any(t.right for t in tried if t.policy == p)]
        if never:
            why.append(f"{joined(never)}: no answer right on any level.")
    here = [trial for trial in tried if trial.level in chosen]
    low = tuple(dict.fromkeys(f.policy for f in here if f.right < LEAST))
    name = f"{ladder.NAME}.{'+'.join(chosen)}" if chosen[0] in ladder.LEVELS else None
    warm = low if has_examples(name or str(task)) and not fits else ()
    if warm:
        why.append(f"{joined(warm)}: {WARM_WHY}")
    elif low:
        why.append(
            f"{joined(low)}: too few right answers to learn from, and the task has no worked examples to start with. Take a larger "
            f"model, easier questions, or --task {ladder.NAME}."
        )
    if not low and not fits:
        why.append("More than that are right: little is left to learn. Take a harder task: --task gsm8k or math.")
    longest = [trial.worked if warm else trial.tokens for trial in here]
    tokens = min(limit, 8 * -(-int(1.25 * max(longest)) // 8)) if all(longest) else 0
    if tokens:
        which = "the worked solutions" if warm else "95 % of the finished answers"
        why.append(f"max_new_tokens {tokens}: {which} take at most {max(longest)} tokens; a quarter is spare.")
    ends = "example" if any(trial.cut > 0.1 for trial in here) else "eos"
    if ends == "example":
        why.append("answer_ends: example, because answers went on with a question of their own.")
    styles = {trial.policy: trial.style for trial in here if trial.policy not in warm}
    if styles:
        why.append(
            f"style: {', '.join(f'{policy} {style}' for policy, style in styles.items())} had most right answers."
        )
    return Findings(name, styles, warm, ends, tokens, why=tuple(why))


def with_starts_tried(findings: Findings, suite: Suite, source: str) -> Findings:
    """Whether the supervised starts that are proposed succeed; a run finds them in the cache. One that fails is left out, and
    the reason says so."""
    if not findings.warm:
        return findings
    with TemporaryDirectory() as results:
        prepared = prepare_suite(suite, source, Path(results))
    failed: dict[str, str] = {}
    for policy in prepared.every[0].group.policies:
        if policy.name not in findings.warm:
            continue
        print(f"{policy.name}: trying its supervised start", file=sys.stderr)
        try:
            with every_core():
                base_folder(policy, prepared.suite.seeds[0], options=prepared.suite.engine_options)
        except CellError as error:
            failed[policy.name] = " ".join(str(error).split())
    why = [
        f"{name} cannot learn this here: its supervised start was tried and failed ({problem}). Without right answers RL teaches "
        "nothing; take a larger model or easier questions (--task ladder.add1)."
        for name, problem in failed.items()
    ]
    works = [name for name in findings.warm if name not in failed]
    if works:
        why.insert(0, f"The supervised start of {joined(works)} was tried: it works, and a run goes on from it.")
    before = findings.why if not failed else [line for line in findings.why if not line.endswith(WARM_WHY)]
    return replace(findings, warm=tuple(works), why=(*before, *why))


def paced(suite: Suite, source: str) -> float:
    """Seconds of a first step of the suite's baseline here, without sharing, over the plan's."""
    from harness.engines.embedded.engine import EmbeddedEngine

    with TemporaryDirectory() as results:
        prepared = prepare_suite(suite, source, Path(results))
    cell = prepared.every[0]
    ask, training = demand_of(cell, prepared.resolved), cell.training
    taken = planned = 0.0
    for policy, own in zip(cell.group.policies, ask.policies, strict=True):
        raw = base_folder(policy.model_copy(update={"stage0": None}), 0)  # a supervised start takes minutes
        options: dict[str, Any] = {name: suite.engine_options.get(name) for name in ("dtype", "lora")}
        engine = EmbeddedEngine(policy.name, raw, chat=policy.chat, **options)
        clock = time.perf_counter if engine.gpus else time.process_time
        for count in (1, TIMED):  # the first one allocates
            prompts = as_asked(training_prompts(cell, 1), training.task, policy)[:count]
            seeds = np.stack([derive_many(training.rollouts, "pace", p.id) for p in prompts])
            began = clock()
            drawn = engine.sample(prompts, seeds, Sampling(max_new_tokens=training.max_new_tokens))
            answers = [
                TermAnswer(p.id, s.tokens, (-1.0) ** index, s.logprobs)
                for p, row in zip(prompts, drawn, strict=True)
                for index, s in enumerate(row)
            ]
            term = Term("own", "own", Objective(), tuple(answers))
            engine.update(prompts, [term], Optimisation(learning_rate=0.0, max_tokens=training.max_new_tokens))
            seconds = clock() - began
        taken += seconds
        engine.close()
        mean = float(np.mean([a.tokens.size for a in answers])) / training.max_new_tokens
        work = replace(ask.workload, steps=1, prompts=len(prompts), trained=1.0, again=0.0, mean=mean)
        kind = next((n.gpu_kind for n in inventory.local().nodes if n.gpus), CORE)
        spent = embedded.phases(CellDemand((own,), work), device(kind))
        planned += spent.generate + spent.train
    return taken / planned


def fitted(findings: Findings, suite_of: Callable[[Findings], Suite], source: str, minutes: float) -> Findings:
    """The first of EXTENTS whose fewest steps take at most `minutes` by the plan, and the most steps that do, within STEPS."""

    def predicted(changed: Findings) -> float:
        with TemporaryDirectory() as results:
            plan = plan_for(prepare_suite(suite_of(changed), source, Path(results)), None)
        if not plan.feasible:
            raise HarnessError(first_of(plan.shortfall or "it does not fit"))
        return findings.pace * plan.predicted.wall_seconds / 60

    fewest, most = STEPS
    for regimes, seeds, divided in EXTENTS:
        findings = replace(findings, regimes=regimes, seeds=seeds, divided=divided, steps=fewest)
        if predicted(findings) <= minutes:
            break
    steps = range(fewest, most + 1)
    fits = bisect_right(steps, minutes, key=lambda n: predicted(replace(findings, steps=n)))
    findings = replace(findings, steps=steps[max(0, fits - 1)])
    takes, every = predicted(findings), EXTENTS[0]
    told = [f"steps {findings.steps}: the suite takes {takes:.0f} minutes on this machine, and {minutes:g} were given."]
    if findings.pace != 1.0:
        told.append("That is by a step that was measured here; `harness plan` knows no such measurement.")
    if takes > minutes:
        told.append(f"Fewer than {fewest} steps show nothing. Give more time: --minutes {takes + 1:.0f}.")
    if (findings.regimes, findings.seeds, findings.divided) != every:
        fewer = ", half the questions a step" if findings.divided > 1 else ""
        told.append(
            f"{joined(findings.regimes)} on {len(findings.seeds)} seeds{fewer}: with {joined(every[0])} on {len(every[1])} seeds "
            f"{fewest} steps would take longer than that. --minutes N gives more time."
        )
    return replace(findings, why=(*findings.why, *told))
