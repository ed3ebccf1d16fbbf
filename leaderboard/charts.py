"""Figures as Vega-Lite specifications, SVG and PNG; HTML from templates."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader

from harness.statistics.comparison import (
    ALONE,
    BASELINE,
    DIFFERS,
    DIFFERS_POLICIES,
    EQUIVALENT,
    GAINS,
    INCONCLUSIVE,
    LOSES,
    WITHHELD,
)
from harness.store.text import visible

Figure = dict[str, Any]
_LOOKS = {
    GAINS: ("#0f8a83", "triangle-up", "▲"),
    LOSES: ("#c2502d", "triangle-down", "▼"),
    EQUIVALENT: ("#7d8590", "circle", "●"),
    INCONCLUSIVE: ("#b08900", "diamond", "◆"),
    DIFFERS: ("#8e4fb8", "cross", "✚"),
    DIFFERS_POLICIES: ("#8e4fb8", "cross", "✚"),
    **dict.fromkeys((BASELINE, ALONE, *WITHHELD), ("#7d8590", "square", "■")),
}
COLOURS = {verdict: colour for verdict, (colour, _, _) in _LOOKS.items()}
SHAPES = {verdict: shape for verdict, (_, shape, _) in _LOOKS.items()}
SIGNS = {verdict: sign for verdict, (_, _, sign) in _LOOKS.items()}
LEGEND = (
    "▲ gains, ▼ loses, ✚ differs between groups or policies, ● no effect larger than the margin, ◆ cannot tell, "
    "■ the baseline, or without one, or withheld."
)
# 3:1 at least on white and near-black; regimes also differ by dash, order and label
PALETTE = ["#0f8a83", "#c2502d", "#3b6fd4", "#b08900", "#8e4fb8", "#4f8f2f", "#d1477f", "#6b7280", "#1f9bcf", "#96592d"]
KNOWN = ("sgt", "naive", "hacpo", "prp", "xgrpo", "graft", "sapo", "independent", "ftis")
_DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 1], [10, 2], [1, 3], [6, 2, 1, 2, 1, 2]]
_BAR, _PANEL, _LEGEND, _MARKS = 26, 320, 23, 30
# The least that an axis spans, by the last words of its title
_LEAST = {"points": 1.0, "%": 1.0, "share": 0.01, "nats per token": 1e-6}


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
        widened = _widen_domain(self.ends, self.unit)
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
        x = _number_axis("value", self.unit, self.ends)
        low, high = x | {"field": "low"}, x | {"field": "high"}
        names = [row["name"] for row in self.rows]
        colour = _colour_scale("verdict", COLOURS, COLOURS.values())
        y = _row_axis("name", names, 140)
        every = {"y": y, "color": colour}
        shape = _colour_scale("verdict", SHAPES, SHAPES.values())
        end_style = {"thickness": 2, "size": 12}
        mark_style = {"filled": True, "size": 90, "opacity": 1}
        layers = [
            _make_layer("rule", {"strokeWidth": 3}, **every, x=low, x2={"field": "high"}),
            _make_layer("tick", end_style, **every, x=low),
            _make_layer("tick", end_style, **every, x=high),
            _make_layer("point", mark_style, **every, x=x, shape=shape),
        ]
        if self.zero:
            layers = [_ZERO_X, *layers]
        told = (f"{row['name']} {row['label']}" for row in self.rows)
        opening = f"{self.title}: {self.unit}. "
        return _make_figure(self.rows, layers, self.title, opening, told)


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
    legend = _make_legend(2, present) if present else None
    colour = _colour_scale("regime", order, colours, legend)
    dash_scale = {"domain": list(order), "range": dashes}
    dash = _nominal_field("regime") | {"scale": dash_scale, "legend": None}
    x_axis = {"tickCount": 6}
    x = {"field": "x", "type": "quantitative", "title": x_title, "axis": x_axis}
    ends = rows[["low", "high"]].to_numpy().ravel()
    y = _number_axis("y", y_title, ends, logarithmic)
    last = rows.sort_values("x").groupby("regime").tail(1)
    tooltip = _make_tooltip("regime", ("x", x_title, ",.4~g"), ("y", y_title, ".3~g"))
    point = {"filled": True, "size": 22, "opacity": 1}
    layers = [
        _make_spread(rows, last, order, x=x, y=y, colour=colour),
        _make_layer("line", {"strokeWidth": 2}, x=x, y=y, color=colour, strokeDash=dash),
        _make_layer("point", point, x=x, y=y, color=colour, tooltip=tooltip),
    ]
    told = (f"{row.regime} ends at {row.y:.3g}" for row in last.itertuples())
    legend_rows = math.ceil(len(present) / 2)
    height = panel + _LEGEND * legend_rows
    opening = f"{title}. {y_title} over {x_title}: "
    return _make_figure(rows, layers, title, opening, told, height)


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
        return _make_layer("area", {"opacity": 0.13}, x=x, **band)
    bars = _place_end_bars(rows, last, order)
    style = {"strokeWidth": 3, "aria": False}
    return _make_layer("rule", style, bars, x=x, **band)


def _choose_looks(order: Sequence[str], named: bool) -> tuple[list[str], list[list[int]]]:
    """Return colour and dashes of each line: by its name, so that a regime looks alike in every figure, or by its place."""
    if named:
        colours = [colour_of(name) for name in order]
        return colours, [_dash_of(name) for name in order]
    dashes = [_DASHES[place % len(_DASHES)] for place in range(len(order))]
    return _list_colours(len(order)), dashes


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
    x = _number_axis("value", unit, [0.0, *rows["value"]])
    y = _row_axis("row", lines, 170)
    tooltip = _make_tooltip("label", ("value", unit, "+.1f"))
    points = _make_layer("point", style, y=y, x=x, tooltip=tooltip, color={"value": PALETTE[0]})
    told = (f"{mark.row}, {mark.label}: {mark.value:+.1f}" for mark in rows.head(60).itertuples())
    opening = f"{title}: {unit}. "
    return _make_figure(rows, [_ZERO_X, points], title, opening, told)


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
    colour = _colour_scale("kind", names, _list_colours(len(names)), legend_below)
    style = {"size": 90, "strokeWidth": 2, "opacity": 1}
    x = _option_axis(option, values, numbers)
    y = _number_axis("gain", unit, [0.0, *rows["gain"]])
    shape = colour | {"scale": {"domain": names}}
    tooltip = _make_tooltip("trial", "kind", ("value", option), ("gain", unit, "+.1f"))
    points = _make_layer("point", style, x=x, y=y, color=colour, shape=shape, tooltip=tooltip)
    first = data.head(40).itertuples()
    told = (f"{trial.trial} ({trial.kind}) at {trial.value}: {trial.gain:+.1f}" for trial in first)
    opening = f"{title}: {unit}. "
    return _make_figure(data, [_ZERO_Y, points], title, opening, told, _PANEL)


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
    x = _number_axis("x", x_title, rows["x"])
    x["scale"]["padding"] = 20
    cells = rows[rows["kind"] == "cell"]
    means = rows[rows["kind"] == "mean"]
    colour = _colour_scale("regime", order, map(colour_of, order), _make_legend(2))
    y = _number_axis("y", y_title, rows["y"], log_y)
    shape = colour | {"scale": {"domain": list(order)}}
    tooltip = _make_tooltip("regime", "group", ("x", x_title, ".3~g"), ("y", y_title, ".3~g"))
    every = {
        "x": x,
        "y": y,
        "color": colour,
        "shape": shape,
        "tooltip": tooltip,
    }
    cell_style = {"size": 35, "opacity": 1}
    mean_style = {"size": 170, "filled": True, "opacity": 1}
    layers = [_make_layer("point", cell_style, cells, **every), _make_layer("point", mean_style, means, **every)]
    told = (f"{mean.regime} at {mean.x:.3g}, {mean.y:.3g}" for mean in means.itertuples())
    legend_rows = math.ceil(len(order) / 2)
    height = 390 + _MARKS * legend_rows
    opening = f"{title}. {x_title} and {y_title}: "
    return _make_figure((), layers, title, opening, told, height)


def draw_network(nodes: pd.DataFrame, edges: pd.DataFrame, title: str) -> Figure:
    """Draw policies on a circle, and an arrow from each author to each receiver.

    Columns of nodes: name, gain (text), verdict; of edges: author, receiver, used (the arrow's width; NaN where unknown),
    label.
    """
    pair = len(nodes) == 2
    nodes = _place_nodes(nodes, pair)
    arrows = _place_arrows(nodes, edges, pair)
    # Two policies stand side by side and need less height; the labels lie outside of the circle of radius 1
    x_reach, y_reach = 1.6, 0.8 if pair else 1.4
    x, y = _hidden_axis("x", x_reach), _hidden_axis("y", y_reach)
    layers = [*_layer_arrows(arrows, x, y), *_layer_nodes(nodes, x, y)]
    told = [f"{edge.author} to {edge.receiver}: {edge.label or 'not kept'}" for edge in edges.itertuples()]
    told += [f"{node.name}: {node.gain or 'no gain known'}" for node in nodes.itertuples()]
    scale = 105  # pixels of a unit both ways, so that arrowheads lie along their lines
    height, width = round(2 * scale * y_reach), round(2 * scale * x_reach)
    figure = _make_figure((), layers, title, f"{title}: ", told, height)
    return {**figure, "width": width}


def _layer_arrows(arrows: pd.DataFrame, x: Figure, y: Figure) -> list[Figure]:
    """Return the layers of the arrows: their lines, as wide as answers were used, their heads, their labels."""
    colour = _colour_scale("verdict", COLOURS, COLOURS.values())
    most = 1.0 if arrows.empty else max(1.0, float(arrows["used"].max()))
    width_scale = {"domain": [0, most], "range": [1, 6]}
    width = {"field": "used", "type": "quantitative", "scale": width_scale, "legend": None}
    angle = {"field": "angle", "type": "quantitative", "scale": None}
    line_ends = {"x": x, "y": y, "x2": {"field": "x2"}, "y2": {"field": "y2"}}
    head_places = {"x": x | {"field": "x2"}, "y": y | {"field": "y2"}}
    label_places = {"x": x | {"field": "label_x"}, "y": y | {"field": "label_y"}}
    tooltip = _make_tooltip("author", "receiver", "label")
    head = {"shape": "triangle", "filled": True, "size": 200, "opacity": 1}
    return [
        _make_layer("rule", {}, arrows, **line_ends, color=colour, strokeWidth=width, tooltip=tooltip),
        _make_layer("point", head, arrows, **head_places, color=colour, angle=angle),
        _make_layer("text", {"fontSize": 11}, arrows, **label_places, text=_nominal_field("label")),
    ]


def _layer_nodes(nodes: pd.DataFrame, x: Figure, y: Figure) -> list[Figure]:
    """Return the layers of the policies: their names, and below them their gains."""
    name_style = {"fontSize": 14, "fontWeight": "bold", "dy": -9, "limit": 100}
    gain_style = {"fontSize": 12, "dy": 8, "lineBreak": "\n"}
    return [
        _make_layer("text", name_style, nodes, x=x, y=y, text=_nominal_field("name")),
        _make_layer("text", gain_style, nodes, x=x, y=y, text=_nominal_field("gain")),
    ]


def _place_nodes(nodes: pd.DataFrame, pair: bool) -> pd.DataFrame:
    """Add x and y on the unit circle: the first of a pair at the left, else at the top, and on clockwise."""
    first = np.pi * (1 if pair else 0.5)
    places = np.arange(len(nodes))
    turn = first - 2 * np.pi * places / len(nodes)  # radians
    return nodes.assign(x=np.cos(turn), y=np.sin(turn))


def _place_arrows(nodes: pd.DataFrame, edges: pd.DataFrame, pair: bool) -> pd.DataFrame:
    """Add to each edge its ends (x, y and x2, y2), its label's place, the angle of its head and the receiver's verdict."""
    points = nodes[["x", "y"]].to_numpy()
    places = dict(zip(nodes["name"], points, strict=True))
    verdicts = nodes.set_index("name")["verdict"]
    # In a circle of three or more the middles of arrows across it would meet
    label_along, label_aside = (0.5, 0.3) if pair else (0.38, 0.2)
    arrows = []
    for edge in edges.to_dict("records"):
        author, receiver = places[edge["author"]], places[edge["receiver"]]
        to_receiver = receiver - author
        length = float(np.hypot(*to_receiver))
        along = to_receiver / length
        aside = np.array([-along[1], along[0]])
        across = 0.08 * aside  # keeps both directions apart
        start = author + 0.45 * along + across
        end = receiver - 0.45 * along + across
        label = author + label_along * length * along + label_aside * aside
        verdict = verdicts[edge["receiver"]]
        angle = math.degrees(math.atan2(*along))
        arrow = {
            **edge,
            "x": start[0],
            "y": start[1],
            "x2": end[0],
            "y2": end[1],
            "label_x": label[0],
            "label_y": label[1],
            "angle": angle,
            "verdict": verdict,
        }
        arrows.append(arrow)
    return pd.DataFrame(arrows).fillna({"used": 0.0})


def _hidden_axis(field: str, reach: float) -> Figure:
    """Return an axis from -reach to reach that is not drawn."""
    scale = {"domain": [-reach, reach], "nice": False}
    return {"field": field, "type": "quantitative", "axis": None, "scale": scale}


def _nominal_field(field: str) -> Figure:
    return {"field": field, "type": "nominal"}


def draw_bars(
    rows: pd.DataFrame, title: str, x_title: str, y: str, colour: str, order: Sequence[str] | None = None
) -> Figure:
    """Draw stacked bars. Columns: value (the length), and those that `y` (the bar) and `colour` (its part) name. order: of the
    bars, else as they come."""
    parts = list(dict.fromkeys(rows[colour]))
    x = {"field": "value", "type": "quantitative", "title": x_title, "axis": {"tickCount": 6}}
    bars = list(order) if order else None
    legend = _make_legend(2) | {"labelLimit": 170}
    colours = _list_colours(len(parts))
    part_colour = _colour_scale(colour, parts, colours, legend) | {"sort": parts}
    tooltip = _make_tooltip(y, colour, ("value", x_title, ",.4~g"))
    layer = _make_layer("bar", {}, x=x, y=_row_axis(y, bars, 180), color=part_colour, tooltip=tooltip)
    told = (f"{getattr(row, y)}, {getattr(row, colour)}: {row.value:,.4g}" for row in rows.head(40).itertuples())
    return _make_figure(rows, [layer], title, f"{title}: {x_title}. ", told)


# Parts of a specification ---------------------------------------------------------------------------------------------


def _make_figure(
    data: pd.DataFrame | Sequence[Figure],
    layers: Sequence[Figure],
    title: str,
    opening: str,
    told: Iterable[str],
    height: int | None = None,
) -> Figure:
    """Return a specification of these layers. told: sentences of the description, which follow `opening`, for readers who hear the
    page. height: of the plot in pixels, else a line for each row. Control characters would end the process that draws a file.
    """
    values = _plain_values(data) if isinstance(data, pd.DataFrame) else {"values": list(data)}
    description = opening + "; ".join(told)
    figure = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "data": values,
        "layer": list(layers),
        "title": {"text": title, "anchor": "start", "fontSize": 14},
        "width": "container",
        "height": height or {"step": _BAR},
        "description": description,
    }
    return dict(_make_legible(figure))


def _make_layer(mark: str, style: Mapping[str, Any], data: pd.DataFrame | None = None, **encoding: Any) -> Figure:
    """Return a layer of one kind of mark. data: its own rows, else the figure's."""
    own = {} if data is None else {"data": _plain_values(data)}
    return own | {"mark": {"type": mark, **style}, "encoding": encoding}


def _plain_values(rows: pd.DataFrame) -> Figure:
    """Return rows as Vega-Lite takes them; JSON has no NaN."""
    plain = rows.astype(object)
    known = plain.where(plain.notna(), None)
    return {"values": known.to_dict("records")}


def _draw_zero(axis: str) -> Figure:
    """Return the layer of the dashed line at 0 of an axis, `x` or `y`."""
    style = {"strokeDash": [4, 3], "color": "#8b949e", "aria": False}
    return _make_layer("rule", style, **{axis: {"datum": 0}})


_ZERO_X, _ZERO_Y = _draw_zero("x"), _draw_zero("y")


def _number_axis(field: str, title: str, values: Iterable[float], logarithmic: bool = False) -> Figure:
    """Return an axis of numbers. title: ends with the unit. values: all that it must reach."""
    axis: Figure
    if logarithmic:
        scale: Figure = {"type": "log"}
        axis = {"tickCount": 5, "format": ",~g"}
    else:
        scale = _widen_domain(values, title)
        axis = {"tickCount": 6, "grid": True}
    return {"field": field, "type": "quantitative", "title": title, "scale": {"zero": False, **scale}, "axis": axis}


def _widen_domain(values: Iterable[float], title: str) -> Figure:
    """Return a domain for nearly equal values, so that the axis does not magnify rounding; nothing for others."""
    known = [float(value) for value in values if np.isfinite(value)]
    if not known:
        return {}
    low, high = min(known), max(known)
    of_unit = next((least for words, least in _LEAST.items() if title.endswith(words)), 0.0)
    largest = max(abs(low), abs(high))
    least = max(of_unit, 1e-3 * largest)
    if high - low >= least:
        return {}
    middle = (low + high) / 2
    return {"domain": [middle - least / 2, middle + least / 2]}


def _row_axis(field: str, order: Sequence[str] | None, room: int) -> Figure:
    """Return an axis of names, one below the other. room: pixels of a name."""
    axis = {"labelLimit": room, "ticks": False, "domain": False, "labelFlush": False}
    rows: Figure = {"field": field, "type": "nominal", "title": None, "axis": axis}
    if order:
        rows["sort"] = list(order)
    return rows


def _colour_scale(field: str, names: Iterable[str], colours: Iterable[str], legend: Figure | None = None) -> Figure:
    scale = {"domain": list(names), "range": list(colours)}
    return {"field": field, "type": "nominal", "scale": scale, "legend": legend}


def _make_legend(columns: int, values: Sequence[str] | None = None) -> Figure:
    """Return a legend below the plot. values: names of lines, else it has all marks of the figure."""
    legend = {"title": None, "orient": "bottom", "columns": columns, "labelLimit": 140}
    if values is None:
        return legend
    stroke = {"symbolType": "stroke", "symbolSize": 400, "symbolOpacity": 1, "symbolStrokeWidth": 3}
    return legend | stroke | {"values": list(values)}


def _make_tooltip(*fields: str | tuple[str, ...]) -> list[Figure]:
    """Return what a mark's tip shows. fields: by name alone, or with a title and a format."""
    keys = ("field", "title", "format")
    tips = []
    for one in fields:
        parts = [one] if isinstance(one, str) else one
        tips.append(dict(zip(keys, parts, strict=False)))
    return tips


def _list_colours(count: int) -> list[str]:
    return [PALETTE[place % len(PALETTE)] for place in range(count)]


def colour_of(regime: str) -> str:
    """Return a regime's colour, the same in every figure; a published method's variants (`sgt-lying`) have its colour."""
    variants_of = {name: (f"{name}-", f"{name}.", f"{name},") for name in KNOWN}
    method = next((name for name, heads in variants_of.items() if regime.startswith(heads)), regime)
    if method in KNOWN:
        return PALETTE[KNOWN.index(method)]
    # a name has the same colour in every process, which its own hash would not give
    place = crc32(regime.encode()) % len(PALETTE)
    return PALETTE[place]


def _dash_of(regime: str) -> list[int]:
    """Return a regime's dashes: a full line for a published method, others by the name."""
    if regime in KNOWN:
        return _DASHES[0]
    # other digits of the name's number than the colour's, so that equal colours have unequal dashes
    number = crc32(regime.encode()) // len(PALETTE)
    place = 1 + number % (len(_DASHES) - 1)
    return _DASHES[place]


def _make_legible(part: Any) -> Any:
    """Return a specification, or a part of it, with the control characters of its texts made visible."""
    if isinstance(part, str):
        return visible(part)
    if isinstance(part, dict):
        return {name: _make_legible(value) for name, value in part.items()}
    if isinstance(part, list | tuple):
        return [_make_legible(value) for value in part]
    return part


# For a page, and as files ---------------------------------------------------------------------------------------------


def with_ink(figure: Figure, ink: str, grid: str) -> Figure:
    """Return a figure in a page's colours. ink: of its words. grid: of its lines."""
    words = {"labelColor": ink, "titleColor": ink}
    inked = {
        "axis": {**words, "gridColor": grid, "domainColor": grid, "tickColor": grid},
        "legend": words,
        "title": {"color": ink, "subtitleColor": ink},
        "text": {"color": ink},
        "view": {"stroke": grid},
    }
    own = figure.get("config", {})
    return {**figure, "config": {**own, **inked}}


def combine_figures(figures: Sequence[Figure | Forest]) -> Figure:
    """Return one figure with all of them below each other."""
    drawn = [figure.figure() if isinstance(figure, Forest) else figure for figure in figures]
    if len(drawn) == 1:
        return drawn[0]
    schema = drawn[0]["$schema"]
    parts = []
    for figure in drawn:
        part = dict(figure)
        del part["$schema"]
        parts.append(part)
    # a name may stand for other things in each part
    resolve = {"scale": {"color": "independent"}}
    return {"$schema": schema, "vconcat": parts, "resolve": resolve}


def to_svg(figure: Figure, width: int = 520) -> str:
    """Return a figure as SVG. width: of a figure that would fill its page, in pixels."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(_write_specification(figure, width)))


def to_png(figure: Figure, width: int = 520) -> bytes:
    """Return a figure as PNG, two pixels for each of its own. width: as for `to_svg`."""
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(_write_specification(figure, width), scale=2))


def _write_specification(figure: Figure, width: int) -> str:
    """Write a figure as JSON for a file, on white; a page's figure has the page's background and fonts."""
    config = {**figure.get("config", {}), "font": "Helvetica, Arial, sans-serif"}
    whole = _set_width(figure, width)
    parts = [_set_width(part, width) for part in figure.get("vconcat", [])]
    if parts:
        whole = {**whole, "vconcat": parts}
    return json.dumps({**whole, "background": "white", "config": config})


def _set_width(figure: Figure, width: int) -> Figure:
    return {**figure, "width": width} if figure.get("width") == "container" else figure


# HTML from templates; values are escaped, and their control characters made visible
def _make_printable(value: Any) -> Any:
    """Return a value as a template prints it; text that is HTML already stays as it is."""
    is_text = isinstance(value, str) and not hasattr(value, "__html__")
    return visible(value, 20_000) if is_text else value


_templates = Environment(
    loader=PackageLoader("leaderboard"), autoescape=True, finalize=_make_printable, trim_blocks=True, lstrip_blocks=True
)


def fill_template(template: str, **values: Any) -> str:
    """Return a template of `leaderboard/templates` as HTML. values: by their name there; all are escaped."""
    chosen = _templates.get_template(template)
    return chosen.render(values)
