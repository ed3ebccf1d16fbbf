"""Published numbers beside ours: one data file per paper."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from harness.errors import UsageError

Method = Annotated[str, Meta(pattern=r"^[a-z0-9-]+$")]


class PublishedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One policy under a method (base, grpo, gspo2, a regime, ...). source: table or figure. peer: empty for independent
    training. values: by task, on the publication's scale."""

    source: str
    group: str
    policy: str
    peer: str
    method: Method
    average: float | None
    values: dict[str, float]


class Publication(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A paper's numbers. metrics: by benchmark (`default` for the rest). suites: shipped ones that repeat it. notes: what does
    not fit together."""

    key: str
    short: str
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
        return value / 100 if self.scale == "percent" else value

    def metric(self, task: str) -> str:
        """Of a benchmark, e.g. `best@30`."""
        return self.metrics.get(task, self.metrics["default"])

    def beside(
        self, model: str, peers: Iterable[str], regime: str, variant: str, objective: str = "grpo", factor: float = 1.0
    ) -> PublishedRow | None:
        """The row of this model, peers (hub names) and method, if any. A variant that the paper lacks counts only as
        independent training, at the rollouts in its name."""
        method = variant if factor == 1 else ""
        if regime == "independent":
            method = _INDEPENDENT.get((objective, factor), "")
        others = {_short_name(peer) for peer in peers}
        for row in self.rows:
            same = _short_name(row.policy) == _short_name(model) and row.method == method
            if same and (not row.peer or others == {_short_name(row.peer)}):
                return row
        return None


_INDEPENDENT: dict[tuple[str, float], str] = {
    ("grpo", 1): "grpo",
    ("grpo", 2): "grpo16",
    ("grpo", 4): "grpo32",
    ("gspo", 1): "gspo",
    ("gspo", 2): "gspo2",
}


def _short_name(model: str) -> str:
    """To a paper `Qwen/Qwen3-4B-Instruct-2507` is `Qwen3-4B-Instruct`."""
    return model.rsplit("/", 1)[-1].lower().removesuffix("-2507")


def publication_names() -> tuple[str, ...]:
    files = resources.files(__name__).iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


@cache
def load_publication(name: str) -> Publication:
    """By name, e.g. `hacpo2026`. Raises UsageError."""
    if name not in publication_names():
        raise UsageError(f"unknown publication {name!r}; there are {', '.join(publication_names())}")
    text = (resources.files(__name__) / f"{name}.yaml").read_bytes()
    return msgspec.yaml.decode(text, type=Publication)
