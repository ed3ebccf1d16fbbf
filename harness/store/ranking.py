"""Regimes over several groups and benchmarks at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from harness.statistics import MARGIN, improvement_interval, iqm_interval, judge_gain
from harness.statistics.comparison import ALONE, BASELINE, WITHHELD
from harness.store.read import Snapshot
from harness.store.remarks import Missing, Stage, mixed_in, stages
from harness.store.sentences import doubt, joined, sentence
from harness.store.statistic import STATISTICS, Pair, TableRow, bounds, number
from harness.store.table import MEAN, Place, SeedRow, compared, seed_rows

Said = Literal["everything", "opening", "nothing"]
# Of fewer seeds a bootstrap interval comes out far too narrow
MIN_RUNS = 5
End = tuple[str, float]


_RANKED = (
    "seeds", "paired_seeds", "accuracy", "interval", "gain", "gain_interval", "gain_corrected_interval", "baseline", "gain_p",
    "tie_group", "detectable", "seeds_needed", "verdict",
)  # fmt: skip
if TYPE_CHECKING:

    class Rank(msgspec.Struct, frozen=True, kw_only=True):
        """A regime over all chosen panels: statistics of `ShowRow`. ends: the panels with the smallest and largest
        gain, where their mean would mislead."""

        regime: str
        ends: tuple[End, End] | None

        def __getattr__(self, name: str) -> Any: ...
else:
    Rank = msgspec.defstruct(
        "Rank",
        [("regime", str), *((name, STATISTICS[name].kind) for name in _RANKED), ("ends", tuple[End, End] | None)],
        module=__name__,
        frozen=True,
        kw_only=True,
    )


class Ranking(msgspec.Struct, frozen=True):
    """ranks: best mean first. groups, tasks, seeds, panels: their number. baseline: of most. unlike: regimes whose
    baseline had other rollouts."""

    ranks: list[Rank]
    groups: int
    tasks: int
    seeds: int
    baseline: str
    margin: float = MARGIN
    left_out: list[str] = []
    panels: int = 0
    unlike: frozenset[str] = frozenset()


class Pairing(msgspec.Struct, frozen=True, kw_only=True):
    """Two regimes on the same seeds of one group and policy. difference: ours less theirs; p: corrected."""

    group: str
    policy: str
    task: str
    seeds: int
    difference: float
    interval: Pair | None
    p: float | None
    verdict: str


class Aggregate(msgspec.Struct, frozen=True, kw_only=True):
    """A regime over all groups and benchmarks. better: probability that a run beats one of the baseline. Intervals are
    None for fewer than MIN_RUNS seeds and where all resamples agree."""

    regime: str
    seeds: int
    tasks: int
    iqm: float
    iqm_interval: Pair | None
    baseline: str | None
    better: float | None
    better_interval: Pair | None


class Headline(msgspec.Struct, frozen=True):
    """The opening sentence for one choice; `*` is the mean of policies, and all tasks. doubt: seeds that would settle
    it."""

    policy: str
    metric: str
    task: str
    sentence: str
    doubt: str = ""


class Head(msgspec.Struct, frozen=True):
    """The lines above a suite's rows. across: by metric. missing, submission: filled in later."""

    margin: float = MARGIN
    sentences: list[Headline] = []
    across: dict[str, list[Aggregate]] = {}
    missing: list[Missing] = []
    starts: list[Stage] = []
    submission: str = ""
    processors: str = ""


NOTHING_PAIRED = "no seed of two regimes"


def rank(rows: Sequence[SeedRow], margin: float = MARGIN, among: Sequence[SeedRow] | None = None) -> Ranking:
    """Mean over the panels of `rows` (of one policy and metric) that have a verdict, seed by seed. among: all rows of
    that policy and metric, for which the choice is corrected too.

    A group that holds another one (a pair with a third) is left out of the mean, which would count the pair's policies twice
    and narrow an interval by repeating them."""
    panels = list(dict.fromkeys((r.group, r.task) for r in rows))
    if not panels:
        return Ranking([], 0, 0, 0, "", margin)
    several = len(panels) > 1
    names, comparisons = compared(rows if among is None else among, margin, panels if several else None)
    references = {r.regime: r.baseline for r in rows}
    withheld = {(r.group, r.task): r.withheld for r in rows if r.withheld}
    holding = _holding(rows)
    apart = [p for p in panels if p not in holding]
    used = [p for p in apart if any(v not in (*WITHHELD, BASELINE, ALONE) for v in comparisons[p].verdicts)] or apart
    whole = comparisons[None if several else panels[0]]
    if len(used) < len(panels):  # what has no verdict is not in the mean
        whole = compared(rows if among is None else among, margin, used)[1][None]
    by_group, by_task = (len({place[k] for place in panels}) > 1 for k in (0, 1))

    def called(place: Place) -> str:
        return ", ".join(place) if by_group and by_task else place[by_task]

    why = {p: withheld.get(p, NOTHING_PAIRED).removeprefix("withheld: ") for p in panels} | holding
    said = {p: why[p] for p in panels if p not in used}
    ranks, left_out = [], [f"{called(p)} ({why})" for p, why in said.items()]
    for i, name in ((i, name) for i, name in enumerate(names) if name in references):
        if not whole.own.n[i]:
            there = {(r.group, r.task) for r in rows if r.regime == name}
            lacking = [called(p) for p in used if p not in there]
            left_out.append(f"{name} (nothing on {joined(lacking)})" if lacking else f"{name} (no seed is everywhere)")
            continue
        row = TableRow(comparison=whole, place=i, reference=references[name])
        fields = {name: STATISTICS[name].of(row) for name in _RANKED}
        gains = sorted((float(comparisons[p].gains.mean[i]), called(p)) for p in used)
        ends = ((gains[0][1], gains[0][0]), (gains[-1][1], gains[-1][0])) if whole.uneven[i] else None
        ranks.append(Rank(regime=name, ends=ends, **fields))
        if references[name] and not whole.gains.n[i]:
            left_out.append(f"{name} (no seed in common with {references[name]})")
    named = Counter(r.baseline for r in rows if r.baseline is not None).most_common(1)
    return Ranking(
        sorted(ranks, key=lambda r: -r.accuracy),
        len({group for group, _ in used}),
        len({task for _, task in used}),
        max((r.seeds for r in ranks), default=0),
        named[0][0] if named else next((r.regime for r in rows), ""),
        margin,
        left_out,
        len(used),
        frozenset(r.regime for r in rows if r.unlike),
    )


def _holding(rows: Sequence[SeedRow]) -> dict[Place, str]:
    """Panels of a group that holds another group of the same rows, and which."""
    panels = {(r.group, r.task): r.holds for r in rows}
    held = {p: [group for group in groups if (group, p[1]) in panels] for p, groups in panels.items()}
    return {p: f"it holds {joined(groups)}" for p, groups in held.items() if groups}


def pairing(rows: Sequence[SeedRow], ours: str, theirs: str, margin: float = MARGIN) -> list[Pairing]:
    """By group, policy and task of `rows` (all of one metric: they are the family), where they have seeds in common."""
    pairs = []
    by_policy = {
        policy: compared([r for r in rows if r.policy == policy], margin) for policy in {r.policy for r in rows}
    }
    for group, policy, task in dict.fromkeys((r.group, r.policy, r.task) for r in rows):
        names, panels = by_policy[policy]
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
                    verdict=withheld or judge_gain(difference, p, margin),
                )
            )
    return pairs


def aggregates(rows: Sequence[SeedRow]) -> list[Aggregate]:
    """Regimes over two or more groups or benchmarks (else none), best IQM first, of seeds finished everywhere. Groups that hold
    another one are left out, as by `rank`."""
    holding = _holding(rows)
    rows = [r for r in rows if (r.group, r.task) not in holding]
    panels = list(dict.fromkeys((r.group, r.task) for r in rows))
    if len(panels) < 2:
        return []
    references = {r.regime: r.baseline for r in rows}
    runs: dict[str, dict[int, dict[Place, float]]] = {regime: {} for regime in references}
    for r in rows:
        runs[r.regime].setdefault(r.seed, {})[r.group, r.task] = r.accuracy
    scores = {
        regime: np.array([[own[p] for p in panels] for _, own in sorted(seeds.items()) if len(own) == len(panels)])
        for regime, seeds in runs.items()
    }
    aggregated = []
    for regime, ours in scores.items():
        if not len(ours):
            continue
        theirs = scores.get(references[regime] or "", np.array([]))
        middle, better = iqm_interval(ours), improvement_interval(ours, theirs) if len(theirs) else None
        intervals = (
            (each.low, each.high) if each and least >= MIN_RUNS and each.low < each.high else None
            for each, least in ((middle, len(ours)), (better, min(len(ours), len(theirs))))
        )
        aggregated.append(
            Aggregate(
                regime=regime, seeds=len(ours), tasks=len(panels), iqm=middle.value, iqm_interval=next(intervals),
                baseline=references[regime] if better else None, better=better.value if better else None,
                better_interval=next(intervals),
            )
        )  # fmt: skip
    return sorted(aggregated, key=lambda a: -a.iqm)


def heading(snapshot: Snapshot, suite: str, margin: float = MARGIN, said: Said = "everything") -> Head:
    """Sentences for each choice of policy, task and metric, the opening one first. said: all, these alone, or none."""
    every: dict[tuple[str, str], list[SeedRow]] = {}
    for r in seed_rows(snapshot, suite):
        every.setdefault((r.policy, r.metric), []).append(r)
    tasks = list(dict.fromkeys(r.task for rows in every.values() for r in rows))
    policies = sorted(dict.fromkeys(policy for policy, _ in every), key=lambda policy: policy != MEAN)
    choices = [MEAN, *tasks] if len(tasks) > 1 and said == "everything" else [MEAN]
    head = Head(margin, [], {}, starts=stages(snapshot, suite), processors=mixed_in(snapshot, suite))
    for policy in policies[: {"everything": None, "opening": 1, "nothing": 0}[said]]:
        for task in choices:
            for metric in dict.fromkeys(metric for _, metric in every):
                among = every.get((policy, metric), [])
                chosen = [r for r in among if task in (MEAN, r.task)]
                if not chosen:
                    continue
                ranking = rank(chosen, margin, among)
                head.sentences.append(Headline(policy, metric, task, sentence(ranking), doubt(ranking)))
                if (policy, task) == (policies[0], MEAN) and (across := aggregates(chosen)):
                    head.across[metric] = across
    return head
