"""Figures in Altair: intervals, lines with bands, planes, matrices. Every one has a title, units and a description."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from zlib import crc32

import altair as alt
import numpy as np
import pandas as pd

from harness.statistics.comparison import ALONE, BASELINE, DIFFERS, EQUIVALENT, GAINS, INCONCLUSIVE, LOSES, WITHHELD
from harness.store.text import visible

Figure = dict[str, Any]
"""A Vega-Lite specification with its data."""
COLOURS = {
    GAINS: "#0f8a83",
    LOSES: "#c2502d",
    EQUIVALENT: "#7d8590",
    INCONCLUSIVE: "#b08900",
    DIFFERS: "#8e4fb8",
    **dict.fromkeys((BASELINE, ALONE, *WITHHELD), "#7d8590"),
}
SHAPES = {
    GAINS: "triangle-up",
    LOSES: "triangle-down",
    EQUIVALENT: "circle",
    INCONCLUSIVE: "diamond",
    DIFFERS: "cross",
    **dict.fromkeys((BASELINE, ALONE, *WITHHELD), "square"),
}
SIGNS = {GAINS: "▲", LOSES: "▼", EQUIVALENT: "●", INCONCLUSIVE: "◆", DIFFERS: "✚"}
SIGNS |= dict.fromkeys((BASELINE, ALONE, *WITHHELD), "■")
LEGEND = (
    "▲ gains, ▼ loses, ✚ differs between groups, ● no effect larger than the margin, ◆ cannot tell, "
    "■ the baseline, or without one, or withheld."
)
PALETTE = ["#0f8a83", "#c2502d", "#3b6fd4", "#b08900", "#8e4fb8", "#4f8f2f", "#d1477f", "#6b7280", "#1f9bcf", "#96592d"]
"""Readable on white and on near-black (3:1 at least); regimes also differ by dash, order and label, never by colour alone."""
KNOWN = ("sgt", "naive", "hacpo", "prp", "xgrpo", "graft", "sapo", "independent", "ftis")
"""Regimes of the published methods, each with a colour of its own."""

_BAR, _PANEL, _LEGEND = 26, 320, 23
"""Pixels of a line of bars, of a panel with its axes, of a line of a legend, which has to fit into the panel's height."""

_LEAST = {"points": 1.0, "%": 1.0, "share": 0.01, "nats per token": 1e-6}
"""The least that an axis spans, by the last words of its title: less is rounding, or of no interest to anyone."""


def _domain(values: Iterable[float], title: str) -> dict[str, Any]:
    """The axis' domain where the values are nearly the same, so that it does not magnify rounding; nothing elsewhere.

    Numbers of no named kind are taken for the same within a thousandth.
    """
    known = [v for v in values if np.isfinite(v)]
    if not known:
        return {}
    low, high = min(known), max(known)
    kind = next((least for words, least in _LEAST.items() if title.endswith(words)), 0.0)
    least = max(kind, 1e-3 * max(abs(low), abs(high)))
    middle = (low + high) / 2
    return {"domain": [middle - least / 2, middle + least / 2]} if high - low < least else {}


@dataclass(frozen=True, slots=True)
class Mark:
    """One line of a forest plot: an estimate, its interval, and what stands in the tooltip."""

    regime: str
    value: float
    low: float
    high: float
    verdict: str
    words: str
    label: str
    detail: str


def forest(marks: Sequence[Mark], title: str, unit: str, order: Sequence[str], zero: bool = True) -> Figure:
    """One line per regime: estimate and interval, in `unit`.

    Written out, because a page holds many of these and Altair takes 50 ms for each.
    """
    y: dict[str, Any] = {"field": "regime", "type": "nominal", "sort": list(order), "title": None}
    y["axis"] = {"labelLimit": 140, "ticks": False, "domain": False, "labelFlush": False}
    span = _domain([*(end for mark in marks for end in (mark.low, mark.high)), *([0.0] if zero else [])], unit)
    scale = {"zero": False, "nice": True, **span}
    names = list(COLOURS)
    colour = {
        "field": "verdict",
        "type": "nominal",
        "legend": None,
        "scale": {"domain": names, "range": list(COLOURS.values())},
    }
    shape = {
        "field": "verdict",
        "type": "nominal",
        "legend": None,
        "scale": {"domain": names, "range": list(SHAPES.values())},
    }
    tooltip = [
        {"field": "regime"},
        {"field": "label", "title": unit},
        {"field": "words", "title": "verdict"},
        {"field": "detail", "title": "cost"},
    ]

    def x(field: str) -> dict[str, Any]:
        return {
            "field": field,
            "type": "quantitative",
            "title": unit,
            "scale": scale,
            "axis": {"tickCount": 6, "grid": True},
        }

    def layer(mark: dict[str, Any], **encoding: Any) -> dict[str, Any]:
        return {"mark": mark, "encoding": {"y": y, "color": colour, "tooltip": tooltip, **encoding}}

    layers = [
        layer({"type": "rule", "strokeWidth": 3}, x=x("low"), x2={"field": "high"}),
        layer({"type": "tick", "thickness": 2, "size": 12}, x=x("low")),
        layer({"type": "tick", "thickness": 2, "size": 12}, x=x("high")),
        layer({"type": "point", "filled": True, "size": 90, "opacity": 1}, x=x("value"), shape=shape),
    ]
    if zero:
        line = {
            "mark": {"type": "rule", "strokeDash": [4, 3], "color": "#8b949e", "aria": False},
            "encoding": {"x": {"datum": 0}},
        }
        layers.insert(0, line)
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "data": {"values": [asdict(mark) for mark in marks]},
        "layer": layers,
        "title": {"text": title, "anchor": "start", "fontSize": 14},
        "width": "container",
        "height": {"step": _BAR},
        "description": f"{title}: {unit}. " + "; ".join(f"{mark.regime} {mark.label}" for mark in marks),
    }


def lines(
    rows: pd.DataFrame,
    title: str,
    x_title: str,
    y_title: str,
    order: Sequence[str],
    panel: int = _PANEL,
    shown: Sequence[str] | None = None,
    named: bool = True,
) -> Figure:
    """Means with bands, or, as the bands of more than two lie on each other, with bars at their ends side by side. Columns:
    regime, x, y, low, high. The legend names `shown` only. named: colours and dashes go by the names, as those of regimes do
    everywhere, and not by their order.

    Positive values that span four powers of ten are drawn on a logarithmic axis, bands down to the smallest of them.
    """
    logarithmic = bool((rows["y"] > 0).all() and rows["y"].max() > 1e4 * rows["y"].min())
    if logarithmic:
        rows = rows.assign(low=rows["low"].clip(lower=rows["y"].min()))
    present = list(order if shown is None else shown)
    domain = list(order)
    colour = alt.Color(
        "regime:N",
        scale=alt.Scale(domain=domain, range=[colour_of(n) for n in domain] if named else _colours(len(domain))),
        legend=alt.Legend(
            title=None,
            orient="bottom",
            columns=2,
            labelLimit=140,
            values=present,
            symbolType="stroke",
            symbolSize=400,
            symbolOpacity=1,
            symbolStrokeWidth=3,
        ),
    )
    dashes = [_dash_of(n) for n in domain] if named else [_DASHES[i % len(_DASHES)] for i in range(len(domain))]
    dash = alt.StrokeDash("regime:N", scale=alt.Scale(domain=domain, range=dashes), legend=None)
    base = alt.Chart(rows).encode(x=alt.X("x:Q", title=x_title, axis=alt.Axis(tickCount=6)), color=colour)
    scale, axis = _y_axis(logarithmic, rows[["low", "high"]].to_numpy().ravel(), y_title)
    tooltip = [
        alt.Tooltip("regime:N"),
        alt.Tooltip("x:Q", title=x_title, format=",.4~g"),
        alt.Tooltip("y:Q", title=y_title, format=".3~g"),
    ]
    last = rows.sort_values("x").groupby("regime").tail(1)
    low = alt.Y("low:Q", title=y_title, scale=scale, axis=axis)
    if rows["regime"].nunique() > 2:
        step = 0.012 * float(rows["x"].max() - rows["x"].min())
        place = {name: i for i, name in enumerate(name for name in domain if name in set(last["regime"]))}
        aside = last.assign(x=last["x"] + step * (1 + last["regime"].map(place)))[last["high"] > last["low"]]
        spread = alt.Chart(aside).mark_rule(strokeWidth=3, aria=False).encode(x="x:Q", color=colour, y=low, y2="high:Q")
    else:
        spread = base.mark_area(opacity=0.13).encode(y=low, y2="high:Q")
    line = base.mark_line(strokeWidth=2).encode(y=alt.Y("y:Q", title=y_title, scale=scale, axis=axis), strokeDash=dash)
    dots = base.mark_point(filled=True, size=22, opacity=1).encode(
        y=alt.Y("y:Q", title=y_title, scale=scale, axis=axis), tooltip=tooltip
    )
    said = "; ".join(f"{r.regime} ends at {r.y:.3g}" for r in last.itertuples())
    figure = alt.layer(
        spread,
        line,
        dots,
        title=_title(title),
        width="container",
        height=panel + _LEGEND * math.ceil(len(present) / 2),
        description=f"{title}. {y_title} over {x_title}: {said}",
    )
    return _spec(figure)


def dots(rows: pd.DataFrame, title: str, unit: str) -> Figure:
    """Single values in rows. Columns: row, value, label, and optionally source (colour and shape)."""
    labels = list(dict.fromkeys(rows["row"]))
    base = alt.Chart(rows).encode(
        y=alt.Y("row:N", sort=labels, title=None, axis=alt.Axis(labelLimit=170, ticks=False, domain=False))
    )
    scale = alt.Scale(zero=False, nice=True, **_domain([0.0, *rows["value"]], unit))
    x = alt.X("value:Q", title=unit, scale=scale, axis=alt.Axis(tickCount=6))
    marks: dict[str, Any] = {"color": alt.value(PALETTE[0])}
    if "source" in rows:
        names = list(dict.fromkeys(rows["source"]))
        legend = alt.Legend(title=None, orient="bottom", columns=1, labelLimit=240)
        marks = {
            "color": alt.Color("source:N", scale=alt.Scale(domain=names, range=_colours(len(names))), legend=legend),
            "shape": alt.Shape("source:N", scale=alt.Scale(domain=names), legend=legend),
        }
    points = base.mark_point(size=80, opacity=1, strokeWidth=2).encode(
        x=x, tooltip=[alt.Tooltip("label:N"), alt.Tooltip("value:Q", title=unit, format="+.1f")], **marks
    )
    zero = (
        alt.Chart(pd.DataFrame({"x": [0.0]})).mark_rule(strokeDash=[4, 3], color="#8b949e", aria=False).encode(x="x:Q")
    )
    figure = alt.layer(
        zero,
        points,
        title=_title(title),
        width="container",
        height=alt.Step(_BAR),
        description=f"{title}: {unit}. "
        + "; ".join(f"{r.row}, {r.label}: {r.value:+.1f}" for r in rows.head(60).itertuples()),
    )
    return _spec(figure)


def trials(rows: pd.DataFrame, option: str, title: str, unit: str, kinds: Sequence[str]) -> Figure:
    """Gain against one option, a point per trial. Columns: trial, kind, gain, and the option's own.

    Numbers stand on an axis, logarithmic where they span a factor of ten or more; everything else in columns by name.
    """
    values = list(rows[option])
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) and np.isfinite(v) for v in values)
    data = pd.DataFrame({"trial": rows["trial"], "kind": rows["kind"], "gain": rows["gain"]})
    data["value"] = values if numbers else [str(v) for v in values]
    wide = numbers and min(values) > 0 and max(values) >= 10 * min(values)
    scale = alt.Scale(type="log", nice=False, padding=12) if wide else alt.Scale(zero=False, padding=12)
    x = alt.X("value:Q", title=option, scale=scale, axis=alt.Axis(tickCount=5, format="~g"))
    if not numbers:
        x = alt.X("value:N", title=option, axis=alt.Axis(labelAngle=0))
    y = alt.Y("gain:Q", title=unit, scale=alt.Scale(zero=False, **_domain([0.0, *rows["gain"]], unit)))
    looks = alt.Scale(domain=list(kinds), range=_colours(len(kinds)))
    legend = alt.Legend(title=None, orient="bottom")
    points = (
        alt.Chart(data)
        .mark_point(size=90, strokeWidth=2, opacity=1)
        .encode(
            x=x, y=y, color=alt.Color("kind:N", scale=looks, legend=legend),
            shape=alt.Shape("kind:N", scale=alt.Scale(domain=list(kinds)), legend=legend),
            tooltip=["trial:N", "kind:N", alt.Tooltip("value", title=option), alt.Tooltip("gain:Q", title=unit, format="+.1f")],
        )
    )  # fmt: skip
    zero = (
        alt.Chart(pd.DataFrame({"y": [0.0]})).mark_rule(strokeDash=[4, 3], color="#8b949e", aria=False).encode(y="y:Q")
    )
    said = "; ".join(f"{r.trial} ({r.kind}) at {r.value}: {r.gain:+.1f}" for r in data.head(40).itertuples())
    figure = alt.layer(
        zero, points, title=_title(title), width="container", height=320, description=f"{title}: {unit}. {said}"
    )
    return _spec(figure)


def plane(rows: pd.DataFrame, title: str, x_title: str, y_title: str, order: Sequence[str], log_y: bool) -> Figure:
    """Cells as small marks, their mean per regime as a large labelled one. Columns: regime, x, y, kind (`cell` or `mean`)."""
    colour = alt.Color(
        "regime:N",
        scale=alt.Scale(domain=list(order), range=[colour_of(name) for name in order]),
        legend=None,
    )
    scale, axis = _y_axis(log_y, rows["y"], y_title)
    y = alt.Y("y:Q", title=y_title, scale=scale, axis=axis)
    x = alt.X("x:Q", title=x_title, scale=alt.Scale(zero=False, padding=20, **_domain(rows["x"], x_title)))
    base = alt.Chart(rows).encode(
        x=x,
        y=y,
        color=colour,
        tooltip=[
            "regime:N",
            "group:N",
            alt.Tooltip("x:Q", title=x_title, format=".3~g"),
            alt.Tooltip("y:Q", title=y_title, format=".3~g"),
        ],
    )
    cells = base.transform_filter("datum.kind == 'cell'").mark_point(size=35, opacity=1)
    means = base.transform_filter("datum.kind == 'mean'").mark_point(size=170, filled=True, opacity=1)
    names = [
        alt.Chart(labels).mark_text(dy=dy, fontSize=12, fontWeight="bold").encode(x=x, y=y, text="label:N")
        for dy, labels in _labels(rows[rows["kind"] == "mean"], rows, log_y).groupby("dy")
    ]
    said = "; ".join(f"{r.regime} at {r.x:.3g}, {r.y:.3g}" for r in rows[rows["kind"] == "mean"].itertuples())
    figure = alt.layer(
        cells,
        means,
        *names,
        title=_title(title),
        width="container",
        height=420,
        description=f"{title}. {x_title} and {y_title}: {said}",
    )
    return _spec(figure)


def _labels(means: pd.DataFrame, rows: pd.DataFrame, log_y: bool) -> pd.DataFrame:
    """A label for each mean at its own mark, one for marks that lie on each other (of many the first few names), and by how many
    pixels it stands below the mark: where it covers no mark and no label before it."""
    height = np.log10 if log_y else np.asarray
    across, up = (_PLANE / max(float(np.ptp(v)), 1e-12) for v in (rows["x"], height(rows["y"])))
    marks: dict[tuple[float, float], list[str]] = {}
    for row in means.itertuples():
        at = (row.x, row.y)
        near = (
            k for k in marks if abs(k[0] - row.x) * across < _MARK and abs(height(k[1]) - height(row.y)) * up < _MARK
        )
        marks.setdefault(next(near, at), []).append(row.regime)
    taken = [(x * across, -float(height(y)) * up, _MARK / 2) for x, y in marks]
    found = []
    for (x, y), names in marks.items():
        label = ", ".join(names if len(names) <= _NAMES else [*names[:_NAMES], f"{len(names) - _NAMES} more"])
        middle, half = (x * across, -float(height(y)) * up), 3.5 * len(label)
        offers = [(dy, [t for t in taken if abs(t[0] - middle[0]) < half + t[2] and abs(t[1] - middle[1] - dy) < 13])
                  for dy in (-15, 17, -28, 30, -41, 43)]  # fmt: skip
        dy = min(offers, key=lambda offer: len(offer[1]))[0]
        taken.append((middle[0], middle[1] + dy, half))
        found.append((x, y, label, dy))
    return pd.DataFrame(found, columns=["x", "y", "label", "dy"])


_PLANE, _MARK = 280, 12
"""Pixels of the plane's sides at the least, and of a mean's mark."""
_NAMES = 3
"""Of means that lie on each other, in their label."""


def bars(
    rows: pd.DataFrame,
    title: str,
    x_title: str,
    y: str,
    colour: str,
    order: Sequence[str] | None = None,
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """Stacked bars. Columns: `y`, `colour`, value. colours: of each part, where they mean something."""
    parts = list(dict.fromkeys(rows[colour]))
    painted = [colours[part] for part in parts] if colours else _colours(len(parts))
    figure = (
        alt.Chart(rows)
        .mark_bar()
        .encode(
            x=alt.X("value:Q", title=x_title, axis=alt.Axis(tickCount=6)),
            y=alt.Y(
                f"{y}:N",
                sort=list(order) if order else None,
                title=None,
                axis=alt.Axis(labelLimit=180, ticks=False, domain=False),
            ),
            color=alt.Color(
                f"{colour}:N",
                sort=parts,
                scale=alt.Scale(domain=parts, range=painted),
                legend=alt.Legend(title=None, orient="bottom", columns=2, labelLimit=170),
            ),
            tooltip=[f"{y}:N", f"{colour}:N", alt.Tooltip("value:Q", title=x_title, format=",.4~g")],
        )
        .properties(
            title=_title(title),
            width="container",
            height=alt.Step(_BAR),
            description=f"{title}: {x_title}. "
            + "; ".join(f"{getattr(r, y)}, {getattr(r, colour)}: {r.value:,.4g}" for r in rows.head(40).itertuples()),
        )
    )
    return _spec(figure)


def _y_axis(logarithmic: bool, values: Iterable[float], title: str) -> tuple[alt.Scale, alt.Axis]:
    if logarithmic:
        return alt.Scale(type="log", zero=False), alt.Axis(tickCount=5, format=",~g")
    return alt.Scale(zero=False, **_domain(values, title)), alt.Axis()


def _title(text: str) -> alt.TitleParams:
    return alt.TitleParams(text, anchor="start", fontSize=14)


def _colours(count: int) -> list[str]:
    return [PALETTE[i % len(PALETTE)] for i in range(count)]


def colour_of(regime: str) -> str:
    """A regime's colour: the same in every figure, whatever stands beside it. A published method's variants (`sgt-lying`) have
    its own, and differ by dash."""
    method = next((name for name in KNOWN if regime.startswith((f"{name}-", f"{name}.", f"{name},"))), regime)
    return PALETTE[KNOWN.index(method) if method in KNOWN else crc32(regime.encode()) % len(PALETTE)]


_DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 1], [10, 2], [1, 3], [6, 2, 1, 2, 1, 2]]
"""The first, unbroken, is for published methods."""


def _dash_of(regime: str) -> list[int]:
    return _DASHES[0 if regime in KNOWN else 1 + crc32(regime.encode()) // len(PALETTE) % (len(_DASHES) - 1)]


def _spec(chart: alt.Chart | alt.LayerChart | alt.FacetChart) -> Figure:
    return dict(chart.to_dict(validate=False))


def inked(figure: Figure, ink: str, grid: str) -> Figure:
    """The figure with its words in `ink`, for a page whose background is known; `grid`: of lines that only guide the eye."""
    words = {"labelColor": ink, "titleColor": ink}
    config = {
        "axis": {**words, "gridColor": grid, "domainColor": grid, "tickColor": grid},
        "legend": words,
        "title": {"color": ink, "subtitleColor": ink},
        "text": {"color": ink},
        "view": {"stroke": grid},
    }
    return {**figure, "config": {**figure.get("config", {}), **config}}


def legible(figure: Figure) -> Figure:
    """The figure with control characters in names and titles shown as escapes: they end the process that draws it as a file."""
    return {name: _legible(part) for name, part in figure.items()}


def _legible(part: Any) -> Any:
    if isinstance(part, str):
        return visible(part)
    if isinstance(part, dict):
        return legible(part)
    return [_legible(value) for value in part] if isinstance(part, list | tuple) else part


def printable(figures: Sequence[Figure]) -> Figure:
    """Several figures as one, for downloads."""
    if len(figures) == 1:
        return figures[0]
    datasets = {name: rows for figure in figures for name, rows in figure.get("datasets", {}).items()}
    parts = [{k: v for k, v in figure.items() if k not in ("$schema", "datasets", "config")} for figure in figures]
    return {
        "$schema": figures[0]["$schema"],
        "datasets": datasets,
        "vconcat": parts,
        "resolve": {"scale": {"color": "independent"}},
    }
