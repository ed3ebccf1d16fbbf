"""Which regime should I use, and does sharing really help? Every regime in every setting, side by side: the first screen."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import cast
from urllib.parse import quote

import streamlit as st

from harness.statistics.comparison import EQUIVALENT, GAINS, INCONCLUSIVE, LOSES
from harness.store.board_sentences import summarise_board
from harness.store.claims import write_claims
from harness.store.kind_answers import QUESTIONS, list_harmed
from harness.store.manifest import MARK
from harness.store.pace_table import write_pace_words
from harness.store.sentences import count_of, verdict_mark, write_rate
from harness.store.standing import (
    KINDS,
    Board,
    Entry,
    Section,
    Setting,
    Settings,
    Standing,
)
from harness.store.statistic import CLOCK, POINTS
from leaderboard.data import Store
from leaderboard.frames import judged_by
from leaderboard.looks import COLOURS, SIGNS
from leaderboard.page import (
    BEHIND,
    Page,
    choose_key,
    choose_margin,
    choose_segment,
    escape_markdown,
    link_regime,
    link_regimes,
    read_theme,
    show_empty,
    write_linked,
)
from leaderboard.templating import fill_template

_TOLD: dict[Settings, str] = {
    "defaults": "with defaults",
    "tuned": "tuned, over the tuned baseline",
    "all": "every variant",
}
_AXIS = 0.2
"""Half of the width of a cell's axis, as a share."""
_BY_NAME, _BY_COST = "name", "cost"
_ALONE = "independent"
"""Training without sharing, whose name is also a word of every sentence."""
_MOST = 2
"""Findings of one answer that are shown before "and ... more"."""
_WAYS = (
    ("Two regimes side by side", "head-to-head"),
    ("What a regime computes, and its paper", "regimes"),
    ("Cost, seed by seed", "cell"),
    ("Add mine", "about#add"),
    ("Cite", "about#cite"),
    ("Trained weights", "about#weights"),
)
"""Where a reader goes on from the first screen, by address."""


def draw(store: Store, suite: str) -> None:
    """Draw the page: the answers by kind of pair, then every regime in every setting, then the suites."""
    if store.show_board("all").sections:
        _draw_board(store)
    else:
        show_empty(
            "No suite compares regimes on different models, without bad peers and over a plain baseline, yet.",
            "harness run quickstart",
        )
    st.header("Suites", anchor="suites")
    suites = [(row.name, _link_suite(row.name), row.title) for row in store.list_suites().itertuples()]
    st.html(fill_template("suites.html.tmpl", suites=suites))


def _draw_board(store: Store) -> None:
    """Draw the answers above, and below them every setting that the reader chooses."""
    top = st.container()
    st.header("Every setting", anchor="settings")
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        which = cast(Settings, choose_segment("Settings", cast(Mapping[str, str], _TOLD), "settings"))
        settings = store.show_board(which).settings
        sorts = {_BY_NAME: "name", _BY_COST: "cost"}
        sorts |= {_name_column(setting): _describe_column(setting) for setting in settings}
        sort = choose_key("Sort by", sorts, "by", width=330)
        margin = choose_margin()
    with top:
        _draw_answers(store, margin)
    st.caption(_write_legend(margin))
    board = store.show_board(which, margin)
    if board.sections:
        _draw_sections(store, board, sort, margin)
    elif which == "tuned":
        show_empty("No suite has searched settings yet.", "harness run tuned_small")
    else:
        show_empty("No suite compares regimes with their defaults on different models yet.", "harness run quickstart")


def _draw_answers(store: Store, margin: float) -> None:
    """Draw the first screen: one sentence, the four questions by kind of pair, and where a reader goes on."""
    defaults, tuned = store.show_board("defaults", margin), store.show_board("tuned", margin)
    if not defaults.sections and not tuned.sections:
        return
    first, *rest = summarise_board(defaults, tuned, margin, store.statuses_by_regime())
    sharing = [name for name, regime in store.kinds_by_variant().items() if regime != _ALONE]
    links = link_regimes(store, sharing)
    st.markdown(f"**{write_linked(first, links, 2000)}**")
    for suite in store.list_suites()["name"]:
        claims = write_claims(store.answer_claims(suite, margin))
        if claims:
            where = f"[{escape_markdown(suite)}]({_link_suite(suite)})"
            st.markdown(f"Claimed before the runs of {where}. {write_linked(claims, links, 2000)}")
    ways = list(_WAYS)
    told = store.told_suites()
    if told:
        ways.insert(0, ("Read an answer", f"answers?suite={quote(told[0])}"))
    values = {
        "kinds": store.list_answers(margin),
        "questions": QUESTIONS,
        "KINDS": KINDS,
        "most": _MOST,
        "link_regime": link_regime,
        "address": _link_suite,
        "ways": ways,
    }
    st.html(fill_template("kinds.html.tmpl", **values))
    with st.expander("More in words"):
        st.markdown("\n".join(f"- {write_linked(said, links, 2000)}" for said in rest))


def _draw_sections(store: Store, board: Board, sort: str, margin: float) -> None:
    """Draw a table for each kind of pair: a line for each regime, a column for each setting."""
    ways = {
        "judged_by": judged_by,
        "verdict_mark": verdict_mark,
        "place": _place_gain,
        "address": _link_suite,
        "pace_words": write_pace_words,
        "list_harmed": list_harmed,
        "link_regime": link_regime,
    }
    looks = {"KINDS": KINDS, "SIGNS": SIGNS, "COLOURS": COLOURS, "points": POINTS, "clock": CLOCK}
    lines = [(section, _head_pairs(section), _sort_standings(section, sort)) for section in board.sections]
    values = {
        "lines": lines,
        "settings_of": _settings_of,
        "summaries": store.summaries_by_regime(),
        "statuses": store.statuses_by_regime(),
        "MARK": MARK,
        "behind": BEHIND[read_theme()],
    }
    st.html(fill_template("standing.html.tmpl", margin=margin, **values, **looks, **ways))


def _name_column(setting: Setting) -> str:
    """Return a column's name in the address: of what it is, not of what is written above it."""
    return "/".join((setting.suites[0].removesuffix(MARK), setting.group, setting.task))


def _describe_column(setting: Setting) -> str:
    """Return a column's name among the ways to sort."""
    rate = "" if setting.rate is None else f", rate {write_rate(setting.rate)}"
    return f"gain on {setting.title}{rate}, {setting.names}"


def _settings_of(setting: Setting) -> str:
    """Return what tells a column from the others of its pair."""
    lines = []
    if setting.rate is not None:
        lines.append(f"rate {write_rate(setting.rate)}")
    if setting.steps is not None:
        lines.append(count_of(setting.steps, "step"))
    lines.append(count_of(setting.seeds, "seed"))
    return "\n".join(lines)


def _head_pairs(section: Section) -> list[tuple[str, int]]:
    """Return the pairs' names, each over so many columns."""
    heads = []
    for _, settings in groupby(section.settings, key=lambda setting: setting.pair):
        first, *others = settings
        heads.append((first.title, 1 + len(others)))
    return heads


def _link_suite(suite: str) -> str:
    return f"ranking?suite={quote(suite)}"


def _write_legend(margin: float) -> str:
    """Write what marks, bars and columns mean, as Markdown."""
    verdicts = (GAINS, LOSES, EQUIVALENT, INCONCLUSIVE)
    marks = ", ".join(f"{SIGNS[verdict]} {verdict_mark(verdict, margin)}" for verdict in verdicts)
    return escape_markdown(
        f"{marks}. Bars: 95 % interval of the gain over independent training with the same rollouts, over seeds (Student t), "
        f"corrected for all that its suite compares unless the verdict is no effect. Axis: ±{100 * _AXIS:g} points. "
        "Kappa: pace over independent training's clock, where it is identified; a cell's tip has the reach and the gain at equal "
        "cost. Harms: the stronger or weaker member of the pair whose gain lies below 0 with its whole 95 % interval, which is "
        "not corrected. "
        "Under a regime's name: whether its defaults are published or ours. "
        "A column is one setting of one pair; columns differ in models, learning rate, steps and regimes, so there is no mean over "
        "them and no rank.",
        2000,
    )


def _sort_standings(section: Section, by: str) -> list[Standing]:
    """Return the section's lines by cost, or by the gain in one column; by name where the section has not the column."""
    rows = list(section.standings)
    if by == _BY_COST:
        return sorted(rows, key=lambda row: (row.costs is None, row.costs or (0.0, 0.0)))
    for place, setting in enumerate(section.settings):
        if _name_column(setting) == by:
            return sorted(rows, key=lambda row: _less_gain(row.cells[place]))
    return rows


def _less_gain(entry: Entry) -> tuple[bool, float]:
    """Return what a cell is sorted by: the largest gain first, cells without a number last."""
    return (True, 0.0) if isinstance(entry, str) else (False, -entry.gain)


def _place_gain(gain: float) -> float:
    """Return where a gain lies on a cell's axis, in percent of its width; beyond an end, at the end."""
    share = gain / _AXIS
    bounded = max(-1.0, min(1.0, share))
    return 50 + 50 * bounded


PAGE = Page(
    "standing",
    "Which regime?",
    ":material/leaderboard:",
    "",
    draw,
    order=0,
    figures=False,
)
