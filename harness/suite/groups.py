"""A suite's groups: policies that are trained side by side, their models and their supervised starts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from harness.suite.fields import Fraction, Name, Positive, Seed, Style, SuiteModel, all_distinct, not_of_a_file


class Stage0(SuiteModel):
    """The supervised stage 0: which habits a policy's base checkpoint has (`harness.engines.embedded.warmup`; the last four are
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
    learning_rate: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="AdamW's learning rate."
    )
    gate: Fraction | None = Field(
        default=None, description="Least accuracy given chain of thought, in every skill group."
    )

    @property
    def habits(self) -> str:
        """The preset, with the stated share if there is one."""
        if self.weak_cot is None:
            return self.preset
        return f"{self.preset} with weak_cot {self.weak_cot:g}"

    def seed_of(self, seed: int) -> int:
        """Return the seed of the base checkpoint that a suite's seed starts from."""
        if self.per_seed:
            return self.seed + 1000 * (seed + 1)
        return self.seed


# What rendering itself passes to a template
_OF_RENDERING = {
    "messages", "tools", "documents", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict",
    "return_assistant_tokens_mask", "tokenizer_kwargs", "conversation", "chat_template", "add_generation_prompt",
    "continue_final_message", "strftime_now", "raise_exception",
}  # fmt: skip
_ARGUMENT = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)


def _chat_settings(chat: Any) -> Any:
    """Check the settings of a chat template; an empty mapping stands for true. Raises ValueError for a name that no template can
    be given, and for another value of `system` or `date`."""
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


class Policy(SuiteModel):
    """A policy of a group: which model it is, how it is asked, and what is wrong with it on purpose."""

    name: Annotated[Name, not_of_a_file("session.json")] = Field(description="Unique within its group.")
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
    def _check_micro(self) -> Policy:
        """Check that a micro model has none of the settings that are pretrained models'. Raises ValueError."""
        if self.is_micro:
            if self.revision is not None:
                raise ValueError("a micro model has no revision")
            for name in Stage0.of_pretrained:
                if getattr(self.stage0, name, None) is not None:
                    raise ValueError(f"stage0.{name} is for pretrained models; a micro model's is its family's own")
        return self


class ModelGroup(SuiteModel):
    """Policies that learn from each other."""

    name: Name = Field(description="In labels: a cell is group/regime/seed.")
    policies: Annotated[list[Policy], Field(min_length=1, max_length=64), all_distinct("name")] = Field(
        description="Trained side by side."
    )


def base_checkpoints(groups: Iterable[ModelGroup], seeds: Sequence[int]) -> set[str]:
    """Name every base checkpoint that the groups start from, in words for an error: what two suites both name is the same."""
    names = set()
    for group in groups:
        for policy in group.policies:
            names |= _base_checkpoints_of(policy, seeds)
    return names


def _base_checkpoints_of(policy: Policy, seeds: Sequence[int]) -> set[str]:
    """Name the base checkpoints of one policy: of a micro model by its habits and each seed, of another by where it comes
    from."""
    if not policy.is_micro:
        revision = f" at {policy.revision}" if policy.revision else ""
        return {policy.model + revision}
    start = policy.stage0 or Stage0()
    habits = f"{start.habits}, {start.strong}"
    return {f"{policy.model} ({habits}, seed {start.seed_of(seed)})" for seed in seeds}
