"""Figures as files: SVG and PNG, made without a browser."""

from __future__ import annotations

import json

import vl_convert

from leaderboard.charts import Figure


def to_svg(chart: Figure, width: int = 520) -> str:
    """The figure as a stand-alone SVG on white, `width` pixels for the plot."""
    return str(vl_convert.vegalite_to_svg(_printed(chart, width)))


def to_png(chart: Figure, width: int = 520) -> bytes:
    """The figure as a PNG at twice the resolution of the screen."""
    return bytes(vl_convert.vegalite_to_png(_printed(chart, width), scale=2))


def _printed(chart: Figure, width: int) -> str:
    spec = dict(chart)
    if "vconcat" in spec:
        spec["vconcat"] = [{**part, "width": width} for part in spec["vconcat"]]
    else:
        spec["width"] = width
    spec["background"] = "white"
    spec["config"] = {**spec.get("config", {}), "font": "Helvetica, Arial, sans-serif"}
    return json.dumps(spec)
