"""A suite, as written in YAML and validated strictly. Imports in milliseconds, without torch.

Regimes' own options are validated by the regimes (`harness.learning.registry`), everything else here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    field_validator,
    model_serializer,
    model_validator,
)

from harness.suite.edges import Edge, Strengths, edges_of
from harness.suite.space import Choice, Range

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.+-]*"
"""What names are made of, so that they can be parts of paths. The lengths of those in a suite stand beside it."""
LONGEST_NAME, LONGEST_TASK = 64, 128
TASK_PATTERN = rf"(lm_eval:)?{NAME_PATTERN}"
Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, pattern=f"^{NAME_PATTERN}$")]
Positive = Annotated[int, Field(ge=1, le=1_000_000)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Style = Literal["raw", "zero-shot", "few-shot"]
Keep = Literal["last", "best", "none"]
CURVE_PROMPTS = 120
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Stage0(_Model):
    """Supervised stage 0: which habits a policy's base checkpoint has (`harness.engines.embedded.warmup`; the last four are
    pretrained models' own)."""

    preset: Name = "trap"
    """The mixture of what it is taught; docs/micro.md describes each."""
    strong: Literal["add", "mul"] = "add"
    """The half of the task in which it reasons by itself."""
    seed: Seed = 0
    """Of its first weights and its lessons."""
    per_seed: bool = False
    """Train another base checkpoint for each seed of the suite, so that intervals include the base's own variance."""
    task: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """What the examples are of: `micro`, or levels of the ladder; by default as `training.task`."""
    steps: Positive | None = None
    """Optimiser steps of 16 examples."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    """Of AdamW in the supervised start."""
    gate: Fraction | None = None
    """Least accuracy given chain of thought, in every skill group."""

    @model_serializer(mode="wrap")
    def _without_none(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What is not said stands in no key: those of micro suites are older than these settings."""
        return {name: value for name, value in dump(self).items() if value is not None}


class Policy(_Model):
    """A model with its tokenizer: `micro/<family>`, a local folder or a hub name with its revision."""

    name: Name
    """In tables and messages; unique within its group."""
    model: Annotated[str, Field(min_length=1, max_length=256)]
    """`micro/<family>`, a local Hugging Face folder, or a hub name."""
    revision: Annotated[str, Field(max_length=64)] | None = None
    """Commit of a hub model; by default the newest, noted in the manifest."""
    stage0: Stage0 | None = None
    """Habits of a micro base checkpoint; by default those of preset `trap`."""
    chat: bool = False
    """Prompts go through the tokenizer's chat template."""
    style: Style | None = None
    """How it is asked, in training and evaluation: `raw` the question alone, `zero-shot` with what is wanted, `few-shot` after
    worked examples; by default as the task does (micro: `raw`, all others: `zero-shot`)."""
    rollouts: Positive | None = None
    """Answers per prompt, where this policy differs from the suite's `training.rollouts`."""
    condition: dict[str, Any] | None = None
    """Makes this policy a bad peer: {kind: noisy|lying|stale|silent|spamming, ...}; its own learning is untouched."""

    @model_validator(mode="after")
    def _micro(self) -> Policy:
        if self.model.startswith("micro/"):
            if self.revision is not None:
                raise ValueError("a micro model has no revision")
            own = (
                name
                for name in ("task", "steps", "learning_rate", "gate")
                if getattr(self.stage0, name, None) is not None
            )
            if (name := next(own, None)) is not None:
                raise ValueError(f"stage0.{name} is for pretrained models; a micro model's is its family's own")
        return self


class ModelGroup(_Model):
    """Policies that are trained side by side."""

    name: Name
    """In labels and tables: a cell is group/regime/seed."""
    policies: Annotated[list[Policy], Field(min_length=1, max_length=64)]
    """Trained side by side; what they share is the regime's."""

    @field_validator("policies")
    @classmethod
    def _distinct(cls, policies: list[Policy]) -> list[Policy]:
        return _distinct(policies)


class Defences(_Model):
    """The receiver's defences; switch one off to measure its worth. Decoding checks, unknown authors and prompts, and the bounds of
    what arrives have no switch: without them a receiver fails."""

    reverify: bool = True
    """Peers' answers are verified again; off: their word is taken."""
    quotas: bool = True
    """Records of an author beyond what a step allows are refused."""
    staleness: bool = True
    """Records older than `max_staleness` are refused."""
    header_checks: bool = True
    """Records with impossible headers are refused."""
    residual_budget: bool = True
    """Answers that lose more than the residual limits in retokenising are refused."""
    deadline: bool = True
    """Nobody waits for a peer beyond `deadline_seconds`."""


class Sharing(_Model):
    """Who sends to whom, how old it may be, and what is refused."""

    direction: Literal["all", "none", "strong_to_weak", "weak_to_strong", "edges"] = "all"
    """Who sends to whom; strong and weak by held-out accuracy of the bases."""
    edges: Annotated[list[Annotated[list[Name], Field(min_length=2, max_length=2)]], Field(max_length=4096)] | None = (
        None
    )
    """[author, receiver] pairs, for `direction: edges`."""
    max_staleness: Annotated[int, Field(ge=0, le=64)] = 0
    """Steps that a record may be old; 0 is lockstep."""
    record: bool = False
    """Keep the accepted messages, for a `replay` of the cell's peers."""
    deadline_seconds: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """How long a policy waits for its peers, where policies do not move in lockstep."""
    max_text_residual: Fraction = 0.05
    """Largest share of an answer's bytes by which its receiver's tokens may differ from its text."""
    max_boundary_residual: Fraction = 1.0
    """Largest share of its receiver's tokens over which log-probabilities are spread by a guess; 1 is no limit."""
    spread: Literal["bytes", "receiver"] = "bytes"
    """How a source token's log-probability spreads over the receiver's tokens: by bytes, or by the receiver's own."""
    defences: Defences = Defences()
    """What protects the receiver."""

    @model_validator(mode="after")
    def _edges(self) -> Sharing:
        if (self.direction == "edges") != (self.edges is not None):
            raise ValueError("`edges` and `direction: edges` go together")
        for i, edge in enumerate(self.edges or ()):
            if edge in (self.edges or ())[:i]:
                raise ValueError(f"edges: {edge[0]} -> {edge[1]} stands twice")
        return self

    def among(self, policies: Sequence[str], strengths: Strengths | None = None) -> tuple[Edge, ...]:
        """Who sends to whom of these policies, as `edges_of`. Raises ValueError."""
        if self.direction == "edges":
            return edges_of(policies, [(author, receiver) for author, receiver in self.edges or ()])
        return edges_of(policies, self.direction, strengths)


class Replay(_Model):
    """The finished cells whose recordings are served: those of this suite and variant, same group name and seed."""

    suite: Name
    """Whose results are replayed."""
    regime: Name
    """The variant that was recorded."""


class Settings(_Model):
    """What one variant's training differs in from the suite's."""

    learning_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    """Of AdamW."""
    kl: Annotated[float, Field(ge=0, le=10)] | None = None
    """Weight of the penalty to the base policy."""
    rollouts: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Answers per question and policy."""
    prompts: Positive | None = None
    """Questions a step."""
    steps: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Training steps."""
    updates: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Optimiser updates a step."""


class Variant(_Model):
    """One regime with its options, under a name of its own. Keys that are not listed here are the regime's options."""

    regime: Name
    """An installed regime (`harness regimes`)."""
    name: Name
    """In tables; by default the regime's name."""
    budget: Literal["1x", "2x", "4x"] = "1x"
    """Rollouts as a multiple of `training.rollouts`; compared at equal budget."""
    sampling_stream: Seed = 0
    """Another stream draws other samples from the same seed: the A/A control."""
    old_logprobs: Literal["sampler", "trainer"] | None = None
    """Whose log-probabilities own answers' ratios are taken to; by default as the regime declares."""
    sampler_correction: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """C of the truncated importance correction of the sampler's drift, at least 1; 0 is none."""
    sharing: Sharing | None = None
    """Instead of the suite's `sharing`, as a whole."""
    replay: Replay | None = None
    """Peers that are not in the group speak from a recording."""
    training: Settings | None = None
    """Settings of this variant alone; its cells' keys hold them where they hold the suite's `training`."""
    options: dict[str, Any] = {}
    """The regime's own options; they may also stand beside these keys."""

    @model_serializer(mode="wrap")
    def _present(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without(plain(self), training=None)

    @field_validator("sampler_correction")
    @classmethod
    def _truncation(cls, value: float) -> float:
        if 0 < value < 1:
            raise ValueError("must be 0 (none) or at least 1")
        return value

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, raw: Any) -> Any:
        if isinstance(raw, str):
            raw = {"regime": raw}
        if not isinstance(raw, dict) or not isinstance(raw.get("options", {}), dict):
            return raw
        known = {k: v for k, v in raw.items() if k in cls.model_fields}
        extra = {k: v for k, v in raw.items() if k not in cls.model_fields}
        return {"name": raw.get("regime"), **known, "options": {**raw.get("options", {}), **extra}}

    @property
    def factor(self) -> int:
        """Rollout budget as a multiple of the suite's."""
        return int(self.budget[:-1])


class FileTask(_Model):
    """A task that is a JSONL file: {file: my.jsonl, scorer: exact} (docs/tasks.md)."""

    file: Annotated[str, Field(min_length=1, max_length=4096)]
    """A question and its answer a line; a relative path starts at the suite's folder."""
    scorer: Name = "math"
    """Who decides whether an answer is right (`harness tasks --scorers`)."""
    name: Name = ""
    """In tables; by default the file's name."""
    held_out: Annotated[float, Field(ge=0, le=0.9)] = 0.0
    """Share of the questions without a `split` that is for evaluation; with 0 they serve wherever the file is named."""
    instruction: Annotated[str, Field(max_length=4000)] | None = None
    """What follows a question, where a policy is asked `zero-shot`; by default as the scorer needs it."""
    max_new_tokens: Positive = 2048
    """Tokens of the longest answer in evaluation, where `evaluation.max_new_tokens` says nothing."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """Of the file: another content is refused. By default noted when the suite is read, and part of each cell's key."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and isinstance(raw.get("file"), str) and not raw.get("name"):
            stem = re.sub(r"[^A-Za-z0-9_.+-]+", "-", PurePath(raw["file"]).stem).strip("-.+_")[:LONGEST_NAME]
            return {**raw, "name": stem or "file"}
        return raw

    def __str__(self) -> str:
        return self.name


def _form(raw: Any) -> str:
    return _FILE if isinstance(raw, dict | FileTask) else _NAME


TASK_FORMS = _NAME, _FILE = "<name>", "<file>"
"""What pydantic has among the keys of a fault's place, and is none."""
_Task = Annotated[str, Field(min_length=1, max_length=LONGEST_TASK, pattern=f"^{TASK_PATTERN}$")]
TaskName = Annotated[Annotated[_Task, Tag(_NAME)] | Annotated[FileTask, Tag(_FILE)], Discriminator(_form)]
"""A task: its name, or a file."""


class Training(_Model):
    """One cell's RL run. The micro defaults are measured (docs/micro.md)."""

    task: TaskName = "micro"
    """The training pool: `micro`, `gsm8k`, `math` (`harness tasks`), or a JSONL file (docs/tasks.md)."""
    min_level: Annotated[int, Field(ge=1, le=5)] | None = None
    """MATH problems below this level are left out."""
    steps: Annotated[int, Field(ge=0, le=1_000_000)] = 45
    """Training steps: sample, verify, share, learn."""
    prompts: Positive = 16
    """Questions a step, the same for every policy and regime of a seed."""
    rollouts: Annotated[int, Field(ge=1, le=4096), Choice(0.5, 1, 2, relative=True)] = 8
    """Answers per question and policy."""
    updates: Annotated[int, Field(ge=1, le=1024)] = 1
    """Optimiser updates (mini-batches) a step; own answers come before peers' where a regime orders them."""
    learning_rate: Annotated[float, Field(gt=0, le=1), Range(0.2, 5.0, "log", "normal", relative=True)] = 1e-4
    """Of AdamW, constant. 1e-4 fits micro models, 1e-6 to 1e-5 pretrained ones."""
    betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)] = [0.9, 0.99]
    """Of AdamW."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Of AdamW."""
    clip_norm: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Largest norm of an update's gradient; longer ones are scaled down to it."""
    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    """Of sampling in training, and of all log-probabilities there."""
    max_new_tokens: Annotated[int, Field(ge=1, le=131072)] = 44
    """Tokens of the longest answer in training; one that is cut off counts as wrong."""
    answer_ends: Literal["eos", "example"] = "eos"
    """What ends an answer: `eos` its EOS alone; `example` also the beginning of the next worked example, as in evaluation, for
    base models that are asked `few-shot` (docs/pretrained.md)."""
    kl: Annotated[float, Field(ge=0, le=10), Choice(0.0, 1e-3, 1e-2)] = 0.0
    """Weight of a k3 penalty to the base policy on own answers."""
    checkpoint_every: Positive = 10
    """Steps between checkpoints, from which a cut-off run goes on."""
    measure_every: Annotated[int, Field(ge=0, le=1_000_000)] = 5
    """Every so many steps own and peer gradients and the KL to the base are measured; 0 is never."""
    max_invalid: Fraction = 0.02
    """A cell fails when a larger share of its verdicts is invalid."""
    part: Literal["all", "tuning", "final"] = "all"
    """Which of the task's prompts: `tuning` and `final` have none in common (docs/tuning.md)."""

    @model_serializer(mode="wrap")
    def _present(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without(plain(self), part="all", answer_ends="eos")


class Evaluation(_Model):
    """What is measured on a cell's checkpoints, through lm-eval."""

    tasks: Annotated[list[TaskName], Field(min_length=1, max_length=64)] = ["micro"]
    """Held-out tasks (`harness tasks`) or JSONL files; the first one gives the learning curve."""
    greedy: bool = True
    """Measure the greedy answer."""
    k: Annotated[int, Field(ge=0, le=1024)] | None = 4
    """Samples per question at temperature 1 for avg@k; 0 leaves it out, null takes each task's own (32 for AIME)."""
    limit: Positive | None = None
    """Questions of each task, evenly over its skills, levels and subjects, the same in every cell and lab; null for all."""
    max_new_tokens: Positive | None = None
    """Tokens of the longest answer in evaluation; null takes each task's own (micro 44, gsm8k 1,024, math500 3,072)."""
    curve_every: Annotated[int, Field(ge=0, le=1_000_000)] = 15
    """Held-out accuracy every so many steps, for learning curves; 0 is never."""
    curve_prompts: Positive = CURVE_PROMPTS
    """Questions of the first task for one point of the curve; never more than `limit`."""

    @field_validator("tasks")
    @classmethod
    def _once(cls, tasks: list[str | FileTask]) -> list[str | FileTask]:
        named = [task for task in tasks if isinstance(task, str)]
        for i, name in enumerate(named):
            if name in named[:i]:
                raise ValueError(f"the task {name!r} stands twice")
        return tasks

    @model_validator(mode="before")
    @classmethod
    def _curve_within_limit(cls, raw: Any) -> Any:
        if not isinstance(raw, dict) or not isinstance(limit := raw.get("limit"), int):
            return raw
        asked = raw.get("curve_prompts", CURVE_PROMPTS)
        return {**raw, "curve_prompts": min(asked, limit)} if isinstance(asked, int) and limit >= 1 else raw

    @model_validator(mode="after")
    def _something(self) -> Evaluation:
        if not self.greedy and not self.k and self.k is not None:
            raise ValueError("with `greedy: false` and `k: 0` nothing would be measured")
        return self


class Tune(_Model):
    """Tuning under an equal budget, before the table: the same number of trials, rollouts and seeds for every regime."""

    trials: Annotated[int, Field(ge=2, le=1000)] = 8
    """Settings tried per regime. The first is the regime as the suite has it."""
    groups: Annotated[list[ModelGroup], Field(min_length=1, max_length=64)]
    """Groups whose base checkpoints the table never sees."""
    seeds: Annotated[list[Seed], Field(min_length=1, max_length=100)]
    """Every trial is run on each; the table's seeds are others."""
    check: Annotated[list[Seed], Field(max_length=100)] = []
    """Other seeds on which the chosen setting is tried again: how much of its lead was luck."""
    evaluation: Evaluation
    """Of trials: tasks that the table does not ask."""
    sampler: Literal["tpe", "random"] = "tpe"
    """How settings are proposed: from the results so far, or at random."""
    batch: Annotated[int, Field(ge=2, le=1000)] = 4
    """Trials proposed at once. The first batch is random; each later one knows the results of those before it."""
    rungs: Annotated[list[Positive], Field(max_length=10)] = []
    """Steps of shorter runs, ascending: of a batch only the best go on to the next rung, and to `training.steps`."""
    keep: Annotated[int, Field(ge=2, le=100)] = 2
    """One in so many goes on from a rung."""
    training: list[Literal["learning_rate", "rollouts", "kl"]] = ["learning_rate", "rollouts", "kl"]
    """Settings of training that are searched for every regime, the baseline included."""
    seed: Seed = 0
    """Of the proposals."""
    transfer: bool = False
    """Each of the groups chooses for itself instead of all together, and the table has every choice on all its groups: settings
    tuned on one pair, used on another."""

    @field_validator("groups")
    @classmethod
    def _distinct(cls, groups: list[ModelGroup]) -> list[ModelGroup]:
        return _distinct(groups)

    @model_serializer(mode="wrap")
    def _present(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without(plain(self), transfer=False)


class Suite(_Model):
    """The whole file."""

    name: Name
    """Of its results folder; by default the file's name."""
    title: Annotated[str, Field(max_length=300)] = ""
    """For headings."""
    engine: Name = "embedded"
    """`embedded` (one process) or `openrlhf` (Ray; docs/openrlhf.md)."""
    engine_options: dict[str, Any] = {}
    """Settings of the engine, below."""
    baseline: Name = "independent"
    """The variant to which gains are differences."""
    groups: Annotated[list[ModelGroup], Field(min_length=1, max_length=256)]
    """Groups of policies."""
    regimes: Annotated[list[Variant], Field(min_length=1, max_length=256)]
    """Variants: a regime's name, or a mapping with options."""
    seeds: Annotated[list[Seed], Field(min_length=1, max_length=1000)]
    """Every regime is trained once for each; intervals are over them."""
    keep: Keep = "last"
    """Weights of a finished cell: of the last step, of the best point of each policy's learning curve, or none. What is evaluated
    is always the last step; results do not depend on it."""
    training: Training = Training()
    """One cell's run."""
    evaluation: Evaluation = Evaluation()
    """What is measured."""
    sharing: Sharing = Sharing()
    """For all variants without their own."""
    tune: Tune | None = None
    """Settings are searched first, under the same budget for every regime and the baseline (docs/tuning.md)."""

    @model_validator(mode="before")
    @classmethod
    def _apart(cls, raw: Any) -> Any:
        """With `tune` the table is trained on the prompts that tuning leaves alone."""
        if isinstance(raw, dict) and raw.get("tune") is not None and isinstance(raw.get("training", {}), dict):
            return {**raw, "training": {"part": "final", **raw.get("training", {})}}
        return raw

    @model_serializer(mode="wrap")
    def _present(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without(plain(self), tune=None)

    @field_validator("groups", "regimes")
    @classmethod
    def _distinct(cls, items: list[Any]) -> list[Any]:
        return _distinct(items)

    @field_validator("seeds")
    @classmethod
    def _seeds(cls, seeds: list[int]) -> list[int]:
        for i, seed in enumerate(seeds):
            if seed in seeds[:i]:
                raise ValueError(f"the seed {seed} stands twice")
        return seeds

    @model_validator(mode="after")
    def _consistent(self) -> Suite:
        names = [v.name for v in self.regimes]
        if self.baseline not in names:
            raise ValueError(f"baseline: {self.baseline!r} is not among the suite's regimes ({', '.join(names)})")
        if self.keep == "best" and not self.evaluation.curve_every:
            raise ValueError("keep: `best` needs a learning curve (evaluation.curve_every)")
        if self.tune is not None:
            self._never_meets(self.tune)
        return self

    def _never_meets(self, tune: Tune) -> None:
        """Nothing that is tuned on may stand in the table. Raises ValueError."""

        def refuse(shared: Iterable[Any], place: str, what: str) -> None:
            if shared := sorted(map(str, shared)):
                raise ValueError(f"tune.{place}: {what} {shared[0]} is in the table too; tuning must not see it")

        refuse({g.name for g in tune.groups} & {g.name for g in self.groups}, "groups", "the group")
        refuse({*tune.seeds, *tune.check} & {*self.seeds}, "seeds", "the seed")
        refuse({*tune.evaluation.tasks} & {*self.evaluation.tasks}, "evaluation.tasks", "the task")
        seeds = [*tune.seeds, *tune.check]
        refuse(starts(tune.groups, seeds) & starts(self.groups, self.seeds), "groups", "the base checkpoint")
        if len({*seeds}) < len(seeds):
            raise ValueError("tune.check: other seeds than tune.seeds, each once")
        if self.training.part != "final":
            raise ValueError("training.part: with `tune` the table is trained on the part `final`")
        if sorted({*tune.rungs}) != tune.rungs or (tune.rungs and tune.rungs[-1] >= self.training.steps):
            raise ValueError("tune.rungs: ascending numbers of steps, all below training.steps")
        if tune.transfer and len(tune.groups) < 2:
            raise ValueError("tune.transfer: from one pair to another takes two groups or more")

    def training_of(self, variant: Variant) -> Training:
        """The variant's training: the suite's, and what the variant has of its own."""
        own = variant.training.model_dump(exclude_none=True) if variant.training else {}
        return self.training.model_copy(update=own)

    def sharing_of(self, variant: Variant) -> Sharing:
        """The variant's sharing settings, the suite's where it has none."""
        return variant.sharing or self.sharing


def starts(groups: Iterable[ModelGroup], seeds: Iterable[int]) -> set[str]:
    """The base checkpoints that these groups start from, in words."""
    found = set()
    for policy in (p for group in groups for p in group.policies):
        stage0 = policy.stage0 or Stage0()
        if not policy.model.startswith("micro/"):
            found.add(policy.model + (f" at {policy.revision}" if policy.revision else ""))
            continue
        numbers = {stage0.seed + 1000 * (seed + 1) for seed in seeds} if stage0.per_seed else {stage0.seed}
        found |= {f"{policy.model} ({stage0.preset}, {stage0.strong}, seed {number})" for number in numbers}
    return found


def _without(plain: dict[str, Any], **absent: Any) -> dict[str, Any]:
    """Plain data as it was before these keys existed: where they say nothing they are left out, and keys of cells stay."""
    return {key: value for key, value in plain.items() if key not in absent or value != absent[key]}


def _distinct(items: list[Any]) -> list[Any]:
    seen: set[str] = set()
    for item in items:
        if item.name in seen:
            raise ValueError(f"the name {item.name!r} stands twice")
        seen.add(item.name)
    return items
