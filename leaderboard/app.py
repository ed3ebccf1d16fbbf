"""Entry point of the Streamlit app."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import shlex
import threading
import time
from collections.abc import Collection, Mapping, Sequence
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
        self.results, self.lock, self.rest_until = results, threading.Lock(), 0.0
        atexit.register(self.leave)

    def leave(self) -> None:
        self.rest_until = float("inf")
        self.lock.acquire(timeout=_LEAVE_SECONDS)

    def poke(self) -> None:
        if time.monotonic() >= self.rest_until and not self.lock.locked():
            soon = threading.Timer(_PAINTED_AFTER, self.work)
            soon.daemon = True
            soon.start()

    def work(self) -> None:
        with self.lock:
            if time.monotonic() < self.rest_until:
                return
            started = time.monotonic()
            # another writer, or a folder that cannot be written: readers keep what they have
            with contextlib.suppress(HarnessError):
                ingest_journals(self.results, deadline=0.0)
            rest = max(_LOOK_EVERY, (time.monotonic() - started) / _SHARE)
            self.rest_until = max(self.rest_until, time.monotonic() + rest)


@st.cache_resource(max_entries=8, show_spinner=False)
def refresher(results: Path) -> Refresher:
    return Refresher(results)


@st.fragment(run_every=_LOOK_EVERY)
@fault_told()
def live_status(store: Store, suite: str | None) -> None:
    refresher(store.results).poke()
    if open_store(store.results).stamp != store.stamp:
        st.rerun()
    if suite is not None:
        st.caption(f"Cells: {store.states(suite)}")


def newest(results: Path) -> Store | None:
    with contextlib.suppress(StoreError):
        return open_store(results)
    with st.spinner("Reading the results for the first time ..."):
        refresher(results).work()
    with contextlib.suppress(StoreError):
        return open_store(results)
    return None


def suite_of(titles: Mapping[str, str], known: Collection[str]) -> str:
    """The suite chosen, else that of the address, own or reference results, else the first. known: of every engine."""
    asked, state = st.query_params.get("suite"), st.session_state
    if SUITE not in state and asked:
        stored = next((name for name in (asked, asked + MARK) if name in known), "")
        state[SUITE if stored else UNKNOWN] = stored or asked
    if state.get(SUITE) not in titles:
        state[SUITE] = next(iter(titles))
    return str(state[SUITE])


def draw_sidebar(store: Store, suite: str | None, titles: Mapping[str, str], engines: Sequence[str]) -> None:
    if len(engines) > 1:
        st.selectbox("Engine", ["all", *engines], key=ENGINE, bind="query-params")
    if suite is not None:
        st.selectbox("Suite", list(titles), key=SUITE, on_change=lambda: st.session_state.pop(UNKNOWN, None))
        st.query_params["suite"] = suite  # a link stays where it leads
        if titles[suite]:
            st.caption(escape_markdown(titles[suite]))
        with fault_told():
            if (taken := read_submission(suite_folder(store.results, suite))) is not None:
                st.caption(escape_markdown(taken.describe()))
    live_status(store, suite)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", type=Path, default=Path(os.environ.get(RESULTS_VARIABLE, "results")))
    st.set_page_config(page_title="Experience-sharing leaderboard", page_icon=_ICON, layout="wide")
    st.html(_STYLE.replace("INK", INK[read_theme()]))
    if OPENED not in st.session_state:
        time.sleep(_ALONE)
        st.session_state[OPENED] = True
    results = parser.parse_known_args()[0].results
    st.session_state[AT] = "" if results == Path("results") else f" --results {shlex.quote(str(results))}"
    store = newest(results)
    suite: str | None = None

    def body(page: Page) -> None:
        top = page.part_of or page.slug
        together = [one for one in PAGES if top in (one.slug, one.part_of)]
        draw_page(page, store, suite, sorted(together, key=lambda one: one.part_of))

    def entry(page: Page, path: str, **more: Any) -> Any:
        return st.Page(partial(body, page), title=page.title, icon=page.icon, url_path=path, **more)

    first = PAGES[0]
    entries = {first.slug: entry(first, "home", default=True)}
    for page in PAGES[1:]:
        entries[page.slug] = entry(page, page.slug, visibility="hidden" if page.part_of else "visible")
    st.session_state[ENTRIES] = entries
    # Streamlit knows its default page by the root alone
    chosen = st.navigation([*entries.values(), entry(first, first.slug, visibility="hidden")])
    titles, engines = dict[str, str](), list[str]()
    if store:
        everything = store.suites()
        engines = sorted(set(everything["engine"]) - {""})
        engine = st.session_state.get(ENGINE) or st.query_params.get(ENGINE)
        kept = everything[everything["engine"] == engine] if engine in engines else everything
        titles = dict(zip(kept["name"], kept["title"], strict=True))
        suite = suite_of(titles, set(everything["name"])) if titles else None
        if suite and (unknown := st.session_state.get(UNKNOWN)):
            st.warning(f"There is no suite “{escape_markdown(unknown, 200)}” here. Shown is {escape_markdown(suite)}.")
    try:
        chosen.run()
        draw_footer()
    finally:
        if store:  # after the page, which is what one waits for
            with st.sidebar:
                draw_sidebar(store, suite, titles, engines)


main()
