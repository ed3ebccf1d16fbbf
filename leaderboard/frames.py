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
from harness.store.statistic import PERCENT, POINTS, STATISTICS, Pair, Statistic, Unit, select_columns
from harness.store.table import MEAN
from harness.store.tuning import without_trials
from leaderboard.charts import Forest
from leaderboard.looks import SIGNS

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
    """Return a column for each field of `kind`; `gain_interval` is split into `gain_low` and `gain_high`, None is NaN."""
    names = list(kind.__struct_fields__)
    records = [msgspec.structs.astuple(row) for row in rows]
    frame = pd.DataFrame.from_records(records, columns=names)
    for name in names:
        statistic = STATISTICS.get(name)
        if statistic is None:
            continue
        if statistic.interval_of:
            for place, end in enumerate(_name_ends(statistic)):
                frame[end] = [pair[place] if pair else float("nan") for pair in frame[name]]
            frame = frame.drop(columns=name)
        elif statistic.kind in (float | None, int | None):
            frame[name] = frame[name].astype(float)
    return frame


def _name_ends(interval: Statistic) -> tuple[str, str]:
    """Return the names of the columns that have the ends of an interval."""
    prefix = interval.name.removesuffix("interval")
    return f"{prefix}low", f"{prefix}high"


@dataclass(frozen=True, slots=True)
class ShownChoice:
    """One policy (`*`: their mean) and metric on some groups and benchmarks."""

    metric: str
    policy: str
    groups: tuple[str, ...]
    tasks: tuple[str, ...]

    def select_seeds(self, every: Sequence[SeedRow]) -> list[SeedRow]:
        """Return the rows of seeds that the choice is about, of every policy."""
        of_metric = [row for row in every if row.metric == self.metric]
        return [row for row in of_metric if row.group in self.groups and row.task in self.tasks]

    def select_policies(self, every: pd.DataFrame) -> pd.DataFrame:
        """Return the table's rows that the choice is about, of every policy."""
        here = every["group"].isin(self.groups) & every["task"].isin(self.tasks)
        of_metric = every["metric"] == self.metric
        return every[here & of_metric]

    def select_rows(self, every: pd.DataFrame) -> pd.DataFrame:
        """Return the table's rows of the choice: of its policy alone."""
        of_policy = every[every["policy"] == self.policy]
        return self.select_policies(of_policy)


def choose_opening(table: pd.DataFrame, metric: str = "") -> ShownChoice:
    """Return what a suite opens with, of its first metric or this one. table: not empty."""
    has_mean = (table["policy"] == MEAN).any()
    policy = MEAN if has_mean else table["policy"].iloc[0]
    groups, tasks = tuple(dict.fromkeys(table["group"])), tuple(dict.fromkeys(table["task"]))
    return ShownChoice(metric or table["metric"].iloc[0], policy, groups, tasks)


# What it says ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What a choice says of each regime. costs: over the baseline's, by regime. each: rows of the policies by regime, the largest
    gain first."""

    metric: str
    ranking: Ranking
    costs: Mapping[str, float]
    each: Mapping[str, Sequence[Mapping[str, Any]]]

    @cached_property
    def lines(self) -> pd.DataFrame:
        """Return a line for each regime that has a gain, the largest gain first."""
        lines = []
        for rank in self._list_compared():
            other = self._name_other_baseline(rank)
            gain = f"{_write_gain(rank)} over {other}" if other else _write_gain(rank)
            head = {"Regime": rank.regime, "Gain, points": gain}
            lines.append({**head, **self._describe_regime(rank)})
        return pd.DataFrame(lines)

    def summarise_line(self) -> dict[str, str]:
        """Return the suite's line of an overview: of its regime with the largest gain."""
        compared = self._list_compared()
        if not compared:
            return {"Most gain, points": "nothing to compare yet"}
        # a gain that is found comes before a larger one that is not
        first = next((rank for rank in compared if rank.verdict == GAINS), compared[0])
        counts = _count_verdicts(rank.verdict for rank in compared)
        head = {"Most gain, points": f"{first.regime} {_write_gain(first)}", **self._describe_regime(first)}
        return {**head, "Its seeds": str(first.seeds), "All regimes": counts, "Metric": self.metric}

    def _list_compared(self) -> list[Rank]:
        """Return the regimes that have a gain, the largest first."""
        with_gain = [rank for rank in self.ranking.ranks if rank.gain is not None]
        return sorted(with_gain, key=lambda rank: -(rank.gain or 0.0))

    def _describe_regime(self, rank: Rank) -> dict[str, str]:
        """Return what a line says of a regime besides its name and gain."""
        cost = self.costs.get(rank.regime, float("nan"))
        over = f"× {self._name_other_baseline(rank)}".rstrip()
        words = verdict_mark(rank.verdict, self.ranking.margin)
        return {
            "Is it real?": f"{SIGNS[rank.verdict]} {words}",
            "Whom": self._describe_whom(rank.regime),
            "Cost": "–" if cost != cost else f"{cost:.1f}{over}",
        }

    def _name_other_baseline(self, rank: Rank) -> str:
        """Return the baseline that a regime's gain and cost are over, where it is not that of most regimes; else nothing.

        A line that samples more is compared with independent training that samples as much: beside the others its cost would look
        low."""
        return "" if rank.baseline in (None, self.ranking.baseline) else str(rank.baseline)

    def _describe_whom(self, regime: str) -> str:
        """Say in words what each policy gains, or of many how many gain and lose, and who least and most."""
        own = self.each.get(regime, ())
        # a group or benchmark is named where there are several
        where = [column for column in ("group", "task") if len({row[column] for row in own}) > 1]
        named = []
        for row in own:
            places = [row[column] for column in where]
            named.append(" in ".join([row["policy"], *places]))
        numbers = [POINTS.text(row["gain"]) for row in own]
        if len(own) <= _NAMED:
            margin = self.ranking.margin
            words = [verdict_mark(row["verdict"], margin) for row in own]
            told = zip(named, numbers, words, strict=True)
            return ", ".join(f"{name} {number} ({word})" for name, number, word in told)
        counted = _count_in_words([row["verdict"] for row in own])
        return f"Of {len(own)} policies {counted}. Least: {named[-1]} {numbers[-1]}. Most: {named[0]} {numbers[0]}."


def answer_choice(choice: ShownChoice, table: pd.DataFrame, every: Sequence[SeedRow], margin: float) -> Outcome:
    """Return what a suite's rows say of a choice. table: as of `show_frame`. every: the suite's seeds. margin: a fraction."""
    rows = choice.select_rows(table)
    costs = rows.groupby("regime")["cost"].mean().to_dict()
    among = [row for row in every if (row.metric, row.policy) == (choice.metric, choice.policy)]
    without_means = table[table["policy"] != MEAN]
    policies = choice.select_policies(without_means).dropna(subset="gain")
    ranked = policies.sort_values("gain", ascending=False, kind="stable")
    each = defaultdict[str, list[dict[str, Any]]](list)
    for row in ranked.to_dict("records"):
        each[row["regime"]].append(row)
    ranking = rank_regimes(choice.select_seeds(among), margin, among)
    return Outcome(choice.metric, ranking, costs, each)


def make_overview(
    suites: Sequence[str],
    find: Callable[[str], Outcome | None],
    state: Callable[[str], str],
) -> pd.DataFrame:
    """Return a line for each suite, those of trials left out. find: a suite's outcome, None before a cell has finished. state: its
    cells in words."""
    lines = []
    for suite in without_trials(suites):
        outcome = find(suite)
        told = {"Most gain, points": "no cell has finished"} if outcome is None else outcome.summarise_line()
        lines.append({"Suite": suite, **told, "Cells": state(suite)})
    return pd.DataFrame(lines).fillna("")


def judged_by(verdict: str, alone: Pair | None, corrected: Pair | None) -> Pair | None:
    """Return the interval that a gain's verdict is made from (INTERVALS)."""
    return alone if verdict == EQUIVALENT or corrected is None else corrected


def _write_gain(rank: Rank) -> str:
    interval = judged_by(rank.verdict, rank.gain_interval, rank.gain_corrected_interval)
    return POINTS.with_interval(rank.gain, interval)


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
    parts = []
    for verdict, (singular, plural) in _VERBS.items():
        count = counts[verdict]
        if count:
            parts.append(f"{count} {plural if count > 1 else singular}")
    return joined(parts)


def _count_verdicts(verdicts: Iterable[str]) -> str:
    """Write how many there are of each verdict, by its sign."""
    counts = Counter(verdicts)
    order = (GAINS, LOSES, DIFFERS, DIFFERS_POLICIES, EQUIVALENT, INCONCLUSIVE, *WITHHELD)
    return ", ".join(f"{counts[verdict]}\u00a0{SIGNS[verdict]}" for verdict in order if counts[verdict])


# Figures and tables ---------------------------------------------------------------------------------------------------


def make_panels(
    choice: ShownChoice, table: pd.DataFrame, said: Outcome, measure: str, order: Sequence[str], mean: str
) -> list[Forest]:
    """Return a figure of each group and benchmark, before them one of their mean.

    measure: `gain` (points) or `accuracy` (percent). order: of the regimes. mean: the title of the mean where it is over all
    panels, with braces for their number.
    """
    rows = choice.select_rows(table)
    margin = said.ranking.margin
    place = {regime: i for i, regime in enumerate(order)}
    parts: dict[str, list[Any]] = defaultdict(list)
    for row in rows.to_dict("records"):
        title = f"{row['group']}: {row['task']}, {choice.metric}"
        parts[title].append(row)
    if len(parts) > 1 and said.ranking.ranks:
        title = _title_mean(said.ranking, len(parts), mean)
        parts = {f"{title}, {choice.metric}": _rows_of_mean(said.ranking, rows), **parts}
    panels = []
    for title, part in parts.items():
        ordered = sorted(part, key=lambda row: place[row["regime"]])
        panel = _make_panel(ordered, title, measure, margin)
        # A baseline by itself has no gain: its axis would be empty
        compares = measure != "gain" or any(row["verdict"] != BASELINE for row in panel.rows)
        if panel.rows and compares:
            panels.append(panel)
    return panels


def _title_mean(ranking: Ranking, panels: int, title: str) -> str:
    """Return the title of the mean's panel. panels: all that there are. title: where the mean is of all of them."""
    if ranking.panels < panels:
        title = f"Mean of {ranking.panels} of the {{}} panels (which are left out is said in full above)"
    return title.format(panels)


def _rows_of_mean(ranking: Ranking, rows: pd.DataFrame) -> list[Any]:
    """Return the regimes' rows on the mean of the panels, with what they spent on the mean panel."""
    spent = rows.groupby("regime")[["rollouts", "cpu_seconds"]].mean()
    ranks = show_frame(ranking.ranks, Rank).join(spent, on="regime")
    return list(ranks.to_dict("records"))


def _make_panel(rows: Sequence[Mapping[str, Any]], title: str, measure: str, margin: float) -> Forest:
    """Return the figure of these rows, which are in its order; a regime without a number is left out."""
    gains = measure == "gain"
    marks = []
    for row in rows:
        mark = _mark_gain(row, margin) if gains else _mark_accuracy(row, margin)
        if mark is not None:
            marks.append(mark)
    return Forest(marks, title, "gain, points" if gains else "accuracy, %", zero=gains)


def _mark_gain(row: Mapping[str, Any], margin: float) -> dict[str, Any] | None:
    """Return a row's gain as a mark of a figure, with the interval that its verdict is made from; None without a gain."""
    gain = row["gain"]
    alone = row["gain_low"], row["gain_high"]
    corrected = row["gain_corrected_low"], row["gain_corrected_high"]
    judged = judged_by(row["verdict"], alone, None if pd.isna(corrected[0]) else corrected)
    if pd.isna(gain):
        if row["verdict"] != BASELINE:
            return None
        gain = 0.0  # the baseline's own gain
    return _make_mark(row, gain, judged or alone, POINTS, margin)


def _mark_accuracy(row: Mapping[str, Any], margin: float) -> dict[str, Any] | None:
    """Return a row's accuracy as a mark of a figure, with its interval over seeds; None without an accuracy."""
    accuracy = row["accuracy"]
    if pd.isna(accuracy):
        if row["verdict"] != BASELINE:
            return None
        accuracy = 0.0
    return _make_mark(row, accuracy, (row["low"], row["high"]), PERCENT, margin)


def _make_mark(row: Mapping[str, Any], value: float, interval: Pair, unit: Unit, margin: float) -> dict[str, Any]:
    """Return a mark at a value with its interval, in hundredths; an end that is not known lies at the value."""
    low, high = (value if pd.isna(end) else end for end in interval)
    drawn = (low, high) if high > low else None
    label = unit.with_interval(value, drawn)
    words = verdict_mark(row["verdict"], margin)
    detail = f"{row['rollouts']:,.0f} rollouts, {row['cpu_seconds']:,.0f} CPU-s"
    return {
        "name": row["regime"],
        "value": 100 * value,
        "low": 100 * low,
        "high": 100 * high,
        "verdict": row["verdict"],
        "words": words,
        "label": label,
        "detail": detail,
    }


def over_seeds(rows: pd.DataFrame, by: Sequence[str], x: str, most: float | None = None) -> pd.DataFrame:
    """Return means of `y` over seeds with 95 % intervals: columns `by`, regime, x, y, low, high.

    x: the column across. most: of what is never below 0.
    """
    place = [*by, "regime", "steps"]
    columns = sorted({"y", x} - {"steps"})
    # of each seed the mean over groups and policies, as far as `by` has not told them apart
    each = rows.groupby([*place, "seed"], as_index=False, sort=False)[columns].mean()
    wide = each.pivot_table(index=place, columns="seed", values="y", sort=False)
    values = wide.to_numpy()  # (points, seeds)
    means = mean_interval(values)
    points = wide.index.to_frame(index=False).assign(y=means.mean, low=means.low, high=means.high)
    if x == "steps":
        points["x"] = points["steps"]
    else:
        across = each.groupby(place)[x].mean()
        points["x"] = across.reindex(wide.index).to_numpy()
    cut = (None, None) if most is None else (0.0, most)
    for end in ("low", "high"):
        known = points[end].fillna(points["y"])
        points[end] = known.clip(*cut)
    return points.drop(columns="steps").sort_values([*by, "regime", "x"])


def make_readable(table: pd.DataFrame, order: Sequence[str], margin: float) -> pd.DataFrame:
    """Return a column per statistic of the page, by its head: percent and points, intervals as text. order: of the regimes."""
    place = {regime: i for i, regime in enumerate(order)}
    placed = table.assign(place=table["regime"].map(place))
    rows = placed.sort_values(["group", "task", "place"], kind="stable")
    columns: dict[str, Any] = {name: rows[name] for name in ("regime", "group", "task", "best")}
    for statistic in select_columns("page"):
        columns[statistic.head] = _make_column(statistic, rows, margin)
    return pd.DataFrame(columns)


def list_telling(table: pd.DataFrame) -> list[str]:
    """Return the columns without the only group or benchmark, empty ones, and costs (less is better) of 0 everywhere."""
    costs = {statistic.head for statistic in select_columns("page") if statistic.better == "lower"}
    telling = []
    for column in table:
        values = table[column]
        nothing = ("", 0) if column in costs else ("",)
        says_something = values.notna() & ~values.isin(nothing)
        only_one = column in ("group", "task") and values.nunique() < 2
        if column != "best" and not only_one and says_something.any():
            telling.append(column)
    return telling


def _make_column(column: Statistic, rows: pd.DataFrame, margin: float) -> Sequence[object] | pd.Series[float]:
    """Return a statistic of each row as a table shows it: numbers in the statistic's unit, all else as text."""
    if column.interval_of:
        low_name, high_name = _name_ends(column)
        pairs = zip(rows[low_name], rows[high_name], strict=True)
        unit = STATISTICS[column.interval_of].unit
        return ["" if pd.isna(low) else unit.interval((low, high), "{} to {}") for low, high in pairs]
    values = rows[column.name]
    if column.numeric:
        # a product with 1 would make whole numbers floating
        return values * (column.unit.factor if column.unit.factor != 1 else 1)
    return [None if pd.isna(value) else column.text(value, margin) for value in values]
