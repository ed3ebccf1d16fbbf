"""Regimes over several groups and benchmarks at once: what the ranking page and `harness show` open with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np
from jaxtyping import Float

from harness.statistics import (
    MARGIN,
    Comparison,
    improvement,
    improvement_interval,
    iqm,
    iqm_interval,
    verdict,
)
from harness.statistics.bootstrap import BootstrapInterval
from harness.statistics.comparison import ALONE, BASELINE, WITHHELD
from harness.store.comparisons import MEAN, BySeed, Place, Score, compared, finished, mean_score
from harness.store.read import Snapshot
from harness.store.remarks import Missing, Stage, mixed_in, stages
from harness.store.sentences import doubt, joined, sentence
from harness.store.statistic import STATISTICS, Pair, TableRow, bounds, number
from harness.store.table import SeedRow, seed_rows

Said = Literal["everything", "opening", "nothing"]
# Seeds from which on a bootstrap interval is shown: of fewer it comes out far too narrow
MIN_RUNS = 5
End = tuple[str, float]


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """One regime over all chosen groups and benchmarks, compared in one family with every panel (`ShowRow`). ends: the
    panels with the smallest and the largest gain, where their mean would mislead."""

    regime: str
    seeds: int
    paired_seeds: int
    accuracy: float
    interval: Pair | None
    gain: float | None
    gain_interval: Pair | None
    gain_corrected_interval: Pair | None
    baseline: str | None
    gain_p: float | None
    tie_group: str
    detectable: float | None
    seeds_needed: int | None
    verdict: str
    ends: tuple[End, End] | None


class Ranking(msgspec.Struct, frozen=True):
    """ranks: best mean first. groups, tasks, seeds: how many are behind them. pairs: whether groups are pairs. baseline:
    the one that most are compared with."""

    ranks: list[Rank]
    groups: int
    tasks: int
    seeds: int
    pairs: bool
    baseline: str
    margin: float = MARGIN
    left_out: list[str] = []


class Pairing(msgspec.Struct, frozen=True, kw_only=True):
    """Two regimes on the same seeds of one group and policy, compared as in the table. difference: ours less theirs; p:
    corrected."""

    group: str
    policy: str
    task: str
    seeds: int
    difference: float
    interval: Pair | None
    p: float | None
    verdict: str


class Aggregate(msgspec.Struct, frozen=True, kw_only=True):
    """One regime over all groups and benchmarks (tasks, in Agarwal et al.). better: probability that a run of it beats one
    of its baseline. Intervals are None for fewer than MIN_RUNS seeds and where all resamples are the same."""

    regime: str
    seeds: int
    tasks: int
    iqm: float
    iqm_interval: Pair | None
    baseline: str | None
    better: float | None
    better_interval: Pair | None


class Headline(msgspec.Struct, frozen=True):
    """The opening sentence for one choice; `*` is the mean of policies, and all tasks. doubt: how many seeds would settle it."""

    policy: str
    metric: str
    task: str
    sentence: str
    doubt: str = ""


class Head(msgspec.Struct, frozen=True):
    """What stands above a suite's rows. across: by metric, the regimes over all groups and benchmarks. missing, submission:
    filled in by who shows it. starts: what supervised starts changed."""

    margin: float = MARGIN
    sentences: list[Headline] = []
    across: dict[str, list[Aggregate]] = {}
    missing: list[Missing] = []
    starts: list[Stage] = []
    submission: str = ""
    processors: str = ""


NOTHING_PAIRED = "no seed of two regimes"


def rank(
    rows: Sequence[SeedRow], pairs: bool, margin: float = MARGIN, among: Sequence[SeedRow] | None = None
) -> Ranking:
    """Mean over the panels of `rows` (of one policy and metric), seed by seed, without panels that have no verdict. among:
    all rows of that policy and metric, for which the choice is corrected too."""
    panels = list(dict.fromkeys((r.group, r.task) for r in rows))
    if not panels:
        return Ranking([], 0, 0, 0, pairs, "", margin)
    names, found = _compared(rows if among is None else among, margin, panels)
    references = {r.regime: r.baseline for r in rows}
    withheld = {(r.group, r.task): r.withheld for r in rows if r.withheld}
    used = [p for p in panels if any(v not in (*WITHHELD, BASELINE, ALONE) for v in found[p].verdicts)] or panels
    several = [len({place[k] for place in panels}) > 1 for k in (0, 1)]

    def called(place: Place) -> str:
        return ", ".join(part for part, named in zip(place, several, strict=True) if named) or place[0]

    said = {p: withheld.get(p, NOTHING_PAIRED).removeprefix("withheld: ") for p in panels if p not in used}
    ranks, left_out = [], [f"{called(p)} ({why})" for p, why in said.items()]
    whole = found[None]
    here = dict.fromkeys(r.regime for r in rows)
    for i, name in ((i, name) for i, name in enumerate(names) if name in here):
        if not whole.own.n[i]:
            there = {(r.group, r.task) for r in rows if r.regime == name}
            lacking = [called(p) for p in used if p not in there]
            left_out.append(f"{name} (nothing on {joined(lacking)})" if lacking else f"{name} (no seed is everywhere)")
            continue
        row = TableRow(found=whole, place=i, reference=references[name])
        fields = {field: STATISTICS[field].of(row) for field in Rank.__struct_fields__ if field in STATISTICS}
        gains = sorted((float(found[p].gains.mean[i]), called(p)) for p in used)
        ends = ((gains[0][1], gains[0][0]), (gains[-1][1], gains[-1][0])) if whole.uneven[i] else None
        ranks.append(Rank(regime=name, ends=ends, **fields))
    named = Counter(r.baseline for r in rows if r.baseline is not None).most_common(1)
    return Ranking(
        sorted(ranks, key=lambda r: -r.accuracy),
        len({group for group, _ in used}),
        len({task for _, task in used}),
        max((r.seeds for r in ranks), default=0),
        pairs,
        named[0][0] if named else next((r.regime for r in rows), ""),
        margin,
        left_out,
    )


def _compared(
    rows: Sequence[SeedRow], margin: float, chosen: Sequence[Place] | None = None
) -> tuple[list[str], dict[Place | None, Comparison]]:
    withheld = {((r.group, r.task), r.regime): r.withheld for r in rows if r.withheld}
    one = chosen is not None and len(chosen) == 1
    names, found = compared(
        _panels(rows), {r.regime: r.baseline for r in rows}, margin, withheld, None if one else chosen
    )
    return names, {**found, None: found[chosen[0]]} if one and chosen else found


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What one policy has of a regime, over the chosen benchmarks."""

    regime: str
    group: str
    policy: str
    gain: float | None
    verdict: str


def whom(rows: Sequence[SeedRow], margin: float = MARGIN, among: Sequence[SeedRow] | None = None) -> list[Share]:
    """Every policy by itself, group by group: the mean over benchmarks, corrected for all groups that have a policy of that
    name. among: as in `rank`."""
    own: dict[str, list[SeedRow]] = {}
    tasks = {r.task for r in rows}
    for r in rows if among is None else among:
        if r.policy != MEAN and r.task in tasks:
            own.setdefault(r.policy, []).append(r)
    found = {policy: _compared(_over_tasks(part), margin) for policy, part in own.items()}
    shares = []
    for group, policy in dict.fromkeys((r.group, r.policy) for r in rows if r.policy != MEAN):
        names, panels = found[policy]
        panel = panels[group, ""]
        shares += [
            Share(regime=name, group=group, policy=policy, gain=number(panel.gains.mean[i]), verdict=panel.verdicts[i])
            for i, name in sorted(enumerate(names), key=lambda at: -panel.own.mean[at[0]])
            if panel.verdicts[i] not in (BASELINE, ALONE)
        ]
    return shares


def _over_tasks(rows: Sequence[SeedRow]) -> list[SeedRow]:
    tasks = {group: {r.task for r in rows if r.group == group} for group in {r.group for r in rows}}
    parts: dict[tuple[str, str, int], list[SeedRow]] = {}
    for r in rows:
        parts.setdefault((r.group, r.regime, r.seed), []).append(r)
    means = []
    for (group, *_), each in parts.items():
        if len(each) == len(tasks[group]):
            mean = mean_score([Score(r.accuracy, r.noise) for r in each])
            means.append(msgspec.structs.replace(each[0], task="", accuracy=mean.accuracy, noise=mean.noise))
    return means


def pairing(rows: Sequence[SeedRow], ours: str, theirs: str, margin: float = MARGIN) -> list[Pairing]:
    """The two on each group and policy of `rows` (of one task and metric) where they have seeds in common."""
    pairs = []
    found = {policy: _compared([r for r in rows if r.policy == policy], margin) for policy in {r.policy for r in rows}}
    for group, policy, task in dict.fromkeys((r.group, r.policy, r.task) for r in rows):
        names, panels = found[policy]
        if not {ours, theirs} <= set(names):
            continue
        i, j = names.index(ours), names.index(theirs)
        panel = panels[group, task]
        difference, p = panel.difference[i, j], float(panel.p[i, j])
        withheld = next((panel.verdicts[k] for k in (i, j) if panel.verdicts[k] in WITHHELD), None)
        if difference.n:
            pairs.append(
                Pairing(
                    group=group,
                    policy=policy,
                    task=task,
                    seeds=int(difference.n),
                    difference=float(difference.mean),
                    interval=bounds(difference),
                    p=number(p),
                    verdict=withheld or verdict(difference, p, margin),
                )
            )
    return pairs


def aggregates(rows: Sequence[SeedRow]) -> list[Aggregate]:
    """Regimes over at least two groups or benchmarks, best IQM first; empty where there is only one."""
    panels = _panels(rows)
    if len(panels) < 2:
        return []
    references = {r.regime: r.baseline for r in rows}
    runs = {regime: _runs(panels, regime) for regime in references}
    found = []
    for regime, scores in runs.items():
        other = runs.get(references[regime] or "", np.empty((0, 0)))
        if not scores.size:
            continue
        several, paired = len(scores) >= MIN_RUNS, min(len(scores), len(other)) >= MIN_RUNS
        found.append(
            Aggregate(
                regime=regime,
                seeds=len(scores),
                tasks=len(panels),
                iqm=iqm(scores),
                iqm_interval=_width(iqm_interval(scores)) if several else None,
                baseline=references[regime] if other.size else None,
                better=improvement(scores, other) if other.size else None,
                better_interval=_width(improvement_interval(scores, other)) if paired else None,
            )
        )
    return sorted(found, key=lambda a: -a.iqm)


def heading(snapshot: Snapshot, suite: str, margin: float = MARGIN, said: Said = "everything") -> Head:
    """Sentences for each choice of policy, task and metric, the ranking page's first. said: all, these alone, or none."""
    pairs = in_pairs(snapshot, suite)
    families = finished(snapshot, suite).families
    tasks = list(dict.fromkeys(key.task for key in families))
    policies = sorted(dict.fromkeys(key.policy for key in families), key=lambda policy: policy != MEAN)
    choices = [MEAN, *tasks] if len(tasks) > 1 and said == "everything" else [MEAN]
    head = Head(margin, [], {}, starts=stages(snapshot, suite), processors=mixed_in(snapshot, suite))
    for policy in policies[: {"everything": None, "opening": 1, "nothing": 0}[said]]:
        rows = seed_rows(snapshot, suite, policy)
        for task in choices:
            for metric in dict.fromkeys(key.metric for key in families):
                among = [r for r in rows if r.metric == metric]
                chosen = [r for r in among if task in (MEAN, r.task)]
                if not chosen:
                    continue
                ranking = rank(chosen, pairs, margin, among)
                head.sentences.append(Headline(policy, metric, task, sentence(ranking), doubt(ranking)))
                if (policy, task) == (policies[0], MEAN) and (found := aggregates(chosen)):
                    head.across[metric] = found
    return head


def in_pairs(snapshot: Snapshot, suite: str) -> bool:
    sizes = snapshot.query(
        "SELECT DISTINCT len(policies) AS n FROM current_cells WHERE suite = ? AND kind = 'cell'", [suite]
    )
    return set(sizes["n"].to_pylist()) <= {2}


def _width(found: BootstrapInterval) -> Pair | None:
    return (found.low, found.high) if found.low < found.high else None


def _panels(rows: Iterable[SeedRow]) -> dict[Place, dict[str, BySeed]]:
    found: dict[Place, dict[str, BySeed]] = {}
    for r in rows:
        by_regime = found.setdefault((r.group, r.task), {})
        by_regime.setdefault(r.regime, {})[r.seed] = Score(r.accuracy, r.noise)
    return found


def _runs(panels: dict[Place, dict[str, BySeed]], regime: str) -> Float[np.ndarray, "seeds panels"]:
    """Accuracies of the seeds that have finished everywhere."""
    parts = [by_regime.get(regime, {}) for by_regime in panels.values()]
    return np.array([[part[seed].accuracy for part in parts] for seed in sorted(set.intersection(*map(set, parts)))])
