"""From rows of the store to answers, tables and panels."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import pandas as pd

from harness.statistics import mean_interval
from harness.statistics.comparison import (
    BASELINE,
    DIFFERS,
    DIFFERS_POLICIES,
    EQUIVALENT,
    GAINS,
    INCONCLUSIVE,
    LOSES,
    WITHHELD,
)
from harness.store.finished import SeedRow, ShowRow
from harness.store.ranking import Rank, Ranking, rank_regimes
from harness.store.sentences import joined, verdict_mark
from harness.store.statistic import PERCENT, POINTS, STATISTICS, Pair, Statistic, select_columns
from harness.store.table import MEAN
from harness.store.tuning import without_trials
from leaderboard.charts import SIGNS, Forest

KEY = (
    "Gain: over the baseline at the same rollout budget. Whom: each policy by itself. Cost: seconds of CPU (of GPU, where the "
    "baseline used one) over the baseline's."
)
BEST = (
    "Of each suite the regime with the largest gain, of those that gain where one does. The best of several is likely to have been "
    "lucky too: its interval is corrected for all that its suite compares, and not corrected for the choice among suites."
)
INTERVALS = (
    "A gain's interval is the one that its verdict is made from: corrected for all that is compared, and by itself (95 %) where "
    "the verdict is “no effect” or is withheld. An accuracy has its 95 % interval over seeds."
)
SPREAD = "95 % intervals over seeds (Student t)"
_NAMED = 4


def show_frame(rows: Sequence[msgspec.Struct], kind: type[msgspec.Struct] = ShowRow) -> pd.DataFrame:
    """The fields of `kind`; `gain_interval` is split into `gain_low` and `gain_high`, None is NaN."""
    frame = pd.DataFrame.from_records([msgspec.structs.astuple(r) for r in rows], columns=list(kind.__struct_fields__))
    for s in (STATISTICS[name] for name in kind.__struct_fields__ if name in STATISTICS):
        if s.interval_of:
            for i, end in enumerate(_ends(s)):
                frame[end] = [pair[i] if pair else float("nan") for pair in frame[s.name]]
            frame = frame.drop(columns=s.name)
        elif s.kind in (float | None, int | None):
            frame[s.name] = frame[s.name].astype(float)
    return frame


def _ends(interval: Statistic) -> tuple[str, str]:
    prefix = interval.name.removesuffix("interval")
    return f"{prefix}low", f"{prefix}high"


@dataclass(frozen=True, slots=True)
class ShownChoice:
    """One policy (`*`: their mean) and metric on some groups and benchmarks."""

    metric: str
    policy: str
    groups: tuple[str, ...]
    tasks: tuple[str, ...]

    def seeds(self, every: Sequence[SeedRow]) -> list[SeedRow]:
        return [r for r in every if r.metric == self.metric and r.group in self.groups and r.task in self.tasks]

    def every_policy(self, every: pd.DataFrame) -> pd.DataFrame:
        here = every["group"].isin(self.groups) & every["task"].isin(self.tasks)
        return every[here & (every["metric"] == self.metric)]

    def table(self, every: pd.DataFrame) -> pd.DataFrame:
        return every[every["policy"] == self.policy].pipe(self.every_policy)


def opening(table: pd.DataFrame, metric: str = "") -> ShownChoice:
    """What a suite opens with, of its first metric or this one. table: not empty."""
    policy = MEAN if (table["policy"] == MEAN).any() else table["policy"].iloc[0]
    groups, tasks = (tuple(dict.fromkeys(table[column])) for column in ("group", "task"))
    return ShownChoice(metric or table["metric"].iloc[0], policy, groups, tasks)


# What it says ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """each: rows of the policies by regime, the largest gain first."""

    metric: str
    ranking: Ranking
    costs: Mapping[str, float]
    each: Mapping[str, Sequence[Mapping[str, Any]]]

    @cached_property
    def lines(self) -> pd.DataFrame:
        return pd.DataFrame([{"Regime": r.regime, "Gain, points": _gain(r), **self._of(r)} for r in self._compared()])

    def line(self) -> dict[str, str]:
        compared = self._compared()
        if not compared:
            return {"Most gain, points": "nothing to compare yet"}
        first = next((r for r in compared if r.verdict == GAINS), compared[0])
        every = {"All regimes": _counted(r.verdict for r in compared), "Metric": self.metric}
        head = {"Most gain, points": f"{first.regime} {_gain(first)}", **self._of(first)}
        return {**head, "Its seeds": str(first.seeds), **every}

    def _compared(self) -> list[Rank]:
        return sorted((r for r in self.ranking.ranks if r.gain is not None), key=lambda r: -(r.gain or 0.0))

    def _of(self, r: Rank) -> dict[str, str]:
        cost = self.costs.get(r.regime, float("nan"))
        return {
            "Is it real?": f"{SIGNS[r.verdict]} {verdict_mark(r.verdict, self.ranking.margin)}",
            "Whom": self._whom(r.regime),
            "Cost": "–" if cost != cost else f"{cost:.1f}×",
        }

    def _whom(self, regime: str) -> str:
        """Say in words what each policy gains, or of many how many gain and lose, and who least and most."""
        own = self.each.get(regime, ())
        where = [c for c in ("group", "task") if len({row[c] for row in own}) > 1]
        named = [" in ".join([row["policy"], *(row[c] for c in where)]) for row in own]
        numbers = [POINTS.text(row["gain"]) for row in own]
        if len(own) <= _NAMED:
            margin = self.ranking.margin
            told = zip(named, numbers, own, strict=True)
            return ", ".join(f"{name} {number} ({verdict_mark(row['verdict'], margin)})" for name, number, row in told)
        counted = _count_in_words([row["verdict"] for row in own])
        return f"Of {len(own)} policies {counted}. Least: {named[-1]} {numbers[-1]}. Most: {named[0]} {numbers[0]}."


def answer(choice: ShownChoice, table: pd.DataFrame, every: Sequence[SeedRow], margin: float) -> Outcome:
    costs = choice.table(table).groupby("regime")["cost"].mean().to_dict()
    among = [r for r in every if (r.metric, r.policy) == (choice.metric, choice.policy)]
    policies = choice.every_policy(table[table["policy"] != MEAN]).dropna(subset="gain")
    each = defaultdict[str, list[dict[str, Any]]](list)
    for row in policies.sort_values("gain", ascending=False, kind="stable").to_dict("records"):
        each[row["regime"]].append(row)
    return Outcome(choice.metric, rank_regimes(choice.seeds(among), margin, among), costs, each)


def overview(
    suites: Sequence[str],
    find: Callable[[str], Outcome | None],
    state: Callable[[str], str],
) -> pd.DataFrame:
    outcomes = {suite: find(suite) for suite in without_trials(suites)}
    told = {
        s: {"Most gain, points": "no cell has finished"} if one is None else one.line() for s, one in outcomes.items()
    }
    return pd.DataFrame([{"Suite": s, **line, "Cells": state(s)} for s, line in told.items()]).fillna("")


def judged_by(verdict: str, alone: Pair | None, corrected: Pair | None) -> Pair | None:
    """The interval behind a gain's verdict (INTERVALS)."""
    return alone if verdict == EQUIVALENT or corrected is None else corrected


def _gain(r: Rank) -> str:
    interval = judged_by(r.verdict, r.gain_interval, r.gain_corrected_interval)
    return POINTS.with_interval(r.gain, interval)


_VERBS = {
    GAINS: ("gains", "gain"),
    LOSES: ("loses", "lose"),
    DIFFERS: ("differs between groups", "differ between groups"),
    DIFFERS_POLICIES: ("differs", "differ"),
    EQUIVALENT: ("shows no effect", "show no effect"),
    INCONCLUSIVE: ("is open", "are open"),
    **{why: (f"is {why}", f"are {why}") for why in WITHHELD},
}


def _count_in_words(verdicts: Sequence[str]) -> str:
    """Write how many there are of each verdict, e.g. `4 show no effect and 11 are open`."""
    counts = Counter(verdicts)
    return joined([f"{counts[v]} {_VERBS[v][counts[v] > 1]}" for v in _VERBS if counts[v]])


def _counted(verdicts: Iterable[str]) -> str:
    counts = Counter(verdicts)
    order = (GAINS, LOSES, DIFFERS, DIFFERS_POLICIES, EQUIVALENT, INCONCLUSIVE, *WITHHELD)
    return ", ".join(f"{counts[v]}\u00a0{SIGNS[v]}" for v in order if counts[v])


# Figures and tables ---------------------------------------------------------------------------------------------------


def panels(
    choice: ShownChoice, table: pd.DataFrame, said: Outcome, measure: str, order: Sequence[str], mean: str
) -> list[Forest]:
    """Of each group and benchmark, before them one of their mean, whose title is `mean` if it is over all. measure:
    `gain` (points) or `accuracy` (percent)."""
    rows, margin = choice.table(table), said.ranking.margin
    place = {regime: i for i, regime in enumerate(order)}
    parts: dict[str, list[Any]] = defaultdict(list)
    for row in rows.to_dict("records"):
        parts[f"{row['group']}: {row['task']}, {choice.metric}"].append(row)
    if len(parts) > 1 and said.ranking.ranks:
        spent = rows.groupby("regime")[["rollouts", "cpu_seconds"]].mean()
        ranks = show_frame(said.ranking.ranks, Rank).join(spent, on="regime")
        if said.ranking.panels < len(parts):
            mean = f"Mean of {said.ranking.panels} of the {{}} panels (which are left out is said in full above)"
        parts = {f"{mean.format(len(parts))}, {choice.metric}": ranks.to_dict("records"), **parts}
    drawn = [
        _panel(sorted(part, key=lambda row: place[row["regime"]]), title, measure, margin)
        for title, part in parts.items()
    ]
    # A baseline by itself has no gain: its axis would be empty
    return [f for f in drawn if f.rows and (measure != "gain" or any(row["verdict"] != BASELINE for row in f.rows))]


def _panel(rows: Sequence[Mapping[str, Any]], title: str, measure: str, margin: float) -> Forest:
    gains = measure == "gain"
    unit = POINTS if gains else PERCENT
    marks = []
    for row in rows:
        ends = {p: (row[f"{p}low"], row[f"{p}high"]) for p in ("", "gain_", "gain_corrected_")}
        corrected = ends["gain_corrected_"]
        judged = judged_by(row["verdict"], ends["gain_"], None if pd.isna(corrected[0]) else corrected)
        middle, (low, high) = (row["gain"], judged or ends["gain_"]) if gains else (row["accuracy"], ends[""])
        if pd.isna(middle):
            if row["verdict"] != BASELINE:
                continue
            middle = 0.0  # the baseline's own gain
        low, high = (middle if pd.isna(x) else x for x in (low, high))
        label = unit.with_interval(middle, (low, high) if high > low else None)
        words = verdict_mark(row["verdict"], margin)
        detail = f"{row['rollouts']:,.0f} rollouts, {row['cpu_seconds']:,.0f} CPU-s"
        value, low, high = (100 * x for x in (middle, low, high))
        mark = {"name": row["regime"], "value": value, "low": low, "high": high, "verdict": row["verdict"]}
        marks.append({**mark, "words": words, "label": label, "detail": detail})
    return Forest(marks, title, "gain, points" if gains else "accuracy, %", zero=gains)


def over_seeds(rows: pd.DataFrame, by: Sequence[str], x: str, most: float | None = None) -> pd.DataFrame:
    """Means of `y` over seeds with 95 % intervals: columns `by`, regime, x, y, low, high. x: the column across; most: of
    what is never below 0."""
    place = [*by, "regime", "steps"]
    each = rows.groupby([*place, "seed"], as_index=False, sort=False)[sorted({"y", x} - {"steps"})].mean()
    wide = each.pivot_table(index=place, columns="seed", values="y", sort=False)
    means = mean_interval(wide.to_numpy())
    points = wide.index.to_frame(index=False).assign(y=means.mean, low=means.low, high=means.high)
    points["x"] = points["steps"] if x == "steps" else each.groupby(place)[x].mean().reindex(wide.index).to_numpy()
    cut = (None, None) if most is None else (0.0, most)
    ends = {end: points[end].fillna(points["y"]).clip(*cut) for end in ("low", "high")}
    return points.assign(**ends).drop(columns="steps").sort_values([*by, "regime", "x"])


def readable(table: pd.DataFrame, order: Sequence[str], margin: float) -> pd.DataFrame:
    """A column per statistic of the page, by its head: percent and points, intervals as text."""
    place = {regime: i for i, regime in enumerate(order)}
    rows = table.assign(place=table["regime"].map(place)).sort_values(["group", "task", "place"], kind="stable")
    names = {name: rows[name] for name in ("regime", "group", "task", "best")}
    return pd.DataFrame({**names, **{s.head: _readable(s, rows, margin) for s in select_columns("page")}})


def telling(table: pd.DataFrame) -> list[str]:
    """Columns without the only group or benchmark, empty ones, and costs (less is better) of 0 everywhere."""
    spent = {s.head for s in select_columns("page") if s.better == "lower"}
    same = {c for c in ("group", "task") if table[c].nunique() < 2}
    same |= {c for c in table if not (table[c].notna() & ~table[c].isin(("", 0) if c in spent else ("",))).any()}
    return [c for c in table if c not in same | {"best"}]


def _readable(column: Statistic, rows: pd.DataFrame, margin: float) -> Sequence[object] | pd.Series[float]:
    if column.interval_of:
        pairs = zip(*(rows[end] for end in _ends(column)), strict=True)
        unit = STATISTICS[column.interval_of].unit
        return ["" if pd.isna(low) else unit.interval((low, high), "{} to {}") for low, high in pairs]
    if column.numeric:
        return rows[column.name] * (column.unit.factor if column.unit.factor != 1 else 1)
    return [None if pd.isna(value) else column.text(value, margin) for value in rows[column.name]]
