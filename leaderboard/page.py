"""A page's declaration, and what pages share."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pandas as pd
import streamlit as st

from harness.errors import HarnessError
from harness.learning.registry import list_regimes
from harness.statistics import MARGIN
from harness.store.remarks import describe_gaps
from harness.store.text import harmless, visible
from leaderboard.charts import COLOURS, SIGNS, Figure, Forest, combine_figures, fill_template, to_png, to_svg, with_ink
from leaderboard.data import Store


@dataclass(frozen=True, slots=True)
class Page:
    """Declared as `PAGE` in a module of `leaderboard.views`. needs_results: without any, `draw` is not called. figures: one for
    every suite with results. part_of: slug of the page that has a link to this one in place of the navigation."""

    slug: str
    title: str
    icon: str
    lead: str
    draw: Callable[[Store, str], None]
    order: int
    needs_results: bool = True
    figures: bool = True
    part_of: str = ""


@contextmanager
def fault_told() -> Iterator[None]:
    """In a line, not as a traceback."""
    try:
        yield
    except HarnessError as error:
        st.error(escape_markdown(str(error), 2000), icon=":material/error:")


# Session key: by slug, the pages as Streamlit knows them
ENTRIES = "entries"


def draw_links(pages: Sequence[Page], shown: Page) -> None:
    """Draw links to the other pages that ask of the same things as the one that is shown; nothing for a page by itself."""
    entries: Mapping[str, Any] = st.session_state.get(ENTRIES, {})
    others = [page for page in pages if page is not shown]
    if not others or not entries:
        return
    with st.container(horizontal=True, gap="small"):
        for page in others:
            st.page_link(entries[page.slug], label=page.title, icon=page.icon)


@fault_told()
def draw_page(page: Page, store: Store | None, suite: str | None, beside: Sequence[Page] = ()) -> None:
    """Draw a page. beside: it, and the pages that its reader may want next to it."""
    st.title(page.title)
    draw_links(beside, page)
    if page.lead:
        st.markdown(page.lead)
    if store is not None and suite is not None:
        if page.figures:
            lacks = [f"{head}: {'; '.join(lines)}" for head, lines in describe_gaps(store.missing(suite)).items()]
            for remark in filter(None, [*lacks, store.processors(suite)]):
                st.warning(escape_markdown(remark, 4000), icon=":material/error:")
        st.fragment(fault_told()(page.draw))(store, suite)  # filters redraw this alone
    elif page.needs_results:
        show_empty(
            "There are no results yet. This trains, evaluates and stores a first suite:", "harness run quickstart"
        )
    else:
        page.draw(None, "")  # type: ignore[arg-type]


# Session key: `--results` of advised commands
AT = "at"


def show_empty(message: str, command: str = "") -> None:
    st.info(message, icon=":material/info:")
    if command:
        st.code(command + st.session_state.get(AT, ""), language=None, wrap_lines=True)


def show_unfinished(store: Store, suite: str, message: str) -> None:
    told = store.states(suite)
    show_empty(f"{message} Its cells: {told}." if told else message, f"harness status {shlex.quote(suite)}")


# The address ----------------------------------------------------------------------------------------------------------


def choose_one(label: str, options: Sequence[str], key: str, default: str | None = None, **more: object) -> str:
    index = options.index(default) if default in options else 0
    return str(st.selectbox(label, options, index=index, key=key, bind="query-params", **more))  # type: ignore[call-overload]  # any of its keywords


def choose_key(label: str, options: Mapping[str, str], key: str, **more: object) -> str:
    """Return the key of the chosen option; the address has the key, which stays when the words that are shown change.

    options: the words by key, the default first.
    """
    _open_choice(options, key)
    chosen = str(st.selectbox(label, list(options), format_func=options.__getitem__, key=key, **more))  # type: ignore[call-overload]  # any of its keywords
    return _keep_choice(chosen, next(iter(options)), key)


def choose_segment(label: str, options: Mapping[str, str], key: str) -> str:
    """Return the key of the chosen one of a few options that stand side by side; the first is the default.

    The address has the key, as with `choose_key`.
    """
    first = next(iter(options))
    _open_choice(options, key)
    chosen = st.segmented_control(
        label, list(options), default=first, required=True, key=key, format_func=options.__getitem__
    )
    return _keep_choice(str(chosen or first), first, key)


def choose_keys(label: str, options: Mapping[str, str], key: str, default: Sequence[str]) -> list[str]:
    """Return the keys of the options that the reader chose; the address has them unless they are the default."""
    if key not in st.session_state:
        asked = [_find_key(options, one) for one in st.query_params.get_all(key)]
        st.session_state[key] = [one for one in asked if one is not None] or list(default)
    chosen = [str(one) for one in st.multiselect(label, list(options), format_func=options.__getitem__, key=key)]
    if chosen != list(default):
        st.query_params[key] = chosen
    elif key in st.query_params:
        del st.query_params[key]
    return chosen


def _find_key(options: Mapping[str, str], asked: str) -> str | None:
    """Return the key that an address asks for; addresses of older versions have the words of the option."""
    keys = {words: key for key, words in options.items()} | {key: key for key in options}
    return keys.get(asked)


def _open_choice(options: Mapping[str, str], key: str) -> None:
    """Choose what the address asks for, once; forget a choice that is none of the options."""
    asked = _find_key(options, st.query_params.get(key, ""))
    if key not in st.session_state and asked is not None:
        st.session_state[key] = asked
    if st.session_state.get(key) not in options:
        st.session_state.pop(key, None)


def _keep_choice(chosen: str, first: str, key: str) -> str:
    """Put a choice into the address unless it is the default, and return it."""
    if chosen != first:
        st.query_params[key] = chosen
    elif key in st.query_params:
        del st.query_params[key]
    return chosen


def choose_some(label: str, options: Sequence[str], key: str, default: Sequence[str] = ()) -> list[str]:
    """Return the options that the reader chose, all where none is chosen. default: chosen at first."""
    if len(options) < 2:
        return list(options)
    first = [option for option in options if option in default]
    chosen = st.multiselect(label, options, first, key=key, bind="query-params", placeholder="all")
    return [option for option in options if option in chosen] or list(options)


def choose_margin() -> float:
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


# Of the address and of the session: the open tab. Of the session: the tab that the address asked for
PART, _ASKED = "part", "part of the address"


def draw_tabs(parts: Mapping[str, tuple[str, Callable[[], None]]]) -> None:
    """Draw titles beside each other, and the part of the open one alone. parts: title and part by the key that the address has."""
    titles = {key: title for key, (title, _) in parts.items()}
    if PART not in st.session_state:
        st.session_state[_ASKED] = titles.get(_find_key(titles, st.query_params.get(PART, "")) or "")
    asked = st.session_state.get(_ASKED)
    first = asked if asked in titles.values() else None
    tabs = st.tabs([*titles.values()], default=first, key=PART, on_change="rerun")
    for tab, (key, (_, part)) in zip(tabs, parts.items(), strict=True):
        if tab.open:
            _keep_choice(key, next(iter(parts)), PART)
            with tab:
                part()


# Regimes by name ------------------------------------------------------------------------------------------------------


def link_regime(name: str) -> str:
    """Return the address of a regime's page, below that of any page."""
    return f"regimes?name={quote(name)}"


def link_regimes(store: Store | None, names: Iterable[str]) -> dict[str, str]:
    """Return the address of the page of each name that is a regime here, or a suite's variant of one.

    A name that is neither, as papers have them, leads to the regime that its first words name (`hacpo-alpha3`).
    """
    if store is None:
        known = {info.name for info in list_regimes()}
    else:
        known = {*store.infos(), *(name for name, regime in store.kinds().items() if regime in store.infos())}
    links: dict[str, str] = {}
    for name in names:
        words = name.partition(", ")[0].split("-")
        heads = ["-".join(words[:count]) for count in range(len(words), 0, -1)]
        found = next((head for head in heads if head in known), None)
        if found is not None:
            links[name] = link_regime(name if found == heads[0] else found)
    return links


def draw_regime_links(store: Store | None, names: Iterable[str]) -> None:
    """Draw a line with a link for each regime that figures and tables name, in which a name cannot be one."""
    links = link_regimes(store, dict.fromkeys(names))
    if links:
        st.html(fill_template("named.html.tmpl", links=links))


def write_linked(text: str, links: Mapping[str, str], limit: int = 500) -> str:
    """Return text as Markdown that is not obeyed, in which each name of `links` leads to its address."""
    shown = escape_markdown(text, limit)
    names = {escape_markdown(name): address for name, address in links.items()}
    if not names:
        return shown
    longest_first = sorted(names, key=len, reverse=True)
    alone = rf"(?<![\w\\-])(?:{'|'.join(map(re.escape, longest_first))})(?!\w|\\-\w)"
    return re.sub(alone, lambda found: f"[{found[0]}]({names[found[0]]})", shown)


# Text, tables, figures ------------------------------------------------------------------------------------------------

# Streamlit links addresses, escaped or not; a space of no width breaks them
_ADDRESS = re.compile(r"(?i)https?:(?=//)|www(?=\.)|@(?=[-\w]+\.)")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>()#+!|~$:&-])")


def escape_markdown(text: str, limit: int = 500) -> str:
    """Others' text inside Markdown, never obeyed."""
    return _MARKDOWN.sub(r"\\\1", _ADDRESS.sub("\\g<0>\u200b", visible(text, limit).replace("\n", " ")))


# Of columns that several tables have, in the words of every page
_HEADS = {
    "all_wrong": "All wrong",
    "author": "Author",
    "doc_id": "Question",
    "group": "Group",
    "label": "Label",
    "metric": "Metric",
    "moment": "When",
    "peer_solved": "Peer-solved",
    "policy": "Policy",
    "prompt": "Prompt",
    "prompts": "Prompts",
    "receiver": "Receiver",
    "records": "Answers",
    "regime": "Regime",
    "rollouts": "Rollouts",
    "seeds": "Seeds",
    "task": "Benchmark",
    "trial": "Trial",
    "trials": "Trials",
    "failed": "Failed",
    "value": "Value",
    "what": "What",
}


def draw_table(rows: pd.DataFrame, key: str, alt: str, columns: Mapping[str, Any] | None = None, **more: Any) -> None:
    heads = {name: title for name, title in _HEADS.items() if name in rows.columns} | dict(columns or {})
    st.dataframe(rows, hide_index=True, key=key, alt=alt, placeholder="–", column_config=heads, **more)


def number_column(title: str | None, form: str, help: str | None = None) -> Any:
    return st.column_config.NumberColumn(title, format=form, help=help)


INK, GRID = {"light": "#31333f", "dark": "#d5d7dc"}, {"light": "#dfe1e6", "dark": "#3a3d45"}
# Streamlit's own, for what must hide what is scrolled below it
BEHIND = {"light": "#ffffff", "dark": "#171614"}


def read_theme() -> str:
    return st.context.theme.type or "light"


def draw_figure(figure: Figure, key: str, place: Any = st) -> None:
    width = "stretch" if figure["width"] == "container" else "content"
    place.vega_lite_chart(spec=with_ink(figure, INK[read_theme()], GRID[read_theme()]), key=key, width=width)


def draw_figures(figures: Sequence[Figure], key: str) -> None:
    for i in range(0, len(figures), 2):
        columns = [st] if len(figures) == 1 else st.columns(2)
        for j, figure in enumerate(figures[i : i + 2]):
            draw_figure(figure, f"{key}-{i + j}", columns[j])


def draw_forests(forests: Sequence[Forest]) -> None:
    st.html(fill_template("panels.html.tmpl", forests=forests, COLOURS=COLOURS, SIGNS=SIGNS))


def offer_downloads(name: str, table: Callable[[], pd.DataFrame], figures: Sequence[Figure | Forest] = ()) -> None:
    offers: list[tuple[str, str, str, Callable[[], bytes]]] = [
        ("Table (CSV)", "csv", "text/csv", lambda: csv_text(table()))
    ]
    if figures:
        offers += [
            ("Figure (SVG)", "svg", "image/svg+xml", lambda: to_svg(combine_figures(figures)).encode()),
            ("Figure (PNG)", "png", "image/png", lambda: to_png(combine_figures(figures))),
        ]
    with st.popover("Download", icon=":material/download:"):
        for label, ending, mime, make in offers:
            file, key = f"{name}.{ending}", f"download-{name}.{ending}"
            st.download_button(label, make, file, mime, key=key, on_click="ignore", width="stretch")


def csv_text(table: pd.DataFrame) -> bytes:
    texts = table.select_dtypes(include=["object", "str"]).columns
    return str(table.assign(**{c: table[c].map(harmless) for c in texts}).to_csv(index=False)).encode()
