"""What a suite's finished cells scored, regime by regime and seed by seed: read once, judged by `statistics.judge`."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Float

from harness.statistics import MARGIN, Judgement, judge, sampling_variance
from harness.statistics.judgement import CEILING, FLOOR, IDLE
from harness.store.read import Snapshot
from harness.store.tuning import tuned_label

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


Costs = Float[np.ndarray, "seeds spent"]
"""A `Spent` in each row."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A line of the tables. name: what they call it. cells: the variant in the suite that it is made of. reference: the line that
    its gains are over; None for a baseline."""

    name: str
    kind: str
    options: str
    budget: str
    baseline: str
    cells: str = ""
    reference: str | None = None


@dataclass(slots=True)
class Family:
    """Everything of one (group, policy, task, metric): scores and costs of each regime by seed. withheld: why nothing is said of a
    regime (`statistics.judgement.WITHHELD`), where nothing is."""

    scores: dict[str, BySeed] = field(default_factory=dict)
    base: dict[int | None, float] = field(default_factory=dict)
    costs: dict[str, Costs] = field(default_factory=dict)
    withheld: dict[str, str] = field(default_factory=dict)


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
        """What `name` is compared with; None for a baseline itself."""
        return self.variants[name].reference


Place = tuple[str, str]
"""Group and task: one panel."""


def judged(
    panels: Mapping[Place, Mapping[str, BySeed]],
    references: Mapping[str, str | None],
    margin: float = MARGIN,
    withheld: Mapping[tuple[Place, str], str] | None = None,
    chosen: Container[Place] | None = None,
) -> tuple[list[str], dict[Place | None, Judgement]]:
    """What the seeds say of the regimes of one choice of policy and metric, in the order of `references`: by panel, and under None
    over all of them, or those that are chosen. withheld: why nothing is said of a regime on a panel."""
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
    found = judge(values[..., 0], values[..., 1], rows, margin, reasons.reshape(values.shape[:2]), inside)
    return names, dict(zip([*panels, None], found, strict=True))


_SCORES = """
SELECT c.kind, c.group_name, c.regime, c.seed, c.policies, s.task,
    CASE s.metric WHEN 'sampled' THEN 'avg@' || s.repeats ELSE s.metric END AS metric, s.policy, s.accuracy,
    coalesce(s.error, 'NaN') AS error, s.questions,
    CASE s.metric WHEN 'sampled' THEN s.answers ELSE s.questions END AS answers,
    coalesce(t.rollouts, 0) AS rollouts, coalesce(t.generated_tokens, 0) AS tokens,
    coalesce(p.cpu, 0) AS cpu, coalesce(p.gpu, 0) AS gpu, coalesce(t.peer_received, 0) AS received,
    coalesce(t.peer_used, 0) AS used,
    coalesce(t.gradient_norm, 'NaN') AS gradient, coalesce(w.cpu, 0) AS all_cpu, coalesce(w.gpu, 0) AS all_gpu
FROM current_cells c JOIN scores s USING (suite, cell)
LEFT JOIN totals t USING (suite, cell, policy)
LEFT JOIN (
    SELECT suite, cell, policy, round(sum(cpu_seconds), 6) AS cpu, round(sum(gpu_seconds), 6) AS gpu FROM spent GROUP BY ALL
) p USING (suite, cell, policy)
LEFT JOIN (
    SELECT suite, cell, round(sum(cpu_seconds), 6) AS cpu, round(sum(gpu_seconds), 6) AS gpu FROM spent GROUP BY ALL
) w USING (suite, cell)
WHERE c.suite = ? AND c.state = 'done' AND s.accuracy IS NOT NULL
ORDER BY kind, c.group_name, s.task, 7, s.policy, c.regime, c.seed, c.cell
"""
_VARIANTS = """
SELECT regime, any_value(regime_type), any_value(options), any_value(budget),
    coalesce(nullif(any_value(s.baseline), ''), any_value(c.baseline)), regime AS cells
FROM current_cells c LEFT JOIN suites s USING (suite)
WHERE kind = 'cell' AND suite = ? GROUP BY regime
"""


def finished(snapshot: Snapshot, suite: str) -> Finished:
    """The suite's finished cells; nothing for an unknown suite. Read once from a snapshot."""
    kept = f"finished {suite}"
    if kept not in snapshot.derived:
        snapshot.derived[kept] = _finished(snapshot, suite)
    found: Finished = snapshot.derived[kept]
    return found


def _finished(snapshot: Snapshot, suite: str) -> Finished:
    found = snapshot.query(_VARIANTS, [suite]).to_pylist()
    described = snapshot.query("SELECT groups, variants, tuned FROM suites WHERE suite = ?", [suite]).to_pylist()
    about = described[0] if described else {"groups": [], "variants": [], "tuned": []}
    variants = _lines([Variant(*row.values()) for row in found], about["variants"], about["tuned"])
    scored = _Scored(snapshot.query(_SCORES, [suite]))
    families: dict[Key, Family] = {}
    base: dict[Key, dict[int | None, float]] = {}
    policies: dict[str, Sequence[str]] = {}
    lines: dict[tuple[str, str, str, str], list[slice]] = {}
    idle: dict[tuple[str, str, str], bool] = {}
    for kind, key, regime, rows in scored.lines():
        if kind == "base":
            base[key] = dict(zip(scored.seeds[rows], scored.accuracy[rows].tolist(), strict=True))
        else:
            lines.setdefault((key.group, key.task, key.metric, regime), []).append(rows)
            _add(families, key, regime, scored.seeds[rows], scored.scores(rows), scored.spent[rows])
            idle[key.group, key.policy, regime] = not scored.gradient[rows].any()
    for group in dict.fromkeys(group for group, *_ in lines):
        last = max(
            (rows.stop - 1 for line, each in lines.items() if line[0] == group for rows in each),
            key=lambda i: (scored.regime(i), scored.seeds[i] is None, scored.seeds[i] or 0),
        )
        policies[group] = scored.policies(last)
    for (group, task, metric, regime), each in lines.items():
        whole = scored.together(
            each, max(2, len(policies[group]))
        )  # a mean over some of the policies is not comparable
        if whole:
            _add(families, Key(group, MEAN, task, metric), regime, *scored.means(whole))
    for key, family in families.items():
        family.base = base.get(key, {})
        if key.policy == MEAN:
            family.base = _mean_base([base.get(key._replace(policy=name), {}) for name in policies[key.group]])
        members = policies[key.group] if key.policy == MEAN else [key.policy]
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
        first = -1 if key.policy == MEAN else list(policies[key.group]).index(key.policy)
        return groups.get(key.group, len(groups)), key.group, key.task, key.metric == "greedy", key.metric, first

    places = {name: i for i, name in enumerate(variants)}
    return Finished({key: families[key] for key in sorted(families, key=place)}, variants, policies, places)


def _lines(found: Sequence[Variant], order: Sequence[str], tuned: Sequence[Sequence[str]]) -> dict[str, Variant]:
    """The suite's variants as tables name them: as they stand in the suite, and then each with the settings that tuning chose,
    beside the baseline whose settings the same tuning group chose.

    The baseline of a variant is the one at its rollout budget, of the baseline's regime and options.
    """
    places = {name: i for i, name in enumerate(order)}
    copies = {final for variant, final, _ in tuned if final != variant}
    by_name = {v.name: v for v in sorted(found, key=lambda v: (places.get(v.name, len(places)), v.name))}
    lines: dict[str, Variant] = {}
    for ours in by_name.values():
        if ours.name in copies or (baseline := by_name.get(ours.baseline)) is None:
            reference = None
        else:
            wanted = (baseline.kind, baseline.options, ours.budget)
            same = [
                v.name for v in by_name.values() if (v.kind, v.options, v.budget) == wanted and v.name not in copies
            ]
            same = [baseline.name] if ours.budget == baseline.budget else same
            reference = None if ours.name in (*same, baseline.name) or not same else same[0]
        if ours.name not in copies:
            lines[ours.name] = replace(ours, reference=reference)
    for variant, final, on in tuned:
        if final in by_name and variant in lines:
            ours = lines[variant]
            reference = ours.reference and tuned_label(ours.reference, on)
            lines[tuned_label(variant, on)] = replace(
                ours, name=tuned_label(variant, on), cells=final, reference=reference
            )
    return lines


class _Scored:
    """The rows of `_SCORES` by column: there are as many as cells, policies and metrics, too many to be objects."""

    def __init__(self, data: pa.Table) -> None:
        self._data = data
        self.seeds: list[int] = data["seed"].to_pylist()
        self.accuracy = _numbers(data, "accuracy")
        self.spent = np.stack([_numbers(data, name) for name in Spent._fields], axis=1)
        self._whole = np.stack([_numbers(data, name) for name in ("all_cpu", "all_gpu")], axis=1)
        self.gradient = _numbers(data, "gradient")
        self._noise = sampling_variance(
            *(_numbers(data, name) for name in ("accuracy", "error", "questions", "answers"))
        )

    def lines(self) -> Iterator[tuple[str, Key, str, slice]]:
        """(kind, key, regime) with their rows, in the order of seeds."""
        names = ("kind", "group_name", "policy", "task", "metric", "regime")
        columns = [self._data[name].combine_chunks().dictionary_encode() for name in names]
        codes = [np.from_dlpack(column.indices) for column in columns]
        new = np.any([np.diff(code, prepend=-1) != 0 for code in codes], axis=0)
        starts = np.flatnonzero(new).tolist()
        for start, stop in zip(starts, [*starts, len(new)][1:], strict=True):
            kind, group, policy, task, metric, regime = (column[start].as_py() for column in columns)
            yield kind, Key(group, policy, task, metric), regime, slice(start, stop)

    def regime(self, row: int) -> str:
        return str(self._data["regime"][row].as_py())

    def policies(self, row: int) -> Sequence[str]:
        """Of the row's group."""
        names: list[str] = self._data["policies"][row].as_py()
        return names

    def scores(self, rows: slice) -> Iterable[Score]:
        return map(Score, self.accuracy[rows].tolist(), self._noise[rows].tolist())

    def together(self, lines: Sequence[slice], least: int) -> dict[int, list[int]]:
        """The rows of each seed on which at least so many policies have a score, in the order of their names."""
        by_seed: dict[int, list[int]] = {}
        for rows in lines:
            for i in range(rows.start, rows.stop):
                by_seed.setdefault(self.seeds[i], []).append(i)
        return {seed: by_seed[seed] for seed in sorted(by_seed) if len(by_seed[seed]) >= least}

    def means(self, by_seed: Mapping[int, Sequence[int]]) -> tuple[list[int], Iterable[Score], Costs]:
        """Seeds, each one's mean score over policies, and what its whole cell cost."""
        scores, costs = dict[int, Score](), dict[int, Costs]()
        for size in {len(rows) for rows in by_seed.values()}:
            seeds = [seed for seed, rows in by_seed.items() if len(rows) == size]
            at = np.array([by_seed[seed] for seed in seeds])
            noise = sum(self._noise[at].T) / size**2
            means = map(Score, self.accuracy[at].mean(axis=1).tolist(), noise.tolist())
            spent = self.spent[at].sum(axis=1)
            spent[:, _WHOLE] = self._whole[at[:, 0]]
            scores |= zip(seeds, means, strict=True)
            costs |= zip(seeds, spent, strict=True)
        return list(by_seed), [scores[seed] for seed in by_seed], np.stack([costs[seed] for seed in by_seed])


_WHOLE = [Spent._fields.index("cpu"), Spent._fields.index("gpu")]


def _numbers(data: pa.Table, name: str) -> Float[np.ndarray, "rows"]:
    """A column without nulls. Not by `to_numpy`, which imports pandas."""
    chunks = [np.from_dlpack(chunk) for chunk in data[name].chunks]
    return np.concatenate([*chunks, np.empty(0)]).astype(np.float64)


def _add(
    families: dict[Key, Family], key: Key, regime: str, seeds: Iterable[int], scores: Iterable[Score], costs: Costs
) -> None:
    family = families.setdefault(key, Family())
    family.scores[regime] = dict(zip(seeds, scores, strict=True))
    family.costs[regime] = costs


def mean_score(parts: Sequence[Score]) -> Score:
    """The mean of scores whose answers are drawn one by one."""
    return Score(float(np.mean([s.accuracy for s in parts])), sum(s.noise for s in parts) / len(parts) ** 2)


def _mean_base(each: Sequence[Mapping[int | None, float]]) -> dict[int | None, float]:
    if not all(each):
        return {}
    seeds = set().union(*each)
    return {s: float(np.mean([b.get(s, b.get(None, np.nan)) for b in each])) for s in seeds}
