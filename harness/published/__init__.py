"""Published numbers beside ours: one data file per paper, a source for each number, and the papers' own inconsistencies."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from harness.errors import UsageError

Method = Annotated[str, Meta(pattern=r"^[a-z0-9-]+$")]


class PublishedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One policy under one method. source: table or figure of the paper. peer: empty for independent training that serves
    several groups. values: by task name, on the publication's scale; a benchmark that the source does not give is absent.
    method: base, grpo, grpo16, grpo32, gspo, gspo2, naive, or a regime's name (with a suffix for an ablation)."""

    source: str
    group: str
    policy: str
    peer: str
    method: Method
    average: float | None
    values: dict[str, float]


class Publication(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A paper's numbers. scale: `share` (0-1) or `percent`. metrics: how each benchmark was measured (`default` for the rest).
    suites: the shipped suites that repeat its experiments. notes: what does not fit together in the paper or with others."""

    key: str
    title: str
    arxiv: str
    version: str
    scale: Literal["share", "percent"]
    suites: list[str]
    protocol: str
    metrics: dict[str, str]
    notes: list[str]
    rows: list[PublishedRow]

    def share(self, value: float) -> float:
        """A value of this publication as a share (0-1), the scale of the harness's own results."""
        return value / 100 if self.scale == "percent" else value

    def metric(self, task: str) -> str:
        """How the paper measured that benchmark, e.g. `best@30`."""
        return self.metrics.get(task, self.metrics["default"])


def names() -> tuple[str, ...]:
    """The publications at hand, sorted."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


@cache
def load(name: str) -> Publication:
    """One publication by name, e.g. `hacpo2026`.

    Raises
    ------
    UsageError
        There is none of that name.
    """
    if name not in names():
        raise UsageError(f"unknown publication {name!r}; there are {', '.join(names())}")
    text = (resources.files(__name__) / f"{name}.yaml").read_bytes()
    return msgspec.yaml.decode(text, type=Publication)
