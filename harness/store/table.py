"""The rows of `harness show` and `harness status`: what a suite's cells add up to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import msgspec
import numpy as np

from harness.errors import StoreError
from harness.statistics import Estimate, holm, mean_interval, minimum_detectable, paired, per_unit, tie_groups
from harness.store.read import Snapshot

MEAN = "*"
"""Stands for the mean over a group's policies."""
Pair = tuple[float, float]


class ShowRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line: a regime on one group, policy, task and metric. Accuracies and gains are fractions in [0, 1].

    seeds: how many finished. base: accuracy before training. interval: Student t over seeds, None for a single one.
    gain: paired by seed with `baseline`, the baseline variant at the same budget; None for itself and without pairs.
    peer_used: share of the received peer answers that gave a nonzero gradient. rollouts, tokens (generated), cpu_seconds,
    gpu_seconds: mean per seed; of the whole cell where policy is `*`.
    tie_group: 1 for the regimes that cannot be told from the best (`statistics.tie_groups`), in one group, policy, task, metric.
    gain_p: of the gain's t test, Holm-corrected over the same family. detectable: the smallest gain that these seeds would
    have shown with 80 % power. gain_per_1000_rollouts, gain_per_gpu_second: None where nothing was spent.
    """

    group: str
    policy: str
    regime: str
    task: str
    metric: str
    seeds: int
    base: float | None
    accuracy: float
    interval: Pair | None
    gain: float | None
    gain_interval: Pair | None
    baseline: str | None
    peer_used: float | None
    rollouts: float
    tokens: float
    cpu_seconds: float
    gpu_seconds: float
    budget: str
    tie_group: int
    gain_p: float | None
    detectable: float | None
    gain_per_1000_rollouts: float | None
    gain_per_gpu_second: float | None


class StatusRow(msgspec.Struct, frozen=True, kw_only=True):
    """One cell's state, as its manifest has it."""

    key: str
    regime: str
    group: str
    seed: int
    state: str
    reason: str
    attempts: int


class SeedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One seed of a line: its accuracy, the base's, and the gain over the baseline of the same seed and budget."""

    group: str
    policy: str
    regime: str
    task: str
    metric: str
    seed: int
    accuracy: float
    base: float | None
    gain: float | None
    baseline: str | None


@dataclass(frozen=True, slots=True)
class _Variant:
    name: str
    kind: str
    options: str
    budget: str
    baseline: str


@dataclass(slots=True)
class _Family:
    """Everything of one (group, policy, task, metric): scores and costs of each regime by seed."""

    scores: dict[str, dict[int, float]] = field(default_factory=dict)
    base: dict[int | None, float] = field(default_factory=dict)
    costs: dict[str, list[Sequence[float]]] = field(default_factory=dict)


def suites(snapshot: Snapshot) -> list[str]:
    """Names of all suites with cells, in order of name."""
    return [r["suite"] for r in snapshot.query("SELECT DISTINCT suite FROM cells ORDER BY suite").to_pylist()]


def status_rows(snapshot: Snapshot, suite: str | None = None) -> list[StatusRow]:
    """The cells that have a folder, in order of group, seed and regime."""
    rows = snapshot.query(
        "SELECT cell AS key, regime, group_name AS 'group', coalesce(seed, 0) AS seed, state, reason, attempts FROM current_cells "
        "WHERE kind = 'cell' AND (? IS NULL OR suite = ?) ORDER BY suite, group_name, seed, regime",
        [suite, suite],
    )
    return msgspec.convert(rows.to_pylist(), list[StatusRow])


def show_rows(snapshot: Snapshot, suite: str) -> list[ShowRow]:
    """The suite's finished cells as lines, in the suite's order of groups and regimes. Raises StoreError on an unknown suite."""
    about = snapshot.query("SELECT * FROM suites WHERE suite = ?", [suite]).to_pylist()
    if not about and suite not in suites(snapshot):
        raise StoreError(f"no results of a suite {suite!r}")
    variants = _variants(snapshot, suite)
    order = _Order(about[0] if about else {}, variants)
    policies, families = _families(snapshot, suite)
    rows = [
        row
        for key in sorted(families, key=lambda key: order.family(key, policies))
        for row in _family_rows(key, families[key], variants, order)
    ]
    return sorted(rows, key=lambda r: order.row(r, policies))


class _Order:
    def __init__(self, about: Mapping[str, list[str]], variants: Mapping[str, _Variant]) -> None:
        self.groups = {name: i for i, name in enumerate(about.get("groups") or ())}
        self.variants = {name: i for i, name in enumerate(about.get("variants") or sorted(variants))}

    def family(self, key: tuple[str, str, str, str], policies: Mapping[str, Sequence[str]]) -> tuple[object, ...]:
        group, policy, task, metric = key
        place = -1 if policy == MEAN else list(policies[group]).index(policy)
        return self.groups.get(group, len(self.groups)), group, task, metric == "greedy", metric, place

    def regime(self, name: str) -> tuple[int, str]:
        return self.variants.get(name, len(self.variants)), name

    def row(self, row: ShowRow, policies: Mapping[str, Sequence[str]]) -> tuple[object, ...]:
        *family, place = self.family((row.group, row.policy, row.task, row.metric), policies)
        return *family, self.regime(row.regime), place


def seed_rows(snapshot: Snapshot, suite: str) -> list[SeedRow]:
    """The finished cells seed by seed, in the order of `show_rows`. Empty for an unknown suite."""
    variants = _variants(snapshot, suite)
    about = snapshot.query("SELECT * FROM suites WHERE suite = ?", [suite]).to_pylist()
    order = _Order(about[0] if about else {}, variants)
    policies, families = _families(snapshot, suite)
    rows = []
    for key in sorted(families, key=lambda key: order.family(key, policies)):
        scores = families[key].scores
        for name in sorted(scores, key=order.regime):
            reference = matched_baseline(variants, name)
            against = scores.get(reference, {}) if reference else {}
            for seed, value in sorted(scores[name].items()):
                gain = value - against[seed] if seed in against else None
                base = families[key].base
                start = base.get(seed, base.get(None))
                group, policy, task, metric = key
                rows.append(
                    SeedRow(
                        group=group,
                        policy=policy,
                        regime=name,
                        task=task,
                        metric=metric,
                        seed=seed,
                        accuracy=value,
                        base=start,
                        gain=gain,
                        baseline=reference,
                    )
                )
    return rows


def _variants(snapshot: Snapshot, suite: str) -> dict[str, _Variant]:
    rows = snapshot.query(
        "SELECT regime, any_value(regime_type), any_value(options), any_value(budget), any_value(baseline) FROM current_cells "
        "WHERE kind = 'cell' AND suite = ? GROUP BY regime",
        [suite],
    ).to_pylist()
    return {v.name: v for v in (_Variant(*row.values()) for row in rows)}


def matched_baseline(variants: Mapping[str, _Variant], name: str) -> str | None:
    """The baseline variant at `name`'s budget: of the baseline's regime and options. None for a baseline itself."""
    ours = variants[name]
    baseline = variants.get(ours.baseline)
    if baseline is None or name == baseline.name:
        return None
    if ours.budget == baseline.budget:
        return baseline.name
    same = [
        v.name
        for v in variants.values()
        if (v.kind, v.options, v.budget) == (baseline.kind, baseline.options, ours.budget)
    ]
    return None if not same or name in same else same[0]


_SCORES = """
SELECT c.kind, c.group_name, c.regime, c.seed, c.policies, s.task,
    CASE s.metric WHEN 'sampled' THEN 'avg@' || s.repeats ELSE s.metric END AS metric, s.policy, s.accuracy,
    coalesce(t.rollouts, 0) AS rollouts, coalesce(t.generated_tokens, 0) AS tokens,
    coalesce(p.cpu, 0) AS cpu, coalesce(p.gpu, 0) AS gpu, coalesce(w.cpu, 0) AS all_cpu, coalesce(w.gpu, 0) AS all_gpu,
    coalesce(t.peer_received, 0) AS received, coalesce(t.peer_used, 0) AS used
FROM current_cells c JOIN scores s USING (suite, cell)
LEFT JOIN totals t USING (suite, cell, policy)
LEFT JOIN (SELECT suite, cell, policy, sum(cpu_seconds) AS cpu, sum(gpu_seconds) AS gpu FROM spent GROUP BY ALL) p
    USING (suite, cell, policy)
LEFT JOIN (SELECT suite, cell, sum(cpu_seconds) AS cpu, sum(gpu_seconds) AS gpu FROM spent GROUP BY ALL) w USING (suite, cell)
WHERE c.suite = ? AND c.state = 'done' AND s.accuracy IS NOT NULL
ORDER BY c.kind, c.group_name, c.regime, c.seed, c.cell, s.task, s.metric
"""


def _families(
    snapshot: Snapshot, suite: str
) -> tuple[dict[str, Sequence[str]], dict[tuple[str, str, str, str], _Family]]:
    columns = snapshot.query(_SCORES, [suite]).to_pydict()
    rows = list(zip(*columns.values(), strict=True))
    policies: dict[str, Sequence[str]] = {r[1]: r[4] for r in rows if r[0] == "cell"}
    families: dict[tuple[str, str, str, str], _Family] = {}
    base: dict[tuple[str, str, str, str], dict[int | None, float]] = {}
    for kind, group, regime, seed, _, task, metric, policy, accuracy, *costs in rows:
        key = (group, policy, task, metric)
        if kind == "base":
            base.setdefault(key, {})[seed] = accuracy
            continue
        rollouts, tokens, cpu, gpu, _, _, received, used = costs
        family = families.setdefault(key, _Family())
        family.scores.setdefault(regime, {})[seed] = accuracy
        family.costs.setdefault(regime, []).append((rollouts, tokens, cpu, gpu, received, used))
    cells = groupby((r for r in rows if r[0] == "cell"), key=lambda r: (r[1], r[2], r[3], r[5], r[6]))
    for (group, regime, seed, task, metric), members in cells:
        parts = list(members)
        if len(parts) < max(2, len(policies[group])):
            continue  # a mean over some of the policies would not be comparable
        family = families.setdefault((group, MEAN, task, metric), _Family())
        family.scores.setdefault(regime, {})[seed] = float(np.mean([p[8] for p in parts]))
        rollouts, tokens, received, used = (sum(p[i] for p in parts) for i in (9, 10, 15, 16))
        family.costs.setdefault(regime, []).append((rollouts, tokens, parts[0][13], parts[0][14], received, used))
    for (group, policy, task, metric), family in families.items():
        family.base = base.get((group, policy, task, metric), {})
        if policy == MEAN:
            each = [base.get((group, name, task, metric), {}) for name in policies[group]]
            family.base = _mean_base(each)
    return policies, families


def _mean_base(each: Sequence[Mapping[int | None, float]]) -> dict[int | None, float]:
    if not all(each):
        return {}
    seeds = set().union(*each)
    return {s: float(np.mean([b.get(s, b.get(None, np.nan)) for b in each])) for s in seeds}


def _family_rows(
    key: tuple[str, str, str, str], family: _Family, variants: Mapping[str, _Variant], order: _Order
) -> Iterable[ShowRow]:
    group, policy, task, metric = key
    names = sorted(family.scores, key=order.regime)
    seeds = sorted({seed for by_seed in family.scores.values() for seed in by_seed})
    scores = np.array([[family.scores[name].get(seed, np.nan) for seed in seeds] for name in names])
    references = [matched_baseline(variants, name) for name in names]
    other = np.array(
        [scores[names.index(r)] if r in family.scores else np.full(len(seeds), np.nan) for r in references]
    )
    own, gains = mean_interval(scores), paired(scores, other)
    adjusted, detectable, ties = holm(gains.p), minimum_detectable(gains.error, gains.n), tie_groups(scores)
    for i, name in enumerate(names):
        rollouts, tokens, cpu, gpu, received, used = np.sum(family.costs[name], axis=0)
        count = len(family.costs[name])
        with_seed = [family.base.get(seed, family.base.get(None, np.nan)) for seed in family.scores[name]]
        known = bool(gains.n[i])
        yield ShowRow(
            group=group,
            policy=policy,
            regime=name,
            task=task,
            metric=metric,
            seeds=int(own.n[i]),
            base=_number(np.mean(with_seed)),
            accuracy=float(own.mean[i]),
            interval=_bounds(own, i),
            gain=_number(gains.mean[i]),
            gain_interval=_bounds(gains, i),
            baseline=references[i] if known else None,
            peer_used=float(used / received) if received else None,
            rollouts=float(rollouts / count),
            tokens=float(tokens / count),
            cpu_seconds=float(cpu / count),
            gpu_seconds=float(gpu / count),
            budget=variants[name].budget,
            tie_group=int(ties[i]),
            gain_p=_number(adjusted[i]),
            detectable=_number(detectable[i]),
            gain_per_1000_rollouts=_number(per_unit(gains.mean[i], rollouts / count, 1000)),
            gain_per_gpu_second=_number(per_unit(gains.mean[i], gpu / count)),
        )


def _number(value: float | np.floating | np.ndarray) -> float | None:
    return None if np.isnan(value) else float(value)


def _bounds(estimate: Estimate, i: int) -> Pair | None:
    low, high = _number(estimate.low[i]), _number(estimate.high[i])
    return None if low is None or high is None else (low, high)
