"""Figures in a page's colours, below each other, and as SVG and PNG."""

from __future__ import annotations

import json
from collections.abc import Sequence

from leaderboard.charts import Forest
from leaderboard.specification import Figure


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
