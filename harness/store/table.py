"""What a suite's finished cells add up to, in the rows of `harness show` (`ShowRow`).

The way is: `finished.read_finished` reads the scores of all finished cells and pairs each with the baseline of its seed;
`compare_rows` puts those of one policy and metric into arrays and has them tested; `show_rows` makes a row of each regime.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Shaped

from harness.errors import StoreError
from harness.statistics import (
    MARGIN,
    Comparison,
    Estimate,
    compare_regimes,
)
from harness.statistics.comparison import DIFFERS_POLICIES, EQUIVALENT, INCONCLUSIVE
from harness.statistics.crossed import CrossedEstimate
from harness.statistics.policies import MemberScores, find_policy_differences
from harness.store import pace_statistics as pace_statistics  # it fills STATISTICS
from harness.store.equal_cost import Candidate, Rivals, choose_best_rate, choose_equal_cost, judge_found
from harness.store.finished import (
    BySeed,
    FinishedScores,
    Key,
    Place,
    SeedRow,
    ShowRow,
    TableLine,
    estimate_difference,
    is_independent_training,
    read_finished,
)
from harness.store.learning_curves import MEAN as MEAN
from harness.store.line_remarks import remark_on
from harness.store.manifest import MARK
from harness.store.read import Snapshot
from harness.store.statistic import STATISTICS, SeedCost, TableRow

_Item = TypeVar("_Item")
# Group, benchmark and name of a line
_LinePlace = tuple[str, str, str]


def _number_distinct(items: Iterable[_Item]) -> dict[_Item, int]:
    """Number the distinct items in the order in which they come."""
    return {item: number for number, item in enumerate(dict.fromkeys(items))}


def compare_rows(
    rows: Sequence[SeedRow], margin: float = MARGIN, chosen: Container[Place] | None = None
) -> tuple[list[str], dict[Place | None, Comparison]]:
    """Compare the regimes of one policy and metric.

    chosen: panels of the mean, None for all. Returns the regimes in their order, and the comparisons by panel; under None
    stands that over the mean of the chosen panels.
    """
    axes = _Axes.of_rows(rows)
    scores, noise, withheld = _gather_scores(rows, axes)
    # All rows of a regime have one baseline, and the regimes come here in the order of `axes.regimes`
    baselines = {row.regime: axes.regimes.get(row.baseline or "") for row in rows}
    references = list(baselines.values())
    inside = np.array([chosen is None or place in chosen for place in axes.panels])
    comparisons = compare_regimes(scores, noise, references, margin, withheld, inside)
    members = []
    for place in axes.panels:
        of_panel = [row for row in rows if (row.group, row.task) == place]
        members.append(_gather_members(of_panel, axes))
    differ = find_policy_differences(members, references, margin)
    *of_panels, of_mean = comparisons
    told = [_tell_policies_apart(one, apart) for one, apart in zip(of_panels, differ, strict=True)]
    by_panel: dict[Place | None, Comparison] = dict(zip(axes.panels, told, strict=True))
    # The mean of one panel is that panel, with what is told of its policies; that of several says nothing of policies
    only = next((place for place, one in enumerate(of_panels) if one is of_mean), None)
    by_panel[None] = of_mean if only is None else told[only]
    return list(axes.regimes), by_panel


class _Axes(NamedTuple):
    """The place of each panel (group and benchmark), regime and seed along the axes of arrays."""

    panels: dict[Place, int]
    regimes: dict[str, int]
    seeds: dict[int, int]

    @classmethod
    def of_rows(cls, rows: Sequence[SeedRow]) -> _Axes:
        """Number panels and regimes as they come, seeds from small to large."""
        panels = _number_distinct((row.group, row.task) for row in rows)
        regimes = _number_distinct(row.regime for row in rows)
        seeds = _number_distinct(sorted({row.seed for row in rows}))
        return cls(panels, regimes, seeds)


def _gather_scores(
    rows: Sequence[SeedRow], axes: _Axes
) -> tuple[
    Float[np.ndarray, "panels regimes seeds"],
    Float[np.ndarray, "panels regimes seeds"],
    Shaped[np.ndarray, "panels regimes"],
]:
    """Put accuracies, their noise, and why verdicts are withheld into arrays; a score that is missing is NaN."""
    scores = np.full((len(axes.panels), len(axes.regimes), len(axes.seeds)), np.nan)
    noise = np.full(scores.shape, np.nan)
    withheld = np.full(scores.shape[:2], "", dtype=object)
    for row in rows:
        panel = axes.panels[row.group, row.task]
        regime = axes.regimes[row.regime]
        seed = axes.seeds[row.seed]
        scores[panel, regime, seed] = row.accuracy
        noise[panel, regime, seed] = row.noise
        withheld[panel, regime] = row.withheld  # the same for all seeds of a regime on a panel
    return scores, noise, withheld


def _gather_members(rows: Sequence[SeedRow], axes: _Axes) -> MemberScores | None:
    """Put the members of one panel's rows into arrays; None where the rows are no means of policies."""
    members = chain.from_iterable(row.members for row in rows)
    policies = _number_distinct(member.policy for member in members)
    if len(policies) < 2:
        return None
    accuracy = np.full((len(policies), len(axes.regimes), len(axes.seeds)), np.nan)
    noise = np.full(accuracy.shape, np.nan)
    for row in rows:
        for member in row.members:
            place = policies[member.policy], axes.regimes[row.regime], axes.seeds[row.seed]
            accuracy[place] = member.accuracy
            noise[place] = member.noise
    return MemberScores(accuracy, noise)


def _tell_policies_apart(comparison: Comparison, differ: Bool[np.ndarray, "regimes"]) -> Comparison:
    """Return the comparison with the verdict DIFFERS_POLICIES where policies differ and the mean finds nothing."""
    silent = (EQUIVALENT, INCONCLUSIVE)
    verdicts = tuple(
        DIFFERS_POLICIES if apart and verdict in silent else verdict
        for verdict, apart in zip(comparison.verdicts, differ, strict=True)
    )
    return replace(comparison, verdicts=verdicts)


def list_suites(snapshot: Snapshot) -> list[str]:
    """Return the names of the suites with cells, those of reference results last."""
    found = snapshot.query("SELECT DISTINCT suite FROM cells ORDER BY suite")
    names = found["suite"].to_pylist()
    return sorted(names, key=lambda suite: suite.endswith(MARK))


def status_rows(snapshot: Snapshot, suite: str) -> list[dict[str, Any]]:
    """Return the cells that have a folder, or all evaluations where there is no cell."""
    found = snapshot.query(
        "SELECT cell AS key, regime, group_name AS 'group', seed, state, reason, attempts FROM current_cells WHERE suite = ? "
        "QUALIFY kind = 'cell' OR count_if(kind = 'cell') OVER () = 0 ORDER BY group_name, seed, regime",
        [suite],
    )
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def seed_rows(snapshot: Snapshot, suite: str, of: str | None = None) -> list[SeedRow]:
    """Return the rows of one policy or MEAN, or all. Empty for an unknown suite."""
    return [row for row in read_finished(snapshot, suite).rows if of in (None, row.policy)]


def show_rows(
    snapshot: Snapshot, suite: str, margin: float = MARGIN, opening: tuple[str, str] | None = None
) -> list[ShowRow]:
    """Return the rows of `harness show` in the suite's order. Raises StoreError on an unknown suite.

    margin: of the verdicts. opening: a policy and a metric, for their rows alone and those of groups of one policy, which have no
    mean; without intervals for other questions, which take longest and stand on no brief page.
    """
    cells = read_finished(snapshot, suite)
    if not cells.rows and suite not in list_suites(snapshot):
        raise StoreError(f"no results of a suite {suite!r}")
    policies_of = Counter(group for group, _ in {(row.group, row.policy) for row in cells.rows})

    def is_shown(row: SeedRow | ShowRow) -> bool:
        if opening is None:
            return True
        policy, metric = opening
        return row.metric == metric and (row.policy == policy or policies_of[row.group] == 1)

    rows: list[ShowRow] = []
    for policy, metric in dict.fromkeys((row.policy, row.metric) for row in cells.rows if is_shown(row)):
        rows += make_rows(policy, metric, cells, margin, other_questions=opening is None)
    return _sort_rows(filter(is_shown, rows), cells)


def _sort_rows(rows: Iterable[ShowRow], cells: FinishedScores) -> list[ShowRow]:
    """Sort rows as the suite has its groups and regimes; a group's mean before its policies, greedy answers after sampled ones."""
    groups = list(dict.fromkeys(row.group for row in cells.rows))
    regimes = list(cells.lines)

    def place_of(row: ShowRow) -> tuple[object, ...]:
        members = [MEAN, *cells.policies[row.group]]
        metric = row.metric == "greedy", row.metric
        return groups.index(row.group), row.task, *metric, regimes.index(row.regime), members.index(row.policy)

    return sorted(rows, key=place_of)


def make_rows(
    policy: str, metric: str, cells: FinishedScores, margin: float, other_questions: bool = False
) -> list[ShowRow]:
    """Make the rows of one policy and metric, which are one family of tests.

    margin: of the verdicts. other_questions: with intervals for other questions, which takes reading all answers.
    """
    seeds = [row for row in cells.rows if (row.policy, row.metric) == (policy, metric)]
    names, comparisons = compare_rows(seeds, margin)
    rivals = _find_rivals(policy, metric, cells, names, comparisons)
    rows = []
    for (group, task, name), of_line in groupby(seeds, key=lambda row: (row.group, row.task, row.regime)):
        key = Key(group, policy, task, metric)
        tested = _TestedLine(comparisons[group, task], names.index(name), rivals.get((group, task, name)))
        row = _gather_row(key, name, list(of_line), tested, cells, margin)
        if other_questions:
            row = replace(row, crossed=_estimate_crossed(key, cells.lines[name], cells))
        values = {statistic.name: statistic.of(row) for statistic in STATISTICS.values()}
        rows.append(ShowRow(**key._asdict(), regime=name, variant=cells.lines[name].cells, **values))
    return rows


class _TestedLine(NamedTuple):
    """What the tests of a family say of one line: the comparison on its panel, its place there, and its rivals."""

    comparison: Comparison
    place: int
    rivals: Rivals | None


def _gather_row(
    key: Key, name: str, seeds: Sequence[SeedRow], tested: _TestedLine, cells: FinishedScores, margin: float
) -> TableRow:
    """Gather all that the statistics of one line are made from. name: of the line. seeds: its own."""
    line = cells.lines[name]
    reference = line.reference or ""
    # what sampling more than once added to the budget, e.g. by a second round
    second_round = f"+{line.sampled - 1:.0%}" if line.sampled > 1 else ""
    of_curves = not cells.curve_task or key.task == cells.curve_task
    pace = cells.paces.find_pace(key.group, key.policy, name, margin) if of_curves else None
    options = json.loads(line.options or "{}")
    return TableRow(
        comparison=tested.comparison,
        place=tested.place,
        reference=line.reference,
        base=[np.nan if seed.base is None else seed.base for seed in seeds],
        spent=cells.costs[key, name],
        against=cells.costs.get((key, reference), ()),
        on_clock=cells.costs.get((key, pace.clock), ()) if pace else (),
        budget=line.budget + second_round,
        policies=len(cells.policies[key.group]) if key.policy == MEAN else 1,
        pace=pace,
        rivals=tested.rivals,
        beside=cells.gains_beside(key, name),
        remark=remark_on(line.kind, options, line.trained.updates),
    )


def _estimate_crossed(key: Key, line: TableLine, cells: FinishedScores) -> CrossedEstimate | None:
    """Estimate a line's gain for other questions too; None but for avg@k of a whole group, and where there is no baseline."""
    whole = key.policy == MEAN or len(cells.policies[key.group]) == 1
    if not whole or not key.metric.startswith("avg@") or line.reference not in cells.lines:
        return None
    return cells.questions.estimate_gain(key.group, key.task, line.cells, cells.lines[line.reference].cells)


def _find_rivals(
    policy: str,
    metric: str,
    cells: FinishedScores,
    names: Sequence[str],
    comparisons: Mapping[Place | None, Comparison],
) -> dict[_LinePlace, Rivals]:
    """Compare every line of one policy and metric with independent training at equal cost and at its best rate.

    names, comparisons: as `compare_rows` returned them. Returns the rivals by group, task and line; baselines have none.
    """
    rivals: dict[_LinePlace, Rivals] = {}
    gains: dict[_LinePlace, Estimate] = {}
    verdicts: dict[_LinePlace, str] = {}
    for key, lines in cells.by_key.items():
        if (key.policy, key.metric) != (policy, metric):
            continue
        candidates = _list_candidates(key, lines, cells)
        comparison = comparisons[key.group, key.task]
        for name, by_seed in lines.items():
            line = cells.lines[name]
            cost = _mean_cost(cells.costs[key, name])
            if line.reference not in lines or line.trained.stream or not candidates or not cost:
                continue
            if is_independent_training(line, cells.lines):
                continue
            nearest = choose_equal_cost(cost, candidates)
            best, rates = choose_best_rate(line.multiple, candidates)
            best = best or nearest
            place = key.group, key.task, name
            regime = names.index(name)
            verdicts[place] = comparison.verdicts[regime]
            gains[place] = comparison.gains[regime]
            rivals[place] = Rivals(
                nearest=nearest.name,
                nearest_cost=nearest.cost / cost,
                over_nearest=estimate_difference(by_seed, lines[nearest.name]),
                best_rate=best.name,
                over_best_rate=estimate_difference(by_seed, lines[best.name]),
                rates=rates,
            )
    found = judge_found(verdicts, gains, rivals)
    return {place: replace(one, found=found.get(place, "")) for place, one in rivals.items()}


def _list_candidates(key: Key, lines: Mapping[str, BySeed], cells: FinishedScores) -> list[Candidate]:
    """List the lines of independent training on one panel whose cost is known."""
    candidates = []
    for name, by_seed in lines.items():
        line = cells.lines[name]
        cost = _mean_cost(cells.costs[key, name])
        if is_independent_training(line, cells.lines) and cost:
            accuracy = float(np.mean([row.accuracy for row in by_seed.values()]))
            trained = line.trained
            candidate = Candidate(name, trained.rate, line.multiple, cost, accuracy, dynamic=trained.dynamic)
            candidates.append(candidate)
    return candidates


def _mean_cost(costs: Sequence[SeedCost]) -> float:
    """Return the mean counted cost over seeds, in sampled tokens."""
    return float(np.mean([cost.counted for cost in costs]))
