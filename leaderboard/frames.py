"""Rows of the store as data frames, and the pure steps from them to figures: shared by the pages and the static report."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pandas as pd

from harness.statistics import mean_interval
from harness.statistics.comparison import BASELINE
from harness.store.ranking import Rank, Ranking
from harness.store.sentences import verdict_words
from harness.store.statistic import STATISTICS, Statistic, shown
from harness.store.table import SeedRow, ShowRow
from leaderboard import charts
from leaderboard.charts import Figure


def show_frame(rows: Sequence[ShowRow]) -> pd.DataFrame:
    """The columns of ShowRow, intervals split into `low`, `high`, `gain_low`, `gain_high`; None is NaN."""
    return _frame(rows, ShowRow)


def _frame(rows: Sequence[msgspec.Struct], kind: type[msgspec.Struct]) -> pd.DataFrame:
    frame = pd.DataFrame.from_records([msgspec.structs.astuple(r) for r in rows], columns=list(kind.__struct_fields__))
    for s in (STATISTICS[name] for name in kind.__struct_fields__ if name in STATISTICS):
        if s.interval_of:
            for i, end in enumerate(ends(s)):
                frame[end] = [pair[i] if pair else float("nan") for pair in frame[s.name]]
            frame = frame.drop(columns=s.name)
        elif s.kind in (float | None, int | None):
            frame[s.name] = frame[s.name].astype(float)
    return frame


def ends(interval: Statistic) -> tuple[str, str]:
    """The columns of an interval's two ends."""
    prefix = interval.name.removesuffix("interval")
    return f"{prefix}low", f"{prefix}high"


def seeds_frame(rows: Sequence[SeedRow]) -> pd.DataFrame:
    """The columns of SeedRow."""
    frame = pd.DataFrame.from_records(
        [msgspec.structs.astuple(r) for r in rows], columns=list(SeedRow.__struct_fields__)
    )
    frame[["base", "gain"]] = frame[["base", "gain"]].astype(float)
    return frame


SPREAD = "95 % intervals over seeds (Student t)"


def over_seeds(rows: pd.DataFrame, by: Sequence[str], x: str, most: float | None = None) -> pd.DataFrame:
    """Means of `y` over seeds, each seed's own over its rows, with 95 % intervals (of no width for one seed): columns `by`, regime,
    x, y, low, high. Points are those of equal `steps`; x: the column whose mean is across; most: of what is never below 0."""
    place = [*by, "regime", "steps"]
    each = rows.groupby([*place, "seed"], as_index=False, sort=False)[sorted({"y", x} - {"steps"})].mean()
    wide = each.pivot_table(index=place, columns="seed", values="y", sort=False)
    found = mean_interval(wide.to_numpy())
    points = wide.index.to_frame(index=False).assign(y=found.mean, low=found.low, high=found.high)
    points["x"] = points["steps"] if x == "steps" else each.groupby(place)[x].mean().reindex(wide.index).to_numpy()
    cut = (None, None) if most is None else (0.0, most)
    ends = {end: points[end].fillna(points["y"]).clip(*cut) for end in ("low", "high")}
    return points.assign(**ends).drop(columns="steps").sort_values([*by, "regime", "x"])


def baseline_of(rows: pd.DataFrame, otherwise: str) -> str:
    """The baseline that most of the rows are compared with."""
    named = rows["baseline"].dropna()
    return str(named.mode().iloc[0]) if len(named) else otherwise


def ranking_frame(found: Ranking, table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a ranking with the columns that a panel needs."""
    rows = _frame(found.ranks, Rank)
    return rows.join(table.groupby("regime")[["rollouts", "cpu_seconds"]].mean(), on="regime")


def panel(rows: pd.DataFrame, title: str, measure: str, order: Sequence[str], margin: float) -> Figure:
    """A forest plot of one group and benchmark. `measure` is `gain` (points) or `accuracy` (percent).

    A page holds many, so it goes through plain values: pandas takes ten times as long for a dozen rows.
    """
    gains = measure == "gain"
    value, prefix, sign = ("gain", "gain_", "+") if gains else ("accuracy", "", "")
    columns = (value, f"{prefix}low", f"{prefix}high", "rollouts", "cpu_seconds")
    numbers = zip(*(rows[c].tolist() for c in columns), strict=True)
    marks = []
    for regime, says, (middle, low, high, rollouts, cpu) in zip(
        rows["regime"].tolist(), rows["verdict"].tolist(), numbers, strict=True
    ):
        if middle != middle:
            if says != BASELINE:
                continue
            middle = 0.0  # the baseline's own gain
        middle, low, high = (100 * (x if x == x else middle) for x in (middle, low, high))
        label = f"{middle:{sign}.1f} [{low:.1f}, {high:.1f}]" if high > low else f"{middle:{sign}.1f}"
        detail = f"{rollouts:,.0f} rollouts, {cpu:,.0f} CPU-s"
        marks.append(charts.Mark(regime, middle, low, high, says, verdict_words(says, margin), label, detail))
    return charts.forest(marks, title, "gain, points" if gains else "accuracy, %", order, zero=gains)


def readable(table: pd.DataFrame, order: Sequence[str], margin: float) -> pd.DataFrame:
    """The ranking as people read it, a column per statistic of the page by its head: percent and points, intervals as text."""
    rank = {regime: i for i, regime in enumerate(order)}
    rows = table.assign(place=table["regime"].map(rank)).sort_values(["group", "task", "place"], kind="stable")
    columns = {"regime": rows["regime"], "group": rows["group"], "task": rows["task"], "best": rows["best"]}
    return pd.DataFrame({**columns, **{s.head: _readable(s, rows, margin) for s in shown("page")}})


def telling(table: pd.DataFrame) -> list[str]:
    """The columns of `readable` without the only group, the only benchmark, and what is empty or 0 everywhere."""
    same = {c for c in ("group", "task") if table[c].nunique() < 2}
    same |= {c for c in table if not (table[c].notna() & ~table[c].isin(("", 0))).any()}
    return [c for c in table if c not in same | {"best"}]


def _readable(column: Statistic, rows: pd.DataFrame, margin: float) -> Sequence[object] | pd.Series[float]:
    if column.interval_of:
        pairs = zip(*(rows[end] for end in ends(column)), strict=True)
        unit = STATISTICS[column.interval_of].unit
        return ["" if pd.isna(low) else unit.interval((low, high), "{} to {}") for low, high in pairs]
    if column.numeric:
        factor = column.unit.factor
        return rows[column.name] if factor == 1 else factor * rows[column.name]
    return [None if pd.isna(value) else column.text(value, margin) for value in rows[column.name]]
