"""What a suite's finished cells add up to: seed by seed, and in rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import eq, itemgetter, le
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from harness.errors import StoreError
from harness.statistics import MARGIN, Comparison, Estimate, compare, paired, sampling_variance
from harness.statistics.comparison import CEILING, FLOOR, IDLE
from harness.store.manifest import MARK
from harness.store.read import Snapshot
from harness.store.statistic import STATISTICS, Spent, TableRow
from harness.store.tuning import tuned_label

# Stands for the mean over a group's policies
MEAN = "*"
# Group and task: one panel
Place = tuple[str, str]


class Key(NamedTuple):
    group: str
    policy: str
    task: str
    metric: str


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """policy: `*` for the mean over the group's."""

    group: str
    policy: str
    regime: str
    task: str
    metric: str


if TYPE_CHECKING:

    class ShowRow(_Place, frozen=True, kw_only=True):
        """A regime on one group, policy, task and metric, with a field per statistic (`store.statistic`). Accuracies,
        gains and shares are fractions; costs are means per seed. variant: the suite's."""

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


class SeedRow(_Place, frozen=True, kw_only=True):
    """One seed of a row. variant: whose cell. gain: over the baseline's same seed. noise: `sampling_variance`.
    withheld: why there is no verdict. unlike: the baseline had other rollouts, or too few for a second round. holds: other
    groups of the suite, all of whose policies are in this one too."""

    variant: str
    seed: int
    accuracy: float
    noise: float
    base: float | None
    gain: float | None
    baseline: str | None
    withheld: str = ""
    unlike: bool = False
    holds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Variant:
    """A line of the tables. cells: the suite's variant that it is made of. sampled: rollouts of both rounds over the
    first's. reference: what gains are over."""

    name: str
    kind: str
    options: str
    budget: str
    baseline: str
    cells: str = ""
    sampled: float = 1.0
    reference: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """rows: in the suite's order. spent: of the seeds of a `Key` and line. policies: by group."""

    variants: dict[str, Variant]
    rows: list[SeedRow] = field(default_factory=list)
    spent: dict[tuple[Key, str], list[Spent]] = field(default_factory=dict)
    policies: dict[str, list[str]] = field(default_factory=dict)


BySeed = dict[int, SeedRow]


def by_line(rows: Sequence[SeedRow]) -> dict[Key, dict[str, BySeed]]:
    lines: dict[Key, dict[str, BySeed]] = {}
    for r in rows:
        lines.setdefault(Key(r.group, r.policy, r.task, r.metric), {}).setdefault(r.regime, {})[r.seed] = r
    return lines


def difference(ours: BySeed, theirs: BySeed) -> Estimate:
    seeds = sorted(ours.keys() & theirs.keys())
    return paired(
        [ours[s].accuracy for s in seeds],
        [theirs[s].accuracy for s in seeds],
        noise=[ours[s].noise + theirs[s].noise for s in seeds],
    )


# Rows of one cell, task and metric stand together.
_SCORES = """
WITH by_policy AS (SELECT suite, cell, policy, sum(cpu_seconds) AS cpu, sum(gpu_seconds) AS gpu FROM spent GROUP BY ALL),
by_cell AS (SELECT suite, cell, sum(cpu_seconds) AS cpu, sum(gpu_seconds) AS gpu FROM spent GROUP BY ALL),
every AS (SELECT suite, cell, sum(answers) AS answers FROM totals GROUP BY ALL)
SELECT c.kind = 'base' AS base, c.cell, c.group_name, c.regime, c.seed, c.policies, s.task,
    CASE s.metric WHEN 'sampled' THEN 'avg@' || s.repeats ELSE s.metric END AS metric, s.policy,
    coalesce(t.gradient_norm, 'NaN') = 0 AS idle, round(coalesce(w.cpu, 0), 6) AS cell_cpu,
    round(coalesce(w.gpu, 0), 6) AS cell_gpu, s.accuracy, coalesce(s.error, 'NaN') AS error, s.questions,
    CASE s.metric WHEN 'sampled' THEN s.answers ELSE s.questions END AS answers,
    coalesce(t.rollouts, 0) AS rollouts, coalesce(t.generated_tokens, 0) AS tokens,
    round(coalesce(p.cpu, 0), 6) AS cpu, round(coalesce(p.gpu, 0), 6) AS gpu,
    coalesce(t.peer_received, 0) AS received, coalesce(t.peer_used, 0) AS used,
    coalesce(nullif(every.answers - t.answers, 0), t.peer_received, 0)::DOUBLE AS offered
FROM current_cells c JOIN scores s USING (suite, cell)
LEFT JOIN totals t USING (suite, cell, policy) LEFT JOIN by_policy p USING (suite, cell, policy)
LEFT JOIN by_cell w USING (suite, cell) LEFT JOIN every USING (suite, cell)
WHERE c.suite = ? AND c.state = 'done' AND s.accuracy IS NOT NULL
ORDER BY base, c.group_name, s.task, 8, c.regime, c.seed, c.cell, s.policy
"""
_VARIANTS = """
SELECT regime, any_value(regime_type), any_value(options), any_value(budget),
    coalesce(nullif(any_value(s.baseline), ''), any_value(c.baseline)), regime AS cells,
    coalesce(sum(t.rollouts) / nullif(sum(t.answers), 0), 1.0) AS sampled
FROM current_cells c LEFT JOIN suites s USING (suite) LEFT JOIN totals t USING (suite, cell)
WHERE kind = 'cell' AND suite = ? GROUP BY regime
"""


class _Score(NamedTuple):
    accuracy: float
    noise: float
    spent: Spent


def finished(snapshot: Snapshot, suite: str) -> Finished:
    """Read once from a snapshot; nothing for an unknown suite."""
    if suite not in snapshot.finished:
        snapshot.finished[suite] = _finished(snapshot, suite)
    cells: Finished = snapshot.finished[suite]
    return cells


def _finished(snapshot: Snapshot, suite: str) -> Finished:
    described = snapshot.query(
        "SELECT groups, variants, tuned, config FROM suites WHERE suite = ?", [suite]
    ).to_pylist()
    about: dict[str, Any] = described[0] if described else {"groups": [], "variants": [], "tuned": [], "config": ""}
    holds = _held_groups(json.loads(about["config"] or "{}").get("groups", ()))
    variants = [Variant(*row.values()) for row in snapshot.query(_VARIANTS, [suite]).to_pylist()]
    done = Finished(_lines(variants, about["variants"], about["tuned"]))
    scores: dict[Key, dict[str, dict[int, _Score]]] = {}
    base: dict[Key, dict[int | None, float]] = {}
    idle: dict[tuple[str, str, str], bool] = {}
    data = snapshot.query(_SCORES, [suite])
    noise = sampling_variance(*(data[name].to_pylist() for name in ("accuracy", "error", "questions", "answers")))
    lines = [row | {"noise": float(own)} for row, own in zip(data.to_pylist(), noise, strict=True)]
    for _, rows in groupby(lines, key=itemgetter("base", "cell", "task", "metric")):
        parts = list(rows)
        first, names = parts[0], parts[0]["policies"]
        group, regime, seed = first["group_name"], first["regime"], first["seed"]
        mean = Key(group, MEAN, first["task"], first["metric"])
        if first["base"]:
            for row in parts:
                base.setdefault(mean._replace(policy=row["policy"]), {})[seed] = row["accuracy"]
            continue
        done.policies[group] = list(dict.fromkeys([*done.policies.get(group, ()), *names]))
        each = [Spent(*(row[name] for name in Spent._fields)) for row in parts]
        for row, spent in zip(parts, each, strict=True):
            key = mean._replace(policy=row["policy"])
            scores.setdefault(key, {}).setdefault(regime, {})[seed] = _Score(row["accuracy"], row["noise"], spent)
            who = group, row["policy"], regime
            idle[who] = row["idle"] and idle.get(who, True)
        if len(parts) >= max(2, len(names)):  # a mean over some policies is not comparable
            whole = Spent(*map(sum, zip(*each, strict=True)))._replace(cpu=first["cell_cpu"], gpu=first["cell_gpu"])
            average = (
                sum(row["accuracy"] for row in parts) / len(parts),
                sum(row["noise"] for row in parts) / len(parts) ** 2,
            )
            scores.setdefault(mean, {}).setdefault(regime, {})[seed] = _Score(*average, whole)
    groups = {name: i for i, name in enumerate(about["groups"])}

    def place(key: Key) -> tuple[object, ...]:
        first = -1 if key.policy == MEAN else done.policies[key.group].index(key.policy)
        return groups.get(key.group, len(groups)), key.group, key.task, key.metric == "greedy", key.metric, first

    for key in sorted(scores, key=place):
        members = done.policies[key.group] if key.policy == MEAN else [key.policy]
        before = [base.get(key._replace(policy=name), {}) for name in members]
        start = {
            s: sum(b.get(s, b.get(None, np.nan)) for b in before) / len(before)
            for s in (set().union(*before) if all(before) else ())
        }
        resting = {n for n, v in done.variants.items() if all(idle.get((key.group, m, v.cells)) for m in members)}
        own = {name: scores[key][v.cells] for name, v in done.variants.items() if v.cells in scores[key]}
        right = {score.accuracy for by_seed in own.values() for score in by_seed.values()}
        for name, by_seed in own.items():
            reference = done.variants[name].reference
            against = own.get(reference or "", {})
            why = FLOOR if right == {0.0} else CEILING if right == {1.0} else IDLE if reference in resting else ""
            done.spent[key, name] = [score.spent for score in by_seed.values()]
            same = le if done.variants[name].sampled > 1 else eq
            for seed, score in sorted(by_seed.items()):
                theirs = against.get(seed, score)
                done.rows.append(
                    SeedRow(
                        **key._asdict(), regime=name, variant=done.variants[name].cells, seed=seed,
                        accuracy=score.accuracy, noise=score.noise, base=start.get(seed, start.get(None)),
                        gain=score.accuracy - theirs.accuracy if seed in against else None,
                        baseline=reference, withheld=why, unlike=not same(score.spent.rollouts, theirs.spent.rollouts),
                        holds=holds.get(key.group, ()),
                    )
                )  # fmt: skip
    return done


def _held_groups(groups: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """By group of a suite's file, the smaller groups whose policies it all has, whatever they are called."""

    def policies(group: Mapping[str, Any]) -> Counter[str]:
        unnamed = ({k: v for k, v in policy.items() if k != "name"} for policy in group.get("policies", ()))
        return Counter(json.dumps(policy, sort_keys=True) for policy in unnamed)

    own = {group["name"]: policies(group) for group in groups}
    return {name: tuple(other for other in own if own[other] and own[other] < own[name]) for name in own}


def _lines(variants: Sequence[Variant], order: Sequence[str], tuned: Sequence[Sequence[str]]) -> dict[str, Variant]:
    """The suite's variants, then each as tuned, beside the baseline that the same group tuned, of its rollout budget; with a
    second round the next that covers both."""
    places = {name: i for i, name in enumerate(order)}
    copies = {final for variant, final, _ in tuned if final != variant}
    by_name = {v.name: v for v in sorted(variants, key=lambda v: (places.get(v.name, len(places)), v.name))}
    lines: dict[str, Variant] = {}
    for ours in (v for v in by_name.values() if v.name not in copies):
        reference = None
        if baseline := by_name.get(ours.baseline):
            alike = (baseline.kind, baseline.options)
            others = [v for v in by_name.values() if (v.kind, v.options) == alike and v.name not in copies]
            most = float(ours.budget[:-1]) * ours.sampled
            cover = sorted((float(v.budget[:-1]), v.budget) for v in others if float(v.budget[:-1]) >= most)
            between = ours.sampled > 1 or float(ours.budget[:-1]) < 1  # no baseline may sample as many
            budget = cover[0][1] if between and cover else ours.budget
            same = [baseline.name] if budget == baseline.budget else [v.name for v in others if v.budget == budget]
            reference = None if ours.name in (*same, baseline.name) or not same else same[0]
        lines[ours.name] = replace(ours, reference=reference)
    for variant, final, on in tuned:
        if final in by_name and variant in lines:
            label, over = tuned_label(variant, on), lines[variant].reference
            lines[label] = replace(lines[variant], name=label, cells=final, reference=over and tuned_label(over, on))
    return lines


def compared(
    rows: Sequence[SeedRow], margin: float = MARGIN, chosen: Container[Place] | None = None
) -> tuple[list[str], dict[Place | None, Comparison]]:
    """What the seeds say of the regimes (in order) of one policy and metric: by panel, and under None over all or
    chosen ones."""
    panels = {place: i for i, place in enumerate(dict.fromkeys((r.group, r.task) for r in rows))}
    names = {name: i for i, name in enumerate(dict.fromkeys(r.regime for r in rows))}
    seeds = {seed: i for i, seed in enumerate(sorted({r.seed for r in rows}))}
    values = np.full((2, len(panels), len(names), len(seeds)), np.nan)
    withheld = np.full(values.shape[1:3], "", dtype=object)
    for r in rows:
        at = panels[r.group, r.task], names[r.regime]
        values[:, *at, seeds[r.seed]], withheld[at] = (r.accuracy, r.noise), r.withheld
    references = {r.regime: names.get(r.baseline or "") for r in rows}
    inside = np.array([chosen is None or place in chosen for place in panels])
    comparisons = compare(values[0], values[1], list(references.values()), margin, withheld, inside)
    return list(names), dict(zip([*panels, None], comparisons, strict=True))


def suites(snapshot: Snapshot) -> list[str]:
    names = snapshot.query("SELECT DISTINCT suite FROM cells ORDER BY suite")["suite"].to_pylist()
    return sorted(names, key=lambda suite: suite.endswith(MARK))


def status_rows(snapshot: Snapshot, suite: str) -> list[dict[str, Any]]:
    """The cells that have a folder, or all evaluations where there is no cell."""
    rows: list[dict[str, Any]] = snapshot.query(
        "SELECT cell AS key, regime, group_name AS 'group', seed, state, reason, attempts FROM current_cells WHERE suite = ? "
        "QUALIFY kind = 'cell' OR count_if(kind = 'cell') OVER () = 0 ORDER BY group_name, seed, regime",
        [suite],
    ).to_pylist()
    return rows


def seed_rows(snapshot: Snapshot, suite: str, of: str | None = None) -> list[SeedRow]:
    """Of one policy or MEAN, or all. Empty for an unknown suite."""
    return [row for row in finished(snapshot, suite).rows if of in (None, row.policy)]


def show_rows(snapshot: Snapshot, suite: str, margin: float = MARGIN) -> list[ShowRow]:
    """In the suite's order. margin: of the verdicts. Raises StoreError on an unknown suite."""
    cells = finished(snapshot, suite)
    if not cells.rows and suite not in suites(snapshot):
        raise StoreError(f"no results of a suite {suite!r}")
    groups, regimes = list(dict.fromkeys(row.group for row in cells.rows)), list(cells.variants)

    def place(row: ShowRow) -> tuple[object, ...]:
        members = [MEAN, *cells.policies[row.group]]
        metric = row.metric == "greedy", row.metric
        return groups.index(row.group), row.task, *metric, regimes.index(row.regime), members.index(row.policy)

    choices = dict.fromkeys((row.policy, row.metric) for row in cells.rows)
    return sorted((row for choice in choices for row in choice_rows(*choice, cells, margin)), key=place)


def choice_rows(policy: str, metric: str, cells: Finished, margin: float) -> list[ShowRow]:
    seeds = [row for row in cells.rows if (row.policy, row.metric) == (policy, metric)]
    names, comparisons = compared(seeds, margin)
    rows = []
    for (group, task, name), own in groupby(seeds, key=lambda row: (row.group, row.task, row.regime)):
        variant, key = cells.variants[name], Key(group, policy, task, metric)
        row = TableRow(
            comparison=comparisons[group, task],
            place=names.index(name),
            reference=variant.reference,
            base=[np.nan if seed.base is None else seed.base for seed in own],
            spent=cells.spent[key, name],
            against=cells.spent.get((key, variant.reference or ""), ()),
            budget=variant.budget + (f"+{variant.sampled - 1:.0%}" if variant.sampled > 1 else ""),
            policies=len(cells.policies[group]) if policy == MEAN else 1,
        )
        values = {s.name: s.of(row) for s in STATISTICS.values()}
        rows.append(ShowRow(**key._asdict(), regime=name, variant=variant.cells, **values))
    return rows
