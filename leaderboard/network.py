"""The figure of a group: its policies on a circle, and arrows from authors to receivers."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from leaderboard.looks import COLOURS
from leaderboard.specification import Figure, colour_scale, make_figure, make_layer, make_tooltip, nominal_field


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
    figure = make_figure((), layers, title, f"{title}: ", told, height)
    return {**figure, "width": width}


def _layer_arrows(arrows: pd.DataFrame, x: Figure, y: Figure) -> list[Figure]:
    """Return the layers of the arrows: their lines, as wide as answers were used, their heads, their labels."""
    colour = colour_scale("verdict", COLOURS, COLOURS.values())
    most = 1.0 if arrows.empty else max(1.0, float(arrows["used"].max()))
    width_scale = {"domain": [0, most], "range": [1, 6]}
    width = {"field": "used", "type": "quantitative", "scale": width_scale, "legend": None}
    angle = {"field": "angle", "type": "quantitative", "scale": None}
    line_ends = {"x": x, "y": y, "x2": {"field": "x2"}, "y2": {"field": "y2"}}
    head_places = {"x": x | {"field": "x2"}, "y": y | {"field": "y2"}}
    label_places = {"x": x | {"field": "label_x"}, "y": y | {"field": "label_y"}}
    tooltip = make_tooltip("author", "receiver", "label")
    head = {"shape": "triangle", "filled": True, "size": 200, "opacity": 1}
    return [
        make_layer("rule", {}, arrows, **line_ends, color=colour, strokeWidth=width, tooltip=tooltip),
        make_layer("point", head, arrows, **head_places, color=colour, angle=angle),
        make_layer("text", {"fontSize": 11}, arrows, **label_places, text=nominal_field("label")),
    ]


def _layer_nodes(nodes: pd.DataFrame, x: Figure, y: Figure) -> list[Figure]:
    """Return the layers of the policies: their names, and below them their gains."""
    name_style = {"fontSize": 14, "fontWeight": "bold", "dy": -9, "limit": 100}
    gain_style = {"fontSize": 12, "dy": 8, "lineBreak": "\n"}
    return [
        make_layer("text", name_style, nodes, x=x, y=y, text=nominal_field("name")),
        make_layer("text", gain_style, nodes, x=x, y=y, text=nominal_field("gain")),
    ]


def _place_nodes(nodes: pd.DataFrame, pair: bool) -> pd.DataFrame:
    """Add x and y on the unit circle: the first of a pair at the left, else at the top, and on clockwise."""
    first = np.pi * (1 if pair else 0.5)
    places = np.arange(len(nodes))
    turn = first - 2 * np.pi * places / len(nodes)  # radians
    return nodes.assign(x=np.cos(turn), y=np.sin(turn))


def _place_arrows(nodes: pd.DataFrame, edges: pd.DataFrame, pair: bool) -> pd.DataFrame:
    """Add to each edge its place as `_place_arrow` gives it, and the receiver's verdict."""
    places = dict(zip(nodes["name"], nodes[["x", "y"]].to_numpy(), strict=True))
    verdicts = nodes.set_index("name")["verdict"]
    arrows = []
    for edge in edges.to_dict("records"):
        place = _place_arrow(places[edge["author"]], places[edge["receiver"]], pair)
        arrows.append({**edge, **place, "verdict": verdicts[edge["receiver"]]})
    return pd.DataFrame(arrows).fillna({"used": 0.0})


def _place_arrow(author: np.ndarray, receiver: np.ndarray, pair: bool) -> dict[str, float]:
    """Return an arrow's ends (x, y and x2, y2), its label's place and the angle of its head in degrees. author, receiver: their
    places, (2,) each."""
    to_receiver = receiver - author
    length = float(np.hypot(*to_receiver))
    along = to_receiver / length  # (2,), of length 1
    aside = np.array([-along[1], along[0]])
    across = 0.08 * aside  # keeps both directions apart
    start = author + 0.45 * along + across
    end = receiver - 0.45 * along + across
    # In a circle of three or more the middles of arrows across it would meet
    label_along, label_aside = (0.5, 0.3) if pair else (0.38, 0.2)
    label = author + label_along * length * along + label_aside * aside
    angle = math.degrees(math.atan2(*along))
    return {
        "x": start[0],
        "y": start[1],
        "x2": end[0],
        "y2": end[1],
        "label_x": label[0],
        "label_y": label[1],
        "angle": angle,
    }


def _hidden_axis(field: str, reach: float) -> Figure:
    """Return an axis from -reach to reach that is not drawn."""
    scale = {"domain": [-reach, reach], "nice": False}
    return {"field": field, "type": "quantitative", "axis": None, "scale": scale}
