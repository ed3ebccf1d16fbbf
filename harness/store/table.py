"""The rows of `harness show` and `harness status`: what a suite's cells add up to."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from harness.errors import StoreError
from harness.statistics import MARGIN
from harness.store.comparisons import MEAN, Finished, Spent, finished, judged
from harness.store.kept import kept
from harness.store.read import Snapshot
from harness.store.reference_results import MARK
from harness.store.statistic import STATISTICS, Line

__all__ = ["MEAN", "SeedRow", "ShowRow", "StatusRow", "seed_rows", "show_rows", "status_rows", "suites"]


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a row stands. policy: `*` for the mean over the group's."""

    group: str
    policy: str
    regime: str
    task: str
    metric: str


if TYPE_CHECKING:

    class ShowRow(_Place, frozen=True, kw_only=True):
        """One line: a regime on one group, policy, task and metric, and a field per declared statistic (`store.statistic`).

        Accuracies, gains and shares are fractions in [0, 1]; costs are means per seed, of the whole cell where policy is `*`.
        Verdict, tie group, best, p and what was detectable come from one family of paired t tests over the regimes, groups and
        tasks of one policy and metric (`statistics.judge`). variant: of the suite, whose cells it is made of; another name than
        `regime` for one with settings that were searched.
        """

        variant: str

        def __getattr__(self, name: str) -> Any: ...
else:
    ShowRow = msgspec.defstruct(
        "ShowRow",
        [*((s.name, s.kind) for s in STATISTICS.values()), ("variant", str)],
        bases=(_Place,),
        module=__name__,
        frozen=True,
        kw_only=True,
    )


class StatusRow(msgspec.Struct, frozen=True, kw_only=True):
    """One cell's state, as its manifest has it; `failed` where a file of it cannot be read."""

    key: str
    regime: str
    group: str
    seed: int | None
    state: str
    reason: str
    attempts: int


class SeedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One seed of a line: its accuracy, the base's, and the gain over the baseline of the same seed and budget.

    variant: of the suite, whose cell. noise: `statistics.sampling_variance` of the accuracy. withheld: why no verdict is given.
    """

    group: str
    policy: str
    regime: str
    variant: str
    task: str
    metric: str
    seed: int
    accuracy: float
    noise: float
    base: float | None
    gain: float | None
    baseline: str | None
    withheld: str = ""


def suites(snapshot: Snapshot) -> list[str]:
    """Names of all suites with cells, in order of name; reference results behind our own."""
    found = snapshot.query("SELECT DISTINCT suite FROM cells ORDER BY suite")["suite"].to_pylist()
    return sorted(found, key=lambda suite: suite.endswith(MARK))


def status_rows(snapshot: Snapshot, suite: str | None = None) -> list[StatusRow]:
    """The cells that have a folder, or all evaluations where there is no cell, in order of group, seed and regime."""
    rows = snapshot.query(
        "SELECT cell AS key, regime, group_name AS 'group', seed, state, reason, attempts FROM current_cells "
        "WHERE $1 IS NULL OR suite = $1 QUALIFY kind = 'cell' OR count_if(kind = 'cell') OVER (PARTITION BY suite) = 0 "
        "ORDER BY suite, group_name, seed, regime",
        [suite],
    )
    return msgspec.convert(rows.to_pylist(), list[StatusRow])


def show_rows(snapshot: Snapshot, suite: str, margin: float = MARGIN) -> list[ShowRow]:
    """The suite's finished cells as lines, in the suite's order of groups and regimes. `margin` is that of the verdicts.

    Raises StoreError on an unknown suite.
    """
    make = partial(_show_rows, snapshot, suite, margin)
    return kept(snapshot, suite, "rows", list[ShowRow], make, margin)


def _show_rows(snapshot: Snapshot, suite: str, margin: float) -> list[ShowRow]:
    cells = finished(snapshot, suite)
    if not cells.families and suite not in suites(snapshot):
        raise StoreError(f"no results of a suite {suite!r}")
    rows = [row for policy, metric in _choices(cells) for row in _choice_rows(policy, metric, cells, margin)]
    groups = {key[0]: i for i, key in reversed(list(enumerate(cells.families)))}
    return sorted(rows, key=lambda r: _line(r, cells, groups))


def _line(row: ShowRow, cells: Finished, groups: dict[str, int]) -> tuple[object, ...]:
    """A regime's policies beside each other."""
    members = [MEAN, *cells.policies[row.group]]
    regime = cells.places.get(row.regime, len(cells.places)), row.regime
    return groups[row.group], row.task, row.metric == "greedy", row.metric, regime, members.index(row.policy)


def seed_rows(snapshot: Snapshot, suite: str, of: str | None = None) -> list[SeedRow]:
    """The finished cells seed by seed, in the order of `show_rows`; `of` one policy or MEAN, or all. Empty for an unknown suite."""
    cells = finished(snapshot, suite)
    rows = []
    for (group, policy, task, metric), family in cells.families.items():
        if of not in (None, policy):
            continue
        for name in cells.regimes(family.scores):
            reference = cells.reference(name)
            against = family.scores.get(reference, {}) if reference else {}
            for seed, score in sorted(family.scores[name].items()):
                rows.append(
                    SeedRow(
                        group=group,
                        policy=policy,
                        regime=name,
                        variant=cells.variants[name].cells,
                        task=task,
                        metric=metric,
                        seed=seed,
                        accuracy=score.accuracy,
                        noise=score.noise,
                        base=family.base.get(seed, family.base.get(None)),
                        gain=score.accuracy - against[seed].accuracy if seed in against else None,
                        baseline=reference,
                        withheld=family.withheld.get(name, ""),
                    )
                )
    return rows


def _choices(cells: Finished) -> list[tuple[str, str]]:
    """Every policy and metric: what is corrected together."""
    return list(dict.fromkeys((key.policy, key.metric) for key in cells.families))


def _choice_rows(policy: str, metric: str, cells: Finished, margin: float) -> Iterable[ShowRow]:
    families = {
        (key.group, key.task): family
        for key, family in cells.families.items()
        if (key.policy, key.metric) == (policy, metric)
    }
    names, judgements = judged(
        {place: family.scores for place, family in families.items()},
        {name: cells.reference(name) for name in cells.places},
        margin,
        {(place, name): why for place, family in families.items() for name, why in family.withheld.items()},
    )
    for (group, task), family in families.items():
        for i, name in enumerate(names):
            if name not in family.scores:
                continue
            against = family.costs.get(cells.reference(name) or "")
            line = Line(
                found=judgements[group, task],
                place=i,
                reference=cells.reference(name),
                base=[family.base.get(seed, family.base.get(None, np.nan)) for seed in family.scores[name]],
                spent=Spent(*np.sum(family.costs[name], axis=0)),
                against=None if against is None else Spent(*np.mean(against, axis=0)),
                seeds=len(family.costs[name]),
                budget=cells.variants[name].budget,
                policies=len(cells.policies[group]) if policy == MEAN else 1,
            )
            values = {s.name: s.of(line) for s in STATISTICS.values()}
            variant = cells.variants[name].cells
            yield ShowRow(group=group, policy=policy, regime=name, variant=variant, task=task, metric=metric, **values)
