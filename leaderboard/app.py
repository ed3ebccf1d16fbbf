"""Entry point of the Streamlit app."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import shlex
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from harness.errors import HarnessError, StoreError
from harness.store.ingest import ingest_journals
from harness.store.manifest import MARK, read_submission, suite_folder
from leaderboard import RESULTS_VARIABLE
from leaderboard.data import Store, open_store
from leaderboard.footer import draw_footer
from leaderboard.page import AT, ENTRIES, INK, Page, draw_page, escape_markdown, fault_told, read_theme
from leaderboard.views import PAGES

# Streamlit's captions and chosen values have too little contrast for the accessibility guidelines, and
# its second heading is nearly as large as the first; and it greys out what is drawn again, which a run's every step would do
_STYLE = """<style>[data-stale=true] {opacity: 1 !important; transition: none !important}
[data-testid=stCaptionContainer], [data-testid=stCaptionContainer] * {
    color: inherit !important; opacity: .95 !important}
[data-testid=stHeading] h2 {font-size: 1.6rem}
[data-testid=stMain] a[href^="regimes?"] {color: inherit}
[data-testid=stMainBlockContainer] {padding-top: 3.5rem}
[data-testid=stButtonGroup] button[aria-checked=true] p, [data-testid=stTab] p {color: INK !important}</style>"""

# Streamlit's own icons come from a server of the web
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24"><path fill="#0f8a83" d="M2 11h6v10H2z"/>'
    '<path fill="#3b6fd4" d="M9 4h6v17H9z"/><path fill="#c2502d" d="M16 14h6v7h-6z"/></svg>'
)

# Keys of the session: the suite chosen, and an unknown one of the address
SUITE, UNKNOWN, OPENED, ENGINE = "suite", "unknown suite", "opened", "engine"
_LOOK_EVERY = 5.0  # seconds between two looks of an open page
_PAINTED_AFTER = 1.5  # seconds for which a new page has the processor for itself
_ALONE = 0.05  # seconds in which the browser loads what draws HTML
_SHARE = 0.05  # of the time at most goes to refreshing the store
_LEAVE_SECONDS = 5.0  # seconds that an ending process waits for DuckDB


class Refresher:
    """Brings the store of one folder up to date, never twice at a time."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self.lock = threading.Lock()
        self.rest_until = 0.0  # of the monotonic clock, in seconds
        atexit.register(self.leave)

    def leave(self) -> None:
        """Start no refresh any more, and wait for the one that runs: DuckDB must not be cut off while it writes."""
        self.rest_until = float("inf")
        self.lock.acquire(timeout=_LEAVE_SECONDS)

    def schedule_refresh(self) -> None:
        """Refresh the store soon, unless that happened just now; return at once."""
        if time.monotonic() >= self.rest_until and not self.lock.locked():
            soon = threading.Timer(_PAINTED_AFTER, self.refresh_store)
            soon.daemon = True
            soon.start()

    def refresh_store(self) -> None:
        """Take new journals into the store, then rest for as long as keeps refreshing below its share of the time."""
        with self.lock:
            if time.monotonic() < self.rest_until:
                return
            started = time.monotonic()
            # another writer, or a folder that cannot be written: readers keep what they have
            with contextlib.suppress(HarnessError):
                ingest_journals(self.results, deadline=0.0)
            took = time.monotonic() - started
            rest = max(_LOOK_EVERY, took / _SHARE)
            # `leave` may have set it to infinity in the meantime
            self.rest_until = max(self.rest_until, time.monotonic() + rest)


@st.cache_resource(max_entries=8, show_spinner=False)
def find_refresher(results: Path) -> Refresher:
    """Return the one that all sessions of this process share."""
    return Refresher(results)


@st.fragment(run_every=_LOOK_EVERY)
@fault_told()
def live_status(store: Store, suite: str | None) -> None:
    """Draw the suite's cells by their state, and the page anew when the store has changed."""
    find_refresher(store.results).schedule_refresh()
    if open_store(store.results).stamp != store.stamp:
        st.rerun()
    if suite is not None:
        st.caption(f"Cells: {store.describe_states(suite)}")


def open_newest(results: Path) -> Store | None:
    """Return the store as it is, made now where there is none yet; None where there are no results."""
    with contextlib.suppress(StoreError):
        return open_store(results)
    with st.spinner("Reading the results for the first time ..."):
        find_refresher(results).refresh_store()
    with contextlib.suppress(StoreError):
        return open_store(results)
    return None


def choose_suite(titles: Mapping[str, str], known: Collection[str]) -> str:
    """Return the suite chosen, else that of the address, own or reference results, else the first. known: of every engine."""
    asked = st.query_params.get("suite")
    state = st.session_state
    if SUITE not in state and asked:
        stored = next((name for name in (asked, asked + MARK) if name in known), "")
        key = SUITE if stored else UNKNOWN
        state[key] = stored or asked
    if state.get(SUITE) not in titles:
        state[SUITE] = next(iter(titles))
    return str(state[SUITE])


def draw_sidebar(store: Store, suite: str | None, titles: Mapping[str, str], engines: Sequence[str]) -> None:
    """Draw the choices of engine and suite, and what there is to say of the suite."""
    if len(engines) > 1:
        st.selectbox("Engine", ["all", *engines], key=ENGINE, bind="query-params")
    if suite is not None:
        st.selectbox("Suite", list(titles), key=SUITE, on_change=lambda: st.session_state.pop(UNKNOWN, None))
        st.query_params["suite"] = suite  # a link stays where it leads
        if titles[suite]:
            st.caption(escape_markdown(titles[suite]))
        with fault_told():
            taken = read_submission(suite_folder(store.results, suite))
            if taken is not None:
                st.caption(escape_markdown(taken.describe()))
    live_status(store, suite)


def read_arguments() -> Path:
    """Return the results folder of the command line, or of the environment."""
    parser = argparse.ArgumentParser()
    default = os.environ.get(RESULTS_VARIABLE, "results")
    parser.add_argument("--results", type=Path, default=Path(default))
    known, _ = parser.parse_known_args()
    results: Path = known.results
    return results


def list_entries(draw_body: Callable[[Page], None]) -> dict[str, Any]:
    """Return the pages as Streamlit knows them, by slug; the first is at the root. draw_body: what draws a page."""

    def make_entry(page: Page, path: str, **more: Any) -> Any:
        """Return one page under an address."""
        return st.Page(partial(draw_body, page), title=page.title, icon=page.icon, url_path=path, **more)

    first = PAGES[0]
    entries = {first.slug: make_entry(first, "home", default=True)}
    for page in PAGES[1:]:
        visibility = "hidden" if page.part_of else "visible"
        entries[page.slug] = make_entry(page, page.slug, visibility=visibility)
    # Streamlit knows its default page by the root alone
    entries[""] = make_entry(first, first.slug, visibility="hidden")
    return entries


def choose_results(store: Store) -> tuple[str | None, dict[str, str], list[str]]:
    """Return the suite to show, the titles of all that can be chosen, and the engines; say where the address has no such suite."""
    everything = store.list_suites()
    engines = sorted(set(everything["engine"]) - {""})
    engine = st.session_state.get(ENGINE) or st.query_params.get(ENGINE)
    kept = everything[everything["engine"] == engine] if engine in engines else everything
    titles = dict(zip(kept["name"], kept["title"], strict=True))
    suite = choose_suite(titles, set(everything["name"])) if titles else None
    unknown = st.session_state.get(UNKNOWN)
    if suite and unknown:
        st.warning(f"There is no suite “{escape_markdown(unknown, 200)}” here. Shown is {escape_markdown(suite)}.")
    return suite, titles, engines


def main() -> None:
    """Draw the page that the address asks for, then the sidebar."""
    st.set_page_config(page_title="Experience-sharing leaderboard", page_icon=_ICON, layout="wide")
    st.html(_STYLE.replace("INK", INK[read_theme()]))
    if OPENED not in st.session_state:
        time.sleep(_ALONE)
        st.session_state[OPENED] = True
    results = read_arguments()
    st.session_state[AT] = "" if results == Path("results") else f" --results {shlex.quote(str(results))}"
    store = open_newest(results)
    suite: str | None = None

    def draw_body(page: Page) -> None:
        """Draw a page with links to those that ask of the same things; the suite is known by then."""
        top = page.part_of or page.slug
        together = [one for one in PAGES if top in (one.slug, one.part_of)]
        together.sort(key=lambda one: one.part_of)
        draw_page(page, store, suite, together)

    entries = list_entries(draw_body)
    chosen = st.navigation([*entries.values()])
    st.session_state[ENTRIES] = entries
    titles, engines = dict[str, str](), list[str]()
    if store:
        suite, titles, engines = choose_results(store)
    try:
        chosen.run()
        draw_footer()
    finally:
        if store:  # after the page, which is what one waits for
            with st.sidebar:
                draw_sidebar(store, suite, titles, engines)


main()
