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
from leaderboard.charts import Forest
from leaderboard.data import Store
from leaderboard.looks import COLOURS, SIGNS
from leaderboard.rendering import combine_figures, to_png, to_svg, with_ink
from leaderboard.specification import Figure
from leaderboard.templating import fill_template


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
    """Say what went wrong in a line, not as a traceback."""
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
            _draw_remarks(store, suite)
        fragment = st.fragment(fault_told()(page.draw))  # filters redraw this alone
        fragment(store, suite)
    elif page.needs_results:
        show_empty(
            "There are no results yet. This trains, evaluates and stores a first suite:", "harness run quickstart"
        )
    else:
        page.draw(None, "")  # type: ignore[arg-type]


def _draw_remarks(store: Store, suite: str) -> None:
    """Draw what a reader of a suite's figures must know: cells that are missing, processors of several kinds."""
    gaps = describe_gaps(store.find_missing(suite))
    remarks = [f"{head}: {'; '.join(lines)}" for head, lines in gaps.items()]
    remarks.append(store.describe_processors(suite))
    for remark in filter(None, remarks):
        st.warning(escape_markdown(remark, 4000), icon=":material/error:")


# Session key: `--results` of advised commands
AT = "at"


def show_empty(message: str, command: str = "") -> None:
    """Draw why there is nothing to see, and the command that changes it."""
    st.info(message, icon=":material/info:")
    if command:
        at = st.session_state.get(AT, "")
        st.code(command + at, language=None, wrap_lines=True)


def show_unfinished(store: Store, suite: str, message: str) -> None:
    """Draw that a suite has not got so far, and its cells by their state."""
    told = store.describe_states(suite)
    show_empty(f"{message} Its cells: {told}." if told else message, f"harness status {shlex.quote(suite)}")


# The address ----------------------------------------------------------------------------------------------------------


def choose_one(label: str, options: Sequence[str], key: str, default: str | None = None, **more: object) -> str:
    """Return the option that the reader chose, which the address has too. default: else the first."""
    index = options.index(default) if default in options else 0
    return str(st.selectbox(label, options, index=index, key=key, bind="query-params", **more))  # type: ignore[call-overload]  # any of its keywords


def choose_key(label: str, options: Mapping[str, str], key: str, **more: object) -> str:
    """Return the key of the chosen option; the address has the key, which stays when the words that are shown change.

    options: the words by key, the default first.
    """
    _open_choice(options, key)
    chosen = str(st.selectbox(label, list(options), format_func=options.__getitem__, key=key, **more))  # type: ignore[call-overload]  # any of its keywords
    first = next(iter(options))
    return _keep_choice(chosen, first, key)


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
    every = list(options)
    selected = st.multiselect(label, every, format_func=options.__getitem__, key=key)
    chosen = [str(one) for one in selected]
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
    """Return the margin that the reader chose, a fraction."""
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
        asked_key = _find_key(titles, st.query_params.get(PART, ""))
        st.session_state[_ASKED] = titles.get(asked_key or "")
    asked = st.session_state.get(_ASKED)
    opened = asked if asked in titles.values() else None
    tabs = st.tabs([*titles.values()], default=opened, key=PART, on_change="rerun")
    first = next(iter(parts))
    for tab, (key, (_, draw_part)) in zip(tabs, parts.items(), strict=True):
        if tab.open:
            _keep_choice(key, first, PART)
            with tab:
                draw_part()


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
        installed = store.regimes_by_name()
        variants = [name for name, regime in store.kinds_by_variant().items() if regime in installed]
        known = {*installed, *variants}
    links: dict[str, str] = {}
    for name in names:
        variant = name.partition(", ")[0]
        words = variant.split("-")
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
    any_name = "|".join(map(re.escape, longest_first))
    # not within a longer name, whose dashes are escaped
    alone = rf"(?<![\w\\-])(?:{any_name})(?!\w|\\-\w)"

    def link_name(found: re.Match[str]) -> str:
        """Return a name that was found, as a link."""
        return f"[{found[0]}]({names[found[0]]})"

    return re.sub(alone, link_name, shown)


# Text, tables, figures ------------------------------------------------------------------------------------------------

# Streamlit links addresses, escaped or not; a space of no width breaks them
_ADDRESS = re.compile(r"(?i)https?:(?=//)|www(?=\.)|@(?=[-\w]+\.)")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>()#+!|~$:&-])")


def escape_markdown(text: str, limit: int = 500) -> str:
    """Return others' text as it stands inside Markdown, never obeyed. limit: of its length."""
    one_line = visible(text, limit).replace("\n", " ")
    without_addresses = _ADDRESS.sub("\\g<0>\u200b", one_line)
    return _MARKDOWN.sub(r"\\\1", without_addresses)


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
    """Draw a table. alt: what it shows, for readers who hear the page. columns: titles besides those of every page."""
    heads: dict[str, Any] = {name: title for name, title in _HEADS.items() if name in rows.columns}
    heads.update(columns or {})
    st.dataframe(rows, hide_index=True, key=key, alt=alt, placeholder="–", column_config=heads, **more)


def number_column(title: str | None, form: str, help: str | None = None) -> Any:
    """Return the declaration of a column of numbers. form: of `printf`, or one of Streamlit's by name."""
    return st.column_config.NumberColumn(title, format=form, help=help)


INK, GRID = {"light": "#31333f", "dark": "#d5d7dc"}, {"light": "#dfe1e6", "dark": "#3a3d45"}
# Streamlit's own, for what must hide what is scrolled below it
BEHIND = {"light": "#ffffff", "dark": "#171614"}


def read_theme() -> str:
    """Return `light` or `dark`."""
    return st.context.theme.type or "light"


def draw_figure(figure: Figure, key: str, place: Any = st) -> None:
    """Draw a figure in the colours of the page. place: a column of it, else below what is drawn."""
    width = "stretch" if figure["width"] == "container" else "content"
    theme = read_theme()
    inked = with_ink(figure, INK[theme], GRID[theme])
    place.vega_lite_chart(spec=inked, key=key, width=width)


def draw_figures(figures: Sequence[Figure], key: str) -> None:
    """Draw figures, two beside each other."""
    for first in range(0, len(figures), 2):
        columns = [st] if len(figures) == 1 else st.columns(2)
        of_line = figures[first : first + 2]
        for place, figure in enumerate(of_line):
            draw_figure(figure, f"{key}-{first + place}", columns[place])


def draw_forests(forests: Sequence[Forest]) -> None:
    """Draw estimates and intervals as HTML, which a reader can search and hear."""
    html = fill_template("panels.html.tmpl", forests=forests, COLOURS=COLOURS, SIGNS=SIGNS)
    st.html(html)


def offer_downloads(name: str, table: Callable[[], pd.DataFrame], figures: Sequence[Figure | Forest] = ()) -> None:
    """Draw a menu of files to download. name: of the files. table, figures: what they hold, made when one is asked for."""
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
            file = f"{name}.{ending}"
            st.download_button(label, make, file, mime, key=f"download-{file}", on_click="ignore", width="stretch")


def csv_text(table: pd.DataFrame) -> bytes:
    """Return a table as CSV, in which no text is a formula to a spreadsheet."""
    texts = table.select_dtypes(include=["object", "str"]).columns
    made_harmless = {column: table[column].map(harmless) for column in texts}
    lines = table.assign(**made_harmless).to_csv(index=False)
    return str(lines).encode()
