"""What a suite's finished cells scored, regime by regime and seed by seed: read once, compared by `statistics.compare`."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from harness.statistics import MARGIN, Comparison, compare, sampling_variance
from harness.statistics.comparison import CEILING, FLOOR, IDLE
from harness.store.read import Snapshot
from harness.store.tuning import tuned_label

# Stands for the mean over a group's policies
MEAN = "*"
BySeed = dict[int, "Score"]


class Key(NamedTuple):
    group: str
    policy: str
    task: str
    metric: str


class Score(NamedTuple):
    """An accuracy, and its `statistics.sampling_variance`."""

    accuracy: float
    noise: float


class Spent(NamedTuple):
    """What one seed cost, and the peer answers it received and used."""

    rollouts: float
    tokens: float
    cpu: float
    gpu: float
    received: float
    used: float


@dataclass(frozen=True, slots=True)
class Variant:
    """A line of the tables. cells: the suite's variant that it is made of. sampled: rollouts of both rounds over the first
    one's. reference: what its gains are over."""

    name: str
    kind: str
    options: str
    budget: str
    baseline: str
    cells: str = ""
    sampled: float = 1.0
    reference: str | None = None


@dataclass(slots=True)
class Family:
    """Everything of one `Key`, by regime. withheld: why nothing is said of a regime."""

    scores: dict[str, BySeed] = field(default_factory=dict)
    base: dict[int | None, float] = field(default_factory=dict)
    costs: dict[str, list[Spent]] = field(default_factory=dict)
    withheld: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Finished:
    families: dict[Key, Family]
    variants: dict[str, Variant]
    policies: dict[str, list[str]]


# Group and task: one panel
Place = tuple[str, str]


def compared(
    panels: Mapping[Place, Mapping[str, BySeed]],
    references: Mapping[str, str | None],
    margin: float = MARGIN,
    withheld: Mapping[tuple[Place, str], str] | None = None,
    chosen: Container[Place] | None = None,
) -> tuple[list[str], dict[Place | None, Comparison]]:
    """What the seeds say of the regimes of one policy and metric, in the order of `references`: by panel, and under None
    over all of them, or those chosen."""
    names = [name for name in references if any(name in scores for scores in panels.values())]
    seeds = sorted({seed for scores in panels.values() for by_seed in scores.values() for seed in by_seed})
    none = Score(np.nan, np.nan)
    values = np.array(
        [[[scores.get(name, {}).get(seed, none) for seed in seeds] for name in names] for scores in panels.values()]
    ).reshape(len(panels), len(names), len(seeds), 2)
    rows = [None if r not in names else names.index(r) for r in (references[name] for name in names)]
    why = withheld or {}
    reasons = np.array([[why.get((place, name), "") for name in names] for place in panels], dtype=object)
    inside = np.array([chosen is None or place in chosen for place in panels])
    found = compare(values[..., 0], values[..., 1], rows, margin, reasons.reshape(values.shape[:2]), inside)
    return names, dict(zip([*panels, None], found, strict=True))


# Rows of one cell, task and metric stand together.
_SCORES = """
WITH by_policy AS (SELECT suite, cell, policy, sum(cpu_seconds) AS cpu, sum(gpu_seconds) AS gpu FROM spent GROUP BY ALL),
by_cell AS (SELECT suite, cell, sum(cpu_seconds) AS cpu, sum(gpu_seconds) AS gpu FROM spent GROUP BY ALL)
SELECT c.kind = 'base' AS base, c.cell, c.group_name, c.regime, c.seed, c.policies, s.task,
    CASE s.metric WHEN 'sampled' THEN 'avg@' || s.repeats ELSE s.metric END AS metric, s.policy,
    coalesce(t.gradient_norm, 'NaN') = 0 AS idle, round(coalesce(w.cpu, 0), 6) AS cell_cpu,
    round(coalesce(w.gpu, 0), 6) AS cell_gpu, s.accuracy, coalesce(s.error, 'NaN') AS error, s.questions,
    CASE s.metric WHEN 'sampled' THEN s.answers ELSE s.questions END AS answers,
    coalesce(t.rollouts, 0) AS rollouts, coalesce(t.generated_tokens, 0) AS tokens,
    round(coalesce(p.cpu, 0), 6) AS cpu, round(coalesce(p.gpu, 0), 6) AS gpu,
    coalesce(t.peer_received, 0) AS received, coalesce(t.peer_used, 0) AS used
FROM current_cells c JOIN scores s USING (suite, cell)
LEFT JOIN totals t USING (suite, cell, policy) LEFT JOIN by_policy p USING (suite, cell, policy)
LEFT JOIN by_cell w USING (suite, cell)
WHERE c.suite = ? AND c.state = 'done' AND s.accuracy IS NOT NULL
ORDER BY base, c.group_name, s.task, 8, c.regime, c.seed, c.cell, s.policy
"""
_VARIANTS = """
SELECT regime, any_value(regime_type), any_value(options), any_value(budget),
    coalesce(nullif(any_value(s.baseline), ''), any_value(c.baseline)), regime AS cells,
    coalesce(sum(t.rollouts) / nullif(sum(t.rollouts - t.hinted_answers), 0), 1.0) AS sampled
FROM current_cells c LEFT JOIN suites s USING (suite) LEFT JOIN totals t USING (suite, cell)
WHERE kind = 'cell' AND suite = ? GROUP BY regime
"""


def finished(snapshot: Snapshot, suite: str) -> Finished:
    """The suite's finished cells; nothing for an unknown suite. Read once from a snapshot."""
    if suite not in snapshot.finished:
        snapshot.finished[suite] = _finished(snapshot, suite)
    found: Finished = snapshot.finished[suite]
    return found


def _finished(snapshot: Snapshot, suite: str) -> Finished:
    found = snapshot.query(_VARIANTS, [suite]).to_pylist()
    described = snapshot.query("SELECT groups, variants, tuned FROM suites WHERE suite = ?", [suite]).to_pylist()
    about = described[0] if described else {"groups": [], "variants": [], "tuned": []}
    variants = _lines([Variant(*row.values()) for row in found], about["variants"], about["tuned"])
    data = snapshot.query(_SCORES, [suite])
    families: dict[Key, Family] = {}
    base: dict[Key, dict[int | None, float]] = {}
    policies: dict[str, list[str]] = {}
    idle: dict[tuple[str, str, str], bool] = {}
    for (is_base, _, group, regime, seed, names, task, metric), rows in groupby(_scored(data), key=itemgetter(0)):
        parts = list(rows)
        for _, policy, still, _, score, spent in parts:
            key = Key(group, policy, task, metric)
            if is_base:
                base.setdefault(key, {})[seed] = score.accuracy
            else:
                _add(families, key, regime, seed, score, spent)
                idle[group, policy, regime] = still
        if is_base:
            continue
        policies[group] = names
        if len(parts) >= max(2, len(names)):  # a mean over some of the policies is not comparable
            whole = Spent(*map(sum, zip(*(spent for *_, spent in parts), strict=True)))
            cpu, gpu = parts[0][3]
            mean = mean_score([score for *_, score, _ in parts])
            _add(families, Key(group, MEAN, task, metric), regime, seed, mean, whole._replace(cpu=cpu, gpu=gpu))
    for key, family in families.items():
        members = policies[key.group] if key.policy == MEAN else [key.policy]
        each = [base.get(key._replace(policy=name), {}) for name in members]
        if all(each):
            family.base = {s: _mean([b.get(s, b.get(None, np.nan)) for b in each]) for s in set().union(*each)}
        resting = {v.name for v in variants.values() if all(idle.get((key.group, m, v.cells)) for m in members)}
        family.scores = {v.name: family.scores[v.cells] for v in variants.values() if v.cells in family.scores}
        family.costs = {v.name: family.costs[v.cells] for v in variants.values() if v.cells in family.costs}
        right = {score.accuracy for by_seed in family.scores.values() for score in by_seed.values()}
        for name in family.scores:
            if right in ({0.0}, {1.0}):
                family.withheld[name] = FLOOR if right == {0.0} else CEILING
            elif variants[name].reference in resting:
                family.withheld[name] = IDLE
    groups = {name: i for i, name in enumerate(about["groups"])}

    def place(key: Key) -> tuple[object, ...]:
        first = -1 if key.policy == MEAN else policies[key.group].index(key.policy)
        return groups.get(key.group, len(groups)), key.group, key.task, key.metric == "greedy", key.metric, first

    return Finished({key: families[key] for key in sorted(families, key=place)}, variants, policies)


def _scored(data: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Of each row: the cell, task and metric; the policy; whether it learnt nothing; the whole cell's costs; score and costs."""
    columns = {name: data[name].to_pylist() for name in data.column_names}
    noise = sampling_variance(*(columns[name] for name in ("accuracy", "error", "questions", "answers"))).tolist()
    places = zip(
        *(columns[n] for n in ("base", "cell", "group_name", "regime", "seed", "policies", "task", "metric")),
        strict=True,
    )
    scores = map(Score, columns["accuracy"], noise)
    spent = map(Spent, *(columns[name] for name in Spent._fields))
    cell = zip(columns["cell_cpu"], columns["cell_gpu"], strict=True)
    return zip(places, columns["policy"], columns["idle"], cell, scores, spent, strict=True)


def _add(families: dict[Key, Family], key: Key, regime: str, seed: int, score: Score, spent: Spent) -> None:
    family = families.setdefault(key, Family())
    family.scores.setdefault(regime, {})[seed] = score
    family.costs.setdefault(regime, []).append(spent)


def mean_score(parts: Sequence[Score]) -> Score:
    """The mean of scores whose answers are drawn one by one."""
    return Score(_mean([s.accuracy for s in parts]), sum(s.noise for s in parts) / len(parts) ** 2)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _lines(found: Sequence[Variant], order: Sequence[str], tuned: Sequence[Sequence[str]]) -> dict[str, Variant]:
    """The suite's variants, then each with the settings that tuning chose, beside the baseline as the same group tuned it.
    A variant's baseline is the one at its rollout budget; with a second round at the next one that covers both, where the suite
    has it."""
    places = {name: i for i, name in enumerate(order)}
    copies = {final for variant, final, _ in tuned if final != variant}
    by_name = {v.name: v for v in sorted(found, key=lambda v: (places.get(v.name, len(places)), v.name))}
    lines: dict[str, Variant] = {}
    for ours in (v for v in by_name.values() if v.name not in copies):
        reference = None
        if baseline := by_name.get(ours.baseline):
            alike = (baseline.kind, baseline.options)
            others = [v for v in by_name.values() if (v.kind, v.options) == alike and v.name not in copies]
            most = int(ours.budget[:-1]) * ours.sampled
            cover = sorted((int(v.budget[:-1]), v.budget) for v in others if int(v.budget[:-1]) >= most)
            budget = cover[0][1] if ours.sampled > 1 and cover else ours.budget
            same = [baseline.name] if budget == baseline.budget else [v.name for v in others if v.budget == budget]
            reference = None if ours.name in (*same, baseline.name) or not same else same[0]
        lines[ours.name] = replace(ours, reference=reference)
    for variant, final, on in tuned:
        if final in by_name and variant in lines:
            label, over = tuned_label(variant, on), lines[variant].reference
            lines[label] = replace(lines[variant], name=label, cells=final, reference=over and tuned_label(over, on))
    return lines
