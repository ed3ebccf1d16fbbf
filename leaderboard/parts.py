"""Parts that pages share: titles, filters kept in the address, empty states, downloads, safe text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from harness.statistics import MARGIN
from harness.store.remarks import noted
from harness.store.statistic import POINTS
from harness.store.text import visible
from leaderboard.charts import Figure, inked, legible, printable
from leaderboard.data import Store
from leaderboard.figures import to_png, to_svg
from leaderboard.view import Page, View

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>()#+!|~$:&-])")


def escaped(text: str, limit: int = 500) -> str:
    """A value from a peer, a model or another lab, for use inside Markdown: shown as it is, never obeyed."""
    return _MARKDOWN.sub(r"\\\1", visible(text, limit).replace("\n", " "))


def draw_page(page: Page, view: View) -> None:
    """Title, lead and body; without results an empty state that says what to run."""
    st.title(page.title)
    if page.lead:
        st.markdown(page.lead)
    if view.store is not None and view.suite is not None:
        if page.needs_results or page.figures:
            say_missing(view.store, view.suite)
        page.draw(view.store, view.suite, view)
    elif page.needs_results:
        empty("There are no results yet. This trains, evaluates and stores a first suite:", "harness run quickstart")
    else:
        page.draw(None, "", view)  # type: ignore[arg-type]


INK, GRID = {"light": "#31333f", "dark": "#d5d7dc"}, {"light": "#dfe1e6", "dark": "#3a3d45"}


def theme() -> str:
    """`light` or `dark`."""
    return st.context.theme.type or "light"


def ink() -> str:
    """The colour of words in the page's theme, with the contrast that the accessibility guidelines ask for."""
    return INK[theme()]


def draw_figure(figure: Figure, key: str, place: Any = st) -> None:
    """A figure in the page's theme."""
    place.vega_lite_chart(spec=inked(legible(figure), ink(), GRID[theme()]), key=key)


def draw_figures(figures: Sequence[Figure], key: str) -> None:
    """Two beside each other where there is room."""
    if len(figures) == 1:
        draw_figure(figures[0], f"{key}-0")
        return
    for i in range(0, len(figures), 2):
        for j, column in enumerate(st.columns(2)[: len(figures) - i]):
            draw_figure(figures[i + j], f"{key}-{i + j}", column)


def empty(message: str, command: str = "") -> None:
    """Why there is nothing to see, and what to run."""
    st.info(message, icon=":material/info:")
    if command:
        st.code(command, language=None, wrap_lines=True)


def unfinished(store: Store, suite: str, message: str) -> None:
    """An empty state that says what has become of the suite's cells."""
    told = store.states(suite)
    empty(f"{message} Its cells: {told}." if told else message, f"harness status {shlex.quote(suite)}")


def say_missing(store: Store, suite: str) -> None:
    """Which cells are in none of the page's numbers, or are there of other settings or code."""
    for head, lines in noted(store.missing(suite)).items():
        st.warning(escaped(f"{head}: {'; '.join(lines)}", 4000), icon=":material/error:")


def percent_interval(low: object, high: object) -> str:
    """`[−1.2, 3.4]` in points or percent; empty where there is none."""
    first, second = float(low), float(high)  # type: ignore[arg-type]
    return POINTS.interval((first, second)) if first == first else ""


def choose(label: str, options: Sequence[str], key: str, default: str | None = None, **more: object) -> str:
    """One of `options`, kept in the address as `key`."""
    index = options.index(default) if default in options else 0
    return str(st.selectbox(label, options, index=index, key=key, bind="query-params", **more))  # type: ignore[call-overload]


def choose_some(label: str, options: Sequence[str], key: str) -> list[str]:
    """Some of `options`, kept in the address; none chosen means all."""
    if len(options) < 2:
        return list(options)
    chosen = st.multiselect(label, options, key=key, bind="query-params", placeholder="all")
    return [option for option in options if option in chosen] or list(options)


def choose_margin() -> float:
    """Below which an effect is of no interest, as a share; kept in the address in points."""
    points = st.number_input(
        "Margin, points",
        0.0,
        100.0,
        100 * MARGIN,
        0.5,
        "%g",
        key="margin",
        bind="query-params",
        width=125,
        help="“No effect” is said only where the whole interval lies within this many points on either side of 0.",
    )
    return float(points) / 100


def downloads(name: str, table: pd.DataFrame | Callable[[], pd.DataFrame], figures: Sequence[Figure] = ()) -> None:
    """One menu with the page's numbers as CSV and its figure as SVG and PNG; made when asked for."""
    make = table if callable(table) else lambda: table
    with st.popover("Download", icon=":material/download:"):
        _button("Table (CSV)", f"{name}.csv", "text/csv", lambda: csv_text(make()))
        if figures:
            _button("Figure (SVG)", f"{name}.svg", "image/svg+xml", lambda: to_svg(printable(figures)).encode())
            _button("Figure (PNG)", f"{name}.png", "image/png", lambda: to_png(printable(figures)))


def _button(label: str, file_name: str, mime: str, make: Callable[[], bytes]) -> None:
    st.download_button(label, make, file_name, mime, key=f"download-{file_name}", on_click="ignore", width="stretch")


def csv_text(table: pd.DataFrame) -> bytes:
    """CSV in UTF-8. A text that a spreadsheet would take for a formula is quoted."""
    texts = table.select_dtypes(include=["object", "str"]).columns
    safe = table.assign(**{c: table[c].map(_no_formula) for c in texts})
    return str(safe.to_csv(index=False)).encode()


def _no_formula(value: object) -> object:
    if isinstance(value, str) and value[:1] in tuple("=+-@\t\r"):
        return f"'{value}"
    return value
