"""A suite, as written in YAML and validated strictly; regimes' options by `harness.learning.registry`. Imports without torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    field_validator,
    model_serializer,
    model_validator,
)

from harness.suite.space import Choice, Range

# So that names can be parts of paths
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.+-]*"
LONGEST_NAME, LONGEST_TASK = 64, 128
TASK_PATTERN = rf"(lm_eval:)?{NAME_PATTERN}(:[A-Za-z0-9_.,=+-]+)?"
Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, pattern=f"^{NAME_PATTERN}$")]
Positive = Annotated[int, Field(ge=1, le=1_000_000)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Style = Literal["raw", "zero-shot", "few-shot"]
Keep = Literal["last", "best", "none"]
CURVE_PROMPTS = 120
Samples = Annotated[int, Field(ge=0, le=1024)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Edge = tuple[str, str]  # author, receiver
Strengths = Callable[[], Mapping[str, float]]


def edges_of(
    policies: Sequence[str], direction: str | Iterable[Edge], strengths: Strengths | None = None
) -> tuple[Edge, ...]:
    """Edges by receiver, then author, in suite order. direction: a word of `Sharing.direction`, or the edges; equals in
    strength do not send to each other. Raises ValueError."""
    every = tuple((author, receiver) for receiver in policies for author in policies if author != receiver)
    if direction in ("strong_to_weak", "weak_to_strong"):
        if strengths is None:
            raise ValueError(f"{direction} needs the policies' strengths")
        strength, sign = strengths(), 1 if direction == "strong_to_weak" else -1
        return tuple((a, r) for a, r in every if sign * strength[a] > sign * strength[r])
    if isinstance(direction, str):
        return every if direction == "all" else ()
    chosen = {(author, receiver) for author, receiver in direction}
    for author, receiver in sorted(chosen - {*every}):
        raise ValueError(f"no edge {author} -> {receiver}: it does not join two of {', '.join(policies)}")
    return tuple(edge for edge in every if edge in chosen)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
    # Left out at these values, so that stored cells keep their keys
    younger: ClassVar[dict[str, Any]] = {}

    @model_serializer(mode="wrap")
    def _written(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {k: v for k, v in plain(self).items() if k not in self.younger or v != self.younger[k]}


def _distinct(what: str) -> AfterValidator:
    """Refuses repeated items; a file's task has no name yet."""

    def check(items: list[Any]) -> list[Any]:
        names = [getattr(item, "name", item) for item in items if not isinstance(item, FileTask)]
        for name in (name for i, name in enumerate(names) if name in names[:i]):
            raise ValueError(f"the {what} {name!r} occurs twice")
        return items

    return AfterValidator(check)


def _not_of_a_file(*taken: str) -> AfterValidator:
    def check(name: str) -> str:
        if name.lower() in taken:
            raise ValueError(f"{name!r} is the name of a file or folder of the harness; choose another")
        return name

    return AfterValidator(check)


class Stage0(_Model):
    """Supervised stage 0: which habits a policy's base checkpoint has (`harness.engines.embedded.warmup`; the last four are
    pretrained models' own)."""

    of_pretrained: ClassVar[tuple[str, ...]] = ("task", "steps", "learning_rate", "gate")
    younger: ClassVar[dict[str, Any]] = dict.fromkeys(("weak_cot", *of_pretrained))

    preset: Name = Field(default="trap", description="What the examples teach (docs/micro.md).")
    strong: Literal["add", "mul"] = Field(default="add", description="The skill group in which it reasons unasked.")
    weak_cot: Fraction | None = Field(
        default=None,
        description="Share of plain examples of the weak skill group that are answered by steps; null: the preset's.",
    )
    seed: Seed = Field(default=0, description="Seed of the first weights and examples.")
    per_seed: bool = Field(
        default=False,
        description="Another base checkpoint for each seed, so that intervals include the base's variance.",
    )
    task: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None,
        description="What the examples are of: `micro`, or levels of the ladder; null: `training.task`.",
    )
    steps: Positive | None = Field(default=None, description="Optimiser steps of 16 examples.")
    learning_rate: Annotated[float, Field(gt=0, le=1)] | None = Field(default=None, description="Of AdamW.")
    gate: Fraction | None = Field(
        default=None, description="Least accuracy given chain of thought, in every skill group."
    )

    @property
    def habits(self) -> str:
        """The preset, with the stated share if there is one."""
        return self.preset if self.weak_cot is None else f"{self.preset} with weak_cot {self.weak_cot:g}"

    def seed_of(self, seed: int) -> int:
        """Of the base checkpoint for a suite's seed."""
        return self.seed + 1000 * (seed + 1) if self.per_seed else self.seed


# What rendering itself passes to a template
_OF_RENDERING = {
    "messages", "tools", "documents", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict",
    "return_assistant_tokens_mask", "tokenizer_kwargs", "conversation", "chat_template", "add_generation_prompt",
    "continue_final_message", "strftime_now", "raise_exception",
}  # fmt: skip
_ARGUMENT = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)


def _chat_settings(chat: Any) -> Any:
    """Raises ValueError for a name that no template can be given; no settings are true."""
    if not isinstance(chat, dict):
        return chat
    for name in chat:
        if not _ARGUMENT.fullmatch(name) or name in _OF_RENDERING:
            raise ValueError(
                f"{name[:80]!r} cannot be set; `system`, `date`, or a template's argument such as enable_thinking"
            )
    if not isinstance(chat.get("system", ""), str):
        raise ValueError("`system` is the text of a system turn")
    if "date" in chat:
        try:
            date.fromisoformat(str(chat["date"]))
        except ValueError:
            raise ValueError("`date` is a day, such as 2026-01-31") from None
    return chat or True


ChatValue = bool | int | float | Annotated[str, Field(max_length=4096)]


class Policy(_Model):
    name: Annotated[Name, _not_of_a_file("session.json")] = Field(description="Unique within its group.")
    model: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        description="`micro/<family>`, `pretrained/<name>`, a local Hugging Face folder, or a hub name."
    )
    revision: Annotated[str, Field(max_length=64)] | None = Field(
        default=None, description="Commit of a hub model; null: the newest, noted in the manifest."
    )
    stage0: Stage0 | None = Field(
        default=None, description="Supervised start; null: for micro models preset `trap`, for others none."
    )
    chat: Annotated[bool | Annotated[dict[str, ChatValue], Field(max_length=32)], AfterValidator(_chat_settings)] = (
        Field(
            default=False,
            description="Use the tokenizer's chat template; also {system: a turn, date: 2026-01-31, enable_thinking: false}.",
        )
    )
    style: Style | None = Field(
        default=None,
        description="`raw`: the question; `zero-shot`: with instruction; `few-shot`: after examples; null: the task's own.",
    )
    rollouts: Positive | None = Field(
        default=None, description="Answers per prompt of this policy; null: `training.rollouts`."
    )
    condition: dict[str, Any] | None = Field(
        default=None,
        description="Makes it a bad peer: {kind: noisy|lying|permuted|stale|silent|spamming, ...} (docs/peers.md).",
    )

    @property
    def is_micro(self) -> bool:
        return self.model.startswith("micro/")

    @model_validator(mode="after")
    def _micro(self) -> Policy:
        if self.is_micro:
            if self.revision is not None:
                raise ValueError("a micro model has no revision")
            for name in (name for name in Stage0.of_pretrained if getattr(self.stage0, name, None) is not None):
                raise ValueError(f"stage0.{name} is for pretrained models; a micro model's is its family's own")
        return self


class ModelGroup(_Model):
    name: Name = Field(description="In labels: a cell is group/regime/seed.")
    policies: Annotated[list[Policy], Field(min_length=1, max_length=64), _distinct("name")] = Field(
        description="Trained side by side."
    )


class Defences(_Model):
    """The receiver's defences; switch one off to measure its worth. Decoding checks, unknown authors and prompts, and bounds
    have no switch."""

    reverify: bool = Field(default=True, description="Verify peers' answers again; off: their verdicts are taken.")
    quotas: bool = Field(default=True, description="Refuse records beyond an author's quota per step.")
    staleness: bool = Field(default=True, description="Refuse records older than `max_staleness`.")
    header_checks: bool = Field(default=True, description="Refuse records with impossible headers.")
    residual_budget: bool = Field(default=True, description="Refuse answers beyond the residual limits.")
    deadline: bool = Field(default=True, description="Wait at most `deadline_seconds` for a peer.")


class Sharing(_Model):
    younger: ClassVar[dict[str, Any]] = {"alignment": "chunk", "ends": "one_action"}

    direction: Literal["all", "none", "strong_to_weak", "weak_to_strong", "edges"] = Field(
        default="all", description="Who sends to whom; strong and weak by the bases' held-out accuracy."
    )
    edges: Annotated[list[Annotated[list[Name], Field(min_length=2, max_length=2)]], Field(max_length=4096)] | None = (
        Field(default=None, description="[author, receiver] pairs, for `direction: edges`.")
    )
    max_staleness: Annotated[int, Field(ge=0, le=64)] = Field(
        default=0, description="Steps that a record may be old; 0 is lockstep."
    )
    record: bool = Field(default=False, description="Keep accepted messages for a `replay`.")
    deadline_seconds: Annotated[float, Field(gt=0, le=3600)] = Field(
        default=60.0, description="Longest wait for peers outside lockstep."
    )
    max_text_residual: Fraction = Field(
        default=0.05,
        description="Largest share of an answer's bytes that retokenising may change.",
    )
    max_boundary_residual: Fraction = Field(
        default=1.0,
        description="Largest share of tokens with an estimated log-probability; 1: no limit.",
    )
    spread: Literal["bytes", "receiver"] = Field(
        default="bytes",
        description="How a rollout's log-probabilities spread over the receiver's tokens: by bytes, or by the receiver's own.",
    )
    alignment: Literal["chunk", "strict"] = Field(
        default="chunk",
        description="Which aligned log-probabilities are used: all, or (`strict`) those of tokens that both tokenizers share.",
    )
    ends: Literal["one_action", "as_sampled"] = Field(
        default="one_action",
        description="Log-probability of an answer's end: of ending by any of the policy's ends, or (`as_sampled`) by that one.",
    )
    opening: Literal["as_sent", "receiver"] = Field(
        default="as_sent",
        exclude_if=lambda opening: opening == "as_sent",
        description="Of older suites, without effect: a peer's answer begins and ends as most own answers of the step.",
    )
    defences: Defences = Field(default=Defences(), description="The receiver's defences.")

    @model_validator(mode="after")
    def _edges(self) -> Sharing:
        if (self.direction == "edges") != (self.edges is not None):
            raise ValueError("`edges` and `direction: edges` go together")
        edges = self.edges or []
        for edge in (edge for i, edge in enumerate(edges) if edge in edges[:i]):
            raise ValueError(f"edges: {edge[0]} -> {edge[1]} occurs twice")
        return self

    def among(self, policies: Sequence[str], strengths: Strengths | None = None) -> tuple[Edge, ...]:
        """As `edges_of`. Raises ValueError."""
        stated = [(author, receiver) for author, receiver in self.edges or ()]
        return edges_of(policies, stated if self.direction == "edges" else self.direction, strengths)


class Replay(_Model):
    younger: ClassVar[dict[str, Any]] = {"share": [1.0, 1.0], "peers": "absent"}

    suite: Name = Field(description="Whose results are replayed.")
    regime: Name = Field(description="The recorded variant.")
    share: Annotated[list[Fraction], Field(min_length=2, max_length=2)] = Field(
        default=[1.0, 1.0],
        description="Share of each recorded step that is served, at the first and the last step; half a cosine between.",
    )
    peers: Literal["absent", "all"] = Field(
        default="absent",
        description="`absent`: authors that the group lacks; `all`: every author's record, and the live policies send nothing.",
    )


class DynamicSampling(_Model):
    """Prompts whose groups have equal rewards are replaced by new ones (arXiv 2503.14476). All rollouts count."""

    decided_by: Literal["all", "own"] = Field(
        default="all",
        description="Replaced where every policy's group has equal rewards; `own`: by each policy's own, for `independent`.",
    )
    rounds: Annotated[int, Field(ge=1, le=16)] = Field(default=3, description="New draws in a step, at most.")


class Settings(_Model):
    learning_rate: Annotated[float, Field(gt=0, le=1)] | None = Field(default=None, description="As in `training`.")
    kl: Annotated[float, Field(ge=0, le=10)] | None = Field(default=None, description="As in `training`.")
    rollouts: Annotated[int, Field(ge=1, le=4096)] | None = Field(default=None, description="As in `training`.")
    prompts: Positive | None = Field(default=None, description="As in `training`.")
    steps: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(default=None, description="As in `training`.")
    updates: Annotated[int, Field(ge=1, le=1024)] | None = Field(default=None, description="As in `training`.")


class Variant(_Model):
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
    only_in: Annotated[list[Name], Field(min_length=1, max_length=256), _distinct("group")] | None = Field(
        default=None, description="The groups in which this variant runs; null: all of the suite's."
    )
    options: dict[str, Any] = Field(default={}, description="The regime's options; may also stand beside these keys.")

    def runs_in(self, group: str) -> bool:
        """Whether the suite trains this variant in the group of that name."""
        return self.only_in is None or group in self.only_in

    @field_validator("sampler_correction")
    @classmethod
    def _truncation(cls, value: float) -> float:
        if 0 < value < 1:
            raise ValueError("must be 0 (none) or at least 1")
        return value

    @field_validator("dynamic_sampling", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        return ({} if value else None) if isinstance(value, bool) else value

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, raw: Any) -> Any:
        if isinstance(raw, str):
            raw = {"regime": raw}
        if not isinstance(raw, dict):
            return raw
        if not isinstance(raw.get("options", {}), dict):
            return {"name": raw.get("regime"), **raw}
        known = {k: v for k, v in raw.items() if k in cls.model_fields}
        extra = {k: v for k, v in raw.items() if k not in cls.model_fields}
        return {"name": raw.get("regime"), **known, "options": {**raw.get("options", {}), **extra}}

    @property
    def factor(self) -> float:
        """Multiple of the suite's rollouts per prompt."""
        return float(self.budget[:-1])

    def spent(self, policies: int) -> str:
        """The budget of each of so many policies, as a multiple of the suite's rollouts: `split` shares the prompts out."""
        return self.budget if self.sampling == "all" else f"{self.factor / policies:.3g}x"


class FileTask(_Model):
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
    def _named(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and isinstance(raw.get("file"), str) and not raw.get("name"):
            stem = re.sub(r"[^A-Za-z0-9_.+-]+", "-", PurePath(raw["file"]).stem).strip("-.+_")[:LONGEST_NAME]
            return {**raw, "name": stem or "file"}
        return raw

    def __str__(self) -> str:
        return self.name


def _with_settings(raw: Any) -> Any:
    """A mapping that names a task, {name: gym.knights_knaves, n_people: 2..3}, as that task's name with its settings. Raises
    ValueError."""
    if not isinstance(raw, dict) or "file" in raw or not isinstance(raw.get("name"), str):
        return raw
    settings = []
    for key in sorted(raw.keys() - {"name"}):
        value = raw[key]
        if not isinstance(value, str | int | float):
            raise ValueError(f"{key}: a number, a word or a range such as 2..3")
        settings.append(f"{key}={str(value).lower() if isinstance(value, bool) else value}")
    return f"{raw['name']}:{','.join(settings)}" if settings else raw["name"]


# In pydantic's places, but no keys
FORMS = _NAME, _FILE, _NUMBER, _BY_TASK = "<name>", "<file>", "<number>", "<by task>"
_Task = Annotated[str, Field(min_length=1, max_length=LONGEST_TASK, pattern=f"^{TASK_PATTERN}$")]
TaskName = Annotated[
    Annotated[_Task, Tag(_NAME)] | Annotated[FileTask, Tag(_FILE)],
    Discriminator(lambda raw: _FILE if isinstance(raw, dict | FileTask) else _NAME),
    BeforeValidator(_with_settings),
]


class Training(_Model):
    """One cell's RL run. The micro defaults are measured (docs/micro.md)."""

    younger: ClassVar[dict[str, Any]] = {"part": "all", "answer_ends": "eos"}

    task: TaskName = Field(
        default="micro",
        description="The training pool (`harness tasks`), or a JSONL file (docs/tasks.md).",
    )
    min_level: Annotated[int, Field(ge=1, le=5)] | None = Field(
        default=None, description="Least level of MATH problems."
    )
    steps: Annotated[int, Field(ge=0, le=1_000_000)] = Field(default=45, description="Training steps.")
    prompts: Positive = Field(
        default=16,
        description="Questions per step, the same for every policy and regime of a seed and `sampling_stream`.",
    )
    rollouts: Annotated[int, Field(ge=1, le=4096), Choice(0.5, 1, 2, relative=True)] = Field(
        default=8, description="Answers per question and policy."
    )
    updates: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=1,
        description="Optimiser updates (mini-batches) per step.",
    )
    learning_rate: Annotated[float, Field(gt=0, le=1), Range(0.2, 5.0, "log", "normal", relative=True)] = Field(
        default=1e-4, description="Of AdamW, constant. 1e-4 fits micro models, 1e-6 to 1e-5 pretrained ones."
    )
    betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)] = Field(
        default=[0.9, 0.99], description="Of AdamW."
    )
    weight_decay: Annotated[float, Field(ge=0, le=1)] = Field(default=0.0, description="Of AdamW.")
    clip_norm: Annotated[float, Field(gt=0, le=1e6)] = Field(
        default=1.0, description="Largest norm of an update's gradient."
    )
    temperature: Annotated[float, Field(ge=0.01, le=10)] = Field(  # vLLM's lowest
        default=1.0, description="Of sampling and log-probabilities in training."
    )
    max_new_tokens: Annotated[int, Field(ge=1, le=131072)] = Field(
        default=44, description="Longest answer in tokens; a longer one is cut off and wrong."
    )
    answer_ends: Literal["eos", "example"] = Field(
        default="eos",
        description="`eos`: its EOS; `example`: also the next worked example, for `few-shot` base models (docs/pretrained.md).",
    )
    kl: Annotated[float, Field(ge=0, le=10), Choice(0.0, 1e-3, 1e-2)] = Field(
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


SamplesByTask = Annotated[
    Annotated[Samples, Tag(_NUMBER)]
    | Annotated[Annotated[dict[str, Samples], Field(min_length=1, max_length=64)], Tag(_BY_TASK)],
    Discriminator(lambda raw: _BY_TASK if isinstance(raw, dict) else _NUMBER),
]


class Evaluation(_Model):
    younger: ClassVar[dict[str, Any]] = {"temperature": 1.0, "top_p": 1.0}

    tasks: Annotated[list[TaskName], Field(min_length=1, max_length=64), _distinct("task")] = Field(
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
        default=1.0, description="Of the samples; learning curves are sampled at 1."
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
    def _curve_within_limit(cls, raw: Any) -> Any:
        if not isinstance(raw, dict) or not isinstance(limit := raw.get("limit"), int):
            return raw
        asked = raw.get("curve_prompts", CURVE_PROMPTS)
        return {**raw, "curve_prompts": min(asked, limit)} if isinstance(asked, int) and limit >= 1 else raw

    @model_validator(mode="after")
    def _something(self) -> Evaluation:
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
        """The samples per question of a task; None where it has its own number, and a greedy answer."""
        return self.k.get(task) if isinstance(self.k, dict) else self.k


class Tune(_Model):
    younger: ClassVar[dict[str, Any]] = {"transfer": False}

    trials: Annotated[int, Field(ge=2, le=1000)] = Field(
        default=8, description="Settings per regime; the first is the suite's own."
    )
    groups: Annotated[list[ModelGroup], Field(min_length=1, max_length=64), _distinct("name")] = Field(
        description="Groups whose base checkpoints the table lacks."
    )
    seeds: Annotated[list[Seed], Field(min_length=1, max_length=100)] = Field(
        description="Seeds of every trial, none of the table's."
    )
    check: Annotated[list[Seed], Field(max_length=100)] = Field(
        default=[], description="Other seeds, on which the chosen setting runs again."
    )
    evaluation: Evaluation = Field(description="Of trials: tasks that the table does not ask.")
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
    seed: Seed = Field(default=0, description="Of the proposals.")
    transfer: bool = Field(
        default=False,
        description="Each group chooses for itself; the table runs every choice on all its groups.",
    )


class Counterpart(_Model):
    """What a claim compares its statistic with, instead of with a number: the same statistic elsewhere."""

    group: Name | None = Field(default=None, description="In this group; null: in the claim's own.")
    regime: Name | None = Field(default=None, description="Of this variant; null: of the claim's own.")

    @model_validator(mode="after")
    def _elsewhere(self) -> Counterpart:
        if self.group is None and self.regime is None:
            raise ValueError("name a `group`, a `regime`, or both")
        return self


class Claim(_Model):
    """What somebody expects of a suite before it runs (docs/statistics.md)."""

    name: Name = Field(description="In tables.")
    group: Name = Field(description="Where it is said to hold.")
    regime: Name = Field(description="The variant that it is said of.")
    over: Name | None = Field(default=None, description="The variant that it is compared with; null: the baseline.")
    statistic: Literal["gain", "kappa", "reach"] = Field(
        description="`gain`: points of avg@k at the end; `kappa`: pace; `reach`: points by which the ends differ."
    )
    relation: Literal["above", "below", "within"] = Field(
        description="`above` or `below` the bound; `within`: at most the bound away from 0, or for `kappa` from 1."
    )
    bound: Annotated[float, Field(ge=-100, le=100)] = Field(
        description="In points, for `kappa` a ratio; with `against`: of the difference."
    )
    against: Counterpart | None = Field(
        default=None, description="The bound is of the difference from the same statistic elsewhere."
    )
    seeds: Positive | None = Field(
        default=None, description="Answered from so many of the suite's first seeds; null: from all."
    )


class Suite(_Model):
    younger: ClassVar[dict[str, Any]] = {"tune": None, "claims": []}

    name: Annotated[Name, _not_of_a_file("evaluations", "harness.duckdb")] = Field(
        description="Of the results folder; by default the file's."
    )
    title: Annotated[str, Field(max_length=300)] = Field(default="", description="For headings.")
    engine: Name = Field(
        default="embedded", description="`embedded` (one process) or `openrlhf` (Ray; docs/openrlhf.md)."
    )
    engine_options: dict[str, Any] = Field(default={}, description="See below.")
    baseline: Name = Field(default="independent", description="The variant that gains are over.")
    groups: Annotated[list[ModelGroup], Field(min_length=1, max_length=256), _distinct("name")] = Field(
        description="Groups of policies."
    )
    regimes: Annotated[list[Variant], Field(min_length=1, max_length=256), _distinct("name")] = Field(
        description="Variants: a regime's name, or a mapping with options."
    )
    seeds: Annotated[list[Seed], Field(min_length=1, max_length=1000), _distinct("seed")] = Field(
        description="Every regime is trained once for each."
    )
    keep: Keep = Field(
        default="last",
        description="Kept weights: last step, best point of the learning curve, or none; results are the last step's.",
    )
    training: Training = Field(default=Training(), description="One cell's run.")
    evaluation: Evaluation = Field(default=Evaluation(), description="What is measured.")
    sharing: Sharing = Field(default=Sharing(), description="For variants without their own.")
    tune: Tune | None = Field(
        default=None,
        description="Search settings first, under an equal budget (docs/tuning.md).",
    )
    claims: Annotated[list[Claim], Field(max_length=64), _distinct("claim")] = Field(
        default=[], description="What is expected before it runs; answered first, and corrected among themselves."
    )

    @model_validator(mode="before")
    @classmethod
    def _apart(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and raw.get("tune") is not None and isinstance(raw.get("training", {}), dict):
            return {**raw, "training": {"part": "final", **raw.get("training", {})}}
        return raw

    @model_validator(mode="after")
    def _consistent(self) -> Suite:
        names = [v.name for v in self.regimes]
        if self.baseline not in names:
            raise ValueError(f"baseline: {self.baseline!r} is not among the suite's regimes ({', '.join(names)})")
        if self.keep == "best" and not self.evaluation.curve_every:
            raise ValueError("keep: `best` needs a learning curve (evaluation.curve_every)")
        if self.tune is not None:
            self._never_meets(self.tune)
        self._check_limited_variants()
        self._check_claims()
        return self

    def _check_limited_variants(self) -> None:
        """Raises ValueError where a variant's `only_in` cannot be."""
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

    def _check_claims(self) -> None:
        """Raises ValueError for a claim about a variant or group that the suite does not run."""
        variants = {variant.name: variant for variant in self.regimes}
        groups = [group.name for group in self.groups]
        for i, claim in enumerate(self.claims):
            against = claim.against or Counterpart(group=claim.group)
            told = claim.over or self.baseline
            used = {
                "group": (claim.group, claim.regime),
                "over": (claim.group, told),
                "against": (against.group or claim.group, against.regime or claim.regime),
            }
            for key, (group, variant) in used.items():
                place = f"claims[{i}].{key}"
                if group not in groups:
                    raise ValueError(f"{place}: no group {group!r} in the suite ({', '.join(groups)})")
                if variant not in variants:
                    raise ValueError(f"{place}: no variant {variant!r} in the suite ({', '.join(variants)})")
                if not variants[variant].runs_in(group):
                    raise ValueError(f"{place}: {variant!r} does not run in the group {group!r}")
            if claim.regime == told:
                raise ValueError(f"claims[{i}].over: {told!r} is compared with itself")
            if claim.seeds is not None and claim.seeds > len(self.seeds):
                raise ValueError(f"claims[{i}].seeds: the suite has {len(self.seeds)}")

    def _never_meets(self, tune: Tune) -> None:
        seeds, rungs = [*tune.seeds, *tune.check], tune.rungs
        shared: dict[str, set[Any]] = {
            "groups: the group": {g.name for g in tune.groups} & {g.name for g in self.groups},
            "seeds: the seed": {*seeds} & {*self.seeds},
            "evaluation.tasks: the task": {*tune.evaluation.tasks} & {*self.evaluation.tasks},
            "groups: the base checkpoint": starts(tune.groups, seeds) & starts(self.groups, self.seeds),
        }
        falling = sorted({*rungs}) != rungs or (rungs and rungs[-1] >= self.training.steps)
        faults = {
            **{f"tune.{what} {one} is in the table too; tuning must not see it": True
               for what, both in shared.items() for one in sorted(map(str, both))},
            "tune.check: other seeds than tune.seeds, each once": len({*seeds}) < len(seeds),
            "training.part: with `tune` the table is trained on the part `final`": self.training.part != "final",
            "tune.rungs: ascending numbers of steps, all below training.steps": falling,
            "tune.transfer: from one pair to another takes two groups or more": tune.transfer and len(tune.groups) < 2,
        }  # fmt: skip
        for problem in (problem for problem, wrong in faults.items() if wrong):
            raise ValueError(problem)

    def training_of(self, variant: Variant) -> Training:
        own = variant.training.model_dump(exclude_none=True) if variant.training else {}
        return self.training.model_copy(update=own)


def starts(groups: Iterable[ModelGroup], seeds: Sequence[int]) -> set[str]:
    names = set()
    for policy in (p for group in groups for p in group.policies):
        start = policy.stage0 or Stage0()
        if policy.is_micro:
            names |= {f"{policy.model} ({start.habits}, {start.strong}, seed {start.seed_of(seed)})" for seed in seeds}
        else:
            names.add(policy.model + (f" at {policy.revision}" if policy.revision else ""))
    return names
