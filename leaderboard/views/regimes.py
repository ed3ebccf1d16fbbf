"""A regime: what it computes, whose it is, its options, and every setting in which it ran."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import pandas as pd
import streamlit as st

from harness.learning.registry import RegimeInfo, list_regimes
from harness.statistics import MARGIN
from harness.store.finished import ShowRow
from harness.store.kind_answers import name_setting
from harness.store.pace_table import write_kappa, write_reach
from harness.store.roles import RoleRow
from harness.store.sentences import count_of, verdict_mark
from harness.store.standing import KINDS
from harness.store.statistic import POINTS, TIMES
from leaderboard.data import Store
from leaderboard.frames import judged_by
from leaderboard.looks import SIGNS
from leaderboard.page import Page, draw_table, escape_markdown
from leaderboard.templating import fill_template
from leaderboard.texts import read_formulas

_PAPER = re.compile(r"\b\d{4}\.\d{5}\b")
_NAME = "name"


def draw(store: Store | None, suite: str) -> None:
    """Draw the regime of the address, else that which gains in most settings, else the first."""
    infos = {info.name: info for info in list_regimes()} if store is None else store.regimes_by_name()
    names = list(infos)
    chosen = _choose_name(store, names)
    lines = [*_find_lines(store, chosen)] if store is not None else []
    _draw_identity(infos[chosen], lines)
    _draw_formula(chosen)
    _draw_options(infos[chosen])
    _draw_settings(chosen, lines)


def _choose_name(store: Store | None, names: list[str]) -> str:
    """Draw the choice; a variant of a suite in the address opens the regime that it is."""
    asked = st.query_params.get(_NAME, "")
    kinds = store.kinds_by_variant() if store is not None else {}
    name = asked if asked in names else kinds.get(asked.partition(", ")[0], "")
    first = name if name in names else _find_first(store, names)
    if asked and first != asked and name not in names:
        st.warning(f"There is no regime “{escape_markdown(asked, 100)}” here. Shown is {escape_markdown(first)}.")
    chosen = str(st.selectbox("Regime", names, index=names.index(first), key="regime-page", width=300))
    st.query_params[_NAME] = chosen
    return chosen


def _find_first(store: Store | None, names: list[str]) -> str:
    """Return the regime that gains in most settings, else the first."""
    gains = []
    if store is not None:
        for kind in store.list_answers():
            who_gains = kind.answers[0]
            gains += [one.regime for one in who_gains.found]
    return next((name for name in gains if name in names), names[0])


def _draw_identity(info: RegimeInfo, lines: Sequence[Mapping[str, Any]]) -> None:
    """Draw what the regime is, whose it is, and in how many settings it gained. lines: of `_find_lines`."""
    if info.error:
        st.error(escape_markdown(f"{info.name} does not load: {info.error}", 2000), icon=":material/error:")
        return
    formula = read_formulas().get(info.name, "")
    papers = list(dict.fromkeys(_PAPER.findall(info.source + formula)))
    links = ", ".join(f"[arXiv {number}](https://arxiv.org/abs/{number})" for number in papers) or "none"
    shared = ", ".join(info.shares) or "nothing"
    st.markdown(
        f"{escape_markdown(info.summary)}\n\n"
        f"- **Paper:** {links}\n"
        f"- **Status:** {escape_markdown(info.status)}\n"
        f"- **What travels:** {escape_markdown(shared)}\n"
        f"- **Installed from:** {escape_markdown(info.origin)}\n"
        f"- **Results:** {escape_markdown(_count_verdicts(lines), 1000)}"
    )


def _count_verdicts(lines: Sequence[Mapping[str, Any]]) -> str:
    """Say in how many of its settings a regime gains, loses or shows no effect."""
    if not lines:
        return "none"
    counts = Counter(line["verdict"] for line in lines)
    told = ", ".join(f"{verdict} in {count}" for verdict, count in counts.most_common())
    return f"of {count_of(len(lines), 'setting')} and variants of it: {told} (below, one by one)"


def _draw_settings(name: str, lines: Sequence[Mapping[str, Any]]) -> None:
    """Draw every setting in which the regime ran, and say who gained."""
    st.header("Where it ran, and who gained", anchor="settings")
    if not lines:
        st.markdown("No suite that is stored here compares this regime with independent training on different models.")
        return
    parts = [(kind, [*own]) for kind, own in groupby(lines, key=itemgetter("kind"))]
    st.html(fill_template("regime.html.tmpl", parts=parts, name=name))
    st.caption(
        "Gains in points over independent training with the same rollouts; an interval is corrected for all that its suite "
        "compares unless the verdict is no effect. Kappa: pace over independent training's clock. Reach: by how much the end lies "
        "higher. "
        "Stronger, weaker: the member of the pair with more, or fewer, right answers before training. Kappa, reach and roles have "
        "95 % intervals that are not corrected."
    )


def _find_lines(store: Store, name: str) -> Iterator[dict[str, Any]]:
    """Yield a line for each setting and variant of the regime, as the board has them."""
    kinds = store.kinds_by_variant()
    for section in store.show_board("all").sections:
        for standing in section.standings:
            variant = standing.regime.partition(", tuned")[0]
            if kinds.get(variant) != name:
                continue
            cells = zip(section.settings, standing.cells, standing.roles, strict=True)
            for setting, entry, role in cells:
                if isinstance(entry, str):  # why there is no number
                    continue
                numbers = _write_numbers(entry, role)
                yield {
                    "kind": KINDS[section.kind],
                    "variant": standing.regime,
                    "setting": name_setting(setting),
                    "suite": setting.suites[0],
                    **numbers,
                }


def _write_numbers(row: ShowRow, role: RoleRow | None) -> dict[str, str]:
    """Write the numbers of one setting. role: what the stronger and the weaker member gain, where the pair has such."""
    interval = judged_by(row.verdict, row.gain_interval, row.gain_corrected_interval)
    words = verdict_mark(row.verdict, MARGIN)
    stronger = weaker = cost = "–"
    if role:
        stronger = POINTS.with_interval(role.stronger, role.stronger_interval)
        weaker = POINTS.with_interval(role.weaker, role.weaker_interval)
    if row.cost is not None:
        cost = f"{TIMES.text(row.cost)}×"
    return {
        "gain": POINTS.with_interval(row.gain, interval),
        "verdict": f"{SIGNS[row.verdict]} {words}",
        "kappa": write_kappa(row),
        "reach": write_reach(row),
        "stronger": stronger,
        "weaker": weaker,
        "cost": cost,
    }


def _draw_formula(name: str) -> None:
    """Draw what the regime computes, from docs/formulas.md."""
    st.header("What it computes", anchor="formula")
    formula = read_formulas().get(name)
    if formula is None:
        st.markdown("Its package says what it computes; `docs/formulas.md` has the regimes of this repository alone.")
        return
    with st.container(key="formula"):
        st.markdown(formula)
    st.caption("Symbols: docs/formulas.md. The code of the regime is one module of the folder regimes.")


def _draw_options(info: RegimeInfo) -> None:
    """Draw the regime's options with their defaults."""
    st.header("Options", anchor="options")
    if not info.options:
        st.markdown("None.")
        return
    rows = []
    for option, value in info.options.items():
        searched = _write_space(info.spaces.get(option, {}))
        rows.append((option, str(value), searched))
    frame = pd.DataFrame(rows, columns=["option", "default", "searched"])
    draw_table(frame, "options", "Options with their defaults and what a search tries", _OPTIONS)


def _write_space(space: Any) -> str:
    """Write what a search tries: values, or a range with its scale; a dash for an option that is not searched."""
    if "values" in space:
        return ", ".join(map(str, space["values"]))
    if "low" in space:
        scale = ", logarithmic" if space["scale"] == "log" else ""
        return f"{space['low']:g} to {space['high']:g}{scale}"
    return "–"


_OPTIONS = {"option": "Option", "default": "Default", "searched": "What a search tries"}

PAGE = Page(
    "regimes",
    "Regimes",
    ":material/function:",
    "",
    draw,
    order=70,
    needs_results=False,
    figures=False,
)
