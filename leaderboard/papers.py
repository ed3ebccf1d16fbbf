"""The published numbers as gains: each method over the independent training of its paper that had as many rollouts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.published import Publication, PublishedRow, load, names

_BASELINES = ("gspo", "grpo")
"""Independent training at the regimes' rollouts: the one with the regime's own objective before the other."""
_MORE_ROLLOUTS = {"gspo2": "independent-2x", "grpo16": "independent-2x", "grpo32": "independent-4x"}


@dataclass(frozen=True, slots=True)
class Published:
    """One number, accuracies in percent. regime: our name for it; baseline: what its gain is measured against."""

    paper: str
    setting: str
    model: str
    regime: str
    value: float
    baseline: float
    against: str

    @property
    def gain(self) -> float:
        """Points."""
        return self.value - self.baseline


def published() -> list[Published]:
    """Every row with a baseline in the same table, publication by publication."""
    return [row for name in names() for row in _gains(load(name))]


def _gains(paper: Publication) -> Iterable[Published]:
    for row in paper.rows:
        baseline = _baseline(paper, row)
        if baseline is None or row.method in ("base", *_BASELINES):
            continue
        measured = {task for other in paper.rows if other.source == row.source for task in other.values}
        yield Published(
            f"{paper.short} (arXiv {paper.arxiv})",
            f"{row.source}, {_setting(paper, measured)}",
            f"{row.policy} with {row.peer}" if row.peer else row.policy,
            _MORE_ROLLOUTS.get(row.method, row.method),
            _percent(paper, row),
            _percent(paper, baseline),
            baseline.method.upper(),
        )


def _baseline(paper: Publication, row: PublishedRow) -> PublishedRow | None:
    """Its own group's, else the one that serves all groups of the policy."""
    same = [r for r in paper.rows if (r.source, r.policy) == (row.source, row.policy) and r.group in (row.group, "")]
    return next((r for method in _BASELINES for r in same if r.method == method), None)


def _setting(paper: Publication, tasks: set[str]) -> str:
    if len(tasks) == 1:
        return f"{next(iter(tasks))} ({paper.metric(next(iter(tasks)))})"
    other = [
        f"{task} as {paper.metric(task)}" for task in sorted(tasks) if paper.metric(task) != paper.metrics["default"]
    ]
    return f"mean of {len(tasks)} benchmarks, {paper.metrics['default']}" + (f" ({', '.join(other)})" if other else "")


def _percent(paper: Publication, row: PublishedRow) -> float:
    value = row.average if row.average is not None else sum(row.values.values()) / len(row.values)
    return 100 * paper.share(value)
