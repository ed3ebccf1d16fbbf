"""A suite, as written in YAML and validated strictly. Imports in milliseconds, without torch.

Regimes' own options are validated by the regimes (`harness.learning.registry`), everything else here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from harness.suite.space import Choice, Range

Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]
Positive = Annotated[int, Field(ge=1, le=1_000_000)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Keep = Literal["last", "best", "none"]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Stage0(_Model):
    """Supervised stage 0: which habits a policy's base checkpoint has (`harness.engines.embedded.stage0`; `start` for pretrained
    models, whose own the last four are)."""

    preset: Name = "trap"
    strong: Literal["add", "mul"] = "add"
    seed: Seed = 0
    per_seed: bool = False
    """Train another base checkpoint for each seed of the suite, so that intervals include the base's own variance."""
    task: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """What the examples are of: `micro`, or levels of the ladder; by default as `training.task`."""
    steps: Positive | None = None
    """Optimiser steps of 16 examples."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    gate: Fraction | None = None
    """Least accuracy given chain of thought, in every skill group."""

    @model_serializer(mode="wrap")
    def _without_none(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What is not said stands in no key: those of micro suites are older than these settings."""
        return {name: value for name, value in dump(self).items() if value is not None}


class Policy(_Model):
    """A model with its tokenizer: `micro/<family>`, a local folder or a hub name with its revision."""

    name: Name
    model: Annotated[str, Field(min_length=1, max_length=256)]
    revision: Annotated[str, Field(max_length=64)] | None = None
    stage0: Stage0 | None = None
    chat: bool = False
    """Prompts go through the tokenizer's chat template."""
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


class Group(_Model):
    """Policies that are trained side by side."""

    name: Name
    policies: Annotated[list[Policy], Field(min_length=1, max_length=64)]

    @field_validator("policies")
    @classmethod
    def _distinct(cls, policies: list[Policy]) -> list[Policy]:
        return _distinct(policies)


class Defences(_Model):
    """The receiver's defences; switch one off to measure its worth."""

    reverify: bool = True
    quotas: bool = True
    staleness: bool = True
    header_checks: bool = True
    residual_budget: bool = True
    deadline: bool = True


class Sharing(_Model):
    """Who sends to whom, how old it may be, and what is refused."""

    direction: Literal["all", "none", "strong_to_weak", "weak_to_strong", "edges"] = "all"
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
    max_boundary_residual: Fraction = 1.0
    spread: Literal["bytes", "receiver"] = "bytes"
    defences: Defences = Defences()

    @model_validator(mode="after")
    def _edges(self) -> Sharing:
        if (self.direction == "edges") != (self.edges is not None):
            raise ValueError("`edges` and `direction: edges` go together")
        return self


class Replay(_Model):
    """The finished cells whose recordings are served: those of this suite and variant, same group name and seed."""

    suite: Name
    regime: Name


class Settings(_Model):
    """What one variant's training differs in from the suite's."""

    learning_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    kl: Annotated[float, Field(ge=0, le=10)] | None = None
    rollouts: Annotated[int, Field(ge=1, le=4096)] | None = None
    prompts: Positive | None = None
    steps: Annotated[int, Field(ge=0, le=1_000_000)] | None = None


class Variant(_Model):
    """One regime with its options, under a name of its own. Keys that are not listed here are the regime's options."""

    regime: Name
    name: Name
    budget: Literal["1x", "2x", "4x"] = "1x"
    sampling_stream: Seed = 0
    """Another stream draws other samples from the same seed: the A/A control."""
    old_logprobs: Literal["sampler", "trainer"] | None = None
    """Whose log-probabilities own answers' ratios are taken to; by default as the regime declares."""
    sampler_correction: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """C of the truncated importance correction of the sampler's drift, at least 1; 0 is none."""
    sharing: Sharing | None = None
    replay: Replay | None = None
    """Peers that are not in the group speak from a recording."""
    training: Settings | None = None
    """Settings of this variant alone; its cells' keys hold them where they hold the suite's `training`."""
    options: dict[str, Any] = {}

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


class Training(_Model):
    """One cell's RL run. The micro defaults are measured (docs/micro.md)."""

    task: Name = "micro"
    min_level: Annotated[int, Field(ge=1, le=5)] | None = None
    steps: Annotated[int, Field(ge=0, le=1_000_000)] = 45
    prompts: Positive = 16
    rollouts: Annotated[int, Field(ge=1, le=4096), Choice(0.5, 1, 2, relative=True)] = 8
    updates: Annotated[int, Field(ge=1, le=1024)] = 1
    learning_rate: Annotated[float, Field(gt=0, le=1), Range(0.2, 5.0, "log", "normal", relative=True)] = 1e-4
    betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)] = [0.9, 0.99]
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    clip_norm: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    max_new_tokens: Annotated[int, Field(ge=1, le=131072)] = 44
    kl: Annotated[float, Field(ge=0, le=10), Choice(0.0, 1e-3, 1e-2)] = 0.0
    """Weight of a k3 penalty to the base policy on own answers."""
    checkpoint_every: Positive = 10
    measure_every: Annotated[int, Field(ge=0, le=1_000_000)] = 5
    """Every so many steps own and peer gradients and the KL to the base are measured; 0 is never."""
    max_invalid: Fraction = 0.02
    """A cell fails when a larger share of its verdicts is invalid."""
    part: Literal["all", "tuning", "final"] = "all"
    """Which of the task's prompts: `tuning` and `final` have none in common (docs/tuning.md)."""

    @model_serializer(mode="wrap")
    def _present(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without(plain(self), part="all")


class Evaluation(_Model):
    """What is measured on a cell's checkpoints, through lm-eval."""

    tasks: Annotated[list[Name], Field(min_length=1, max_length=64)] = ["micro"]
    greedy: bool = True
    k: Annotated[int, Field(ge=0, le=1024)] | None = 4
    """Samples per question at temperature 1 for avg@k; 0 leaves it out, null takes each task's own (32 for AIME)."""
    limit: Positive | None = None
    max_new_tokens: Positive | None = None
    curve_every: Annotated[int, Field(ge=0, le=1_000_000)] = 15
    """Held-out accuracy every so many steps, for learning curves; 0 is never."""
    curve_prompts: Positive = 120

    @model_validator(mode="after")
    def _something(self) -> Evaluation:
        if not self.greedy and not self.k and self.k is not None:
            raise ValueError("with `greedy: false` and `k: 0` nothing would be measured")
        return self


class Tune(_Model):
    """Tuning under an equal budget, before the table: the same number of trials, rollouts and seeds for every regime."""

    trials: Annotated[int, Field(ge=2, le=1000)] = 8
    """Settings tried per regime. The first is the regime as the suite has it."""
    groups: Annotated[list[Group], Field(min_length=1, max_length=64)]
    """Groups whose base checkpoints the table never sees."""
    seeds: Annotated[list[Seed], Field(min_length=1, max_length=100)]
    check: Annotated[list[Seed], Field(max_length=100)] = []
    """Other seeds on which the chosen setting is tried again: how much of its lead was luck."""
    evaluation: Evaluation
    """Of trials: tasks that the table does not ask."""
    sampler: Literal["tpe", "random"] = "tpe"
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

    @field_validator("groups")
    @classmethod
    def _distinct(cls, groups: list[Group]) -> list[Group]:
        return _distinct(groups)


class Suite(_Model):
    """The whole file."""

    name: Name
    title: Annotated[str, Field(max_length=300)] = ""
    engine: Name = "embedded"
    engine_options: dict[str, Any] = {}
    baseline: Name = "independent"
    groups: Annotated[list[Group], Field(min_length=1, max_length=256)]
    regimes: Annotated[list[Variant], Field(min_length=1, max_length=256)]
    seeds: Annotated[list[Seed], Field(min_length=1, max_length=1000)]
    keep: Keep = "last"
    """Weights of a finished cell: of the last step, of the best point of each policy's learning curve, or none. What is evaluated
    is always the last step; results do not depend on it."""
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    sharing: Sharing = Sharing()
    tune: Tune | None = None

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

    def training_of(self, variant: Variant) -> Training:
        """The variant's training: the suite's, and what the variant has of its own."""
        own = variant.training.model_dump(exclude_none=True) if variant.training else {}
        return self.training.model_copy(update=own)

    def sharing_of(self, variant: Variant) -> Sharing:
        """The variant's sharing settings, the suite's where it has none."""
        return variant.sharing or self.sharing


def starts(groups: Iterable[Group], seeds: Iterable[int]) -> set[str]:
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
