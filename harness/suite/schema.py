"""A suite, as written in YAML and validated strictly; regimes' options by `harness.learning.registry`. Imports without torch.

A suite has `groups` (`harness.suite.groups`), `sharing` (`harness.suite.sharing`) and `claims` (`harness.suite.claims`); the
rest of it stands here, and every name of a suite can be imported from here."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_serializer,
    model_validator,
)

from harness.suite.claims import Claim, Counterpart, check_claims
from harness.suite.fields import (
    LONGEST_NAME,
    LONGEST_TASK,
    NAME_PATTERN,
    TASK_PATTERN,
    Fraction,
    Keep,
    Name,
    Positive,
    Samples,
    Seed,
    Style,
    SuiteModel,
    all_distinct,
    not_of_a_file,
)
from harness.suite.groups import ModelGroup, Policy, Stage0, base_checkpoints
from harness.suite.sharing import Defences, Edge, Replay, Sharing, edges_of
from harness.suite.space import Choice, Range

__all__ = [
    "FORMS",
    "LONGEST_NAME",
    "LONGEST_TASK",
    "NAME_PATTERN",
    "TASK_PATTERN",
    "AnyTask",
    "Claim",
    "Counterpart",
    "Defences",
    "DynamicSampling",
    "Edge",
    "Evaluation",
    "FileTask",
    "Keep",
    "Mixture",
    "ModelGroup",
    "Name",
    "Policy",
    "Replay",
    "Settings",
    "Sharing",
    "Stage0",
    "Style",
    "Suite",
    "TaskName",
    "TaskShare",
    "Training",
    "Tune",
    "Variant",
    "edges_of",
]
CURVE_PROMPTS = 120

# What `training` says of a cell's run and a variant may say otherwise
LearningRate = Annotated[float, Field(gt=0, le=1)]
PenaltyWeight = Annotated[float, Field(ge=0, le=10)]
Rollouts = Annotated[int, Field(ge=1, le=4096)]
Steps = Annotated[int, Field(ge=0, le=1_000_000)]
Updates = Annotated[int, Field(ge=1, le=1024)]

_Beta = Annotated[float, Field(ge=0, lt=1)]
_Betas = Annotated[list[_Beta], Field(min_length=2, max_length=2)]
_GroupNames = Annotated[list[Name], Field(min_length=1, max_length=256), all_distinct("group")]


class DynamicSampling(SuiteModel):
    """The replacement of prompts whose groups have equal rewards by new ones (arXiv 2503.14476). All rollouts count."""

    decided_by: Literal["all", "own"] = Field(
        default="all",
        description="Replaced where every policy's group has equal rewards; `own`: by each policy's own, for `independent`.",
    )
    rounds: Annotated[int, Field(ge=1, le=16)] = Field(default=3, description="New draws in a step, at most.")


class Settings(SuiteModel):
    """Settings of one variant in place of those in the suite's `training`; None leaves the suite's."""

    learning_rate: LearningRate | None = Field(default=None, description="As in `training`.")
    kl: PenaltyWeight | None = Field(default=None, description="As in `training`.")
    rollouts: Rollouts | None = Field(default=None, description="As in `training`.")
    prompts: Positive | None = Field(default=None, description="As in `training`.")
    steps: Steps | None = Field(default=None, description="As in `training`.")
    updates: Updates | None = Field(default=None, description="As in `training`.")


class Variant(SuiteModel):
    """A regime under a name of its own. Keys that are not listed here are its options."""

    younger: ClassVar[dict[str, Any]] = {
        "training": None,
        "dynamic_sampling": None,
        "sampling": "all",
        "only_in": None,
    }

    regime: Name = Field(description="An installed regime (`harness regimes`).")
    name: Name = Field(description="By default the regime's.")
    budget: Literal["0.5x", "1x", "2x", "4x"] = Field(
        default="1x", description="Rollouts as a multiple of `training.rollouts`; compared at equal budget."
    )
    sampling: Literal["all", "split"] = Field(
        default="all",
        description="`all`: every policy answers every prompt; `split`: each answers 1/n of them, and all learn from all.",
    )
    sampling_stream: Seed = Field(
        default=0, description="Another number draws other prompts and samples from the same seed (A/A control)."
    )
    old_logprobs: Literal["sampler", "trainer"] | None = Field(
        default=None,
        description="Whose log-probabilities own ratios are taken to; null: the regime's choice.",
    )
    sampler_correction: Annotated[float, Field(ge=0, le=1000)] = Field(
        default=0.0,
        description="C of the truncated importance correction of sampler drift, at least 1; 0: none.",
    )
    sharing: Sharing | None = Field(default=None, description="Replaces the suite's `sharing` as a whole.")
    replay: Replay | None = Field(default=None, description="Peers from a recording.")
    dynamic_sampling: DynamicSampling | None = Field(
        default=None, description="Replace prompts whose groups have equal rewards; `true`: with its defaults."
    )
    training: Settings | None = Field(
        default=None,
        description="Settings of this variant alone.",
    )
    only_in: _GroupNames | None = Field(
        default=None, description="The groups in which this variant runs; null: all of the suite's."
    )
    options: dict[str, Any] = Field(default={}, description="The regime's options; may also stand beside these keys.")

    def runs_in(self, group: str) -> bool:
        """Whether the suite trains this variant in the group of that name."""
        return self.only_in is None or group in self.only_in

    @field_validator("sampler_correction")
    @classmethod
    def _check_correction(cls, value: float) -> float:
        """Refuse a bound below 1, which would take weight from tokens without drift. Raises ValueError."""
        if 0 < value < 1:
            raise ValueError("must be 0 (none) or at least 1")
        return value

    @field_validator("dynamic_sampling", mode="before")
    @classmethod
    def _read_switch(cls, value: Any) -> Any:
        """Take `true` for the settings' defaults, and `false` for none."""
        if isinstance(value, bool):
            return {} if value else None
        return value

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, raw: Any) -> Any:
        """Give a variant the form {regime, name, options, ...}: a word is a regime, and keys that are none of a variant's are the
        regime's options."""
        if isinstance(raw, str):
            raw = {"regime": raw}
        if not isinstance(raw, dict):
            return raw
        if not isinstance(raw.get("options", {}), dict):
            return {"name": raw.get("regime"), **raw}
        known = {}
        options = dict(raw.get("options", {}))
        for key, value in raw.items():
            if key in cls.model_fields:
                known[key] = value
            else:
                options[key] = value
        return {"name": raw.get("regime"), **known, "options": options}

    @property
    def factor(self) -> float:
        """The multiple of the suite's rollouts per prompt."""
        return float(self.budget[:-1])

    def spent(self, policies: int) -> str:
        """Return the budget of each of so many policies, as a multiple of the suite's rollouts: `split` shares the prompts
        out."""
        if self.sampling == "all":
            return self.budget
        return f"{self.factor / policies:.3g}x"


class FileTask(SuiteModel):
    """A task that is a JSONL file: {file: my.jsonl, scorer: exact} (docs/tasks.md)."""

    file: Annotated[str, Field(min_length=1, max_length=4096)] = Field(
        description="JSONL; a relative path starts at the suite's folder."
    )
    scorer: Name = Field(default="math", description="Which answers are right (`harness tasks --scorers`).")
    name: Name = Field(default="", description="By default the file's.")
    held_out: Annotated[float, Field(ge=0, le=0.9)] = Field(
        default=0.0,
        description="Share of questions without a `split` that only evaluation asks.",
    )
    instruction: Annotated[str, Field(max_length=4000)] | None = Field(
        default=None,
        description="Follows a `zero-shot` question; null: the scorer's.",
    )
    max_new_tokens: Positive = Field(
        default=2048,
        description="Longest answer in evaluation where `evaluation.max_new_tokens` is null.",
    )
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = Field(
        default=None,
        description="Another content is refused; null: noted when the suite is read.",
    )

    @model_validator(mode="before")
    @classmethod
    def _name_after_file(cls, raw: Any) -> Any:
        """Give a task without a name that of its file, without characters that a name cannot have."""
        if isinstance(raw, dict) and isinstance(raw.get("file"), str) and not raw.get("name"):
            stem = PurePath(raw["file"]).stem
            plain = re.sub(r"[^A-Za-z0-9_.+-]+", "-", stem).strip("-.+_")
            return {**raw, "name": plain[:LONGEST_NAME] or "file"}
        return raw

    def __str__(self) -> str:
        return self.name


def _with_settings(raw: Any) -> Any:
    """Turn a mapping that names a task, {name: gym.knights_knaves, n_people: 2..3}, into that task's name with its settings;
    leave all else as it is. Raises ValueError."""
    if not isinstance(raw, dict) or "file" in raw or not isinstance(raw.get("name"), str):
        return raw
    settings = []
    for key in sorted(raw.keys() - {"name"}):
        value = raw[key]
        if not isinstance(value, str | int | float):
            raise ValueError(f"{key}: a number, a word or a range such as 2..3")
        text = str(value).lower() if isinstance(value, bool) else value
        settings.append(f"{key}={text}")
    if settings:
        return f"{raw['name']}:{','.join(settings)}"
    return raw["name"]


# Tags by which pydantic tells the forms of a value apart. They stand in the places of its errors, but are no keys of a suite:
# messages leave them out.
_NAME = "<name>"
_FILE = "<file>"
_NUMBER = "<number>"
_BY_TASK = "<by task>"
_ONE = "<one>"
_MIXED = "<mixed>"
FORMS = (_NAME, _FILE, _NUMBER, _BY_TASK, _ONE, _MIXED)
_Task = Annotated[str, Field(min_length=1, max_length=LONGEST_TASK, pattern=f"^{TASK_PATTERN}$")]
TaskName = Annotated[
    Annotated[_Task, Tag(_NAME)] | Annotated[FileTask, Tag(_FILE)],
    Discriminator(lambda raw: _FILE if isinstance(raw, dict | FileTask) else _NAME),
    BeforeValidator(_with_settings),
]


class TaskShare(SuiteModel):
    """A part of mixed training: {name: countdown, share: 0.5}, with settings or a `file` as of a task alone."""

    task: TaskName = Field(description="In a list: a part's task, written as `name` with its settings, or as `file`.")
    share: Annotated[float, Field(gt=0, le=1_000)] = Field(
        default=1.0, description="In a list: the part's share of the questions, relative to the others'."
    )

    @model_validator(mode="before")
    @classmethod
    def _separate_share(cls, raw: Any) -> Any:
        """Separate the share of a mapping that names a task from the task's own keys."""
        if not isinstance(raw, dict):
            return {"task": raw}
        if "task" in raw:
            return raw
        task = {key: value for key, value in raw.items() if key != "share"}
        return {"task": task, "share": raw.get("share", 1.0)}

    @model_serializer(mode="plain")
    def _write_as_in_a_suite(self) -> dict[str, Any]:
        """Write the task's keys and the share side by side, as a suite does."""
        own = {"name": self.task} if isinstance(self.task, str) else self.task.model_dump(mode="json")
        return {**own, "share": self.share}

    def __str__(self) -> str:
        return str(self.task)


def _check_names(parts: list[TaskShare]) -> list[TaskShare]:
    """Check that no two parts have one name, by which results are told apart. Raises ValueError."""
    seen: set[str] = set()
    for part in parts:
        name = str(part)
        if name in seen:
            raise ValueError(f"the task {name!r} occurs twice")
        seen.add(name)
    return parts


Mixture = list[TaskShare]
AnyTask = str | FileTask | Mixture
"""What can be trained on."""
TrainedTask = Annotated[
    Annotated[TaskName, Tag(_ONE)]
    | Annotated[Mixture, Field(min_length=2, max_length=16), AfterValidator(_check_names), Tag(_MIXED)],
    Discriminator(lambda raw: _MIXED if isinstance(raw, list) else _ONE),
]


class Training(SuiteModel):
    """The RL run of one cell. The micro defaults are measured (docs/micro.md)."""

    younger: ClassVar[dict[str, Any]] = {"part": "all", "answer_ends": "eos"}

    task: TrainedTask = Field(
        default="micro",
        description="The training pool (`harness tasks`), a JSONL file, or a list of both with shares (docs/tasks.md).",
    )
    min_level: Annotated[int, Field(ge=1, le=5)] | None = Field(
        default=None, description="Least level of MATH problems."
    )
    steps: Steps = Field(default=45, description="Training steps.")
    prompts: Positive = Field(
        default=16,
        description="Questions per step, the same for every policy and regime of a seed and `sampling_stream`.",
    )
    rollouts: Annotated[Rollouts, Choice(0.5, 1, 2, relative=True)] = Field(
        default=8, description="Answers per question and policy."
    )
    updates: Updates = Field(
        default=1,
        description="Optimiser updates (mini-batches) per step.",
    )
    learning_rate: Annotated[LearningRate, Range(0.2, 5.0, "log", "normal", relative=True)] = Field(
        default=1e-4,
        description="AdamW's learning rate, constant. 1e-4 fits micro models, 1e-6 to 1e-5 pretrained ones.",
    )
    betas: _Betas = Field(default=[0.9, 0.99], description="AdamW's decay of its two moments.")
    weight_decay: Annotated[float, Field(ge=0, le=1)] = Field(default=0.0, description="AdamW's weight decay.")
    clip_norm: Annotated[float, Field(gt=0, le=1e6)] = Field(
        default=1.0, description="Largest norm of an update's gradient."
    )
    temperature: Annotated[float, Field(ge=0.01, le=10)] = Field(  # vLLM's lowest
        default=1.0, description="Temperature at which training samples, and of the log-probabilities it learns from."
    )
    max_new_tokens: Annotated[int, Field(ge=1, le=131072)] = Field(
        default=44, description="Longest answer in tokens; a longer one is cut off and wrong."
    )
    answer_ends: Literal["eos", "example"] = Field(
        default="eos",
        description="`eos`: its EOS; `example`: also the next worked example, for `few-shot` base models (docs/pretrained.md).",
    )
    kl: Annotated[PenaltyWeight, Choice(0.0, 1e-3, 1e-2)] = Field(
        default=0.0, description="Weight of a k3 penalty to the base policy on own answers."
    )
    checkpoint_every: Positive = Field(default=10, description="Steps between checkpoints.")
    measure_every: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=5,
        description="Steps between measurements of gradients and of the KL to the base; 0: never.",
    )
    max_invalid: Fraction = Field(
        default=0.02, description="Largest share of invalid verdicts; beyond it the cell fails."
    )
    part: Literal["all", "tuning", "final"] = Field(
        default="all",
        description="Part of the prompts; `tuning` and `final` are disjoint (docs/tuning.md).",
    )

    @property
    def tasks(self) -> list[str | FileTask]:
        """The task, or of a mixture the tasks in order."""
        return [part.task for part in self.task] if isinstance(self.task, list) else [self.task]


_SamplesOfTasks = Annotated[dict[str, Samples], Field(min_length=1, max_length=64)]
SamplesByTask = Annotated[
    Annotated[Samples, Tag(_NUMBER)] | Annotated[_SamplesOfTasks, Tag(_BY_TASK)],
    Discriminator(lambda raw: _BY_TASK if isinstance(raw, dict) else _NUMBER),
]
_HeldOutTasks = Annotated[list[TaskName], Field(min_length=1, max_length=64), all_distinct("task", exempt=FileTask)]


class Evaluation(SuiteModel):
    """What is measured of a policy: held-out tasks, how each is sampled, and learning curves."""

    younger: ClassVar[dict[str, Any]] = {"temperature": 1.0, "top_p": 1.0}

    tasks: _HeldOutTasks = Field(
        default=["micro"],
        description="Held-out tasks or JSONL files; the first gives the learning curve.",
    )
    greedy: bool = Field(default=True, description="Measure the greedy answer.")
    k: SamplesByTask | None = Field(
        default=4,
        description="Samples per question; 0: none, null: each task's own, and a greedy answer; {aime24: 30}: of these tasks, "
        "others as with null.",
    )
    temperature: Annotated[float, Field(gt=0, le=10)] = Field(
        default=1.0, description="Temperature of the samples; learning curves are sampled at 1."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0, description="Samples are among the likeliest tokens that together have this probability; 1: all."
    )
    limit: Positive | None = Field(
        default=None,
        description="Questions per task, evenly over skills, levels and subjects; null: all.",
    )
    max_new_tokens: Positive | None = Field(
        default=None,
        description="Longest answer in tokens; null: each task's own.",
    )
    curve_every: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=15, description="Steps between points of the learning curve; 0: none."
    )
    curve_prompts: Positive = Field(
        default=CURVE_PROMPTS,
        description="Questions per point; at most `limit`.",
    )

    @model_validator(mode="before")
    @classmethod
    def _limit_curve(cls, raw: Any) -> Any:
        """Let a point of the learning curve ask no more questions than the evaluation does."""
        if not isinstance(raw, dict):
            return raw
        limit = raw.get("limit")
        asked = raw.get("curve_prompts", CURVE_PROMPTS)
        if isinstance(limit, int) and limit >= 1 and isinstance(asked, int):
            return {**raw, "curve_prompts": min(asked, limit)}
        return raw

    @model_validator(mode="after")
    def _check_samples(self) -> Evaluation:
        """Check that `k` names tasks that are evaluated, and that each task is answered at all. Raises ValueError."""
        if isinstance(self.k, dict):
            named = {str(task) for task in self.tasks}
            unknown = sorted(self.k.keys() - named)
            if unknown:
                raise ValueError(f"k: {unknown[0]!r} is not among the suite's evaluation tasks")
        counts = self.k.values() if isinstance(self.k, dict) else [self.k]
        if not self.greedy and 0 in counts:
            raise ValueError("with `greedy: false` and `k: 0` nothing would be measured")
        return self

    def samples_of(self, task: str) -> int | None:
        """Return the samples per question of a task; None where it has its own number, and a greedy answer."""
        return self.k.get(task) if isinstance(self.k, dict) else self.k


_TuningGroups = Annotated[list[ModelGroup], Field(min_length=1, max_length=64), all_distinct("name")]


class Tune(SuiteModel):
    """A search for every regime's settings, with equal numbers of trials, before the table is trained (docs/tuning.md)."""

    younger: ClassVar[dict[str, Any]] = {"transfer": False}

    trials: Annotated[int, Field(ge=2, le=1000)] = Field(
        default=8, description="Settings per regime; the first is the suite's own."
    )
    groups: _TuningGroups = Field(description="Groups whose base checkpoints the table lacks.")
    seeds: Annotated[list[Seed], Field(min_length=1, max_length=100)] = Field(
        description="Seeds of every trial, none of the table's."
    )
    check: Annotated[list[Seed], Field(max_length=100)] = Field(
        default=[], description="Other seeds, on which the chosen setting runs again."
    )
    evaluation: Evaluation = Field(description="What trials are measured on: tasks that the table does not ask.")
    sampler: Literal["tpe", "random"] = Field(
        default="tpe", description="Proposals from the results so far, or at random."
    )
    batch: Annotated[int, Field(ge=2, le=1000)] = Field(
        default=4,
        description="Trials proposed at once; the first batch is random.",
    )
    rungs: Annotated[list[Positive], Field(max_length=10)] = Field(
        default=[],
        description="Steps of shorter runs, ascending; only the best of a batch continue.",
    )
    keep: Annotated[int, Field(ge=2, le=100)] = Field(default=2, description="One in so many continues.")
    training: list[Literal["learning_rate", "rollouts", "kl"]] = Field(
        default=["learning_rate", "rollouts", "kl"],
        description="Settings that are searched for every regime and the baseline.",
    )
    seed: Seed = Field(default=0, description="Seed of the settings that are proposed.")
    transfer: bool = Field(
        default=False,
        description="Each group chooses for itself; the table runs every choice on all its groups.",
    )


def _have_common_levels(one: str, other: str) -> bool:
    """Say whether two tasks ask of a same level, as `ladder` and `ladder.add1`, or `ladder.add1+add2` and `ladder.add2+sub2`."""
    family, _, levels = one.partition(".")
    other_family, _, other_levels = other.partition(".")
    if family != other_family:
        return False
    shared = set(levels.split("+")) & set(other_levels.split("+"))
    return not levels or not other_levels or bool(shared)


_Groups = Annotated[list[ModelGroup], Field(min_length=1, max_length=256), all_distinct("name")]
_Variants = Annotated[list[Variant], Field(min_length=1, max_length=256), all_distinct("name")]
_Seeds = Annotated[list[Seed], Field(min_length=1, max_length=1000), all_distinct("seed")]
_Claims = Annotated[list[Claim], Field(max_length=64), all_distinct("claim")]
_RetainedTasks = Annotated[list[Name], Field(max_length=63), all_distinct("task")]


class Suite(SuiteModel):
    """A suite file. Every variant is trained on every group with every seed, each time as one cell, unless it is limited to some
    groups."""

    younger: ClassVar[dict[str, Any]] = {"tune": None, "claims": [], "retention": []}

    name: Annotated[Name, not_of_a_file("evaluations", "harness.duckdb")] = Field(
        description="Name of the results folder; by default the file's."
    )
    title: Annotated[str, Field(max_length=300)] = Field(default="", description="Shown above tables and pages.")
    engine: Name = Field(
        default="embedded", description="`embedded` (one process) or `openrlhf` (Ray; docs/openrlhf.md)."
    )
    engine_options: dict[str, Any] = Field(default={}, description="See below.")
    baseline: Name = Field(default="independent", description="The variant that gains are over.")
    groups: _Groups = Field(description="Groups of policies.")
    regimes: _Variants = Field(description="Variants: a regime's name, or a mapping with options.")
    seeds: _Seeds = Field(description="Every regime is trained once for each.")
    keep: Keep = Field(
        default="last",
        description="Kept weights: last step, best point of the learning curve, or none; results are the last step's.",
    )
    training: Training = Field(default=Training(), description="One cell's run.")
    evaluation: Evaluation = Field(default=Evaluation(), description="What is measured.")
    sharing: Sharing = Field(default=Sharing(), description="What variants share that have no `sharing` of their own.")
    tune: Tune | None = Field(
        default=None,
        description="Search settings first, under an equal budget (docs/tuning.md).",
    )
    claims: _Claims = Field(
        default=[], description="What is expected before it runs; answered first, and corrected among themselves."
    )
    retention: _RetainedTasks = Field(
        default=[],
        description="Held-out tasks, among `evaluation.tasks`, that are not trained: what training leaves of them has a table "
        "of its own, and no verdict counts them.",
    )

    @model_validator(mode="before")
    @classmethod
    def _train_on_final_part(cls, raw: Any) -> Any:
        """Train the table of a suite with `tune` on the part `final` of the prompts, unless it names another: tuning has the
        rest."""
        if isinstance(raw, dict) and raw.get("tune") is not None and isinstance(raw.get("training", {}), dict):
            return {**raw, "training": {"part": "final", **raw.get("training", {})}}
        return raw

    @model_validator(mode="after")
    def _check_consistency(self) -> Suite:
        """Check what the parts of a suite say of each other. Raises ValueError for the first fault."""
        names = [v.name for v in self.regimes]
        if self.baseline not in names:
            raise ValueError(f"baseline: {self.baseline!r} is not among the suite's regimes ({', '.join(names)})")
        if self.keep == "best" and not self.evaluation.curve_every:
            raise ValueError("keep: `best` needs a learning curve (evaluation.curve_every)")
        if self.tune is not None:
            self._check_tuning(self.tune)
        self._check_limited_variants()
        groups = [group.name for group in self.groups]
        groups_of = {variant.name: list(filter(variant.runs_in, groups)) for variant in self.regimes}
        check_claims(self.claims, groups, groups_of, self.baseline, len(self.seeds))
        self._check_retention()
        return self

    def _check_retention(self) -> None:
        """Check `retention`. Raises ValueError where a task of it is not measured, is trained, or is the one that regimes are
        compared on."""
        measured = [str(task) for task in self.evaluation.tasks]
        for i, name in enumerate(self.retention):
            if name not in measured:
                raise ValueError(f"retention[{i}]: {name!r} is not among evaluation.tasks ({', '.join(measured)})")
            for trained in map(str, self.training.tasks):
                if _have_common_levels(name, trained):
                    raise ValueError(
                        f"retention[{i}]: {name!r} is trained (training.task: {trained}); name a task that is not"
                    )
            if name == measured[0]:
                raise ValueError(
                    f"retention[{i}]: {name!r} is the first of evaluation.tasks, which regimes are compared on"
                )

    def _check_limited_variants(self) -> None:
        """Check where variants run. Raises ValueError where an `only_in` names no group, or cannot be: of the baseline, or with
        `tune`."""
        known = [group.name for group in self.groups]
        for i, variant in enumerate(self.regimes):
            if variant.only_in is None:
                continue
            place = f"regimes[{i}].only_in"
            if variant.name == self.baseline:
                raise ValueError(f"{place}: the baseline runs in every group")
            if self.tune is not None:
                raise ValueError(f"{place}: with `tune` every variant runs in every group")
            for name in variant.only_in:
                if name not in known:
                    raise ValueError(f"{place}: no group {name!r} in the suite ({', '.join(known)})")

    def _check_tuning(self, tune: Tune) -> None:
        """Check `tune`. Raises ValueError where tuning would see what the table measures, or cannot be done."""
        tuning_seeds = [*tune.seeds, *tune.check]
        tuning_groups = {group.name for group in tune.groups}
        tuning_bases = base_checkpoints(tune.groups, tuning_seeds)
        in_both: dict[str, set[Any]] = {
            "groups: the group": tuning_groups & {group.name for group in self.groups},
            "seeds: the seed": {*tuning_seeds} & {*self.seeds},
            "evaluation.tasks: the task": {*tune.evaluation.tasks} & {*self.evaluation.tasks},
            "groups: the base checkpoint": tuning_bases & base_checkpoints(self.groups, self.seeds),
        }
        for what, items in in_both.items():
            if items:
                first = min(map(str, items))
                raise ValueError(f"tune.{what} {first} is in the table too; tuning must not see it")
        if len({*tuning_seeds}) < len(tuning_seeds):
            raise ValueError("tune.check: other seeds than tune.seeds, each once")
        if self.training.part != "final":
            raise ValueError("training.part: with `tune` the table is trained on the part `final`")
        rungs_ascend = sorted({*tune.rungs}) == tune.rungs
        if not rungs_ascend or (tune.rungs and tune.rungs[-1] >= self.training.steps):
            raise ValueError("tune.rungs: ascending numbers of steps, all below training.steps")
        if tune.transfer and len(tune.groups) < 2:
            raise ValueError("tune.transfer: from one pair to another takes two groups or more")

    def training_of(self, variant: Variant) -> Training:
        """Return the suite's training, with a variant's own settings in the place of the suite's."""
        own = variant.training.model_dump(exclude_none=True) if variant.training else {}
        return self.training.model_copy(update=own)
