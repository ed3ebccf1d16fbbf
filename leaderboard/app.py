"""Entry point of the Streamlit app: results folder, suite, navigation."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from harness.errors import StoreError
from harness.store.manifest import read_submission
from harness.store.reference_results import suite_folder
from leaderboard import RESULTS_VARIABLE
from leaderboard.data import Store, open_store
from leaderboard.live import live_status, refresher
from leaderboard.parts import draw_page, escaped, ink
from leaderboard.view import Page, View
from leaderboard.views import PAGES

# Streamlit's captions and what is chosen of a control are too faint for the contrast that the accessibility guidelines ask for, and
# its second heading is nearly as large as the first
_STYLE = """<style>[data-testid=stCaptionContainer], [data-testid=stCaptionContainer] * {
    color: inherit !important; opacity: .95 !important}
[data-testid=stHeading] h2 {font-size: 1.6rem}
[data-testid=stButtonGroup] button[aria-checked=true] p, [data-testid=stTab] p {color: INK !important}</style>"""

HOME = "home"
# Keys of the session: the suite chosen, and one that the address asked for in vain. (A bare string would stand on every page.)
SUITE, UNKNOWN = "suite", "unknown suite"


def results_folder() -> Path:
    """From `--results`, else the environment, else `results`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", type=Path, default=Path(os.environ.get(RESULTS_VARIABLE, "results")))
    return Path(parser.parse_known_args()[0].results)


def choose_suite(store: Store) -> str | None:
    """The sidebar's engine and suite selectors. The address always names the suite, so that a link to a page stays that page when
    a newer suite has become the first."""
    everything = store.suites()
    engines = sorted({s.engine for s in everything if s.engine})
    asked, state = st.query_params.get("suite"), st.session_state
    if SUITE not in state and asked:
        state[SUITE if asked in {s.name for s in everything} else UNKNOWN] = asked
    with st.sidebar:
        suites = everything
        if len(engines) > 1:
            engine = st.selectbox("Engine", ["all", *engines], key="engine", bind="query-params")
            suites = [s for s in suites if engine in ("all", s.engine)]
        names = [s.name for s in suites]
        if not names:
            return None
        if state.get(SUITE) not in names:
            state[SUITE] = names[0]
        chosen = st.selectbox("Suite", names, key=SUITE, on_change=lambda: state.pop(UNKNOWN, None))
        st.query_params["suite"] = chosen
        title = next((s.title for s in suites if s.name == chosen), "")
        if title:
            st.caption(escaped(title))
        if (taken := read_submission(suite_folder(results_folder(), chosen))) is not None:
            st.caption(escaped(taken.describe()))
    if state.get(UNKNOWN):
        st.warning(f"There is no suite “{escaped(state[UNKNOWN], 200)}” here. Shown is {escaped(chosen)}.")
    return chosen


def main() -> None:
    """Draw the page that the address names."""
    st.set_page_config(page_title="Experience-sharing leaderboard", page_icon=":material/leaderboard:", layout="wide")
    st.html(_STYLE.replace("INK", ink()))
    results = results_folder()
    store = newest(results)
    links: dict[str, Any] = {}

    def body(page: Page) -> None:
        draw_page(page, View(store, suite, links))

    for page in PAGES:
        links[page.slug] = st.Page(
            partial(body, page),
            title=page.title,
            icon=page.icon,
            url_path=page.slug if links else HOME,
            default=not links,
        )
    # Streamlit knows its default page by no address but the root; a link to the page's own leads there too.
    own = st.Page(partial(body, PAGES[0]), title=PAGES[0].title, url_path=PAGES[0].slug, visibility="hidden")
    chosen = st.navigation([*links.values(), own])
    suite = choose_suite(store) if store else None
    if store:
        with st.sidebar:
            live_status(results, store, suite)
    chosen.run()


def newest(results: Path) -> Store | None:
    """The newest store; built first where only journals are there."""
    try:
        return open_store(results)
    except StoreError:
        with st.spinner("Reading the results for the first time ..."):
            refresher(str(results)).work()
    try:
        return open_store(results)
    except StoreError:
        return None


main()
