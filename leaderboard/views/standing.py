"""Which regime should I use, and does sharing really help? Every regime over all settings: the first screen."""

from __future__ import annotations

from html import escape
from itertools import groupby
from typing import cast, get_args
from urllib.parse import quote

import streamlit as st

from harness.statistics.comparison import EQUIVALENT, GAINS, INCONCLUSIVE, LOSES
from harness.store.sentences import verdict_mark
from harness.store.standing import KINDS, Board, Setting, Settings, Standing, answer
from harness.store.statistic import POINTS
from harness.store.table import ShowRow
from harness.store.text import visible
from leaderboard.charts import COLOURS, SIGNS
from leaderboard.data import Store
from leaderboard.frames import judged_by
from leaderboard.page import Page, choose, choose_margin, empty, escaped

_TOLD: dict[Settings, str] = {
    "published": "as published",
    "tuned": "tuned, over the tuned baseline",
    "all": "every variant",
}
_AXIS = 0.125
"""Half of the width of a cell's axis, as a share."""
_SORTS = ("mean gain", "cost", "name")


def draw(store: Store, suite: str) -> None:
    if store.board("published").settings:
        _draw_board(store)
    else:
        empty("No suite has two regimes to compare yet.", "harness run quickstart")
    st.header("Suites")
    st.markdown(
        "\n".join(f"- [{escaped(s.name)}]({_address(s.name)}) {escaped(s.title)}" for s in store.suites().itertuples())
    )


def _draw_board(store: Store) -> None:
    published, tuned = store.board("published"), store.board("tuned")
    first, *rest = answer(published, tuned)
    st.markdown("\n".join([f"**{escaped(first)}**", "", *(f"- {escaped(said, 2000)}" for said in rest)]))
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        asked = st.segmented_control(
            "Settings",
            get_args(Settings),
            default="published",
            required=True,
            key="settings",
            bind="query-params",
            format_func=lambda s: _TOLD[s],
        )
        sort = choose("Sort by", _SORTS, "by", width=140)
        margin = choose_margin()
    found = store.board(cast(Settings, asked), margin)
    st.caption(_legend(margin))
    if found.settings:
        st.html(_table(found, _sorted(found, sort), store.summaries(), margin))
    else:
        empty("No suite has searched settings yet.", "harness run tuned_small")


def _address(suite: str) -> str:
    return f"ranking?suite={quote(suite)}"


def _legend(margin: float) -> str:
    marks = ", ".join(f"{SIGNS[v]} {verdict_mark(v, margin)}" for v in (GAINS, LOSES, EQUIVALENT, INCONCLUSIVE))
    return escaped(
        f"{marks}. Bars: 95 % interval of the gain over independent training with the same rollouts, over seeds (Student t), "
        f"corrected for all that its suite compares where the verdict is gains or loses. Axis: ±{100 * _AXIS:g} points.",
        2000,
    )


def _sorted(board: Board, by: str) -> list[Standing]:
    rows = list(board.standings)
    if by == "name":
        return sorted(rows, key=lambda row: row.regime)
    return sorted(rows, key=lambda row: row.cost or 0.0) if by == "cost" else rows


def _table(board: Board, rows: list[Standing], summaries: dict[str, str], margin: float) -> str:
    spans = [(KINDS[kind], len(list(columns))) for kind, columns in groupby(board.settings, key=lambda s: s.kind)]
    over = "".join(
        f'<th colspan="{n}" scope="colgroup" class="setting over">{escape(title)}</th>' for title, n in spans
    )
    heads = "".join(f'<th scope="col" class="setting">{_link(setting)}</th>' for setting in board.settings)
    lines = "".join(_row(place, row, summaries.get(row.regime, ""), margin) for place, row in enumerate(rows, 1))
    return (
        f'{_STYLE}<div class="wide" tabindex="0"><table class="standing">'
        f"<caption>Gain of every regime in every setting</caption><thead>"
        f'<tr><td colspan="4"></td>{over}</tr><tr><th scope="col">#</th><th scope="col">regime</th>'
        f'<th scope="col">mean gain, pairs not built to gain</th><th scope="col">cost</th>{heads}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _link(setting: Setting) -> str:
    return f'<a href="{_address(setting.suite)}" target="_self">{escape(visible(setting.title))}</a>'


def _row(place: int, row: Standing, summary: str, margin: float) -> str:
    counts = " ".join(f"{row.count(verdict)} {SIGNS[verdict]}" for verdict in (GAINS, EQUIVALENT, LOSES, INCONCLUSIVE))
    mean = "–" if row.gain is None else POINTS.text(row.gain)
    cells = "".join(f'<td class="setting">{_cell(cell, margin)}</td>' for cell in row.cells)
    return (
        f'<tr><td>{place}</td><th scope="row">{escape(visible(row.regime))}'
        f'<small title="{escape(summary)}">{escape(summary)}</small></th>'
        f"<td><strong>{mean}</strong> {POINTS.interval(row.interval)}<small>{counts}</small></td>"
        f"<td>{'–' if row.cost is None else f'{row.cost:.1f}×'}</td>{cells}</tr>"
    )


def _cell(row: ShowRow | None, margin: float) -> str:
    if row is None:
        return '<span class="none">not run</span>'
    interval = judged_by(row.verdict, row.gain_interval, row.gain_corrected_interval)
    words = f"{verdict_mark(row.verdict, margin)}: {POINTS.with_interval(row.gain, interval)}"
    colour = COLOURS.get(row.verdict, COLOURS[INCONCLUSIVE])
    low, high = (_place(end) for end in interval or (row.gain, row.gain))
    return (
        f'<span title="{escape(words)}" style="--c:{colour}"><b>{SIGNS[row.verdict]}</b> {POINTS.text(row.gain)}'
        f'<i class="hidden"> {escape(words)}</i><span class="axis"><i style="left:{low:.1f}%;width:{high - low:.1f}%"></i>'
        f'<u style="left:{_place(row.gain):.1f}%"></u></span></span>'
    )


def _place(gain: float) -> float:
    """Percent of the axis' width."""
    return 50 + 50 * max(-1.0, min(1.0, gain / _AXIS))


_STYLE = """<style>
.wide {overflow-x: auto; position: relative}
.standing {border-collapse: collapse; width: 100%; font-size: .875rem}
.standing caption, .standing .hidden {position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%)}
.standing th, .standing td {padding: .3rem .4rem; text-align: left; border-bottom: 1px solid #8884;
  vertical-align: middle; font-weight: 400}
.standing thead th {font-weight: 600; font-size: .8rem}
.standing .setting {text-align: center; min-width: 4.4rem}
.standing .over {border-bottom: 3px solid #8aa3}
.standing tbody th {font-weight: 700}
.standing tbody th small {max-width: 10rem; white-space: nowrap; overflow: hidden; text-overflow: ellipsis}
.standing td:nth-child(3) {min-width: 8rem}
.standing small {display: block; font-weight: 400; font-size: .78rem; opacity: .85}
.standing a {color: inherit}
.standing b {color: var(--c)}
.standing .none {opacity: .75}
.standing .axis {display: block; position: relative; height: .8rem; margin: .15rem auto 0; width: 4rem; overflow: hidden;
  background: linear-gradient(#8886, #8886) center / 1px 100% no-repeat}
.standing .axis i {position: absolute; top: 50%; height: 3px; margin-top: -1.5px; background: var(--c); border-radius: 2px}
.standing .axis u {position: absolute; top: 50%; width: 8px; height: 8px; margin: -4px 0 0 -4px; border-radius: 50%;
  background: var(--c)}
@media (max-width: 900px) {.standing .setting, .standing tbody th small {display: none}}
</style>"""

PAGE = Page(
    "standing",
    "Which regime?",
    ":material/leaderboard:",
    "",
    draw,
    order=0,
    figures=False,
)
