"""Which regime should I use, and does sharing really help? Every regime over all settings: the first screen."""

from __future__ import annotations

from typing import cast, get_args
from urllib.parse import quote

import streamlit as st

from harness.statistics.comparison import EQUIVALENT, GAINS, INCONCLUSIVE, LOSES
from harness.store.sentences import verdict_mark
from harness.store.standing import KINDS, Board, Settings, Standing, answer
from harness.store.statistic import POINTS
from leaderboard.charts import COLOURS, SIGNS, filled
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
# Verdicts in a row's order
COUNTED = (GAINS, EQUIVALENT, LOSES, INCONCLUSIVE)
_SORTS = ("mean gain", "cost", "name")


def draw(store: Store, suite: str) -> None:
    if store.board("all").settings:
        _draw_board(store)
    else:
        empty(
            "No suite compares regimes on different models, without bad peers and over a plain baseline, yet.",
            "harness run quickstart",
        )
    st.header("Suites")
    st.markdown(
        "\n".join(f"- [{escaped(s.name)}]({_address(s.name)}) {escaped(s.title)}" for s in store.suites().itertuples())
    )


def _draw_board(store: Store) -> None:
    top = st.container()
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
    published, tuned = store.board("published", margin), store.board("tuned", margin)
    if published.settings or tuned.settings:
        first, *rest = answer(published, tuned)
        top.markdown("\n".join([f"**{escaped(first)}**", "", *(f"- {escaped(said, 2000)}" for said in rest)]))
    board = store.board(cast(Settings, asked), margin)
    st.caption(_legend(margin))
    if board.settings:
        ways = {"judged_by": judged_by, "verdict_mark": verdict_mark, "place": _place, "address": _address}
        looks = {"KINDS": KINDS, "SIGNS": SIGNS, "COLOURS": COLOURS, "counted": COUNTED, "points": POINTS}
        values = {"settings": board.settings, "rows": _sorted(board, sort), "summaries": store.summaries()}
        st.html(filled("standing.html.tmpl", margin=margin, **values, **looks, **ways))
    elif asked == "tuned":
        empty("No suite has searched settings yet.", "harness run tuned_small")
    else:
        empty("No suite compares regimes as published on different models yet.", "harness run quickstart")


def _address(suite: str) -> str:
    return f"ranking?suite={quote(suite)}"


def _legend(margin: float) -> str:
    marks = ", ".join(f"{SIGNS[v]} {verdict_mark(v, margin)}" for v in (GAINS, LOSES, EQUIVALENT, INCONCLUSIVE))
    return escaped(
        f"{marks}. Bars: 95 % interval of the gain over independent training with the same rollouts, over seeds (Student t), "
        f"corrected for all that its suite compares unless the verdict is no effect. Axis: ±{100 * _AXIS:g} points.",
        2000,
    )


def _sorted(board: Board, by: str) -> list[Standing]:
    rows = list(board.standings)
    if by == "name":
        return sorted(rows, key=lambda row: row.regime)
    return sorted(rows, key=lambda row: (row.cost is None, row.cost or 0.0)) if by == "cost" else rows


def _place(gain: float) -> float:
    return 50 + 50 * max(-1.0, min(1.0, gain / _AXIS))


PAGE = Page(
    "standing",
    "Which regime?",
    ":material/leaderboard:",
    "",
    draw,
    order=0,
    figures=False,
)
