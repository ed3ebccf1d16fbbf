"""Rows of the store as data frames, and the pure steps from them to figures: shared by the pages and the static report."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pandas as pd

from harness.statistics.judgement import BASELINE
from harness.store.ranking import Rank, Ranking
from harness.store.table import SeedRow, ShowRow
from harness.store.words import verdict_mark, verdict_words
from leaderboard import charts
from leaderboard.charts import Figure


def show_frame(rows: Sequence[ShowRow]) -> pd.DataFrame:
    """The columns of ShowRow, intervals split into `low`, `high`, `gain_low`, `gain_high`; None is NaN."""
    return _frame(rows, ShowRow)


def _frame(rows: Sequence[msgspec.Struct], kind: type[msgspec.Struct]) -> pd.DataFrame:
    frame = pd.DataFrame.from_records([msgspec.structs.astuple(r) for r in rows], columns=list(kind.__struct_fields__))
    for column, prefix in (("interval", ""), ("gain_interval", "gain_")):
        frame[f"{prefix}low"] = [pair[0] if pair else float("nan") for pair in frame[column]]
        frame[f"{prefix}high"] = [pair[1] if pair else float("nan") for pair in frame[column]]
    names = ("base", "gain", "peer_used", "gain_p", "detectable", "gain_per_1000_rollouts", "gain_per_gpu_second")
    numbers = [name for name in names if name in frame]
    frame[numbers] = frame[numbers].astype(float)
    return frame.drop(columns=["interval", "gain_interval"])


def seeds_frame(rows: Sequence[SeedRow]) -> pd.DataFrame:
    """The columns of SeedRow."""
    frame = pd.DataFrame.from_records(
        [msgspec.structs.astuple(r) for r in rows], columns=list(SeedRow.__struct_fields__)
    )
    frame[["base", "gain"]] = frame[["base", "gain"]].astype(float)
    return frame


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
    """The ranking as people read it: percent and points, intervals as text."""
    rank = {regime: i for i, regime in enumerate(order)}
    rows = table.assign(place=table["regime"].map(rank)).sort_values(["group", "task", "place"], kind="stable")
    return pd.DataFrame(
        {
            "regime": rows["regime"],
            "group": rows["group"],
            "task": rows["task"],
            "verdict": [verdict_mark(verdict, margin) for verdict in rows["verdict"]],
            "tie": rows["tie_group"],
            "best": rows["best"],
            "gain": 100 * rows["gain"],
            "gain interval": [
                _interval(low, high) for low, high in zip(rows["gain_low"], rows["gain_high"], strict=True)
            ],
            "accuracy": 100 * rows["accuracy"],
            "interval": [_interval(low, high) for low, high in zip(rows["low"], rows["high"], strict=True)],
            "base": 100 * rows["base"],
            "seeds": rows["seeds"],
            "used": 100 * rows["peer_used"],
            "rollouts": rows["rollouts"],
            "cpu": rows["cpu_seconds"],
            "gpu": rows["gpu_seconds"],
            "per 1000": 100 * rows["gain_per_1000_rollouts"],
            "baseline": rows["baseline"],
        }
    )


def _interval(low: float, high: float) -> str:
    return "" if pd.isna(low) else f"{100 * low:.1f} to {100 * high:.1f}"
