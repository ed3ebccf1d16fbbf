"""Figures as files: SVG and PNG, made without a browser."""

from __future__ import annotations

import json

import vl_convert

from leaderboard.charts import Figure, inked, legible

_INK, _GRID = "#010203", "#020304"
"""Stand for what a page decides."""


def to_svg(chart: Figure, width: int = 520) -> str:
    """The figure as a stand-alone SVG on white, `width` pixels for the plot."""
    return str(vl_convert.vegalite_to_svg(_printed(chart, width, "white")))


def to_page_svg(chart: Figure, width: int = 520) -> str:
    """The same for a page in light or dark: no background, words in the text's colour, lines that guide the eye in a faint one."""
    drawn = str(vl_convert.vegalite_to_svg(_printed(inked(chart, _INK, _GRID), width, "transparent")))
    faint = drawn.replace(f'"{_GRID}"', '"currentColor" stroke-opacity="0.25"')
    return faint.replace(f'"{_INK}"', '"currentColor"')


def to_png(chart: Figure, width: int = 520) -> bytes:
    """The figure as a PNG at twice the resolution of the screen."""
    return bytes(vl_convert.vegalite_to_png(_printed(chart, width, "white"), scale=2))


def _printed(chart: Figure, width: int, background: str) -> str:
    spec = legible(chart)
    if "vconcat" in spec:
        spec["vconcat"] = [{**part, "width": width} for part in spec["vconcat"]]
    else:
        spec["width"] = width
    spec["background"] = background
    spec["config"] = {**spec.get("config", {}), "font": "Helvetica, Arial, sans-serif"}
    return json.dumps(spec)
