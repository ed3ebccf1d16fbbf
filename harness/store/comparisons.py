"""What a suite's finished cells scored, regime by regime and seed by seed: read once, judged by `statistics.judge`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from harness.statistics import MARGIN, Judgement, judge, sampling_variance
from harness.store.read import Snapshot

MEAN = "*"
"""Stands for the mean over a group's policies."""
BySeed = dict[int, "Score"]


class Key(NamedTuple):
    """What the regimes of one family are compared on. policy: one of the group's, or MEAN."""

    group: str
    policy: str
    task: str
    metric: str


class Score(NamedTuple):
    """An accuracy and the variance that the luck of its own answers gives it (`statistics.sampling_variance`)."""

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
    """A suite's variant as its cells name it."""

    name: str
    kind: str
    options: str
    budget: str
    baseline: str


@dataclass(slots=True)
class Family:
    """Everything of one (group, policy, task, metric): scores and costs of each regime by seed."""

    scores: dict[str, BySeed] = field(default_factory=dict)
    base: dict[int | None, float] = field(default_factory=dict)
    costs: dict[str, list[Spent]] = field(default_factory=dict)


@dataclass(frozen=True)
class Finished:
    """A suite's finished cells: families in the suite's order, variants, and the policies of each group."""

    families: dict[Key, Family]
    variants: dict[str, Variant]
    policies: dict[str, Sequence[str]]
    places: dict[str, int]

    def regimes(self, names: Iterable[str]) -> list[str]:
        """In the suite's order."""
        return sorted(names, key=lambda name: (self.places.get(name, len(self.places)), name))

    def reference(self, name: str) -> str | None:
        """The baseline variant at `name`'s budget: of the baseline's regime and options. None for a baseline itself."""
        ours = self.variants[name]
        baseline = self.variants.get(ours.baseline)
        if baseline is None or name == baseline.name:
            return None
        if ours.budget == baseline.budget:
            return baseline.name
        wanted = (baseline.kind, baseline.options, ours.budget)
        same = [v.name for v in self.variants.values() if (v.kind, v.options, v.budget) == wanted]
        return None if not same or name in same else same[0]


def judged(
    scores: Mapping[str, BySeed], references: Mapping[str, str | None], margin: float = MARGIN
) -> tuple[list[str], Judgement]:
    """What the seeds say of the regimes of one screen, in the order of `scores`."""
    names = list(scores)
    seeds = sorted({seed for by_seed in scores.values() for seed in by_seed})
    none = Score(np.nan, np.nan)
    values = np.array([[scores[name].get(seed, none) for seed in seeds] for name in names]).reshape(
        len(names), len(seeds), 2
    )
    rows = [None if r is None or r not in scores else names.index(r) for r in (references[name] for name in names)]
    return names, judge(values[..., 0], values[..., 1], rows, margin)


_SCORES = """
SELECT c.kind, c.group_name, c.regime, c.seed, c.policies, s.task,
    CASE s.metric WHEN 'sampled' THEN 'avg@' || s.repeats ELSE s.metric END AS metric, s.policy, s.accuracy,
    s.error, s.questions, CASE s.metric WHEN 'sampled' THEN s.answers ELSE s.questions END AS answers,
    coalesce(t.rollouts, 0) AS rollouts, coalesce(t.generated_tokens, 0) AS tokens,
    coalesce(p.cpu, 0) AS cpu, coalesce(p.gpu, 0) AS gpu, coalesce(t.peer_received, 0) AS received,
    coalesce(t.peer_used, 0) AS used, coalesce(w.cpu, 0) AS all_cpu, coalesce(w.gpu, 0) AS all_gpu
FROM current_cells c JOIN scores s USING (suite, cell)
LEFT JOIN totals t USING (suite, cell, policy)
LEFT JOIN (SELECT suite, cell, policy, sum(cpu_seconds) AS cpu, sum(gpu_seconds) AS gpu FROM spent GROUP BY ALL) p
    USING (suite, cell, policy)
LEFT JOIN (SELECT suite, cell, sum(cpu_seconds) AS cpu, sum(gpu_seconds) AS gpu FROM spent GROUP BY ALL) w USING (suite, cell)
WHERE c.suite = ? AND c.state = 'done' AND s.accuracy IS NOT NULL
ORDER BY c.kind, c.group_name, c.regime, c.seed, c.cell, s.task, s.metric, s.policy
"""
_VARIANTS = """
SELECT regime, any_value(regime_type), any_value(options), any_value(budget),
    coalesce(nullif(any_value(s.baseline), ''), any_value(c.baseline))
FROM current_cells c LEFT JOIN suites s USING (suite)
WHERE kind = 'cell' AND suite = ? GROUP BY regime
"""


class _Found(NamedTuple):
    """A row of `_SCORES`, less what only the noise is computed from."""

    kind: str
    group: str
    regime: str
    seed: int
    policies: Sequence[str]
    task: str
    metric: str
    policy: str
    accuracy: float
    rollouts: float
    tokens: float
    cpu: float
    gpu: float
    received: float
    used: float
    cell_cpu: float
    cell_gpu: float

    @property
    def key(self) -> Key:
        return Key(self.group, self.policy, self.task, self.metric)

    @property
    def spent(self) -> Spent:
        return Spent(self.rollouts, self.tokens, self.cpu, self.gpu, self.received, self.used)


class _Row(NamedTuple):
    """A cell's score of one policy, or of the mean over them. cell_cpu, cell_gpu: of all policies together."""

    group: str
    policy: str
    task: str
    metric: str
    regime: str
    seed: int
    score: Score
    spent: Spent
    cell_cpu: float
    cell_gpu: float


def finished(snapshot: Snapshot, suite: str) -> Finished:
    """The suite's finished cells; nothing for an unknown suite."""
    found = snapshot.query(_VARIANTS, [suite]).to_pylist()
    variants = {v.name: v for v in (Variant(*row.values()) for row in found)}
    described = snapshot.query("SELECT groups, variants FROM suites WHERE suite = ?", [suite]).to_pylist()
    about = described[0] if described else {"groups": [], "variants": []}
    data = snapshot.query(_SCORES, [suite])
    numbers = [data[name].to_numpy(zero_copy_only=False) for name in ("accuracy", "error", "questions", "answers")]
    columns = data.drop_columns(["error", "questions", "answers"]).to_pydict().values()
    policies: dict[str, Sequence[str]] = {}
    rows, base = [], dict[Key, dict[int | None, float]]()
    for one, noise in zip(map(_Found._make, zip(*columns, strict=True)), _noise(numbers), strict=True):
        if one.kind == "base":
            base.setdefault(one.key, {})[one.seed] = one.accuracy
            continue
        policies[one.group] = one.policies
        score = Score(one.accuracy, noise)
        rows.append(_Row(*one.key, one.regime, one.seed, score, one.spent, one.cell_cpu, one.cell_gpu))
    families: dict[Key, Family] = {}
    for row in rows:
        _add(families, row)
    for _, each in groupby(rows, key=lambda r: (r.group, r.regime, r.seed, r.task, r.metric)):
        parts = list(each)
        if len(parts) >= max(2, len(policies[parts[0].group])):  # a mean over some of the policies is not comparable
            _add(families, _mean(parts))
    for key, family in families.items():
        family.base = base.get(key, {})
        if key.policy == MEAN:
            family.base = _mean_base([base.get(key._replace(policy=name), {}) for name in policies[key.group]])
    groups = {name: i for i, name in enumerate(about["groups"])}

    def place(key: Key) -> tuple[object, ...]:
        first = -1 if key.policy == MEAN else list(policies[key.group]).index(key.policy)
        return groups.get(key.group, len(groups)), key.group, key.task, key.metric == "greedy", key.metric, first

    places = {name: i for i, name in enumerate(about["variants"] or sorted(variants))}
    return Finished({key: families[key] for key in sorted(families, key=place)}, variants, policies, places)


def _noise(numbers: Sequence[Float[np.ndarray, "rows"]]) -> list[float]:
    values: list[float] = sampling_variance(*numbers).tolist()
    return values


def _add(families: dict[Key, Family], row: _Row) -> None:
    family = families.setdefault(Key(row.group, row.policy, row.task, row.metric), Family())
    family.scores.setdefault(row.regime, {})[row.seed] = row.score
    family.costs.setdefault(row.regime, []).append(row.spent)


def _mean(parts: Sequence[_Row]) -> _Row:
    first = parts[0]
    spent = Spent(*np.sum([p.spent for p in parts], axis=0).tolist())._replace(cpu=first.cell_cpu, gpu=first.cell_gpu)
    return first._replace(policy=MEAN, score=mean_score([p.score for p in parts]), spent=spent)


def mean_score(parts: Sequence[Score]) -> Score:
    """The mean of scores whose answers are drawn one by one."""
    return Score(float(np.mean([s.accuracy for s in parts])), sum(s.noise for s in parts) / len(parts) ** 2)


def _mean_base(each: Sequence[Mapping[int | None, float]]) -> dict[int | None, float]:
    if not all(each):
        return {}
    seeds = set().union(*each)
    return {s: float(np.mean([b.get(s, b.get(None, np.nan)) for b in each])) for s in seeds}
