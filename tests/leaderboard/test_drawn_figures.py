"""Figures and text by themselves, and against the store."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

from harness.statistics import mean_interval
from harness.statistics.comparison import EQUIVALENT
from harness.store.read import Snapshot
from harness.store.sentences import verdict_mark
from harness.store.statistic import PERCENT, POINTS
from harness.store.table import show_rows

pytest.importorskip("streamlit", reason="the leaderboard extra is not installed")


from drawn_pages import SUITE, forest_of, html_of, page, text_of_page
from drawn_stores import EVIL

from leaderboard import looks
from leaderboard.frames import INTERVALS, over_seeds
from leaderboard.page import csv_text, escape_markdown
from leaderboard.views.curves import _measure_areas


def test_escaped_and_csv() -> None:
    assert "<" not in escape_markdown(EVIL).replace("\\<", "")
    assert "\x1b" not in escape_markdown(EVIL)
    links = r"(?i)(https?://|www(?=\.))[-.\w]+|[-.\w+]+@[-\w]+(?:\.[-\w]+)+"  # Streamlit's, of the text without escapes
    for address in ("https://x.yz", "WWW.x.yz", "a@b-c.yz"):
        assert re.search(links, address)
        assert not re.search(links, escape_markdown(f"at {address}").replace("\\", ""))
    assert escape_markdown("avg@4 of s@lab") == "avg@4 of s@lab"
    text = csv_text(pd.DataFrame({"a": ["=1+1", "+x", "fine"], "b": [1.5, -2.0, 3.0]})).decode()
    assert text.splitlines()[1:] == ["'=1+1,1.5", "'+x,-2.0", "fine,3.0"]


def test_an_area_under_a_curve_lies_within_0_and_100_percent() -> None:
    curves = pd.DataFrame({"seed": [1, 1, 2, 2], "steps": [0, 9, 0, 9], "y": [1.0, 1.0, 0.9, 0.9]})
    (area,) = _measure_areas(curves.assign(group="pair", regime="sgt")).itertuples()
    assert area.interval == "31.5 to 100.0"


def test_bars_over_steps_are_95_percent_intervals_over_seeds() -> None:
    """They were one standard deviation over policies and seeds (14)."""
    values = [(seed, 1, v, "r") for seed, pair in enumerate(([1.0, 3.0], [2.0, 6.0], [3.0, 3.0])) for v in pair]
    table = pd.DataFrame(values, columns=["seed", "steps", "y", "regime"])
    (row,) = over_seeds(table, [], "steps").itertuples()
    seeds = mean_interval([2.0, 4.0, 3.0])
    assert (row.x, row.y, row.low, row.high) == pytest.approx((1, 3.0, seeds.low, seeds.high))
    (row,) = over_seeds(table[table["seed"] == 0], [], "steps").itertuples()
    assert row.low == row.y == row.high == 2.0


def style_of(element: ElementTree.Element | None) -> dict[str, str]:
    assert element is not None
    return dict(part.split(":") for part in element.attrib["style"].split(";"))


@pytest.mark.parametrize("measure", ["gain", "accuracy"])
def test_bars_marks_and_words_of_a_figure_are_those_of_the_store(stores: dict[str, Path], measure: str) -> None:
    app = page(stores["large"], "ranking", metric="greedy", group="pair-1", task="other", show=measure)
    with Snapshot(stores["large"]) as snapshot:
        place = ("pair-1", "other", "greedy", "*")
        rows = [r for r in show_rows(snapshot, SUITE) if (r.group, r.task, r.metric, r.policy) == place]
    if measure == "gain":
        rows = [r for r in rows if r.gain is not None or r.verdict == "baseline"]
    figure = forest_of(html_of(app), "pair-1: other, greedy")
    *drawn, axis = figure.findall("table/tbody/tr")
    marks = axis.findall("td/small")
    least, most = ((100 * f(float(m.text.replace("\u2212", "-")) for m in marks if m.text)) for f in (min, max))
    ends = [float(style_of(mark)["left"].rstrip("%")) for mark in (marks[0], marks[-1])]

    def at(value: float) -> float:
        """Where the labels of the axis say that a share stands."""
        return ends[0] + (1e4 * value - least) / (most - least) * (ends[1] - ends[0])

    assert [th.text for th in figure.findall("table/thead/tr/th")][2] == axis.findall("td")[1].text
    assert axis.findall("td")[1].text == {"gain": "gain, points", "accuracy": "accuracy, %"}[measure]
    assert {tr.findtext("th/a") for tr in drawn} == {r.regime for r in rows}
    for tr in drawn:
        (row,) = (r for r in rows if r.regime == tr.findtext("th/a"))
        bar, mark = (tr.find(f"td/{tag}") for tag in "ib")
        judged = row.gain_interval if row.verdict == EQUIVALENT else row.gain_corrected_interval or row.gain_interval
        value, interval = (row.gain or 0.0, judged or (0.0, 0.0)) if measure == "gain" else (row.accuracy, row.interval)
        low, wide = (float(style_of(bar)[side].rstrip("%")) for side in ("left", "width"))
        shown = (low, low + wide, float(style_of(mark)["left"].rstrip("%")))
        assert shown == pytest.approx((at(interval[0]), at(interval[1]), at(value)), abs=0.3)
        assert mark is not None
        assert mark.text == looks.SIGNS[row.verdict]
        assert style_of(tr.find("td"))["--c"] == looks.COLOURS[row.verdict]
        words = verdict_mark(row.verdict, 0.02)
        spent = f"{row.rollouts:,.0f} rollouts, {row.cpu_seconds:,.0f} CPU-s"
        assert tr.attrib["title"] == f"{words}; {spent}"
        assert tr.findtext("td/span") == words, "for those who hear it"
        unit = POINTS if measure == "gain" else PERCENT
        assert (
            tr.findall("td")[1].text
            == unit.with_interval(value, interval if row.verdict != "baseline" or measure == "accuracy" else None) + " "
        )
    assert float(style_of(figure.find("table"))["--zero"].rstrip("%")) == pytest.approx(
        at(0) if measure == "gain" else -9, abs=0.3
    )
    caption = text_of_page(app).replace("\\", "")
    assert INTERVALS in caption
    assert looks.LEGEND in caption
