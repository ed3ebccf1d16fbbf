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
COLOURS, SHAPES, SIGNS = ({verdict: look[i] for verdict, look in _LOOKS.items()} for i in range(3))
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
        return [row[end] for row in self.rows for end in ("low", "high")] + [0.0] * (self.zero or not self.rows)

    @cached_property
    def ticks(self) -> list[float]:
        """Round numbers from end to end of the axis."""
        low, high = _domain(self.ends, self.unit).get("domain") or (min(self.ends), max(self.ends))
        rough = (high - low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(times * power for times in (1, 2, 5, 10) if times * power >= rough)
        return [step * i for i in range(math.floor(low / step), math.ceil(high / step) + 1)]

    def place(self, value: float) -> float:
        first, *_, last = self.ticks
        return round(100 * (value - first) / (last - first), 1)

    def figure(self) -> Figure:
        x = _numbers("value", self.unit, self.ends)
        every = {
            "y": _rows("name", [row["name"] for row in self.rows], 140),
            "color": _colour("verdict", COLOURS, COLOURS.values()),
        }
        shape = _colour("verdict", SHAPES, SHAPES.values())
        layers = [
            _layer("rule", {"strokeWidth": 3}, **every, x=x | {"field": "low"}, x2={"field": "high"}),
            *(_layer("tick", {"thickness": 2, "size": 12}, **every, x=x | {"field": end}) for end in ("low", "high")),
            _layer("point", {"filled": True, "size": 90, "opacity": 1}, **every, x=x, shape=shape),
        ]
        told = (f"{row['name']} {row['label']}" for row in self.rows)
        opening = f"{self.title}: {self.unit}. "
        return _figure(self.rows, [_ZERO_X, *layers] if self.zero else layers, self.title, opening, told)


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
    logarithmic = bool((rows["y"] > 0).all() and rows["y"].max() > 1e4 * rows["y"].min())
    if logarithmic:
        rows = rows.assign(low=rows["low"].clip(lower=rows["y"].min()))
    present = list(order if shown is None else shown)
    colours, dashes = _choose_looks(order, named)
    colour = _colour("regime", order, colours, _legend(2, present) if present else None)
    dash = _nominal("regime") | {"scale": {"domain": list(order), "range": dashes}, "legend": None}
    x = {"field": "x", "type": "quantitative", "title": x_title, "axis": {"tickCount": 6}}
    y = _numbers("y", y_title, rows[["low", "high"]].to_numpy().ravel(), logarithmic)
    band = {"color": colour, "y": y | {"field": "low"}, "y2": {"field": "high"}}
    last = rows.sort_values("x").groupby("regime").tail(1)
    if rows["regime"].nunique() > 2:
        bars = _place_end_bars(rows, last, order)
        spread = _layer("rule", {"strokeWidth": 3, "aria": False}, bars, x=x, **band)
    else:
        spread = _layer("area", {"opacity": 0.13}, x=x, **band)
    tooltip = _tooltip("regime", ("x", x_title, ",.4~g"), ("y", y_title, ".3~g"))
    point = {"filled": True, "size": 22, "opacity": 1}
    layers = [
        spread,
        _layer("line", {"strokeWidth": 2}, x=x, y=y, color=colour, strokeDash=dash),
        _layer("point", point, x=x, y=y, color=colour, tooltip=tooltip),
    ]
    told = (f"{row.regime} ends at {row.y:.3g}" for row in last.itertuples())
    height = panel + _LEGEND * math.ceil(len(present) / 2)
    return _figure(rows, layers, title, f"{title}. {y_title} over {x_title}: ", told, height)


def _choose_looks(order: Sequence[str], named: bool) -> tuple[list[str], list[list[int]]]:
    """Return colour and dashes of each line: by its name, so that a regime looks alike in every figure, or by its place."""
    if named:
        return [colour_of(name) for name in order], [_dash_of(name) for name in order]
    return _colours(len(order)), [_DASHES[place % len(_DASHES)] for place in range(len(order))]


def _place_end_bars(rows: pd.DataFrame, last: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    """Return the lines' last points with an interval, each moved to the right so that no bar covers another."""
    step = 0.012 * float(rows["x"].max() - rows["x"].min())
    ended = set(last["regime"])
    place = {name: i for i, name in enumerate(name for name in order if name in ended)}
    aside = last.assign(x=last["x"] + step * (1 + last["regime"].map(place)))
    return aside[last["high"] > last["low"]]


def draw_dots(rows: pd.DataFrame, title: str, unit: str) -> Figure:
    points = _layer(
        "point",
        {"size": 80, "opacity": 1, "strokeWidth": 2},
        y=_rows("row", list(dict.fromkeys(rows["row"])), 170),
        x=_numbers("value", unit, [0.0, *rows["value"]]),
        tooltip=_tooltip("label", ("value", unit, "+.1f")),
        color={"value": PALETTE[0]},
    )
    told = (f"{r.row}, {r.label}: {r.value:+.1f}" for r in rows.head(60).itertuples())
    return _figure(rows, [_ZERO_X, points], title, f"{title}: {unit}. ", told)


def draw_trials(
    rows: pd.DataFrame, option: str, title: str, unit: str, kinds: Sequence[str], legend: bool = True
) -> Figure:
    """Gain against one option. Columns: trial, kind, gain and the option's: an axis of numbers (logarithmic from a factor of ten
    on), or names."""
    values = list(rows[option])
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) and np.isfinite(v) for v in values)
    data = rows[["trial", "kind", "gain"]].assign(value=values if numbers else [str(v) for v in values])
    wide = numbers and min(values) > 0 and max(values) >= 10 * min(values)
    x: dict[str, Any] = {"field": "value", "type": "nominal", "title": option, "axis": {"labelAngle": 0}}
    if numbers:
        scale = {"type": "log", "nice": False, "padding": 12} if wide else {"zero": False, "padding": 12}
        x |= {"type": "quantitative", "scale": scale, "axis": {"tickCount": 5, "format": "~g"}}
    colour = _colour("kind", kinds, _colours(len(kinds)), {"title": None, "orient": "bottom"} if legend else None)
    points = _layer(
        "point",
        {"size": 90, "strokeWidth": 2, "opacity": 1},
        x=x,
        y=_numbers("gain", unit, [0.0, *rows["gain"]]),
        color=colour,
        shape=colour | {"scale": {"domain": list(kinds)}},
        tooltip=_tooltip("trial", "kind", ("value", option), ("gain", unit, "+.1f")),
    )
    told = (f"{r.trial} ({r.kind}) at {r.value}: {r.gain:+.1f}" for r in data.head(40).itertuples())
    return _figure(data, [_ZERO_Y, points], title, f"{title}: {unit}. ", told, _PANEL)


def draw_plane(rows: pd.DataFrame, title: str, x_title: str, y_title: str, order: Sequence[str], log_y: bool) -> Figure:
    """Cells as small marks, means as large ones. Columns: regime, group, x, y, kind (`cell`, `mean`)."""
    x = _numbers("x", x_title, rows["x"])
    x["scale"]["padding"] = 20
    means = rows[rows["kind"] == "mean"]
    colour = _colour("regime", order, map(colour_of, order), _legend(2))
    every = {
        "x": x,
        "y": _numbers("y", y_title, rows["y"], log_y),
        "color": colour,
        "shape": colour | {"scale": {"domain": list(order)}},
        "tooltip": _tooltip("regime", "group", ("x", x_title, ".3~g"), ("y", y_title, ".3~g")),
    }
    layers = [
        _layer("point", {"size": 35, "opacity": 1}, rows[rows["kind"] == "cell"], **every),
        _layer("point", {"size": 170, "filled": True, "opacity": 1}, means, **every),
    ]
    told = (f"{r.regime} at {r.x:.3g}, {r.y:.3g}" for r in means.itertuples())
    height = 390 + _MARKS * math.ceil(len(order) / 2)
    return _figure((), layers, title, f"{title}. {x_title} and {y_title}: ", told, height)


def draw_network(nodes: pd.DataFrame, edges: pd.DataFrame, title: str) -> Figure:
    """Draw policies on a circle, and an arrow from each author to each receiver.

    Columns of nodes: name, gain (text), verdict; of edges: author, receiver, used (the arrow's width; NaN where unknown),
    label.
    """
    pair = len(nodes) == 2
    nodes = _place_nodes(nodes, pair)
    arrows = _place_arrows(nodes, edges, pair)
    # Two policies stand side by side and need less height; the labels lie outside of the circle of radius 1
    reach = {"x": 1.6, "y": 0.8 if pair else 1.4}
    axes = {axis: _hidden_axis(axis, reach[axis]) for axis in reach}
    starts = axes
    ends = {axis: axes[axis] | {"field": f"{axis}2"} for axis in axes}
    labels = {axis: axes[axis] | {"field": f"label_{axis}"} for axis in axes}
    rule_ends = {f"{axis}2": {"field": f"{axis}2"} for axis in axes}
    colour = _colour("verdict", COLOURS, COLOURS.values())
    most = 1.0 if arrows.empty else max(1.0, float(arrows["used"].max()))
    width = {"field": "used", "type": "quantitative", "scale": {"domain": [0, most], "range": [1, 6]}, "legend": None}
    angle = {"field": "angle", "type": "quantitative", "scale": None}
    tooltip = _tooltip("author", "receiver", "label")
    head = {"shape": "triangle", "filled": True, "size": 200, "opacity": 1}
    name_style = {"fontSize": 14, "fontWeight": "bold", "dy": -9, "limit": 100}
    gain_style = {"fontSize": 12, "dy": 8, "lineBreak": "\n"}
    layers = [
        _layer("rule", {}, arrows, **starts, **rule_ends, color=colour, strokeWidth=width, tooltip=tooltip),
        _layer("point", head, arrows, **ends, color=colour, angle=angle),
        _layer("text", {"fontSize": 11}, arrows, **labels, text=_nominal("label")),
        _layer("text", name_style, nodes, **axes, text=_nominal("name")),
        _layer("text", gain_style, nodes, **axes, text=_nominal("gain")),
    ]
    told = [f"{edge.author} to {edge.receiver}: {edge.label or 'not kept'}" for edge in edges.itertuples()]
    told += [f"{node.name}: {node.gain or 'no gain known'}" for node in nodes.itertuples()]
    scale = 105  # pixels of a unit both ways, so that arrowheads lie along their lines
    figure = _figure((), layers, title, f"{title}: ", told, round(2 * scale * reach["y"]))
    return {**figure, "width": round(2 * scale * reach["x"])}


def _place_nodes(nodes: pd.DataFrame, pair: bool) -> pd.DataFrame:
    """Add x and y on the unit circle: the first of a pair at the left, else at the top, and on clockwise."""
    first = np.pi * (1 if pair else 0.5)
    turn = first - 2 * np.pi * np.arange(len(nodes)) / len(nodes)
    return nodes.assign(x=np.cos(turn), y=np.sin(turn))


def _place_arrows(nodes: pd.DataFrame, edges: pd.DataFrame, pair: bool) -> pd.DataFrame:
    """Add to each edge its ends (x, y and x2, y2), its label's place, the angle of its head and the receiver's verdict."""
    places = dict(zip(nodes["name"], nodes[["x", "y"]].to_numpy(), strict=True))
    verdicts = nodes.set_index("name")["verdict"]
    arrows = []
    for edge in edges.to_dict("records"):
        author, receiver = places[edge["author"]], places[edge["receiver"]]
        length = float(np.hypot(*(receiver - author)))
        along = (receiver - author) / length
        aside = np.array([-along[1], along[0]])  # keeps both directions apart
        start = author + 0.45 * along + 0.08 * aside
        end = receiver - 0.45 * along + 0.08 * aside
        # In a circle of three or more the middles of arrows across it would meet
        label = author + (0.5 if pair else 0.38) * length * along + (0.3 if pair else 0.2) * aside
        arrow = {
            **edge,
            "x": start[0],
            "y": start[1],
            "x2": end[0],
            "y2": end[1],
            "label_x": label[0],
            "label_y": label[1],
            "angle": math.degrees(math.atan2(*along)),
            "verdict": verdicts[edge["receiver"]],
        }
        arrows.append(arrow)
    return pd.DataFrame(arrows).fillna({"used": 0.0})


def _hidden_axis(field: str, reach: float) -> Figure:
    """Return an axis from -reach to reach that is not drawn."""
    scale = {"domain": [-reach, reach], "nice": False}
    return {"field": field, "type": "quantitative", "axis": None, "scale": scale}


def _nominal(field: str) -> Figure:
    return {"field": field, "type": "nominal"}


def draw_bars(
    rows: pd.DataFrame, title: str, x_title: str, y: str, colour: str, order: Sequence[str] | None = None
) -> Figure:
    parts = list(dict.fromkeys(rows[colour]))
    x = {"field": "value", "type": "quantitative", "title": x_title, "axis": {"tickCount": 6}}
    layer = _layer(
        "bar",
        {},
        x=x,
        y=_rows(y, list(order) if order else None, 180),
        color=_colour(colour, parts, _colours(len(parts)), _legend(2) | {"labelLimit": 170}) | {"sort": parts},
        tooltip=_tooltip(y, colour, ("value", x_title, ",.4~g")),
    )
    told = (f"{getattr(r, y)}, {getattr(r, colour)}: {r.value:,.4g}" for r in rows.head(40).itertuples())
    return _figure(rows, [layer], title, f"{title}: {x_title}. ", told)


# Parts of a specification ---------------------------------------------------------------------------------------------


def _figure(
    data: pd.DataFrame | Sequence[Figure],
    layers: Sequence[Figure],
    title: str,
    opening: str,
    told: Iterable[str],
    height: int | None = None,
) -> Figure:
    """height: of the plot, else a line for each row. Control characters would end the process that draws a file."""
    figure = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "data": _values(data) if isinstance(data, pd.DataFrame) else {"values": list(data)},
        "layer": list(layers),
        "title": {"text": title, "anchor": "start", "fontSize": 14},
        "width": "container",
        "height": height or {"step": _BAR},
        "description": opening + "; ".join(told),
    }
    return dict(_legible(figure))


def _layer(mark: str, style: Mapping[str, Any], data: pd.DataFrame | None = None, **encoding: Any) -> Figure:
    own = {} if data is None else {"data": _values(data)}
    return own | {"mark": {"type": mark, **style}, "encoding": encoding}


def _values(rows: pd.DataFrame) -> Figure:
    plain = rows.astype(object)
    return {"values": plain.where(plain.notna(), None).to_dict("records")}


_ZERO_X, _ZERO_Y = (
    _layer("rule", {"strokeDash": [4, 3], "color": "#8b949e", "aria": False}, **{axis: {"datum": 0}}) for axis in "xy"
)


def _numbers(field: str, title: str, values: Iterable[float], logarithmic: bool = False) -> Figure:
    scale = {"type": "log"} if logarithmic else _domain(values, title)
    axis: Figure = {"tickCount": 5, "format": ",~g"} if logarithmic else {"tickCount": 6, "grid": True}
    return {"field": field, "type": "quantitative", "title": title, "scale": {"zero": False, **scale}, "axis": axis}


def _domain(values: Iterable[float], title: str) -> Figure:
    """For nearly equal values, so that the axis does not magnify rounding."""
    known = [float(v) for v in values if np.isfinite(v)]
    if not known:
        return {}
    low, high = min(known), max(known)
    kind = next((least for words, least in _LEAST.items() if title.endswith(words)), 0.0)
    least = max(kind, 1e-3 * max(abs(low), abs(high)))
    middle = (low + high) / 2
    return {"domain": [middle - least / 2, middle + least / 2]} if high - low < least else {}


def _rows(field: str, order: Sequence[str] | None, room: int) -> Figure:
    axis = {"labelLimit": room, "ticks": False, "domain": False, "labelFlush": False}
    return {"field": field, "type": "nominal", "title": None, "axis": axis} | ({"sort": list(order)} if order else {})


def _colour(field: str, names: Iterable[str], colours: Iterable[str], legend: Figure | None = None) -> Figure:
    scale = {"domain": list(names), "range": list(colours)}
    return {"field": field, "type": "nominal", "scale": scale, "legend": legend}


def _legend(columns: int, values: Sequence[str] | None = None) -> Figure:
    legend = {"title": None, "orient": "bottom", "columns": columns, "labelLimit": 140}
    stroke = {"symbolType": "stroke", "symbolSize": 400, "symbolOpacity": 1, "symbolStrokeWidth": 3}
    return legend if values is None else legend | stroke | {"values": list(values)}


def _tooltip(*fields: str | tuple[str, ...]) -> list[Figure]:
    parts = ([field] if isinstance(field, str) else field for field in fields)
    return [dict(zip(("field", "title", "format"), part, strict=False)) for part in parts]


def _colours(count: int) -> list[str]:
    return [PALETTE[i % len(PALETTE)] for i in range(count)]


def colour_of(regime: str) -> str:
    """The same in every figure; a published method's variants (`sgt-lying`) have its colour."""
    method = next((name for name in KNOWN if regime.startswith((f"{name}-", f"{name}.", f"{name},"))), regime)
    return PALETTE[KNOWN.index(method) if method in KNOWN else crc32(regime.encode()) % len(PALETTE)]


def _dash_of(regime: str) -> list[int]:
    return _DASHES[0 if regime in KNOWN else 1 + crc32(regime.encode()) // len(PALETTE) % (len(_DASHES) - 1)]


def _legible(part: Any) -> Any:
    if isinstance(part, str):
        return visible(part)
    if isinstance(part, dict):
        return {name: _legible(value) for name, value in part.items()}
    return [_legible(value) for value in part] if isinstance(part, list | tuple) else part


# For a page, and as files ---------------------------------------------------------------------------------------------


def with_ink(figure: Figure, ink: str, grid: str) -> Figure:
    words = {"labelColor": ink, "titleColor": ink}
    config = {
        "axis": {**words, "gridColor": grid, "domainColor": grid, "tickColor": grid},
        "legend": words,
        "title": {"color": ink, "subtitleColor": ink},
        "text": {"color": ink},
        "view": {"stroke": grid},
    }
    return {**figure, "config": {**figure.get("config", {}), **config}}


def combine_figures(figures: Sequence[Figure | Forest]) -> Figure:
    drawn = [figure.figure() if isinstance(figure, Forest) else figure for figure in figures]
    if len(drawn) == 1:
        return drawn[0]
    parts = [{k: v for k, v in figure.items() if k != "$schema"} for figure in drawn]
    return {"$schema": drawn[0]["$schema"], "vconcat": parts, "resolve": {"scale": {"color": "independent"}}}


def to_svg(figure: Figure, width: int = 520) -> str:
    import vl_convert

    return str(vl_convert.vegalite_to_svg(_printed(figure, width)))


def to_png(figure: Figure, width: int = 520) -> bytes:
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(_printed(figure, width), scale=2))


def _printed(figure: Figure, width: int) -> str:
    config = {**figure.get("config", {}), "font": "Helvetica, Arial, sans-serif"}
    wide = [_wide(part, width) for part in figure.get("vconcat", [])]
    return json.dumps(
        {**_wide(figure, width), **({"vconcat": wide} if wide else {}), "background": "white", "config": config}
    )


def _wide(figure: Figure, width: int) -> Figure:
    return {**figure, "width": width} if figure.get("width") == "container" else figure


# HTML from templates; values are escaped, and their control characters made visible
def _printable(value: Any) -> Any:
    return visible(value, 20_000) if isinstance(value, str) and not hasattr(value, "__html__") else value


_templates = Environment(
    loader=PackageLoader("leaderboard"), autoescape=True, finalize=_printable, trim_blocks=True, lstrip_blocks=True
)


def fill_template(template: str, **values: Any) -> str:
    return _templates.get_template(template).render(values)
