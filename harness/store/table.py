"""The rows of `harness show` and `harness status`: what a suite's cells add up to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from harness.errors import StoreError
from harness.statistics import MARGIN
from harness.store.comparisons import MEAN, Finished, compared, finished
from harness.store.read import Snapshot
from harness.store.reference_results import MARK
from harness.store.statistic import STATISTICS, TableRow

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
        """A regime on one group, policy, task and metric, with a field per declared statistic (`store.statistic`).
        Accuracies, gains and shares are fractions; costs are means per seed. variant: the suite's, whose cells it is made
        of."""

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
    key: str
    regime: str
    group: str
    seed: int | None
    state: str
    reason: str
    attempts: int


class SeedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One seed of a row. variant: whose cell. gain: over the baseline's same seed. noise: `sampling_variance`. withheld:
    why no verdict is given."""

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
    found = snapshot.query("SELECT DISTINCT suite FROM cells ORDER BY suite")["suite"].to_pylist()
    return sorted(found, key=lambda suite: suite.endswith(MARK))


def status_rows(snapshot: Snapshot, suite: str | None = None) -> list[StatusRow]:
    """The cells that have a folder, or all evaluations where there is no cell."""
    rows = snapshot.query(
        "SELECT cell AS key, regime, group_name AS 'group', seed, state, reason, attempts FROM current_cells "
        "WHERE $1 IS NULL OR suite = $1 QUALIFY kind = 'cell' OR count_if(kind = 'cell') OVER (PARTITION BY suite) = 0 "
        "ORDER BY suite, group_name, seed, regime",
        [suite],
    )
    return msgspec.convert(rows.to_pylist(), list[StatusRow])


def show_rows(snapshot: Snapshot, suite: str, margin: float = MARGIN) -> list[ShowRow]:
    """The finished cells, in the suite's order. margin: of the verdicts. Raises StoreError on an unknown suite."""
    cells = finished(snapshot, suite)
    if not cells.families and suite not in suites(snapshot):
        raise StoreError(f"no results of a suite {suite!r}")
    choices = dict.fromkeys((key.policy, key.metric) for key in cells.families)
    rows = [row for policy, metric in choices for row in choice_rows(policy, metric, cells, margin)]
    groups, regimes = list(dict.fromkeys(key.group for key in cells.families)), list(cells.variants)

    def place(row: ShowRow) -> tuple[object, ...]:
        members = [MEAN, *cells.policies[row.group]]
        metric = row.metric == "greedy", row.metric
        return groups.index(row.group), row.task, *metric, regimes.index(row.regime), members.index(row.policy)

    return sorted(rows, key=place)


def seed_rows(snapshot: Snapshot, suite: str, of: str | None = None) -> list[SeedRow]:
    """Seed by seed, of one policy or MEAN, or all. Empty for an unknown suite."""
    cells = finished(snapshot, suite)
    rows = []
    for (group, policy, task, metric), family in cells.families.items():
        for name in family.scores if of in (None, policy) else ():
            variant = cells.variants[name]
            against = family.scores.get(variant.reference or "", {})
            for seed, score in sorted(family.scores[name].items()):
                rows.append(
                    SeedRow(
                        group=group,
                        policy=policy,
                        regime=name,
                        variant=variant.cells,
                        task=task,
                        metric=metric,
                        seed=seed,
                        accuracy=score.accuracy,
                        noise=score.noise,
                        base=family.base.get(seed, family.base.get(None)),
                        gain=score.accuracy - against[seed].accuracy if seed in against else None,
                        baseline=variant.reference,
                        withheld=family.withheld.get(name, ""),
                    )
                )
    return rows


def choice_rows(policy: str, metric: str, cells: Finished, margin: float) -> Iterator[ShowRow]:
    families = {
        (key.group, key.task): family
        for key, family in cells.families.items()
        if (key.policy, key.metric) == (policy, metric)
    }
    names, comparisons = compared(
        {place: family.scores for place, family in families.items()},
        {name: variant.reference for name, variant in cells.variants.items()},
        margin,
        {(place, name): why for place, family in families.items() for name, why in family.withheld.items()},
    )
    for (group, task), family in families.items():
        for i, name in ((i, name) for i, name in enumerate(names) if name in family.scores):
            variant = cells.variants[name]
            row = TableRow(
                found=comparisons[group, task],
                place=i,
                reference=variant.reference,
                base=[family.base.get(seed, family.base.get(None, np.nan)) for seed in family.scores[name]],
                spent=family.costs[name],
                against=family.costs.get(variant.reference or "", ()),
                budget=variant.budget + (f"+{variant.sampled - 1:.0%}" if variant.sampled > 1 else ""),
                policies=len(cells.policies[group]) if policy == MEAN else 1,
            )
            values = {s.name: s.of(row) for s in STATISTICS.values()}
            at = {"group": group, "policy": policy, "task": task, "metric": metric}
            yield ShowRow(**at, regime=name, variant=variant.cells, **values)
