"""The figures: intervals, lines, dots, trials, planes and bars. `network.py` has the one of policies and arrows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from leaderboard.looks import COLOURS, DASHES, PALETTE, SHAPES, colour_of, dash_of, list_colours
from leaderboard.specification import (
    ZERO_X,
    ZERO_Y,
    Figure,
    colour_scale,
    make_figure,
    make_layer,
    make_legend,
    make_tooltip,
    nominal_field,
    number_axis,
    row_axis,
    widen_domain,
)

# In pixels: the height of a plot, and of one row of a legend of lines or of marks
_PANEL, _LEGEND, _MARKS = 320, 23, 30


@dataclass(frozen=True)
class Forest:
    """Estimates and intervals, from top to bottom. rows: name, verdict, label, words, detail; in `unit` value, low, high. zero: the
    axis has a line there. links: addresses of names, for a page."""

    rows: Sequence[Figure]
    title: str
    unit: str
    zero: bool = True
    links: Mapping[str, str] = field(default_factory=dict)

    @property
    def ends(self) -> list[float]:
        """Return all that the axis must reach: the intervals' ends, and 0 where it has a line or is empty."""
        ends = []
        for row in self.rows:
            ends += [row["low"], row["high"]]
        if self.zero or not self.rows:
            ends.append(0.0)
        return ends

    @cached_property
    def ticks(self) -> list[float]:
        """Return round numbers from end to end of the axis, about five steps apart."""
        widened = widen_domain(self.ends, self.unit)
        low, high = widened.get("domain") or (min(self.ends), max(self.ends))
        rough = (high - low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        round_steps = (times * power for times in (1, 2, 5, 10))
        step = next(round_step for round_step in round_steps if round_step >= rough)
        first, last = math.floor(low / step), math.ceil(high / step)
        return [step * i for i in range(first, last + 1)]

    def place(self, value: float) -> float:
        """Return where a value lies on the axis, in percent of its length."""
        first, *_, last = self.ticks
        share = 100 * (value - first) / (last - first)
        return round(share, 1)

    def figure(self) -> Figure:
        """Return the specification: a line with ends for each interval, and a mark for its estimate."""
        x = number_axis("value", self.unit, self.ends)
        low, high = x | {"field": "low"}, x | {"field": "high"}
        names = [row["name"] for row in self.rows]
        colour = colour_scale("verdict", COLOURS, COLOURS.values())
        y = row_axis("name", names, 140)
        every = {"y": y, "color": colour}
        shape = colour_scale("verdict", SHAPES, SHAPES.values())
        end_style = {"thickness": 2, "size": 12}
        mark_style = {"filled": True, "size": 90, "opacity": 1}
        layers = [
            make_layer("rule", {"strokeWidth": 3}, **every, x=low, x2={"field": "high"}),
            make_layer("tick", end_style, **every, x=low),
            make_layer("tick", end_style, **every, x=high),
            make_layer("point", mark_style, **every, x=x, shape=shape),
        ]
        if self.zero:
            layers = [ZERO_X, *layers]
        told = (f"{row['name']} {row['label']}" for row in self.rows)
        opening = f"{self.title}: {self.unit}. "
        return make_figure(self.rows, layers, self.title, opening, told)


def draw_lines(
    rows: pd.DataFrame,
    title: str,
    x_title: str,
    y_title: str,
    order: Sequence[str],
    panel: int = _PANEL,
    shown: Sequence[str] | None = None,
    named: bool = True,
) -> Figure:
    """Draw means over x, with bands for one or two regimes, else with bars at the lines' ends.

    Columns: regime, x, y, low, high. order: of the regimes. panel: height in pixels, without the legend. shown: what the
    legend names; without any there is none. named: colours go by the name. The y axis is logarithmic where positive values span
    four powers of ten.
    """
    logarithmic = _spans_factor(rows["y"], 1e4)
    if logarithmic:
        # an interval may end below 0, where a logarithmic axis has no place
        least = rows["y"].min()
        rows = rows.assign(low=rows["low"].clip(lower=least))
    present = list(order if shown is None else shown)
    colours, dashes = _choose_looks(order, named)
    legend = make_legend(2, present) if present else None
    colour = colour_scale("regime", order, colours, legend)
    dash_scale = {"domain": list(order), "range": dashes}
    dash = nominal_field("regime") | {"scale": dash_scale, "legend": None}
    x_axis = {"tickCount": 6}
    x = {"field": "x", "type": "quantitative", "title": x_title, "axis": x_axis}
    ends = rows[["low", "high"]].to_numpy().ravel()
    y = number_axis("y", y_title, ends, logarithmic)
    last = rows.sort_values("x").groupby("regime").tail(1)
    tooltip = make_tooltip("regime", ("x", x_title, ",.4~g"), ("y", y_title, ".3~g"))
    point = {"filled": True, "size": 22, "opacity": 1}
    layers = [
        _make_spread(rows, last, order, x=x, y=y, colour=colour),
        make_layer("line", {"strokeWidth": 2}, x=x, y=y, color=colour, strokeDash=dash),
        make_layer("point", point, x=x, y=y, color=colour, tooltip=tooltip),
    ]
    told = (f"{row.regime} ends at {row.y:.3g}" for row in last.itertuples())
    legend_rows = math.ceil(len(present) / 2)
    height = panel + _LEGEND * legend_rows
    opening = f"{title}. {y_title} over {x_title}: "
    return make_figure(rows, layers, title, opening, told, height)


def _spans_factor(values: pd.Series[float], factor: float) -> bool:
    """Say whether the values are positive and the largest is more than so many times the smallest."""
    positive = (values > 0).all()
    return bool(positive and values.max() > factor * values.min())


def _make_spread(
    rows: pd.DataFrame, last: pd.DataFrame, order: Sequence[str], x: Figure, y: Figure, colour: Figure
) -> Figure:
    """Return the layer of the intervals: bands of one or two lines, of more bars beside the lines' last points."""
    band = {"color": colour, "y": y | {"field": "low"}, "y2": {"field": "high"}}
    if rows["regime"].nunique() <= 2:
        return make_layer("area", {"opacity": 0.13}, x=x, **band)
    bars = _place_end_bars(rows, last, order)
    style = {"strokeWidth": 3, "aria": False}
    return make_layer("rule", style, bars, x=x, **band)


def _choose_looks(order: Sequence[str], named: bool) -> tuple[list[str], list[list[int]]]:
    """Return colour and dashes of each line: by its name, so that a regime looks alike in every figure, or by its place."""
    if named:
        colours = [colour_of(name) for name in order]
        return colours, [dash_of(name) for name in order]
    dashes = [DASHES[place % len(DASHES)] for place in range(len(order))]
    return list_colours(len(order)), dashes


def _place_end_bars(rows: pd.DataFrame, last: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    """Return the lines' last points with an interval, each moved to the right so that no bar covers another."""
    width = float(rows["x"].max() - rows["x"].min())
    step = 0.012 * width
    ended = set(last["regime"])
    drawn = [name for name in order if name in ended]
    place = {name: i for i, name in enumerate(drawn)}
    bars_before = 1 + last["regime"].map(place)
    aside = last.assign(x=last["x"] + step * bars_before)
    has_interval = last["high"] > last["low"]
    return aside[has_interval]


def draw_dots(rows: pd.DataFrame, title: str, unit: str) -> Figure:
    """Draw values in lines, without intervals. Columns: row (the line's name), value (in `unit`), label."""
    lines = list(dict.fromkeys(rows["row"]))
    style = {"size": 80, "opacity": 1, "strokeWidth": 2}
    x = number_axis("value", unit, [0.0, *rows["value"]])
    y = row_axis("row", lines, 170)
    tooltip = make_tooltip("label", ("value", unit, "+.1f"))
    points = make_layer("point", style, y=y, x=x, tooltip=tooltip, color={"value": PALETTE[0]})
    told = (f"{mark.row}, {mark.label}: {mark.value:+.1f}" for mark in rows.head(60).itertuples())
    opening = f"{title}: {unit}. "
    return make_figure(rows, [ZERO_X, points], title, opening, told)


def draw_trials(
    rows: pd.DataFrame, option: str, title: str, unit: str, kinds: Sequence[str], legend: bool = True
) -> Figure:
    """Draw the gain against one option. Columns: trial, kind, gain and the option's: an axis of numbers (logarithmic from a factor
    of ten on), or names."""
    values = list(rows[option])
    numbers = all(_is_finite_number(value) for value in values)
    placed = values if numbers else [str(value) for value in values]
    data = rows[["trial", "kind", "gain"]].assign(value=placed)
    names = list(kinds)
    legend_below = _LEGEND_BELOW if legend else None
    colour = colour_scale("kind", names, list_colours(len(names)), legend_below)
    style = {"size": 90, "strokeWidth": 2, "opacity": 1}
    x = _option_axis(option, values, numbers)
    y = number_axis("gain", unit, [0.0, *rows["gain"]])
    shape = colour | {"scale": {"domain": names}}
    tooltip = make_tooltip("trial", "kind", ("value", option), ("gain", unit, "+.1f"))
    points = make_layer("point", style, x=x, y=y, color=colour, shape=shape, tooltip=tooltip)
    first = data.head(40).itertuples()
    told = (f"{trial.trial} ({trial.kind}) at {trial.value}: {trial.gain:+.1f}" for trial in first)
    opening = f"{title}: {unit}. "
    return make_figure(data, [ZERO_Y, points], title, opening, told, _PANEL)


_LEGEND_BELOW = {"title": None, "orient": "bottom"}


def _is_finite_number(value: object) -> bool:
    # True and False are settings by name, though Python takes them for numbers
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


def _option_axis(option: str, values: Sequence[Any], numbers: bool) -> Figure:
    """Return the axis of an option's values: of numbers, logarithmic from a factor of ten on, or of names."""
    if not numbers:
        return {"field": "value", "type": "nominal", "title": option, "axis": {"labelAngle": 0}}
    logarithmic = min(values) > 0 and max(values) >= 10 * min(values)
    scale = {"type": "log", "nice": False, "padding": 12} if logarithmic else {"zero": False, "padding": 12}
    axis = {"tickCount": 5, "format": "~g"}
    return {"field": "value", "type": "quantitative", "title": option, "axis": axis, "scale": scale}


def draw_plane(rows: pd.DataFrame, title: str, x_title: str, y_title: str, order: Sequence[str], log_y: bool) -> Figure:
    """Draw cells as small marks, means as large ones. Columns: regime, group, x, y, kind (`cell`, `mean`)."""
    x = number_axis("x", x_title, rows["x"])
    x["scale"]["padding"] = 20
    cells = rows[rows["kind"] == "cell"]
    means = rows[rows["kind"] == "mean"]
    colour = colour_scale("regime", order, map(colour_of, order), make_legend(2))
    y = number_axis("y", y_title, rows["y"], log_y)
    shape = colour | {"scale": {"domain": list(order)}}
    tooltip = make_tooltip("regime", "group", ("x", x_title, ".3~g"), ("y", y_title, ".3~g"))
    every = {
        "x": x,
        "y": y,
        "color": colour,
        "shape": shape,
        "tooltip": tooltip,
    }
    cell_style = {"size": 35, "opacity": 1}
    mean_style = {"size": 170, "filled": True, "opacity": 1}
    layers = [make_layer("point", cell_style, cells, **every), make_layer("point", mean_style, means, **every)]
    told = (f"{mean.regime} at {mean.x:.3g}, {mean.y:.3g}" for mean in means.itertuples())
    legend_rows = math.ceil(len(order) / 2)
    height = 390 + _MARKS * legend_rows
    opening = f"{title}. {x_title} and {y_title}: "
    return make_figure((), layers, title, opening, told, height)


def draw_bars(
    rows: pd.DataFrame, title: str, x_title: str, y: str, colour: str, order: Sequence[str] | None = None
) -> Figure:
    """Draw stacked bars. Columns: value (the length), and those that `y` (the bar) and `colour` (its part) name. order: of the
    bars, else as they come."""
    parts = list(dict.fromkeys(rows[colour]))
    x = {"field": "value", "type": "quantitative", "title": x_title, "axis": {"tickCount": 6}}
    bars = list(order) if order else None
    legend = make_legend(2) | {"labelLimit": 170}
    colours = list_colours(len(parts))
    part_colour = colour_scale(colour, parts, colours, legend) | {"sort": parts}
    tooltip = make_tooltip(y, colour, ("value", x_title, ",.4~g"))
    layer = make_layer("bar", {}, x=x, y=row_axis(y, bars, 180), color=part_colour, tooltip=tooltip)
    told = (f"{getattr(row, y)}, {getattr(row, colour)}: {row.value:,.4g}" for row in rows.head(40).itertuples())
    return make_figure(rows, [layer], title, f"{title}: {x_title}. ", told)
