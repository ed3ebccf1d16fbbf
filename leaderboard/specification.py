"""Parts of a figure as Vega-Lite takes them: the whole, its layers, axes, scales, legends and tips."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from harness.store.text import visible

Figure = dict[str, Any]
_BAR = 26  # pixels of a row
# The least that an axis spans, by the last words of its title
_LEAST = {"points": 1.0, "%": 1.0, "share": 0.01, "nats per token": 1e-6}


def make_figure(
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


def make_layer(mark: str, style: Mapping[str, Any], data: pd.DataFrame | None = None, **encoding: Any) -> Figure:
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
    return make_layer("rule", style, **{axis: {"datum": 0}})


ZERO_X, ZERO_Y = _draw_zero("x"), _draw_zero("y")


def number_axis(field: str, title: str, values: Iterable[float], logarithmic: bool = False) -> Figure:
    """Return an axis of numbers. title: ends with the unit. values: all that it must reach."""
    axis: Figure
    if logarithmic:
        scale: Figure = {"type": "log"}
        axis = {"tickCount": 5, "format": ",~g"}
    else:
        scale = widen_domain(values, title)
        axis = {"tickCount": 6, "grid": True}
    return {"field": field, "type": "quantitative", "title": title, "scale": {"zero": False, **scale}, "axis": axis}


def widen_domain(values: Iterable[float], title: str) -> Figure:
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


def row_axis(field: str, order: Sequence[str] | None, room: int) -> Figure:
    """Return an axis of names, one below the other. room: pixels of a name."""
    axis = {"labelLimit": room, "ticks": False, "domain": False, "labelFlush": False}
    rows: Figure = {"field": field, "type": "nominal", "title": None, "axis": axis}
    if order:
        rows["sort"] = list(order)
    return rows


def colour_scale(field: str, names: Iterable[str], colours: Iterable[str], legend: Figure | None = None) -> Figure:
    """Return the encoding of names by colours, or by shapes, in the same order. legend: without any there is none."""
    scale = {"domain": list(names), "range": list(colours)}
    return {"field": field, "type": "nominal", "scale": scale, "legend": legend}


def make_legend(columns: int, values: Sequence[str] | None = None) -> Figure:
    """Return a legend below the plot. values: names of lines, else it has all marks of the figure."""
    legend = {"title": None, "orient": "bottom", "columns": columns, "labelLimit": 140}
    if values is None:
        return legend
    stroke = {"symbolType": "stroke", "symbolSize": 400, "symbolOpacity": 1, "symbolStrokeWidth": 3}
    return legend | stroke | {"values": list(values)}


def make_tooltip(*fields: str | tuple[str, ...]) -> list[Figure]:
    """Return what a mark's tip shows. fields: by name alone, or with a title and a format."""
    keys = ("field", "title", "format")
    tips = []
    for one in fields:
        parts = [one] if isinstance(one, str) else one
        tips.append(dict(zip(keys, parts, strict=False)))
    return tips


def nominal_field(field: str) -> Figure:
    """Return the encoding of a field of names, without scale or legend of its own."""
    return {"field": field, "type": "nominal"}


def _make_legible(part: Any) -> Any:
    """Return a specification, or a part of it, with the control characters of its texts made visible."""
    if isinstance(part, str):
        return visible(part)
    if isinstance(part, dict):
        return {name: _make_legible(value) for name, value in part.items()}
    if isinstance(part, list | tuple):
        return [_make_legible(value) for value in part]
    return part
