"""Axes, ticks and colours of the leaderboard's figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("streamlit", reason="the leaderboard extra is not installed")

from leaderboard import charts, command, looks, network, rendering, specification
from leaderboard.page import INK

POINTS_AT = pd.DataFrame({"regime": ["a", "sgt", "b"], "x": [0.0, 1.0, 1.0], "kind": "mean", "group": "g"})
MARK = {
    "name": "a",
    "value": 50.0,
    "low": 49.999,
    "high": 50.001,
    "verdict": "baseline",
    "words": "",
    "label": "",
    "detail": "",
}


def spans(figure: specification.Figure) -> list[list[float]]:
    return [
        json.loads(domain) for domain in sorted(set(re.findall(r'"domain": (\[-?[0-9][^\]]*\])', json.dumps(figure))))
    ]


def test_an_axis_does_not_magnify_rounding() -> None:
    flat, wide = (POINTS_AT.assign(y=y, low=y, high=y) for y in ([0.9999999, 1.00000002, 1.0], [0.9, 1.0, 1.1]))
    order = ["a", "sgt", "b"]
    for figure in (
        charts.draw_lines(flat, "t", "step", "value", order),
        charts.draw_plane(flat, "t", "x", "y", order, False),
    ):
        assert [s for s in spans(figure) if s[0] < 1 < s[1] and s[1] - s[0] >= 9e-4], "flat"
    assert not spans(charts.draw_lines(wide, "t", "step", "value", order))
    flat = charts.Forest([MARK], "t", "accuracy, %", zero=False)
    assert spans(flat.figure()) == [[49.5, 50.5]]
    assert flat.ticks == pytest.approx([49.4, 49.6, 49.8, 50.0, 50.2, 50.4, 50.6])
    still = charts.Forest([MARK | {"value": 0.0, "low": -1e-4, "high": 1e-4}], "t", "gain, points")
    assert spans(still.figure()) == [[-0.5, 0.5]]
    assert not spans(charts.Forest([MARK | {"low": 40.0}], "t", "accuracy, %", zero=False).figure())


def test_twelve_regimes_are_named_within_a_phones_width() -> None:
    order = [f"independent-{i:04}x" for i in range(12)]
    table = pd.DataFrame({"regime": order, "x": 0.1, "y": 1.0, "kind": "mean", "group": "g"})
    figure = charts.draw_plane(table, "t", "peer-only support", "second moment of the weights", order, False)
    width = re.search(r'width="(\d+)"', rendering.to_svg(figure, 230))
    assert width
    assert int(width[1]) < 358


def test_a_forest_shows_values_where_its_ticks_say() -> None:
    forest = charts.Forest([MARK | {"value": -1.0, "low": -6.2, "high": 1.3}], "t", "gain, points")
    assert forest.ticks == pytest.approx([-8, -6, -4, -2, 0, 2])
    assert [forest.place(x) for x in (-8, -1, 0, 2)] == [0, 70, 80, 100]
    assert charts.Forest([], "t", "accuracy, %", zero=False).ticks, "nothing has finished"


def test_a_regime_has_one_colour_whatever_stands_beside_it() -> None:
    table = POINTS_AT.assign(y=[0.1, 0.2, 0.3], low=0.1, high=0.3)
    seen = []
    for order in (["a", "sgt", "b"], ["b", "a", "sgt", "c"], ["sgt", "b", "a"]):
        for figure in (
            charts.draw_lines(table, "t", "step", "value", order),
            charts.draw_plane(table, "t", "x", "y", order, False),
        ):
            (colours,) = set(re.findall(r'"color": \{"field": "regime".*?"range": (\[.*?\])', json.dumps(figure)))
            seen.append(dict(zip(order, json.loads(colours), strict=True)))
    for name in ("a", "b", "sgt"):
        assert len({one[name] for one in seen}) == 1
    assert len({looks.colour_of(name) for name in looks.KNOWN}) == len(looks.KNOWN)


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_a_policy_that_received_nothing_is_drawn_alone() -> None:
    node = pd.DataFrame({"name": ["a"], "gain": "", "verdict": "baseline"})
    assert "a: no gain known" in network.draw_network(node, pd.DataFrame([]), "t")["description"]


def test_words_marks_and_chips_stand_out() -> None:
    pages = {"light": "#ffffff", "dark": "#0e1117"}  # Streamlit's own
    options = dict(word.removeprefix("--").split("=", 1) for word in command(Path("r")) if word.startswith("--theme"))
    for theme, background in pages.items():
        chip = options[f"theme.{theme}.primaryColor"]
        assert contrast(INK[theme], background) >= 4.5
        assert contrast(chip, "#ffffff") >= 4.5, "its words"
        assert contrast(chip, background) >= 3
    for colour in {*looks.PALETTE, *looks.COLOURS.values()}:
        assert min(contrast(colour, background) for background in (*pages.values(), "#171614")) >= 3, colour
    figure = charts.Forest([MARK], "t", "gain, points").figure()
    assert [layer["mark"].get("opacity", 1) for layer in figure["layer"]] == [1] * 5
    config = rendering.with_ink(figure, "#123456", "#654321")["config"]
    assert config["axis"]["labelColor"] == config["legend"]["titleColor"] == config["title"]["color"] == "#123456"
